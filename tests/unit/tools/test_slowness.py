# SPDX-License-Identifier: Apache-2.0
"""The waits and the limits of tests."""

from __future__ import annotations

import itertools
import subprocess
import time
from typing import Any

import pytest
import slowness


def test_until__ends_with_the_condition_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    slowness.until(lambda: next(answers))
    monkeypatch.setattr(slowness, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="nothing came"):
        slowness.until(lambda: False, "nothing came")


def test_least__ends_with_the_first_that_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([7.0, 3.0, 5.0, 1.0, 0.5])
    assert slowness.least(lambda: next(times), 2.0) == 1.0
    assert next(times) == 0.5
    monkeypatch.setattr(slowness, "PATIENCE", 0.0)
    assert slowness.least(lambda: 7.0, 2.0) == 7.0


def test_limit__grows_with_the_load_and_with_the_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: each reading of the clocks is a tenth of a second later, of CPU time a twentieth."""
    monkeypatch.setattr(slowness, "SLOWNESS", 3.0)
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 0.1).__next__)
    monkeypatch.setattr(time, "thread_time", itertools.count(0, 0.05).__next__)
    assert slowness.limit(10) == pytest.approx(10 * 3 * 2)


class Standing:
    """A process that ends at the fifth look, each of which takes an hour."""

    looks = 0

    def wait(self, timeout: float) -> int:
        self.looks += 1
        if self.looks < 5:
            raise subprocess.TimeoutExpired("program", 3600)
        return 7


def test_exit_code__a_machine_that_stands_still_is_no_late_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slowness, "limit", lambda seconds: seconds)
    process: Any = Standing()
    assert slowness.exit_code(process, within=0.4) == 7
    process = Standing()
    with pytest.raises(subprocess.TimeoutExpired):
        slowness.exit_code(process, within=0.3)
