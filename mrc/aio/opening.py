# SPDX-License-Identifier: Apache-2.0
"""The awaitable async context manager that `Context.connect`, `listen` and `register` return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
Leave = Callable[
    [T, type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[None]
]


class Opening(Coroutine[Any, Any, T]):
    """An object that is being opened.

    `async with OPENING as thing` closes the object at the end; after `thing = await OPENING` the
    caller must close it. An Opening is a coroutine, so `asyncio.create_task` accepts it.
    """

    def __init__(self, work: Coroutine[Any, Any, T], leave: Leave[T]) -> None:
        self._work = work
        self._leave = leave
        self._opened: T

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
        self._opened = await self._work
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(self._opened, kind, error, traceback)
