# SPDX-License-Identifier: Apache-2.0
"""Sends and receives with tags: messages over QPs that were connected with `messages=True`.

The struct of csrc/msg first, then the peer of a QP, then Messages.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self, cast

from msgspec import Struct

from mrc.aio.qp import QP
from mrc.connect.oob import Hello, Inbox
from mrc.engine import native
from mrc.engine.dispatch import Dispatcher
from mrc.engine.memory import HeldBuffer
from mrc.engine.native import CData, Command, ffi, lib
from mrc.engine.queue_pair import QueuePair
from mrc.enums import CommandOp
from mrc.errors import ArgumentError, MrcError, PeerGoneError, ProtocolError, StateError

_LOOK_SECONDS = 0.001  # between two looks at what is still on its way, the first time
_LONGEST_LOOK_SECONDS = 0.02
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

ANY = int(lib.MRC_MSG_ANY)
"""in place of a peer: any"""
_SEND, _RECV = int(lib.MRC_MSG_SEND), int(lib.MRC_MSG_RECV)


class MessageCompletion(NamedTuple):
    """One operation that ended."""

    cookie: int
    result: int
    """0 or a negative errno."""
    bytes: int
    tag: int
    peer: int


class MessageFunctions(NamedTuple):
    """The functions of messages.h for one context, for callers in C, and sizes of structs."""

    addresses: tuple[int, ...]
    """The context, then mrc_ctx_msg_space, _close_space, _post, _cancel."""
    post_bytes: int
    """Size of struct mrc_msg_post."""
    done_bytes: int
    """Size of struct mrc_msg_done."""


def functions(dispatcher: Dispatcher) -> MessageFunctions:
    """Addresses that are valid until the context is closed."""
    names = ("space", "close_space", "post", "cancel")
    functions = (ffi.addressof(lib, f"mrc_ctx_msg_{name}") for name in names)
    pointers = [dispatcher.engine.handle(), *functions]
    return MessageFunctions(
        tuple(int(ffi.cast("uintptr_t", pointer)) for pointer in pointers),
        ffi.sizeof("struct mrc_msg_post"),
        ffi.sizeof("struct mrc_msg_done"),
    )


class MessageDispatcher:
    """The completions of all spaces of a context, on their way to those who wait for them."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.spaces: dict[int, Messages] = {}
        """by number, while they are open"""
        self._context = dispatcher.engine
        self._batch = native.StructQueue("mrc_msg_done", native.POLL_BATCH)
        self._done: deque[tuple[int, MessageCompletion]] = deque()

    def take(self) -> None:
        """Gives each new one to its space. After a MemoryError the next call goes on."""
        if not self.spaces:
            return
        while self._batch.take(self._poll, _decode, self._done) == native.POLL_BATCH:
            pass
        while self._done:
            space, done = self._done.popleft()
            self.spaces[space]._on_done(done)

    def on_end(self) -> None:
        """The Context is closed."""
        for space in list(self.spaces.values()):
            space._on_end()

    def _poll(self, done: CData, room: int) -> int:
        return native.check(
            lib.mrc_ctx_msg_poll(self._context.handle(), done, room), "poll messages"
        )


def _decode(done: CData) -> tuple[int, MessageCompletion]:
    completion = MessageCompletion(done.cookie, done.result, done.bytes, done.tag, done.peer)
    return done.space, completion


class MessagePeer:
    """A peer for messages, by its number in the datapath."""

    def __init__(
        self, dispatcher: Dispatcher, number: int, inbox: Inbox, *, kept: bool = False
    ) -> None:
        """`kept`: it is its program's, which also forgets it."""
        self._dispatcher = dispatcher
        self.number = number
        self.inbox = inbox
        """for the other side"""
        self._kept = kept
        self._ended = False

    @classmethod
    async def open(cls, dispatcher: Dispatcher, queue: QueuePair, max_wimm: int) -> Self:
        """Gives the completions of the QP to messages; raises MrcError."""
        limits = {"sq_depth": queue.sq_depth, "max_wimm": max_wimm}
        opening = native.new_struct("mrc_msg_opening", limits=limits)
        fields = {"op": CommandOp.MSG_OPEN, "qpn": queue.qpn, "pointer": opening}
        number = await dispatcher.call(Command(fields, opening), f"QP {queue.qpn:#x}: messages")
        return cls(dispatcher, number, Inbox(int(opening.inbox.address), int(opening.inbox.rkey)))

    async def connect(self, peer: Hello) -> None:
        """The QP is in RTS: messages may go."""
        inbox = peer.attributes.inbox
        assert inbox is not None
        limit = peer.attributes.max_wimm
        memory = native.new_struct(
            "mrc_msg_inbox", address=inbox.address, rkey=inbox.rkey, max_wimm=limit
        )
        await self._dispatcher.call(self._command(CommandOp.MSG_CONNECT, memory), "messages")

    async def until_idle(self) -> None:
        """Returns when all that was sent has arrived at the peer."""
        pause = _LOOK_SECONDS
        while not self._ended and not await self._dispatcher.call(
            self._command(CommandOp.MSG_IDLE),
            "messages",  # 1: all has arrived
        ):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)

    def fail(self) -> None:
        """Ends all operations with this peer."""
        self._tell(self._command(CommandOp.MSG_FAIL, key=errno.ECONNRESET))

    def forget(self) -> None:
        """The QP is destroyed."""
        self._ended = True
        if not self._kept:
            self._tell(self._command(CommandOp.MSG_CLOSE))

    def _command(self, op: CommandOp, memory: Any = None, key: int = 0) -> Command:
        """`memory` stays until the reply."""
        fields = {"op": op, "value": self.number, "key": key}
        return Command(fields if memory is None else {**fields, "pointer": memory}, memory)

    def _tell(self, command: Command) -> None:
        with suppress(MrcError):  # the Context is closed, and the datapath with it
            reply = self._dispatcher.call(command, "messages")
            reply.add_done_callback(lambda done: done.cancelled() or done.exception())


class Message(NamedTuple):
    """A message that was received."""

    bytes: int
    """Its length."""
    tag: int
    """Its tag."""
    qp: QP
    """Whose peer sent it."""


class _MessageOperation(Struct):
    done: asyncio.Future[MessageCompletion]
    held: HeldBuffer


class Messages:
    """Sends and receives within one space: messages of different spaces never meet.

    Open it on both sides. Messages from one peer with the same tag are
    received in the order of their sends. A send returns when its buffer may be used again: short
    messages are copied, longer ones written straight into the buffer of their receive. If a wait
    is cancelled, so is the operation, unless its message was matched already.
    """

    def __init__(self, dispatcher: Dispatcher, qps: Callable[[int], QP], space: int) -> None:
        self._dispatcher = dispatcher
        self._qp_of = qps  # by the number of their peer
        self._space = space
        self._ctx: CData = None  # while the space is open
        self._messages: MessageDispatcher
        self._operations: dict[int, _MessageOperation] = {}

    async def _open(self) -> Self:
        if not 0 <= self._space <= 0xFFFFFFFF:
            raise ArgumentError(f"space: {self._space} does not fit 32 bits")
        ctx = self._dispatcher.engine.handle()
        opened = lib.mrc_ctx_msg_space(ctx, self._space, ffi.NULL, ffi.NULL)
        native.check(opened, f"space {self._space}")
        self._ctx = ctx
        if self._dispatcher.messages is None:
            self._dispatcher.messages = MessageDispatcher(self._dispatcher)
        self._messages = cast(MessageDispatcher, self._dispatcher.messages)
        self._messages.spaces[self._space] = self
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels what is outstanding, waits for its end, and closes the space.

        If the wait is cancelled, the space closes later by itself.
        """
        if self._ctx is None or self._dispatcher.gone:
            return
        for cookie in self._operations:
            self._cancel(cookie)
        ctx, self._ctx = self._ctx, None
        await asyncio.shield(asyncio.get_running_loop().create_task(self._end(ctx)))

    async def _end(self, ctx: CData) -> None:
        waits = [operation.done for operation in self._operations.values()]
        await asyncio.gather(*waits, return_exceptions=True)
        with suppress(StateError):  # the Context ends, and the space with it
            self._dispatcher.check_open()
            del self._messages.spaces[self._space]
            lib.mrc_ctx_msg_close_space(ctx, self._space)

    async def send(self, qp: QP, buffer: Any, *, tag: int = 0) -> None:
        """Sends a message: any contiguous buffer, also an empty one; `tag` has 64 bits.

        Raises PeerGoneError when the QP fails, ProtocolError when the peer breaks the protocol of
        messages, ArgumentError when the message is longer than the buffer that receives it.
        """
        await self._run(_SEND, qp, buffer, tag)

    async def recv(
        self, buffer: Any, qp: QP | None = None, *, tag: int = 0, ignore: int = 0,
        exact: bool = False,
    ) -> Message:  # fmt: skip
        """Receives a message into a writable buffer, from one peer or (None) from any.

        Bits of `ignore` do not count in the comparison of tags. With `exact` the message has the
        length of the buffer, so that a long one needs no round trip. Raises as `send`.
        """
        done = await self._run(_RECV, qp, buffer, tag, ignore, exact=exact)
        return Message(done.bytes, done.tag, qp or self._qp_of(done.peer))

    async def _run(
        self, kind: int, qp: QP | None, buffer: Any, tag: int, ignore: int = 0, *,
        exact: bool = False,
    ) -> MessageCompletion:  # fmt: skip
        if self._ctx is None:
            raise StateError("messages: the space is closed")
        self._dispatcher.check_open()
        if (tag | ignore) >> 64:
            raise ArgumentError("tag, ignore: must be whole numbers from 0 to 2^64 - 1")
        peer = ANY if qp is None else qp.message_peer
        held = HeldBuffer.hold(buffer, writable=kind == _RECV)
        cookie = self._dispatcher.next_id()
        operation = _MessageOperation(self._dispatcher.loop.create_future(), held)
        try:
            post = ffi.new(
                "struct mrc_msg_post *",
                {
                    "cookie": cookie, "address": held.address, "bytes": held.length, "tag": tag,
                    "ignore": ignore, "space": self._space, "peer": peer, "kind": kind,
                    "exact": int(exact),
                },
            )  # fmt: skip
            native.check(lib.mrc_ctx_msg_post(self._ctx, post, 1), "message")
        except BaseException:
            held.release()
            raise
        self._operations[cookie] = operation
        self._dispatcher.run_soon()
        try:
            done = await asyncio.shield(operation.done)
        except asyncio.CancelledError:
            if self._ctx is not None:
                self._cancel(cookie)
            raise
        if done.result != 0:
            raise self._error(done, qp)
        return done

    def _cancel(self, cookie: int) -> None:
        """Asks to cancel an operation; its completion comes in any case."""
        native.check(lib.mrc_ctx_msg_cancel(self._ctx, self._space, cookie), "cancel")
        self._dispatcher.run_soon()

    def _error(self, done: MessageCompletion, qp: QP | None) -> MrcError:
        what = "messages" if qp is None else f"messages with {qp.peer.host}"
        kind, cause = _ERRORS.get(-done.result, (StateError, os.strerror(-done.result)))
        return kind(f"{what}: {cause}")

    def _on_done(self, done: MessageCompletion) -> None:
        """For the dispatcher."""
        operation = self._operations.pop(done.cookie)
        operation.held.release()
        if not operation.done.done():
            operation.done.set_result(done)

    def _on_end(self) -> None:
        """For the dispatcher: the Context is closed."""
        for operation in self._operations.values():
            if not operation.done.done():
                operation.done.set_exception(StateError("the Context is closed"))
                operation.done.exception()
        self._operations.clear()
        self._ctx = None
