# SPDX-License-Identifier: Apache-2.0
"""Faults, and the rules that drop packets."""

from __future__ import annotations

import pytest

from mrc.fabric.targets import parse_target
from mrc.fabric.topology import Topology
from mrc.testbed.faults import Fault, Mode, by_chance, drop_rules, parse_loss, table_of

FABRIC = Topology(hosts=2, planes=4, t1=3)
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
    name = table_of(parse_target("link:h1.2", FABRIC))
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
    script = drop_rules(table_of(parse_target("t1:3.1", FABRIC)), [by_chance("oifname h1", 1.0)])
    assert "    oifname h1 counter drop\n" in script


def test_table__differs_for_every_target() -> None:
    assert len({table_of(parse_target(name, FABRIC)) for name in NAMES}) == len(NAMES)
