# SPDX-License-Identifier: Apache-2.0
"""`mrc top` on a terminal: what its keys show."""

from __future__ import annotations

import sys
import termios
from pathlib import Path

import pytest
from processes import terminal
from slowness import PATIENCE

from mrc import products
from mrc.cli import top
from mrc.cli.main import main
from mrc.cli.top import Top
from mrc.observe.snapshot import Unanswered

COMMAND = [sys.executable, "-m", "mrc", "top", "--local", "-i", "60"]


def test_blocks__without_an_endpoint() -> None:
    (block,) = top._blocks(Top(interval_seconds=1, endpoints=()), qps=True, evs=True, most=1)
    assert block.title == "no endpoint of this user runs on this machine"


def test_blocks__an_endpoint_that_does_not_answer() -> None:
    silent = Unanswered(pid=7, program="mrc", error="no answer in 5 s")
    shown = Top(interval_seconds=1, endpoints=(), unanswered=(silent,))
    (block,) = top._blocks(shown, qps=True, evs=True, most=1)
    assert block.title == "mrc, pid 7: no answer in 5 s"


def test_web__in_a_tree_without_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(products, "PAGE", "mrc.absent.web")
    assert main(["top", "--web", "--local"]) == 2
    wrong = "mrc top: --web: needs mrc testbed view, which this mrc lacks\n"
    assert capsys.readouterr().err == wrong


def test_local__in_a_tree_without_test_beds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(products, "KEEPER", "mrc.absent.keeper")
    assert main(["top", "--local", "--json", "-i", "0.01"]) == 0
    assert '"endpoints": [' in capsys.readouterr().out


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
