# SPDX-License-Identifier: Apache-2.0
"""Which flows each kind of traffic consists of; max-min fair rates: filling by hand, then flows of
scenarios with slow links and faults.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from mrc.sim.checks import fill_fairly, goodputs_bps, link_rates_bps
from mrc.sim.run import FlowSpec, groups, least_ns, line_rate_bps, make_flows, n_flows
from mrc.sim.scenario import Scenario, packet_bytes, parse_scenario
from mrc.testbed.topology import Target

TOPOLOGY = {"hosts": 8, "planes": 2, "t0": 2, "t1": 2}


def scenario(*traffic: dict[str, Any], **tables: Any) -> Scenario:
    values = {
        "title": "t",
        "topology": TOPOLOGY,
        "traffic": [t if t["kind"] == "tcp" else {"write": "4KiB"} | t for t in traffic],
    }
    return parse_scenario(values | tables, "t", "t.toml")


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
    flows = make_flows(made, seed=1)
    assert n_flows(8, made.traffic[0]) == (len(flows), len({flow.receiver for flow in flows}))


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
    found = scenario({"write": "2MB"} | traffic, run={"until": "500ms"})
    assert least_ns(found) == us * 1000


# ---- Max-min fair rates --------------------------------------------------------------------------


RATE = "100Mbit/s"
SLOW = {"hosts": 4, "planes": 2, "t0": 2, "t1": 2, "host_rate": RATE, "fabric_rate": RATE}


def shared(*traffic: dict[str, Any], **tables: Any) -> Scenario:
    return scenario(*traffic, **{"topology": SLOW, "run": {"until": "1s"}} | tables)


def mbits(
    found: Scenario, from_ns: int = 0, to_ns: int = 10**9, planes: Sequence[int] = ()
) -> list[float]:
    """Rates on the link, headers included."""
    share = found.transport.path_mtu / packet_bytes(found.transport)
    planes = planes or found.topology.plane_numbers()
    rates = goodputs_bps(found, make_flows(found, seed=1), from_ns, to_ns, planes)
    return [round(rate / share / 1e6, 3) for rate in rates]


@pytest.mark.parametrize(
    ("crossed", "capacity", "rates"),
    [
        ([["a"], ["a"]], {"a": 10}, [5, 5]),
        ([["a"], ["a", "b"], ["b"]], {"a": 10, "b": 4}, [8, 2, 2]),
        ([["a"], ["b"]], {"a": 10, "b": 0}, [10, 0]),
        ([["a", "b"], ["b", "c"], ["a", "c"]], {"a": 2, "b": 4, "c": 10}, [1, 3, 1]),
        ([], {}, []),
    ],
)
def test_fill__by_hand(
    crossed: list[list[str]], capacity: dict[Hashable, float], rates: list[float]
) -> None:
    assert fill_fairly(crossed, capacity) == pytest.approx(rates)


def test_goodputs__one_flow_gets_the_sum_of_its_planes() -> None:
    links = [{"target": "plane:2", "rate": "10Mbit/s"}]
    found = shared({"kind": "pairs", "pairs": [[0, 1]]}, links=links)
    assert mbits(found) == [110]
    assert (mbits(found, planes=[1]), mbits(found, planes=[2])) == ([100], [10])
    assert mbits(shared({"kind": "pairs", "pairs": [[0, 2]]}, links=links)) == [110]


def test_goodputs__ports_of_senders_and_receivers() -> None:
    incast = {"kind": "incast", "to": 0}
    assert mbits(shared(incast)) == [66.667] * 3
    beside = {"kind": "pairs", "pairs": [[1, 2]]}  # host 1 gives the incast only its share
    assert mbits(shared(incast, beside)) == [66.667] * 3 + [133.333]


def test_goodputs__uplinks_of_a_t0_are_one_pool() -> None:
    """Two hosts of 100 share 100 + 20 up from T0 0, and 200 down to T0 1."""
    links = [{"target": f"uplink:{plane}.0.1", "rate": "20Mbit/s"} for plane in (1, 2)]
    pairs = {"kind": "pairs", "pairs": [[0, 2], [1, 3]]}
    assert mbits(shared(pairs, links=links)) == [120, 120]


def test_goodputs__a_flow_on_one_path_leaves_the_rest_to_others() -> None:
    topology = SLOW | {"host_rate": "1Gbit/s"}
    pinned = {"kind": "pairs", "pairs": [[0, 2]], "paths": [1]}
    free = {"kind": "pairs", "pairs": [[1, 3]]}
    assert mbits(shared(pinned, free, topology=topology)) == [200, 200]
    assert mbits(shared(pinned, free, free, topology=topology)) == [133.333] * 3


def test_goodputs__tcp_has_one_plane() -> None:
    tcp = {"kind": "tcp", "pairs": [[0, 2]], "plane": 2, "mss": 1000}
    found = shared({"kind": "pairs", "pairs": [[0, 2]]}, tcp)
    rates = goodputs_bps(found, make_flows(found, seed=1), 0, 10**9, (1, 2))
    assert rates[1] == pytest.approx(50e6 * 1000 / 1150)
    assert mbits(found)[0] == 150


def test_goodputs__open_loops_do_not_compete() -> None:
    pairs = {"kind": "pairs", "pairs": [[0, 2]]}
    assert mbits(shared(pairs, pairs | {"interval": "1ms"})) == [200, 0]


def test_goodputs__follow_the_faults() -> None:
    slow = {"target": "plane:2", "kind": "rate", "rate": "10%", "at": "500ms"}
    pairs = {"kind": "pairs", "pairs": [[0, 2]]}
    found = shared(pairs, faults=[slow])
    assert mbits(found, 0, 500_000_000) == [200]
    assert mbits(found, 500_000_000, 10**9) == [110]
    assert mbits(found) == [155]
    turns = shared(pairs, faults=[slow | {"every": "200ms", "for": "100ms"}])
    assert mbits(turns) == [200 - 0.3 * 90]
    silent = {"target": "link:h2.1", "kind": "silent"}
    assert mbits(shared(pairs, faults=[silent])) == [100]
    lossy = {"target": "plane:1", "kind": "loss", "share": "1%"}
    assert mbits(shared(pairs, faults=[lossy])) == [200]


def test_link_rates__a_share_is_of_what_a_link_has() -> None:
    found = shared(
        {"kind": "pairs", "pairs": [[0, 2]]},
        links=[{"target": "t1:1.1", "rate": "40Mbit/s"}],
        faults=[{"target": "t0:1.0", "kind": "rate", "rate": "50%"}],
    )
    expected = {
        ("host", 0, 0): 50e6, ("host", 1, 0): 50e6, ("host", 2, 0): 100e6, ("host", 3, 0): 100e6,
        ("uplink", 0, 0): 50e6, ("uplink", 0, 1): 20e6,
        ("uplink", 1, 0): 100e6, ("uplink", 1, 1): 40e6,
    }  # fmt: skip
    assert link_rates_bps(found, 1, found.faults) == {
        (way, *link): rate for link, rate in expected.items() for way in (Target.UP, Target.DOWN)
    }
    assert set(link_rates_bps(found, 2, found.faults).values()) == {100e6}


def test_goodputs__of_a_direction_that_is_slower() -> None:
    found = shared(
        {"kind": "pairs", "pairs": [[0, 2], [2, 0]]},
        links=[{"target": "t0:1.0>h0", "rate": "40Mbit/s"}],
        faults=[{"target": "t0:2.0>t1:2.0", "kind": "silent"},
                {"target": "t0:2.0>t1:2.1", "kind": "rate", "rate": "30Mbit/s"}],
    )  # fmt: skip
    assert mbits(found) == [130, 140]
