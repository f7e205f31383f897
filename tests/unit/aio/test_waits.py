# SPDX-License-Identifier: Apache-2.0
"""Timeouts of every wait, batches of writes, large writes; waits and calls that have to end; the
two streams of a QP: immediates are a queue, events are a log.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
import random
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import walls
from endpoints import (
    BUDGET_SECONDS,
    READ,
    WRITE,
    connected_pair,
    listening_to_itself,
    loopback_config,
    memory,
    pattern,
    set_port,
    spawn,
    two_planes,
)

import mrc
from mrc import (
    ArgumentError,
    CompletionError,
    ConnectError,
    Context,
    EventReason,
    EventsLost,
    EvEvent,
    EvState,
    PlaneEvent,
    PortEvent,
    QueueFullError,
    Queues,
    RemoteMemory,
    Spraying,
    StateError,
    Timeouts,
    WcStatus,
    Write,
)
from mrc.aio.streams import ItemQueue, Journal
from mrc.engine import queue_pair
from mrc.engine.queue_pair import SendQueue
from mrc.errors import PeerGoneError

SHORT = 0.05


async def test_timeouts__are_timeout_errors() -> None:
    async with (
        connected_pair() as pair,
        pair.near_context.register(b"abc") as mr,
    ):
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            await pair.listener.accept(timeout=SHORT)
        with pytest.raises(TimeoutError):
            await anext(pair.far.immediates(timeout=SHORT))
        with pytest.raises(TimeoutError):
            await anext(pair.far.events(timeout=SHORT))
        assert time.monotonic() - start >= 3 * SHORT
        places = pair.near._queue.places
        assert places.take_free(pair.near._queue.sq_depth)  # so the write waits for its turn
        for write in (
            pair.near.write(mr, mrc.RemoteMemory(0, 0, 8), timeout=SHORT),
            pair.near.write_imm(imm=1, timeout=SHORT),
        ):
            with pytest.raises(TimeoutError):
                await write
        for _ in range(pair.near._queue.sq_depth):
            places.give()
        await pair.near.write_imm(imm=7, timeout=BUDGET_SECONDS)
        assert (await anext(pair.far.immediates(timeout=BUDGET_SECONDS))).imm == 7


async def test_connect__too_late_is_both_a_connect_error_and_a_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Context(loopback_config()) as context:
        with pytest.raises(mrc.ConnectTimeoutError, match=r"in 0\.05 s") as caught:
            await context.connect("127.0.0.1", port, timeout=SHORT)
    assert isinstance(caught.value, (mrc.ConnectError, ConnectionError))
    assert isinstance(caught.value, TimeoutError)


async def test_post_many__in_order_and_all_of_them() -> None:
    data, target = pattern(40 * 100), bytearray(40 * 100)
    async with (
        connected_pair(queues=Queues(sq_depth=64)) as pair,
        pair.near_context.register(data) as source,
        pair.far_context.register(target, access=WRITE) as mr,
    ):
        at = [100 * i for i in range(40)]
        writes = [Write(source, mr.remote, i, 100, at[i], at[i]) for i in range(40)]
        assert (await pair.near.post_many(writes)).bytes == 40 * 100
        stream = pair.far.immediates(timeout=BUDGET_SECONDS)
        assert [(await anext(stream)).imm for _ in range(40)] == list(range(40))
        assert target == data
        assert (await pair.near.post_many([])).bytes == 0


async def test_write__redundant() -> None:
    data, target = pattern(20000), bytearray(20000)
    async with (
        connected_pair() as pair,
        pair.near_context.register(data) as source,
        pair.far_context.register(target, access=WRITE) as mr,
    ):
        await pair.near.write(source, mr.remote, redundant=True)
        assert target == data
        await pair.near.post(source, mr.remote, imm=3, length=64, redundant=True)
        assert (await anext(pair.far.immediates(timeout=BUDGET_SECONDS))).imm == 3
        counters = await pair.near_context.counters()
        assert counters["TX_REDUNDANT"] > 0
        assert (await pair.far_context.counters())["RX_BYTES"] == 20064


async def test_post_many__without_room_starts_none() -> None:
    async with connected_pair(queues=Queues(sq_depth=16)) as pair:
        with pytest.raises(QueueFullError, match="send queue: 16 of 16, needed: 17"):
            pair.near.post_many(Write(imm=i) for i in range(17))
        with pytest.raises(ArgumentError, match="imm"):
            pair.near.post_many([Write(imm=1), Write(imm=1 << 32), Write(imm=2)])
        assert (await pair.near.post_many(Write(imm=i) for i in range(16))).bytes == 0
        assert (await anext(pair.far.immediates())).imm == 0


async def test_post_many__raises_what_the_first_of_them_met() -> None:
    async with connected_pair() as pair, pair.near_context.register(b"abc") as source:
        wrong = mrc.RemoteMemory(4096, 1, 8)
        with pytest.raises(CompletionError, match="REM_ACCESS_ERR"):
            await pair.near.post_many([Write(imm=1), Write(source, wrong), Write(imm=2)])


async def test_post_scattered__each_write_at_its_place() -> None:
    data, target = pattern(64 * 100), bytearray(64 * 100)
    here = random.Random(16).sample(range(0, 64 * 100, 100), 64)
    there = [6300 - at for at in here]
    async with (
        connected_pair(queues=Queues(sq_depth=64)) as pair,
        pair.near_context.register(data) as source,
        pair.far_context.register(target, access=WRITE) as mr,
    ):
        post = functools.partial(pair.near.post_scattered, source, mr.remote)
        completion = await post(length=100, local_offsets=here, remote_offsets=there)
        assert completion.bytes == 6400
        for at, to in zip(here, there, strict=True):
            assert target[to : to + 100] == data[at : at + 100]
        assert (await post(length=1, local_offsets=[], remote_offsets=[])).bytes == 0
        for length, local, remote, cause in (
            (0, [0], [0], "length: 0 is not within"),
            (1, [0], [0, 1], "remote_offsets: has 2 items, local_offsets has 1"),
            (100, [0, 6301], [0, 0], r"local_offset: \[6301, 6401\)"),
            (100, [0, 0], [-1, 0], r"remote_offset: \[-1, 99\)"),
        ):
            with pytest.raises(ArgumentError, match=cause):
                post(length=length, local_offsets=local, remote_offsets=remote)


async def test_post_scattered__frees_places_and_memory() -> None:
    async with connected_pair(queues=Queues(sq_depth=16)) as pair:
        source = await pair.near_context.register(bytes(64))
        mr = await pair.far_context.register(bytearray(64), access=WRITE)
        offsets = list(range(16))
        for _ in range(3):
            done = pair.near.post_scattered(
                source, mr.remote, length=8, local_offsets=offsets, remote_offsets=offsets
            )
            with pytest.raises(QueueFullError, match="send queue: 0 of 16, needed: 1"):
                pair.near.post_many([Write(imm=1)])
            await done
        await pair.near_context.deregister(source)


async def test_write__in_pieces_when_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pair, "MAX_MESSAGE_BYTES", 10_000)
    monkeypatch.setattr(queue_pair, "_PIECE_BYTES", 4_096)
    data, target = pattern(20_000), bytearray(20_000)
    async with connected_pair() as pair, memory(pair, data, target) as (source, mr):
        done = await pair.near.write_imm(
            source, mr.remote, imm=9, local_offset=100, remote_offset=50, length=15_000
        )
        assert (done.bytes, done.opcode) == (15_000, mrc.WcOpcode.WRITE_IMM)
        immediate = await anext(pair.far.immediates(timeout=BUDGET_SECONDS))
        assert immediate.imm == 9
        assert target == bytes(50) + data[100:15_100] + bytes(4_950)
        assert (await pair.near.write(source, mr.remote)).bytes == 20_000
        assert target == data
        for length, local, remote in ((15_000, 9_000, 0), (15_000, 0, 9_000), (20_001, 0, 0)):
            with pytest.raises(ArgumentError, match="is not inside"):
                await pair.near.write(
                    source, mr.remote, length=length, local_offset=local, remote_offset=remote
                )


# ---- Waits and calls that have to end -----------------------------------------------------------


async def test_until_peer_gone__ends_when_this_side_closes() -> None:
    async with connected_pair() as pair:
        waiting = spawn(pair.near.until_peer_gone())
        await asyncio.sleep(0)
        await pair.near.close()
        with pytest.raises(StateError, match="is closed"):
            await waiting
        with pytest.raises(StateError, match="is closed"):
            await pair.near.until_peer_gone()
        await pair.far.until_peer_gone()
        await pair.far.close()
        await pair.far.until_peer_gone()  # it has gone, also for who asks later


@walls.needs("programs")
async def test_write__a_qp_of_messages_takes_none() -> None:
    """One of them ended the process: nobody was there for its completion."""
    async with (
        listening_to_itself(messages=True) as (context, listener),
        context.connect("127.0.0.1", listener.port, messages=True) as near,
        context.register(bytearray(8), access=WRITE) as mr,
        await listener.accept(),
    ):
        remote = RemoteMemory(mr.address, mr.rkey, mr.length)
        refused = pytest.raises(StateError, match="carries messages and nothing else")
        with refused:
            await near.write(mr, remote)
        with refused:
            await near.write_imm(imm=1)
        with refused:
            near.post(mr, remote)
        with refused:
            near.post_many([])
        with refused:
            near.post_scattered(mr, remote, length=1, local_offsets=[0], remote_offsets=[0])


async def test_register__an_error_ends_the_use_of_its_memory() -> None:
    """The engine would use it until it gives up the peer, 9 s later."""
    async with connected_pair(timeouts=Timeouts(linger=0.01)) as pair:
        target = bytearray(1 << 20)
        async with pair.far_context.register(target, access=WRITE) as mr:
            await set_port(pair.near_context, 1, up=False)
            write: asyncio.Future[Any] | None = None
            with pytest.raises(RuntimeError, match="mine"):
                async with pair.near_context.register(bytes(1 << 20), access=READ) as source:
                    write = pair.near.post(source, mr.remote)
                    raise RuntimeError("mine")
            assert write is not None
            with pytest.raises(StateError, match="memory of a write was deregistered"):
                await write
            assert pair.near.closed


async def no(_: dict[str, Any]) -> bool:
    await asyncio.sleep(0)
    return False


async def fails(_: dict[str, Any]) -> None:
    await asyncio.sleep(0)
    raise ValueError("of the program")


async def refuses(_: dict[str, Any]) -> None:
    raise ConnectError("not today")


def fails_at_once(private: dict[str, Any]) -> None:
    raise KeyError(private["name"])


@pytest.mark.parametrize(
    ("admit", "reason", "logged"),
    [
        (lambda _: False, "does not admit this host", ""),
        (no, "does not admit this host", ""),
        (refuses, "not today", ""),
        (fails, r"its program failed \(ValueError\)", "ValueError: of the program"),
        (fails_at_once, r"its program failed \(KeyError\)", "KeyError: 'me'"),
    ],
)
async def test_admit__refuses(
    admit: Callable[[dict[str, Any]], bool | Awaitable[bool | None] | None],
    reason: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening_to_itself(admit=admit) as (context, listener):
        with pytest.raises(ConnectError, match=reason):
            await context.connect("127.0.0.1", listener.port, private={"name": "me"})
        assert not context.qps
    assert logged in caplog.text and "bug" not in caplog.text


@pytest.mark.parametrize("verdict", [True, None])
@pytest.mark.parametrize("waits", [True, False])
async def test_admit__lets_in(verdict: bool | None, waits: bool) -> None:
    async def later(_: dict[str, Any]) -> bool | None:
        await asyncio.sleep(0)
        return verdict

    async with (
        listening_to_itself(admit=later if waits else lambda _: verdict) as (context, listener),
        context.connect("127.0.0.1", listener.port),
        await listener.accept(),
    ):
        pass


async def test_listener__its_iterator_outlives_a_timeout() -> None:
    async with listening_to_itself() as (context, listener):
        peers = aiter(listener)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(peers), 0.01)
        async with context.connect("127.0.0.1", listener.port), await anext(peers):
            pass
        await listener.close()
        with pytest.raises(StopAsyncIteration):
            await anext(peers)


async def test_error__is_a_new_one_for_each_call() -> None:
    """One object collected the frames of every call that raised it."""
    async with connected_pair() as pair:
        await pair.far.abort()
        depths = []
        for _ in range(3):
            with pytest.raises(PeerGoneError) as caught:
                await anext(pair.near.immediates())
            depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert depths == depths[:1] * 3


def test_completion_error__crosses_processes() -> None:
    error = CompletionError(WcStatus.RETRY_EXC_ERR, "write of 5 bytes")
    same = pickle.loads(pickle.dumps(error))
    assert (str(same), same.status, type(same)) == (str(error), error.status, CompletionError)


# ---- Streams -------------------------------------------------------------------------------------


async def test_immediates__too_many_unread_end_the_stream() -> None:
    async with connected_pair(queues=Queues(max_unread=8)) as pair:
        await asyncio.gather(*(pair.near.write_imm(imm=i) for i in range(9)))
        stream = pair.far.immediates()
        assert [(await anext(stream)).imm for _ in range(8)] == list(range(8))
        with pytest.raises(QueueFullError, match=r"8 immediates of .* unread"):
            await anext(stream)


async def test_immediates__are_a_queue_each_goes_to_one_reader() -> None:
    async with connected_pair() as pair:
        for imm in range(4):
            await pair.near.write_imm(imm=imm)
        one, other = pair.far.immediates(), pair.far.immediates()
        taken = [await anext(reader) for reader in (one, other, one)]
        assert [immediate.imm for immediate in taken] == [0, 1, 2]
        assert (await anext(pair.far.immediates())).imm == 3
        waiting = [asyncio.ensure_future(anext(reader)) for reader in (other, one)]
        await asyncio.sleep(0)
        for imm in (4, 5):
            await pair.near.write_imm(imm=imm)
        assert [immediate.imm for immediate in await asyncio.gather(*waiting)] == [4, 5]
        await pair.near.close()
        for reader in (one, other, pair.far.immediates()):
            assert [immediate async for immediate in reader] == []


async def test_events__are_a_log_every_reader_gets_all() -> None:
    async with connected_pair(spraying=Spraying(evs_per_pair=2)) as pair:
        early = pair.near.events()
        waiting = asyncio.ensure_future(anext(early))
        await pair.near.deny(0)
        first = await waiting
        await pair.near.allow(0)
        late = pair.near.events()
        assert [await anext(late), await anext(late)] == [first, await anext(early)]
        assert await anext(pair.near.events()) == first
        await pair.near.close()
        for reader in (early, late):
            assert [event async for event in reader] == []
        states = [event.state async for event in pair.near.events() if isinstance(event, EvEvent)]
        assert states == [EvState.DENIED, EvState.GOOD], "the end of the QP does not take them"


async def test_events__what_a_reader_or_the_engine_lost_is_told_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mrc.aio.qp._EVENTS_KEPT", 4)
    async with connected_pair(spraying=Spraying(evs_per_pair=2)) as pair:
        events = pair.near.events()
        for _ in range(5):
            await pair.near.deny(1)
            await pair.near.allow(1)
        pair.near._on_events_lost(3)
        await pair.near.deny(1)
        told = [await anext(events) for _ in range(5)]
        states = [event.state for event in told if isinstance(event, EvEvent)]
        assert states == [EvState.DENIED, EvState.GOOD, EvState.DENIED]
        assert (told[0], told[3]) == (EventsLost(8), EventsLost(3))


async def test_events__a_port_that_goes_and_comes_back_at_both_ends() -> None:
    async with connected_pair(**two_planes()) as pair:
        own, peer = EventReason.OWN_PORT, EventReason.PEER_PORT
        streams = {own: pair.far.events(), peer: pair.near.events()}
        for up in (False, True):
            await set_port(pair.far_context, 2, up=up)
            for whose, events in streams.items():
                assert await anext(events) == PortEvent(2, up, whose)
                why = EventReason.PROBES if up else whose
                assert await anext(events) == PlaneEvent(2, not up, why)
        await pair.near.close()
        assert [event async for event in streams[peer]] == []


# ---- ItemQueue and Journal, and places in a send queue ------------------------------------------


async def test_stream__held_items_come_before_the_error() -> None:
    stream: ItemQueue[int] = ItemQueue(8)
    stream.push(1)
    stream.finish(StateError("over"))
    stream.finish()  # only the first end counts
    assert await anext(stream) == 1
    for _ in range(2):
        with pytest.raises(StateError, match="over"):
            await anext(stream)


async def test_stream__the_oldest_item_is_dropped_beyond_the_limit() -> None:
    stream: ItemQueue[int] = ItemQueue(2)
    for item in (1, 2, 3):
        stream.push(item)
    assert stream.full
    stream.finish()
    assert [item async for item in stream] == [2, 3]


async def waiting(*readers: AsyncIterator[int]) -> Sequence[asyncio.Future[int]]:
    """A wait of each reader for its next item."""
    waits = [asyncio.ensure_future(anext(reader)) for reader in readers]
    await asyncio.sleep(0)
    return waits


async def test_stream__finish_wakes_every_reader() -> None:
    stream: ItemQueue[int] = ItemQueue(8)
    waits = await waiting(stream, stream, stream)
    stream.finish(StateError("over"))
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(result) for result in results] == [StateError] * 3


async def test_stream__a_wake_up_is_not_lost_with_a_cancelled_reader() -> None:
    stream: ItemQueue[int] = ItemQueue(8)
    cancelled, other = await waiting(stream, stream)
    stream.push(1)
    cancelled.cancel()
    assert await other == 1
    assert cancelled.cancelled()


def journal(limit: int = 8) -> Journal[int]:
    """A journal in which -n stands for n missed items."""
    return Journal(limit, lambda count: -count)


async def test_journal__one_item_wakes_every_reader_and_the_end_too() -> None:
    items = journal()
    readers = [items.reader() for _ in range(3)]
    waits = await waiting(*readers)
    items.push(1)
    assert await asyncio.gather(*waits) == [1, 1, 1]
    waits = await waiting(*readers)
    items.finish()
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(result) for result in results] == [StopAsyncIteration] * 3


async def test_journal__a_reader_outlives_a_cancelled_wait_and_misses_nothing() -> None:
    items = journal()
    reader = items.reader()
    (cancelled,) = await waiting(reader)
    items.push(1)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert cancelled.cancelled()
    assert await anext(reader) == 1


async def test_places__in_the_order_of_asking() -> None:
    places, order = SendQueue(1), []

    async def take(number: int) -> None:
        await places.take()
        order.append(number)

    assert places.take_free()
    assert not places.take_free()
    waiting = [asyncio.create_task(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    places.give()
    assert not places.take_free()  # the place belongs to the first waiter
    places.give()
    await asyncio.gather(*waiting[:2])
    assert order == [0, 1]
    places.give()
    await waiting[2]
    places.give()
    assert places.take_free()


async def test_places__a_cancelled_turn_passes_to_the_next() -> None:
    places = SendQueue(1)
    await places.take()
    first, second = (asyncio.create_task(places.take()) for _ in range(2))
    await asyncio.sleep(0)
    places.give()
    first.cancel()  # it already has the place, which passes to the next one
    await second
    assert first.cancelled()
    third = asyncio.create_task(places.take())
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.sleep(0)
    places.give()
    assert places.take_free()


async def test_places__until_free_when_the_last_is_given_back() -> None:
    places = SendQueue(2)
    await places.until_free()
    assert places.take_free(2)
    idle = asyncio.create_task(places.until_free())
    next_one = asyncio.create_task(places.take())
    for _ in range(2):
        places.give()
        await asyncio.sleep(0)
    await next_one
    assert (places.taken, idle.done()) == (1, False), "a place that goes on to a waiter is in use"
    places.give()
    await idle
    assert places.taken == 0
