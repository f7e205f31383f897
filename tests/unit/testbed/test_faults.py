# SPDX-License-Identifier: Apache-2.0
"""Faults of a test bed: the hops, rules and queues that apply them, and their times in a file."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from mrc.errors import ConfigError
from mrc.testbed import build, schedule
from mrc.testbed.build import Queue
from mrc.testbed.faults import (
    HOST_DOWN,
    HOST_UP,
    T0_UP,
    T1_DOWN,
    Fault,
    FaultRow,
    Hop,
    Mode,
    by_chance,
    decode_faults,
    drop_rules,
    dropped_by,
    emulated_ends,
    filters_of,
    hops_of,
    kernel_ends,
    parse_loss,
    place_faults,
    table_of,
)
from mrc.testbed.netlink import Netem, netem_message
from mrc.testbed.plan import make_plan, shaper
from mrc.testbed.schedule import combined
from mrc.testbed.shape import Fabric, Shape
from mrc.testbed.tiers import LinkChange
from mrc.testbed.topology import Target, Topology

SHAPE = Shape(
    hosts=3, planes=2, t1=2, host_rate_bps=5000, host_delay_ns=10, fabric_delay_ns=10, jitter_ns=1,
    fabric=Fabric.EMULATED,
)  # fmt: skip
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
    return SHAPE.target(text)


@SHAPES
@pytest.mark.parametrize(
    "name", ["all", "plane:2", "t1:1.1", "t0:1.0", "link:h2.2", "uplink:1.1.0"]
)
def test_hops_of__each_packet_passes_one(name: str, shape: Shape) -> None:
    hit = hops_of(shape.target(name), shape)
    for way in ways(shape):
        passed = [hop for hop in hops_on(shape, way) if hop in hit]
        assert len(passed) == int(concerns(name, shape, way)), way


@SHAPES
def test_all_hops__are_those_of_all_ways(shape: Shape) -> None:
    found = Hop.every(shape)
    assert len(found) == 2 * 2 * (shape.hosts + shape.t0 * 2)
    assert set(found) == {hop for way in ways(shape) for hop in hops_on(shape, way)}


def test_hop__is_named_by_its_ends() -> None:
    assert [str(hop) for hop in hops_on(SHAPE, (1, 0, 2, 1))] == [
        "h0>t0:1.0", "t0:1.0>t1:1.1", "t1:1.1>t0:1.2", "t0:1.2>h2",
    ]  # fmt: skip
    near = hops_on(BELOW_TWO, (1, 2, 3, 0))
    assert [str(hop) for hop in near] == ["h2>t0:1.1", "t0:1.1>h3"]


def test_port__is_where_a_packet_leaves() -> None:
    assert [hop.port for hop in hops_on(SHAPE, (1, 0, 2, 1))] == [
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
    found = filters_of(target(text), SHAPE)
    assert {node: list(matches) for node, matches in found.items()} == places
    hops = [hop for matches in found.values() for hop in matches.values()]
    assert sorted(hops) == sorted(hops_of(target(text), SHAPE))


def test_dropped_by__a_rule_measures_only_what_hosts_send() -> None:
    found = dropped_by(target("link:h1.2"), Fault(loss=0.5, mtu=1500), SHAPE)
    up, down = Hop(HOST_UP, 2, 1, 1), Hop(HOST_DOWN, 2, 1, 1)
    half = "numgen random mod 1000000 < 500000"
    assert found == {
        "t0-2-1": [
            ("iifname h1 meta length > 1500", up),
            (f"iifname h1 {half}", up),
            (f"oifname h1 {half}", down),
        ]
    }
    assert dropped_by(target("t1:2.0"), Fault(loss=0, mtu=1500), SHAPE) == {}
    assert dropped_by(target("plane:1"), Fault(Mode.DOWN), SHAPE) == {}


def test_emulated_ends__only_those_of_hosts() -> None:
    for name in ("t1:1.0", "uplink:1.0.0"):
        assert emulated_ends(target(name), SHAPE) == []
    assert emulated_ends(target("link:h2.1"), SHAPE) == [("fabric", "h2-1")]
    assert len(emulated_ends(target("plane:1"), SHAPE)) == 3


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


@pytest.mark.parametrize(
    ("links", "faults", "expected"),
    [
        pytest.param(
            (), {"t1:1.0": Fault(loss=0, rate_bps=10), "uplink:1.2.0": Fault(loss=0, rate_bps=5)},
            {
                Hop(T1_DOWN, 1, 2, 0): [*AS_USUAL, ("rate", 5, 0)],
                Hop(T1_DOWN, 1, 0, 0): [*AS_USUAL, ("rate", 10, 0)],
                Hop(T0_UP, 1, 0, 0): [("rate", 10, 0)],
            },
            id="the smallest rate",
        ),
        pytest.param(
            (), {"link:h0.1": Fault(loss=0, rate_share=0.1)},
            {Hop(HOST_UP, 1, 0, 0): [*AS_USUAL, ("rate", 500, 0)]},
            id="a share of the link's rate",
        ),
        pytest.param(
            (LinkChange("t1:1.0", delay_ns=500),), {"t1:1.0": Fault(loss=0, delay_ns=7)},
            {Hop(T1_DOWN, 1, 2, 0): [("delay", 507, 0), ("jitter", 1, 0)]},
            id="a delay on top of the link's own",
        ),
        pytest.param(
            (LinkChange("uplink:1.2.0", mtu=2000),),
            {"t1:1.0": Fault(loss=0, mtu=3000), "uplink:1.0.0": Fault(loss=0, mtu=1500)},
            {
                Hop(T1_DOWN, 1, 2, 0): [*AS_USUAL, ("mtu", 2000, 0)],
                Hop(T1_DOWN, 1, 0, 0): [*AS_USUAL, ("mtu", 1500, 0)],
                Hop(T0_UP, 1, 0, 0): [*AS_USUAL, ("mtu", 1500, 0)],
            },
            id="the smallest MTU",
        ),
    ],
)  # fmt: skip
def test_place__on_each_hop(
    links: tuple[LinkChange, ...], faults: dict[str, Fault], expected: dict[Hop, list[FaultRow]]
) -> None:
    shape = replace(SHAPE, links=links)
    placed = place_faults({target(name): fault for name, fault in faults.items()}, shape)
    assert {hop: placed[hop] for hop in expected} == expected


def test_decode_faults__through_json() -> None:
    placed = place_faults({target("plane:1"): Fault(loss=0.2, reorder=0.1)}, SHAPE)
    assert decode_faults(json.loads(json.dumps(list(placed.items())))) == placed


THREE_T1S = Topology(hosts=2, planes=4, t1=3)


@pytest.mark.parametrize(
    ("fabric", "text", "ends"),
    [
        (
            THREE_T1S, "plane:2",
            [("t0-2-0", "h0"), ("t0-2-1", "h1"),
             ("t0-2-0", "t1-0"), ("t0-2-0", "t1-1"), ("t0-2-0", "t1-2"),
             ("t0-2-1", "t1-0"), ("t0-2-1", "t1-1"), ("t0-2-1", "t1-2")],
        ),
        (THREE_T1S, "t1:3.1", [("t1-3-1", "t0-0"), ("t1-3-1", "t0-1")]),
        (
            THREE_T1S, "t0:4.1",
            [("t0-4-1", "h1"), ("t0-4-1", "t1-0"), ("t0-4-1", "t1-1"), ("t0-4-1", "t1-2")],
        ),
        (THREE_T1S, "link:h1.2", [("t0-2-1", "h1")]),
        (THREE_T1S, "uplink:2.1.0", [("t0-2-1", "t1-0")]),
        (
            BELOW_TWO, "plane:1",
            [("t0-1-0", "h0"), ("t0-1-0", "h1"), ("t0-1-1", "h2"), ("t0-1-1", "h3"),
             ("t0-1-0", "t1-0"), ("t0-1-0", "t1-1"), ("t0-1-1", "t1-0"), ("t0-1-1", "t1-1")],
        ),
        (
            BELOW_TWO, "t0:2.1",
            [("t0-2-1", "h2"), ("t0-2-1", "h3"), ("t0-2-1", "t1-0"), ("t0-2-1", "t1-1")],
        ),
        (BELOW_TWO, "t1:2.1", [("t1-2-1", "t0-0"), ("t1-2-1", "t0-1")]),
        (BELOW_TWO, "link:h3.1", [("t0-1-1", "h3")]),
        (BELOW_TWO, "uplink:1.1.0", [("t0-1-1", "t1-0")]),
    ],
)  # fmt: skip
def test_kernel_ends__are_the_switches_ends(
    fabric: Topology, text: str, ends: list[tuple[str, str]]
) -> None:
    assert kernel_ends(fabric.target(text), fabric) == ends


# ---- What a fault is, and the rules that drop packets --------------------------------------------


NAMES = ("plane:2", "t1:3.1", "t0:4.1", "link:h1.2", "uplink:2.1.0",
         "h1>t0:2.1", "t0:2.1>h1", "t0:2.1>t1:2.0", "t1:2.0>t0:2.1")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "share"), [("20%", 0.2), ("0.5%", 0.005), ("0.01%", 0.0001), ("100", 1.0)]
)
def test_parse_loss__is_a_percentage(text: str, share: float) -> None:
    assert parse_loss(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0%", "101%", "-1%", "half", "0.001%"])
def test_parse_loss__refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a percentage from 0\.01% to 100%"):
        parse_loss(text)


@pytest.mark.parametrize(
    ("mode", "loss", "complaint"),
    [
        (Mode.SILENT, 0.0, "the fault has no effect"),
        (Mode.SILENT, 1.5, "loss is 1.5"),
        (Mode.DOWN, 0.5, "use mode silent"),
    ],
)
def test_fault__refuses(mode: Mode, loss: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Fault(mode, loss)


@pytest.mark.parametrize("mtu", [0, 1279, 65537])
def test_fault__refuses_an_mtu_that_ipv6_cannot_have(mtu: int) -> None:
    with pytest.raises(ValueError, match=rf"mtu is {mtu}, not in 1280\.\.65536"):
        Fault(loss=0, mtu=mtu)


def test_fault__leaves_a_link_a_rate() -> None:
    assert Fault(loss=0, rate_share=0.1).rate_of(500) == 50
    assert Fault(loss=0, rate_bps=70).rate_of(500) == 70
    assert Fault(loss=0, rate_bps=700).rate_of(500) == 500
    assert Fault(loss=0, rate_bps=700).rate_of(None) == 700
    assert Fault().rate_of(None) is None
    with pytest.raises(ValueError, match="has no rate limit"):
        Fault(loss=0, rate_share=0.1).rate_of(None)


def test_fault__says_what_it_does() -> None:
    assert str(Fault(loss=0.01, rate_share=0.1)) == "loss 1.00%, rate 10.00% of its own"
    assert str(Fault(loss=0, rate_bps=5_000_000)) == "rate 5 Mbit/s"
    assert str(Fault(loss=0.01, mtu=1500)) == "loss 1.00%, MTU 1500"


def test_rules__drop_a_share() -> None:
    name = table_of(THREE_T1S.target("link:h1.2"))
    script = drop_rules(name, [by_chance("iifname h1", 0.2), by_chance("oifname h1", 0.5)])
    assert script == (
        "table ip6 mrc_fail_link_h1_2 {\n"
        "  chain forward {\n"
        "    type filter hook forward priority filter\n"
        "  }\n"
        "}\n"
        "flush chain ip6 mrc_fail_link_h1_2 forward\n"
        "table ip6 mrc_fail_link_h1_2 {\n"
        "  chain forward {\n"
        "    iifname h1 numgen random mod 1000000 < 200000 counter drop\n"
        "    oifname h1 numgen random mod 1000000 < 500000 counter drop\n"
        "  }\n"
        "}\n"
    )


def test_rules__drop_everything_without_dice() -> None:
    script = drop_rules(table_of(THREE_T1S.target("t1:3.1")), [by_chance("oifname h1", 1.0)])
    assert "    oifname h1 counter drop\n" in script


def test_table__differs_for_every_target() -> None:
    assert len({table_of(THREE_T1S.target(name)) for name in NAMES}) == len(NAMES)


# ---- Queues of a kernel fabric -------------------------------------------------------------------


PLAN = make_plan(
    "x", Shape(hosts=2, planes=2, t1=1, host_rate_bps=1000_000, fabric_rate_bps=1000_000)
)


def wanted(faults: dict[str, Fault]) -> dict[Hop, Queue]:
    topology = PLAN.shape
    return build.queues_with(PLAN, {topology.target(name): each for name, each in faults.items()})


def test_wanted__loss_and_links_that_are_down_change_no_queue() -> None:
    assert wanted({"plane:1": Fault(), "t1:2.0": Fault(Mode.DOWN), "t0:1.0": Fault(loss=0.1)}) == {}


def test_wanted__a_rate_is_that_of_both_directions() -> None:
    slow = Queue(shaper(100_000))
    found = wanted({"link:h1.2": Fault(loss=0, rate_share=0.1)})
    assert found == {Hop(HOST_UP, 2, 1, 1): slow, Hop(HOST_DOWN, 2, 1, 1): slow}
    found = wanted({"uplink:1.0.0": Fault(loss=0.5, rate_bps=100_000)})
    assert found == {Hop(T0_UP, 1, 0, 0): slow, Hop(T1_DOWN, 1, 0, 0): slow}


def test_wanted__what_befalls_packets_is_netem_below_the_usual_queue() -> None:
    found = wanted({"t1:1.0": Fault(loss=0, delay_ns=1000, corrupt=0.01)})
    queue = Queue(shaper(1000_000), Netem(delay_ns=1000, corrupt=10_000))
    assert found == {Hop(T1_DOWN, 1, host, 0): queue for host in (0, 1)}


def test_wanted__a_link_keeps_the_delay_that_it_has() -> None:
    """Short delays need no queue: the kernel takes as long by itself."""
    links = (LinkChange("t1:1.0", delay_ns=10**6), LinkChange("t1:2.0", delay_ns=500))
    plan = make_plan("x", replace(PLAN.shape, links=links))
    faults = {
        "uplink:1.0.0": Fault(loss=0, rate_share=0.1),
        "plane:2": Fault(loss=0, rate_share=0.1),
    }
    found = build.queues_with(
        plan, {plan.shape.target(name): each for name, each in faults.items()}
    )
    assert found[Hop(T0_UP, 1, 0, 0)] == Queue(shaper(100_000), Netem(delay_ns=10**6))
    assert found[Hop(T0_UP, 2, 0, 0)] == Queue(shaper(100_000))
    ends = [end for link in plan.links for _, _, end in link.ends]
    assert {build.queue_of(end).netem for end in ends} == {None, Netem(delay_ns=10**6)}


def test_wanted__refuses_what_netem_cannot() -> None:
    with pytest.raises(ValueError, match="cannot both delay and reorder"):
        wanted({"t1:1.0": Fault(loss=0, delay_ns=1000, reorder=0.01)})


@pytest.mark.parametrize(
    ("effects", "options"),
    [
        (  # tc: netem delay 1100us 200us limit 100000 corrupt 1% duplicate 2%
            Netem(delay_ns=900_000, jitter_ns=400_000, corrupt=10_000, duplicate=20_000),
            "23430000 a0860100 00000000 00000000 52b81e05 350c0000 0c000400 295c8f02 00000000",
        ),
        (  # tc: netem delay 1ms reorder 99% gap 1 limit 100000
            Netem(reorder=10_000, reorder_ns=1_000_000),
            "093d0000 a0860100 00000000 01000000 00000000 00000000 0c000300 d6a370fd 00000000",
        ),
    ],
)
def test_netem__is_encoded_as_by_tc(effects: Netem, options: str) -> None:
    message = netem_message(7, effects, below_tbf=True)
    message.encode()
    head = "00000000 07000000 00000200 01000100 00000000 0a000100 6e6574656d000000 28000200"
    assert bytes(message.data)[16:].hex() == f"{head} {options}".replace(" ", "")


# ---- Scheduled faults ----------------------------------------------------------------------------


EMULATED = make_plan("x", Shape(planes=2, fabric=Fabric.EMULATED))
KERNEL = make_plan("x", Shape(planes=2))
MS = 1_000_000


def table(target: str, kind: str, **keys: str) -> str:
    lines = [
        f'{key} = "{value}"' for key, value in {"target": target, "kind": kind, **keys}.items()
    ]
    return "\n".join(["[[faults]]", *lines, ""])


def happenings(tmp_path: Path, *tables: str, count: int = 100) -> list[tuple[float, str, str]]:
    """Time in ms, target, new fault of the target."""
    path = tmp_path / "faults.toml"
    path.write_text("\n".join(['title = "any other table is let alone"', *tables]))
    found = islice(schedule.fault_changes(schedule.load_faults(str(path), EMULATED)), count)
    return [(each.at_ns / MS, str(each.target), str(each.fault or "healed")) for each in found]


def test_events__one_after_the_other(tmp_path: Path) -> None:
    later = table("t1:1.0", "silent", at="2s", until="5s")
    first = table("link:h0.2", "down", at="1ms")
    assert happenings(tmp_path, later, first) == [
        (1, "link:h0.2", "down"), (2000, "t1:1.0", "silent"), (5000, "t1:1.0", "healed")
    ]  # fmt: skip


def test_events__of_the_whole_fabric(tmp_path: Path) -> None:
    everything = table("all", "silent", at="1ms", until="2ms")
    assert happenings(tmp_path, everything) == [(1, "all", "silent"), (2, "all", "healed")]


def test_events__the_smallest_mtu_counts(tmp_path: Path) -> None:
    first, later = (
        f'[[faults]]\ntarget = "t1:1.0"\nkind = "mtu"\nmtu = {mtu}\nat = "{at}"\nuntil = "3ms"\n'
        for mtu, at in ((3000, "1ms"), (1500, "2ms"))
    )
    assert happenings(tmp_path, first, later) == [
        (1, "t1:1.0", "MTU 3000"), (2, "t1:1.0", "MTU 1500"), (3, "t1:1.0", "healed")
    ]  # fmt: skip


def test_load__a_kernel_fabric_changes_more_slowly(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(table("all", "silent", every="100ms", **{"for": "40ms"}))
    assert schedule.load_faults(str(path), EMULATED)
    with pytest.raises(ConfigError, match=r"up to 50 ms .* at least that, or --fabric emulated"):
        schedule.load_faults(str(path), KERNEL)


def test_events__of_a_flap_have_no_end(tmp_path: Path) -> None:
    flap = {"every": "300ms", "for": "100ms"}
    assert happenings(tmp_path, table("plane:2", "loss", share="1%", **flap), count=4) == [
        (0, "plane:2", "loss 1.00%"), (100, "plane:2", "healed"),
        (300, "plane:2", "loss 1.00%"), (400, "plane:2", "healed"),
    ]  # fmt: skip


def test_events__faults_of_one_target_act_together(tmp_path: Path) -> None:
    slow = table("plane:1", "rate", rate="10%", until="30ms")
    late = table("plane:1", "delay", delay="1ms", at="10ms", until="20ms")
    other = table("plane:1", "jitter", jitter="2us", at="20ms", until="30ms")
    assert happenings(tmp_path, slow, late, other) == [
        (0, "plane:1", "rate 10.00% of its own"),
        (10, "plane:1", "delay +1000 us, rate 10.00% of its own"),
        (20, "plane:1", "jitter 2 us, rate 10.00% of its own"),
        (30, "plane:1", "healed"),
    ]


def test_combined__chances_are_independent_and_down_is_down() -> None:
    half, slow = Fault(loss=0.5, rate_bps=7), Fault(loss=0, rate_bps=5, delay_ns=3, by_ns=9)
    assert combined([half, Fault(loss=0.5)]).loss == 0.75
    assert combined([half, slow]) == Fault(loss=0.5, delay_ns=3, rate_bps=5, by_ns=1_000_000)
    assert combined([half, Fault(Mode.DOWN)]) == Fault(Mode.DOWN)
    assert combined([half]) == half


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no [[faults]]"),
        ("faults = 1", "write [[faults]]"),
        (table("plane:9", "silent"), "faults[0].target: target plane:9: no plane 9"),
        (table("everything", "silent"), "target 'everything' is not all, plane:P"),
        (table("plane:1", "mask"), "faults[0].mask: is missing"),
        (table("plane:1", "silent", every="1s"), "faults[0].every: requires for, and"),
        (
            table("all", "silent", every="1ms", **{"for": "0.5ms"}),
            "faults[0].every: a change takes",
        ),
        (
            table("all", "silent", every="1s", **{"for": "996ms"}),
            "up to 5 ms in this test bed: set",
        ),
        (table("plane:1", "silent", packets="data"), "packets = 'data' is only for mrc sim"),
        (
            '[[faults]]\ntarget = "plane:1"\nkind = "lose"\nn = 1\nof = 2',
            "lose is only for mrc sim",
        ),
    ],
)
def test_load__refuses(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        schedule.load_faults(str(path), EMULATED)
    assert complaint in str(caught.value)


def test_load__refuses_what_this_kernel_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "has_netem", lambda plan: False)
    path = tmp_path / "faults.toml"
    path.write_text(table("plane:1", "duplicate", share="1%", by="1ms"))
    with pytest.raises(ConfigError, match="--fabric emulated"):
        schedule.load_faults(str(path), KERNEL)
    with pytest.raises(ConfigError, match="No such file"):
        schedule.load_faults(str(tmp_path / "none.toml"), KERNEL)
