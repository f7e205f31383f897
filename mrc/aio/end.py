# SPDX-License-Identifier: Apache-2.0
"""This host's end of a QP, as the exchange and the dispatcher use it.

`mrc.aio.qp.QP` is the public interface over it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mrc.aio import stall
from mrc.aio.queries import qp_info
from mrc.config import ContextConfig
from mrc.connect.oob import GONE, REFUSE, Channel, Hello, kind_in, refusal_fields
from mrc.connect.parse import shown
from mrc.connect.profiles import CcProfile, EvController, EvProfile
from mrc.engine.dispatch import Dispatcher, Work
from mrc.engine.engine import Notice
from mrc.engine.queue_pair import QueuePair, Writes
from mrc.engine.streams import ItemQueue, Journal, SendQueue
from mrc.enums import EventType, EvState, QpState, WcOpcode, WcStatus
from mrc.errors import (
    CompletionError,
    Kind,
    MrcError,
    PathError,
    PeerGoneError,
    QueueFullError,
    StateError,
    anew,
)
from mrc.events import (
    Completion,
    EventsLost,
    EvEvent,
    Immediate,
    PlaneEvent,
    PlaneShareEvent,
    PortEvent,
    QpErrorEvent,
    QpEvent,
    QpInfo,
    known,
)
from mrc.fabric.paths import PathEv
from mrc.running import Limit
from mrc.tasks import cancelled
from mrc.units import digits

if TYPE_CHECKING:
    from mrc.messages.messages import MessagePeer

logger = logging.getLogger("mrc.qp")

_EVENTS_KEPT = 4096
_FREE_MESSAGES = 4  # TCP messages of the peer that are read without a pause; a QP needs fewer
_MESSAGE_PAUSE_SECONDS = 0.25
_LATE_SECONDS = 0.25  # that a busy host adds to the round trip of an answer


class End:
    """One end of a QP, from INIT until it is destroyed."""

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
        messages: MessagePeer | None = None,
    ) -> None:
        self.dispatcher = dispatcher
        self.queue = queue
        self.evs = tuple(evs)
        self.controller = EvController(dispatcher, queue, self.evs, ev_profile)
        self.channel = channel
        self.peer = peer
        self.ev_profile = ev_profile
        self.cc_profile = cc_profile
        self.messages = messages
        """what carries messages over this QP; None: its user has the immediates"""
        self.path_mtu = 0
        self.window = 0  # PSNs that this end may have in flight
        self.peer_gone = asyncio.Event()
        self._over = asyncio.Event()
        """set when the peer has gone, or this end has begun to close"""
        self.on_end: Callable[[QpInfo | None], None] | None = None
        """called before the QP is destroyed; the argument is None if its state cannot be read"""
        self.face: object = None
        """the caller's QP, kept alive by this reference while the dispatcher holds this end"""
        self.immediates: ItemQueue[Immediate] = ItemQueue(config.queues.max_unread)
        self.events: Journal[QpEvent] = Journal(_EVENTS_KEPT, EventsLost)
        self._config = config
        self._places = SendQueue(queue.sq_depth)
        self.failure: MrcError | None = None
        """why this end cannot go on, if it has found that out itself"""
        self._status: WcStatus | None = None
        self._bye_ok = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._stall: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        dispatcher.attach(queue.qpn, self)

    def __str__(self) -> str:
        return f"QP {self.queue.qpn:#x} to {self.peer_host}"

    @property
    def peer_host(self) -> str:
        """As `QP.peer_host`."""
        return self.channel.called or self.peer.called

    @property
    def planes(self) -> tuple[int, ...]:
        """The planes of the QP's EVs, in ascending order."""
        return tuple(sorted({ev.attr.port for ev in self.evs}))

    @property
    def closed(self) -> bool:
        """True once this end has begun to close the QP."""
        return self._closer is not None

    @property
    def fault(self) -> str:
        """Why the engine has ended the QP, as the peer is told; "" unless it has."""
        return "" if self._status is None else f"its QP failed: {self._status.explanation}"

    @property
    def may_wait(self) -> bool:
        """Whether work requests may be outstanding; only a query knows those of messages."""
        return bool(self._places.taken or self.messages)

    def check_open(self) -> None:
        """Raises the reason if the QP cannot send."""
        self.dispatcher.check_open()
        if self._status is not None:
            raise CompletionError(self._status, f"{self} has failed")
        if self.failure is not None:
            raise anew(self.failure)
        if self._closer is not None:
            raise StateError(f"{self} is closed")

    async def until_peer_gone(self) -> None:
        """As `QP.until_peer_gone`."""
        if not self.peer_gone.is_set():
            self.dispatcher.check_open()
            await self._over.wait()
        if not self.peer_gone.is_set():
            raise StateError(f"{self} is closed")

    # ---- Work requests --------------------------------------------------------------------

    def _check_may_write(self) -> None:
        """Raises the reason if the QP takes no work requests of its user."""
        self.check_open()
        if self.messages is not None:
            raise StateError(f"{self} carries messages and nothing else: send them with Messages")

    async def post_in_turn(self, write: Writes) -> Completion:
        """Waits for a free place in the send queue, posts, and returns the completion."""
        self._check_may_write()
        await self._places.take()
        return await self._post(write)

    def post(self, writes: Writes) -> asyncio.Future[Completion]:
        """Posts all at once, or raises an error and posts none."""
        self._check_may_write()
        if not self._places.take_free(writes.count):
            depth = self._places.count
            raise QueueFullError(
                f"{self}: free places in the send queue: {depth - self._places.taken} of {depth},"
                f" needed: {writes.count}: wait for completions"
            )
        return self._post(writes)

    def _post(self, writes: Writes) -> asyncio.Future[Completion]:
        """Posts with places already taken in the send queue. The completion frees them."""
        try:
            self.check_open()
        except BaseException:
            self._places.give(writes.count)
            raise
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        if writes.count:
            self.dispatcher.post(Work(self.queue, self._places, writes, done))
        else:
            none = Completion(writes.wr_id, writes.qpn, 0, WcStatus.SUCCESS, WcOpcode.WRITE)
            done.set_result(none)
        return done

    async def query(self) -> QpInfo:
        """A snapshot of the QP and its planes."""
        command, info = self.queue.query()
        await self.dispatcher.call(command, f"QP {self.queue.qpn:#x}: query")
        return qp_info(info, self.planes)

    # ---- For the dispatcher ---------------------------------------------------------------

    def on_immediate(self, immediate: Immediate) -> None:
        """The next immediate of the peer."""
        if self.immediates.full:
            # The peer must not be able to fill this host's memory.
            many = f"{self._config.queues.max_unread} immediates of {self.peer_host} are unread"
            self.immediates.finish(QueueFullError(f"{many}, the most allowed (max_unread)"))
        self.immediates.push(immediate)

    def on_notice(self, notice: Notice) -> None:
        """A change of state."""
        plane, reason, at_ns = notice.port, notice.reason, notice.at_ns
        if notice.type is EventType.QP_ERROR:
            self._on_error(WcStatus(notice.status))
        elif notice.type is EventType.PLANE:
            self.events.push(PlaneEvent(plane, notice.status == 0, reason, at_ns))
        elif notice.type is EventType.PLANE_SHARE:
            slow, percent = notice.status == 0, notice.result
            self.events.push(PlaneShareEvent(plane, slow, percent, reason, at_ns))
        elif notice.type is EventType.PORT:
            self.events.push(PortEvent(plane, notice.status == 1, reason, at_ns))
        elif notice.type is EventType.EV_STATE:
            index, ev, state = notice.ev_index, self.evs[notice.ev_index], EvState(notice.status)
            self.events.push(EvEvent(index, ev.attr.port, ev.name, state, reason, at_ns))

    def on_lost(self, count: int) -> None:
        """The engine lost events."""
        self.events.push(EventsLost(count))

    def _on_error(self, status: WcStatus) -> None:
        if self._closer or self._status is not None or self.failure:
            return  # we are closing the QP, or the error is already reported
        self._status = status
        self.queue.state = QpState.ERROR
        self.events.push(QpErrorEvent(status))
        self.events.finish()
        self.immediates.finish(CompletionError(status, str(self)))

    def fail(self, error: MrcError) -> None:
        """Ends the QP: this side has found out why it cannot go on. Its waiters get the error."""
        if self._closer is not None or self._status is not None:
            return
        logger.info("%s: %s", self, error)
        self.failure = error
        self.immediates.finish(error)
        self.dispatcher.fail_works(self.queue, error)
        self._closer = asyncio.get_running_loop().create_task(
            self._end(orderly=False, reason=str(error))
        )

    # ---- For the exchange -----------------------------------------------------------------

    def start(self, path_mtu: int, window: int) -> None:
        """The QP is in RTS: starts to watch the TCP connection to the peer."""
        self.path_mtu = path_mtu
        self.window = window
        loop = asyncio.get_running_loop()
        self._watcher = loop.create_task(self._watch())
        self._stall = loop.create_task(stall.watch(self))

    async def _watch(self) -> None:
        """Waits until the peer sends bye or closes the connection. Silence is no error."""
        try:
            for count in itertools.count():
                if count >= _FREE_MESSAGES:
                    await asyncio.sleep(_MESSAGE_PAUSE_SECONDS)
                await self._on_message(await self.channel.receive())
        except MrcError as error:
            logger.debug("QP %#x: %s", self.queue.qpn, error)
            await self._on_hangup(error)
        except OSError as error:
            self._on_lost(error)
        finally:
            self._bye_ok.set()

    async def _on_message(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "bye":
            await self._until_answered(self._config.timeouts.linger)
            self._on_gone(None)
            await self._answer_bye()
            await self._on_unanswered(PeerGoneError(f"{self.peer_host} closed the connection"))
        elif kind == "bye_ok":
            self._bye_ok.set()
        elif kind in (GONE, REFUSE):
            why = kind_in(message)
            reason = "" if why is Kind.ENDED else shown(message.get("reason", ""))
            error = self._without_bye(reason)
            await self._on_ended(PathError(str(error)) if why is Kind.PATHS_LOST else error)

    async def _on_hangup(self, error: MrcError) -> None:
        """The connection has ended without a bye, or the peer broke the protocol."""
        await self._on_ended(self._without_bye() if isinstance(error, PeerGoneError) else error)

    def _on_lost(self, error: OSError) -> None:
        """TCP failed, for example timed out. The QP goes on: it only cannot notice a dead peer."""
        logger.info("QP %#x: the OOB connection is lost: %s", self.queue.qpn, error)

    def _without_bye(self, reason: str = "") -> PeerGoneError:
        if reason:
            return PeerGoneError(f"{self.peer_host} ended the connection: {reason}")
        gone = "ended without closing the connection: was the process there stopped?"
        return PeerGoneError(f"{self.peer_host} {gone}")

    async def _until_answered(self, seconds: float) -> None:
        """Waits for the answers to all messages, at most this time.

        The end of the peer comes over TCP, which may be faster than the planes: what the peer has
        acknowledged before must complete. Writes of other QPs are not ended by it.
        """
        if self.messages is not None:
            with suppress(TimeoutError, StateError):
                async with Limit(seconds):
                    await self.messages.until_idle()

    async def _on_ended(self, error: MrcError) -> None:
        """The peer's QP is no more, but answers that it sent before may be on their way."""
        seconds = await self._late_seconds() if self.messages or self._places.taken else 0
        await self._until_answered(seconds)
        self._on_gone(error)
        with suppress(TimeoutError):
            async with Limit(seconds):
                await self._places.until_free()
        await self._on_unanswered(error)

    async def _late_seconds(self) -> float:
        """As long as an answer of the peer may be on its way."""
        rtts: Iterable[int] = ()
        with suppress(TimeoutError, MrcError):
            async with asyncio.timeout(_LATE_SECONDS):
                rtts = known(plane.rtt_ns for plane in (await self.query()).planes)
        return _LATE_SECONDS + 2 * max(rtts, default=0) / 1e9

    async def _on_unanswered(self, error: MrcError) -> None:
        """No more answers can come: work requests fail now, and not when the QP gives up."""
        if self._closer is not None or self._status is not None:
            return
        self.failure = self.failure or error  # the end of its connection follows a close
        self.dispatcher.fail_works(self.queue, self.failure)
        if self._places.taken:
            with suppress(MrcError):
                await self.dispatcher.call(self.queue.to_error(), f"{self}: end")

    def _on_gone(self, error: MrcError | None) -> None:
        if self.peer_gone.is_set():
            return
        self.dispatcher.drain()  # immediates that the peer sent before it ended come first
        self._fail_messages()
        self.peer_gone.set()
        self._over.set()
        self.immediates.finish(error)

    def _fail_messages(self) -> None:
        """The peer is gone."""
        if self.messages is not None:
            self.messages.fail()

    async def _answer_bye(self) -> None:
        """Sends bye_ok, so the peer ends its QP, when our work requests need no more answers."""
        with suppress(TimeoutError):
            async with Limit(self._config.timeouts.linger):
                await self._until_idle()
        await self.channel.send("bye_ok")

    async def _until_idle(self) -> None:
        if self.messages is not None:
            await self.messages.until_idle()
        await self._places.until_free()

    # ---- Close ----------------------------------------------------------------------------

    async def close(self, *, orderly: bool, reason: str = "") -> None:
        """As `QP.close`, or `QP.abort`, whose `reason` the peer is told."""
        if self.dispatcher.gone:
            return  # in a child of fork the parent closes the QP; otherwise Context.close does
        if self._closer is None:
            if self._status is not None:
                orderly = False
                reason = reason or self.fault
            work = self._end(orderly=orderly and self._watcher is not None, reason=reason)
            self._closer = asyncio.get_running_loop().create_task(work)
        await asyncio.shield(self._closer)

    async def _end(self, *, orderly: bool, reason: str) -> None:
        self._over.set()
        self.immediates.finish()
        self.events.finish()
        self.controller.close()
        if self._stall is not None:
            await cancelled(self._stall)
        told = await self._say_bye() if orderly else await self.say_gone(reason)
        if self._watcher is not None:
            await cancelled(self._watcher)
        await self._tell_end()
        try:
            if self.messages is not None:
                self.messages.fail()
            await self.dispatcher.call(self.queue.destroy(), f"QP {self.queue.qpn:#x}: destroy")
            if self.messages is not None:
                self.messages.forget()
            await self._until_idle()
        except StateError as error:
            logger.debug("QP %#x: %s", self.queue.qpn, error)  # the Context ended first
        self.dispatcher.detach(self.queue.qpn)
        self.ev_profile.give_back()
        self.cc_profile.give_back()
        if told:
            await self.channel.close()
        else:
            self.channel.abort()

    async def _tell_end(self) -> None:
        if self.on_end is not None:
            info = None
            with suppress(MrcError):
                info = await self.query()
            self.on_end(info)

    async def _say_bye(self) -> bool:
        """Tells the peer that this end closes; True if it was told."""
        linger = self._config.timeouts.linger
        said = False
        with suppress(TimeoutError, PeerGoneError):
            async with Limit(linger):
                if self.messages is not None:
                    await self.messages.until_idle()
                await self.channel.send("bye")
                said = True
                await self._bye_ok.wait()
        return said or await self.say_gone(f"messages were not taken within {digits(linger)} s")

    async def say_gone(self, reason: str) -> bool:
        """Tells the peer why this end is no more; True if it was told. It may have gone before."""
        if not reason or self.peer_gone.is_set():
            return False
        return await self._send_gone(reason)

    async def _send_gone(self, reason: str) -> bool:
        with suppress(MrcError, OSError):
            lost = self._status is WcStatus.RETRY_EXC_ERR or isinstance(self.failure, PathError)
            kind = Kind.PATHS_LOST if lost else Kind.OTHER
            await self.channel.send(GONE, **refusal_fields(reason, kind))
            return True
        return False
