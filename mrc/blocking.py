# SPDX-License-Identifier: Apache-2.0
"""mrc for scripts without asyncio: the same objects with blocking calls.

    with mrc.blocking.Context() as context, context.register(data) as mr:
        with context.connect("h1") as qp:
            qp.write(mr, remote)

An event loop in its own thread does the work. Any thread may make calls, and Ctrl-C interrupts a
wait. Each call takes the same arguments and raises the same errors as its counterpart in `mrc`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import mrc
from mrc import MR, Access, Completion, ContextConfig, EvInfo, Immediate, QpInfo, RemoteMemory
from mrc.aio.qp import Write

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mrc", daemon=True)
        self._thread.start()

    def wait(self, work: Awaitable[T]) -> T:
        """Returns or raises the result of `work`; cancels `work` when the wait is interrupted."""

        async def run() -> T:
            return await work

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yields the same items; blocks until the next one is there."""
        while True:
            try:
                yield self.wait(anext(items))
            except StopAsyncIteration:
                return

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class QP:
    """One QP, ready to send and receive; `with` closes it. `aio` is the `mrc.QP`."""

    def __init__(self, loop: _Loop, aio: mrc.QP) -> None:
        self._loop = loop
        self.aio = aio

    @property
    def private(self) -> dict[str, Any]:
        """The private data of the peer."""
        return self.aio.private

    def write(self, mr: MR, remote: RemoteMemory, **options: Any) -> Completion:
        """As `mrc.QP.write`."""
        return self._loop.wait(self.aio.write(mr, remote, **options))

    def write_imm(
        self, mr: MR | None = None, remote: RemoteMemory | None = None, *, imm: int, **options: Any
    ) -> Completion:
        """As `mrc.QP.write_imm`."""
        return self._loop.wait(self.aio.write_imm(mr, remote, imm=imm, **options))

    def write_many(self, writes: Iterable[Write]) -> Completion:
        """As `mrc.QP.post_many`; returns when all writes have completed."""

        async def post() -> Completion:
            return await self.aio.post_many(writes)

        return self._loop.wait(post())

    def write_scattered(self, mr: MR, remote: RemoteMemory, **options: Any) -> Completion:
        """As `mrc.QP.post_scattered`; returns when all writes have completed."""

        async def post() -> Completion:
            return await self.aio.post_scattered(mr, remote, **options)

        return self._loop.wait(post())

    def immediates(self, *, timeout: float | None = None) -> Iterator[Immediate]:
        """As `mrc.QP.immediates`."""
        return self._loop.iterate(self.aio.immediates(timeout=timeout))

    def query(self) -> QpInfo:
        """As `mrc.QP.query`."""
        return self._loop.wait(self.aio.query())

    def evs(self) -> tuple[EvInfo, ...]:
        """As `mrc.QP.evs`."""
        return self._loop.wait(self.aio.evs())

    def close(self) -> None:
        """As `mrc.QP.close`."""
        self._loop.wait(self.aio.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.wait(self.aio.__aexit__(kind, error, traceback))


class Listener:
    """Accepts peers and iterates over their QPs; `with` closes it. `aio` is the `mrc.Listener`."""

    def __init__(self, loop: _Loop, aio: mrc.Listener) -> None:
        self._loop = loop
        self.aio = aio

    @property
    def port(self) -> int:
        """The TCP port that this listener listens on."""
        return self.aio.port

    def accept(self, *, timeout: float | None = None) -> QP:
        """As `mrc.Listener.accept`."""
        return QP(self._loop, self._loop.wait(self.aio.accept(timeout=timeout)))

    def __iter__(self) -> Iterator[QP]:
        for qp in self._loop.iterate(aiter(self.aio)):
            yield QP(self._loop, qp)

    def close(self) -> None:
        """Stops listening."""
        self._loop.wait(self.aio.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Context:
    """One datapath with its QPs and memory regions; `with` opens and closes it.

    `aio` is the `mrc.Context`. For a call that this class lacks: `wait(context.aio.CALL(...))`.
    """

    def __init__(self, config: ContextConfig | None = None) -> None:
        self.aio = mrc.Context(config)

    def __enter__(self) -> Self:
        self._loop = _Loop()
        try:
            self.wait(self.aio.__aenter__())
        except BaseException:
            self._loop.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.wait(self.aio.__aexit__(kind, error, traceback))
        finally:
            self._loop.end()

    def wait(self, work: Awaitable[T]) -> T:
        """Runs a coroutine of `mrc` in the event loop and returns its result."""
        return self._loop.wait(work)

    @contextmanager
    def register(self, buffer: Any, *, access: Access = Access.LOCAL_READ) -> Iterator[MR]:
        """As `mrc.Context.register`; `with` deregisters it."""
        mr = self.wait(self.aio.register(buffer, access=access))
        try:
            yield mr
        finally:
            self.wait(self.aio.deregister(mr))

    def connect(self, host: str, *port: int, **options: Any) -> QP:
        """As `mrc.Context.connect`."""
        return QP(self._loop, self.wait(self.aio.connect(host, *port, **options)))

    def listen(self, host: str | None = None, *port: int, **options: Any) -> Listener:
        """As `mrc.Context.listen`."""
        return Listener(self._loop, self.wait(self.aio.listen(host, *port, **options)))
