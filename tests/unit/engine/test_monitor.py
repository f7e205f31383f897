# SPDX-License-Identifier: Apache-2.0
"""The times at which the monitor reads the interfaces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from mrc.engine import ports
from mrc.engine.ports import link_snapshots
from mrc.errors import NetlinkError
from mrc.linux.interfaces import Interface


async def test_link_snapshots__begin_with_what_is_and_end_when_cancelled() -> None:
    snapshots = link_snapshots()
    assert "lo" in [interface.name for interface in await anext(snapshots)]
    waiting = asyncio.ensure_future(anext(snapshots))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_link_snapshots__take_little_however_often_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the monitor always has a reason to look, and each look takes 1 ms of CPU time."""
    monkeypatch.setattr(ports, "_RETRY_SECONDS", 0.0)

    def interfaces() -> list[Interface]:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        return []

    monkeypatch.setattr(ports, "interfaces", interfaces)
    started, used = time.monotonic(), time.thread_time()
    looks = 0
    async for _ in link_snapshots(lambda: True):
        looks += 1
        if looks == 20:
            break
    assert time.thread_time() - used < 0.25 * (time.monotonic() - started)


async def test_link_snapshots__go_on_when_interfaces_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_RETRY_SECONDS", 0.0)
    answers: Iterator[NetlinkError | list[Interface]] = iter(
        [NetlinkError("cannot read from the kernel"), []]
    )

    def interfaces() -> list[Interface]:
        answer = next(answers)
        if isinstance(answer, NetlinkError):
            raise answer
        return answer

    monkeypatch.setattr(ports, "interfaces", interfaces)
    assert await anext(link_snapshots(lambda: True)) == []
