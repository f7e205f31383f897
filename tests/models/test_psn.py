# SPDX-License-Identifier: Apache-2.0
"""PSN arithmetic compared with integers that do not wrap."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from models.library import library

WRAP = 1 << 24
HALF = WRAP // 2
PSNS = st.integers(0, WRAP - 1)
NEAR = st.integers(-HALF, HALF - 1)


@given(psn=PSNS, n=st.integers(0, (1 << 32) - 1))
@example(psn=WRAP - 1, n=1)
@example(psn=0, n=WRAP)
def test_add_and_sub__are_those_of_the_ring(psn: int, n: int) -> None:
    assert library().shim_psn_add(psn, n) == (psn + n) % WRAP
    assert library().shim_psn_sub(psn, n) == (psn - n) % WRAP


@given(psn=PSNS, distance=NEAR)
@example(psn=WRAP - 1, distance=HALF - 1)
@example(psn=0, distance=-HALF)
def test_diff__is_the_distance_that_was_gone(psn: int, distance: int) -> None:
    other = (psn + distance) % WRAP
    assert library().shim_psn_diff(other, psn) == distance
    assert library().shim_psn_before(other, psn) == (distance < 0)


@given(a=PSNS, b=PSNS)
def test_before__holds_for_one_of_two_unless_they_are_opposite(a: int, b: int) -> None:
    both = library().shim_psn_before(a, b), library().shim_psn_before(b, a)
    assert sum(both) == (0 if a == b else 2 if (a - b) % WRAP == HALF else 1)


@given(first=PSNS, n=st.integers(0, HALF - 1), ahead=NEAR)
@example(first=WRAP - 1, n=1, ahead=0)
@example(first=WRAP - 1, n=1, ahead=1)
def test_in__is_the_half_open_range(first: int, n: int, ahead: int) -> None:
    assert library().shim_psn_in((first + ahead) % WRAP, first, n) == (0 <= ahead < n)
