# SPDX-License-Identifier: Apache-2.0
"""Which flows each kind of traffic consists of."""

from __future__ import annotations

from typing import Any

import pytest

from mrc.sim.run import FlowSpec, groups, least_ns, line_rate_bps, make_flows, n_flows
from mrc.sim.scenario import Scenario, parse_scenario

TOPOLOGY = {"hosts": 8, "planes": 2, "t0": 2, "t1": 2}


def scenario(*traffic: dict[str, Any]) -> Scenario:
    values = {
        "title": "t",
        "topology": TOPOLOGY,
        "traffic": [{"write": "4KiB"} | t for t in traffic],
    }
    return parse_scenario(values, "t", "t.toml")


def ends(flows: list[FlowSpec]) -> list[tuple[int, int]]:
    return [(flow.sender, flow.receiver) for flow in flows]


def test_permutation__everyone_sends_and_receives_once() -> None:
    flows = ends(make_flows(scenario({"kind": "permutation"}), seed=3))
    assert [a for a, _ in flows] == list(range(8))
    assert sorted(b for _, b in flows) == list(range(8))
    assert all(a != b for a, b in flows)
    assert flows == ends(make_flows(scenario({"kind": "permutation"}), seed=3))
    assert flows != ends(make_flows(scenario({"kind": "permutation"}), seed=4))


def test_incast__from_all_others_or_from_some() -> None:
    assert ends(make_flows(scenario({"kind": "incast", "to": 2}), seed=1)) == [
        (a, 2) for a in (0, 1, 3, 4, 5, 6, 7)
    ]
    some = scenario({"kind": "incast", "from": [5, 7]})
    assert ends(make_flows(some, seed=1)) == [(5, 0), (7, 0)]


def test_all_to_all__every_ordered_pair() -> None:
    flows = ends(make_flows(scenario({"kind": "all-to-all"}), seed=1))
    assert len(flows) == len(set(flows)) == 56


def test_ring__each_waits_for_the_one_before() -> None:
    flows = make_flows(scenario({"kind": "pairs", "pairs": [[0, 1]]}, {"kind": "ring"}), seed=1)
    assert ends(flows[1:]) == [(i, (i + 1) % 8) for i in range(8)]
    assert {flow.writes for flow in flows[1:]} == {14}
    assert [flow.after for flow in flows] == [None, 8, 1, 2, 3, 4, 5, 6, 7]
    assert flows[1].native()["after"] == 9  # numbers count from 1 there


def test_ring__of_groups_over_several_qps() -> None:
    ring = {"kind": "ring", "hosts": "0-3, 6, 7", "group_size": 3, "qps": 2}
    flows = make_flows(scenario(ring), seed=1)
    assert ends(flows)[::2] == ends(flows)[1::2] == [
        (0, 1), (1, 2), (2, 0), (3, 6), (6, 7), (7, 3)
    ]  # fmt: skip
    assert [flow.after for flow in flows] == [4, 5, 0, 1, 2, 3, 10, 11, 6, 7, 8, 9]
    assert {flow.writes for flow in flows} == {4}


def test_groups__by_placement() -> None:
    ring = {"kind": "ring", "group_size": 4}
    spread, shuffled = (
        groups(range(8), scenario(ring | {"placement": name}).traffic[0], seed=2)
        for name in ("spread", "random")
    )
    assert spread == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert sorted(host for group in shuffled for host in group) == list(range(8))
    again = groups(range(8), scenario(ring | {"placement": "random"}).traffic[0], seed=3)
    assert again != shuffled


def test_checkpoint__receivers_in_turn() -> None:
    traffic = {"kind": "checkpoint", "from": [0, 1, 2, 3, 4], "to": [6, 7]}
    flows = make_flows(scenario(traffic), seed=1)
    assert ends(flows) == [(0, 6), (1, 7), (2, 6), (3, 7), (4, 6)]
    others = make_flows(scenario({"kind": "checkpoint", "hosts": "2-7", "to": [6, 7]}), seed=1)
    assert [flow.sender for flow in others] == [2, 3, 4, 5]


def test_steps__make_a_job_of_all_groups() -> None:
    ring = {"kind": "ring", "group_size": 4, "steps": 5, "compute": "20us"}
    flows = make_flows(scenario({"kind": "incast"}, ring), seed=1)[7:]
    assert {flow.job for flow in flows} == {(7, 8)}
    assert {flow.writes for flow in flows} == {30}
    native = flows[0].native()
    assert (native["step_writes"], native["job"], native["pause_ns"]) == (6, 8, 20_000)
    assert native["start_ns"] == 20_000


@pytest.mark.parametrize(
    "traffic",
    [
        {"kind": "permutation"},
        {"kind": "incast"},
        {"kind": "checkpoint", "to": [1, 2]},
        {"kind": "all-to-all", "group_size": 4, "qps": 3},
        {"kind": "ring", "hosts": "0-3", "qps": 2},
    ],
)
def test_n_flows__as_many_as_are_made(traffic: dict[str, Any]) -> None:
    made = scenario(traffic)
    assert n_flows(8, made.traffic[0]) == len(make_flows(made, seed=1))


def test_line_rate__of_the_narrower_end() -> None:
    flows = make_flows(scenario({"kind": "incast", "to": 2}), seed=1)
    one = line_rate_bps(scenario({"kind": "permutation"}), flows[:1])
    assert 0.95 < one / 200e9 < 1
    assert line_rate_bps(scenario({"kind": "permutation"}), flows) == one


@pytest.mark.parametrize(
    ("traffic", "us"),
    [
        ({"kind": "permutation"}, 80),
        ({"kind": "permutation", "hosts": "0-3", "writes": 2}, 160),
        ({"kind": "all-to-all", "group_size": 4, "qps": 2}, 480),
        ({"kind": "ring", "steps": 3, "compute": "10us"}, 3 * 14 * 80),
        ({"kind": "ring", "steps": 30, "compute": "9ms", "write": "1B"}, 270_000),
        ({"kind": "incast"}, 560),
        ({"kind": "checkpoint", "to": [3, 7]}, 240),
        ({"kind": "pairs", "pairs": [[0, 1], [2, 1]], "start": "1ms"}, 1160),
        ({"kind": "pairs", "pairs": [[0, 1]], "interval": "1ms", "writes": 8}, 7000),
        ({"kind": "permutation", "writes": 10**6}, 500_000),
    ],
)
def test_least_ns__no_run_is_shorter(traffic: dict[str, Any], us: int) -> None:
    values = {
        "title": "t",
        "topology": TOPOLOGY,
        "traffic": [{"write": "2MB"} | traffic],
        "run": {"until": "500ms"},
    }
    assert least_ns(parse_scenario(values, "t", "t.toml")) == us * 1000
