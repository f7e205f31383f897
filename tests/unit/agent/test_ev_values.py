# SPDX-License-Identifier: Apache-2.0
"""EVs as MRC's C interface names them."""

from __future__ import annotations

import pytest

from mrc.agent.ev_values import UNPOPULATED, Ev, GeneratedField, ev_of, generated, names_of
from mrc.fabric.hostconfig import parse

CONFIG = """
schema = 1
host = "h0"
source = "srv6"
[[ports]]
ifname = "p1"
address = "fd00:a::1"
mtu = 9000
[peers.h1]
oob = "fd00:c::2"
sources = ["fd00:a:1::1"]
[[peers.h1.paths]]
plane = 1
name = "t1:1.0"
dst = "fd00:a:1::1:0"
segments = ["fcbb:1:100:201:e000::"]
usids = ["0100", "0201", "e000"]
"""


def ev(plane: int, digits: str) -> Ev:
    return Ev(plane, bytes.fromhex(digits).ljust(32, b"\0"))


def test_ev_of__usids_or_the_source_port() -> None:
    assert ev_of(3, ("0100", "0201"), 50000) == ev(3, "01000201")
    assert ev_of(2, (), 0xC351) == ev(2, "c351")


def test_ev__is_shown_as_mrc_paths_shows_it() -> None:
    assert str(ev(3, "01000201e000")) == "0100 0201 e000 of port 3"
    assert str(UNPOPULATED) == "0000 of port 0"


def test_names_of__the_paths_of_the_configuration() -> None:
    assert names_of(parse(CONFIG, "h0.toml")) == {ev(1, "01000201e000"): "t1:1.0"}
    assert names_of(None) == {}


def test_generated__all_values_from_the_first_on() -> None:
    fields = [GeneratedField(8, 2, 1, 3), GeneratedField(8, 7, 7, 8)]
    assert generated(fields, [1], 100) == [
        ev(1, digits) for digits in ("0207", "0208", "0307", "0308", "0107", "0108")
    ]
    assert generated([GeneratedField(16, 5, 5, 5)], [1, 4], 2) == [ev(1, "0005"), ev(4, "0005")]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "whole bytes"),
        ([GeneratedField(7, 0, 0, 1)], "whole bytes"),
        ([GeneratedField(8, 5, 6, 7)], "not in order"),
        ([GeneratedField(8, 5, 5, 4)], "not in order"),
        ([GeneratedField(8, 0, 0, 256)], "do not fit"),
        ([GeneratedField(32, 0, 0, 0xFFFFFFFF)], "more than 1000 EVs"),
        ([GeneratedField(32, 0, 0, 0)] * 9, "whole bytes"),
    ],
)
def test_generated__what_is_not_meant_is_refused(fields: list[GeneratedField], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        generated(fields, [1], 1000)
