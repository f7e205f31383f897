# SPDX-License-Identifier: Apache-2.0
"""Between asyncio and a Device: commands out in batches, futures by cookie, events to their QP.

What C still works on outlives the coroutine that asked for it: a cancelled caller leaves its entry
here, with the memory it holds, until the reply or the completion is there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import select
from collections import deque
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from mrc.binding.device import Device, DeviceEvent, Lost, Notice, Probed, Received, Reply
from mrc.binding.native import FORKED, POLL_BATCH, SUBMIT_BATCH, Command, Submission, check
from mrc.binding.recording import RecordingMemory
from mrc.binding.verbs import MR, QueuePair, WorkRequest
from mrc.datapath.stream import Places
from mrc.enums import WarningKind, WcStatus
from mrc.errors import CompletionError, MrcError, StateError
from mrc.events import Completion, ContextWarning, Immediate, ProbeResult

logger = logging.getLogger("mrc.dispatch")

_TURNS_TO_REPLY = 2  # of the event loop, from an event to what a task posts because of it


class Sink(Protocol):
    """Who wants the events of one QP."""

    def on_immediate(self, immediate: Immediate) -> None:
        """The peer's next immediate."""

    def on_notice(self, notice: Notice) -> None:
        """A change of state of the QP, an EV, a plane or a port."""

    def on_lost(self, count: int) -> None:
        """So many events, of any QP, were lost at this point."""


@dataclass(slots=True)
class _Call:
    """A command whose reply is due; `command` keeps its memory alive until then."""

    what: str
    command: Command
    reply: asyncio.Future[int]
    probe: asyncio.Future[ProbeResult] | None = None

    def fail(self, cause: str) -> None:
        """Ends the call for whoever waits for it; without a waiter nobody is to be told."""
        for future in (self.reply, self.probe):
            if future is not None and not future.done():
                future.set_exception(StateError(f"{self.what}: {cause}"))
                future.exception()


@dataclass(slots=True)
class Work:
    """A work request in C's hands."""

    queue: QueuePair
    places: Places
    idle: asyncio.Event
    """set when the queue has nothing outstanding any more"""
    mr: MR | None
    done: asyncio.Future[Completion]


class Dispatcher:
    """Owns the Device of a Context while the event loop runs."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.warnings: deque[ContextWarning] = deque(maxlen=64)
        self.loop = asyncio.get_running_loop()
        """the event loop that the Context was opened in, and in which all its calls are made"""
        self._cookies = itertools.count(1)
        self._outgoing: deque[Submission] = deque()
        self._flush_due = False
        self._events_came = False  # with what the first of this turn sent
        self._turn_due = False
        self._calls: dict[int, _Call] = {}
        self._works: dict[int, Work] = {}
        self._sinks: dict[int, Sink] = {}
        self._idle: dict[int, list[asyncio.Future[None]]] = {}
        self._mrs: dict[int, MR] = {}
        self.recording: RecordingMemory | None = None  # the datapath writes there
        self._closed = False
        self.forked = False
        """in a child of fork: the Context, its sockets and its event loop are the parent's"""
        _opened.add(self)
        self.loop.add_reader(device.fd, self._on_readable)

    # ---- Out ------------------------------------------------------------------------------

    def call(self, command: Command, what: str) -> asyncio.Future[int]:
        """Queues a command; the future has its result, or the exception of its errno."""
        return self._enqueue(_Call(what, command, self.loop.create_future())).reply

    async def probe(self, command: Command, what: str) -> ProbeResult:
        """Queues an EV probe and returns how it ended."""
        call = _Call(what, command, self.loop.create_future(), self.loop.create_future())
        self._enqueue(call)
        assert call.probe is not None
        await call.reply
        return await call.probe

    def post(self, request: WorkRequest, work: Work) -> None:
        """Queues a work request; `work.done` has its completion."""
        assert not self._closed, "a Context closes its QPs before"
        self._works[request.wr_id] = work
        if work.mr is not None:
            work.mr.outstanding += 1
        self._send(request)

    def next_id(self) -> int:
        """A number for a command or work request that no other has."""
        return next(self._cookies)

    @property
    def gone(self) -> bool:
        """True when no call can be made any more: in a child of fork, or after the event loop."""
        return self.forked or self.loop.is_closed()

    def check_open(self) -> None:
        """Raises a StateError that says why no call can be made."""
        if self.forked:
            raise StateError(FORKED)
        if self._closed:
            raise StateError("the Context is closed")
        if self.loop.is_closed():
            raise StateError("the Context is of no use: its event loop has ended: open another one")

    def _enqueue(self, call: _Call) -> _Call:
        self.check_open()
        cookie = self.next_id()
        call.command.fields["cookie"] = cookie
        self._calls[cookie] = call
        self._send(call.command)
        return call

    def _send(self, each: Submission) -> None:
        self._outgoing.append(each)
        if not self._flush_due:
            if self.device.polled:
                self._submit()  # the first of a turn of the loop does not wait for the others
                self._events_came = self.device.run() > 0
            # Everything else that this turn asks for goes down in one call.
            self._flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not self.device.polled:
            self._submit()
        elif self._outgoing or self._events_came:
            self._on_readable()  # nobody else sends what was asked for
        else:
            self._rest()

    def _submit(self) -> None:
        while self._outgoing and not self._closed:
            n = min(len(self._outgoing), SUBMIT_BATCH)
            taken = self.device.submit(itertools.islice(self._outgoing, n))
            for _ in range(taken):
                self._outgoing.popleft()
            if taken < n:
                return  # the descriptor becomes readable when there is room again

    # ---- In -------------------------------------------------------------------------------

    def attach(self, qpn: int, sink: Sink) -> None:
        """From now on the events of a QP go to `sink`."""
        self._sinks[qpn] = sink

    def detach(self, qpn: int) -> None:
        """The QP was destroyed: no event of it is of interest, and its probes end here."""
        self._sinks.pop(qpn, None)
        for cookie, call in list(self._calls.items()):
            if call.probe is not None and call.command.fields["qpn"] == qpn:
                del self._calls[cookie]
                call.fail("the QP was closed")

    def drain(self) -> None:
        """Takes everything that C has published so far."""
        while self._take_batch() == POLL_BATCH:
            pass

    def _on_readable(self) -> None:
        polled = self.device.polled
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
        """Leaves the event loop to sleep, unless something is due before."""
        if not (self._closed or self._turn_due or self.device.may_sleep()):
            self._turn_later()

    def _turn_later(self) -> None:
        """Has what came acknowledged, but lets the reply of a task that it woke leave before."""
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
        """Handles a batch of events, and returns how many; there may be more after POLL_BATCH."""
        if self._closed:
            return 0
        events = self.device.poll()
        for event in events:
            self._handle(event)
        return len(events)

    def _handle(self, event: DeviceEvent) -> None:
        match event:
            case Completion():
                self._on_completion(event)
            case Received():
                if sink := self._sinks.get(event.qpn):
                    sink.on_immediate(event.immediate)
            case Reply():
                self._on_reply(event)
            case Probed():
                self._on_probed(event)
            case Notice():
                if sink := self._sinks.get(event.qpn):
                    sink.on_notice(event)
            case Lost():
                for sink in self._sinks.values():
                    sink.on_lost(event.count)
            case ContextWarning():
                self._on_warning(event)

    def _on_warning(self, warning: ContextWarning) -> None:
        # Every socket warns of its own buffer: one line of a kind is enough.
        repeats = warning.kind is not WarningKind.MEMORY_FAULT
        known = repeats and any(other.kind is warning.kind for other in self.warnings)
        self.warnings.append(warning)
        logger.log(
            logging.DEBUG if known else logging.WARNING,
            "plane %d: %s (%d)",
            warning.plane,
            warning.kind.explanation,
            warning.detail,
        )

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

    def _on_probed(self, probed: Probed) -> None:
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
        if completion.status is WcStatus.SUCCESS:
            work.done.set_result(completion)
        else:
            what = f"{completion.opcode.name.lower()} of {completion.bytes} bytes"
            work.done.set_exception(CompletionError(completion.status, what))

    def _give_back(self, work: Work) -> None:
        work.queue.ended()
        work.places.give()
        if work.queue.outstanding == 0:
            work.idle.set()
        if work.mr is not None:
            work.mr.outstanding -= 1
            if work.mr.outstanding == 0:
                for future in self._idle.pop(work.mr.key, ()):
                    if not future.done():
                        future.set_result(None)

    # ---- Memory ---------------------------------------------------------------------------

    def hold(self, mr: MR) -> None:
        """Keeps the memory of an MR: the event loop holds this object, and so the memory, for as
        long as the engine may touch it, even when the caller forgets to close the Context.
        """
        self._mrs[mr.key] = mr

    def holds(self, mr: MR) -> bool:
        """True until the MR is released."""
        return mr.key in self._mrs

    def release(self, mr: MR) -> None:
        """Gives the memory back to its owner: the engine does not know it any more."""
        if self._mrs.pop(mr.key, None) is not None:
            mr.held.release()

    async def until_idle(self, mr: MR) -> None:
        """Returns when no work request uses the memory region."""
        while mr.outstanding:
            future = self.loop.create_future()
            self._idle.setdefault(mr.key, []).append(future)
            await future

    # ---- End ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stops the datapath; whoever still waits gets a StateError."""
        if self._closed:
            return
        self._closed = True
        self.loop.remove_reader(self.device.fd)
        try:
            await asyncio.to_thread(self.device.close)  # joins the datapath thread
        except RuntimeError:
            self.device.close()  # at the end of the interpreter no thread can be started
        for call in self._calls.values():
            call.fail("the Context was closed")
        self._calls.clear()
        assert not self._works, "a Context closes its QPs before"
        for mr in list(self._mrs.values()):
            self.release(mr)

    def end(self) -> None:
        """Stops the datapath after the event loop has ended, when nobody can wait any more."""
        if self._closed:
            return
        self._closed = True
        self.device.close()
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
    """Gives the child's copy of an event loop an epoll of its own.

    Both copies share one epoll, so a child that unwinds `asyncio.run` would take the sockets of
    its parent out of it. No public name leads there: asyncio and uvloop each have their own.
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
