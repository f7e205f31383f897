# SPDX-License-Identifier: Apache-2.0
"""uSID arithmetic on carriers whose contents are written out."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network

import pytest

from mrc.fabric import srv6

BLOCK = IPv6Network("fcbb:1::/32")

CARRIERS = [
    ((0x0100,), "fcbb:1:100::"),
    ((0x0100, 0x0201, 0xE000), "fcbb:1:100:201:e000::"),
    ((1, 2, 3, 4, 5, 0xFFFF), "fcbb:1:1:2:3:4:5:ffff"),
]


@pytest.mark.parametrize(("usids", "carrier"), CARRIERS)
def test_pack__puts_the_first_usid_first(usids: tuple[int, ...], carrier: str) -> None:
    assert srv6.pack(BLOCK, usids) == IPv6Address(carrier)


@pytest.mark.parametrize(
    ("usids", "complaint"),
    [
        ((), "1 to 6 uSIDs, not 0"),
        ((1,) * 7, "1 to 6 uSIDs, not 7"),
        ((0x100, 0), "uSID 0x0"),
        ((0x10000,), "uSID 0x10000"),
    ],
)
def test_pack__refuses_what_does_not_fit(usids: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        srv6.pack(BLOCK, usids)


def test_pack__refuses_a_block_of_another_length() -> None:
    with pytest.raises(ValueError, match="not a /32"):
        srv6.pack(IPv6Network("fcbb:1::/48"), (1,))


def test_segments__needs_a_second_carrier_for_the_seventh_usid() -> None:
    assert [str(each) for each in srv6.segments(BLOCK, range(1, 8))] == [
        "fcbb:1:1:2:3:4:5:6",
        "fcbb:1:7::",
    ]


def test_segments__with_few_usids_in_each_carrier() -> None:
    found = srv6.segments(BLOCK, (0x100, 0x201, 0xE000), 2)
    assert [str(each) for each in found] == ["fcbb:1:100:201::", "fcbb:1:e000::"]


def test_segments__refuses_none() -> None:
    with pytest.raises(ValueError, match="requires at least one uSID"):
        srv6.segments(BLOCK, ())


def test_locator__is_the_block_and_one_usid() -> None:
    assert srv6.locator(BLOCK, 0x201) == IPv6Network("fcbb:1:201::/48")


def test_format_usid__has_four_digits() -> None:
    assert srv6.format_usid(0x2A) == "002a"
