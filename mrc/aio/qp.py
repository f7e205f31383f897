# SPDX-License-Identifier: Apache-2.0
"""A connected QP: awaitable writes, immediates and events as streams, orderly close.

It is this host's end of the QP from INIT until it is destroyed: the exchange makes it and starts
it, the dispatcher brings its events.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mrc.aio.streams import ItemQueue, Journal, timed
from mrc.config import ContextConfig
from mrc.connect.dial import Rejoin
from mrc.connect.oob import Channel, Hello, Peer
from mrc.connect.pairs import Pairs
from mrc.connect.profiles import CcProfile, EvProfile
from mrc.engine.dispatch import Dispatcher
from mrc.engine.engine import Notice
from mrc.engine.memory import Part, Region, RemoteMemory
from mrc.engine.paths import PathEv
from mrc.engine.queue_pair import QueuePair
from mrc.engine.send_queue import Write
from mrc.enums import EventType, EvState, HeldBy, QpState, Seal, WcStatus
from mrc.errors import (
    CompletionError,
    Kind,
    MrcError,
    PathError,
    PathMtuError,
    PeerGoneError,
    QueueFullError,
    StateError,
    reason_of,
)
from mrc.events import (
    Ended,
    EventsLost,
    EvEvent,
    EvInfo,
    Immediate,
    PairInfo,
    PlaneEvent,
    PlaneInfo,
    PlaneShareEvent,
    PortEvent,
    ProbeResult,
    QpErrorEvent,
    QpEvent,
    QpInfo,
    known,
)
from mrc.tasks import Limit, cancelled, within
from mrc.units import digits

if TYPE_CHECKING:
    from mrc.messages.messages import MessagePeer

logger = logging.getLogger("mrc.qp")

_EVENTS_KEPT = 4096
_FREE_MESSAGES = 4  # TCP messages of the peer that are read without a pause; a QP needs fewer
_MESSAGE_PAUSE_SECONDS = 0.25
_LATE_SECONDS = 0.25  # that a busy host adds to the round trip of an answer
_LOOK_SECONDS = 1.0  # between two looks for packets that nothing answers
_IDLE_SECONDS = 8.0  # the longest pause between two looks at a QP that has nothing to do
_NAT_SECONDS = 15.0  # between packets of an idle QP; a NAT bears 30 s of silence or more
_LONGEST_PAUSE_SECONDS = 60.0  # between two proofs, of a peer that takes nothing for other reasons


class QP:
    """One QP, ready to send and receive: what `connect` and `accept` open.

    Any number of writes may be outstanding; writes beyond the depth of the send queue wait for a
    free place, in the order of the calls. If a write is cancelled or times out after the engine has
    taken it, the engine still carries it out. All calls come from the event loop of the Context.
    """

    _rejoin: Rejoin | None = None
    """Opens the connection to the peer again; None: the peer does, or nobody."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        queue: QueuePair,
        paths: Sequence[PathEv],
        channel: Channel,
        peer: Hello,
        config: ContextConfig,
        ev_profile: EvProfile,
        cc_profile: CcProfile,
        messages: MessagePeer | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._queue = queue
        self._paths = list(paths)  # of the EVs; others may join
        self._controller = ev_profile._control(dispatcher, queue, self._paths)
        self._channel = channel
        self._peer = peer
        self._config = config
        self._ev_profile = ev_profile
        self._cc_profile = cc_profile
        self._messages = messages
        """what carries messages over this QP; None: its user has the immediates"""
        self._path_mtu = 0
        self._window = 0  # PSNs that this end may have in flight
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        """by which side, and why"""
        self._peer_gone = False
        self._on_end: Callable[[QpInfo | None], None] | None = None
        """called before the QP is destroyed; the argument is None if its state cannot be read"""
        self._immediates: ItemQueue[Immediate] = ItemQueue(config.queues.max_unread)
        self._events: Journal[QpEvent] = Journal(_EVENTS_KEPT, EventsLost)
        self._failure: MrcError | None = None
        """why this end cannot go on, if it has found that out itself"""
        self._status: WcStatus | None = None
        self._bye_ok = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._mtu_watcher: asyncio.Task[None] | None = None
        self._rejoiner: asyncio.Task[None] | None = None
        self._pairs: Pairs | None = None
        """tries pairs of ports while the QP runs"""
        self._nat_keeper: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        self._sends = queue.sends
        dispatcher.attach(queue, self)
        if messages is not None:
            self._sends.stop(self._refusal)

    def __repr__(self) -> str:
        return f"<{self._called}, {self._queue.state.name}>"

    @property
    def _called(self) -> str:
        """In a line of text."""
        return f"QP {self._queue.qpn:#x} to {self.peer.host}"

    # ---- Properties -----------------------------------------------------------------------

    @property
    def qpn(self) -> int:
        """The local QP number."""
        return self._queue.qpn

    @property
    def peer(self) -> Peer:
        """The other side: its host, name and address, what it has proved, its private data."""
        return Peer._at(self._channel, self._peer.host, self._peer.private)

    @property
    def message_peer(self) -> int:
        """The number of the peer for messages; raises StateError without `messages=True`."""
        if self._messages is None:
            raise StateError(f"{self._called} carries no messages: connect it with messages=True")
        return self._messages.number

    @property
    def seal(self) -> Seal:
        """How the packets of this QP are sealed."""
        return self._queue.seal

    @property
    def path_mtu(self) -> int:
        """The largest payload of a packet on this QP, in bytes."""
        return self._path_mtu

    @property
    def mpr(self) -> int:
        """The window of this end: the most PSNs in flight."""
        return self._window

    @property
    def planes(self) -> tuple[int, ...]:
        """The planes that the EVs of this QP use, in order. Others may join while it runs."""
        return tuple(sorted({self._paths[index].attr.plane for index in self._controller.used}))

    @property
    def ev_profile(self) -> EvProfile:
        """The EV profile of this QP."""
        return self._ev_profile

    @property
    def cc_profile(self) -> CcProfile:
        """The CC profile of this QP."""
        return self._cc_profile

    @property
    def ended(self) -> Ended | None:
        """How the QP has ended: None while both sides are there. See `until_closed`."""
        return self._ended.result() if self._ended.done() else None

    async def until_closed(self) -> Ended:
        """Returns when either side has closed the QP, its process has ended, or the QP has failed;
        the result says by which side and the error, if any. Close this side then.
        """
        if not self._ended.done():
            self._dispatcher.check_open()
        return await asyncio.shield(self._ended)

    def _end_with(self, ended: Ended) -> None:
        """Only the first end counts."""
        if not self._ended.done():
            self._ended.set_result(ended)

    @property
    def closed(self) -> bool:
        """True once this end has begun to close the QP."""
        return self._closer is not None

    @property
    def _fault(self) -> str:
        """Why the engine has ended the QP, in words for the peer; "" unless it has."""
        return "" if self._status is None else f"its QP failed: {self._status.explanation}"

    @property
    def _may_wait(self) -> bool:
        """Whether work requests may be outstanding; only a query has those of messages."""
        return bool(self._sends.taken or self._messages)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(orderly=error is None, reason=reason_of(error))

    # ---- Writes ---------------------------------------------------------------------------

    async def write(
        self,
        src: Region | Part | None = None,
        dst: RemoteMemory | None = None,
        *,
        imm: int | None = None,
        redundant: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Writes `src` into the peer's memory, from the begin of `dst`; returns its bytes when the
        peer has all of them: `await qp.write(region[0:64], handle[128:])`.

        With `imm` the peer then gets this 32-bit number, by `immediates`: after the bytes of this
        and of all earlier writes, and in the order of posting. Without `src` there is only the
        number. Writes without `imm` may arrive in any order. The packets of a `redundant` write, of
        64 KiB at most, leave on two planes at once, and the first arrival counts: a lost packet
        delays it rarely, and it loads the planes twice.

        Raises ArgumentError or TypeError for a wrong argument, CompletionError when the write
        fails, PeerGoneError when the peer ends before it has answered, StateError when the QP or
        the region is closed, TimeoutError after `timeout` seconds.
        """
        if timeout is None:
            return await self._sends.post(src, dst, imm, redundant)
        async with within(timeout):
            return await self._sends.post(src, dst, imm, redundant)

    def post(
        self,
        src: Region | Part | None = None,
        dst: RemoteMemory | None = None,
        *,
        imm: int | None = None,
        redundant: bool = False,
    ) -> asyncio.Future[int]:
        """Starts a `write` and returns its future; writes beyond the depth of the send queue wait
        for their turn. A polled Context sends at once, without another turn of the event loop.
        """
        return self._sends.post(src, dst, imm, redundant)

    def post_many(self, writes: Iterable[Write]) -> asyncio.Future[int]:
        """Starts any number of writes and returns the future of their common completion.

        Its result is the sum of their bytes. If a write is wrong, this raises its error and starts
        none of them. The future raises the error of the first write that fails.
        """
        return self._sends.post_many(writes)

    def post_scattered(
        self,
        src: Region | Part,
        dst: RemoteMemory,
        *,
        length: int,
        src_offsets: Sequence[int],
        dst_offsets: Sequence[int],
    ) -> asyncio.Future[int]:
        """As `post_many`, for a write of `length` bytes at each pair of offsets, in bytes from the
        begin of `src` and `dst`.

        It costs a tenth of the time, because Python makes no object for a write.
        """
        return self._sends.post_scattered(src, dst, length, src_offsets, dst_offsets)

    def _refusal(self) -> MrcError:
        """Why the QP takes no writes, as an error to be raised."""
        try:
            self._dispatcher.check_open()
        except StateError as error:
            return error
        if self._status is not None:
            return CompletionError(self._status, f"{self._called} has failed")
        if self._failure is not None:
            return self._failure.anew()
        if self._closer is None and self._messages is not None:
            return StateError(
                f"{self._called} carries messages and nothing else: send them with Messages"
            )
        return StateError(f"{self._called} is closed")

    # ---- Streams --------------------------------------------------------------------------

    def immediates(self, *, timeout: float | None = None) -> AsyncIterator[Immediate]:
        """The peer's immediates, in the order in which the peer posted them: a queue.

        An immediate goes to one reader, once. A new iterator goes on where the others stopped.
        Ends when either side closes the QP. Raises CompletionError when the QP fails, PeerGoneError
        when the peer's process ends, or its side by an error, which is named; PathError when the
        peer has lost all paths, or the path MTU became smaller; ProtocolError when the peer breaks
        the exchange, QueueFullError when `Queues.max_unread` were unread, and
        TimeoutError when none arrives within `timeout` seconds.
        """
        return timed(self._immediates, timeout)

    def events(self, *, timeout: float | None = None) -> AsyncIterator[QpEvent]:
        """Events of the QP's EVs, planes and ports, and its failure, in order: a log.

        Every iterator starts with the first event of the QP and gets all, whatever others read; so
        call this once, and `anext` of the same iterator for each event. It ends when the QP fails
        or is closed. The QP keeps the newest 4096 events; an iterator that falls
        behind gets an EventsLost with the number of missed events. Raises TimeoutError when no
        event comes within `timeout` seconds.
        """
        return timed(self._events.reader(), timeout)

    # ---- State ----------------------------------------------------------------------------

    async def info(self) -> QpInfo:
        """A snapshot of the QP and its planes."""
        command, info = self._queue.query()
        await self._dispatcher.call(command, f"QP {self.qpn:#x}: query")
        return _qp_info(info, self.planes)

    async def evs(self) -> tuple[EvInfo, ...]:
        """A snapshot of every EV and its path."""
        used = self._controller.used
        command, infos = self._queue.query_evs(len(self._paths))
        count = await self._dispatcher.call(command, f"QP {self.qpn:#x}: query EVs")
        assert count > max(used)  # EVs may join meanwhile
        return tuple(_ev_info(i, self._paths[i], infos[i]) for i in used)

    async def pairs(self) -> tuple[PairInfo, ...]:
        """A snapshot of every port of this host with every port of the peer: whether they are a
        plane of this QP, and if not, why. A QP tries pairs until all interfaces have one.
        """
        assert self._pairs is not None  # which the exchange has made
        return await self._pairs.infos()

    async def probe_ev(self, ev: int, *, payload: int = 0, timeout: float = 0.25) -> ProbeResult:
        """Sends one EV probe, as large as a data packet of `payload` bytes (0: small).

        `timeout` is in seconds. Raises ArgumentError when there is no such EV or payload.
        """
        return await self._controller.probe(ev, payload, timeout)

    async def probe_evs(
        self,
        evs: Iterable[int | str] | None = None,
        *,
        payload: int = 0,
        timeout: float = 0.25,
        concurrency: int = 32,
    ) -> tuple[ProbeResult, ...]:
        """Sends a batch of EV probes, `concurrency` at a time, and returns one result for each.

        `evs` are indices, names of paths or patterns; None probes all. Each EV is probed once, in
        the given order. `payload` is in bytes (0: small probes), `timeout` in seconds per probe.
        """
        indices = self._controller.named(*evs) if evs is not None else self._controller.used
        return await self._controller.probe_all(indices, payload, timeout, concurrency)

    async def deny(self, *evs: int | str) -> tuple[int, ...]:
        """Denies EVs, by index, name of the path or pattern, until `allow`; returns their indices.

        The QP sends no more packets on a DENIED EV; packets in flight may still be acknowledged.
        A QP whose EVs are all DENIED fails as if it had lost all its paths. Raises ArgumentError
        when a name matches no EV.
        """
        return await self._controller.deny(*evs)

    async def allow(self, *evs: int | str) -> tuple[int, ...]:
        """Ends `deny`: DENIED EVs become GOOD; other EVs keep their state. Returns their indices.

        Raises StateError when the EV profile denies one of them.
        """
        return await self._controller.allow(*evs)

    async def set_ev_state(self, ev: int, state: EvState) -> None:
        """Sets an EV to DENIED, GOOD (ends DENIED) or ASSUMED_BAD (declares it lost)."""
        await self._controller.set_state(ev, state)

    async def set_mpr(self, mpr: int) -> None:
        """Narrows or widens the window, in PSNs, that this end grants the peer from now on.

        `mpr` is a multiple of 128, at most `Queues.mpr`, or at most 4096 if that is 0. Both
        sides must have set `dynamic_mpr`.
        """
        await self._dispatcher.call(self._queue.set_mpr(mpr), f"QP {self.qpn:#x}: set MPR")

    # ---- For the dispatcher ---------------------------------------------------------------

    def _on_immediate(self, immediate: Immediate) -> None:
        """The next immediate of the peer."""
        if self._immediates.full:
            # The peer must not be able to fill this host's memory.
            many = f"{self._config.queues.max_unread} immediates of {self.peer.host} are unread"
            self._immediates.finish(QueueFullError(f"{many}, the most allowed (max_unread)"))
        self._immediates.push(immediate)

    def _on_notice(self, notice: Notice) -> None:
        """A change of state."""
        plane, reason, at_ns = notice.port, notice.reason, notice.at_ns
        if notice.type is EventType.QP_ERROR:
            self._on_error(WcStatus(notice.status))
        elif notice.type is EventType.PLANE:
            self._look()
            self._events.push(PlaneEvent(plane, notice.status == 0, reason, at_ns))
        elif notice.type is EventType.PLANE_SHARE:
            slow, percent = notice.status == 0, notice.result
            self._look()
            self._events.push(PlaneShareEvent(plane, slow, percent, reason, at_ns))
        elif notice.type is EventType.PORT:
            self._events.push(PortEvent(plane, notice.status == 1, reason, at_ns))
        elif notice.type is EventType.EV_STATE:
            index, state = notice.ev_index, EvState(notice.status)
            path = self._paths[index]
            self._events.push(EvEvent(index, path.attr.plane, path.name, state, reason, at_ns))

    def _look(self) -> None:
        """A plane has changed: perhaps other pairs of ports are needed."""
        if self._pairs is not None:
            self._pairs.look()

    def _on_events_lost(self, count: int) -> None:
        """The engine lost events."""
        self._events.push(EventsLost(count))

    def _on_error(self, status: WcStatus) -> None:
        if self._closer or self._status is not None or self._failure:
            return  # we are closing the QP, or the error is already reported
        self._status = status
        self._queue.state = QpState.ERROR
        self._events.push(QpErrorEvent(status))
        self._events.finish()
        error = CompletionError(status, self._called)
        self._immediates.finish(error)
        self._sends.stop(self._refusal)
        self._end_with(Ended(False, error))

    def _fail(self, error: MrcError) -> None:
        """Ends the QP: this side has found out why it cannot go on. Its waiters get the error."""
        if self._closer is not None or self._status is not None:
            return
        logger.info("%s: %s", self._called, error)
        self._failure = error
        self._immediates.finish(error)
        self._end_with(Ended(False, error))
        self._sends.stop(self._refusal)
        self._sends.fail(error)
        self._closer = asyncio.get_running_loop().create_task(
            self._end(orderly=False, reason=str(error))
        )

    # ---- For the exchange -----------------------------------------------------------------

    def _start(self, path_mtu: int, window: int) -> None:
        """The QP is in RTS: starts to watch the TCP connection to the peer, and the path MTU."""
        self._path_mtu = path_mtu
        self._window = window
        loop = asyncio.get_running_loop()
        self._watcher = loop.create_task(self._watch())
        self._mtu_watcher = loop.create_task(self._watch_mtu())
        if self._pairs is not None:
            self._pairs.start()
        if self._paths[0].attr.sport == self._dispatcher.engine.udp_port:
            self._nat_keeper = loop.create_task(self._keep_nat())

    async def _watch(self) -> None:
        """Waits until the peer sends bye or closes the connection. Silence is no error."""
        channel, over = self._channel, self._bye_ok
        try:
            for count in itertools.count():
                if count >= _FREE_MESSAGES:
                    await asyncio.sleep(_MESSAGE_PAUSE_SECONDS)
                await self._on_message(await channel.receive())
        except MrcError as error:
            logger.debug("QP %#x: %s", self.qpn, error)
            await self._on_hangup(error)
        except OSError as error:
            self._on_tcp_lost(error)
        finally:
            over.set()

    async def _on_message(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "bye":
            await self._until_answered(self._config.timeouts.linger)
            self._on_gone(None)
            # So the peer ends its QP, when our work requests need no more answers.
            with suppress(TimeoutError):
                async with Limit(self._config.timeouts.linger):
                    await self._until_idle()
            await self._channel.send("bye_ok")
            await self._on_unanswered(PeerGoneError(f"{self.peer.host} closed the connection"))
        elif kind == "bye_ok":
            self._bye_ok.set()
        elif kind == "port" and self._pairs is not None:
            await self._pairs.on_peer_port(message)
        elif (ending := Channel.end_in(message)) is not None:
            why, reason = ending
            error = self._without_bye(reason)
            await self._on_ended(PathError(str(error)) if why is Kind.PATHS_LOST else error)

    async def _on_hangup(self, error: MrcError) -> None:
        """The connection has ended without a bye, or the peer broke the protocol."""
        await self._on_ended(self._without_bye() if isinstance(error, PeerGoneError) else error)

    def _on_tcp_lost(self, error: OSError) -> None:
        """TCP failed, for example timed out. The QP goes on: it only cannot notice a dead peer."""
        logger.info("QP %#x: the OOB connection is lost: %s", self.qpn, error)
        self._open_again()

    def _open_again(self) -> None:
        """The connection is lost, or leads nowhere any more."""
        if self._rejoin is None or self._closer is not None:
            return
        if self._rejoiner is None or self._rejoiner.done():
            self._rejoiner = asyncio.get_running_loop().create_task(self._reopen(self._rejoin))

    async def _reopen(self, rejoin: Rejoin) -> None:
        self._take_channel(await rejoin())

    def _take_channel(self, channel: Channel) -> None:
        """The connection to the peer was opened again, by the side that has connected."""
        channel.called = self._channel.called
        if self._watcher is not None:
            self._watcher.cancel()
        self._channel.hand_over(channel)
        self._channel = channel
        self._bye_ok = asyncio.Event()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        if self._pairs is not None:
            self._pairs.take_channel(channel)

    def _without_bye(self, reason: str = "") -> PeerGoneError:
        if reason:
            return PeerGoneError(f"{self.peer.host} ended the connection: {reason}")
        gone = "ended without closing the connection: was the process there stopped?"
        return PeerGoneError(f"{self.peer.host} {gone}")

    async def _until_answered(self, seconds: float) -> None:
        """Waits for the answers to all messages, at most this time.

        The end of the peer comes over TCP, which may be faster than the planes: what the peer has
        acknowledged before must complete. Writes of other QPs are not ended by it.
        """
        if self._messages is not None:
            with suppress(TimeoutError, StateError):
                async with Limit(seconds):
                    await self._messages.until_idle()

    async def _on_ended(self, error: MrcError) -> None:
        """The peer's QP is no more, but answers that it sent before may be on their way."""
        seconds = await self._late_seconds() if self._messages or self._sends.taken else 0
        await self._until_answered(seconds)
        self._on_gone(error)
        with suppress(TimeoutError):
            async with Limit(seconds):
                await self._sends.until_idle()
        await self._on_unanswered(error)

    async def _late_seconds(self) -> float:
        """As long as an answer of the peer may be on its way."""
        rtts: Iterable[int] = ()
        with suppress(TimeoutError, MrcError):
            async with within(_LATE_SECONDS):
                rtts = known(plane.rtt_ns for plane in (await self.info()).planes)
        return _LATE_SECONDS + 2 * max(rtts, default=0) / 1e9

    async def _on_unanswered(self, error: MrcError) -> None:
        """No more answers can come: work requests fail now, and not when the QP gives up."""
        if self._closer is not None or self._status is not None:
            return
        self._failure = self._failure or error  # the end of its connection follows a close
        self._sends.stop(self._refusal)
        self._sends.fail(self._failure)
        if self._sends.taken:
            with suppress(MrcError):
                await self._dispatcher.call(self._queue.to_error(), f"{self._called}: end")

    def _on_gone(self, error: MrcError | None) -> None:
        if self._peer_gone:
            return
        self._dispatcher.drain()  # immediates that the peer sent before it ended come first
        self._fail_messages()
        self._peer_gone = True
        self._end_with(Ended(True, error))
        self._immediates.finish(error)

    def _fail_messages(self) -> None:
        """The peer is gone."""
        if self._messages is not None:
            self._messages.fail()

    async def _until_idle(self) -> None:
        if self._messages is not None:
            await self._messages.until_idle()
        await self._sends.until_idle()

    # ---- A smaller MTU on the way -----------------------------------------------------------
    # When a link on the way gets a smaller MTU, small packets still pass, answers and probes too,
    # so the engine waits for better times: for ever. The paths are probed as in the exchange
    # (mrc.connect.proof): the QP fails only if some paths answer, and none of them carries
    # packets of the QP's size.

    async def _watch_mtu(self) -> None:
        """Runs as long as the QP; fails it with a PathMtuError."""
        before: QpInfo | None = None
        pause = _LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            if not self._may_wait:
                before, pause = None, _LOOK_SECONDS
                continue
            try:
                now = await self.info()
                if not now.outstanding:
                    before, pause = None, min(2 * pause, _IDLE_SECONDS)
                    continue
                if before is None or not _stuck_bytes(before, now):
                    before, pause = now, _LOOK_SECONDS
                    continue
                carried = await self._controller.carried(self.path_mtu)
                if 0 < carried < _stuck_bytes(before, await self.info()):
                    line = (
                        f"packets of {self.path_mtu} bytes no longer reach {self.peer.host}, only"
                        f" up to {carried}: a link on the way has a smaller MTU now; connect again"
                        " to use it"
                    )
                    self._fail(PathMtuError(line))
                    return
            except MrcError:  # the QP has ended or failed
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _keep_nat(self) -> None:
        """Runs as long as a QP whose packets pass a NAT, which forgets it after a silence."""
        while True:
            await asyncio.sleep(_NAT_SECONDS)
            with suppress(MrcError):
                await self._controller.probe(0, 0, _NAT_SECONDS)

    # ---- Close ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends the QP in order; outstanding writes fail with WR_FLUSH_ERR.

        The engine answers the peer's packets until the peer needs no more answers, for at most the
        configured `linger`. The peer needs this to complete its last writes.
        """
        await self._close(orderly=True)

    async def abort(self, reason: str = "") -> None:
        """Ends the QP at once and sends the peer the reason; without one, the peer gets the same as
        if this process had died. An exception that leaves `async with` is such a reason.
        """
        await self._close(orderly=False, reason=reason)

    async def _close(self, *, orderly: bool, reason: str = "") -> None:
        if self._dispatcher.gone:
            return  # in a child of fork the parent closes the QP; otherwise Context.close does
        if self._closer is None:
            if self._status is not None:
                orderly = False
                reason = reason or self._fault
            work = self._end(orderly=orderly and self._watcher is not None, reason=reason)
            self._closer = asyncio.get_running_loop().create_task(work)
            self._sends.stop(self._refusal)
        await asyncio.shield(self._closer)

    async def _end(self, *, orderly: bool, reason: str) -> None:
        self._end_with(Ended(False, None))
        self._immediates.finish()
        self._events.finish()
        self._controller.close()
        await cancelled(*filter(None, (self._mtu_watcher, self._nat_keeper)))
        if self._pairs is not None:
            await self._pairs.close()
        if self._rejoiner is not None:
            await cancelled(self._rejoiner)
        told = await self._say_bye() if orderly else await self._say_gone(reason)
        if self._watcher is not None:
            await cancelled(self._watcher)
        if self._on_end is not None:
            info = None
            with suppress(MrcError):
                info = await self.info()
            self._on_end(info)
        try:
            if self._messages is not None:
                self._messages.fail()
            await self._dispatcher.call(self._queue.destroy(), f"QP {self.qpn:#x}: destroy")
            if self._messages is not None:
                self._messages.forget()
            await self._until_idle()
        except StateError as error:
            logger.debug("QP %#x: %s", self.qpn, error)  # the Context ended first
        self._dispatcher.detach(self._queue)
        self._ev_profile.give_back()
        self._cc_profile.give_back()
        if told:
            await self._channel.close()
        else:
            self._channel.abort()

    async def _say_bye(self) -> bool:
        """Sends a bye; True if the peer got it."""
        linger = self._config.timeouts.linger
        said = False
        with suppress(TimeoutError, PeerGoneError):
            async with Limit(linger):
                if self._messages is not None:
                    await self._messages.until_idle()
                await self._channel.send("bye")
                said = True
                await self._bye_ok.wait()
        return said or await self._say_gone(f"messages were not taken within {digits(linger)} s")

    async def _say_gone(self, reason: str) -> bool:
        """Sends the peer why this end is no more; True if it got that. It may have gone before."""
        if not reason or self._peer_gone:
            return False
        return await self._send_gone(reason)

    async def _send_gone(self, reason: str) -> bool:
        with suppress(MrcError, OSError):
            lost = self._status is WcStatus.RETRY_EXC_ERR or isinstance(self._failure, PathError)
            kind = Kind.PATHS_LOST if lost else Kind.OTHER
            await self._channel.send_gone(reason, kind)
            return True
        return False


def _stuck_bytes(before: QpInfo, now: QpInfo) -> int:
    """The size of packets that wait for an answer, if none of them got one meanwhile; else 0."""
    waiting = before.first_sent_bytes - before.acknowledged_bytes
    size = min(waiting, now.path_mtu)  # the only packet that waits may be smaller than the others
    acknowledged = now.acknowledged_bytes - before.acknowledged_bytes
    return size if now.outstanding > 0 and acknowledged < size else 0


# ---- Snapshots ------------------------------------------------------------------------------


def _qp_info(info: Any, planes: Iterable[int]) -> QpInfo:
    """Converts a struct mrc_qp_info; `planes` are the planes of the QP."""
    names = [name for name in QpInfo.__struct_fields__ if name != "planes"]
    fields = {name: getattr(info, name) for name in names}
    fields["state"], fields["status"] = QpState(info.state), WcStatus(info.status)
    fields["rtt_ns"], fields["held_by"] = _rtt_ns(info.rtt_ns), HeldBy(info.held_by)
    return QpInfo(
        **fields, planes=tuple(_plane_info(plane, info.planes[plane - 1]) for plane in planes)
    )


def _plane_info(plane: int, info: Any) -> PlaneInfo:
    fields = {name: getattr(info, name) for name in PlaneInfo.__struct_fields__ if name != "plane"}
    fields |= {"suspended": bool(info.suspended), "slow": bool(info.slow)}
    fields |= {"rtt_ns": _rtt_ns(info.rtt_ns), "base_rtt_ns": _rtt_ns(info.base_rtt_ns)}
    return PlaneInfo(plane=plane, **fields)


def _ev_info(index: int, path: PathEv, info: Any) -> EvInfo:
    """Converts a struct mrc_ev_info; `path` is the EV's path."""
    return EvInfo(
        index=index,
        ev=info.ev,
        plane=info.plane,
        path=path.name,
        destination=str(path.attr.destination),
        usids=path.usids,
        segments=path.segments,
        state=EvState(info.state),
        active=bool(info.active),
        sent_packets=info.sent_packets,
        sent_bytes=info.sent_bytes,
        lost_packets=info.lost_packets,
        sent_probes=info.sent_probes,
        rtt_ns=_rtt_ns(info.rtt_ns),
    )


def _rtt_ns(value: int) -> int | None:
    """The engine reports -1 before the first sample."""
    return value if value >= 0 else None
