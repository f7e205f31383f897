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
import inspect
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args

import mrc
from mrc import MR, Access, ContextConfig, StateError
from mrc.engine import native
from mrc.tasks import cancelled

P = ParamSpec("P")
T = TypeVar("T")
Aio = TypeVar("Aio", bound=AbstractAsyncContextManager[object, None])


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mrc", daemon=True)
        self._process = os.getpid()
        self._lock = threading.Lock()  # so that no call begins while the loop ends
        self._thread.start()

    @property
    def forked(self) -> bool:
        """True in a child of fork, which has no such thread."""
        return os.getpid() != self._process

    def call(self, start: Callable[P, Awaitable[T]], /, *args: P.args, **options: P.kwargs) -> T:
        """Returns or raises the result of a call; cancels the call when the wait is interrupted.

        Raises StateError where nobody would carry it out: after the end, in a child of fork, and in
        the thread of the loop itself, which would wait for itself.
        """

        async def run() -> T:
            return await start(*args, **options)

        if self.forked:
            raise StateError(native.FORKED)
        if threading.current_thread() is self._thread:
            raise StateError("a call that blocks would wait for itself here, inside `admit`")
        with self._lock:
            if self._loop.is_closed():
                raise StateError("the Context is closed")
            future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise StateError("the Context is closed") from None
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Ends the calls of other threads, then the loop."""
        if self.forked:
            return

        async def rest() -> None:
            await cancelled(*asyncio.all_tasks() - {asyncio.current_task()})

        with self._lock:
            asyncio.run_coroutine_threadsafe(rest(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _Items(Iterator[T]):
    """The same items; blocks until the next one is there."""

    # Not a generator: a generator ends for good with the first error, such as a time-out.
    def __init__(self, loop: _Loop, items: AsyncIterator[T]) -> None:
        self._loop = loop
        self._items = items

    def __next__(self) -> T:
        try:
            item: T = self._loop.call(anext, self._items)
        except StopAsyncIteration:
            raise StopIteration from None
        return item


class _Held(Generic[Aio]):
    """An object of `mrc`, and the loop in which it lives. `with` closes it."""

    def __init__(self, loop: _Loop, aio: Aio) -> None:
        self._loop = loop
        self.aio = aio

    def __enter__(self) -> Self:
        self._loop.call(self.aio.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._loop.forked:  # otherwise it belongs to the parent
            self._loop.call(self.aio.__aexit__, kind, error, traceback)


def _waits(call: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """The method of `mrc` with the same arguments that returns what it awaits."""

    @wraps(call)
    def wait(self: _Held[Any], /, *args: P.args, **options: P.kwargs) -> T:
        return self._loop.call(call, self.aio, *args, **options)

    return wait


def _iterates(
    call: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The method of `mrc` with the same arguments, as an iterator that blocks."""

    @wraps(call)
    def iterate(self: _Held[Any], /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        return _Items(self._loop, call(self.aio, *args, **options))

    signature = inspect.signature(call, eval_str=True)
    returned: Any = Iterator
    signature = signature.replace(return_annotation=returned[get_args(signature.return_annotation)])
    iterate.__signature__ = signature  # type: ignore[attr-defined]
    return iterate


def _signed(
    call: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Gives a method the arguments of the method of `mrc`."""

    def signed(method: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        returned = inspect.signature(method).return_annotation
        signature = inspect.signature(call, eval_str=True).replace(return_annotation=returned)
        method.__signature__ = signature  # type: ignore[attr-defined]
        return method

    return signed


class QP(_Held[mrc.QP]):
    """One QP, ready to send and receive; `with` closes it. `aio` is the `mrc.QP`."""

    @property
    def private(self) -> dict[str, Any]:
        """The private data of the peer."""
        return self.aio.private

    write = _waits(mrc.QP.write)
    write_imm = _waits(mrc.QP.write_imm)
    write_many = _waits(mrc.QP.post_many)
    write_scattered = _waits(mrc.QP.post_scattered)
    immediates = _iterates(mrc.QP.immediates)
    events = _iterates(mrc.QP.events)
    until_peer_gone = _waits(mrc.QP.until_peer_gone)
    query = _waits(mrc.QP.query)
    evs = _waits(mrc.QP.evs)
    pairs = _waits(mrc.QP.pairs)
    probe_ev = _waits(mrc.QP.probe_ev)
    probe_evs = _waits(mrc.QP.probe_evs)
    deny = _waits(mrc.QP.deny)
    allow = _waits(mrc.QP.allow)
    set_ev_state = _waits(mrc.QP.set_ev_state)
    set_mpr = _waits(mrc.QP.set_mpr)
    close = _waits(mrc.QP.close)
    abort = _waits(mrc.QP.abort)


class Messages(_Held["mrc.Messages"]):
    """Messages with tags; `with` opens and closes the space. `aio` is the `mrc.Messages`."""

    def send(self, qp: QP, buffer: Any, *, tag: int = 0) -> None:
        """As `mrc.Messages.send`."""
        self._loop.call(self.aio.send, qp.aio, buffer, tag=tag)

    def recv(
        self, buffer: Any, qp: QP | None = None, *, tag: int = 0, ignore: int = 0,
        exact: bool = False,
    ) -> mrc.Message:  # fmt: skip
        """As `mrc.Messages.recv`; compare `Message.qp` with `QP.aio`."""
        peer = None if qp is None else qp.aio
        return self._loop.call(self.aio.recv, buffer, peer, tag=tag, ignore=ignore, exact=exact)


class Listener(_Held[mrc.Listener]):
    """Accepts peers and iterates over their QPs; `with` closes it. `aio` is the `mrc.Listener`."""

    @property
    def port(self) -> int:
        """The TCP port that this listener listens on."""
        return self.aio.port

    def accept(self, *, timeout: float | None = None) -> QP:
        """As `mrc.Listener.accept`."""
        return QP(self._loop, self._loop.call(self.aio.accept, timeout=timeout))

    def __iter__(self) -> Iterator[QP]:
        return map(partial(QP, self._loop), _Items(self._loop, aiter(self.aio)))

    close = _waits(mrc.Listener.close)


class Context(_Held[mrc.Context]):
    """One datapath with its QPs and memory regions; `with` opens and closes it.

    `aio` is the `mrc.Context`. For a call that this class lacks: `wait(context.aio.CALL(...))`.
    """

    def __init__(self, config: ContextConfig | None = None) -> None:
        self.aio = mrc.Context(config)

    def __enter__(self) -> Self:
        self._loop = _Loop()
        try:
            return super().__enter__()
        except BaseException:
            self._loop.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._loop.end()

    def wait(self, work: Awaitable[T]) -> T:
        """Runs a coroutine of `mrc` in the event loop and returns its result."""
        return self._loop.call(lambda: work)

    @contextmanager
    def register(self, buffer: Any, *, access: Access = Access.LOCAL_READ) -> Iterator[MR]:
        """As `mrc.Context.register`; `with` deregisters it."""
        opening = self.aio.register(buffer, access=access)
        mr = self._loop.call(opening.__aenter__)
        try:
            yield mr
        finally:
            if not self._loop.forked:
                self._loop.call(opening.__aexit__, *sys.exc_info())

    @_signed(mrc.Context.connect)
    def connect(self, *args: Any, **options: Any) -> QP:
        """As `mrc.Context.connect`."""
        return QP(self._loop, self._loop.call(self.aio.connect, *args, **options))

    @_signed(mrc.Context.listen)
    def listen(self, *args: Any, **options: Any) -> Listener:
        """As `mrc.Context.listen`."""
        return Listener(self._loop, self._loop.call(self.aio.listen, *args, **options))

    def messages(self, space: int = 0) -> Messages:
        """As `mrc.Context.messages`, over QPs with `messages=True`."""
        return Messages(self._loop, self.aio.messages(space))
