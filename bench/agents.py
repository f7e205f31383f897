# SPDX-License-Identifier: Apache-2.0
"""The agents of a benchmark's hosts, for programs that use mrc's libraries in C."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bed import Bed
from end import BenchError, start_once, stop

from mrc.agent import door
from mrc.linux import netns

_SECONDS = 15


@contextmanager
def agent(bed: Bed, host: int) -> Iterator[None]:
    """`mrc agent` in a host, for all programs of the run."""
    process = start_once(bed, host, [sys.executable, "-m", "mrc", "agent", "--quiet"])
    try:
        deadline = time.monotonic() + _SECONDS
        with netns.inside(bed.namespace(host)):
            while not door.is_open(door.name_of({})):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BenchError(f"mrc agent does not start in h{host}")
                time.sleep(0.01)
        yield
    finally:
        stop(process)
