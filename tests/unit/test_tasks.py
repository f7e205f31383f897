# SPDX-License-Identifier: Apache-2.0
"""Time limits of a process that is stopped meanwhile; cancelled tasks that go on."""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ParamSpec

import pytest
from slowness import PATIENCE

from mrc.tasks import Limit, RunningClock, took_cancellation, within

P = ParamSpec("P")


class Jumping(asyncio.SelectorEventLoop):
    """Its clock jumps to the next timer, or further when this process is stopped."""

    _ready: deque[asyncio.Handle]  # these are private to asyncio
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0
        self.stop_at = self.stop_seconds = 0.0

    def time(self) -> float:
        return self._seconds

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._seconds = max(self._seconds, heapq.nsmallest(1, self._scheduled)[0].when())
            if self.stop_seconds and self._seconds >= self.stop_at:
                self._seconds = self.stop_at + self.stop_seconds
                self.stop_seconds = 0.0
        super()._run_once()  # type: ignore[misc]


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test that waits neither for threads nor for sockets."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = Jumping()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.close()

    return run


@pytest.fixture
def loop() -> Iterator[Jumping]:
    made = Jumping()
    yield made
    made.close()


async def _wait(seconds: float, answer: float) -> float:
    """When the body ended: by its answer, or by the limit, which is negative."""
    now = asyncio.get_running_loop().time
    try:
        async with Limit(seconds):
            await asyncio.sleep(answer)
        return now()
    except TimeoutError:
        return -now()


def test_limit__is_that_of_asyncio(loop: Jumping) -> None:
    assert loop.run_until_complete(_wait(5, 100)) == -5
    assert loop.run_until_complete(_wait(5, 4.9)) == pytest.approx(9.9)


@pytest.mark.parametrize("stop_at", [1.1, 4.9, 4.999])
def test_limit__does_not_count_a_stop(loop: Jumping, stop_at: float) -> None:
    loop.stop_at, loop.stop_seconds = stop_at, 20
    ended = -loop.run_until_complete(_wait(5, 100))
    assert max(24.7, stop_at + 20 + 1) <= ended <= 26.3


def test_limit__reads_what_came_during_the_stop(loop: Jumping) -> None:
    loop.stop_at, loop.stop_seconds = 4.9, 20
    assert loop.run_until_complete(_wait(5, 6)) == pytest.approx(24.9)


def test_clock__stands_still_during_a_stop(loop: Jumping) -> None:
    async def measure() -> float:
        with RunningClock() as clock:
            begun = clock.time()
            await asyncio.sleep(10)
            return clock.time() - begun

    assert loop.run_until_complete(measure()) == pytest.approx(10)
    loop.stop_at, loop.stop_seconds = 12, 60
    assert loop.run_until_complete(measure()) == pytest.approx(2, abs=0.3)


# ---- Cancelled tasks ----------------------------------------------------------------------------


@pytest.mark.parametrize("goes_on", [False, True])
async def test_within__ends_what_a_cancelled_task_still_does(goes_on: bool) -> None:
    """With a TimeoutError, also on Python 3.11.0 to 3.11.2."""

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if goes_on:
                took_cancellation()
            with pytest.raises(TimeoutError):
                async with within(0):
                    await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert task.cancelling() == int(not goes_on)


async def test_within__a_second_cancellation_is_no_end_of_the_time() -> None:
    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            async with within(PATIENCE):
                await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
