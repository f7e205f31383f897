# SPDX-License-Identifier: Apache-2.0
"""Decides whether a command tries again to connect: until somebody listens, after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from mrc.connect.connect import may_pass
from mrc.errors import MrcError, PathError, PeerGoneError
from mrc.running import RunningClock
from mrc.units import digits

FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 5.0


def is_lost(error: MrcError) -> bool:
    """Whether the connection was lost, and no end has ended it by itself."""
    return isinstance(error, (PathError, PeerGoneError))


class Retry:
    """Tries again for `seconds` after each loss of the connection, and before the first connection
    for `first`. A context manager: while it is open, time in which this process is stopped does not
    count.
    """

    def __init__(self, seconds: float, note: Callable[[str], None], *, first: float = 0.0) -> None:
        self._seconds = seconds
        self._first = first
        self._note = note
        self._clock = RunningClock()
        self._lost: MrcError | None = None
        self._until = 0.0
        self._pause = 0.0
        self.count = 0
        """lost connections after which it went on"""

    def __enter__(self) -> Self:
        self._clock.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._clock.__exit__()

    def connected(self) -> None:
        """A connection is there; after a loss this says so."""
        if self._lost is not None:
            self.count += 1
            self._note("connected again")

    async def wait(self, error: MrcError, *, connected: bool, progress: bool) -> None:
        """Waits before the next try; raises why there is none.

        `error` ended a connection, or with `connected` false a try to connect. A connection without
        `progress` does not begin the time anew.
        """
        now = self._clock.time()
        if connected:
            if not is_lost(error) or not self._seconds:
                raise error
            if self._lost is None or progress:
                self._until = now + self._seconds
                self._pause = FIRST_PAUSE_SECONDS
            self._lost = error
            left = max(self._until - now, 0.0)
            trying = f"trying for {left:.0f} s to connect again (--retry 0 ends at once)"
            self._note(f"the connection is lost: {error}; {trying}")
        elif not may_pass(error):
            raise error
        elif self._lost is None and not self._until and self._first:
            self._until, self._pause = now + self._first, FIRST_PAUSE_SECONDS
            self._note(f"{error}; trying for {digits(self._first)} s")
        if now + self._pause > self._until:
            if self._lost is None:
                raise error
            if not connected:
                self._note(f"cannot connect again: {error}")
            raise self._lost
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
