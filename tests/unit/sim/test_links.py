# SPDX-License-Identifier: Apache-2.0
"""Links of a simulated fabric that differ from their tier."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from msgspec.structs import replace

from mrc.enums import EvState
from mrc.errors import ConfigError
from mrc.fabric.faults import TimedFault
from mrc.sim.run import run
from mrc.sim.scenario import parse_scenario

PAIR = """
title = "two hosts below two T0s"
[topology]
hosts = 2
planes = 1
t0 = 2
t1 = 1
[[traffic]]
kind = "pairs"
pairs = [[0, 1]]
write = "256KiB"
"""


def duration_ns(links: list[dict[str, Any]], faults: list[dict[str, Any]]) -> int:
    """Paths are not probed first, or the probes would meet a fault at the start."""
    values = tomllib.loads(PAIR) | {"links": links, "faults": faults}
    values["transport"] = values.get("transport", {}) | {"probed": False}
    (flow,) = run(parse_scenario(values, "pair", "pair"), 1).infos
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
    values = tomllib.loads(PAIR.replace("t1 = 1", "t1 = 4").replace("256KiB", "16MiB"))
    values |= {"transport": {"probed": False}, "links": [{"target": "uplink:1.0.1", "mtu": 3000}]}
    result = run(parse_scenario(values, "pair", "pair"), 1)
    assert [(event.status, event.path) for event in result.events] == [(EvState.ASSUMED_BAD, 1)]
    assert result.infos[0].lost_packets == 1


@pytest.mark.parametrize(
    ("own", "lost"), [({"loss": "100%"}, True), ({"mtu": 4227}, True), ({"mtu": 4228}, False)]
)
@pytest.mark.parametrize("probed", [True, "computed"])
def test_links__lose_packets(own: dict[str, Any], lost: bool, probed: bool | str) -> None:
    """A full packet has 4228 B with both IPv6 headers. SACKs return on any path that is alive."""
    values = tomllib.loads(PAIR) | {"links": [{"target": "t0:1.0>t1:1.0", **own}]}
    values["topology"] |= {"planes": 2}
    values["transport"] = {"probed": probed}
    values["traffic"] = [values["traffic"][0] | {"pairs": [[0, 1], [1, 0]]}]
    ran = run(parse_scenario(values, "pair", "pair"), 1)
    assert [flow.completed for flow in ran.infos] == [1, 1]
    one, two = ran.last_hops[1, 1], ran.last_hops[1, 2]
    assert one.busy_ns < two.busy_ns / 5 if lost else one.busy_ns > two.busy_ns / 2
    one, two = ran.last_hops[0, 1], ran.last_hops[0, 2]
    assert one.busy_ns > two.busy_ns / 2 or "loss" in own


def test_links__of_two_plain_hosts() -> None:
    """One T0 and no path over a T1: a plane is one link of each host, at the given rate."""
    topology = {"hosts": 2, "planes": 1, "t0": 1, "t1": 1, "buffer": "0B", "trimming": False}
    values = tomllib.loads(PAIR) | {
        "topology": topology,
        "links": [{"target": "plane:1", "rate": "30Mbit/s"}],
        "transport": {"cc": "null", "path_mtu": 1344, "noise": "1ms", "timeout": 24},
    }
    result = run(parse_scenario(values, "pair", "pair"), 1)
    (flow,), port = result.infos, result.last_hops[1, 1]
    at_rate_ns = 196 * (1344 + 44 + 126) * 8 / 0.03
    assert at_rate_ns < flow.last_ns - flow.first_ns < 1.1 * at_rate_ns
    assert port.busy_ns > 0.9 * at_rate_ns


@pytest.mark.parametrize(("kind", "value"), [("silent", 0), ("rate", 0), ("jitter", 1)])
def test_set_links__refuses(kind: str, value: int) -> None:
    values = tomllib.loads(PAIR)
    scenario = parse_scenario(values, "pair", "pair")
    change = TimedFault("plane:1", kind, "all", 0, None, value, 0)
    with pytest.raises(ConfigError, match="rejects the links"):
        run(replace(scenario, links=(change,)), 1)
