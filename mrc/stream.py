# SPDX-License-Identifier: Apache-2.0
"""A bounded queue with an end, read by `async for`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """Items pushed by the event loop, taken by any number of readers, each item by one of them.

    After `finish` the items still held are delivered; then iteration ends, or raises the error.
    """

    def __init__(self, limit: int) -> None:
        self._items: deque[T] = deque()
        self._limit = limit
        self._finished = False
        self._error: Exception | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        """True when `push` has to drop the oldest item."""
        return len(self._items) >= self._limit

    def push(self, item: T) -> None:
        """Adds an item; dropped when the stream is finished."""
        if self._finished:
            return
        if self.full:
            self._items.popleft()
        self._items.append(item)
        self._wake(1)

    def finish(self, error: Exception | None = None) -> None:
        """Ends the stream; only the first call counts."""
        if not self._finished:
            self._finished, self._error = True, error
            self._wake(len(self._waiting))

    def _wake(self, readers: int) -> None:
        while readers and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                readers -= 1

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._finished:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._wait()
        return self._items.popleft()

    async def _wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # A wake-up that came with the cancellation belongs to the next reader.
            if future.done() and not future.cancelled():
                self._wake(1)
            raise
