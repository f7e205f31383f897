# SPDX-License-Identifier: Apache-2.0
"""What the peer says while this side does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from channels import channels

from mrc.connect.oob import Channel
from mrc.errors import BusyError, ConnectRefusedError, Kind, PeerGoneError, ProtocolError
from mrc.tasks import cancelled


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # there is no event
        await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_during__the_result() -> None:
    async def work() -> int:
        return 7

    async with channels() as (one, other):
        assert await one.during(work()) == 7
        await other.send("proved", mtu=1)
        assert (await one.expect("proved"))["mtu"] == 1


async def test_during__an_early_message_is_kept() -> None:
    done = asyncio.Event()

    async def work() -> int:
        await done.wait()
        return 7

    async with channels() as (one, other):
        working = asyncio.create_task(one.during(work()))
        await other.send("proved", mtu=1)
        await other.send("rts")
        await until(lambda: one.received_bytes)
        done.set()
        assert await working == 7
        assert (await one.expect("proved"))["mtu"] == 1
        await one.expect("rts")


async def test_during__pings_are_answered_also_after_an_early_message() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await one.ping()
        done.set()

    async with channels() as (one, other):
        working = asyncio.create_task(one.during(work()))
        await other.send("proved", mtu=1)
        await other.during(done.wait())
        await working
        assert not one.silent
        assert (await one.expect("proved"))["mtu"] == 1


async def test_during__pings_are_answered_until_the_next_message() -> None:
    """This side is done, and waits for the peer's word."""

    async def work() -> None:
        pass

    async with channels() as (one, other):
        await one.during(work())
        waiting = asyncio.create_task(one.expect("proved"))
        await other.during(other.ping())
        await other.send("proved", mtu=1)
        assert (await waiting)["mtu"] == 1


async def test_during__a_pong_may_come_after_the_next_message() -> None:
    """Our probes were answered while a ping was under way; the peer had said its next word."""

    async def work() -> None:
        asking = asyncio.create_task(one.ping())
        await until(lambda: one.silent)
        await cancelled(asking)

    async with channels() as (one, other):
        await other.send("proved", mtu=1)
        await one.during(work())
        assert (await one.expect("proved"))["mtu"] == 1
        answering = asyncio.create_task(other.during(forever()))
        await until(lambda: other.received_bytes)
        await other.send("rts")
        await one.expect("rts")
        assert not one.silent
        await cancelled(answering)


async def test_during__a_peer_that_answers_nothing_is_silent() -> None:
    async with channels() as (one, _):
        working = asyncio.create_task(one.during(one.ping()))
        await until(lambda: one.silent)
        working.cancel()
        await asyncio.wait([working])
        assert one.silent


async def test_during__a_flood_of_pings_ends_it() -> None:
    async with channels() as (one, other):
        working = asyncio.create_task(one.during(forever()))
        for _ in range(300):
            await other.send("ping")
        with pytest.raises(ProtocolError, match="257 pings"):
            await working


@pytest.mark.parametrize("kind", Kind)
async def test_during__a_refusal_ends_it(kind: Kind) -> None:
    async with channels() as (one, other):
        working = asyncio.create_task(one.during(forever()))
        await other.refuse("no room", kind)
        with pytest.raises(
            BusyError if kind is Kind.BUSY else ConnectRefusedError, match="no room"
        ) as refused:
            await working
        assert refused.value.kind is kind


async def test_during__a_peer_that_goes_ends_it() -> None:
    async with channels() as (one, other):
        working = asyncio.create_task(one.during(forever()))
        await other.close()
        with pytest.raises(PeerGoneError, match="closed the connection"):
            await working


async def test_during__its_error_is_the_caller_s() -> None:
    async def work() -> None:
        raise ValueError("mine")

    async with channels() as (one, _):
        with pytest.raises(ValueError, match="mine"):
            await one.during(work())


async def test_during__nothing_reads_after_the_end() -> None:
    async def work() -> None:
        pass

    async with channels() as (one, _):
        await one.during(work())
        one.abort()
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if reads(task, one)]


def reads(task: asyncio.Task[object], channel: Channel) -> bool:
    return task is channel._ahead and not task.done()
