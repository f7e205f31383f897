# SPDX-License-Identifier: Apache-2.0
"""Where faults are put."""

from __future__ import annotations

import json

import pytest

from mrc.testbed.hops import (
    HOST_DOWN,
    HOST_UP,
    T0_UP,
    T1_DOWN,
    Hop,
    all_hops,
    decode_faults,
    encode_faults,
    filters,
    hops_of,
    links,
    place,
    port,
)
from mrc.testbed.targets import Fault, Mode, Target, parse_target
from mrc.topology import Topology

FABRIC = Topology(hosts=3, planes=2, t1=2)
NO_DELAY = [("delay", 0, 0), ("jitter", 0, 0)]

# What each packet passes on its way from a host to another, over T1 S of plane P.
WAYS = [
    (plane, source, target, t1)
    for plane in (1, 2)
    for source in range(3)
    for target in range(3)
    for t1 in range(2)
    if source != target
]

CONCERNED = {
    "plane:2": lambda plane, source, target, t1: plane == 2,
    "t1:1.1": lambda plane, source, target, t1: (plane, t1) == (1, 1),
    "t0:1.0": lambda plane, source, target, t1: plane == 1 and 0 in (source, target),
    "link:h2.2": lambda plane, source, target, t1: plane == 2 and 2 in (source, target),
    "uplink:1.1.0": lambda plane, source, target, t1: (
        (plane, t1) == (1, 0) and 1 in (source, target)
    ),
}


def target(text: str) -> Target:
    return parse_target(text, FABRIC)


def way(plane: int, source: int, target: int, t1: int) -> list[Hop]:
    return [
        Hop(HOST_UP, plane, source),
        Hop(T0_UP, plane, source, t1),
        Hop(T1_DOWN, plane, target, t1),
        Hop(HOST_DOWN, plane, target),
    ]


@pytest.mark.parametrize("name", CONCERNED)
def test_hops_of__each_packet_passes_one(name: str) -> None:
    hit = hops_of(target(name), FABRIC)
    for each in WAYS:
        passed = [hop for hop in way(*each) if hop in hit]
        assert len(passed) == int(CONCERNED[name](*each)), each


def test_all_hops__are_those_of_all_ways() -> None:
    found = all_hops(FABRIC)
    assert len(found) == len(set(found)) == 2 * (2 * 3 + 2 * 3 * 2)
    assert set(found) == {hop for each in WAYS for hop in way(*each)}
    assert [str(hop) for hop in way(1, 0, 2, 1)] == [
        "h0>t0:1.0", "t0:1.0>t1:1.1", "t1:1.1>t0:1.2", "t0:1.2>h2",
    ]  # fmt: skip


def test_port__is_where_a_packet_leaves() -> None:
    assert [port(hop) for hop in way(1, 0, 2, 1)] == [
        ("h0", "p1"), ("t0-1-0", "t1-1"), ("t1-1-1", "t0-2"), ("t0-1-2", "h2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("plane:2", {f"t0-2-{host}": [f"iifname h{host}"] for host in range(3)}),
        ("t1:1.1", {"t1-1-1": ["oifname t0-0", "oifname t0-1", "oifname t0-2"]}),
        ("t0:2.1", {"t0-2-1": ["iifname h1", "oifname h1"]}),
        ("link:h1.2", {"t0-2-1": ["iifname h1", "oifname h1"]}),
        ("uplink:2.1.0", {"t0-2-1": ["oifname t1-0"], "t1-2-0": ["oifname t0-1"]}),
    ],
)
def test_filters__are_in_switches(text: str, places: dict[str, list[str]]) -> None:
    found = filters(target(text), FABRIC)
    assert {node: list(matches) for node, matches in found.items()} == places
    hops = [hop for matches in found.values() for hop in matches.values()]
    assert sorted(hops) == sorted(hops_of(target(text), FABRIC))


def test_links__only_those_of_hosts() -> None:
    assert links(target("t1:1.0"), FABRIC) == links(target("uplink:1.0.0"), FABRIC) == []
    assert links(target("link:h2.1"), FABRIC) == [("fabric", "h2-1")]
    assert len(links(target("plane:1"), FABRIC)) == 3


def test_place__chances_are_independent_and_delays_add_up() -> None:
    faults = {
        target("plane:1"): Fault(loss=0.5, corrupt=0.1, delay_ns=1000),
        target("link:h0.1"): Fault(loss=0.5, delay_ns=500, jitter_ns=7),
    }
    placed = place(faults, FABRIC, delay_ns=10, jitter_ns=1)
    assert placed[Hop(HOST_UP, 1, 0)] == [
        ("loss", 750_000, 1_000_000), ("corrupt", 100_000, 1_000_000),
        ("delay", 1510, 0), ("jitter", 8, 0),
    ]  # fmt: skip
    assert placed[Hop(HOST_DOWN, 1, 0)] == [
        ("loss", 500_000, 1_000_000), ("delay", 510, 0), ("jitter", 8, 0)
    ]  # fmt: skip
    assert len(placed) == 4


def test_place__what_is_silent_or_down_loses_all() -> None:
    silent = [("silent", 0, 0), *NO_DELAY]
    for fault in (Fault(), Fault(Mode.DOWN)):
        placed = place({target("uplink:2.1.0"): fault}, FABRIC)
        assert placed == {Hop(T0_UP, 2, 1, 0): silent, Hop(T1_DOWN, 2, 1, 0): silent}


def test_place__the_smallest_rate_counts() -> None:
    faults = {
        target("t1:1.0"): Fault(loss=0, rate_bps=10),
        target("uplink:1.2.0"): Fault(loss=0, rate_bps=5),
    }
    placed = place(faults, FABRIC)
    assert placed[Hop(T1_DOWN, 1, 2, 0)] == [*NO_DELAY, ("rate", 5, 0)]
    assert placed[Hop(T1_DOWN, 1, 0, 0)] == [*NO_DELAY, ("rate", 10, 0)]
    assert placed[Hop(T0_UP, 1, 0, 0)] == [("rate", 10, 0)]


def test_place__a_share_of_the_rate_is_of_the_link() -> None:
    faults = {target("link:h0.1"): Fault(loss=0, rate_share=0.1)}
    placed = place(faults, FABRIC, rate_bps=500)
    assert placed[Hop(HOST_UP, 1, 0)] == [*NO_DELAY, ("rate", 50, 0)]


def test_encode_faults__through_json() -> None:
    placed = place({target("plane:1"): Fault(loss=0.2, reorder=0.1)}, FABRIC)
    assert decode_faults(json.loads(json.dumps(encode_faults(placed)))) == placed
