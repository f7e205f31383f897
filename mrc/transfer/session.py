# SPDX-License-Identifier: Apache-2.0
"""A session of a file transfer: its QPs, messages and errors, and the end of one without progress.

The further QPs of a session, beside its first QP, carry only chunks. The receiver creates a random
token for each session. The sender sends the token as private data when it connects a further QP.
The receiver's listener refuses a QP without a valid token.

The mailbox detects a peer that is gone. But a live peer that sends nothing could keep its session
and its memory forever, so waits for it have a limit.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from inspect import isawaitable
from typing import Any, Literal, NoReturn, Self, get_args

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.oob import Peer
from mrc.connect.parse import shown
from mrc.errors import ConnectError, MrcError, ProtocolError, reason_of
from mrc.events import EvInfo, Immediate, PlaneInfo, QpInfo, known
from mrc.mailbox import MailboxSession, Service, SessionError
from mrc.tasks import Limit, cancelled, within
from mrc.transfer.messages import (
    MAX_FILE_BYTES,
    VERSION,
    Abort,
    Announced,
    ConsentQuestion,
    Refuse,
    TransferMessage,
    from_dict,
    to_dict,
)
from mrc.transfer.results import Waits
from mrc.typed import take
from mrc.units import digits

TAKES_ASKING = "asking"
"""private data of a sender that understands the message Asking, which came after version 4"""
TOKEN_BYTES = 16
SERVICE = Service("files", "file transfer", VERSION)
TRANSFER = "transfer"
"""private data of a sender: a random text that names its transfer"""
JOIN = "files-join"  # the service name of a further QP
MAX_QPS = 16  # of a session, including the first QP
LAST_WORDS_SECONDS = 1.0  # to send the reason; the peer notices our end even without a reason
_LOOKS = 8  # checks of the progress within the allowed idle time

Connect = Callable[[dict[str, Any]], Awaitable[QP]]
Part = Literal["reading", "network", "storing"]


class TransferError(SessionError):
    """The transfer failed; the message names the end that failed and the cause."""


class VerificationError(TransferError):
    """The received file differs from the sent file."""


class IdleError(TransferError):
    """The sender made no progress for too long."""

    def __init__(self, session: TransferSession, seconds: float) -> None:
        super().__init__(
            f"no progress for {digits(seconds)} s (mrc recv --idle): ended the session with"
            f" {session.qp.peer.host}"
        )


class ArrivedBytes(Struct):
    """How much of what a sender claims to have written has come: bytes of a session, since its
    begin. Both counts of what came are lower bounds.

    An immediate names a chunk, but its slot may still hold the bytes of an earlier one. So the
    chunks of a session together are never more than the payload that came.
    """

    with_immediates: int = 0
    counted: int = 0
    """by the engine; also the parts of chunks that came without an immediate"""
    used: int = 0
    """by chunks"""

    def has(self, size: int) -> bool:
        """Whether a further chunk of this size can have come."""
        return self.used + size <= max(self.with_immediates, self.counted)


class WaitTimes:
    """Adds up the times of one session. Each part is timed by one thread at a time."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(get_args(Part), 0.0)

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """Everything within waits for this part."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds[part] += time.monotonic() - begin

    @contextmanager
    def otherwise_on(self, part: Part) -> Iterator[None]:
        """What is within waits for this part, unless it waits for one that is timed within it."""
        begin, before = time.monotonic(), sum(self._seconds.values())
        try:
            yield
        finally:
            within = sum(self._seconds.values()) - before
            self._seconds[part] += max(time.monotonic() - begin - within, 0.0)

    def seconds(self) -> Waits:
        """The times so far."""
        return Waits(**{f"{part}_seconds": seconds for part, seconds in self._seconds.items()})


class JoinedQps:
    """The further QPs of one session. An async context manager that closes them.

    The receiver passes `token`. The sender passes `connect`, which connects a QP with private data.
    """

    def __init__(self, token: str = "", connect: Connect | None = None) -> None:
        self.token = token
        self._connect = connect
        self.qps: list[QP] = []
        self.on_chunk: Callable[[Immediate], None] | None = None  # while a file is being received
        self._readers: list[asyncio.Task[None]] = []
        self._error: MrcError | None = None
        self._failed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        await cancelled(*self._readers)
        why = reason_of(error)
        await asyncio.gather(*(qp.close() if kind is None else qp.abort(why) for qp in self.qps))

    async def join(self, token: str) -> None:
        """Connects a further QP to the receiver's session with this token."""
        assert self._connect is not None, "only a sender connects"
        self.add(await self._connect({"service": JOIN, "token": token}))

    def add(self, qp: QP) -> None:
        """Adds a QP; the end of this object closes it."""
        self.qps.append(qp)
        self._readers.append(asyncio.create_task(self._read(qp)))

    async def failed(self) -> NoReturn:
        """Waits until one of the QPs fails, and raises its error."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    async def _read(self, qp: QP) -> None:
        try:
            async for immediate in qp.immediates():
                if self.on_chunk is None:
                    raise ProtocolError(f"{qp.peer.host} sent a chunk outside a file")
                self.on_chunk(immediate)
        except MrcError as error:
            if self._error is None:
                self._error = error
                self._failed.set()


class Joins:
    """The sessions of one listener that further QPs may join."""

    def __init__(self) -> None:
        self.refusal = ""  # the reason to refuse new sessions; empty: accept them
        self.transfers: dict[str, asyncio.Task[None]] = {}
        """the session of each transfer, which a later session may replace"""
        self._sessions: dict[str, JoinedQps] = {}

    @asynccontextmanager
    async def session(self) -> AsyncIterator[JoinedQps]:
        """A session that QPs may join until this context ends; yields its further QPs."""
        async with JoinedQps(secrets.token_hex(TOKEN_BYTES)) as joined:
            self._sessions[joined.token] = joined
            try:
                yield joined
            finally:
                del self._sessions[joined.token]

    def admit(self, peer: Peer) -> bool:
        """For the listener: raises ConnectError to refuse a peer."""
        private = peer.private
        if private.get("service") == JOIN:
            joined = self._named(private)
            if joined is None:
                raise ConnectError("no open session has this token")
            if len(joined.qps) >= MAX_QPS - 1:
                raise ConnectError(f"the session already has {MAX_QPS} QPs, the limit")
        elif self.refusal and private.get(TRANSFER) not in self.transfers:
            raise ConnectError(self.refusal)
        return True

    def forget(self, transfer: str, task: asyncio.Task[None]) -> None:
        """This session of the transfer has ended."""
        if self.transfers.get(transfer) is task:
            del self.transfers[transfer]

    async def take(self, qp: QP) -> None:
        """Adds a QP to the session with its token; aborts the QP if the session has ended."""
        joined = self._named(qp.peer.private)
        if joined is None:
            await qp.abort("the session has ended")
        else:
            joined.add(qp)

    def _named(self, private: dict[str, Any]) -> JoinedQps | None:
        token = private.get("token")
        return self._sessions.get(token) if isinstance(token, str) else None


class TransferSession(MailboxSession, frozen=True):
    """A session of a file transfer: a QP with a mailbox, and further QPs that carry chunks."""

    joined: JoinedQps
    arrived: ArrivedBytes = field(default_factory=ArrivedBytes)
    waiting: WaitTimes = field(default_factory=WaitTimes)

    @property
    def qps(self) -> list[QP]:
        """All QPs; the first one has the mailbox."""
        return [self.qp, *self.joined.qps]

    @property
    def announced_bytes(self) -> int | None:
        """Of all files together, as the sender has said; None: it does not know."""
        size = self.qp.peer.private.get("bytes")
        return size if type(size) is int and 0 <= size <= MAX_FILE_BYTES else None

    async def query(self) -> QpInfo:
        """A snapshot of all QPs together."""
        return sum_of([await qp.info() for qp in self.qps])

    async def evs(self) -> list[EvInfo]:
        """A snapshot of the EVs of all QPs."""
        return [ev for qp in self.qps for ev in await qp.evs()]

    async def say(self, message: TransferMessage) -> None:
        """Returns when the peer has the message."""
        await self.watched(self.mailbox.send(to_dict(message)))

    async def say_last(self, message: TransferMessage) -> None:
        """Sends a last message and waits until the peer closes its QP, for at most 1 s in all."""
        try:
            async with within(LAST_WORDS_SECONDS):
                await self.say(message)
                await self.qp.until_closed()
        except (TimeoutError, MrcError):
            pass

    async def hear(self) -> TransferMessage | Immediate:
        """The peer's next message or immediate; raises TransferError if the peer sent abort."""
        item = await self.receive()
        if isinstance(item, Immediate):
            return item
        message = from_dict(item)
        if isinstance(message, Abort):
            raise TransferError(f"{self.qp.peer.host} stopped the transfer: {shown(message.error)}")
        return message


@asynccontextmanager
async def connect_session(
    ctx: Context,
    host: str,
    port: int,
    *,
    announced: Announced,
    transfer: str = "",
    timeout: float,
) -> AsyncIterator[TransferSession]:
    """A session with the receiver at `host`; its user sees what is announced, and accepts no more.

    A later session of the same `transfer` goes on with it: the receiver then ends this one.
    """

    async def connect(private: dict[str, Any]) -> QP:
        return await ctx.connect(host, port, private=private, timeout=timeout)

    about = to_builtins(announced) | {TAKES_ASKING: True, TRANSFER: transfer}
    async with (
        SERVICE.connect(ctx, host, port, private=about, timeout=timeout) as opened,
        JoinedQps(connect=connect) as joined,
    ):
        yield TransferSession(opened.ctx, opened.qp, opened.mailbox, opened.held, joined)


@asynccontextmanager
async def accept_session(ctx: Context, qp: QP, joins: Joins) -> AsyncIterator[TransferSession]:
    """A session with the sender of an accepted `qp`; closes the QP at the end.

    The sender's further QPs join the session through `joins`.
    """
    async with SERVICE.accept(ctx, qp) as opened, joins.session() as joined:
        yield TransferSession(opened.ctx, opened.qp, opened.mailbox, opened.held, joined)


@asynccontextmanager
async def patience(session: TransferSession, seconds: float) -> AsyncIterator[None]:
    """Raises IdleError when the body waits for the peer for longer than `seconds`."""
    try:
        async with Limit(seconds):
            yield
    except TimeoutError:
        raise IdleError(session, seconds) from None


async def until_idle(
    session: TransferSession, seconds: float, progress: Callable[[], object], most_bytes: int
) -> NoReturn:
    """Raises IdleError when neither `progress` nor the received payload changes for `seconds`.

    Payload beyond `most_bytes` does not count, because a peer may write the same bytes repeatedly.
    """
    first: int | None = None
    before: object = None
    idle = 0  # looks: not the time, in which this process may have been stopped
    while idle < _LOOKS:
        await asyncio.sleep(seconds / _LOOKS)
        received = (await session.query()).received_bytes
        first = received if first is None else first
        now = (min(received - first, most_bytes), progress())
        if now != before:
            before, idle = now, 0
        else:
            idle += 1
    raise IdleError(session, seconds)


# ---- Consent -------------------------------------------------------------------------------------


class Offered(Struct, frozen=True):
    """Who wants to send, and what: all that a receiver decides by."""

    peer: str
    """Address of the sender."""
    name: str
    """What it calls itself."""
    identity: str
    """What it has proved, such as the fingerprint of its key; empty: nothing."""
    announced: Announced
    """Numbers and names of its files."""


Accept = Callable[[Offered], Awaitable[bool] | bool | None]


async def agreement(
    session: TransferSession, accept: Accept, idle_seconds: float
) -> tuple[Announced | None, float]:
    """What the sender may store, and for how many seconds `accept` was awaited. The sender hears
    that it is. None: no more is known than the limits.

    Raises TransferError if nothing was accepted. The sender hears the text of an MrcError.
    """
    qp, seconds = session.qp, 0.0
    try:
        announced = take(qp.peer.private, Announced)
    except ValueError as error:
        raise ProtocolError(f"the sender announces no proper transfer: {error}") from None
    try:
        answer = accept(Offered(qp.peer.address, qp.peer.name, qp.peer.identity, announced))
        if isawaitable(answer):
            begin = time.monotonic()
            answer = await _answered(session, answer, idle_seconds)
            seconds = time.monotonic() - begin
    except asyncio.CancelledError:  # the sender need not try again
        await session.say_last(Refuse("stopped", "the receiver was stopped"))
        raise
    except MrcError as error:
        await session.say_last(Refuse("stopped", error.told))
        raise
    if answer is False:
        await session.say_last(Refuse("stopped", "the user did not accept the files"))
        raise TransferError("the files were not accepted")
    return (announced if answer else None), seconds


async def _answered(session: TransferSession, answer: Awaitable[bool], idle_seconds: float) -> bool:
    asking = asyncio.ensure_future(answer)
    gone = asyncio.create_task(session.qp.until_closed())
    try:
        if session.qp.peer.private.get(TAKES_ASKING) is True:
            async with patience(session, idle_seconds):
                await session.say(ConsentQuestion())
        await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise TransferError("the sender did not wait for an answer")
        return asking.result()
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await cancelled(gone)


# ---- Sums over the QPs of a session --------------------------------------------------------------


_QP_SUMS = (
    "outstanding", "sent_packets", "retransmitted_packets", "spurious_packets", "first_sent_bytes",
    "acknowledged_bytes", "received_bytes", "cwnd_bytes", "inflight_bytes", "timeouts", "peer_mpr",
)  # fmt: skip
_PLANE_SUMS = (
    "sent_packets", "sent_bytes", "lost_packets", "received_packets", "received_bytes",
    "inflight_bytes", "cwnd_bytes",
)  # fmt: skip


def sum_of(infos: Sequence[QpInfo]) -> QpInfo:
    """Sums several QPs between the same hosts into one, with the QP number of the first."""
    planes: dict[int, list[PlaneInfo]] = {}
    for plane in (plane for info in infos for plane in info.planes):
        planes.setdefault(plane.plane, []).append(plane)
    sums = {name: sum(getattr(info, name) for info in infos) for name in _QP_SUMS}
    return replace(
        infos[0],
        **sums,
        rtt_ns=max(known(info.rtt_ns for info in infos), default=None),
        path_mtu=min(info.path_mtu for info in infos),
        planes=tuple(_plane_sum(parts) for _, parts in sorted(planes.items())),
    )


def _plane_sum(parts: Sequence[PlaneInfo]) -> PlaneInfo:
    sums = {name: sum(getattr(part, name) for part in parts) for name in _PLANE_SUMS}
    return replace(
        parts[0],
        **sums,
        rtt_ns=max(known(part.rtt_ns for part in parts), default=None),
        base_rtt_ns=min(known(part.base_rtt_ns for part in parts), default=None),
        suspended=all(part.suspended for part in parts),
        slow=all(part.slow for part in parts),
        share_percent=sum(part.share_percent for part in parts) // len(parts),
    )
