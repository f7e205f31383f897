# SPDX-License-Identifier: Apache-2.0
"""Jobs in a separate thread: their order, the effect of a failure, and the end."""

from __future__ import annotations

import asyncio
import threading

import pytest
from slowness import PATIENCE

from mrc.transfer.populate import STEP_BYTES, Ahead
from mrc.transfer.threads import Line, in_thread


async def test_line__one_after_another() -> None:
    done: list[int] = []
    async with Line() as line:
        for number in range(100):
            line.put(done.append, number)
        assert await asyncio.wrap_future(line.put(len, done)) == 100
    assert done == list(range(100))


async def test_line__after_a_failure_all_fail_alike() -> None:
    done: list[int] = []
    async with Line() as line:
        line.put(int, "x")
        with pytest.raises(ValueError, match="'x'"):
            await asyncio.wrap_future(line.put(done.append, 1))
    assert done == []


async def test_line__ends_the_job_under_way_and_begins_no_other() -> None:
    running, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def slow() -> None:
        running.set()
        go_on.wait(PATIENCE)
        done.append(1)

    async with Line() as line:
        line.put(slow)
        line.put(done.append, 2)
        await asyncio.to_thread(running.wait, 10)
        asyncio.get_running_loop().call_later(0.01, go_on.set)
    assert done == [1]


async def test_ahead__goes_no_further_than_wanted() -> None:
    prepared: list[tuple[int, int]] = []
    length = 5 * STEP_BYTES + 1

    def prepare(offset: int, size: int) -> None:
        prepared.append((offset, size))

    async with Ahead(length, prepare, 2 * STEP_BYTES) as ahead:
        await ahead.until(2 * STEP_BYTES)
        assert prepared == [(0, STEP_BYTES), (STEP_BYTES, STEP_BYTES)]
        ahead.reached(length)
        await ahead.until(length)
    assert prepared[-1] == (5 * STEP_BYTES, 1)
    assert sum(size for _, size in prepared) == length


async def test_ahead__tells_what_went_wrong() -> None:
    def prepare(offset: int, size: int) -> None:
        raise OSError(28, "no room")

    async with Ahead(STEP_BYTES, prepare, STEP_BYTES) as ahead:
        with pytest.raises(OSError, match="no room"):
            await ahead.until(1)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_no_thread_can_start__it_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without memory has no threads either: that ended in a traceback."""
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(MemoryError, match="new thread"):
            await in_thread(len, "abc")
        async with Line() as line:
            with pytest.raises(MemoryError):
                line.put(len, "abc")
