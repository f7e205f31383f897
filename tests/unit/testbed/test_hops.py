# SPDX-License-Identifier: Apache-2.0
"""The hops at which faults are applied."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from mrc.fabric.faults import LinkChange
from mrc.fabric.targets import Target, parse_target
from mrc.fabric.topology import Topology
from mrc.testbed.faults import (
    HOST_DOWN,
    HOST_UP,
    T0_UP,
    T1_DOWN,
    Fault,
    Hop,
    Mode,
    all_hops,
    decode_faults,
    dropped_by,
    emulated_ends,
    filters_of,
    hops_of,
    kernel_ends,
    place_faults,
    port_of,
)
from mrc.testbed.shape import Fabric, Shape

SHAPE = Shape(
    hosts=3, planes=2, t1=2, host_rate_bps=5000, host_delay_ns=10, fabric_delay_ns=10, jitter_ns=1,
    fabric=Fabric.EMULATED,
)  # fmt: skip
FABRIC = SHAPE
BELOW_TWO = Shape(hosts=4, planes=2, t1=2, t0=2)
SHAPES = pytest.mark.parametrize("shape", [SHAPE, BELOW_TWO], ids=["one host a T0", "two"])

# The path of a packet: plane, source, target, T1. Below one T0 there is no T1.
Way = tuple[int, int, int, int]
AS_USUAL = [("delay", 10, 0), ("jitter", 1, 0)]


def ways(fabric: Topology) -> list[Way]:
    return [
        (plane, source, target, t1)
        for plane in fabric.plane_numbers()
        for source in fabric.host_numbers()
        for target in fabric.host_numbers()
        for t1 in (range(1) if fabric.t0_of(source) == fabric.t0_of(target) else range(2))
        if source != target
    ]


def hops_on(fabric: Topology, way: Way) -> list[Hop]:
    plane, source, target, t1 = way
    first, last = fabric.t0_of(source), fabric.t0_of(target)
    middle = [] if first == last else [Hop(T0_UP, plane, first, t1), Hop(T1_DOWN, plane, last, t1)]
    return [Hop(HOST_UP, plane, first, source), *middle, Hop(HOST_DOWN, plane, last, target)]


def concerns(name: str, fabric: Topology, way: Way) -> bool:
    plane, source, target, t1 = way
    ends = (fabric.t0_of(source), fabric.t0_of(target))
    far = ends[0] != ends[1]
    return {
        "all": True,
        "plane:2": plane == 2,
        "t1:1.1": far and (plane, t1) == (1, 1),
        "t0:1.0": plane == 1 and 0 in ends,
        "link:h2.2": plane == 2 and 2 in (source, target),
        "uplink:1.1.0": far and (plane, t1) == (1, 0) and 1 in ends,
    }[name]


def target(text: str) -> Target:
    return parse_target(text, FABRIC)


@SHAPES
@pytest.mark.parametrize(
    "name", ["all", "plane:2", "t1:1.1", "t0:1.0", "link:h2.2", "uplink:1.1.0"]
)
def test_hops_of__each_packet_passes_one(name: str, shape: Shape) -> None:
    hit = hops_of(parse_target(name, shape), shape)
    for way in ways(shape):
        passed = [hop for hop in hops_on(shape, way) if hop in hit]
        assert len(passed) == int(concerns(name, shape, way)), way


@SHAPES
def test_all_hops__are_those_of_all_ways(shape: Shape) -> None:
    found = all_hops(shape)
    assert len(found) == 2 * 2 * (shape.hosts + shape.t0 * 2)
    assert set(found) == {hop for way in ways(shape) for hop in hops_on(shape, way)}


def test_hop__is_named_by_its_ends() -> None:
    assert [str(hop) for hop in hops_on(FABRIC, (1, 0, 2, 1))] == [
        "h0>t0:1.0", "t0:1.0>t1:1.1", "t1:1.1>t0:1.2", "t0:1.2>h2",
    ]  # fmt: skip
    near = hops_on(BELOW_TWO, (1, 2, 3, 0))
    assert [str(hop) for hop in near] == ["h2>t0:1.1", "t0:1.1>h3"]


def test_port__is_where_a_packet_leaves() -> None:
    assert [port_of(hop) for hop in hops_on(FABRIC, (1, 0, 2, 1))] == [
        ("h0", "p1"), ("t0-1-0", "t1-1"), ("t1-1-1", "t0-2"), ("t0-1-2", "h2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("plane:2", {f"t0-2-{host}": [f"iifname h{host}"] for host in range(3)}),
        ("t1:1.1", {"t1-1-1": ["oifname t0-0", "oifname t0-1", "oifname t0-2"]}),
        (
            "t0:2.1",
            {"t0-2-1": ["iifname h1"], "t1-2-0": ["oifname t0-1"], "t1-2-1": ["oifname t0-1"]},
        ),
        ("link:h1.2", {"t0-2-1": ["iifname h1", "oifname h1"]}),
        ("uplink:2.1.0", {"t0-2-1": ["oifname t1-0"], "t1-2-0": ["oifname t0-1"]}),
    ],
)
def test_filters__are_in_switches(text: str, places: dict[str, list[str]]) -> None:
    found = filters_of(target(text), FABRIC)
    assert {node: list(matches) for node, matches in found.items()} == places
    hops = [hop for matches in found.values() for hop in matches.values()]
    assert sorted(hops) == sorted(hops_of(target(text), FABRIC))


def test_dropped_by__a_rule_measures_only_what_hosts_send() -> None:
    found = dropped_by(target("link:h1.2"), Fault(loss=0.5, mtu=1500), FABRIC)
    up, down = Hop(HOST_UP, 2, 1, 1), Hop(HOST_DOWN, 2, 1, 1)
    half = "numgen random mod 1000000 < 500000"
    assert found == {
        "t0-2-1": [
            ("iifname h1 meta length > 1500", up),
            (f"iifname h1 {half}", up),
            (f"oifname h1 {half}", down),
        ]
    }
    assert dropped_by(target("t1:2.0"), Fault(loss=0, mtu=1500), FABRIC) == {}
    assert dropped_by(target("plane:1"), Fault(Mode.DOWN), FABRIC) == {}


def test_emulated_ends__only_those_of_hosts() -> None:
    for name in ("t1:1.0", "uplink:1.0.0"):
        assert emulated_ends(target(name), FABRIC) == []
    assert emulated_ends(target("link:h2.1"), FABRIC) == [("fabric", "h2-1")]
    assert len(emulated_ends(target("plane:1"), FABRIC)) == 3


def test_place__chances_are_independent_and_delays_add_up() -> None:
    faults = {
        target("plane:1"): Fault(loss=0.5, corrupt=0.1, delay_ns=1000),
        target("link:h0.1"): Fault(loss=0.5, delay_ns=500, jitter_ns=7),
    }
    placed = place_faults(faults, SHAPE)
    assert placed[Hop(HOST_UP, 1, 0, 0)] == [
        ("loss", 750_000, 1_000_000), ("corrupt", 100_000, 1_000_000),
        ("delay", 1510, 0), ("jitter", 8, 0),
    ]  # fmt: skip
    assert placed[Hop(HOST_DOWN, 1, 0, 0)] == [
        ("loss", 500_000, 1_000_000), ("delay", 510, 0), ("jitter", 8, 0)
    ]  # fmt: skip
    assert len(placed) == 4


def test_place__what_is_silent_or_down_loses_all() -> None:
    silent = [("silent", 0, 0), *AS_USUAL]
    for fault in (Fault(), Fault(Mode.DOWN)):
        placed = place_faults({target("uplink:2.1.0"): fault}, SHAPE)
        assert placed == {Hop(T0_UP, 2, 1, 0): silent, Hop(T1_DOWN, 2, 1, 0): silent}


def test_place__the_smallest_rate_counts() -> None:
    faults = {
        target("t1:1.0"): Fault(loss=0, rate_bps=10),
        target("uplink:1.2.0"): Fault(loss=0, rate_bps=5),
    }
    placed = place_faults(faults, SHAPE)
    assert placed[Hop(T1_DOWN, 1, 2, 0)] == [*AS_USUAL, ("rate", 5, 0)]
    assert placed[Hop(T1_DOWN, 1, 0, 0)] == [*AS_USUAL, ("rate", 10, 0)]
    assert placed[Hop(T0_UP, 1, 0, 0)] == [("rate", 10, 0)]


def test_place__a_share_of_the_rate_is_of_the_link() -> None:
    faults = {target("link:h0.1"): Fault(loss=0, rate_share=0.1)}
    placed = place_faults(faults, SHAPE)
    assert placed[Hop(HOST_UP, 1, 0, 0)] == [*AS_USUAL, ("rate", 500, 0)]


def test_place__a_delay_comes_on_top_of_the_links_own() -> None:
    shape = replace(SHAPE, links=(LinkChange("t1:1.0", delay_ns=500),))
    placed = place_faults({target("t1:1.0"): Fault(loss=0, delay_ns=7)}, shape)
    assert placed[Hop(T1_DOWN, 1, 2, 0)] == [("delay", 507, 0), ("jitter", 1, 0)]


def test_place__the_smallest_mtu_counts() -> None:
    shape = replace(SHAPE, links=(LinkChange("uplink:1.2.0", mtu=2000),))
    faults = {
        target("t1:1.0"): Fault(loss=0, mtu=3000),
        target("uplink:1.0.0"): Fault(loss=0, mtu=1500),
    }
    placed = place_faults(faults, shape)
    assert placed[Hop(T1_DOWN, 1, 2, 0)] == [*AS_USUAL, ("mtu", 2000, 0)]
    assert placed[Hop(T1_DOWN, 1, 0, 0)] == [*AS_USUAL, ("mtu", 1500, 0)]
    assert placed[Hop(T0_UP, 1, 0, 0)] == [*AS_USUAL, ("mtu", 1500, 0)]


def test_decode_faults__through_json() -> None:
    placed = place_faults({target("plane:1"): Fault(loss=0.2, reorder=0.1)}, SHAPE)
    assert decode_faults(json.loads(json.dumps(list(placed.items())))) == placed


THREE_T1S = Topology(hosts=2, planes=4, t1=3)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (
            "plane:2",
            [("t0-2-0", "h0"), ("t0-2-1", "h1"),
             ("t0-2-0", "t1-0"), ("t0-2-0", "t1-1"), ("t0-2-0", "t1-2"),
             ("t0-2-1", "t1-0"), ("t0-2-1", "t1-1"), ("t0-2-1", "t1-2")],
        ),
        ("t1:3.1", [("t1-3-1", "t0-0"), ("t1-3-1", "t0-1")]),
        ("t0:4.1", [("t0-4-1", "h1"), ("t0-4-1", "t1-0"), ("t0-4-1", "t1-1"), ("t0-4-1", "t1-2")]),
        ("link:h1.2", [("t0-2-1", "h1")]),
        ("uplink:2.1.0", [("t0-2-1", "t1-0")]),
    ],
)  # fmt: skip
def test_kernel_ends__are_the_switches_ends(text: str, ends: list[tuple[str, str]]) -> None:
    assert kernel_ends(parse_target(text, THREE_T1S), THREE_T1S) == ends


BELOW_TWO_T0S = Topology(hosts=4, planes=2, t1=2, t0=2)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (
            "plane:1",
            [("t0-1-0", "h0"), ("t0-1-0", "h1"), ("t0-1-1", "h2"), ("t0-1-1", "h3"),
             ("t0-1-0", "t1-0"), ("t0-1-0", "t1-1"), ("t0-1-1", "t1-0"), ("t0-1-1", "t1-1")],
        ),
        ("t0:2.1", [("t0-2-1", "h2"), ("t0-2-1", "h3"), ("t0-2-1", "t1-0"), ("t0-2-1", "t1-1")]),
        ("t1:2.1", [("t1-2-1", "t0-0"), ("t1-2-1", "t0-1")]),
        ("link:h3.1", [("t0-1-1", "h3")]),
        ("uplink:1.1.0", [("t0-1-1", "t1-0")]),
    ],
)  # fmt: skip
def test_kernel_ends__with_two_hosts_below_each_t0(text: str, ends: list[tuple[str, str]]) -> None:
    assert kernel_ends(parse_target(text, BELOW_TWO_T0S), BELOW_TWO_T0S) == ends
