# SPDX-License-Identifier: Apache-2.0
"""Memory for peers: the limit of all, and the limit of one source."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from mrc.connect.admission import Budget, BudgetError

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def test_taken__one_source_has_half_at_most() -> None:
    budget = Budget(100)
    with ExitStack() as stack:
        stack.enter_context(budget.taken(A, 30))
        assert (budget.left(A), budget.left(B)) == (20, 50)
        with pytest.raises(BudgetError, match="no memory: 21 bytes are needed, 20 are left"):
            stack.enter_context(budget.taken(A, 21))
        stack.enter_context(budget.taken(A, 20))
        stack.enter_context(budget.taken(B, 50))
        assert (budget.left(A), budget.left(B), budget.left(C)) == (0, 0, 0)
        with pytest.raises(BudgetError):
            stack.enter_context(budget.taken(C, 1))
    assert (budget.left(A), budget.left(B), budget.left(C)) == (50, 50, 50)
    assert not budget._held, "a source that holds nothing leaves nothing behind"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_left__of_a_source(one: str, other: str, same: bool) -> None:
    budget = Budget(100)
    with budget.taken(one, 50):
        assert (budget.left(other) == 0) is same


def test_taken__given_back_after_an_error() -> None:
    budget = Budget(100)
    with pytest.raises(ZeroDivisionError), budget.taken(A, 10):
        raise ZeroDivisionError
    assert budget.left(A) == 50
