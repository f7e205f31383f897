# SPDX-License-Identifier: Apache-2.0
"""The part of some tables that a terminal shows, and the keys that move it."""

from __future__ import annotations

from rich.cells import cell_len

from mrc.cli.terminal import Block, TerminalWindow, parsed

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
