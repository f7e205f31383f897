# SPDX-License-Identifier: Apache-2.0
"""mrc top: its tables, the window on a terminal, and what keys show."""

from __future__ import annotations

import copy
import re
import sys
import termios
from pathlib import Path

import pytest
from endpoints import SNAPSHOT
from processes import terminal
from project_text import ROOT
from rich.cells import cell_len
from slowness import PATIENCE

from mrc import products
from mrc.cli import top
from mrc.cli.main import main
from mrc.cli.terminal import Block, TerminalWindow, blocks_text, parsed, rendered
from mrc.cli.top import (
    DROPS,
    MAX_ROWS,
    Top,
    Unanswered,
    checked,
    path_blocks,
    qp_blocks,
    summary_blocks,
    with_rates,
)

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


# ---- Tables --------------------------------------------------------------------------------------


def test_blocks__what_is_shown() -> None:
    endpoint = with_rates(None, checked(SNAPSHOT))
    title, drops, planes = summary_blocks(endpoint)
    (qps,), (paths,) = qp_blocks(endpoint, 1), path_blocks(endpoint, 1)
    assert title.text() == "h0: mrc send, pid 7, UDP port 4791, 1 QP"
    assert drops.text() == "  so far: 3 dropped (too short), 2 timeouts"
    assert planes.rows == [(1, "p1", "suspended", "0 bit/s", "0 bit/s", "-", 1)]
    assert qps.rows[0][:3] == ("0x001234", "h1", "RTS") and qps.rows[0][-2] == "250 us"
    assert paths.rows == [("h1", 1, "t1:1.0", "ASSUMED_BAD", "-", 1)]


@pytest.mark.parametrize(
    ("planes", "state"),
    [
        ([(False, False, 100)], "up"),
        ([(False, False, 100, 0)], "backup"),
        ([(True, False, 100, 0)], "suspended"),
        ([(False, False, 100), (False, False, 100, 50)], "weight 50"),
        ([(False, True, 9)], "slow 9%"),
        ([(False, True, 9), (False, True, 7)], "slow 7%"),
        ([(True, False, 100), (False, True, 20)], "suspended 1/2"),
    ],
)
def test_summary_blocks__state_of_a_plane(planes: list[tuple[int, ...]], state: str) -> None:
    (qp,) = SNAPSHOT["qps"]
    qps = [
        qp | {"planes": [
            qp["planes"][0]
            | dict(zip(("suspended", "slow", "share_percent", "weight"), fields, strict=False))
        ]}
        for fields in planes
    ]  # fmt: skip
    found = checked(SNAPSHOT | {"qps": qps})
    assert summary_blocks(with_rates(None, found))[-1].rows[0][2] == state


def test_summary_blocks__drops_hurt_when_they_grow_and_are_not_usual() -> None:
    later = SNAPSHOT | {
        "monotonic_ns": 3 * 10**9,
        "drops": {"ICRC": 13, "DUPLICATE": 90, "SHORT": 1},
        "counters": {"TIMEOUTS": 2, "RX_OVERFLOW": 20, "SPURIOUS": 9, "RX_DATA": 5},
    }
    before = SNAPSHOT | {"drops": {"ICRC": 3, "SHORT": 1}}
    shown = with_rates(checked(before), checked(later))
    assert shown.drops_per_second == {"ICRC": 5, "DUPLICATE": 45}
    hurts, rest = summary_blocks(shown)[1:3]
    assert hurts.text() == ("  now: 13 dropped (wrong ICRC) 5/s, 20 receive buffer overflows 10/s")
    assert rest.text() == (
        "  so far: 90 dropped (duplicates), 1 dropped (too short), 2 timeouts, 9 spurious losses"
    )
    assert (hurts.style, rest.style) == ("bold red", "dim")


def test_drops__every_reason_has_words() -> None:
    listed = (ROOT / "csrc/core/drops.def").read_text()
    assert set(re.findall(r"^X\((\w+),", listed, re.MULTILINE)) == DROPS.keys()


def test_summary_blocks__fit_80_columns_and_24_lines() -> None:
    (qp,) = SNAPSHOT["qps"]
    planes = [
        qp["planes"][0] | {"plane": i, "suspended": True, "rtt_ns": 123_456, "sent_bytes": 10**9,
                           "received_bytes": 10**9, "lost_packets": 10**5}
        for i in range(1, 9)
    ]  # fmt: skip
    ports = [{"plane": i, "nic": "enp193s0f0np" + str(i), "address": "::"} for i in range(1, 9)]
    many = SNAPSHOT | {"ports": ports, "qps": 8 * [qp | {"planes": planes}], "qps_total": 8}
    lines = blocks_text(summary_blocks(with_rates(None, checked(many)))).split("\n")
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    assert sum("suspended 8/8" in line for line in lines) == 8


def test_path_blocks__the_worst_paths_first_and_not_too_many() -> None:
    many = copy.deepcopy(SNAPSHOT)
    (ev,) = many["qps"][0]["evs"]
    good = [ev | {"path": f"t1:1.{i}", "state": "GOOD"} for i in range(1, 100)]
    many["qps"][0]["evs"] = [*good, ev, ev | {"state": "GOOD"}]
    paths = path_blocks(with_rates(None, checked(many)), MAX_ROWS)[-1]
    assert len(paths.rows) == MAX_ROWS and paths.title == "paths (EVs), 68 more"
    assert paths.rows[0][2:4] == ("t1:1.0", "ASSUMED_BAD 1, GOOD 1")


def test_blocks_text() -> None:
    assert blocks_text([Block("a"), Block("b", ("n",), [(1,)])]) == "a\nb\nn\n1"


# ---- Tables with colours -------------------------------------------------------------------------


def test_rendered__is_the_same_table_with_colours() -> None:
    block = Block("paths", ("path", "state"), [("t1:1.0", "GOOD"), ("t1:1.1", "ASSUMED_BAD, GOOD")])
    text = rendered(block)
    assert text.plain == block.text()
    coloured = [(text.plain[span.start : span.end], span.style) for span in text.spans]
    assert coloured[0] == ("paths", "bold")
    assert sorted(coloured[2:]) == [("ASSUMED_BAD", "red"), ("GOOD", "green"), ("GOOD", "green")]


def test_rendered__a_title_alone() -> None:
    assert rendered(Block("nothing here")).plain == "nothing here"


# ---- The window ----------------------------------------------------------------------------------


ROWS = Block("t", ("n", "text"), [(i, f"row {i} " + "x" * 40) for i in range(100)])


def lines(window: TerminalWindow, *keys: str) -> list[str]:
    for key in keys:
        window.move(key)
    return window.show([ROWS], "help", 30, 10).plain.split("\n")


def test_parsed__keys_of_a_terminal() -> None:
    assert parsed("\x1b[A\x1bOBq\x1b[5~e\x1b[1;5Pp ") == [
        "up", "down", "q", "page up", "e", "p", "page down",
    ]  # fmt: skip


def test_window__shows_what_fits() -> None:
    window = TerminalWindow()
    seen = lines(window)
    assert len(seen) == 10 and seen[:2] == ["t", " n  text"]
    assert seen[-1] == "lines 1-9 of 102  help"
    assert all(len(line) <= 30 for line in seen)
    assert window.show([Block("a")], "help", 80, 3).plain == "a\n\nhelp"


def test_window__scrolls_to_its_ends_and_not_further() -> None:
    window = TerminalWindow()
    assert lines(window, "up")[0] == "t"
    assert lines(window, "down", "down")[0].startswith(" 0  row 0")
    assert lines(window, "page down")[0].startswith(" 8  row 8")
    assert lines(window, "end", "down")[-2].startswith("99  row 99")
    assert lines(window, "right")[-2] == ("99  row 99 " + "x" * 40)[8:38]
    assert lines(window, *4 * ["right"])[-2] == ("99  row 99 " + "x" * 40)[21:]
    assert lines(window, "home", *9 * ["left"])[0] == "t"


def test_window__stays_inside_what_has_become_shorter() -> None:
    window = TerminalWindow()
    lines(window, "end", *9 * ["right"])
    assert window.show([Block("a"), Block("b")], "help", 30, 10).plain.split("\n")[:2] == ["a", "b"]


def test_window__characters_of_two_columns() -> None:
    wide = Block("t", ("name",), [("写真" * 20,)])
    seen = TerminalWindow().show([wide], "写真" * 20, 31, 4).plain.split("\n")
    assert [cell_len(line) <= 31 for line in seen] == [True] * 4
    assert seen[-1].startswith("写真")
