# SPDX-License-Identifier: Apache-2.0
"""Begins threads, cancels asyncio tasks, finds the error of a group of them, and limits their time.

Time in which this process does not run, by SIGSTOP or for want of a processor, does not count for
`Limit` and `RunningClock`. What a peer has not done while this process was stopped proves nothing:
its answers may lie in the sockets, or it waits for ours.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from threading import Thread
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from mrc.errors import ArgumentError
from mrc.units import digits

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_LOOK_SECONDS = 0.25  # between two looks at the time, at most
_STOPPED_SECONDS = 0.1  # a look that is later than this comes after a stop
_AGAIN_SECONDS = 1.0  # that a limit leaves after a stop of at least this length


class Opening(Coroutine[Any, Any, T]):
    """An object that is being opened: what `mrc.open`, `connect`, `accept` and so on return.

    `async with OPENING as thing` closes the object at the end; after `thing = await OPENING` the
    caller must close it, by `await thing.close()` or `async with thing`. An Opening is a coroutine,
    so `asyncio.create_task` accepts it.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        """The result of `work` is an async context manager that closes it."""
        self._work = work
        self._opened: Any

    def __await__(self) -> Generator[Any, None, T]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """For the event loop."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """For the event loop."""
        return self._work.throw(*error)

    def close(self) -> None:
        """For the event loop: cancels the opening."""
        self._work.close()

    async def __aenter__(self) -> T:
        opened: T = await self._work
        self._opened = opened
        return opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opened.__aexit__(kind, error, traceback)


async def cancelled(*tasks: asyncio.Task[Any], why: object = None) -> None:
    """Cancels the tasks and returns when all have ended; ignores their exceptions.

    `why` is the argument of their CancelledError, whose text a peer gets (`mrc.errors.reason_of`).
    """
    for task in tasks:
        task.cancel(why)
    await asyncio.gather(*tasks, return_exceptions=True)


def begun(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Runs a function in a thread whose end nothing waits for, not even the end of the process.
    Raises MemoryError if no thread can start.

    ^C ends a command that waits for the result also in the middle of C code, which does not look
    for signals.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    try:
        Thread(target=run, daemon=True).start()
    except RuntimeError as error:  # of threading, which has no type of its own
        raise MemoryError(str(error)) from None
    return future


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def took_cancellation() -> None:
    """The current task was cancelled, ends what it does and goes on."""
    _task().uncancel()


def first_error(group: BaseExceptionGroup) -> BaseException:
    """The first error of an asyncio.TaskGroup; the others follow from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Timeout(asyncio.Timeout):  # type: ignore[misc] # it is final
    """Also ends what a cancelled task does. There Python before 3.11.3 takes the end of the time
    for a second cancellation: CancelledError leaves `asyncio.timeout` where TimeoutError would.
    """

    text = "the time is over"

    async def __aenter__(self) -> Self:
        self._requests = _task().cancelling()
        await super().__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        try:
            await super().__aexit__(*exc_info)
        except TimeoutError as error:
            raise TimeoutError(self.text) from error.__cause__
        was_cancelled = exc_info[0] is asyncio.CancelledError
        if self.expired() and was_cancelled and _task().cancelling() <= self._requests:
            raise TimeoutError(self.text) from exc_info[1]


def checked_timeout(seconds: float) -> float:
    """A caller's time-out. Raises ArgumentError for NaN, which would stop all timers of the event
    loop.
    """
    try:
        if not math.isnan(seconds):
            return float(seconds)
    except OverflowError:
        pass
    except TypeError:
        raise TypeError(f"timeout: needs a number of seconds, not {seconds!r:.60}") from None
    raise ArgumentError(f"timeout: {seconds} is no number of seconds")


def within(timeout: float | None) -> asyncio.Timeout:
    """As `asyncio.timeout`, for a caller's time-out too, and in a task that was cancelled."""
    seconds = None if timeout is None else checked_timeout(timeout)
    made = _Timeout(None if seconds is None else asyncio.get_running_loop().time() + seconds)
    made.text = f"nothing came within {digits(seconds)} s" if seconds is not None else made.text
    return made


# ---- Time in which this process runs -------------------------------------------------------------


class RunningClock:
    """Stands still while this process is stopped. A context manager.

    `on_look` is called at each look with the length of a stop that has just ended, and returns the
    seconds until the next look.
    """

    def __init__(self, on_look: Callable[[float], float] = lambda stop: _LOOK_SECONDS) -> None:
        self._on_look = on_look
        self._loop = asyncio.get_running_loop()
        self._due = math.inf  # of the next look
        self._look: asyncio.TimerHandle | None = None
        self._stopped = 0.0

    def __enter__(self) -> Self:
        self._take_look()
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._look is not None
        self._look.cancel()

    def time(self) -> float:
        """In seconds."""
        return self._loop.time() - self.stopped

    @property
    def stopped(self) -> float:
        """How long it has stood still so far, in seconds."""
        return self._stopped + self._stop

    @property
    def _stop(self) -> float:
        """The length of a stop since the last look."""
        late = self._loop.time() - self._due
        return late if late > _STOPPED_SECONDS else 0.0

    def _take_look(self) -> None:
        stop = self._stop
        self._stopped += stop
        self._due = math.inf
        wait = min(self._on_look(stop), _LOOK_SECONDS)
        self._due = self._loop.time() + wait
        self._look = self._loop.call_at(self._due, self._take_look)


class Limit:
    """As `asyncio.timeout(seconds)`, but only time in which this process runs counts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """may be changed, also while the body runs"""
        self._timeout = within(None)
        self._clock = RunningClock(self._on_look)
        self._begun = 0.0
        self._least = 0.0  # it does not end before this time

    def begin_anew(self) -> None:
        """Gives the body all of its time again."""
        self._begun = self._clock.time()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._begun = self._clock.time()
        self._clock.__enter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._clock.__exit__()
        await self._timeout.__aexit__(*exc_info)

    def _on_look(self, stop: float) -> float:
        now = self._clock.time()
        if stop:
            self._least = now + min(stop, _AGAIN_SECONDS)
        left = max(self._begun + self.seconds, self._least) - now
        if left <= 0 and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
        return left if left > 0 else _LOOK_SECONDS
