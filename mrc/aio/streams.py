# SPDX-License-Identifier: Apache-2.0
"""Sequences for `async for`: ItemQueue, a queue, and Journal, a log with several readers."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from mrc.engine.send_queue import Waiters
from mrc.errors import MrcError
from mrc.tasks import within

T = TypeVar("T")


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


class ItemQueue(AsyncIterator[T]):
    """A queue of items. Any number of readers may iterate; each item goes to one of them.

    After `finish`, readers get the remaining items; then iteration ends, or raises the error.
    """

    def __init__(self, limit: int) -> None:
        self._items: deque[T] = deque()
        self._limit = limit
        self._finished = False
        self._error: MrcError | None = None
        self._waiting = Waiters()

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

    def finish(self, error: MrcError | None = None) -> None:
        """Ends the stream; only the first call counts."""
        if not self._finished:
            self._finished, self._error = True, error
            self._waiting.wake_all()

    async def __anext__(self) -> T:
        while not self._items:
            if self._finished:
                if self._error is not None:
                    raise self._error.anew()
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
        self._waiting = Waiters()

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
