# SPDX-License-Identifier: Apache-2.0
"""Threads for work that would block the event loop. They end before their data is closed.

A disk may never answer, as that of a network does. So nothing waits for a thread without a limit:
not the event loop, whose data the thread then keeps, and not the end of the process.
"""

from __future__ import annotations

import asyncio
import os
import select
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, TypeVar, TypeVarTuple

from mrc.errors import MrcError
from mrc.tasks import begun
from mrc.transfer.limits import StoppedError
from mrc.units import digits

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
END_SECONDS = 10.0  # for a call of the system, after which nobody waits for a thread to end


class StuckError(MrcError):
    """A thread was to end and has not: a disk does not answer."""

    def __init__(self, work: asyncio.Future[Any]) -> None:
        super().__init__(f"a disk has not answered for {digits(END_SECONDS)} s: ended without it")
        self._work = work

    def when_ended(self, close: Callable[[], object]) -> None:
        """Calls `close` when the thread ends after all, and so uses its data no more."""
        self._work.add_done_callback(lambda work: (work.exception(), close()))


def _do(future: Future[T], job: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


async def in_thread(
    function: Callable[[*Ts], T], *args: *Ts, stop: Callable[[], None] = lambda: None
) -> T:
    """As asyncio.to_thread, but even when cancelled it returns only after the function has ended,
    which `stop` asks for.

    So the caller can safely close the function's data after this call. Raises MemoryError if no
    thread can start, StuckError if the function does not end.
    """
    work = asyncio.wrap_future(begun(partial(copy_context().run, function, *args)))
    return await _ended(work, stop)


async def _ended(work: asyncio.Future[T], stop: Callable[[], None]) -> T:
    """The result of `work`. If this is cancelled, it asks for an end and waits for that."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop()
        await _until_ended(work)
        raise


async def _until_ended(work: asyncio.Future[Any]) -> None:
    while not work.done():
        with suppress(asyncio.CancelledError):  # a second cancellation
            await asyncio.wait({work}, timeout=END_SECONDS)
            if not work.done():
                raise StuckError(work)


class WorkerThread:
    """A thread that runs jobs in order, without a wake-up of the event loop for each job.

    An async context manager; its end drops jobs that have not begun and waits for the running job.
    After a failed job, all later jobs fail with the same error. When the context ends with an
    exception, `stop` ends a running job that may take long; StuckError if it does not end.
    """

    def __init__(self, stop: Callable[[], None] = lambda: None) -> None:
        self._stop = stop
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = False
        self._error: Exception | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop()
        if self._ended or not self._begun:
            return
        self._ended = True
        last: Future[None] = Future()
        ended = asyncio.wrap_future(last)
        self._jobs.put(partial(last.set_result, None))
        self._jobs.put(None)
        if kind is None:
            await _ended(ended, self._stop)
        else:
            await _until_ended(ended)

    def put(self, job: Callable[[*Ts], T], *args: *Ts) -> Future[T]:
        """Queues a job."""
        if not self._begun:
            begun(self._run)
            self._begun = True
        future: Future[T] = Future()
        self._jobs.put(partial(_do, future, partial(self._do, partial(job, *args))))
        return future

    def put_and_tell(
        self, told: Callable[[BaseException | None], None], job: Callable[[*Ts], T], *args: *Ts
    ) -> Future[T]:
        """As `put`; after the job the event loop calls `told` with the job's error, or None."""
        loop = asyncio.get_running_loop()

        def tell(done: Future[T]) -> None:
            if not (self._ended or done.cancelled()):
                loop.call_soon_threadsafe(told, done.exception())

        future = self.put(job, *args)
        future.add_done_callback(tell)
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # its data is to be closed

    def _do(self, job: Callable[[], T]) -> T:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise CancelledError
        try:
            return job()
        except Exception as error:
            # Drops the local variables of the frames that raised: views of memory to be closed.
            raised: BaseException | None = error
            while raised is not None:
                traceback.clear_frames(raised.__traceback__)
                raised = raised.__context__
            self._error = error
            raise


class WaitingPipe:
    """A descriptor that a helper thread waits for. A context manager; does not close it."""

    def __init__(self, fd: int, event: int) -> None:
        self.fd = fd
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(fd, event)
        self._poll.register(self._wake, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._wake)

    def stop(self) -> None:
        """Ends a wait in the helper thread, and all later ones."""
        os.eventfd_write(self._wake, 1)

    def wait(self, timeout_ms: int | None = None) -> bool:
        """True when the descriptor is ready, False after the timeout. Raises StoppedError."""
        ready = [fd for fd, _ in self._poll.poll(timeout_ms)]
        if self._wake in ready:
            raise StoppedError
        return bool(ready)
