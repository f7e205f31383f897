# SPDX-License-Identifier: Apache-2.0
"""The two streams of a QP: immediates are a queue, events are a log; and the classes of these."""

from __future__ import annotations

import asyncio

import pytest
from endpoints import connected_pair, set_port, two_planes

from mrc import (
    EventReason,
    EventsLost,
    EvEvent,
    EvState,
    PlaneEvent,
    PlaneShareEvent,
    PortEvent,
    QueueFullError,
    Queues,
    Spraying,
)
from mrc.aio.streams import ItemQueue, Journal
from mrc.engine.engine import Notice
from mrc.engine.queue_pair import SendQueue
from mrc.enums import EventType
from mrc.errors import StateError


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
        streams = {
            EventReason.OWN_PORT: pair.far.events(),
            EventReason.PEER_PORT: pair.near.events(),
        }
        await set_port(pair.far_context, 2, up=False)
        for whose, events in streams.items():
            assert await anext(events) == PortEvent(2, False, whose)
            assert await anext(events) == PlaneEvent(2, True, whose)
        await set_port(pair.far_context, 2, up=True)
        for whose, events in streams.items():
            assert await anext(events) == PortEvent(2, True, whose)
            assert await anext(events) == PlaneEvent(2, False, EventReason.PROBES)
        await pair.near.close()
        assert [event async for event in streams[EventReason.PEER_PORT]] == []


async def test_events__a_plane_that_carries_less_than_the_others() -> None:
    async with connected_pair(**two_planes()) as pair:
        events = pair.near.events()
        for status, percent in ((0, 9), (1, 88)):
            pair.near._on_notice(
                Notice(
                    EventType.PLANE_SHARE,
                    pair.near.qpn,
                    0,
                    2,
                    status,
                    EventReason.DELIVERY,
                    7,
                    percent,
                )
            )
        assert await anext(events) == PlaneShareEvent(2, True, 9, EventReason.DELIVERY)
        assert await anext(events) == PlaneShareEvent(2, False, 88, EventReason.DELIVERY)


# ---- ItemQueue and Journal, and places in a send queue -------------------------------------------


async def test_stream__items_in_order_then_the_end() -> None:
    stream: ItemQueue[int] = ItemQueue(8)
    for item in (1, 2, 3):
        stream.push(item)
    stream.finish()
    stream.push(4)
    assert [item async for item in stream] == [1, 2, 3]
    assert [item async for item in stream] == []


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


async def test_stream__waiting_readers_share_the_items() -> None:
    stream: ItemQueue[int] = ItemQueue(8)
    readers = [asyncio.ensure_future(anext(stream)) for _ in range(2)]
    await asyncio.sleep(0)
    stream.push(1)
    stream.push(2)
    assert sorted(await asyncio.gather(*readers)) == [1, 2]


async def test_stream__finish_wakes_every_reader() -> None:
    stream: ItemQueue[int] = ItemQueue(8)
    readers = [asyncio.ensure_future(anext(stream)) for _ in range(3)]
    await asyncio.sleep(0)
    stream.finish(StateError("over"))
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(result) for result in results] == [StateError] * 3


async def test_stream__a_wake_up_is_not_lost_with_a_cancelled_reader() -> None:
    stream: ItemQueue[int] = ItemQueue(8)
    cancelled = asyncio.ensure_future(anext(stream))
    other = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.push(1)
    cancelled.cancel()
    assert await other == 1
    assert cancelled.cancelled()


def journal(limit: int = 8) -> Journal[int]:
    """A journal in which -n stands for n missed items."""
    return Journal(limit, lambda count: -count)


async def test_journal__every_reader_sees_all_in_order_then_the_end() -> None:
    items = journal()
    early = items.reader()
    items.push(1)
    items.push(2)
    assert await anext(early) == 1
    late = items.reader()
    items.push(3)
    items.finish()
    items.push(4)
    assert [item async for item in early] == [2, 3]
    assert [item async for item in late] == [1, 2, 3]
    assert [item async for item in early] == []


async def test_journal__what_a_reader_missed_is_counted_and_told_in_place() -> None:
    items = journal(limit=2)
    slow, quick = items.reader(), items.reader()
    for item in (1, 2):
        items.push(item)
    assert [await anext(quick), await anext(quick)] == [1, 2]
    for item in (3, 4, 5):
        items.push(item)
    assert [await anext(quick) for _ in range(3)] == [-1, 4, 5]
    items.push(6)
    items.finish()
    assert [item async for item in slow] == [-4, 5, 6]
    assert [item async for item in quick] == [6]


async def test_journal__one_item_wakes_every_reader_and_the_end_too() -> None:
    items = journal()
    readers = [items.reader() for _ in range(3)]
    waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
    await asyncio.sleep(0)
    items.push(1)
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
    await asyncio.sleep(0)
    items.finish()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StopAsyncIteration] * 3


async def test_journal__a_reader_outlives_a_cancelled_wait_and_misses_nothing() -> None:
    items = journal()
    reader = items.reader()
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    items.push(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
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
