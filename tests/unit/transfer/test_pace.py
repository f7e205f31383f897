# SPDX-License-Identifier: Apache-2.0
"""The rate of a sender: pieces at their times, and whole chunks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from transfer_ends import both, chunks, make, receiving, sending, sessions

from mrc.transfer import plan, sender
from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.receiver import Due
from mrc.transfer.sender import MIN_PIECE_BYTES, PIECE_SECONDS, Pace, lower


@pytest.mark.parametrize(("rates", "lowest"), [((0, 0), 0), ((0, 5), 5), ((5, 3), 3)])
def test_lower__zero_is_no_limit(rates: tuple[float, ...], lowest: float) -> None:
    assert lower(*rates) == lowest


@pytest.mark.parametrize("rate", [0, 1, 20e6, 25_300_000, 1e9, 1e12])
@pytest.mark.parametrize("length", [1, 4096, 100_000, CHUNK_BYTES])
def test_pieces__cover_the_chunk(rate: float, length: int) -> None:
    pieces = Pace(rate).pieces(length)
    assert [start for start, _ in pieces[1:]] == [sum(piece) for piece in pieces[:-1]]
    assert sum(pieces[-1]) == length
    if rate == 0:
        assert len(pieces) == 1
    else:
        whole = {size for _, size in pieces[:-1]}
        assert all(size % MIN_PIECE_BYTES == 0 for size in whole)
        assert all(size <= max(MIN_PIECE_BYTES, rate / 8 * PIECE_SECONDS) for size in whole)


class Clock:
    """The time of the running event loop, which passes only in sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waited = 100.0, list[float]()
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: self.now, raising=False)

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


async def test_until__waits_for_the_bytes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(8000)
    for _ in range(3):
        await pace.until(500)
    clock.now += 10  # nothing is saved up
    for _ in range(2):
        await pace.until(1000)
    assert clock.waited == [0.0, 0.5, 0.5, 0.0, 1.0]


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


async def test_wait__only_for_what_came_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    due = Due()
    await due.wait(1 << 30)  # without a rate
    due.begin(8000)
    clock.now += 0.5
    await due.wait((1 << 30) + 1000)  # half a second too soon
    clock.now += 1
    await due.wait((1 << 30) + 2000)  # in time
    clock.now += 10
    await due.wait((1 << 30) + 2500)  # late: nothing is saved up
    await due.wait((1 << 30) + 3000)
    assert clock.waited == [0.5, 0.0, 0.0, 0.5]


@pytest.mark.parametrize("count", [1, 2])
async def test_receive_files__a_sender_that_ignores_the_rate_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """In one file by its credit, in several ones by the receiver's acceptance of the next."""
    (tmp_path / "inbox").mkdir()
    rate, window = 80e6, 2 * CHUNK_BYTES if count == 1 else 8 * CHUNK_BYTES
    each = 4 * CHUNK_BYTES // count
    paths = [make(tmp_path, f"file{n}", os.urandom(each)) for n in range(count)]
    monkeypatch.setattr(plan, "PACKED_BYTES", 0)
    monkeypatch.setattr(sender, "lower", lambda *rates: 0.0)
    now = asyncio.get_running_loop().time
    async with sessions() as ends:
        began = now()
        got = receiving(ends.receiver, tmp_path / "inbox", rate=rate, window_bytes=window)
        sent, stored = await both(sending(ends.sender, paths), got)
        assert len(sent) == len(stored) == count
    # The last two chunks need no credit, and no file follows them.
    assert now() - began >= 2 * CHUNK_BYTES * 8 / rate
