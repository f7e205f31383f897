# SPDX-License-Identifier: Apache-2.0
"""Signals for a command without an event loop, which cleans up first, is not disturbed, or sleeps
until one comes.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from mrc.cli.output import Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Interrupted in the body, so that it cleans up as after ^C."""

    def end(signum: int, _: FrameType | None) -> None:
        raise Interrupted(signum)

    before = _handle(end, but=signal.SIGINT)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A SIGINT, SIGTERM or SIGHUP comes after the body."""
    came: list[int] = []
    before = _handle(lambda signum, _: came.append(signum))
    try:
        yield
    finally:
        _restore(before)
        if came:
            signal.raise_signal(came[0])


def _handle(handler: Callable[[int, FrameType | None], None], but: int = 0) -> dict[int, Any]:
    """Sets the handler of the signals that end a command; returns those before."""
    before = {each: of for each, of in Interrupted.signals().items() if each != but}
    for each in before:
        signal.signal(each, handler)
    return before


def _restore(handlers: dict[int, Any]) -> None:
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


class FirstSignal:
    """A context manager that records the first SIGINT, SIGTERM or SIGHUP."""

    def __init__(self) -> None:
        self.signum: int | None = None
        """the first signal that came"""

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno())
        self._before = _handle(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        _restore(self._before)
        self._reader.close()
        self._writer.close()

    def _note(self, signum: int, _: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum

    def wait(self, until: float | None, *descriptors: int) -> bool:
        """Sleeps until a signal comes, one of the descriptors can be read, or time.monotonic()
        reaches `until` (None: no limit). False if the time ended the sleep.
        """
        left = None if until is None else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self._reader.fileno(), *descriptors], [], [], left)
        return bool(ready)

    def check(self) -> None:
        """Raises Interrupted if a signal came."""
        if self.signum is not None:
            raise Interrupted(self.signum)
