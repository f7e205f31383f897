# SPDX-License-Identifier: Apache-2.0
"""Batches, cookies and futures with a fake engine; the CPU time of an idle Context."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from endpoints import READ, WRITE, Pair, connected_pair, spawn, until

from mrc.engine import engine
from mrc.engine.dispatch import Dispatcher
from mrc.engine.engine import Engine, EngineEvent, EventLoss, Notice, ProbeReply, Reply
from mrc.engine.native import Command, Submission
from mrc.engine.queue_pair import QueuePair, Write, Writes
from mrc.enums import CommandOp, EventReason, EventType, QpState, WarningKind, WcOpcode, WcStatus
from mrc.errors import ArgumentError, CompletionError, QueueFullError, StateError
from mrc.events import Completion, ContextWarning, Immediate, ProbeResult


class FakeEngine:
    """Takes commands up to `room`, and returns the events that the test puts into `events`."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        self.polled = False
        self.room = 1000
        self.memory = True
        self.batches: list[list[Submission]] = []
        self.events: list[EngineEvent] = []
        self.submitted = asyncio.Event()

    def submit(self, batch: Iterable[Submission]) -> int:
        if not self.memory:
            self.memory = True
            raise MemoryError
        taken = list(batch)[: self.room]
        self.room -= len(taken)
        self.batches.append(taken)
        self.submitted.set()
        return len(taken)

    def may_sleep(self) -> bool:
        return True

    def say(self, *events: EngineEvent) -> None:
        self.events += events
        os.write(self._write, b"x")

    def poll(self, events: deque[EngineEvent]) -> int:
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        n = len(self.events)
        while self.events:
            events.append(self.events.pop(0))
            if not self.memory:
                self.memory = True
                raise MemoryError
        return n

    def close(self) -> None:
        os.close(self._write)
        os.close(self.fd)

    @property
    def taken(self) -> list[Any]:
        return [each for batch in self.batches for each in batch]


@asynccontextmanager
async def dispatcher_over() -> AsyncIterator[tuple[Dispatcher, FakeEngine]]:
    engine = FakeEngine()
    dispatcher = Dispatcher(cast(Engine, engine))
    try:
        yield dispatcher, engine
    finally:
        await dispatcher.close()


def command(**fields: Any) -> Command:
    return Command({"op": CommandOp.QP_QUERY, "qpn": 7, **fields})


def posted(dispatcher: Dispatcher, queue: QueuePair) -> asyncio.Future[Completion]:
    assert queue.places.take_free()
    return dispatcher.post(Writes.of(queue, dispatcher.next_id(), [Write(imm=0)]))


def ready_queue(depth: int = 8) -> QueuePair:
    return QueuePair(sq_depth=depth, mpr=1024, max_wimm=128, qpn=7, state=QpState.RTS)


async def test_call__one_turn_of_the_loop_is_one_batch() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        replies = [dispatcher.call(command(value=i), "query") for i in range(5)]
        await asyncio.sleep(0)
        assert [len(batch) for batch in engine.batches] == [5]
        assert [c.fields["value"] for c in engine.taken] == [0, 1, 2, 3, 4]
        engine.say(*(Reply(c.fields["cookie"], i) for i, c in enumerate(engine.taken)))
        assert await asyncio.gather(*replies) == [0, 1, 2, 3, 4]


async def test_call__a_full_ring_goes_on_where_it_stopped() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        engine.room = 2
        replies = [dispatcher.call(command(value=i), "query") for i in range(5)]
        await asyncio.sleep(0)
        assert len(engine.taken) == 2
        engine.room = 1000
        engine.say()  # as in C, when there is room again
        engine.submitted.clear()
        await engine.submitted.wait()
        assert [c.fields["value"] for c in engine.taken] == [0, 1, 2, 3, 4]
        engine.say(*(Reply(c.fields["cookie"], 0) for c in engine.taken))
        await asyncio.gather(*replies)


async def test_call__is_submitted_later_when_memory_was_short() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        engine.memory = False
        reply = dispatcher.call(command(), "query")
        await engine.submitted.wait()
        engine.say(Reply(engine.taken[0].fields["cookie"], 0))
        assert await reply == 0


async def test_events__none_is_lost_when_memory_was_short() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        replies = [dispatcher.call(command(value=i), "query") for i in range(3)]
        await engine.submitted.wait()
        engine.memory = False
        engine.say(*(Reply(c.fields["cookie"], i) for i, c in enumerate(engine.taken)))
        assert await asyncio.gather(*replies) == [0, 1, 2]


async def test_call__a_refusal_is_an_exception_that_names_the_attempt() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        reply = dispatcher.call(command(), "QP 0x7: query")
        await asyncio.sleep(0)
        engine.say(Reply(engine.taken[0].fields["cookie"], -errno.EINVAL))
        with pytest.raises(ArgumentError, match="QP 0x7: query"):
            await reply


async def test_call__memory_lives_until_the_reply_even_when_cancelled() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        buffer = bytearray(8)
        kept = command()
        kept.keep = memoryview(buffer)
        reply = dispatcher.call(kept, "query")
        await asyncio.sleep(0)
        cookie = kept.fields["cookie"]
        reply.cancel()
        del kept
        engine.batches.clear()
        with pytest.raises(BufferError):
            buffer.append(0)
        engine.say(Reply(cookie, 0))
        dispatcher.drain()
        buffer.append(0)


async def test_post__completions_give_places_back() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        queue = ready_queue(2)
        places = queue.places
        good, bad = posted(dispatcher, queue), posted(dispatcher, queue)
        idle = asyncio.ensure_future(places.until_free())
        await asyncio.sleep(0)
        assert places.taken == 2
        ids = [request.wr_id for request in engine.taken]
        engine.say(
            Completion(ids[0], 7, 5, WcStatus.SUCCESS, WcOpcode.WRITE),
            Completion(ids[1], 7, 6, WcStatus.REM_ACCESS_ERR, WcOpcode.WRITE),
        )
        assert (await good).bytes == 5
        with pytest.raises(CompletionError, match=r"write of 6 bytes: .*REM_ACCESS_ERR") as caught:
            await bad
        assert caught.value.status is WcStatus.REM_ACCESS_ERR
        await idle
        assert places.taken == 0


async def test_post__a_refusal_of_the_engine() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        queue = ready_queue(1)
        done = posted(dispatcher, queue)
        await asyncio.sleep(0)
        engine.say(Reply(engine.taken[0].wr_id, -errno.ENOBUFS))
        with pytest.raises(QueueFullError):
            await done
        assert queue.places.taken == 0


async def test_probe__reply_first_then_the_result() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        probing = asyncio.ensure_future(dispatcher.probe(command(), "probe"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cookie = engine.taken[0].fields["cookie"]
        result = ProbeResult(0, 0, 1000)
        engine.say(Reply(cookie, 0), ProbeReply(cookie, result))
        assert await probing == result


async def test_detach__probes_of_the_qp_end_and_late_answers_are_ignored() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        probing = asyncio.ensure_future(dispatcher.probe(command(), "probe"))
        other = asyncio.ensure_future(dispatcher.probe(command(qpn=8), "probe"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cookies = [c.fields["cookie"] for c in engine.taken]
        dispatcher.detach(7)
        with pytest.raises(StateError, match="probe: the QP was closed"):
            await probing
        result = ProbeResult(0, 0, 1000)
        engine.say(*(event for c in cookies for event in (Reply(c, 0), ProbeReply(c, result))))
        assert await other == result


async def test_close__whoever_waits_is_told() -> None:
    async with dispatcher_over() as (dispatcher, _):
        reply = dispatcher.call(command(), "query")
        probing = asyncio.ensure_future(dispatcher.probe(command(), "probe"))
        await asyncio.sleep(0)
        await dispatcher.close()
        await dispatcher.close()
        for waiting in (reply, probing):
            with pytest.raises(StateError, match="the Context was closed"):
                await waiting
        with pytest.raises(StateError, match="the Context is closed"):
            dispatcher.call(command(), "query")


async def test_warnings__of_buffers_are_logged_once_and_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="mrc.dispatch")
    async with dispatcher_over() as (dispatcher, engine):
        small = [ContextWarning(WarningKind.RCVBUF_SMALL, plane, 212992) for plane in (1, 2)]
        faults = [ContextWarning(WarningKind.MEMORY_FAULT, 0, key) for key in (5, 6)]
        engine.say(*small, *faults)
        dispatcher.drain()
        assert list(dispatcher.warnings) == [*small, *faults]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert "net.core.rmem_max (212992 bytes granted)" in messages[0]
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "WARNING"], "doctor tells ordinary users about buffers"


class Recorder:
    """Records the calls."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def _on_immediate(self, immediate: Immediate) -> None:
        self.told.append(immediate)

    def _on_notice(self, notice: Notice) -> None:
        self.told.append(notice)

    def _on_events_lost(self, count: int) -> None:
        self.told.append(count)


async def test_notices__go_to_their_qp_and_losses_to_every_one() -> None:
    first = Notice(EventType.PLANE, 5, 0, 2, 0, EventReason.SILENCE)
    second = Notice(EventType.PLANE, 5, 0, 2, 1, EventReason.PROBES)
    async with dispatcher_over() as (dispatcher, engine):
        one, other = Recorder(), Recorder()
        dispatcher.attach(5, one)
        dispatcher.attach(6, other)
        engine.say(first, EventLoss(3), second)
        dispatcher.drain()
        assert one.told == [first, 3, second]
        assert other.told == [3]
        dispatcher.detach(5)
        engine.say(first)
        dispatcher.drain()
        assert len(one.told) == 3


# ---- The CPU time of an idle Context -------------------------------------------------------------


WATCHED_SECONDS = 0.5


async def cpu_per_second() -> float:
    """CPU time of this process, datapath threads included, while this test only waits."""
    cpu, clock = time.process_time(), time.monotonic()
    await asyncio.sleep(WATCHED_SECONDS)
    return (time.process_time() - cpu) / (time.monotonic() - clock)


async def has_error_reports(pair: Pair) -> bool:
    return (await pair.near_context.counters())["TX_ERROR_REPORTS"] > 0


@pytest.mark.parametrize("version", [4, 6])
async def test_idle__icmp_errors_leave_nothing_to_do(version: int) -> None:
    async with (
        connected_pair(version) as pair,
        pair.near_context.register(bytes(1 << 20), access=READ) as source,
        pair.far_context.register(bytearray(1 << 20), access=WRITE) as target,
    ):
        assert await cpu_per_second() < 0.1, "before any error"
        far = pair.far_context._opened().dispatcher
        await far.call(engine.port_close(1), "port")
        write = spawn(pair.near.write(source, target.remote))
        await until(lambda: has_error_reports(pair))
        assert await cpu_per_second() < 0.1, "a descriptor with an error stays ready"
        await pair.near.abort()
        await asyncio.gather(write, return_exceptions=True)
