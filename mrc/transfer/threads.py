# SPDX-License-Identifier: Apache-2.0
"""Threads for work that would block the event loop. They end before their data is closed."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Self, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@contextmanager
def _no_thread_is_no_memory() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of threading, which has no type of its own
        raise MemoryError(str(error)) from None


async def in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """As asyncio.to_thread, but even when cancelled it returns only after the function has ended.

    So the caller can safely close the function's data after this call. Raises MemoryError if no
    thread can start.
    """
    with _no_thread_is_no_memory():
        work = asyncio.get_running_loop().run_in_executor(
            None, partial(copy_context().run, function, *args)
        )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):  # a second cancellation
                await asyncio.wait({work})
        raise


def _release_frames(error: BaseException | None) -> None:
    """Drops the local variables of the frames that raised: views of memory to be closed."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


class Line:
    """A thread that runs jobs in order, without a wake-up of the event loop for each job.

    An async context manager; its end drops jobs that have not begun and waits for the running job.
    After a failed job, all later jobs fail with the same error. When the context ends with an
    exception, `stop` ends the running job if that may wait for long.
    """

    def __init__(self, stop: Callable[[], None] = lambda: None) -> None:
        self._stop = stop
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        try:
            await in_thread(self._pool.shutdown)
        except MemoryError:
            self._pool.shutdown()  # its job is short, and nobody can wait for it elsewhere

    def put(self, job: Callable[[*Ts], T], *args: *Ts) -> Future[T]:
        """Queues a job."""
        with _no_thread_is_no_memory():
            return self._pool.submit(self._do, partial(job, *args))

    def put_and_tell(
        self, told: Callable[[BaseException | None], None], job: Callable[[*Ts], T], *args: *Ts
    ) -> Future[T]:
        """As `put`; after the job the event loop calls `told` with the job's error, or None."""
        loop = asyncio.get_running_loop()

        def tell(done: Future[T]) -> None:
            if not done.cancelled():
                loop.call_soon_threadsafe(told, done.exception())

        future = self.put(job, *args)
        future.add_done_callback(tell)
        return future

    def _do(self, job: Callable[[], T]) -> T:
        if self._error is not None:
            raise self._error
        try:
            return job()
        except Exception as error:
            _release_frames(error)
            self._error = error
            raise
