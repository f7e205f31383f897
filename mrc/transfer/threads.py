# SPDX-License-Identifier: Apache-2.0
"""Threads for what would hold up the event loop, which end before what they work on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """As asyncio.to_thread, but does not return before the thread is done, even when cancelled.

    So whatever the thread works on can be closed as soon as this has returned.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):  # of a second time
                await asyncio.wait({work})
        raise


class Line:
    """A thread that does one job after another, without word to the event loop about each.

    An async context manager; at its end jobs that have not begun are dropped, and none is running.
    After one that failed, all that follow fail alike.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await in_thread(partial(self._pool.shutdown, cancel_futures=True))

    def put(self, job: Callable[[*Ts], T], *args: *Ts) -> Future[T]:
        """Puts a job at the end of the line."""
        return self._pool.submit(self._do, partial(job, *args))

    def put_and_tell(
        self, told: Callable[[BaseException | None], None], job: Callable[[*Ts], T], *args: *Ts
    ) -> Future[T]:
        """As `put`; the event loop calls `told` at the end of the job, with what went wrong."""
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
            self._error = error
            raise
