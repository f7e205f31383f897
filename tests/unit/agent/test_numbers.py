# SPDX-License-Identifier: Apache-2.0
"""QPNs of a host and the programs that have them."""

from __future__ import annotations

from itertools import count

import pytest

from mrc.agent import agent as numbers
from mrc.agent.agent import Numbers
from mrc.errors import ProtocolError, QueueFullError


def test_claim__when_the_host_has_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_MOST_NUMBERS", 2)
    found: Numbers[str] = Numbers(count(3).__next__)
    assert found.grant("a", 2) == [3, 4]
    assert found.claim("a", 4) and not found.claim("a", 5)
    with pytest.raises(QueueFullError, match="this host has 2 QPs, the most"):
        found.grant("b", 1)
    found.free(3)
    assert found.grant("b", 1) == [5]


def test_take__its_own_and_free_ones_only() -> None:
    found: Numbers[str] = Numbers(count(3).__next__)
    found.take("a", 3, 0xFFFFFF)
    found.take("a", 3)
    assert found.owner(0xFFFFFF) == "a"
    with pytest.raises(ProtocolError, match="another program's"):
        found.take("b", 3)
    for wrong in (-1, 0, 2, 1 << 24):
        with pytest.raises(ProtocolError, match="is not a QPN"):
            found.take("b", wrong)


def test_has_ended__what_was_in_use_and_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.agent.agent._MOST_ENDED", 2)
    numbers = Numbers[str](iter([3, 4, 5, 6, 3]).__next__)
    numbers.grant("a", 3)
    numbers.free(9)
    assert not any(map(numbers.has_ended, (3, 4, 5, 9)))
    numbers.free(3)
    numbers.forget("a")
    assert [numbers.has_ended(n) for n in (3, 4, 5)] == [False, True, True], "of the last two"
    numbers.grant("b", 2)
    assert not numbers.has_ended(3)
