# SPDX-License-Identifier: Apache-2.0
"""Runs a subcommand, with an event loop or without one, and shuts it down cleanly on a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar

import uvloop

from mrc.cli.output import Interrupted, print_error
from mrc.linux import system

logger = logging.getLogger("mrc.cli")


T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; SIGINT, SIGTERM and SIGHUP cancel it and raise Interrupted."""
    guarded = _with_signals(work)
    try:
        system.raise_descriptor_limit()
        gc.freeze()  # imported objects live until exit: the collector need not scan them
        with _runner() as runner:
            return runner.run(guarded)
    finally:
        guarded.close()  # if it has not begun
        work.close()


@contextmanager
def _runner() -> Iterator[asyncio.Runner]:
    """A runner whose end does not hide the error of the work."""
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        yield runner
    finally:
        try:
            runner.close()
        except (OSError, RuntimeError) as error:
            # uvloop needs two descriptors to run once more, and the process may have none left.
            logger.debug("cannot close the event loop: %s", error)
            logging.getLogger("asyncio").disabled = True


async def _with_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    signals: list[int] = []

    def stop(signum: int) -> None:
        signals.append(signum)
        task.cancel(f"stopped by {signal.Signals(signum).name}")

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP: keep that
        wanted.append(signal.SIGHUP)
    for signum in wanted:
        asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
    try:
        return await task
    except asyncio.CancelledError:
        if not signals:
            raise
        raise Interrupted(signals[0]) from None


# ---- Without an event loop -----------------------------------------------------------------------


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Interrupted in the body, so that it cleans up as after ^C."""

    def end(signum: int, _: FrameType | None) -> None:
        raise Interrupted(signum)

    before = _handle(end, signal.SIGTERM, signal.SIGHUP)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A SIGINT, SIGTERM or SIGHUP comes after the body."""
    came: list[int] = []
    before = _handle(lambda signum, _: came.append(signum), *_SIGNALS)
    try:
        yield
    finally:
        _restore(before)
        if came:
            signal.raise_signal(came[0])


def _handle(handler: Callable[[int, FrameType | None], None], *signals: int) -> dict[int, Any]:
    """Sets the handler of signals; returns those before."""
    return {
        each: signal.signal(each, handler)
        for each in signals
        # nohup ignores SIGHUP: keep that.
        if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN
    }


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
        self._before = _handle(self._note, *_SIGNALS)
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


# ---- Programs that a command becomes -------------------------------------------------------------


_NOT_RUNNABLE = 126
_NOT_FOUND = 127


def refusal(name: str, path: str | None = None) -> tuple[int, str] | None:
    """The exit code and the reason if a program cannot be run; None if it can."""
    if shutil.which(name, path=path) is not None:
        return None
    if os.sep in name and os.path.isdir(name):
        return _NOT_RUNNABLE, f"{name}: is a folder"
    if found := shutil.which(name, os.F_OK, path):
        return _NOT_RUNNABLE, f"{found}: is not executable: chmod +x {found}"
    return _NOT_FOUND, system.not_found(name)


def refused(prog: str, name: str, path: str | None = None) -> int:
    """Prints why a program cannot be run and returns the exit code; 0: it can."""
    found = refusal(name, path)
    if found is None:
        return 0
    code, why = found
    print_error(prog, why, code, as_json=False)
    return code


def become(prog: str, argv: list[str], environment: Mapping[str, str]) -> int:
    """Replaces this process by a program. Returns an exit code if the kernel refuses it."""
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        code, why = _NOT_FOUND, "its interpreter is missing: see its first line"
    except OSError as error:
        code, why = _NOT_RUNNABLE, f"cannot be run: {error.strerror}"
    print_error(prog, f"{argv[0]}: {why}", code, as_json=False)
    return code
