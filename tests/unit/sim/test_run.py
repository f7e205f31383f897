# SPDX-License-Identifier: Apache-2.0
"""Runs of small scenarios: what is refused, what QPs know at the start, how results are kept; links
that differ from their tier, fabrics without some of their links, and fabrics of three tiers.
"""

from __future__ import annotations

import gc
import os
import pickle
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mrc.enums import EvState
from mrc.errors import ConfigError
from mrc.sim import run as runs
from mrc.sim.checks import goodputs_bps
from mrc.sim.native import EngineEvent
from mrc.sim.run import SimRun, make_flows, run
from mrc.sim.scenario import Scenario, dead_paths, packet_bytes, parse_scenario
from mrc.sim.trials import needed_bytes, run_trial, summarize
from mrc.testbed.tiers import TimedFault
from mrc.testbed.topology import Topology

Table = dict[str, Any]


def scenario(topology: Table, *traffic: Table, **tables: Any) -> Scenario:
    values = {"title": "t", "topology": topology, "traffic": list(traffic)}
    return parse_scenario(values | tables, "t", "t.toml")


def small(**tables: Any) -> Scenario:
    topology = {"hosts": 4, "planes": 2, "t0": 2, "t1": 4} | tables.pop("topology", {})
    return scenario(topology, {"kind": "pairs", "pairs": [[0, 2]], "write": "64KiB"}, **tables)


@pytest.mark.parametrize(
    "topology",
    [
        {"host_rate": "20Tbit/s"},
        {"host_rate": "10kbit/s"},
        {"host_delay": "500ms"},
        {"wake": "10s"},
    ],
)
def test_refusal__rates_and_times_that_no_congestion_control_accepts(topology: Table) -> None:
    """They aborted the process."""
    with pytest.raises(ConfigError, match="congestion control does not work at such rates"):
        run(small(topology=topology), 1)


def test_computed__as_probes_would_find_it() -> None:
    faults = [{"target": "t1:1.0", "kind": "silent", "at": "0ns"}]
    probed = run(small(faults=faults), 1)
    computed = run(small(transport={"probed": "computed"}, faults=faults), 1)
    blind = run(small(transport={"probed": False}, faults=faults), 1)
    assert [each.infos[0].completed for each in (probed, computed, blind)] == [1, 1, 1]
    assert probed.infos[0].lost_packets == computed.infos[0].lost_packets == 0
    assert blind.infos[0].lost_packets > 0
    assert computed.infos[0].rtt_ns == pytest.approx(probed.infos[0].rtt_ns, rel=0.05)
    ends = [each.infos[0].last_ns for each in (probed, computed)]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)
    bad = {
        (e.plane, e.path)
        for e in computed.events
        if e.type == EngineEvent.EV_STATE and not e.receiver
    }
    assert bad <= {(1, 0)}


def test_progress__ends_with_all_bytes() -> None:
    seen: list[float] = []
    run(small(), 1, progress=lambda part, _: seen.append(part))
    assert seen == sorted(seen) and seen[-1] == 1


def test_trace__on_a_full_disk_is_an_error() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        run(small(), 1, trace="/dev/full")


# ---- Results, kept as the simulator wrote them: the same values, in little memory ---------------

MOST_BYTES_A_HOST = 800  # in Python, with 6 samples; 3 KiB with an object for each flow and port


def permutation(hosts: int, share: str = "1%", **topology: Any) -> Scenario:
    return scenario(
        {"hosts": hosts, "planes": 8, "t0": 2, "t1": 2} | topology,
        {"kind": "permutation", "write": "256KiB"},
        transport={"probed": "computed"},
        faults=[{"target": "all", "kind": "loss", "share": share}],
        checks=[
            {"measure": measure, "at_least": 0.1}
            for measure in ("goodput", "slowest_flow", "last_hop_busy")
        ],
    )


@pytest.fixture(scope="module")
def result() -> SimRun:
    return run(permutation(8), 1)


def test_result__is_the_same_with_and_without_objects(
    result: SimRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = summarize(run_trial(permutation(8), 1))
    monkeypatch.setattr(runs, "AT_HAND", 0)
    read_again = run(permutation(8), 1)
    assert list(read_again.curves) == list(result.curves) and read_again.curves[-1].bytes[-1]
    assert read_again.curves[1:3] == list(result.curves[1:3])
    assert list(read_again.retransmitted) == list(result.retransmitted)
    assert summarize(run_trial(permutation(8), 1)) == at_hand
    with pytest.raises(IndexError):
        read_again.curves[8]


def test_curve__ends_with_the_run(result: SimRun) -> None:
    for info, curve, again in zip(result.infos, result.curves, result.retransmitted, strict=True):
        assert curve.times_ns[-1] == result.stats.now_ns
        assert curve.bytes[-1] == info.received_bytes == 256 << 10
        assert again[-1] == info.retransmitted_packets
        assert list(curve.bytes) == sorted(curve.bytes)


def test_rows__travel_between_processes(result: SimRun) -> None:
    copy = pickle.loads(pickle.dumps(result))
    assert copy == result
    assert copy.infos[0] == result.infos[0] and copy.infos[-1] == result.infos[7]
    assert copy.infos[2:4] == [result.infos[2], result.infos[3]]
    assert copy.last_hops == result.last_hops


def test_last_hops__by_host_and_plane(result: SimRun) -> None:
    assert len(result.last_hops) == 8 * 8 == len(list(result.last_hops))
    assert all(port.busy_ns > 0 for port in result.last_hops.values())
    for key in ((8, 1), (0, 0), (0, 9)):
        assert key not in result.last_hops


@pytest.mark.more
def test_result__takes_little_memory_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "AT_HAND", 0)

    def held(hosts: int) -> int:
        found = permutation(hosts, "0%", t0=hosts // 32)
        gc.collect()
        tracemalloc.start()
        try:
            result = run(found, 1)
            gc.collect()
            assert result.stats.completed_writes == hosts
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert (held(512) - held(64)) / (512 - 64) < MOST_BYTES_A_HOST


# ---- Links that differ from their tier ----------------------------------------------------------

TWO_HOSTS = {"hosts": 2, "planes": 1, "t0": 2, "t1": 1}
ONE_WRITE = {"kind": "pairs", "pairs": [[0, 1]], "write": "256KiB"}


def duration_ns(links: list[Table], faults: list[Table]) -> int:
    """Paths are not probed first, or the probes would meet a fault at the start."""
    tables = {"links": links, "faults": faults, "transport": {"probed": False}}
    (flow,) = run(scenario(TWO_HOSTS, ONE_WRITE, **tables), 1).infos
    return flow.last_ns - flow.first_ns


def test_links__have_their_own_rate_and_delay() -> None:
    usual = duration_ns([], [])
    slow = duration_ns([{"target": "t1:1.0", "rate": "10Gbit/s"}], [])
    assert slow > 256 * 1024 * 8 / 10  # ns at 10 Gbit/s
    assert slow > 4 * usual
    far = duration_ns([{"target": "uplink:1.1.0", "delay": "1ms"}], [])
    assert far > usual + 2_000_000


def test_links__the_last_change_counts() -> None:
    changes = [{"target": "plane:1", "rate": "1Gbit/s"}, {"target": "plane:1", "rate": "100Gbit/s"}]
    assert duration_ns(changes, []) == duration_ns([], [])


def test_links__have_it_again_when_a_fault_has_ended() -> None:
    """The fault is over before the first packet leaves."""
    links = [{"target": "t1:1.0", "rate": "10Gbit/s"}]
    fault = {"target": "t1:1.0", "kind": "rate", "rate": "1Gbit/s", "until": "1ns"}
    assert duration_ns(links, [fault]) == duration_ns(links, [])


def test_links__a_qp_that_has_not_probed_leaves_the_path_with_a_small_mtu() -> None:
    links = [{"target": "uplink:1.0.1", "mtu": 3000}]
    tables: Table = {"transport": {"probed": False}, "links": links}
    result = run(scenario(TWO_HOSTS | {"t1": 4}, ONE_WRITE | {"write": "16MiB"}, **tables), 1)
    assert [(event.status, event.path) for event in result.events] == [(EvState.ASSUMED_BAD, 1)]
    assert result.infos[0].lost_packets == 1


@pytest.mark.parametrize(
    ("own", "lost"), [({"loss": "100%"}, True), ({"mtu": 4227}, True), ({"mtu": 4228}, False)]
)
@pytest.mark.parametrize("probed", [True, "computed"])
def test_links__lose_packets(own: Table, lost: bool, probed: bool | str) -> None:
    """A full packet has 4228 B with both IPv6 headers. SACKs return on any path that is alive."""
    both = ONE_WRITE | {"pairs": [[0, 1], [1, 0]]}
    tables: Table = {"links": [{"target": "t0:1.0>t1:1.0", **own}], "transport": {"probed": probed}}
    ran = run(scenario(TWO_HOSTS | {"planes": 2}, both, **tables), 1)
    assert [flow.completed for flow in ran.infos] == [1, 1]
    one, two = ran.last_hops[1, 1], ran.last_hops[1, 2]
    assert one.busy_ns < two.busy_ns / 5 if lost else one.busy_ns > two.busy_ns / 2
    one, two = ran.last_hops[0, 1], ran.last_hops[0, 2]
    assert one.busy_ns > two.busy_ns / 2 or "loss" in own


def test_links__of_two_plain_hosts() -> None:
    """One T0 and no path over a T1: a plane is one link of each host, at the given rate."""
    found = scenario(
        {"hosts": 2, "planes": 1, "t0": 1, "t1": 1, "buffer": "0B", "trimming": False},
        ONE_WRITE,
        links=[{"target": "plane:1", "rate": "30Mbit/s"}],
        transport={"cc": "null", "path_mtu": 1344, "noise": "1ms", "timeout": 24},
    )
    result = run(found, 1)
    (flow,), port = result.infos, result.last_hops[1, 1]
    at_rate_ns = 196 * (1344 + 44 + 126) * 8 / 0.03
    assert at_rate_ns < flow.last_ns - flow.first_ns < 1.1 * at_rate_ns
    assert port.busy_ns > 0.9 * at_rate_ns


@pytest.mark.parametrize(("kind", "value"), [("silent", 0), ("rate", 0), ("jitter", 1)])
def test_set_links__refuses(kind: str, value: int) -> None:
    change = TimedFault("plane:1", kind, "all", 0, None, value, 0)
    with pytest.raises(ConfigError, match="rejects the links"):
        run(replace(scenario(TWO_HOSTS, ONE_WRITE), links=(change,)), 1)


# ---- Fabrics without some of their links --------------------------------------------------------

UNEVEN = ["link:h5.*", "link:h0.3", "link:h4.1", "t1:3.2", "uplink:1.1.0"]


def without(absent: list[str], *traffic: Table, audit: bool = True, **tables: Any) -> Scenario:
    return scenario(
        {"hosts": 6, "planes": 3, "t0": 2, "t1": 3, "absent": absent} | tables.pop("topology", {}),
        *(traffic or [{"kind": "permutation", "write": "1MiB"}]),
        run={"audit": audit} | tables.pop("run", {}),
        checks=[
            {"measure": "goodput", "at_least": "1%"},
            {"measure": "goodput", "of": "max-min", "at_least": "1%"},
            {"measure": "last_hop_busy", "at_least": "1%"},
        ],
        **tables,
    )


def used(result: SimRun) -> set[tuple[int, int]]:
    """Receiver and plane of the ports that have sent."""
    return {where for where, port in result.last_hops.items() if port.busy_ns}


@pytest.mark.parametrize("probed", [True, "computed", False])
@pytest.mark.parametrize("kind", ["mrc", "ecmp", "ecmp-planes", "go-back-n"])
def test_absent__only_what_exists(kind: str, probed: bool | str) -> None:
    found = without(UNEVEN, transport={"kind": kind, "probed": probed})
    assert found.topology.host_numbers() == (0, 1, 2, 3, 4)
    result = run(found, 3)
    assert len(result.flows) == 5
    assert all(info.completed == 1 and not info.failed for info in result.infos)
    assert not {(0, 3), (4, 1)} & used(result)
    if kind == "mrc":
        assert result.stats.lost == result.stats.unroutable == 0
        for flow in result.flows:
            planes = found.topology.planes_between(flow.sender, flow.receiver)
            assert {(flow.receiver, plane) for plane in planes} <= used(result)


def test_absent__switches_hash_over_what_leads_there() -> None:
    """T0 0 has uplinks to T1 0 and 1 of plane 1, T0 1 to T1 1 and 2: only T1 1 joins them."""
    found = without(
        ["uplink:1.0.2", "uplink:1.1.0"],
        {"kind": "pairs", "pairs": [[0, 3], [4, 1]], "write": "1MiB", "qps": 8},
        topology={"routing": "ecmp", "planes": 1},
        faults=[{"target": "t1:1.1", "kind": "silent", "at": "30us", "until": "40us"}],
    )
    result = run(found, 1)
    assert result.stats.unroutable == 0 and result.stats.lost > 0
    assert all(info.completed == 1 for info in result.infos)


def test_absent__a_t0_with_half_of_its_uplinks_has_half_the_rate() -> None:
    absent = ["uplink:*.0.2", "uplink:*.0.1"]
    pairs = {"kind": "pairs", "pairs": [[0, 3], [1, 4], [2, 5]], "write": "4MiB"}
    whole, part = (run(without(each, pairs), 1) for each in ([], absent))
    slow, fast = (max(info.last_ns for info in result.infos) for result in (part, whole))
    assert 2.5 * fast < slow < 3.7 * fast


def test_absent__the_same_for_any_number_of_shards() -> None:
    """See test_shards.c; here the whole way from a file."""
    found = without(UNEVEN, audit=False)
    assert run(found, 2).stats == run(found, 2, threads=2).stats


@pytest.mark.parametrize(
    ("absent", "tables", "complaint"),
    [
        (["link:h9.1"], {}, "topology.absent: target link:h9.1: no host h9"),
        (["plane:1"], {}, "topology.absent: target plane:1: only links and switches"),
        (["t1:1.0"], {"faults": [{"target": "t1:1.0", "kind": "silent"}]}, "is absent from this"),
        (UNEVEN, {"links": [{"target": "link:h0.3", "delay": "1ms"}]}, "is absent from this"),
    ],
)
def test_absent__refuses(absent: list[str], tables: Table, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        without(absent, **tables)


@pytest.mark.parametrize(
    "pairs", [{"pairs": [[0, 5]]}, {"pairs": [[0, 4]]}, {"pairs": [[1, 4]], "plane": 1}]
)
def test_absent__refuses_flows_without_a_path(pairs: Table) -> None:
    kind = {"kind": "tcp"} if "plane" in pairs else {"kind": "pairs", "write": "1MiB"}
    found = without([*UNEVEN, "link:h0.2"], pairs | kind, audit=False, run={"until": "1ms"})
    with pytest.raises(ConfigError, match=r"has no path to|rejects the flow"):
        run(found, 1)


def test_absent__faults_are_drawn_from_parts_that_exist() -> None:
    fault = {"target": "link:h*.1", "kind": "silent", "draw": "100%", "at": "5ms"}
    result = run(without(UNEVEN, faults=[fault]), 1)
    assert {each.target for each in result.scenario.faults} == {f"link:h{i}.1" for i in range(4)}


def test_planes_between__is_what_paths_say() -> None:
    fabric: Topology = without(UNEVEN).topology
    for a in fabric.host_numbers():
        for b in fabric.host_numbers():
            if a != b:
                planes = {path.plane for path in fabric.paths(a, b)}
                assert planes == set(fabric.planes_between(a, b))
    assert [path.name for path in fabric.paths(0, 4)] == ["t1:2.0", "t1:2.1", "t1:2.2"]
    assert [path.name for path in fabric.paths(1, 4)][3:] == ["t1:3.0", "t1:3.1"]


# ---- Three tiers: 4 pods of 2 T0s and 2 T1s, 4 T2s, 2 hosts below each T0, 2 planes ------------

PODS = {"hosts": 16, "planes": 2, "t0": 8, "t1": 8, "pods": 4, "t2": 4}
FAR = {"kind": "pairs", "pairs": [[0, 13], [6, 9]], "write": "256KiB"}
IN_POD = {"kind": "pairs", "pairs": [[0, 3]], "write": "256KiB"}


def pods(*traffic: Table, topology: Table | None = None, **tables: Any) -> Scenario:
    traffic = traffic or ({"kind": "permutation", "write": "256KiB"},)
    tables = {"run": {"until": "50ms"}} | tables
    return scenario(PODS | (topology or {}), *traffic, **tables)


def hops_by_packet(trace: Path) -> dict[tuple[str, str, str, str], list[str]]:
    """The hops of each packet in their order, by opcode, QP, PSN and path."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for line in trace.read_text().splitlines():
        _, what, hop, op, qp, psn, _, path, *_ = line.split(" ")
        if what == "send":
            found.setdefault((op, qp, psn, path), []).append(hop)
    return found


def test_pods__each_packet_passes_the_switches_of_its_path(tmp_path: Path) -> None:
    found = pods({"kind": "all-to-all", "write": "256KiB"})
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
def test_pods__with_absent_parts_and_every_transport(kind: str, probed: bool | str) -> None:
    absent = ["t2:1.1", "core:2.3.1", "uplink:1.0.0", "core:1.6.*", "link:h5.2"]
    found = pods(
        topology={"absent": absent, "core_rate": "50Gbit/s"},
        transport={"kind": kind, "probed": probed},
        run={"until": "50ms", "audit": kind != "go-back-n"},
    )
    result = run(found, 3)
    assert all(info.completed == 1 and not info.failed for info in result.infos)
    assert result.stats.unroutable == 0


def lost(*faults: Table, traffic: Table | None = None) -> SimRun:
    traffic = (traffic or FAR) | {"writes": 8}
    return run(pods(traffic, faults=[{"kind": "silent"} | each for each in faults]), 1)


def test_pods__faults_of_each_tier() -> None:
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
def test_pods__the_same_for_one_shard_and_for_two_with_threads() -> None:
    """See test_shards.c; here the whole way from a file. A run with a trace has one shard."""
    found = pods(
        {"kind": "permutation", "write": "16KiB"},
        topology={"hosts": 2048, "planes": 1, "t0": 64, "t1": 32, "pods": 8, "t2": 16},
        transport={"evs_per_plane": 4, "mpr": 128, "probed": "computed"},
        faults=[{"target": "t2:1.*", "kind": "loss", "share": "20%", "draw": 2}],
    )
    one, two = run(found, 2, trace=os.devnull), run(found, 2, threads=2)
    assert one.stats == two.stats and one.stats.lost > 0
    assert list(one.infos) == list(two.infos)


def test_base_rtt__is_that_of_the_longest_path() -> None:
    three, two = pods(), pods(topology={"pods": 1, "t2": 0, "t1": 2})
    on_the_wire = packet_bytes(three.transport) + 52 + 126
    more = 4 * 500 + on_the_wire * 2 * 8e9 / 100e9
    assert three.base_rtt_ns == pytest.approx(two.base_rtt_ns + more, abs=1)
    slow = pods(topology={"core_delay": "1500ns"})
    assert slow.base_rtt_ns == three.base_rtt_ns + 4000


def test_pods__a_slow_core_limits_pods_and_not_their_inside() -> None:
    """4 hosts of a pod have 2 planes of 100 each; its links to T2s have 2 x 4 x 25."""
    found = pods(
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


def test_pods__follow_a_silent_t2() -> None:
    """Of the 4 paths of plane 1 between two pods one is left, at 25."""
    faults = [{"target": f"t2:1.{m}", "kind": "silent"} for m in (0, 1, 2)]
    found = pods(FAR, topology={"core_rate": "25Gbit/s"}, faults=faults)
    share = found.transport.path_mtu / packet_bytes(found.transport)
    fair = goodputs_bps(found, make_flows(found, 1), 0, 10**6, (1, 2))
    assert fair == pytest.approx([125e9 * share] * 2)
    one = pods(FAR | {"paths": [3]}, topology={"core_rate": "25Gbit/s"})
    fair = goodputs_bps(one, make_flows(one, 1), 0, 10**6, (1,))
    assert fair == pytest.approx([25e9 * share] * 2)


def test_dead_paths__between_pods_and_within_one() -> None:
    names = ["t2:1.2", "t1:1.0", "core:2.7.1", "t2:2.2>t1:2.0", "uplink:2.0.1"]
    found = pods(faults=[{"target": name, "kind": "silent"} for name in names])
    # plane 1: T2 2, and T1 0 with T2s 0 and 2; plane 2: T2 1, and T1 1 with T2s 1 and 3
    assert dead_paths(found, 0, 13) == 2 + 2
    assert dead_paths(found, 13, 0) == 2 + 3  # and down from T2 2
    assert dead_paths(found, 0, 3) == 1 + 1
    assert dead_paths(found, 0, 1) == 0


def test_needed_bytes__counts_the_links_of_all_tiers() -> None:
    small, large = pods(), pods(topology={"t2": 400}, transport={"evs_per_plane": 4})
    evs = pods(transport={"evs_per_plane": 4})
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
def test_pods__refuses(topology: Table, tables: Table, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        pods(topology=topology, **tables)
