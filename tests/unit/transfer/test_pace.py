# SPDX-License-Identifier: Apache-2.0
"""The rate of a sender: pieces at their times, and whole chunks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from transfer_ends import both, chunks, make, receiving, sending, sessions

from mrc.transfer.messages import CHUNK_BYTES
from mrc.transfer.pace import Pace, lower


@pytest.mark.parametrize(("rates", "lowest"), [((0, 0), 0), ((0, 5), 5), ((5, 3), 3)])
def test_lower__zero_is_no_limit(rates: tuple[float, ...], lowest: float) -> None:
    assert lower(*rates) == lowest


@pytest.mark.parametrize("rate", [0, 1, 20e6, 1e9, 1e12])
@pytest.mark.parametrize("length", [1, 4096, 100_000, CHUNK_BYTES])
def test_pieces__cover_the_chunk(rate: float, length: int) -> None:
    pieces = Pace(rate).pieces(length)
    assert [start for start, _ in pieces[1:]] == [sum(piece) for piece in pieces[:-1]]
    assert sum(pieces[-1]) == length
    if rate == 0:
        assert len(pieces) == 1


async def test_until__waits_for_the_bytes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    now = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now, raising=False)
    pace = Pace(8000)
    for _ in range(3):
        await pace.until(500)
    now += 10  # nothing is saved up
    for _ in range(2):
        await pace.until(1000)
    assert waited == [0.0, 0.5, 0.5, 0.0, 1.0]


async def test_send_plan__at_a_rate(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    data = os.urandom(5 * CHUNK_BYTES + 1)
    path = make(tmp_path, "a", data)
    async with sessions() as ends:
        await both(
            sending(ends.sender, [path], rate=1e9), receiving(ends.receiver, tmp_path / "inbox")
        )
        assert chunks(ends.out) == list(range(6))
    assert (tmp_path / "inbox/a").read_bytes() == data
