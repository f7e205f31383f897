# SPDX-License-Identifier: Apache-2.0
"""Bars and shares of planes, from a QP with scripted counters."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass
from typing import Any

import pytest

from mrc.cli.output import Output
from mrc.cli.progress import ProgressMeter, payload_bytes, plane_shares
from mrc.errors import StateError
from mrc.exchange.foreign import printable


@dataclass(frozen=True)
class Plane:
    plane: int
    sent_bytes: int
    lost: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class Info:
    acknowledged_bytes: int
    received_bytes: int
    planes: tuple[Plane, ...] = (Plane(1, 3, received_bytes=4), Plane(2, 5, received_bytes=6))
    retransmitted_packets: int = 0


class CountingQp:
    """Each query reports 100 more bytes sent and 1000 more received."""

    def __init__(self, answers: int) -> None:
        self.asked = 0
        self.enough = asyncio.Event()
        self._answers = answers

    async def query(self) -> Info:
        self.asked += 1
        if self.asked >= self._answers:
            self.enough.set()
        return Info(100 * self.asked, 1000 * self.asked)


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ((0, 0), (75, 25), "planes 1: 75% 2: 25%"),
        ((50, 0), (60, 30), "planes 1: 25% 2: 75%"),
        ((5, 5), (5, 5), ""),
    ],
)
def test_plane_shares__of_what_moved(
    before: tuple[int, int], now: tuple[int, int], text: str
) -> None:
    def planes(counts: tuple[int, int]) -> Any:
        return [Plane(n, count) for n, count in enumerate(counts, 1)]

    assert plane_shares("sender", planes(before), planes(now)) == text
    assert plane_shares("receiver", planes(before), planes(now)) == ""


def test_plane_shares__of_what_a_receiver_got() -> None:
    before: Any = [Plane(1, 9), Plane(2, 9)]
    now: Any = [Plane(1, 9, received_bytes=25), Plane(2, 10, received_bytes=75)]
    assert plane_shares("receiver", before, now) == "planes 1: 25% 2: 75%"


def test_payload_bytes__of_each_end() -> None:
    info: Any = Info(3, 7)
    assert payload_bytes("sender", info) == 3
    assert payload_bytes("receiver", info) == 7


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_watch__qp_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class GoneQp(CountingQp):
        async def query(self) -> Info:
            self.enough.set()
            raise StateError("gone")

    monkeypatch.setattr("sys.stderr", Terminal())
    meter, qp = ProgressMeter(Output("mrc test", as_json=False, quiet=False), "sender"), GoneQp(1)
    async with meter.watch(qp, "title", None):  # type: ignore[arg-type]
        await qp.enough.wait()


async def test_watch__nobody_asks_without_a_terminal() -> None:
    meter, qp = (
        ProgressMeter(Output("mrc test", as_json=False, quiet=True), "sender"),
        CountingQp(1),
    )
    async with meter.watch(qp, "title", None):  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert qp.asked == 0


@pytest.mark.parametrize("peer", ["[/]", "[bold]x", "\x1b[2J", "x" * 300, "\u202e"])
async def test_watch__a_peer_cannot_touch_the_terminal(
    monkeypatch: pytest.MonkeyPatch, peer: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("mrc.cli.progress.BAR_SECONDS", 0.0)
    qp = CountingQp(answers=3)
    meter = ProgressMeter(Output("mrc test", as_json=False, quiet=False), "receiver")
    async with meter.watch(qp, f"from {peer}", 1 << 63):  # type: ignore[arg-type]
        await qp.enough.wait()
        meter.note("a line")
    shown = terminal.getvalue()
    assert printable(peer)[:30] in shown
    assert "\x1b[2J" not in shown and "\u202e" not in shown and "x" * 60 not in shown
    assert "a line" in shown
