# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates: filling by hand, then flows of scenarios with slow links and faults."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from mrc.fabric.topology import Target
from mrc.sim.checks import fill_fairly, goodputs_bps, link_rates_bps
from mrc.sim.run import make_flows
from mrc.sim.scenario import Scenario, packet_bytes, parse_scenario

RATE = "100Mbit/s"
TOPOLOGY = {"hosts": 4, "planes": 2, "t0": 2, "t1": 2, "host_rate": RATE, "fabric_rate": RATE}


def scenario(*traffic: dict[str, Any], **tables: Any) -> Scenario:
    values = {
        "title": "t",
        "topology": TOPOLOGY,
        "traffic": [{"write": "4KiB"} | t if t["kind"] != "tcp" else t for t in traffic],
        "run": {"until": "1s"},
    }
    return parse_scenario(values | tables, "t", "t.toml")


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
    found = scenario({"kind": "pairs", "pairs": [[0, 1]]}, links=links)
    assert mbits(found) == [110]
    assert (mbits(found, planes=[1]), mbits(found, planes=[2])) == ([100], [10])
    assert mbits(scenario({"kind": "pairs", "pairs": [[0, 2]]}, links=links)) == [110]


def test_goodputs__ports_of_senders_and_receivers() -> None:
    incast = {"kind": "incast", "to": 0}
    assert mbits(scenario(incast)) == [66.667] * 3
    beside = {"kind": "pairs", "pairs": [[1, 2]]}  # host 1 gives the incast only its share
    assert mbits(scenario(incast, beside)) == [66.667] * 3 + [133.333]


def test_goodputs__uplinks_of_a_t0_are_one_pool() -> None:
    """Two hosts of 100 share 100 + 20 up from T0 0, and 200 down to T0 1."""
    links = [{"target": f"uplink:{plane}.0.1", "rate": "20Mbit/s"} for plane in (1, 2)]
    pairs = {"kind": "pairs", "pairs": [[0, 2], [1, 3]]}
    assert mbits(scenario(pairs, links=links)) == [120, 120]


def test_goodputs__a_flow_on_one_path_leaves_the_rest_to_others() -> None:
    topology = TOPOLOGY | {"host_rate": "1Gbit/s"}
    pinned = {"kind": "pairs", "pairs": [[0, 2]], "paths": [1]}
    free = {"kind": "pairs", "pairs": [[1, 3]]}
    assert mbits(scenario(pinned, free, topology=topology)) == [200, 200]
    assert mbits(scenario(pinned, free, free, topology=topology)) == [133.333] * 3


def test_goodputs__tcp_has_one_plane() -> None:
    tcp = {"kind": "tcp", "pairs": [[0, 2]], "plane": 2, "mss": 1000}
    found = scenario({"kind": "pairs", "pairs": [[0, 2]]}, tcp)
    rates = goodputs_bps(found, make_flows(found, seed=1), 0, 10**9, (1, 2))
    assert rates[1] == pytest.approx(50e6 * 1000 / 1150)
    assert mbits(found)[0] == 150


def test_goodputs__open_loops_do_not_compete() -> None:
    pairs = {"kind": "pairs", "pairs": [[0, 2]]}
    assert mbits(scenario(pairs, pairs | {"interval": "1ms"})) == [200, 0]


def test_goodputs__follow_the_faults() -> None:
    slow = {"target": "plane:2", "kind": "rate", "rate": "10%", "at": "500ms"}
    pairs = {"kind": "pairs", "pairs": [[0, 2]]}
    found = scenario(pairs, faults=[slow])
    assert mbits(found, 0, 500_000_000) == [200]
    assert mbits(found, 500_000_000, 10**9) == [110]
    assert mbits(found) == [155]
    turns = scenario(pairs, faults=[slow | {"every": "200ms", "for": "100ms"}])
    assert mbits(turns) == [200 - 0.3 * 90]
    silent = {"target": "link:h2.1", "kind": "silent"}
    assert mbits(scenario(pairs, faults=[silent])) == [100]
    lossy = {"target": "plane:1", "kind": "loss", "share": "1%"}
    assert mbits(scenario(pairs, faults=[lossy])) == [200]


def test_link_rates__a_share_is_of_what_a_link_has() -> None:
    found = scenario(
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
    found = scenario(
        {"kind": "pairs", "pairs": [[0, 2], [2, 0]]},
        links=[{"target": "t0:1.0>h0", "rate": "40Mbit/s"}],
        faults=[{"target": "t0:2.0>t1:2.0", "kind": "silent"},
                {"target": "t0:2.0>t1:2.1", "kind": "rate", "rate": "30Mbit/s"}],
    )  # fmt: skip
    assert mbits(found) == [130, 140]
