# SPDX-License-Identifier: Apache-2.0
"""A connected QP: awaitable writes, immediates and events as streams, orderly close."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from mrc.aio.queries import ev_info, qp_info
from mrc.binding.device import Notice
from mrc.binding.verbs import MR, QueuePair, RemoteMemory, WorkRequest
from mrc.config import ContextConfig
from mrc.control.controller import EvController
from mrc.control.profiles import CcProfile, EvProfile
from mrc.datapath.dispatch import Dispatcher, Work
from mrc.datapath.stream import Journal, Places, Stream
from mrc.enums import EventType, EvState, QpState, WcStatus
from mrc.errors import (
    ArgumentError,
    CompletionError,
    MrcError,
    PeerGoneError,
    QueueFullError,
    StateError,
)
from mrc.events import (
    Completion,
    EventsLost,
    EvEvent,
    EvInfo,
    Immediate,
    PlaneEvent,
    PlaneShareEvent,
    PortEvent,
    ProbeResult,
    QpErrorEvent,
    QpEvent,
    QpInfo,
)
from mrc.exchange.oob import Channel, Hello
from mrc.fabric.paths import PathEv

logger = logging.getLogger("mrc.qp")

_EVENTS_KEPT = 4096
_FREE_MESSAGES = 4  # of the peer over TCP, more than an end needs; a pause follows each later one
_MESSAGE_PAUSE_SECONDS = 0.25


class QP:
    """One QP, ready to send and receive. An async context manager that closes it.

    Any number of writes may be under way: those beyond the depth of the send queue wait their turn
    here. A write that is cancelled still takes place if the engine has it already.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        queue: QueuePair,
        evs: Sequence[PathEv],
        channel: Channel,
        peer: Hello,
        config: ContextConfig,
        ev_profile: EvProfile,
        cc_profile: CcProfile,
    ) -> None:
        self.peer_host = peer.host
        self.private = peer.private
        self.ev_profile = ev_profile
        self.cc_profile = cc_profile
        self.path_mtu = 0
        self.mpr = 0  # PSNs that this end may have under way
        self.peer_gone = asyncio.Event()
        self.on_end: Callable[[QP, QpInfo | None], None] | None = None  # before it is destroyed
        self._dispatcher = dispatcher
        self._queue = queue
        self._evs = tuple(evs)
        self._controller = EvController(dispatcher, queue, self._evs, ev_profile)
        self._channel = channel
        self._config = config
        self._places = Places(queue.sq_depth)
        self._immediates: Stream[Immediate] = Stream(config.max_unread)
        self._events: Journal[QpEvent] = Journal(_EVENTS_KEPT, EventsLost)
        self._status: WcStatus | None = None
        self._bye_ok = asyncio.Event()
        self._idle = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        dispatcher.attach(queue.qpn, self)

    def __repr__(self) -> str:
        return f"<QP {self.qpn:#x} to {self.peer_host}, {self._queue.state.name}>"

    @property
    def peer_address(self) -> str:
        """The address of the peer on the TCP connection of the exchange."""
        return self._channel.remote

    @property
    def qpn(self) -> int:
        """The local QP number."""
        return self._queue.qpn

    @property
    def planes(self) -> tuple[int, ...]:
        """The planes that the EVs of this QP use, in order."""
        return tuple(sorted({ev.attr.port for ev in self._evs}))

    @property
    def closed(self) -> bool:
        """Whether this end has begun to close it."""
        return self._closer is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()

    # ---- Writes ---------------------------------------------------------------------------

    async def write(
        self,
        mr: MR,
        remote: RemoteMemory,
        *,
        length: int | None = None,
        local_offset: int = 0,
        remote_offset: int = 0,
    ) -> Completion:
        """Writes a range of `mr` into the peer's memory; returns when the peer has all of it.

        `length` defaults to the rest of `mr`. Raises CompletionError when it fails.
        """
        request = self._request(mr, remote, length, local_offset, remote_offset)
        return await self._post_in_turn(request, mr)

    async def write_imm(
        self,
        imm: int,
        mr: MR | None = None,
        remote: RemoteMemory | None = None,
        *,
        length: int | None = None,
        local_offset: int = 0,
        remote_offset: int = 0,
    ) -> Completion:
        """As `write`, and the peer gets the 32-bit `imm`, in order. Without `mr`: no bytes."""
        request = self._request(mr, remote, length, local_offset, remote_offset, imm)
        return await self._post_in_turn(request, mr)

    def post(
        self,
        mr: MR | None = None,
        remote: RemoteMemory | None = None,
        *,
        imm: int | None = None,
        length: int | None = None,
        local_offset: int = 0,
        remote_offset: int = 0,
    ) -> asyncio.Future[Completion]:
        """Starts a `write`, or with `imm` a `write_imm`, and returns the future of its completion.

        Without a task in between, a polled context sends it before this returns. Raises
        QueueFullError where the others wait for a place in the send queue.
        """
        request = self._request(mr, remote, length, local_offset, remote_offset, imm)
        self._check_open()
        if not self._places.take_free():
            raise QueueFullError(f"QP {self.qpn:#x}: all {self._queue.sq_depth} places are taken")
        return self._post(request, mr)

    def _request(
        self,
        mr: MR | None,
        remote: RemoteMemory | None,
        length: int | None,
        local_offset: int,
        remote_offset: int,
        imm: int | None = None,
    ) -> WorkRequest:
        if mr is None or remote is None:
            if mr is not None or remote is not None or length or imm is None:
                raise ArgumentError("mr, remote: needed both, or neither for an imm without bytes")
            return WorkRequest(self._queue.qpn, self._dispatcher.next_id(), imm=imm)
        if length is None:
            length = mr.length - local_offset
        return WorkRequest(
            self._queue.qpn,
            self._dispatcher.next_id(),
            length,
            mr.range(local_offset, length),
            mr.key,
            remote.range(remote_offset, length),
            remote.rkey,
            imm,
        )

    async def _post_in_turn(self, request: WorkRequest, mr: MR | None) -> Completion:
        self._check_open()
        await self._places.take()
        return await self._post(request, mr)

    def _post(self, request: WorkRequest, mr: MR | None) -> asyncio.Future[Completion]:
        """Posts with a place that was taken; it is given back with the completion."""
        try:
            self._check_open()
            self._queue.post(request)
        except BaseException:
            self._places.give()
            raise
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._dispatcher.post(request, Work(self._queue, self._places, self._idle, mr, done))
        return done

    def _check_open(self) -> None:
        self._dispatcher.check_open()
        if self._status is not None:
            raise CompletionError(self._status, f"QP {self.qpn:#x} to {self.peer_host} has failed")
        if self._closer is not None:
            raise StateError(f"QP {self.qpn:#x} to {self.peer_host} is closed")

    # ---- Streams --------------------------------------------------------------------------

    def immediates(self) -> AsyncIterator[Immediate]:
        """The peer's immediates, in the order of their posting.

        Ends when either side closes the QP; raises CompletionError when the QP fails, PeerGoneError
        when the peer's process ends, QueueFullError when too many were left unread.
        """
        return self._immediates.__aiter__()

    def events(self) -> AsyncIterator[QpEvent]:
        """What happened to EVs, planes, ports and at last to the QP, in order.

        Every iterator begins with the QP and has a place of its own; it ends when the QP fails or
        is closed. The newest 4096 events are kept, and one that falls behind them is told by an
        EventsLost how many it missed.
        """
        return self._events.reader()

    def on_immediate(self, immediate: Immediate) -> None:
        """For the dispatcher: the next immediate of the peer."""
        if self._immediates.full:
            # The peer must not be able to fill this host's memory.
            limit = f"{self._config.max_unread} immediates of {self.peer_host} were left unread"
            self._immediates.finish(QueueFullError(limit))
        self._immediates.push(immediate)

    def on_notice(self, notice: Notice) -> None:
        """For the dispatcher: a change of state."""
        if notice.type is EventType.QP_ERROR:
            self._on_error(WcStatus(notice.status))
            return
        plane, reason, at_ns = notice.port, notice.reason, notice.at_ns
        if notice.type is EventType.PLANE:
            self._events.push(PlaneEvent(plane, notice.status == 0, reason, at_ns))
        elif notice.type is EventType.PLANE_SHARE:
            slow, percent = notice.status == 0, notice.result
            self._events.push(PlaneShareEvent(plane, slow, percent, reason, at_ns))
        elif notice.type is EventType.PORT:
            self._events.push(PortEvent(plane, notice.status == 1, reason, at_ns))
        elif notice.type is EventType.EV_STATE:
            index, ev, state = notice.ev_index, self._evs[notice.ev_index], EvState(notice.status)
            self._events.push(EvEvent(index, ev.attr.port, ev.name, state, reason, at_ns))

    def on_lost(self, count: int) -> None:
        """For the dispatcher: the engine lost events."""
        self._events.push(EventsLost(count))

    def _on_error(self, status: WcStatus) -> None:
        if self._closer is not None or self._status is not None:
            return  # our own doing
        self._status = status
        self._queue.state = QpState.ERROR
        self._events.push(QpErrorEvent(status))
        self._events.finish()
        what = f"QP {self.qpn:#x} to {self.peer_host}"
        self._immediates.finish(CompletionError(status, what))

    # ---- State ----------------------------------------------------------------------------

    async def query(self) -> QpInfo:
        """A snapshot of the QP and its planes."""
        command, info = self._queue.query()
        await self._dispatcher.call(command, f"QP {self.qpn:#x}: query")
        return qp_info(info, self.planes)

    async def evs(self) -> tuple[EvInfo, ...]:
        """A snapshot of every EV, with the path that it names."""
        command, infos = self._queue.query_evs(len(self._evs))
        count = await self._dispatcher.call(command, f"QP {self.qpn:#x}: query EVs")
        assert count == len(self._evs)
        return tuple(ev_info(i, ev, infos[i]) for i, ev in enumerate(self._evs))

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
        the order given. `payload` is in bytes (0: small probes), `timeout` in seconds for each.
        """
        indices = self._controller.named(*evs) if evs is not None else range(len(self._evs))
        return await self._controller.probe_all(indices, payload, timeout, concurrency)

    async def deny(self, *evs: int | str) -> tuple[int, ...]:
        """Denies EVs, by index, name of the path or pattern, until `allow`; returns their indices.

        Nothing more is sent on a DENIED EV; what was sent may still be acknowledged. A QP of which
        every EV is denied fails like one that lost all its paths. Raises ArgumentError when a name
        fits no EV.
        """
        return await self._controller.deny(*evs)

    async def allow(self, *evs: int | str) -> tuple[int, ...]:
        """Takes `deny` back: the EVs are GOOD again. Raises StateError when the profile denies one.

        Those that were not denied stay as they are.
        """
        return await self._controller.allow(*evs)

    async def set_ev_state(self, ev: int, state: EvState) -> None:
        """Denies an EV (DENIED), lifts that (GOOD), or declares it lost (ASSUMED_BAD)."""
        await self._controller.set_state(ev, state)

    async def set_mpr(self, mpr: int) -> None:
        """Narrows or widens the window, in PSNs, that the peer may use from now on.

        A multiple of 128, up to `ContextConfig.mpr`, or to 4096 where that is 0; both sides must
        have `dynamic_mpr` set.
        """
        await self._dispatcher.call(self._queue.set_mpr(mpr), f"QP {self.qpn:#x}: set MPR")

    # ---- The peer's end -------------------------------------------------------------------

    async def deny_at_start(self) -> tuple[int, ...]:
        """For the exchange: the EVs are set; denies those of the profile, returns what is left."""
        return await self._controller.start()

    async def hold_back(self, evs: Sequence[int]) -> None:
        """For the exchange: nothing is sent on EVs to addresses that have not answered."""
        await self._controller.hold_back(evs)

    def give_up(self) -> None:
        """For the exchange: it failed, and the QP with it."""
        self._controller.close()

    def start(self, path_mtu: int, mpr: int) -> None:
        """For the exchange: the QP is RTS, from now on the peer's end of TCP is watched."""
        self.path_mtu = path_mtu
        self.mpr = mpr
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """Waits for the peer to say bye, or to vanish. Silence means nothing."""
        try:
            for count in itertools.count():
                if count >= _FREE_MESSAGES:
                    await asyncio.sleep(_MESSAGE_PAUSE_SECONDS)
                message = await self._channel.receive()
                if message["type"] == "bye":
                    self._on_gone(None)
                    await self._answer_bye()
                elif message["type"] == "bye_ok":
                    self._bye_ok.set()
        except (PeerGoneError, MrcError) as error:
            logger.debug("QP %#x: %s", self.qpn, error)
            gone = f"{self.peer_host} ended without closing the QP: was the process there stopped?"
            self._on_gone(PeerGoneError(gone))
        except OSError as error:
            # The network of the exchange failed, for example by a TCP timeout: only a hint is lost.
            logger.info("QP %#x: the OOB connection is lost: %s", self.qpn, error)
        finally:
            self._bye_ok.set()

    def _on_gone(self, error: PeerGoneError | None) -> None:
        self._dispatcher.drain()  # what the peer completed before it went is there already
        self.peer_gone.set()
        self._immediates.finish(error)

    async def _answer_bye(self) -> None:
        """Lets the peer end its QP as soon as ours needs no more answers from it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.linger):
                await self._until_idle()
        await self._channel.send("bye_ok")

    async def _until_idle(self) -> None:
        while self._queue.outstanding:
            self._idle.clear()
            await self._idle.wait()

    # ---- Close ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends the QP in order; writes still under way end with WR_FLUSH_ERR.

        The engine keeps answering until the peer needs no more answers, for at most the configured
        `linger`: a peer whose last write just completed here must learn that it did.
        """
        await self._close(orderly=True)

    async def abort(self) -> None:
        """Ends the QP at once; to the peer it looks as if this process had died."""
        await self._close(orderly=False)

    async def _close(self, *, orderly: bool) -> None:
        if self._dispatcher.gone:
            return  # the parent of a child of fork closes it, or the end of the Context
        if self._closer is None:
            orderly = orderly and self._status is None and self._watcher is not None
            work = self._end(orderly=orderly)
            self._closer = asyncio.get_running_loop().create_task(work)
        await asyncio.shield(self._closer)

    async def _end(self, *, orderly: bool) -> None:
        self._immediates.finish()
        self._events.finish()
        self._controller.close()
        if orderly:
            await self._say_bye()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._tell_end()
        try:
            await self._dispatcher.call(self._queue.destroy(), f"QP {self.qpn:#x}: destroy")
            await self._until_idle()
        except StateError as error:
            logger.debug("QP %#x: %s", self.qpn, error)  # the Context ended first
        self._dispatcher.detach(self.qpn)
        self.ev_profile.give_back()
        self.cc_profile.give_back()
        if orderly:
            await self._channel.close()
        else:
            self._channel.abort()

    async def _tell_end(self) -> None:
        if self.on_end is not None:
            info = None
            with suppress(MrcError):
                info = await self.query()
            self.on_end(self, info)

    async def _say_bye(self) -> None:
        with suppress(TimeoutError, PeerGoneError):
            async with asyncio.timeout(self._config.linger):
                await self._channel.send("bye")
                await self._bye_ok.wait()
