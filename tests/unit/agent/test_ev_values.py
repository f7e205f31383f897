# SPDX-License-Identifier: Apache-2.0
"""EVs as MRC's C interface names them."""

from __future__ import annotations

import pytest

from mrc.agent.profiles import UNPOPULATED, EvValue, GeneratedField, ev_of, generated, names_of
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


def ev(plane: int, digits: str) -> EvValue:
    return EvValue(plane, bytes.fromhex(digits).ljust(32, b"\0"))


def test_ev_of__usids_or_the_source_port() -> None:
    assert ev_of(3, ("0100", "0201"), 50000) == ev(3, "01000201")
    assert ev_of(2, (), 0xC351) == ev(2, "c351")


def test_ev__is_shown_as_mrc_paths_shows_it() -> None:
    assert str(ev(3, "01000201e000")) == "0100 0201 e000 of port 3"
    assert str(UNPOPULATED) == "0000 of port 0"


def test_names_of__the_paths_of_the_configuration() -> None:
    assert names_of(parse(CONFIG, "h0.toml")) == {ev(1, "01000201e000"): "t1:1.0"}
    assert names_of(None) == {}


def test_generated__all_values_the_last_field_first() -> None:
    fields = [GeneratedField(8, 0, 1, 2, 0xFF), GeneratedField(8, 0, 7, 8, 0xFF)]
    assert generated(fields, [1], 100) == [
        ev(1, digits) for digits in ("0107", "0108", "0207", "0208")
    ]
    fixed = GeneratedField(16, 5, 0, 0, 0)
    assert generated([fixed], [1, 4], 2) == [ev(1, "0005"), ev(4, "0005")]


def test_generated__bits_of_the_mask_over_the_initial_value() -> None:
    low = GeneratedField(16, 0x0A50, 1, 2, 0x000F)
    assert generated([low], [1], 100) == [ev(1, "0a51"), ev(1, "0a52")]
    apart = GeneratedField(8, 0x42, 0, 3, 0x81)
    assert generated([apart], [1], 100) == [ev(1, each) for each in ("42", "43", "c2", "c3")]
    wide = GeneratedField(32, 0xFFFFFFFF, 0, 1, 0x00010000)
    assert generated([wide], [1], 100) == [ev(1, "fffeffff"), ev(1, "ffffffff")]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "whole bytes"),
        ([GeneratedField(7, 0, 0, 1, 1)], "whole bytes"),
        ([GeneratedField(8, 0, 5, 4, 0xFF)], "not in order"),
        ([GeneratedField(8, 0, 0, 256, 0xFF)], "do not fit"),
        ([GeneratedField(8, 0, 0, 8, 0x07)], "do not fit"),
        ([GeneratedField(8, 0, 0, 1, 0)], "do not fit"),
        ([GeneratedField(8, 256, 0, 0, 0)], "wider than the field"),
        ([GeneratedField(8, 0, 0, 0, 0x100)], "wider than the field"),
        ([GeneratedField(32, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF)], "more than 1000 EVs"),
        ([GeneratedField(32, 0, 0, 0, 0)] * 9, "whole bytes"),
    ],
)
def test_generated__what_is_not_meant_is_refused(fields: list[GeneratedField], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        generated(fields, [1], 1000)
