# SPDX-License-Identifier: Apache-2.0
"""Whether a program tries again to connect, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from msgspec import Struct

from mrc.errors import MrcError, PathError, PeerGoneError
from mrc.tasks import RunningClock
from mrc.units import digits

FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 5.0


class Trying(Struct, frozen=True):
    """A try to connect will follow, or has failed; the text of this is a line for people."""

    error: MrcError
    """Why there is no connection."""
    seconds: float | None
    """For how long it tries from now on; None: it has given up."""
    lost: bool
    """Whether a connection was lost; else no program listens there yet."""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"cannot connect again: {self.error}"
        if self.lost:
            left = f"trying for {self.seconds:.0f} s to connect again"
            return f"the connection is lost: {self.error}; {left}"
        return f"{self.error}; trying for {digits(self.seconds)} s"


def is_lost(error: MrcError) -> bool:
    """Whether the connection was lost, and no end has ended it by itself."""
    return isinstance(error, (PathError, PeerGoneError))


class Retry:
    """Tries again for `seconds` after each loss of the connection, and before the first connection
    for `first`. A context manager: while it is open, time in which this process is stopped does not
    count. It calls `tell` with why and for how long it tries.
    """

    def __init__(
        self, seconds: float, tell: Callable[[Trying], object], *, first: float = 0.0
    ) -> None:
        self._seconds = seconds
        self._first = first
        self._tell = tell
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

    def connected(self) -> bool:
        """A connection is there; True after a loss."""
        if self._lost is not None:
            self.count += 1
        return self._lost is not None

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
            self._tell(Trying(error, max(self._until - now, 0.0), lost=True))
        elif not error.may_pass:
            raise error
        elif self._lost is None and not self._until and self._first:
            self._until, self._pause = now + self._first, FIRST_PAUSE_SECONDS
            self._tell(Trying(error, self._first, lost=False))
        if now + self._pause > self._until:
            if self._lost is None:
                raise error
            if not connected:
                self._tell(Trying(error, None, lost=True))
            raise self._lost
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
