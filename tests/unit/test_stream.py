# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest

from mrc.errors import StateError
from mrc.stream import Stream


async def test_stream__items_in_order_then_the_end() -> None:
    stream: Stream[int] = Stream(8)
    for item in (1, 2, 3):
        stream.push(item)
    stream.finish()
    stream.push(4)
    assert [item async for item in stream] == [1, 2, 3]
    assert [item async for item in stream] == []


async def test_stream__held_items_come_before_the_error() -> None:
    stream: Stream[int] = Stream(8)
    stream.push(1)
    stream.finish(StateError("over"))
    stream.finish()  # only the first end counts
    assert await anext(stream) == 1
    for _ in range(2):
        with pytest.raises(StateError, match="over"):
            await anext(stream)


async def test_stream__the_oldest_item_is_dropped_beyond_the_limit() -> None:
    stream: Stream[int] = Stream(2)
    for item in (1, 2, 3):
        stream.push(item)
    assert stream.full
    stream.finish()
    assert [item async for item in stream] == [2, 3]


async def test_stream__waiting_readers_share_the_items() -> None:
    stream: Stream[int] = Stream(8)
    readers = [asyncio.ensure_future(anext(stream)) for _ in range(2)]
    await asyncio.sleep(0)
    stream.push(1)
    stream.push(2)
    assert sorted(await asyncio.gather(*readers)) == [1, 2]


async def test_stream__finish_wakes_every_reader() -> None:
    stream: Stream[int] = Stream(8)
    readers = [asyncio.ensure_future(anext(stream)) for _ in range(3)]
    await asyncio.sleep(0)
    stream.finish(StateError("over"))
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(result) for result in results] == [StateError] * 3


async def test_stream__a_wake_up_is_not_lost_with_a_cancelled_reader() -> None:
    stream: Stream[int] = Stream(8)
    cancelled = asyncio.ensure_future(anext(stream))
    other = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.push(1)
    cancelled.cancel()
    assert await other == 1
    assert cancelled.cancelled()
