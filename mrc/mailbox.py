# SPDX-License-Identifier: Apache-2.0
"""A mailbox: small JSON messages over the QP itself; a session: one QP with a mailbox, and errors
when the peer fails. File transfer and perf use both.

The OOB TCP connection may run over a plane that fails. Messages after the connect therefore use the
QP, like data: each side registers an inbox, and the peer sends messages as WRITE_IMM into it.

An inbox has SLOTS slots of SLOT_BYTES. Frame n of a direction goes to slot n mod SLOTS; a message
longer than a slot continues in the next frame. The sender reuses a slot only after a credit: the
peer sends it when its user has received the message in the slot, or will receive this message next.
So a mailbox holds at most one message of `most_bytes` and one inbox of other messages, as bytes
that it decodes when the user receives them. The immediates have these formats:

    0iiiiiii iiiiiiii iiiiiiii iiiiiiii   of the user of the mailbox: 31 bits
    10000000 00000000 nnnnnnnn nnnnnnnn   credit: frames freed so far, modulo 2^16; no payload
    11m00000 00000000 nnnnnnnn nnnnnnnn   frame n, modulo 2^16; m: the message continues

Immediates complete in posting order, so all earlier writes are in place when a message arrives. A
side that has received nothing for a while repeats its credit. If the peer never acknowledges it,
the QP fails: so both sides notice a dead peer.

The listening side of a session sends the name of its service as private data, so a peer that
connected to the wrong port sees it. The connecting side sends service and version; the accepting
side checks them.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn, Self, TypeVar

from msgspec import Struct

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.admission import Visits
from mrc.connect.parse import parse, shown
from mrc.engine import native
from mrc.engine.memory import Region, RemoteMemory
from mrc.engine.native import lib
from mrc.enums import WcStatus
from mrc.errors import (
    CompletionError,
    MrcError,
    PathError,
    PeerGoneError,
    ProtocolError,
    reason_of,
)
from mrc.events import Immediate
from mrc.tasks import cancelled, within

SLOTS = 16
SLOT_BYTES = 4096
INBOX_BYTES = SLOTS * SLOT_BYTES
MAX_MESSAGE_BYTES = 1 << 18  # default of `most_bytes`
MAX_SENT_BYTES = 1 << 20
MAILBOX_BYTES = 3 * INBOX_BYTES + MAX_MESSAGE_BYTES  # most memory, unread messages included
MAX_UNREAD = 4096  # messages and user immediates that wait to be received
KEEPALIVE_SECONDS = 3.0

_CONTROL = 0x80000000
_FRAME = 0x40000000
_MORE = 0x20000000
_COUNT = 0xFFFF

Message = dict[str, Any]
T = TypeVar("T")


class MailboxClosedError(MrcError):
    """The peer closed the QP in order, and all its messages have been received."""


class MailboxMemory(Struct, frozen=True):
    """Registered memory of a mailbox. It must outlive the QP because the peer writes into it."""

    inbox: bytearray
    inbox_region: Region
    outbox: bytearray  # a slot holds our frame until the peer's credit for it
    outbox_region: Region


@asynccontextmanager
async def mailbox_memory(ctx: Context) -> AsyncIterator[MailboxMemory]:
    inbox, outbox = bytearray(INBOX_BYTES), bytearray(INBOX_BYTES)
    async with (
        ctx.register(inbox, writable=True) as inbox_region,
        ctx.register(outbox) as outbox_region,
    ):
        yield MailboxMemory(inbox, inbox_region, outbox, outbox_region)


class _Unread(Struct, frozen=True):
    """A message that the user has not received yet; `begin` is its first frame."""

    data: bytearray
    begin: int


class Mailbox:
    """Messages to and from the peer of one QP. An async context manager.

    The connecting side sends its inbox as `private` data and passes no `peer`: the first message
    from the accepting side describes the other inbox. The accepting side passes the inbox from the
    private data as `peer`.
    """

    def __init__(
        self,
        qp: QP,
        memory: MailboxMemory,
        *,
        peer: RemoteMemory | None = None,
        most_bytes: int = MAX_MESSAGE_BYTES,
        keepalive: float = KEEPALIVE_SECONDS,
    ) -> None:
        self._qp = qp
        self._memory = memory
        self._peer = peer
        self._most_bytes = most_bytes  # limit on a message of the peer
        self._keepalive = keepalive
        self._sending = asyncio.Lock()
        self._slots: Any = native.new_struct("mrc_slots", count=SLOTS, bytes=SLOT_BYTES, least=1)
        self._credit_came = asyncio.Event()
        self._begin = 0  # the first frame of the incomplete message
        self._credit_due = asyncio.Event()
        self._heard = False
        self._partial = bytearray()
        self._items: deque[_Unread | Immediate] = deque()
        self._failure: MrcError | None = None
        self._changed = asyncio.Event()  # something to receive, or a failure
        self._failed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._start(self._read())
        self._start(self._send_credits())
        try:
            peer = self._peer
            if peer is None:
                message = await self.receive()
                if isinstance(message, Immediate) or message.get("type") != "inbox":
                    raise ProtocolError("the peer's first message does not describe its inbox")
                peer = RemoteMemory.from_dict(message.get("inbox"))
            if peer.length != INBOX_BYTES:
                raise ProtocolError(f"the peer's inbox has {peer.length} bytes, not {INBOX_BYTES}")
            if self._peer is not None:
                inbox = self._memory.inbox_region.handle.to_dict()
                await self.send({"type": "inbox", "inbox": inbox})
            self._peer = peer
        except BaseException:
            await cancelled(*self._tasks)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await cancelled(*self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it or was cancelled; otherwise asyncio would log it

    async def send(self, message: Message) -> None:
        """Returns when the message is in the peer's inbox; raises CompletionError if that fails.

        If the caller is cancelled, the rest of the message is still sent, so that the peer can
        decode the next messages.
        """
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > MAX_SENT_BYTES:
            raise MrcError(f"the message has {len(data)} bytes; the limit is {MAX_SENT_BYTES}")
        await asyncio.shield(self._start(self._send_frames(data)))

    async def _send_frames(self, data: bytes) -> None:
        assert self._peer is not None, "the inbox of the peer is known once the mailbox is open"
        async with self._sending:
            for start in range(0, len(data), SLOT_BYTES):
                piece = data[start : start + SLOT_BYTES]
                while not lib.mrc_slots_may_send(self._slots):
                    self._credit_came.clear()
                    await self._credit_came.wait()
                frame = self._slots.sent
                self._slots.sent = (frame + 1) & 0xFFFFFFFF
                offset = lib.mrc_slots_place(self._slots, frame)
                self._memory.outbox[offset : offset + len(piece)] = piece
                imm = _CONTROL | _FRAME | frame & _COUNT
                if start + SLOT_BYTES < len(data):
                    imm |= _MORE
                source = self._memory.outbox_region[offset : offset + len(piece)]
                await self._qp.write(source, self._peer[offset:], imm=imm)
                self._slots.done = self._slots.sent

    async def receive(self) -> Message | Immediate:
        """The next message, or the next immediate of the peer's user, in posting order.

        When nothing is left to receive, raises the error that ended the mailbox.
        """
        while not self._items:
            if self._failure is not None:
                raise self._failure.anew()
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        if isinstance(item, Immediate):
            return item
        self._free_frames()
        try:
            return parse(item.data)
        except ValueError as error:
            wrong = ProtocolError(f"{self._qp.peer.host} sent a message that is {error}")
            self._fail(wrong)
            raise wrong from None

    async def failed(self) -> NoReturn:
        """Waits until the QP fails or the peer breaks the protocol, and raises the error.

        An orderly close does not count: until its QP is gone, the peer still answers our writes.
        """
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure.anew()

    def _fail(self, error: MrcError) -> None:
        self._failure = error
        self._changed.set()
        if not isinstance(error, MailboxClosedError):
            self._failed.set()

    async def _read(self) -> None:
        try:
            async for immediate in self._qp.immediates():
                self._heard = True
                imm = immediate.imm
                if not imm & _CONTROL:
                    self._put(immediate)
                elif imm & _FRAME:
                    self._on_frame(imm, immediate.bytes)
                elif lib.mrc_slots_credit(self._slots, imm, _COUNT):
                    self._credit_came.set()
                else:
                    peer = self._qp.peer.host
                    raise ProtocolError(f"{peer} gave credit for frames never sent")
        except MrcError as error:
            self._fail(error)
        else:
            self._fail(MailboxClosedError(f"{self._qp.peer.host} closed the connection"))

    def _put(self, item: _Unread | Immediate) -> None:
        if len(self._items) >= MAX_UNREAD:
            raise ProtocolError(
                f"{self._qp.peer.host} exceeded the limit of {MAX_UNREAD} unread messages"
            )
        self._items.append(item)
        self._changed.set()

    def _on_frame(self, imm: int, size: int) -> None:
        offset = lib.mrc_slots_arrive(self._slots, imm, _COUNT, size)
        if offset < 0:
            wrong = "out of order" if offset == lib.MRC_SLOTS_OUT_OF_ORDER else "without credit"
            raise ProtocolError(f"{self._qp.peer.host} sent a frame {wrong}")
        self._partial += self._memory.inbox[offset : offset + size]
        if len(self._partial) > self._most_bytes:
            raise ProtocolError(
                f"{self._qp.peer.host} sent a message of more than {self._most_bytes} bytes"
            )
        if not imm & _MORE:
            data, self._partial = self._partial, bytearray()
            self._put(_Unread(data, self._begin))
            self._begin = self._slots.arrived
        self._free_frames()

    def _free_frames(self) -> None:
        """Frees all frames before the first unread message. Sends credit for half an inbox at a
        time.
        """
        unread = next((item for item in self._items if isinstance(item, _Unread)), None)
        begin = self._slots.arrived if unread is None else unread.begin
        lib.mrc_slots_free(self._slots, begin)
        if lib.mrc_slots_owe(self._slots):
            self._credit_due.set()

    async def _send_credits(self) -> None:
        while True:
            try:
                async with within(self._keepalive):
                    await self._credit_due.wait()
            except TimeoutError:
                if self._heard:
                    self._heard = False
                    continue
            self._credit_due.clear()
            try:
                self._slots.told = self._slots.freed
                await self._qp.write(imm=_CONTROL | self._slots.told & _COUNT)
            except CompletionError:
                return  # _read reports the cause when the immediates end


# ---- sessions ------------------------------------------------------------------------------------

LOST_TIMEOUTS = 3  # local timeouts in a row; they are fewer while at least one path works
VISIT_SECONDS = 10.0  # longest visit of a peer that only looks at paths (`mrc paths`)
MAX_VISITS = 16  # most visits at one time in this process
CAUSE_SECONDS = 0.5  # wait for the error of the QP, which follows the first failed work request


_visits = Visits(MAX_VISITS)


class SessionError(MrcError):
    """The session failed; the message names the end that failed and the cause."""


class WrongServiceError(SessionError):
    """The TCP port serves something else."""


class Service(Struct, frozen=True):
    """A service that a session provides."""

    name: str  # for programs
    title: str  # for people
    version: int
    long_answers: bool = False  # the connecting peer takes messages of MAX_SENT_BYTES

    @asynccontextmanager
    async def connect(
        self,
        ctx: Context,
        host: str,
        port: int,
        *,
        private: dict[str, Any] | None = None,
        timeout: float,
    ) -> AsyncIterator[MailboxSession]:
        """A session with the peer that serves this at `host`; the peer also gets `private`."""
        async with AsyncExitStack() as held:
            memory = await held.enter_async_context(mailbox_memory(ctx))
            about = {
                **(private or {}),
                "service": self.name,
                "version": self.version,
                "inbox": memory.inbox_region.handle.to_dict(),
            }
            async with await ctx.connect(host, port, private=about, timeout=timeout) as qp:
                served = qp.peer.private.get("service")
                if served != self.name:
                    raise WrongServiceError(
                        f"{host}: TCP port {port} serves '{shown(served, 40)}', not {self.name!r}:"
                        " is it the wrong port?"
                    )
                most = MAX_SENT_BYTES if self.long_answers else MAX_MESSAGE_BYTES
                mailbox = Mailbox(qp, memory, most_bytes=most)
                async with _opened(mailbox, qp.peer.host):
                    yield MailboxSession(ctx, qp, mailbox, held)

    @asynccontextmanager
    async def accept(self, ctx: Context, qp: QP) -> AsyncIterator[MailboxSession]:
        """A session with the peer of an accepted `qp`; closes the QP at the end."""
        async with AsyncExitStack() as held:
            try:
                held.enter_context(ctx._peer_memory.taken(qp.peer.address, MAILBOX_BYTES))
                memory = await held.enter_async_context(mailbox_memory(ctx))
            except BaseException as error:
                await qp.abort(reason_of(error))
                raise
            async with qp:
                version = qp.peer.private.get("version")
                if version != self.version:
                    raise ProtocolError(
                        f"{qp.peer.host} speaks version {shown(version, 20)} of the {self.title},"
                        f" this host version {self.version}; install the same mrc on both hosts"
                    )
                inbox = RemoteMemory.from_dict(qp.peer.private.get("inbox"))
                mailbox = Mailbox(qp, memory, peer=inbox)
                async with _opened(mailbox, qp.peer.host):
                    yield MailboxSession(ctx, qp, mailbox, held)

    @staticmethod
    async def until_guessed(ctx: Context) -> NoReturn:
        """Raises when the one-time code is used up without success, and nobody else may connect."""
        raise MrcError(await ctx._code_failed())

    @staticmethod
    async def let_look(qp: QP) -> None:
        """Keeps a QP open for a peer that only looks at its paths, then closes the QP. It closes
        earlier when all places are taken and a peer of another source has fewer of them.
        """
        async with qp:
            visit = _visits.admit(qp.peer.address)
            if visit is None:
                return
            visit.ask()  # it has connected
            looking = asyncio.create_task(qp.until_closed())
            _visits.start(visit, looking)
            try:
                await asyncio.wait((looking,), timeout=VISIT_SECONDS)
            finally:
                await cancelled(looking)


class MailboxSession(Struct, frozen=True):
    """One connected QP with its mailbox."""

    ctx: Context
    qp: QP
    mailbox: Mailbox
    held: AsyncExitStack  # released after the QP, which may use this memory until its end

    async def watched(
        self, work: Coroutine[Any, Any, T], *more: Coroutine[Any, Any, NoReturn]
    ) -> T:
        """The result of `work`; raises when the QP ends or one of `more` raises first."""
        async with self._explaining():
            return await race(work, self.mailbox.failed(), *more)

    async def receive(self) -> Message | Immediate:
        """The next item of the mailbox; raises when the QP ends. If cancelled, it takes no item.

        This does not use `watched`: a failed mailbox raises by itself, and two tasks for each item
        would cost more than the rest of its processing.
        """
        async with self._explaining():
            return await self.mailbox.receive()

    @asynccontextmanager
    async def _explaining(self) -> AsyncIterator[None]:
        """Converts errors of the QP into errors of the session."""
        try:
            yield
        except CompletionError as error:
            raise await self._explain(error) from error
        except PeerGoneError as error:
            # The peer may have found all paths lost before we did, and so have closed its QP.
            if (await self.qp.info()).timeouts >= LOST_TIMEOUTS:
                raise paths_lost(self.qp.peer.host) from error
            raise

    async def _explain(self, error: CompletionError) -> MrcError:
        """The error of the session for a failed work request."""
        try:
            # The error of the QP itself says more than the flush error of a work request.
            async with within(CAUSE_SECONDS):
                await self.mailbox.failed()
        except TimeoutError:
            return explain(error, self.qp.peer.host)
        except CompletionError as cause:
            return explain(cause, self.qp.peer.host)
        except MrcError as cause:
            return cause


def paths_lost(host: str) -> PathError:
    return PathError(
        f"all paths to {host} are lost: it acknowledges no packets; `mrc paths {host}` shows"
        " which paths answer"
    )


def explain(error: CompletionError, host: str) -> MrcError:
    if error.status is WcStatus.RETRY_EXC_ERR:
        return paths_lost(host)
    return SessionError(f"the connection to {host} failed: {error}")


async def race(work: Coroutine[Any, Any, T], *watchers: Coroutine[Any, Any, NoReturn]) -> T:
    """The result of `work`; raises the first error of `watchers` if one raises before the end."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in (work, *watchers)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        result: T = next(task for task in tasks if task.done()).result()
        return result
    finally:
        await cancelled(*tasks)


@asynccontextmanager
async def _opened(mailbox: Mailbox, host: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(mailbox)
        except CompletionError as error:
            raise explain(error, host) from error
        yield
