# SPDX-License-Identifier: Apache-2.0
"""`mrc top` on a terminal: what its keys show."""

from __future__ import annotations

import sys
import termios
from pathlib import Path

from slowness import PATIENCE
from terminals import terminal

from mrc.cli import top
from mrc.results.top import Top, Unanswered

COMMAND = [sys.executable, "-m", "mrc", "top", "--local", "-i", "60"]


def test_blocks__without_an_endpoint() -> None:
    (block,) = top._blocks(Top(interval_seconds=1, endpoints=()), qps=True, evs=True, most=1)
    assert block.title == "no endpoint of this user runs on this machine"


def test_blocks__an_endpoint_that_does_not_answer() -> None:
    silent = Unanswered(pid=7, program="mrc", error="no answer in 5 s")
    shown = Top(interval_seconds=1, endpoints=(), unanswered=(silent,))
    (block,) = top._blocks(shown, qps=True, evs=True, most=1)
    assert block.title == "mrc, pid 7: no answer in 5 s"


def test_keys__show_tables_and_quit(tmp_path: Path) -> None:
    with (
        terminal() as tty,
        tty.running(*COMMAND, XDG_RUNTIME_DIR=str(tmp_path)) as process,
    ):
        tty.until("arrows: scroll  p: QPs  e: EVs  q: quit")
        before = termios.tcgetattr(tty.far)
        tty.press("e")
        tty.until("q: quit")
        tty.press("q")
        assert process.wait(PATIENCE) == 0
        assert not before[3] & termios.ICANON
        assert termios.tcgetattr(tty.far)[3] & termios.ICANON, "the terminal is as it was"
