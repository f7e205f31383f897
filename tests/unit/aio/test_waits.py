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
    Ended,
    EventReason,
    EventsLost,
    EvEvent,
    EvState,
    Peer,
    PlaneEvent,
    PortEvent,
    QueueFullError,
    StateError,
    WcStatus,
    Write,
)
from mrc.aio.streams import ItemQueue, Journal
from mrc.config import Queues, Spraying, Timeouts
from mrc.engine import send_queue
from mrc.errors import PeerGoneError

SHORT = 0.05


async def test_timeouts__are_timeout_errors() -> None:
    async with (
        connected_pair() as pair,
        pair.near_context.register(b"abc") as region,
    ):
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            await pair.listener.accept(timeout=SHORT)
        with pytest.raises(TimeoutError):
            await anext(pair.far.immediates(timeout=SHORT))
        with pytest.raises(TimeoutError):
            await anext(pair.far.events(timeout=SHORT))
        assert time.monotonic() - start >= 3 * SHORT
        sends = pair.near._queue.sends
        sends.taken += sends.count  # so the writes wait for their turn
        for write in (
            pair.near.write(region, mrc.RemoteMemory(0, 0, 8), timeout=SHORT),
            pair.near.write(imm=1, timeout=SHORT),
        ):
            with pytest.raises(TimeoutError):
                await write
        sends.taken -= sends.count
        sends._put_waiting()
        assert (sends.taken, region._outstanding) == (0, 0), "they are never sent"
        await pair.near.write(imm=7, timeout=BUDGET_SECONDS)
        assert (await anext(pair.far.immediates(timeout=BUDGET_SECONDS))).imm == 7


async def test_connect__too_late_is_both_a_connect_error_and_a_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, mrc.open(loopback_config()) as context:
        with pytest.raises(mrc.ConnectTimeoutError, match=r"in 0\.05 s") as caught:
            await context.connect("127.0.0.1", port, timeout=SHORT)
    assert isinstance(caught.value, (mrc.ConnectError, ConnectionError))
    assert isinstance(caught.value, TimeoutError)


async def test_post_many__in_order_and_all_of_them() -> None:
    data, target = pattern(40 * 100), bytearray(40 * 100)
    async with (
        connected_pair(queues=Queues(sq_depth=64)) as pair,
        memory(pair, data, target) as (source, there),
    ):
        writes = [
            Write(source[at : at + 100], there.handle[at:], at // 100) for at in range(0, 4000, 100)
        ]
        assert await pair.near.post_many(writes) == 40 * 100
        stream = pair.far.immediates(timeout=BUDGET_SECONDS)
        assert [(await anext(stream)).imm for _ in range(40)] == list(range(40))
        assert target == data
        assert await pair.near.post_many([]) == 0


async def test_write__redundant() -> None:
    data, target = pattern(20000), bytearray(20000)
    async with connected_pair() as pair, memory(pair, data, target) as (source, there):
        await pair.near.write(source, there.handle, redundant=True)
        assert target == data
        assert await pair.near.post(source[:64], there.handle, imm=3, redundant=True) == 64
        assert (await anext(pair.far.immediates(timeout=BUDGET_SECONDS))).imm == 3
        counters = await pair.near_context.counters()
        assert counters["TX_REDUNDANT"] > 0
        assert (await pair.far_context.counters())["RX_BYTES"] == 20064


async def test_post_many__a_wrong_one_starts_none() -> None:
    async with connected_pair(queues=Queues(sq_depth=16)) as pair:
        with pytest.raises(ArgumentError, match="imm"):
            pair.near.post_many([Write(imm=1), Write(imm=1 << 32), Write(imm=2)])
        assert await pair.near.post_many(Write(imm=i) for i in range(3, 19)) == 0
        assert (await anext(pair.far.immediates())).imm == 3


async def test_post_many__more_than_the_depth() -> None:
    data, target = pattern(1000), bytearray(1000)
    async with (
        connected_pair(queues=Queues(sq_depth=16)) as pair,
        memory(pair, data, target) as (source, there),
    ):
        before = [pair.near.post(imm=imm) for imm in range(20)]
        many = pair.near.post_many(
            Write(source[at : at + 1], there.handle[at:], 20 + at) for at in range(1000)
        )
        after = pair.near.post(imm=1020)
        stream = pair.far.immediates(timeout=BUDGET_SECONDS)
        assert [(await anext(stream)).imm for _ in range(1021)] == list(range(1021))
        assert await asyncio.gather(*before, many, after) == [0] * 20 + [1000, 0]
        assert target == data


@pytest.mark.parametrize("depth", [4, 256])
async def test_post_many__raises_what_the_first_of_them_met(depth: int) -> None:
    """Also in the middle of more than the depth; what is behind it never arrives."""
    async with (
        connected_pair(queues=Queues(sq_depth=depth)) as pair,
        memory(pair, b"abc", bytearray(3)) as (source, there),
    ):
        wrong = Write(source, mrc.RemoteMemory(4096, 1, 8))
        good = [Write(source, there.handle, imm) for imm in range(40)]
        with pytest.raises(CompletionError, match="REM_ACCESS_ERR"):
            await pair.near.post_many([*good[:18], wrong, *good[18:]])
        with pytest.raises(CompletionError, match="has failed"):
            pair.near.post_many([])
        await pair.near._sends.until_idle()
        assert source._outstanding == 0
        heard = []
        with pytest.raises((PeerGoneError, CompletionError)):
            await pair.near.close()
            async for immediate in pair.far.immediates():
                heard.append(immediate.imm)
        assert heard == list(range(18))


async def test_post_scattered__each_write_at_its_place() -> None:
    data, target = pattern(64 * 100), bytearray(64 * 100)
    here = random.Random(16).sample(range(0, 64 * 100, 100), 64)
    there = [6300 - at for at in here]
    async with (
        connected_pair(queues=Queues(sq_depth=10)) as pair,
        memory(pair, data, target) as (source, remote),
    ):
        post = functools.partial(pair.near.post_scattered, source, remote.handle)
        assert await post(length=100, src_offsets=here, dst_offsets=there) == 6400
        for at, to in zip(here, there, strict=True):
            assert target[to : to + 100] == data[at : at + 100]
        assert await post(length=1, src_offsets=[], dst_offsets=[]) == 0
        sliced = pair.near.post_scattered(
            source[6000:], remote.handle[10:20], length=5, src_offsets=[1, 3], dst_offsets=[0, 5]
        )
        assert await sliced == 10
        assert target[10:20] == data[6001:6006] + data[6003:6008]
        for length, src, dst, cause in (
            (0, [0], [0], "length: 0 is not within"),
            (1, [0], [0, 1], "dst_offsets: has 2 items, src_offsets 1"),
            (100, [0, 6301], [0, 0], "src_offsets: 100 bytes from there are not inside the 6400"),
            (100, [0, 0], [-1, 0], "dst_offsets: 100 bytes from there are not inside the 6400"),
        ):
            with pytest.raises(ArgumentError, match=cause):
                post(length=length, src_offsets=src, dst_offsets=dst)


async def test_post_scattered__frees_places_and_memory() -> None:
    async with connected_pair(queues=Queues(sq_depth=16)) as pair:
        source = await pair.near_context.register(bytes(64))
        there = await pair.far_context.register(bytearray(64), writable=True)
        offsets = list(range(16))
        for imm in range(3):
            done = pair.near.post_scattered(
                source, there.handle, length=8, src_offsets=offsets, dst_offsets=offsets
            )
            late = pair.near.post_many([Write(imm=imm)])
            assert pair.near._sends.taken == 16
            assert [await done, await late] == [128, 0]
        await source.close()


async def test_write__in_pieces_when_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_queue, "MAX_MESSAGE_BYTES", 10_000)
    monkeypatch.setattr(send_queue, "_PIECE_BYTES", 4_096)
    data, target = pattern(20_000), bytearray(20_000)
    async with connected_pair() as pair, memory(pair, data, target) as (source, there):
        part = source[100:15_100]
        assert await pair.near.write(part, there.handle[50:], imm=9) == 15_000
        immediate = await anext(pair.far.immediates(timeout=BUDGET_SECONDS))
        assert immediate.imm == 9
        assert target == bytes(50) + data[100:15_100] + bytes(4_950)
        assert await pair.near.write(source, there.handle) == 20_000
        assert target == data
        with pytest.raises(ArgumentError, match="dst: 15000 bytes do not fit into the 14999"):
            await pair.near.write(part, there.handle[5001:])
        with pytest.raises(ArgumentError, match="an address has 64 bits"):
            await pair.near.write(part, mrc.RemoteMemory(1 << 64, 1, 1 << 20))


# ---- Waits and calls that have to end -----------------------------------------------------------


async def test_until_closed__ends_when_either_side_closes() -> None:
    async with connected_pair() as pair:
        waiting = [spawn(end.until_closed()) for end in (pair.near, pair.near, pair.far)]
        await asyncio.sleep(0)
        assert (pair.near.ended, pair.far.ended) == (None, None)
        waiting[1].cancel()
        await pair.near.close()
        own, peers = Ended(False, None), Ended(True, None)
        assert [await waiting[0], await waiting[2]] == [own, peers]
        await pair.far.close()
        for end, ended in ((pair.near, own), (pair.far, peers)):
            assert await end.until_closed() == ended == end.ended, "also for who asks later"


@pytest.mark.parametrize("reason", ["", "mine"])
async def test_until_closed__names_the_error_of_the_peer(reason: str) -> None:
    async with connected_pair() as pair:
        await pair.near.abort(reason)
        ended = await pair.far.until_closed()
        assert ended.by_peer and isinstance(ended.error, PeerGoneError)
        assert ("ended the connection: mine" if reason else "without closing") in str(ended.error)
        assert pair.near.ended == Ended(False, None)


async def test_until_closed__a_qp_that_fails() -> None:
    async with connected_pair() as pair, memory(pair, b"1", bytearray(1)) as (source, there):
        with pytest.raises(CompletionError):
            await pair.near.write(source, mrc.RemoteMemory(there.address, 1, 8))
        ended = await pair.near.until_closed()
        assert not ended.by_peer and isinstance(ended.error, CompletionError)
        assert ended.error.status is WcStatus.REM_ACCESS_ERR
        await pair.near.close()
        assert pair.near.ended == ended, "the first end counts"
        assert (await pair.far.until_closed()).error is not None


@walls.needs("programs")
async def test_write__a_qp_of_messages_takes_none() -> None:
    """One of them ended the process: nobody was there for its completion."""
    async with (
        listening_to_itself(messages=True) as (context, listener),
        context.connect("127.0.0.1", listener.port, messages=True) as near,
        context.register(bytearray(8), writable=True) as region,
        listener.accept(),
    ):
        refused = pytest.raises(StateError, match="carries messages and nothing else")
        with refused:
            await near.write(region, region.handle)
        with refused:
            await near.write(imm=1)
        with refused:
            near.post(region, region.handle)
        with refused:
            near.post_many([])
        with refused:
            near.post_scattered(region, region.handle, length=1, src_offsets=[0], dst_offsets=[0])


async def test_register__an_error_ends_the_use_of_its_memory() -> None:
    """The engine would use it until it gives up the peer, 9 s later."""
    async with connected_pair(timeouts=Timeouts(linger=0.01)) as pair:
        target = bytearray(1 << 20)
        async with pair.far_context.register(target, writable=True) as there:
            await set_port(pair.near_context, 1, up=False)
            write: asyncio.Future[Any] | None = None
            with pytest.raises(RuntimeError, match="mine"):
                async with pair.near_context.register(bytes(1 << 20)) as source:
                    write = pair.near.post(source, there.handle)
                    raise RuntimeError("mine")
            assert write is not None
            with pytest.raises(StateError, match="memory of a write was deregistered"):
                await write
            assert pair.near.closed


async def no(_: Peer) -> bool:
    await asyncio.sleep(0)
    return False


async def fails(_: Peer) -> bool:
    await asyncio.sleep(0)
    raise ValueError("of the program")


async def refuses(_: Peer) -> bool:
    raise ConnectError("not today")


def fails_at_once(peer: Peer) -> bool:
    raise KeyError(peer.private["name"])


async def forgets(_: Any) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("admit", "reason", "logged"),
    [
        (lambda _: False, "does not admit this host", ""),
        (no, "does not admit this host", ""),
        (refuses, "not today", ""),
        (fails, r"its program failed \(ValueError\)", "ValueError: of the program"),
        (fails_at_once, r"its program failed \(KeyError\)", "KeyError: 'me'"),
        (lambda _: None, r"its program failed", "TypeError: admit: returned None, not True or Fal"),
        (forgets, r"its program failed", "TypeError: admit: returned None, not True or False"),
        (lambda _: 1, r"its program failed", "TypeError: admit: returned 1, not True or False"),
    ],
)
async def test_admit__refuses(
    admit: Callable[[Peer], bool | Awaitable[bool]],
    reason: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening_to_itself(admit=admit) as (context, listener):
        with pytest.raises(ConnectError, match=reason):
            await context.connect("127.0.0.1", listener.port, private={"name": "me"})
        assert not context.qps
    assert logged in caplog.text and "bug" not in caplog.text


@pytest.mark.parametrize("waits", [True, False])
async def test_admit__lets_in(waits: bool) -> None:
    asked: list[Peer] = []

    def at_once(peer: Peer) -> bool:
        asked.append(peer)
        return True

    async def later(peer: Peer) -> bool:
        await asyncio.sleep(0)
        return at_once(peer)

    async with (
        listening_to_itself(admit=later if waits else at_once) as (context, listener),
        context.connect("127.0.0.1", listener.port, private={"n": 1}),
        listener.accept() as qp,
    ):
        assert asked == [qp.peer]
        told = (qp.peer.name, qp.peer.address, qp.peer.identity, qp.peer.private)
        assert told == (context.name, "127.0.0.1", "", {"n": 1})


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
        await asyncio.gather(*(pair.near.write(imm=i) for i in range(9)))
        stream = pair.far.immediates()
        assert [(await anext(stream)).imm for _ in range(8)] == list(range(8))
        with pytest.raises(QueueFullError, match=r"8 immediates of .* unread"):
            await anext(stream)


async def test_immediates__are_a_queue_each_goes_to_one_reader() -> None:
    async with connected_pair() as pair:
        for imm in range(4):
            await pair.near.write(imm=imm)
        one, other = pair.far.immediates(), pair.far.immediates()
        taken = [await anext(reader) for reader in (one, other, one)]
        assert [immediate.imm for immediate in taken] == [0, 1, 2]
        assert (await anext(pair.far.immediates())).imm == 3
        waiting = [asyncio.ensure_future(anext(reader)) for reader in (other, one)]
        await asyncio.sleep(0)
        for imm in (4, 5):
            await pair.near.write(imm=imm)
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


# ---- ItemQueue and Journal -----------------------------------------------------------------------


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
