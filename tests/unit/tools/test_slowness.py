# SPDX-License-Identifier: Apache-2.0
"""The waits and the limits of tests."""

from __future__ import annotations

import itertools
import time

import pytest
import slowness


def test_until__ends_with_the_condition_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    slowness.until(lambda: next(answers))
    monkeypatch.setattr(slowness, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="nothing came"):
        slowness.until(lambda: False, "nothing came")


@pytest.mark.parametrize(("looks", "ends"), [(1999, True), (2001, False)])
def test_until__time_that_stands_still_is_one_look(
    monkeypatch: pytest.MonkeyPatch, looks: int, ends: bool
) -> None:
    """Method: each look comes an hour after the last one, and counts a tenth of a second."""
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 3600).__next__)
    monkeypatch.setattr(slowness, "PATIENCE", 199.95)
    answers = iter([*[False] * looks, True])
    if ends:
        slowness.until(lambda: next(answers), pause=0.0)
    else:
        with pytest.raises(AssertionError):
            slowness.until(lambda: next(answers), pause=0.0)


def test_limit__is_for_slow_tests() -> None:
    with pytest.raises(AssertionError, match="only a test marked slow"):
        slowness.limit(1)
    with pytest.raises(AssertionError, match="only a test marked slow"):
        slowness.least(lambda: 1.0, 2.0)


def test_least__ends_with_the_first_that_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowness, "_measures", lambda: True)
    times = iter([7.0, 3.0, 5.0, 1.0, 0.5])
    assert slowness.least(lambda: next(times), 2.0) == 1.0
    assert next(times) == 0.5
    monkeypatch.setattr(slowness, "PATIENCE", 0.0)
    assert slowness.least(lambda: 7.0, 2.0) == 7.0


def test_limit__grows_with_the_load_and_with_the_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: each reading of the clocks is a tenth of a second later, of CPU time a twentieth."""
    monkeypatch.setattr(slowness, "_measures", lambda: True)
    monkeypatch.setattr(slowness, "SLOWNESS", 3.0)
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 0.1).__next__)
    monkeypatch.setattr(time, "thread_time", itertools.count(0, 0.05).__next__)
    assert slowness.limit(10) == pytest.approx(10 * 3 * 2)


@pytest.mark.slow
def test_limit__in_a_slow_test() -> None:
    assert slowness.limit(1) >= slowness.SLOWNESS
