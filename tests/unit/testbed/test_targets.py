# SPDX-License-Identifier: Apache-2.0
"""Targets of faults, and the places where each one has to be put."""

from __future__ import annotations

import pytest

from mrc.fabric.topology import Topology
from mrc.testbed import targets
from mrc.testbed.targets import Fault, Mode, Target, parse_loss, parse_target

FABRIC = Topology(hosts=2, planes=4, t1=3)

TARGETS = [
    ("plane:2", Target("plane", 2)),
    ("t1:3.1", Target("t1", 3, t1=1)),
    ("t0:4.1", Target("t0", 4, t0=1)),
    ("link:h1.2", Target("link", 2, host=1)),
    ("uplink:2.1.0", Target("uplink", 2, t0=1, t1=0)),
]


@pytest.mark.parametrize(("text", "target"), TARGETS)
def test_parse_target__every_form_and_back(text: str, target: Target) -> None:
    assert parse_target(text, FABRIC) == target
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not plane:P"),
        ("plane:x", "is not plane:P"),
        ("plane:1 ", "is not plane:P"),
        ("t1:1", "is not plane:P"),
        ("link:0.1", "is not plane:P"),
        ("plane:0", "no plane 0, they are 1..4"),
        ("plane:5", "no plane 5"),
        ("t1:1.3", "no T1 3, they are 0..2"),
        ("t0:1.2", "no T0 2, they are 0..1"),
        ("link:h2.1", "no host h2"),
        ("uplink:1.0.3", "no T1 3"),
    ],
)
def test_parse_target__refuses(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_target(text, FABRIC)


@pytest.mark.parametrize(
    ("text", "share"), [("20%", 0.2), ("0.5%", 0.005), ("0.01%", 0.0001), ("100", 1.0)]
)
def test_parse_loss__is_a_percentage(text: str, share: float) -> None:
    assert parse_loss(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0%", "101%", "-1%", "half", "0.001%"])
def test_parse_loss__refuses(text: str) -> None:
    with pytest.raises(ValueError, match="loss"):
        parse_loss(text)


@pytest.mark.parametrize(
    ("mode", "loss", "complaint"),
    [
        (Mode.SILENT, 0.0, "loss is 0.0"),
        (Mode.SILENT, 1.5, "loss is 1.5"),
        (Mode.DOWN, 0.5, "loss goes with silent"),
    ],
)
def test_fault__refuses(mode: Mode, loss: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Fault(mode, loss)


def test_fault__leaves_a_link_a_rate() -> None:
    assert Fault(loss=0, rate_share=0.1).rate_of(500) == 50
    assert Fault(loss=0, rate_bps=70).rate_of(500) == 70
    assert Fault(loss=0, rate_bps=700).rate_of(500) == 500
    assert Fault(loss=0, rate_bps=700).rate_of(None) == 700
    assert Fault().rate_of(None) is None
    with pytest.raises(ValueError, match="without a rate has none to take a share of"):
        Fault(loss=0, rate_share=0.1).rate_of(None)


def test_fault__says_what_it_does() -> None:
    assert str(Fault(loss=0.01, rate_share=0.1)) == "loss 1.00%, rate 10.00% of its own"
    assert str(Fault(loss=0, rate_bps=5_000_000)) == "rate 5 Mbit/s"


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
def test_links__are_the_switches_ends(text: str, ends: list[tuple[str, str]]) -> None:
    assert targets.links(parse_target(text, FABRIC), FABRIC) == ends


def test_rules__drop_a_share() -> None:
    target = parse_target("link:h1.2", FABRIC)
    script = targets.rules(target, Fault(loss=0.2), ("iifname h1", "oifname h1"))
    assert script == (
        "table ip6 mrc_fail_link_h1_2 {\n"
        "  chain forward {\n"
        "    type filter hook forward priority filter\n"
        "  }\n"
        "}\n"
        "flush chain ip6 mrc_fail_link_h1_2 forward\n"
        "table ip6 mrc_fail_link_h1_2 {\n"
        "  chain forward {\n"
        "    iifname h1 numgen random mod 10000 < 2000 counter drop\n"
        "    oifname h1 numgen random mod 10000 < 2000 counter drop\n"
        "  }\n"
        "}\n"
    )


def test_rules__drop_everything_without_dice() -> None:
    script = targets.rules(parse_target("t1:3.1", FABRIC), Fault(), ("",))
    assert "     counter drop\n" in script
    assert "numgen" not in script


def test_table__differs_for_every_target() -> None:
    assert len({targets.table(target) for _, target in TARGETS}) == len(TARGETS)


BELOW_TWO = Topology(hosts=4, planes=2, t1=2, t0=2)


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
def test_links__with_two_hosts_below_each_t0(text: str, ends: list[tuple[str, str]]) -> None:
    assert targets.links(parse_target(text, BELOW_TWO), BELOW_TWO) == ends
