# SPDX-License-Identifier: Apache-2.0
"""The two streams of a QP: immediates are a queue, events are a log."""

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
from mrc.engine.engine import Notice
from mrc.enums import EventType


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
