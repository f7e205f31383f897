# SPDX-License-Identifier: Apache-2.0
"""Messages of csrc/msg/messages.h: commands for the peers of a context, operations, completions."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from mrc.binding import native
from mrc.binding.native import CData, Command, Handled, check, ffi, lib
from mrc.enums import CommandOp, MessageKind
from mrc.errors import ArgumentError

ANY = int(lib.MRC_MSG_ANY)
"""in place of a peer: any"""


class Done(NamedTuple):
    """One operation that ended."""

    cookie: int
    result: int
    """0 or a negative errno."""
    bytes: int
    tag: int
    peer: int


class MessageOpening:
    """Makes a QP a peer for messages: the command, and its result."""

    def __init__(self, qpn: int, sq_depth: int, max_wimm: int) -> None:
        limits = {"sq_depth": sq_depth, "max_wimm": max_wimm}
        self._native: Any = native.new_struct("mrc_msg_opening", limits=limits)
        fields = {"op": CommandOp.MSG_OPEN, "qpn": qpn, "pointer": self._native}
        self.command = Command(fields, self._native)

    @property
    def inbox(self) -> tuple[int, int]:
        """Address and rkey for the other side."""
        return int(self._native.inbox.address), int(self._native.inbox.rkey)


def connect(peer: int, address: int, rkey: int, max_wimm: int) -> Command:
    """The QP is in RTS, and this is the inbox of the other side."""
    inbox = native.new_struct("mrc_msg_inbox", address=address, rkey=rkey, max_wimm=max_wimm)
    return Command({"op": CommandOp.MSG_CONNECT, "value": peer, "pointer": inbox}, inbox)


def idle(peer: int) -> Command:
    """Its result is 1 when all that was sent has arrived."""
    return Command({"op": CommandOp.MSG_IDLE, "value": peer}, None)


def fail(peer: int, errno: int) -> Command:
    """Ends the operations of a peer."""
    return Command({"op": CommandOp.MSG_FAIL, "value": peer, "key": errno}, None)


def close(peer: int) -> Command:
    """Forgets a peer; its QP is destroyed."""
    return Command({"op": CommandOp.MSG_CLOSE, "value": peer}, None)


class MessageSpace:
    """A space of messages of one context, whose completions are polled."""

    def __init__(self, context: Handled, space: int) -> None:
        """Opens the space; raises InUseError if it is open, ArgumentError for a wrong number."""
        if not 0 <= space <= 0xFFFFFFFF:
            raise ArgumentError(f"space: {space} does not fit 32 bits")
        self._ctx = context.handle()
        self.space = space
        check(lib.mrc_ctx_msg_space(self._ctx, space, ffi.NULL, ffi.NULL), f"space {space}")

    def post(
        self, kind: MessageKind, cookie: int, peer: int, memory: tuple[int, int], tag: int,
        ignore: int = 0, *, exact: bool = False,
    ) -> None:  # fmt: skip
        """Starts an operation; `memory` is address and length."""
        each = ffi.new(
            "struct mrc_msg_post *",
            {
                "cookie": cookie, "address": memory[0], "bytes": memory[1], "tag": tag,
                "ignore": ignore, "space": self.space, "peer": peer, "kind": int(kind),
                "exact": int(exact),
            },
        )  # fmt: skip
        check(lib.mrc_ctx_msg_post(self._ctx, each, 1), "message")

    def cancel(self, cookie: int) -> None:
        """Asks to cancel an operation; its completion comes in any case."""
        check(lib.mrc_ctx_msg_cancel(self._ctx, self.space, cookie), "cancel")

    def close(self) -> None:
        """Closes the space."""
        lib.mrc_ctx_msg_close_space(self._ctx, self.space)


class Slots:
    """The slots of the inboxes of two peers, and the credits for them: struct mrc_slots.

    Immediates carry the bits of `mask` of a number of frames.
    """

    def __init__(self, count: int, bytes: int, mask: int) -> None:
        self._native: Any = native.new_struct("mrc_slots", count=count, bytes=bytes)
        self._mask = mask

    @property
    def arrived(self) -> int:
        """The number of the peer's next frame."""
        return int(self._native.arrived)

    def place(self, frame: int) -> int:
        """Where a frame begins in its inbox."""
        return int(lib.mrc_slots_place(self._native, frame))

    def may_send(self) -> bool:
        """Whether the slot of our next frame is free."""
        return bool(lib.mrc_slots_may_send(self._native))

    def send(self) -> tuple[int, int]:
        """Takes the slot of our next frame: its place, and the frame's number in an immediate."""
        frame = self._native.sent
        self._native.sent = (frame + 1) & 0xFFFFFFFF
        return self.place(frame), frame & self._mask

    def credit(self, freed: int) -> bool:
        """Takes a credit of the peer; False: for frames that were never sent."""
        return bool(lib.mrc_slots_credit(self._native, freed, self._mask))

    def is_next(self, frame: int) -> bool:
        """Whether a frame of the peer is the next one."""
        return bool(lib.mrc_slots_is_next(self._native, frame, self._mask))

    def granted(self) -> bool:
        """Whether the peer had credit for its next frame."""
        return bool(lib.mrc_slots_granted(self._native))

    def arrive(self) -> int:
        """Counts the peer's next frame; returns its place."""
        place = self.place(self.arrived)
        self._native.arrived = (self.arrived + 1) & 0xFFFFFFFF
        return place

    def free(self, frame: int) -> bool:
        """Frees the peer's frames before this one. Whether a credit is due now."""
        lib.mrc_slots_free(self._native, frame)
        return bool(lib.mrc_slots_owe(self._native))

    def tell(self) -> int:
        """The credit for the peer, which it gets now."""
        self._native.told = self._native.freed
        return int(self._native.told) & self._mask


class MessageFunctions(NamedTuple):
    """The functions of messages.h for one context, for callers in C, and sizes of structs."""

    addresses: tuple[int, ...]
    """The context, then mrc_ctx_msg_space, _close_space, _post, _cancel."""
    post_bytes: int
    """Size of struct mrc_msg_post."""
    done_bytes: int
    """Size of struct mrc_msg_done."""


def functions(context: Handled) -> MessageFunctions:
    """Addresses that are valid until the context is closed."""
    names = ("space", "close_space", "post", "cancel")
    pointers = [context.handle(), *(ffi.addressof(lib, f"mrc_ctx_msg_{name}") for name in names)]
    return MessageFunctions(
        tuple(int(ffi.cast("uintptr_t", pointer)) for pointer in pointers),
        ffi.sizeof("struct mrc_msg_post"),
        ffi.sizeof("struct mrc_msg_done"),
    )


class Completions:
    """The completions of all spaces of a context."""

    def __init__(self, context: Handled) -> None:
        self._context = context
        self._batch = native.Batch("mrc_msg_done", native.POLL_BATCH)

    def poll(self, found: deque[tuple[int, Done]]) -> None:
        """Appends each new one: (space, completion). After a MemoryError the next call goes on."""
        while self._batch.take(self._poll, _decode, found) == native.POLL_BATCH:
            pass

    def _poll(self, done: CData, room: int) -> int:
        return check(lib.mrc_ctx_msg_poll(self._context.handle(), done, room), "poll messages")


def _decode(done: CData) -> tuple[int, Done]:
    return done.space, Done(done.cookie, done.result, done.bytes, done.tag, done.peer)
