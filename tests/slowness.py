# SPDX-License-Identifier: Apache-2.0
"""How long tests wait, and how they judge times: by the speed that the machine has at that moment.

- A test that waits for an event waits up to PATIENCE, which only a hang exceeds.
- A test of a time that the product promises multiplies it with `limit`; of the time until a process
  ends, it calls `exit_code`.
- A test of a delay takes the least of several: other programs can only add to it.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

SLOWNESS = float(os.environ.get("MRC_TEST_SLOWNESS", "1"))
"""times as long as on the usual machine; tools/kernels sets it for its emulated processor"""

PATIENCE = 200 * SLOWNESS
"""seconds that a test waits for an event"""

_SAMPLE_SECONDS = 0.02
_LOOK_SECONDS = 0.1


def _load() -> float:
    """How much longer work takes now than on an idle machine, because other programs run."""
    began, used = time.monotonic(), time.thread_time()
    while (work := time.thread_time() - used) < _SAMPLE_SECONDS:
        pass
    return (time.monotonic() - began) / work


def limit(seconds: float) -> float:
    """A time on the usual machine, idle, as it would be on this machine now."""
    return seconds * SLOWNESS * max(1.0, _load())


def exit_code(process: subprocess.Popen[Any], within: float) -> int:
    """Waits for the end of a process, which mrc promises within these seconds; its exit code.

    Counts looks: one look is late if the machine stands still, and counts no more than the others.
    """
    for _ in range(math.ceil(limit(within) / _LOOK_SECONDS)):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_SECONDS)
    return process.wait(0)


def until(condition: Callable[[], object], shown: object = None) -> None:
    """Polls a condition until it is true; a failure shows `shown`."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, shown
        time.sleep(0.001)


def least(measure: Callable[[], float], below: float) -> float:
    """The least of several measured times; ends with the first that is less than `below`."""
    deadline, best = time.monotonic() + PATIENCE, measure()
    while best >= below and time.monotonic() < deadline:
        best = min(best, measure())
    return best
