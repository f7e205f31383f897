# SPDX-License-Identifier: Apache-2.0
"""Scenarios over three tiers: 4 pods of 2 T0s and 2 T1s, 4 T2s, 2 hosts below each T0, 2 planes."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.sim.checks import goodputs_bps
from mrc.sim.run import SimRun, make_flows, run
from mrc.sim.scenario import Scenario, dead_paths, packet_bytes, parse_scenario
from mrc.sim.trials import needed_bytes

PODS = {"hosts": 16, "planes": 2, "t0": 8, "t1": 8, "pods": 4, "t2": 4}
FAR = {"kind": "pairs", "pairs": [[0, 13], [6, 9]], "write": "256KiB"}
IN_POD = {"kind": "pairs", "pairs": [[0, 3]], "write": "256KiB"}


def scenario(*traffic: dict[str, Any], topology: dict[str, Any] | None = None, **tables: Any,
             ) -> Scenario:  # fmt: skip
    values: dict[str, Any] = {
        "title": "t",
        "topology": PODS | (topology or {}),
        "traffic": list(traffic or [{"kind": "permutation", "write": "256KiB"}]),
        "run": {"until": "50ms"},
    }
    return parse_scenario(values | tables, "t", "t.toml")


def hops_by_packet(trace: Path) -> dict[tuple[str, str, str, str], list[str]]:
    """The hops of each packet in their order, by opcode, QP, PSN and path."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for line in trace.read_text().splitlines():
        _, what, hop, op, qp, psn, _, path, *_ = line.split(" ")
        if what == "send":
            found.setdefault((op, qp, psn, path), []).append(hop)
    return found


def test_run__each_packet_passes_the_switches_of_its_path(tmp_path: Path) -> None:
    found = scenario({"kind": "all-to-all", "write": "256KiB"})
    trace, topology = tmp_path / "trace", found.topology
    result = run(found, 1, trace=str(trace))
    assert result.stats.lost == result.stats.unroutable == 0
    used: set[tuple[int, int, int, int]] = set()
    for (op, _, _, path), hops in hops_by_packet(trace).items():
        if op not in ("op=c6", "op=c7", "op=c8", "op=ca"):  # writes; SACKs repeat their PSN
            continue
        sender = int(hops[0].partition(">")[0][1:])
        receiver = int(hops[-1].partition(">h")[2])
        plane, number = int(hops[0].split(":")[1][0]), int(path.removeprefix("path="))
        way = topology.way(number, receiver, topology.origin(sender, receiver))
        nodes = [f"t0:{plane}.{topology.t0_of(sender)}"]
        nodes += [f"{tier}:{plane}.{at}" for tier, at in way]
        nodes = [f"h{sender}", *nodes, f"h{receiver}"]
        assert hops == [f"{one}>{other}" for one, other in pairwise(nodes)]
        used.add((sender, receiver, plane, number))
    assert len(used) == 16 * 2 * (1 * 1 + 2 * 2 + 12 * 4)  # every path carried a packet


@pytest.mark.parametrize("kind", ["mrc", "ecmp", "ecmp-planes", "go-back-n"])
@pytest.mark.parametrize("probed", [True, "computed"])
def test_run__with_absent_parts_and_every_transport(kind: str, probed: bool | str) -> None:
    absent = ["t2:1.1", "core:2.3.1", "uplink:1.0.0", "core:1.6.*", "link:h5.2"]
    found = scenario(
        topology={"absent": absent, "core_rate": "50Gbit/s"},
        transport={"kind": kind, "probed": probed},
        run={"until": "50ms", "audit": kind != "go-back-n"},
    )
    result = run(found, 3)
    assert all(info.completed == 1 and not info.failed for info in result.infos)
    assert result.stats.unroutable == 0


def lost(*faults: dict[str, Any], traffic: dict[str, Any] | None = None) -> SimRun:
    traffic = (traffic or FAR) | {"writes": 8}
    return run(scenario(traffic, faults=[{"kind": "silent"} | each for each in faults]), 1)


def test_run__faults_of_each_tier() -> None:
    at = {"at": "10us"}
    silent = lost({"target": "t2:1.2", **at})
    assert silent.stats.lost > 0
    assert all(info.completed == 8 for info in silent.infos)
    assert lost({"target": "t2:1.2", **at}, traffic=IN_POD).stats.lost == 0
    assert lost({"target": "t1:1.0", **at}, traffic=IN_POD).stats.lost > 0
    assert lost({"target": "core:2.7.1", **at}).stats.lost > 0  # into the pod of host 13
    assert lost({"target": "core:2.7.1", **at}, traffic=IN_POD).stats.lost == 0
    assert lost({"target": "t2:2.1>t1:2.7", **at}).infos[0].lost_packets > 0
    assert lost({"target": "t2:2.1>t1:2.7", **at}).infos[1].lost_packets == 0


@pytest.mark.more
def test_run__the_same_for_one_shard_and_for_two_with_threads() -> None:
    """See test_shards.c; here the whole way from a file. A run with a trace has one shard."""
    found = scenario(
        {"kind": "permutation", "write": "16KiB"},
        topology={"hosts": 2048, "planes": 1, "t0": 64, "t1": 32, "pods": 8, "t2": 16},
        transport={"evs_per_plane": 4, "mpr": 128, "probed": "computed"},
        faults=[{"target": "t2:1.*", "kind": "loss", "share": "20%", "draw": 2}],
    )
    one, two = run(found, 2, trace=os.devnull), run(found, 2, threads=2)
    assert one.stats == two.stats and one.stats.lost > 0
    assert list(one.infos) == list(two.infos)


def test_base_rtt__is_that_of_the_longest_path() -> None:
    three, two = scenario(), scenario(topology={"pods": 1, "t2": 0, "t1": 2})
    on_the_wire = packet_bytes(three.transport) + 52 + 126
    more = 4 * 500 + on_the_wire * 2 * 8e9 / 100e9
    assert three.base_rtt_ns == pytest.approx(two.base_rtt_ns + more, abs=1)
    slow = scenario(topology={"core_delay": "1500ns"})
    assert slow.base_rtt_ns == three.base_rtt_ns + 4000


def test_run__a_slow_core_limits_pods_and_not_their_inside() -> None:
    """4 hosts of a pod have 2 planes of 100 each; its links to T2s have 2 x 4 x 25."""
    found = scenario(
        {"kind": "pairs", "pairs": [[0, 4], [1, 5], [2, 6], [3, 7]], "write": "4MiB"},
        {"kind": "pairs", "pairs": [[8, 10]], "write": "4MiB"},
        topology={"core_rate": "25Gbit/s"},
    )
    fair = goodputs_bps(found, make_flows(found, 1), 0, 10**6, (1, 2))
    share = found.transport.path_mtu / packet_bytes(found.transport)
    assert fair == pytest.approx([50e9 * share] * 4 + [200e9 * share])
    *far, near = run(found, 1).infos
    end_ns = max(info.last_ns for info in far)
    assert 0.9 < sum(info.received_bytes for info in far) * 8e9 / end_ns / sum(fair[:4]) <= 1
    assert 0.9 < near.received_bytes * 8e9 / near.last_ns / fair[4] <= 1


def test_goodputs__follow_a_silent_t2() -> None:
    """Of the 4 paths of plane 1 between two pods one is left, at 25."""
    faults = [{"target": f"t2:1.{m}", "kind": "silent"} for m in (0, 1, 2)]
    found = scenario(FAR, topology={"core_rate": "25Gbit/s"}, faults=faults)
    share = found.transport.path_mtu / packet_bytes(found.transport)
    fair = goodputs_bps(found, make_flows(found, 1), 0, 10**6, (1, 2))
    assert fair == pytest.approx([125e9 * share] * 2)
    one = scenario(FAR | {"paths": [3]}, topology={"core_rate": "25Gbit/s"})
    fair = goodputs_bps(one, make_flows(one, 1), 0, 10**6, (1,))
    assert fair == pytest.approx([25e9 * share] * 2)


def test_dead_paths__between_pods_and_within_one() -> None:
    names = ["t2:1.2", "t1:1.0", "core:2.7.1", "t2:2.2>t1:2.0", "uplink:2.0.1"]
    found = scenario(faults=[{"target": name, "kind": "silent"} for name in names])
    # plane 1: T2 2, and T1 0 with T2s 0 and 2; plane 2: T2 1, and T1 1 with T2s 1 and 3
    assert dead_paths(found, 0, 13) == 2 + 2
    assert dead_paths(found, 13, 0) == 2 + 3  # and down from T2 2
    assert dead_paths(found, 0, 3) == 1 + 1
    assert dead_paths(found, 0, 1) == 0


def test_needed_bytes__counts_the_links_of_all_tiers() -> None:
    small, large = scenario(), scenario(topology={"t2": 400}, transport={"evs_per_plane": 4})
    evs = scenario(transport={"evs_per_plane": 4})
    assert needed_bytes(large) - needed_bytes(evs) == 2 * 2 * 4 * 396 * 128
    assert needed_bytes(small) == needed_bytes(evs)


@pytest.mark.parametrize(
    ("topology", "tables", "complaint"),
    [
        ({"pods": 3}, {}, r"topology.t0: is 8, not a multiple of pods \(3\)"),
        ({"t2": 3}, {}, "topology.t2: is 3, not a multiple of the T1s of a pod"),
        ({"t2": 0}, {}, "topology.pods: is 4 without t2"),
        ({"core_rate": "0bit/s"}, {}, "topology.core_rate: must not be 0"),
        ({"pods": 1, "t2": 0, "core_rate": "1Gbit/s"}, {}, "topology.core_rate: requires T2s"),
        ({}, {"traffic": [IN_POD | {"paths": [2]}]}, "in one pod: their paths are 0 to 1"),
        ({}, {"faults": [{"target": "core:1.0.1", "kind": "silent"}]}, "no link joins"),
        ({"t2": 2048}, {}, "evs_per_plane: 4096 EVs exceed the 1024 of a QP"),
    ],
)
def test_parse__refuses(topology: dict[str, Any], tables: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        scenario(topology=topology, **tables)
