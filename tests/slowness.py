# SPDX-License-Identifier: Apache-2.0
"""How long tests wait, and how slow ones judge times: by the speed that the machine has then.

- A test that waits for an event waits up to PATIENCE, which only a hang exceeds.
- A test of a time, a delay or a rate is marked slow: other programs add to what it measures. It
  multiplies a time that the product promises with `limit`, and takes the `least` of several. In any
  other test these two fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

SLOWNESS = float(os.environ.get("MRC_TEST_SLOWNESS", "1"))
"""times as long as on the usual machine; tools/maintainers/kernels sets it, which emulates one"""

PATIENCE = 200 * SLOWNESS
"""seconds that a test waits for an event"""

_SAMPLE_SECONDS = 0.02
_LOOK_SECONDS = 0.1
_running: pytest.Item | None = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _running
    _running = item


def _measures() -> bool:
    return _running is not None and _running.get_closest_marker("slow") is not None


def _load() -> float:
    """How much longer work takes now than on an idle machine, because other programs run."""
    began, used = time.monotonic(), time.thread_time()
    while (work := time.thread_time() - used) < _SAMPLE_SECONDS:
        pass
    return (time.monotonic() - began) / work


def limit(seconds: float) -> float:
    """A time on the usual machine, idle, as it would be on this machine now."""
    assert _measures(), "only a test marked slow measures time"
    return seconds * SLOWNESS * max(1.0, _load())


def until(condition: Callable[[], object], shown: object = None, pause: float = 0.001) -> None:
    """Polls a condition until it is true; a failure shows `shown`.

    A look that is late counts no more than the others: this process or the machine stood still.
    """
    waited, looked = 0.0, time.monotonic()
    while not condition():
        assert waited < PATIENCE, shown
        time.sleep(pause)
        now = time.monotonic()
        waited += min(now - looked, _LOOK_SECONDS)
        looked = now


def least(measure: Callable[[], float], below: float) -> float:
    """The least of several measured times; ends with the first that is less than `below`."""
    assert _measures(), "only a test marked slow measures time"
    deadline, best = time.monotonic() + PATIENCE, measure()
    while best >= below and time.monotonic() < deadline:
        best = min(best, measure())
    return best
