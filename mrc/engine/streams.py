# SPDX-License-Identifier: Apache-2.0
"""Bounded sequences for `async for`: ItemQueue, a queue, and Journal, a log with several readers.

`SendQueue` counts the free places of a bounded queue and lets writers wait for one.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from mrc.errors import ArgumentError, anew

T = TypeVar("T")


class _Waiters:
    """Tasks that wait for the next item or place, first come, first served."""

    def __init__(self) -> None:
        self.futures: deque[asyncio.Future[None]] = deque()

    def wake(self) -> bool:
        """Wakes the first waiter; returns False when there is none."""
        while self.futures:
            future = self.futures.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False

    def wake_all(self) -> None:
        while self.wake():
            pass

    async def wait(self, pass_on: Callable[[], object]) -> None:
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                pass_on()  # this waiter was woken and cancelled: the wake-up goes to the next one
            raise


def checked_timeout(seconds: float) -> float:
    """A caller's time-out. Raises ArgumentError for NaN, which would stop all timers of the event
    loop.
    """
    with suppress(OverflowError):
        if not math.isnan(seconds):
            return float(seconds)
    raise ArgumentError(f"timeout: {seconds} is no number of seconds")


def within(timeout: float | None) -> asyncio.Timeout:
    """As `asyncio.timeout`, for a caller's time-out."""
    return asyncio.timeout(None if timeout is None else checked_timeout(timeout))


def timed(items: AsyncIterator[T], timeout: float | None) -> AsyncIterator[T]:
    """Yields the same items; raises TimeoutError when one takes more than `timeout` seconds."""
    return items if timeout is None else _TimeLimited(items, timeout)


class _TimeLimited(AsyncIterator[T]):
    def __init__(self, items: AsyncIterator[T], timeout: float) -> None:
        self._items = items
        self._timeout = timeout

    async def __anext__(self) -> T:
        async with within(self._timeout):
            return await anext(self._items)


class SendQueue:
    """`count` places, given out in the order of requests: a semaphore that also tells who waits for
    all of them when they are free.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = count
        self._waiting = _Waiters()
        self._idle = _Waiters()

    @property
    def taken(self) -> int:
        """The places that are in use."""
        return self.count - self._free

    def take_free(self, count: int = 1) -> bool:
        """Takes `count` places if they are free, else none. With free places no task waits."""
        if self._free < count:
            return False
        self._free -= count
        return True

    async def take(self) -> None:
        """Takes a place; waits for its turn if none is free."""
        if not self.take_free():
            await self._waiting.wait(self.give)

    def give(self, count: int = 1) -> None:
        """Gives places back."""
        while count and self._waiting.futures and self._waiting.wake():
            count -= 1
        self._free += count
        if self._free == self.count and self._idle.futures:
            self._idle.wake_all()

    async def until_free(self) -> None:
        """Returns when no place is in use."""
        while self.taken:
            await self._idle.wait(lambda: None)


class ItemQueue(AsyncIterator[T]):
    """A queue of items. Any number of readers may iterate; each item goes to one of them.

    After `finish`, readers get the remaining items; then iteration ends, or raises the error.
    """

    def __init__(self, limit: int) -> None:
        self._items: deque[T] = deque()
        self._limit = limit
        self._finished = False
        self._error: Exception | None = None
        self._waiting = _Waiters()

    @property
    def full(self) -> bool:
        """True when the next `push` drops the oldest item."""
        return len(self._items) >= self._limit

    def push(self, item: T) -> None:
        """Adds an item; does nothing when the stream is finished."""
        if self._finished:
            return
        if self.full:
            self._items.popleft()
        self._items.append(item)
        self._waiting.wake()

    def finish(self, error: Exception | None = None) -> None:
        """Ends the stream; only the first call counts."""
        if not self._finished:
            self._finished, self._error = True, error
            self._waiting.wake_all()

    async def __anext__(self) -> T:
        while not self._items:
            if self._finished:
                if self._error is not None:
                    raise anew(self._error)
                raise StopAsyncIteration
            await self._waiting.wait(self._waiting.wake)
        return self._items.popleft()


class Journal(Generic[T]):
    """The newest `limit` items. Any number of readers may iterate; each gets all items.

    A reader that falls behind gets `lost(count)` in place of the items that it missed. After
    `finish`, readers get the remaining items; then their iteration ends.
    """

    def __init__(self, limit: int, lost: Callable[[int], T]) -> None:
        self._items: deque[T] = deque(maxlen=limit)
        self._pushed = 0
        self._lost = lost
        self._finished = False
        self._waiting = _Waiters()

    def push(self, item: T) -> None:
        """Adds an item and drops the oldest beyond `limit`; does nothing after `finish`."""
        if self._finished:
            return
        self._items.append(item)
        self._pushed += 1
        self._waiting.wake_all()

    def finish(self) -> None:
        """Ends the journal."""
        self._finished = True
        self._waiting.wake_all()

    def reader(self) -> AsyncIterator[T]:
        """A new iterator over the items, from the oldest one kept."""
        return _Reader(self)

    async def take(self, position: int) -> tuple[T, int]:
        """Returns the item at `position`, or `lost(count)` if it is gone, and the next position."""
        while position == self._pushed:
            if self._finished:
                raise StopAsyncIteration
            await self._waiting.wait(self._waiting.wake)
        first = self._pushed - len(self._items)
        if position < first:
            return self._lost(first - position), first
        return self._items[position - first], position + 1


class _Reader(AsyncIterator[T]):
    # Not a generator: a generator ends for good when one wait for an item is cancelled.
    def __init__(self, journal: Journal[T]) -> None:
        self._journal = journal
        self._position = 0

    async def __anext__(self) -> T:
        item, self._position = await self._journal.take(self._position)
        return item
