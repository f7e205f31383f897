# SPDX-License-Identifier: Apache-2.0
"""The way of a call to the engine, and of its events back to who waits for them.

1. `call` and `probe` queue a command with a future, under its cookie; `send` those of send queues.
2. What one turn of the event loop has queued goes to the engine in one call. Only a polled engine
   gets the first command at once, and runs.
3. The engine's descriptor wakes the event loop, which takes a batch of events.
4. Each event goes to its future, its QP, or the space of its messages.
5. The event loop sleeps, unless a polled engine has work.

If a caller is cancelled, its command or work request continues in C. Its entry stays here and keeps
the memory alive until the reply or the completion. The functions stand in the order of the stages;
then come the memory regions that the engine holds, and the end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import select
import threading
from collections import deque
from concurrent.futures import Future
from typing import Protocol
from weakref import WeakSet

from msgspec import Struct

from mrc.engine.engine import (
    AnyEngine,
    EngineEvent,
    EventLoss,
    ImmediateEvent,
    Notice,
    ProbeReply,
    Reply,
    Written,
    region_deregister,
    region_register,
)
from mrc.engine.memory import Region
from mrc.engine.native import FORKED, POLL_BATCH, SUBMIT_BATCH, Command, Submission, check
from mrc.engine.queue_pair import QueuePair
from mrc.engine.send_queue import SendQueue
from mrc.enums import WarningKind, WcStatus
from mrc.errors import CompletionError, MrcError, StateError
from mrc.events import Completion, ContextWarning, Immediate, ProbeResult

logger = logging.getLogger("mrc.dispatch")

_TURNS_TO_REPLY = 2  # turns of the event loop until a task can post in reaction to an event
_AGAIN_SECONDS = 0.01  # after memory was short


class EventReceiver(Protocol):
    """Receiver of the events of one QP."""

    def _on_immediate(self, immediate: Immediate) -> None:
        """The peer's next immediate."""

    def _on_notice(self, notice: Notice) -> None:
        """A change of state of the QP, an EV, a plane or a port."""

    def _on_events_lost(self, count: int) -> None:
        """The engine lost `count` events, of any QP, at this point."""


class MessageReceiver(Protocol):
    """Receiver of the completions of messages, which have a ring of their own."""

    def take(self) -> None:
        """Gives each that has come to who waits for it."""

    def on_end(self) -> None:
        """The Context is closed: no operation will end any more."""


class _Call(Struct):
    """A command without its reply yet; `command` keeps its memory alive until the reply."""

    what: str
    command: Command
    reply: asyncio.Future[int]
    probe: asyncio.Future[ProbeResult] | None = None

    def fail(self, cause: str) -> None:
        """Ends the call with a StateError for its waiter, if there is one."""
        for future in (self.reply, self.probe):
            if future is not None and not future.done():
                future.set_exception(StateError(f"{self.what}: {cause}"))
                future.exception()  # without a waiter asyncio would log the error


class Dispatcher:
    """Owns an engine of a Context while the event loop runs. Cookies count from `first_cookie`."""

    def __init__(self, engine: AnyEngine, first_cookie: int = 1) -> None:
        self.engine = engine
        self.warnings: deque[ContextWarning] = deque(maxlen=64)
        self.loop = asyncio.get_running_loop()
        """the event loop that opened the Context; all calls must come from it"""
        self.next_id = itertools.count(first_cookie).__next__
        """gives a unique number for a command or work request"""
        self._outgoing: deque[Submission] = deque()
        self._flush_due = False
        self._events_came = False  # when the first command of this turn ran the datapath
        self._turn_due = False
        self._calls: dict[int, _Call] = {}
        self._sends: dict[int, SendQueue] = {}  # by the upper half of their cookies
        self._receivers: dict[int, EventReceiver] = {}
        self._regions: dict[int, Region] = {}
        self.recording: object = None  # the datapath writes there
        self._events: deque[EngineEvent] = deque()
        self._written: list[int] = []  # cookies, the next one last
        self.messages: MessageReceiver | None = None
        """since a space of messages was opened"""
        self.closed = False
        """True when no call is possible any more"""
        self.forked = False
        """True in a child of fork: Context, sockets and event loop belong to the parent"""
        _opened.add(self)
        self.loop.add_reader(engine.fd, self._on_readable)

    # ---- 1. A call is queued --------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """True when calls are impossible: in a child of fork, or after the event loop's end."""
        return self.forked or self.loop.is_closed()

    def check_open(self) -> None:
        """Raises a StateError with the reason if calls are impossible."""
        if self.forked:
            raise StateError(FORKED)
        if self.closed:
            raise StateError("the Context is closed")
        if self.loop.is_closed():
            raise StateError("the Context is unusable: its event loop has ended: open another one")

    def call(self, command: Command, what: str) -> asyncio.Future[int]:
        """Queues a command; the future gets its result, or an exception for its errno."""
        return self._enqueue(_Call(what, command, self.loop.create_future())).reply

    async def probe(self, command: Command, what: str) -> ProbeResult:
        """Queues an EV probe and returns its result."""
        call = _Call(what, command, self.loop.create_future(), self.loop.create_future())
        self._enqueue(call)
        assert call.probe is not None
        await call.reply
        return await call.probe

    def _enqueue(self, call: _Call) -> _Call:
        self.check_open()
        cookie = self.next_id()
        call.command.answer_to(cookie)
        self._calls[cookie] = call
        self.send(call.command)
        return call

    def run_soon(self) -> None:
        """Runs a polled context in this turn: something was queued without a command."""
        if self.engine.polled and not self._flush_due:
            self._flush_due = self._events_came = True
            self.loop.call_soon(self._flush)

    # ---- 2. All calls of a turn go to the engine ------------------------------------------

    def send(self, each: Submission) -> None:
        """Queues a command."""
        self._outgoing.append(each)
        if not self._flush_due:
            if self.engine.polled:
                self._submit()  # the first command of a turn does not wait for other commands
                self._events_came = self.engine.run() > 0
            # All other commands of this turn go to C in one call.
            self._flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not self.engine.polled:
            try:
                self._submit()
            except MemoryError:  # nothing that was queued is lost
                self.loop.call_later(_AGAIN_SECONDS, self._flush)
        elif self._outgoing or self._events_came:
            self._on_readable()  # a polled context sends only when we run it
        else:
            self._rest()

    def _submit(self) -> None:
        while self._outgoing and not self.closed:
            n = min(len(self._outgoing), SUBMIT_BATCH)
            taken = self.engine.submit(itertools.islice(self._outgoing, n))
            for _ in range(taken):
                self._outgoing.popleft()
            if taken < n:
                return  # the descriptor becomes readable when there is room again

    # ---- 3. A batch of events comes -------------------------------------------------------

    def attach(self, queue: QueuePair, receiver: EventReceiver) -> None:
        """Sends the events of a QP to `receiver` from now on, its completions to its writes."""
        self._receivers[queue.qpn] = receiver
        self._sends[queue.sends.cookie >> 32] = queue.sends
        queue.sends.attach(self)

    def detach(self, queue: QueuePair) -> None:
        """The QP was destroyed and its writes have ended: discards its further events and ends its
        probes.
        """
        qpn = queue.qpn
        self._receivers.pop(qpn, None)
        self._sends.pop(queue.sends.cookie >> 32, None)
        for cookie, call in list(self._calls.items()):
            if call.probe is not None and call.command.fields["qpn"] == qpn:
                del self._calls[cookie]
                call.fail("the QP was closed")

    def drain(self) -> None:
        """Handles all events that C has published so far."""
        while self._take_batch() == POLL_BATCH:
            pass

    def _on_readable(self) -> None:
        """Submits what is queued, and handles a batch of events."""
        polled = self.engine.polled
        try:
            if self._outgoing and (polled or not self._flush_due):
                self._submit()
            taken = self._take_batch()
            if taken == POLL_BATCH or (polled and self._outgoing):
                self.loop.call_soon(self._on_readable)  # let others run between batches
            elif polled and taken > 0:
                self._turn_later()
            elif polled:
                self._rest()
        except MemoryError:  # nobody else would go on; nothing that was queued or has come is lost
            self.loop.call_later(_AGAIN_SECONDS, self._on_readable)

    def _take_batch(self) -> int:
        """Handles a batch of events; returns its size. At POLL_BATCH events there may be more."""
        if self.closed:
            return 0
        self._complete_written()
        n = self.engine.poll(self._events)
        while self._events:
            match event := self._events.popleft():
                case Written(cookies):
                    cookies.reverse()
                    self._written = cookies
                    self._complete_written()
                case Completion():
                    self._on_completion(event)
                case ImmediateEvent():
                    if receiver := self._receivers.get(event.qpn):
                        receiver._on_immediate(event.immediate)
                case Reply():
                    self._on_reply(event)
                case ProbeReply():
                    call = self._calls.pop(event.cookie, None)
                    if call is not None and call.probe is not None and not call.probe.done():
                        call.probe.set_result(event.probe)
                case Notice():
                    if receiver := self._receivers.get(event.qpn):
                        receiver._on_notice(event)
                case EventLoss():
                    for receiver in self._receivers.values():
                        receiver._on_events_lost(event.count)
                case ContextWarning():
                    self._on_warning(event)
        if self.messages is not None:
            self.messages.take()
        return n

    # ---- 4. An event goes to who waits for it ---------------------------------------------

    def _complete_written(self) -> None:
        """The writes that have succeeded; after a MemoryError the rest of them."""
        written, sends = self._written, self._sends
        while written:
            cookie = written[-1]
            sends[cookie >> 32].complete(cookie)
            written.pop()

    def _on_completion(self, completion: Completion) -> None:
        error = None
        if completion.status is not WcStatus.SUCCESS:
            what = f"{completion.opcode.name.lower()} of {completion.bytes} bytes"
            error = CompletionError(completion.status, what)
        self._sends[completion.wr_id >> 32].complete(completion.wr_id, error)

    def _on_reply(self, reply: Reply) -> None:
        if (sends := self._sends.get(reply.cookie >> 32)) is not None:
            try:
                check(reply.result, f"QP {sends.qpn:#x}: post")
            except (MrcError, OSError) as error:
                sends.refuse(reply.cookie, error)
            return
        if (call := self._calls.get(reply.cookie)) is None:
            return  # a probe of a QP that was destroyed since
        if reply.result < 0 or call.probe is None:
            del self._calls[reply.cookie]
        if call.reply.done():
            return
        try:
            call.reply.set_result(check(reply.result, call.what))
        except (MrcError, OSError) as error:
            call.reply.set_exception(error)

    def _on_warning(self, warning: ContextWarning) -> None:
        # Every socket warns of its own buffer: we log only the first warning of each kind. A small
        # buffer costs nothing on slow links: `mrc doctor` reports it.
        buffers = warning.kind in (WarningKind.RCVBUF_SMALL, WarningKind.SNDBUF_SMALL)
        repeats = warning.kind is not WarningKind.MEMORY_FAULT
        known = repeats and any(other.kind is warning.kind for other in self.warnings)
        self.warnings.append(warning)
        level = logging.INFO if buffers else logging.WARNING
        logger.log(logging.DEBUG if known else level, "%s", warning)

    # ---- 5. The event loop sleeps ---------------------------------------------------------

    def _rest(self) -> None:
        """Lets the event loop sleep, unless the datapath has work."""
        if not (self.closed or self._turn_due or self.engine.may_sleep()):
            self._turn_later()

    def _turn_later(self) -> None:
        """Runs the datapath again, to acknowledge packets, after woken tasks had time to reply."""
        if not self._turn_due:
            self._turn_due = True
            self.loop.call_soon(self._turn_after, _TURNS_TO_REPLY)

    def _turn_after(self, turns: int) -> None:
        if turns > 0:
            self.loop.call_soon(self._turn_after, turns - 1)
            return
        self._turn_due = False
        self._on_readable()

    # ---- Memory ---------------------------------------------------------------------------

    async def register(self, region: Region) -> None:
        """Registers a region with the engine. Its memory stays alive while the engine may use it,
        even when the caller forgets to close the Context: the event loop holds this object.
        """
        self._regions[region._key] = region
        region._engines += 1
        reply = self.call(region_register(region), f"register {region.length} bytes")
        try:
            await asyncio.shield(reply)
        except asyncio.CancelledError:
            self.deregister(region)
            raise
        except BaseException:
            self._release(region)
            raise

    def deregister(self, region: Region) -> asyncio.Future[int]:
        """Ends the use of a region that no work request uses."""

        def release(ended: asyncio.Future[int]) -> None:
            if not ended.cancelled() and ended.exception() is None:
                self._release(region)

        ended = self.call(region_deregister(region), "deregister")
        ended.add_done_callback(release)
        return ended

    def holds(self, region: Region) -> bool:
        """True until the region is deregistered."""
        return self._regions.get(region._key) is region

    def _release(self, region: Region) -> None:
        """The engine has deregistered it; the last one unpins the memory."""
        if self._regions.pop(region._key, None) is not None:
            region._engines -= 1
            if region._engines == 0:
                region._held.release()

    async def until_idle(self, region: Region) -> None:
        """Returns when no work request uses the memory region."""
        while region._outstanding:
            future = self.loop.create_future()
            region._waiting.append(future)
            await future

    def users_of(self, region: Region) -> set[int]:
        """The QPNs whose work requests use the memory region."""
        return {each.qpn for each in self._sends.values() if each.uses(region)}

    # ---- End ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stops the datapath; pending calls get a StateError."""
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self.engine.fd)
        await self._join()
        for call in self._calls.values():
            call.fail("the Context was closed")
        self._calls.clear()
        if self.messages is not None:
            self.messages.on_end()
        assert not any(sends.taken for sends in self._sends.values()), "its QPs close first"
        for region in list(self._regions.values()):
            self._release(region)

    async def _join(self) -> None:
        """Closes the engine in a thread, because that joins the datapath's. It is no thread of the
        event loop: asyncio.run would have to end that one, and cannot when the interpreter ends.
        """
        if self.engine.polled:
            self.engine.close()
            return
        joined: Future[None] = Future()

        def join() -> None:
            try:
                self.engine.close()
            finally:
                joined.set_result(None)

        joined.set_running_or_notify_cancel()
        try:
            threading.Thread(target=join, name="mrc-close").start()
        except RuntimeError:
            self.engine.close()  # the interpreter is ending and cannot start a thread
            return
        await asyncio.wrap_future(joined)

    def end(self) -> None:
        """Stops the datapath after the end of the event loop, when no task can wait."""
        if self.closed:
            return
        self.closed = True
        self.engine.close()
        self._calls.clear()
        self._sends.clear()
        for region in list(self._regions.values()):
            self._release(region)


_opened: WeakSet[Dispatcher] = WeakSet()


def _abandon_all() -> None:
    """In a child of fork: leaves everything to the parent.

    Parent and child share the epoll of an event loop, so a child that unwinds `asyncio.run` would
    remove its parent's sockets from it: the child's copy gets its own. There is no public API:
    asyncio and uvloop use different names.
    """
    for dispatcher in list(_opened):
        dispatcher.forked = dispatcher.closed = True
        selector = getattr(dispatcher.loop, "_selector", None)
        uvloops = getattr(dispatcher.loop, "_get_backend_id", None)
        descriptor = uvloops or getattr(selector, "fileno", None)
        if descriptor is not None and not dispatcher.loop.is_closed():
            with select.epoll() as own:
                os.dup2(own.fileno(), descriptor(), inheritable=False)


os.register_at_fork(after_in_child=_abandon_all)
