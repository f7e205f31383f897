# SPDX-License-Identifier: Apache-2.0
"""Which flows each kind of traffic consists of."""

from __future__ import annotations

from typing import Any

from mrc.sim import reader
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import Flow, line_rate_bps, make_flows

TOPOLOGY = {"hosts": 8, "planes": 2, "t0": 2, "t1": 2}


def scenario(*traffic: dict[str, Any]) -> Scenario:
    values = {
        "title": "t",
        "topology": TOPOLOGY,
        "traffic": [{"write": "4KiB"} | t for t in traffic],
    }
    return reader.parse(values, "t", "t.toml")


def ends(flows: list[Flow]) -> list[tuple[int, int]]:
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


def test_line_rate__of_the_narrower_end() -> None:
    flows = make_flows(scenario({"kind": "incast", "to": 2}), seed=1)
    one = line_rate_bps(scenario({"kind": "permutation"}), flows[:1])
    assert 0.95 < one / 200e9 < 1
    assert line_rate_bps(scenario({"kind": "permutation"}), flows) == one
