# SPDX-License-Identifier: Apache-2.0
"""For how long an end of a transfer waited, and for which of its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from mrc.results.transfer import Waits

Part = Literal["reading", "network", "storing"]


class Waiting:
    """Adds up the times of one session. Each part is timed by one thread at a time."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(get_args(Part), 0.0)

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """Everything within waits for this part."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds[part] += time.monotonic() - begin

    @contextmanager
    def otherwise_on(self, part: Part) -> Iterator[None]:
        """What is within waits for this part, unless it waits for one that is timed within it."""
        begin, before = time.monotonic(), sum(self._seconds.values())
        try:
            yield
        finally:
            within = sum(self._seconds.values()) - before
            self._seconds[part] += max(time.monotonic() - begin - within, 0.0)

    def seconds(self) -> Waits:
        """The times so far."""
        return Waits(**{f"{part}_seconds": seconds for part, seconds in self._seconds.items()})
