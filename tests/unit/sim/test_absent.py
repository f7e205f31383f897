# SPDX-License-Identifier: Apache-2.0
"""Simulated fabrics without some of their links."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.fabric.topology import Topology
from mrc.sim.run import SimRun, run
from mrc.sim.scenario import Scenario, parse_scenario

FABRIC = """
title = "t"
[topology]
hosts = 6
planes = 3
t0 = 2
t1 = 3
[[traffic]]
kind = "permutation"
write = "1MiB"
[run]
audit = true
[[checks]]
measure = "goodput"
at_least = "1%"
[[checks]]
measure = "goodput"
of = "max-min"
at_least = "1%"
[[checks]]
measure = "last_hop_busy"
at_least = "1%"
"""
UNEVEN = ["link:h5.*", "link:h0.3", "link:h4.1", "t1:3.2", "uplink:1.1.0"]


def scenario(absent: list[str], **tables: Any) -> Scenario:
    values = tomllib.loads(FABRIC)
    values["topology"] |= {"absent": absent} | tables.pop("topology", {})
    values["run"] |= tables.pop("run", {})
    return parse_scenario(values | tables, "t", "t.toml")


def used(result: SimRun) -> set[tuple[int, int]]:
    """Receiver and plane of the ports that have sent."""
    return {where for where, port in result.last_hops.items() if port.busy_ns}


@pytest.mark.parametrize("probed", [True, "computed", False])
@pytest.mark.parametrize("kind", ["mrc", "ecmp", "ecmp-planes", "go-back-n"])
def test_run__only_what_exists(kind: str, probed: bool | str) -> None:
    found = scenario(UNEVEN, transport={"kind": kind, "probed": probed})
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


def test_run__switches_hash_over_what_leads_there() -> None:
    """T0 0 has uplinks to T1 0 and 1 of plane 1, T0 1 to T1 1 and 2: only T1 1 joins them."""
    found = scenario(
        ["uplink:1.0.2", "uplink:1.1.0"],
        topology={"routing": "ecmp", "planes": 1},
        traffic=[{"kind": "pairs", "pairs": [[0, 3], [4, 1]], "write": "1MiB", "qps": 8}],
        faults=[{"target": "t1:1.1", "kind": "silent", "at": "30us", "until": "40us"}],
    )  # fmt: skip
    result = run(found, 1)
    assert result.stats.unroutable == 0 and result.stats.lost > 0
    assert all(info.completed == 1 for info in result.infos)


def test_run__a_t0_with_half_of_its_uplinks_has_half_the_rate() -> None:
    absent = ["uplink:*.0.2", "uplink:*.0.1"]
    pairs = [{"kind": "pairs", "pairs": [[0, 3], [1, 4], [2, 5]], "write": "4MiB"}]
    whole, part = (run(scenario(each, traffic=pairs), 1) for each in ([], absent))
    slow, fast = (max(info.last_ns for info in result.infos) for result in (part, whole))
    assert 2.5 * fast < slow < 3.7 * fast


def test_run__the_same_for_any_number_of_shards() -> None:
    """See test_shards.c; here the whole way from a file."""
    found = scenario(UNEVEN, run={"audit": False})
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
def test_parse__refuses(absent: list[str], tables: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        scenario(absent, **tables)


@pytest.mark.parametrize(
    "pairs", [{"pairs": [[0, 5]]}, {"pairs": [[0, 4]]}, {"pairs": [[1, 4]], "plane": 1}]
)
def test_run__refuses_flows_without_a_path(pairs: dict[str, Any]) -> None:
    absent = [*UNEVEN, "link:h0.2"]
    kind = {"kind": "tcp"} if "plane" in pairs else {"kind": "pairs", "write": "1MiB"}
    found = scenario(absent, traffic=[pairs | kind], run={"audit": False, "until": "1ms"})
    with pytest.raises(ConfigError, match=r"has no path to|rejects the flow"):
        run(found, 1)


def test_draw__parts_that_exist() -> None:
    fault = {"target": "link:h*.1", "kind": "silent", "draw": "100%", "at": "5ms"}
    result = run(scenario(UNEVEN, faults=[fault]), 1)
    assert {each.target for each in result.scenario.faults} == {f"link:h{i}.1" for i in range(4)}


def test_planes_between__is_what_paths_say() -> None:
    fabric: Topology = scenario(UNEVEN).topology
    for a in fabric.host_numbers():
        for b in fabric.host_numbers():
            if a != b:
                planes = {path.plane for path in fabric.paths(a, b)}
                assert planes == set(fabric.planes_between(a, b))
    assert [path.name for path in fabric.paths(0, 4)] == ["t1:2.0", "t1:2.1", "t1:2.2"]
    assert [path.name for path in fabric.paths(1, 4)][3:] == ["t1:3.0", "t1:3.1"]
