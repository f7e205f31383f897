# SPDX-License-Identifier: Apache-2.0
"""Sends and receives with tags: messages over QPs that were connected with `messages=True`."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from msgspec import Struct

from mrc.aio.qp import QP
from mrc.binding.messages import ANY, Done, MessageSpace
from mrc.binding.native import HeldBuffer
from mrc.datapath.dispatch import Dispatcher
from mrc.enums import MessageKind
from mrc.errors import ArgumentError, MrcError, PeerGoneError, ProtocolError, StateError

_ERRORS: dict[int, tuple[type[MrcError], str]] = {
    errno.EMSGSIZE: (
        ArgumentError,
        "the message is longer than the buffer, or shorter than an exact receive",
    ),
    errno.ECONNRESET: (PeerGoneError, "the peer is gone"),
    errno.ETIMEDOUT: (PeerGoneError, "all paths to the peer were lost"),
    errno.EPROTO: (ProtocolError, "the peer broke the protocol of messages"),
    errno.EINVAL: (StateError, "the QP is closed"),
    errno.ENOBUFS: (StateError, "too many operations are outstanding"),
    errno.ENOSPC: (StateError, "too much memory is registered, here or at the peer"),
}


class Message(Struct, frozen=True):
    """A message that was received."""

    bytes: int
    """Its length."""
    tag: int
    """Its tag."""
    qp: QP
    """Whose peer sent it."""


class _Operation(Struct):
    done: asyncio.Future[Done]
    held: HeldBuffer


class Messages:
    """Sends and receives within one space: messages of different spaces never meet.

    An async context manager; enter it on both sides. Messages from one peer with the same tag are
    received in the order of their sends. A send returns when its buffer may be used again: short
    messages are copied, longer ones written straight into the buffer of their receive. If a wait
    is cancelled, so is the operation, unless its message was matched already.
    """

    def __init__(self, dispatcher: Dispatcher, qps: Callable[[int], QP], space: int) -> None:
        self._dispatcher = dispatcher
        self._qp_of = qps  # by the number of their peer
        self._number = space
        self._space: MessageSpace | None = None
        self._operations: dict[int, _Operation] = {}

    async def __aenter__(self) -> Self:
        """Opens the space; raises InUseError if this Context has it open."""
        self._space = MessageSpace(self._dispatcher.device, self._number)
        self._dispatcher.spaces[self._number] = self
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Cancels what is outstanding, waits for its end, and closes the space.

        If the wait is cancelled, the space closes later by itself.
        """
        if self._space is None or self._dispatcher.gone:
            return
        space, self._space = self._space, None
        for cookie in self._operations:
            space.cancel(cookie)
        self._dispatcher.run_soon()
        await asyncio.shield(asyncio.get_running_loop().create_task(self._close(space)))

    async def _close(self, space: MessageSpace) -> None:
        waits = [operation.done for operation in self._operations.values()]
        await asyncio.gather(*waits, return_exceptions=True)
        with suppress(StateError):  # the Context ends, and the space with it
            self._dispatcher.check_open()
            del self._dispatcher.spaces[self._number]
            space.close()

    async def send(self, qp: QP, buffer: Any, *, tag: int = 0) -> None:
        """Sends a message: any contiguous buffer, also an empty one; `tag` has 64 bits.

        Raises PeerGoneError when the QP fails, ProtocolError when the peer breaks the protocol of
        messages, ArgumentError when the message is longer than the buffer that receives it.
        """
        await self._run(MessageKind.SEND, qp, buffer, tag)

    async def recv(
        self, buffer: Any, qp: QP | None = None, *, tag: int = 0, ignore: int = 0,
        exact: bool = False,
    ) -> Message:  # fmt: skip
        """Receives a message into a writable buffer, from one peer or (None) from any.

        Bits of `ignore` do not count in the comparison of tags. With `exact` the message has the
        length of the buffer, so that a long one needs no round trip. Raises as `send`.
        """
        done = await self._run(MessageKind.RECV, qp, buffer, tag, ignore, exact=exact)
        return Message(done.bytes, done.tag, qp or self._qp_of(done.peer))

    async def _run(
        self, kind: MessageKind, qp: QP | None, buffer: Any, tag: int, ignore: int = 0, *,
        exact: bool = False,
    ) -> Done:  # fmt: skip
        if self._space is None:
            raise StateError("messages: use 'async with'")
        self._dispatcher.check_open()
        if (tag | ignore) >> 64:
            raise ArgumentError("tag, ignore: must be whole numbers from 0 to 2^64 - 1")
        peer = ANY if qp is None else qp.message_peer
        held = HeldBuffer.hold(buffer, writable=kind is MessageKind.RECV)
        cookie = self._dispatcher.next_id()
        operation = _Operation(self._dispatcher.loop.create_future(), held)
        memory = (held.address, held.length)
        try:
            self._space.post(kind, cookie, peer, memory, tag, ignore, exact=exact)
        except BaseException:
            held.release()
            raise
        self._operations[cookie] = operation
        self._dispatcher.run_soon()
        try:
            done = await asyncio.shield(operation.done)
        except asyncio.CancelledError:
            if self._space is not None:
                self._space.cancel(cookie)
                self._dispatcher.run_soon()
            raise
        if done.result != 0:
            raise self._error(done, qp)
        return done

    def _error(self, done: Done, qp: QP | None) -> MrcError:
        what = "messages" if qp is None else f"messages with {qp.peer_host}"
        kind, cause = _ERRORS.get(-done.result, (StateError, os.strerror(-done.result)))
        return kind(f"{what}: {cause}")

    def _on_done(self, done: Done) -> None:
        """For the dispatcher."""
        operation = self._operations.pop(done.cookie)
        operation.held.release()
        if not operation.done.done():
            operation.done.set_result(done)

    def on_end(self) -> None:
        """For the dispatcher: the Context is closed."""
        for operation in self._operations.values():
            if not operation.done.done():
                operation.done.set_exception(StateError("the Context is closed"))
                operation.done.exception()
        self._operations.clear()
        self._space = None
