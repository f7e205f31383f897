# SPDX-License-Identifier: Apache-2.0
"""Slots and credits from Python; tests/c/test_slots.c has the arithmetic."""

from __future__ import annotations

from mrc.messaging.mailbox import Slots

COUNT, BYTES, MASK = 4, 100, 0xFFFF
LAST = 0xFFFFFFFF


def test_slots__two_ends_go_on_when_the_numbers_of_frames_wrap() -> None:
    ours, theirs = Slots(COUNT, BYTES, MASK), Slots(COUNT, BYTES, MASK)
    for side in (ours, theirs):
        for name in ("sent", "credit", "arrived", "freed", "told"):
            setattr(side._native, name, LAST - 1)
    for turn in range(3):
        for _ in range(COUNT):
            assert ours.may_send() and theirs.granted()
            place, number = ours.send()
            assert theirs.is_next(number) and not theirs.is_next(number + 1 & MASK)
            assert theirs.arrive() == place
        assert not ours.may_send() and not theirs.granted()
        assert theirs.arrived == COUNT * (turn + 1) - 2
        assert theirs.free(theirs.arrived)
        assert not ours.credit((theirs.arrived + 1) & MASK)
        assert ours.credit(theirs.tell())
