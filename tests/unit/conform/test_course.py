# SPDX-License-Identifier: Apache-2.0
"""How a sender went on: reactions, timers, and curves that stay small."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mrc.conform.history import MOST_SAMPLES, Samples, SenderHistory


def test_curve__keeps_an_even_choice() -> None:
    curve = Samples()
    for n in range(10 * MOST_SAMPLES):
        curve.add(n, n)
    assert MOST_SAMPLES / 4 < len(curve.samples) < MOST_SAMPLES
    gaps = {later[0] - earlier[0] for earlier, later in pairwise(curve.samples)}
    assert len(gaps) <= 2


@pytest.mark.parametrize(("flights", "expected"), [([10, 10, 10], 1.0), ([9, 5, 8], 0.5)])
def test_course__reaction_is_the_least_flight(flights: list[int], expected: float) -> None:
    course = SenderHistory()
    course.on_round_trip(0.0, 0.01)
    course.on_news("mark", 1.0, 10)
    for n, flight in enumerate(flights, 1):
        course.on_flight(1.0 + n / 100, flight)
    assert course.reaction("mark") is None  # four round trips have not passed
    course.on_flight(1.1, 2)
    assert course.reaction("mark") == pytest.approx(expected)


def test_course__reaction_ends_after_four_round_trips() -> None:
    course = SenderHistory()
    course.on_round_trip(0.0, 0.01)
    course.on_news("loss", 1.0, 10)
    course.on_flight(1.02, 8)
    course.on_flight(1.039, 7)
    course.on_flight(2.0, 10)
    assert course.reaction("loss") == pytest.approx(0.7)
    assert course.reaction("mark") is None


def test_course__news_in_a_row_are_one() -> None:
    course = SenderHistory()
    course.on_round_trip(0.0, 0.01)
    for n in range(3):
        course.on_news("trim", 1.0 + n / 1000, 10)
    course.on_flight(2.0, 10)
    assert course.reactions == {"trim": [1.0]}


def test_course__timers_and_news() -> None:
    course = SenderHistory()
    course.on_again(0.3, reported=False)
    course.on_again(0.1, reported=True)
    assert (course.waits_silent, course.waits_reported) == ([0.3], [0.1])
