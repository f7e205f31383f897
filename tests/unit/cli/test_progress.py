# SPDX-License-Identifier: Apache-2.0
"""Lines of progress, from a QP with scripted counters."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import dataclass
from typing import Any

import pytest

from mrc.cli.output import Output
from mrc.connect.parse import printable
from mrc.errors import StateError
from mrc.transfer.cli.report import ProgressMeter, payload_bytes


@dataclass(frozen=True)
class Plane:
    plane: int
    sent_bytes: int
    lost: int = 0
    received_bytes: int = 0
    suspended: bool = False


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
    monkeypatch.setattr("mrc.transfer.cli.report.BAR_SECONDS", 0.0)
    qp = CountingQp(answers=3)
    meter = ProgressMeter(Output("mrc test", as_json=False, quiet=False), "receiver")
    async with meter.watch(qp, f"from {peer}", 1 << 63):  # type: ignore[arg-type]
        await qp.enough.wait()
        meter.note("a line")
    shown = terminal.getvalue()
    assert printable(peer)[:6] in shown
    assert "2/2 planes" in shown
    assert "\x1b[2J" not in shown and "\u202e" not in shown and "x" * 60 not in shown
    assert "a line" in shown


async def test_watch__what_need_not_move_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("mrc.transfer.cli.report.BAR_SECONDS", 0.0)
    meter, qp = (
        ProgressMeter(Output("mrc send", as_json=False, quiet=False), "sender"),
        CountingQp(2),
    )
    async with meter.watch(qp, "to h1", 1000, lambda: 800):  # type: ignore[arg-type]
        await qp.enough.wait()
        await asyncio.sleep(0)
    assert "100%  " in terminal.getvalue() and "1000 B of 1000 B" in terminal.getvalue()


async def test_note_once__the_first_of_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    meter = ProgressMeter(Output("mrc test", as_json=False, quiet=False), "receiver")
    for text in ("", "one", "two"):
        meter.note_once(text)
    assert capsys.readouterr().err == "mrc test: one\n"


@pytest.mark.parametrize("verbose", [True, False])
def test_detail__only_with_v(capsys: pytest.CaptureFixture[str], verbose: bool) -> None:
    out = Output("mrc test", as_json=False, quiet=False, verbose=verbose)
    ProgressMeter(out, "sender").detail("QP 0x1")
    assert ("QP 0x1" in capsys.readouterr().err) is verbose


@pytest.mark.parametrize("columns", [60, 80])
async def test_watch__one_line_that_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("mrc.transfer.cli.report.BAR_SECONDS", 0.0)
    qp = CountingQp(answers=4)
    meter = ProgressMeter(Output("mrc test", as_json=False, quiet=False), "sender")
    title = "to a-host-with-a-long-name.example"
    async with meter.watch(qp, title, 1 << 40):  # type: ignore[arg-type]
        await qp.enough.wait()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert lines and all(line.startswith("  0%  ") for line in lines), "none continues another"
    assert all("2/2" in line and len(line) < columns for line in lines)


@pytest.mark.parametrize(
    ("there", "said"),
    [(4096, "a: goes on behind 4 KiB of an earlier"), (8192, "a: was there with the same 8 KiB")],
)
async def test_resumed__part_of_a_file_or_all(
    capsys: pytest.CaptureFixture[str], there: int, said: str
) -> None:
    """A file that has only another mode or date has all its bytes there."""
    meter = ProgressMeter(Output("mrc send", as_json=False, quiet=False), "sender")
    moving: Any = CountingQp(1)
    meter.resumed(moving, "a", there, 8192)
    assert said in capsys.readouterr().err
