# SPDX-License-Identifier: Apache-2.0
"""Connects asyncio to an engine: commands in batches, futures by cookie, events to their QP.

If a caller is cancelled, its command or work request continues in C. Its entry stays here and keeps
the memory alive until the reply or the completion.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol
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
)
from mrc.engine.memory import MR
from mrc.engine.native import FORKED, POLL_BATCH, SUBMIT_BATCH, Command, Submission, check
from mrc.engine.queue_pair import QueuePair, Writes
from mrc.engine.streams import SendQueue
from mrc.enums import WarningKind, WcStatus
from mrc.errors import CompletionError, MrcError, StateError, anew
from mrc.events import Completion, ContextWarning, Immediate, ProbeResult

if TYPE_CHECKING:
    from mrc.messages.messages import Completions, Done

logger = logging.getLogger("mrc.dispatch")

_TURNS_TO_REPLY = 2  # turns of the event loop until a task can post in reaction to an event
_AGAIN_SECONDS = 0.01  # after memory was short


class EventReceiver(Protocol):
    """Receiver of the events of one QP."""

    def on_immediate(self, immediate: Immediate) -> None:
        """The peer's next immediate."""

    def on_notice(self, notice: Notice) -> None:
        """A change of state of the QP, an EV, a plane or a port."""

    def on_lost(self, count: int) -> None:
        """The engine lost `count` events, of any QP, at this point."""


class MessageSink(Protocol):
    """Receiver of the completions of one space of messages."""

    def _on_done(self, done: Done) -> None:
        """An operation ended."""

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


class Work(Struct):
    """Writes that were posted, and their one completion."""

    queue: QueuePair
    places: SendQueue
    """of the send queue, where each write has taken one"""
    writes: Writes
    """C reads them until the completion"""
    done: asyncio.Future[Completion]


class Dispatcher:
    """Owns an engine of a Context while the event loop runs. Cookies count from `first_cookie`."""

    def __init__(self, engine: AnyEngine, first_cookie: int = 1) -> None:
        self.engine = engine
        self.warnings: deque[ContextWarning] = deque(maxlen=64)
        self.loop = asyncio.get_running_loop()
        """the event loop that opened the Context; all calls must come from it"""
        self._cookies = itertools.count(first_cookie)
        self._outgoing: deque[Submission] = deque()
        self._flush_due = False
        self._events_came = False  # when the first command of this turn ran the datapath
        self._turn_due = False
        self._calls: dict[int, _Call] = {}
        self._works: dict[int, Work] = {}
        self._sinks: dict[int, EventReceiver] = {}
        self._mrs: dict[int, MR] = {}
        self.recording: object = None  # the datapath writes there
        self.spaces: dict[int, MessageSink] = {}
        """receivers of the completions of messages, by space"""
        self._events: deque[EngineEvent] = deque()
        self.completions: Completions | None = None  # of messages, once a space was opened
        self._done: deque[tuple[int, Done]] = deque()
        self._closed = False
        self.forked = False
        """True in a child of fork: Context, sockets and event loop belong to the parent"""
        _opened.add(self)
        self.loop.add_reader(engine.fd, self._on_readable)

    # ---- Commands -------------------------------------------------------------------------

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

    def post(self, work: Work) -> None:
        """Queues writes; `work.done` gets the completion."""
        assert not self._closed, "a Context closes its QPs first"
        self._works[work.writes.wr_id] = work
        for mr in work.writes.mrs:
            mr.outstanding += 1
        self._send(work.writes)

    def fail_works(self, queue: QueuePair, error: MrcError) -> None:
        """Ends the waits for work requests of a QP that will not complete; C flushes them later."""
        for work in self._works.values():
            if work.queue is queue and not work.done.done():
                work.done.set_exception(anew(error))

    def run_soon(self) -> None:
        """Runs a polled context in this turn: something was queued without a command."""
        if self.engine.polled and not self._flush_due:
            self._flush_due = self._events_came = True
            self.loop.call_soon(self._flush)

    def next_id(self) -> int:
        """A unique number for a command or work request."""
        return next(self._cookies)

    @property
    def gone(self) -> bool:
        """True when calls are impossible: in a child of fork, or after the event loop's end."""
        return self.forked or self.loop.is_closed()

    def check_open(self) -> None:
        """Raises a StateError with the reason if calls are impossible."""
        if self.forked:
            raise StateError(FORKED)
        if self._closed:
            raise StateError("the Context is closed")
        if self.loop.is_closed():
            raise StateError("the Context is unusable: its event loop has ended: open another one")

    def _enqueue(self, call: _Call) -> _Call:
        self.check_open()
        cookie = self.next_id()
        call.command.answer_to(cookie)
        self._calls[cookie] = call
        self._send(call.command)
        return call

    def _send(self, each: Submission) -> None:
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
            self._or_later(self._submit)
        elif self._outgoing or self._events_came:
            self._on_readable()  # a polled context sends only when we run it
        else:
            self._rest()

    def _or_later(self, step: Callable[[], None]) -> None:
        """A step that nobody else would take again when memory is short in it; none loses what
        was queued or what has come.
        """
        try:
            step()
        except MemoryError:
            self.loop.call_later(_AGAIN_SECONDS, self._or_later, step)

    def _submit(self) -> None:
        while self._outgoing and not self._closed:
            n = min(len(self._outgoing), SUBMIT_BATCH)
            taken = self.engine.submit(itertools.islice(self._outgoing, n))
            for _ in range(taken):
                self._outgoing.popleft()
            if taken < n:
                return  # the descriptor becomes readable when there is room again

    # ---- Events ---------------------------------------------------------------------------

    def attach(self, qpn: int, sink: EventReceiver) -> None:
        """Sends the events of a QP to `sink` from now on."""
        self._sinks[qpn] = sink

    def detach(self, qpn: int) -> None:
        """The QP was destroyed: discards its further events and ends its probes."""
        self._sinks.pop(qpn, None)
        for cookie, call in list(self._calls.items()):
            if call.probe is not None and call.command.fields["qpn"] == qpn:
                del self._calls[cookie]
                call.fail("the QP was closed")

    def drain(self) -> None:
        """Handles all events that C has published so far."""
        while self._take_batch() == POLL_BATCH:
            pass

    def _on_readable(self) -> None:
        self._or_later(self._exchange)

    def _exchange(self) -> None:
        """Submits what is queued, and handles a batch of events."""
        polled = self.engine.polled
        if polled or not self._flush_due:
            self._submit()
        taken = self._take_batch()
        if taken == POLL_BATCH or (polled and self._outgoing):
            self.loop.call_soon(self._on_readable)  # let others run between batches
        elif polled and taken > 0:
            self._turn_later()
        else:
            self._rest()

    def _rest(self) -> None:
        """Lets the event loop sleep, unless the datapath has work."""
        if not (self._closed or self._turn_due or self.engine.may_sleep()):
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

    def _take_batch(self) -> int:
        """Handles a batch of events; returns its size. At POLL_BATCH events there may be more."""
        if self._closed:
            return 0
        n = self.engine.poll(self._events)
        while self._events:
            self._handle(self._events.popleft())
        if self.spaces and self.completions is not None:
            self.completions.poll(self._done)
            while self._done:
                space, done = self._done.popleft()
                self.spaces[space]._on_done(done)
        return n

    def _handle(self, event: EngineEvent) -> None:
        match event:
            case Completion():
                self._on_completion(event)
            case ImmediateEvent():
                if sink := self._sinks.get(event.qpn):
                    sink.on_immediate(event.immediate)
            case Reply():
                self._on_reply(event)
            case ProbeReply():
                self._on_probed(event)
            case Notice():
                if sink := self._sinks.get(event.qpn):
                    sink.on_notice(event)
            case EventLoss():
                for sink in self._sinks.values():
                    sink.on_lost(event.count)
            case ContextWarning():
                self._on_warning(event)

    def _on_warning(self, warning: ContextWarning) -> None:
        # Every socket warns of its own buffer: we log only the first warning of each kind. A small
        # buffer costs nothing on slow links: `mrc doctor` reports it.
        buffers = warning.kind in (WarningKind.RCVBUF_SMALL, WarningKind.SNDBUF_SMALL)
        repeats = warning.kind is not WarningKind.MEMORY_FAULT
        known = repeats and any(other.kind is warning.kind for other in self.warnings)
        self.warnings.append(warning)
        level = logging.INFO if buffers else logging.WARNING
        logger.log(logging.DEBUG if known else level, "%s", warning)

    def _on_reply(self, reply: Reply) -> None:
        if reply.cookie in self._works:
            self._on_refused(reply)
            return
        call = self._calls.get(reply.cookie)
        if call is None:
            return  # a probe of a QP that was destroyed since
        if reply.result < 0 or call.probe is None:
            del self._calls[reply.cookie]
        if call.reply.done():
            return
        try:
            call.reply.set_result(check(reply.result, call.what))
        except (MrcError, OSError) as error:
            call.reply.set_exception(error)

    def _on_probed(self, probed: ProbeReply) -> None:
        call = self._calls.pop(probed.cookie, None)
        if call is not None and call.probe is not None and not call.probe.done():
            call.probe.set_result(probed.probe)

    def _on_refused(self, reply: Reply) -> None:
        work = self._works.pop(reply.cookie)
        self._give_back(work)
        if work.done.done():
            return
        try:
            check(reply.result, f"QP {work.queue.qpn:#x}: post")
        except (MrcError, OSError) as error:
            work.done.set_exception(error)

    def _on_completion(self, completion: Completion) -> None:
        work = self._works.pop(completion.wr_id)
        self._give_back(work)
        if work.done.done():
            return
        if work.writes.count > 1:
            completion = completion._replace(bytes=work.writes.size)
        if completion.status is WcStatus.SUCCESS:
            work.done.set_result(completion)
        else:
            what = f"{completion.opcode.name.lower()} of {completion.bytes} bytes"
            work.done.set_exception(CompletionError(completion.status, what))

    def _give_back(self, work: Work) -> None:
        work.places.give(work.writes.count)
        for mr in work.writes.mrs:
            mr.outstanding -= 1
            if mr.outstanding == 0:
                for future in mr.waiting:
                    if not future.done():
                        future.set_result(None)
                mr.waiting.clear()

    # ---- Memory ---------------------------------------------------------------------------

    def hold(self, mr: MR) -> None:
        """Keeps the memory of an MR alive while the engine may use it, even when the caller forgets
        to close the Context: the event loop holds this object.
        """
        self._mrs[mr.key] = mr
        mr.engines += 1

    def holds(self, mr: MR) -> bool:
        """True until the MR is released."""
        return mr.key in self._mrs

    def release(self, mr: MR) -> None:
        """The engine has deregistered it; the last one unpins the memory."""
        if self._mrs.pop(mr.key, None) is not None:
            mr.engines -= 1
            if mr.engines == 0:
                mr._held.release()

    async def until_idle(self, mr: MR) -> None:
        """Returns when no work request uses the memory region."""
        while mr.outstanding:
            future = self.loop.create_future()
            mr.waiting.append(future)
            await future

    def users_of(self, mr: MR) -> set[int]:
        """The QPNs whose work requests use the memory region."""
        works = self._works.values()
        return {work.queue.qpn for work in works if any(used is mr for used in work.writes.mrs)}

    # ---- End ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stops the datapath; pending calls get a StateError."""
        if self._closed:
            return
        self._closed = True
        self.loop.remove_reader(self.engine.fd)
        await self._join()
        for call in self._calls.values():
            call.fail("the Context was closed")
        self._calls.clear()
        for sink in list(self.spaces.values()):
            sink.on_end()
        assert not self._works, "a Context closes its QPs first"
        for mr in list(self._mrs.values()):
            self.release(mr)

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
        if self._closed:
            return
        self._closed = True
        self.engine.close()
        self._calls.clear()
        self._works.clear()
        for mr in list(self._mrs.values()):
            self.release(mr)

    def abandon(self) -> None:
        """In a child of fork: leaves everything to the parent."""
        self.forked = self._closed = True
        if not self.loop.is_closed():
            _leave_epoll(self.loop)


_opened: WeakSet[Dispatcher] = WeakSet()


def _leave_epoll(loop: asyncio.AbstractEventLoop) -> None:
    """Gives the child's copy of an event loop its own epoll.

    Parent and child share one epoll, so a child that unwinds `asyncio.run` would remove its
    parent's sockets from it. There is no public API: asyncio and uvloop use different names.
    """
    selector = getattr(loop, "_selector", None)
    descriptor = getattr(loop, "_get_backend_id", None) or getattr(selector, "fileno", None)
    if descriptor is not None:
        with select.epoll() as own:
            os.dup2(own.fileno(), descriptor(), inheritable=False)


def _abandon_all() -> None:
    for dispatcher in list(_opened):
        dispatcher.abandon()


os.register_at_fork(after_in_child=_abandon_all)
