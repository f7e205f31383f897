# SPDX-License-Identifier: Apache-2.0
"""Numbers of cases, and PSNs counted from a first one."""

from __future__ import annotations

import pytest

from mrc.conform.case import after, members, psn_at, span, value

NAMES = {"mpr": 1024, "half": 1 << 23}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), ("-1", -1), ("0xff", 255), ("mpr-1", 1023), ("-half", -(1 << 23)),
     ("mpr+half+2", 1024 + (1 << 23) + 2), ("2*mpr-9/4", 2046)],
)  # fmt: skip
def test_value__sums(text: str, expected: int) -> None:
    assert value(text, NAMES) == expected


@pytest.mark.parametrize("text", ["", "mpr-", "wimm", "1 2", "3..4", "mpr*", "mpr*2*3"])
def test_value__refused(text: str) -> None:
    with pytest.raises(ValueError):
        value(text, NAMES)


def test_span__both_ends_included() -> None:
    assert list(span("3..5", NAMES)) == [3, 4, 5]
    assert list(span("mpr-1", NAMES)) == [1023]


def test_members__lists_and_spans() -> None:
    assert list(members("1,3..5,-1", NAMES)) == [1, 3, 4, 5, -1]


@pytest.mark.parametrize("first", [0, 1, 0x7FFFFF, 0xFFFFFE])
@pytest.mark.parametrize("distance", [-1, 0, 1, 2, 0x7FFFFF, -0x800000])
def test_after__inverts_psn_at(first: int, distance: int) -> None:
    assert after(psn_at(distance, first), first) == distance
