# SPDX-License-Identifier: Apache-2.0
"""A terminal: tables that are refreshed in place, a window over blocks that keys move."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mrc.cli.output import format_table

# ---- Tables that are refreshed -------------------------------------------------------------------


_STYLES = {"GOOD": "green", "SKIP": "yellow", "ASSUMED_BAD": "red", "suspended": "red",
           "DENIED": "magenta", "ERROR": "red", "NO_ANSWER": "red", "UNPROVEN": "yellow",
           "USED": "green", "BACKUP": "green", "SILENT": "red", "UNREACHABLE": "red",
           "SMALL": "red", "LIMIT": "red", "TRYING": "yellow"}  # fmt: skip


class Block(Struct, frozen=True):
    """A title and a table below it; without rows, only the title."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    style: str = "bold"
    """of the title"""

    def text(self) -> str:
        return f"{self.title}\n{format_table(self.head, self.rows)}" if self.rows else self.title


def blocks_text(blocks: Sequence[Block]) -> str:
    """All blocks as plain text."""
    return "\n".join(block.text() for block in blocks)


@contextmanager
def screen() -> Iterator[Callable[[Sequence[Block]], None]]:
    """Yields a function that shows blocks in place of the last ones.

    Without a terminal the function prints the blocks.
    """
    if not sys.stdout.isatty():
        yield lambda blocks: print(blocks_text(blocks) + "\n", flush=True)
        return
    with Live(console=Console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield lambda blocks: live.update(Group(*map(rendered, blocks)), refresh=True)


def rendered(block: Block) -> Text:
    """The text of `block.text()`, with colours."""
    text = Text(block.text(), no_wrap=True, overflow="ellipsis")
    text.stylize(block.style, 0, len(block.title))
    if block.rows:
        head = len(block.title) + 1
        text.stylize("dim", head, text.plain.find("\n", head))
    for word, style in _STYLES.items():
        text.highlight_regex(rf"\b{word}\b", style)
    return text


# ---- Keys ----------------------------------------------------------------------------------------


_NAMES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down", " ": "page down",
    "\x1b[H": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1b[4~": "end",
}  # fmt: skip
_KEY = re.compile(r"\x1b\[[0-9;]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)


def parsed(text: str) -> list[str]:
    """The keys that a terminal sent: names such as "up", or characters; other keys are left out."""
    keys = (key.replace("\x1bO", "\x1b[") for key in _KEY.findall(text))
    named = (_NAMES.get(key, key) for key in keys)
    return [key for key in named if not key.startswith("\x1b")]


@contextmanager
def keys(on_key: Callable[[str], None]) -> Iterator[bool]:
    """Calls `on_key` for each key. Yields False, and never calls it, without a terminal on stdin.

    ^C remains a signal.
    """
    if not sys.stdin.isatty():
        yield False
        return
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        if not (found := os.read(fd, 256)):  # the terminal is gone
            loop.remove_reader(fd)
        for key in parsed(found.decode(errors="ignore")):
            on_key(key)

    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield True
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


# ---- A window ------------------------------------------------------------------------------------


_STEP = 8  # columns that an arrow moves the window


class TerminalWindow:
    """The part of the blocks that is visible. Pure; `Screen` shows it."""

    def __init__(self) -> None:
        self._top = 0
        self._left = 0
        self._height = 0
        self._lines = 0
        self._columns = 0
        self._width = 0

    def move(self, key: str) -> None:
        """Moves the window; other keys do nothing."""
        page = max(1, self._height - 2)
        down = {"up": -1, "down": 1, "page up": -page, "page down": page,
                "home": -self._top, "end": self._lines}.get(key, 0)  # fmt: skip
        self._top += down
        self._left += {"left": -_STEP, "right": _STEP}.get(key, 0)
        self._clamp()

    def _clamp(self) -> None:
        self._top = max(0, min(self._top, self._lines - self._height + 1))
        self._left = max(0, min(self._left, self._columns - self._width))

    def show(self, blocks: Sequence[Block], help_text: str, width: int, height: int) -> Text:
        """The visible part as `height` lines of at most `width` columns. The last is the footer."""
        lines = [line for block in blocks for line in rendered(block).split("\n")]
        self._lines, self._height = len(lines), height
        self._columns, self._width = max((line.cell_len for line in lines), default=0), width
        self._clamp()
        seen = lines[self._top : self._top + height - 1]
        last = self._top + len(seen)
        cut = [line[self._left :] for line in seen]
        cut += [Text()] * (height - 1 - len(cut))
        place = "" if len(seen) == len(lines) else f"lines {self._top + 1}-{last} of {len(lines)}  "
        cut.append(Text(f"{place}{help_text}", style="reverse"))
        for line in cut:
            line.truncate(width, overflow="crop")
        return Text("\n").join(cut)


class Screen:
    """Shows a Window on the terminal, while an event loop runs. A context manager."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._shown: tuple[Sequence[Block], str] = (), ""
        self.window = TerminalWindow()

    def __enter__(self) -> Screen:
        self._live.start()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, lambda: self.show(*self._shown))
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGWINCH)
        self._live.stop()

    def show(self, blocks: Sequence[Block], help_text: str) -> None:
        self._shown = blocks, help_text
        size = self._console.size
        text = self.window.show(blocks, help_text, size.width, size.height)
        text.no_wrap, text.overflow = True, "crop"
        self._live.update(text, refresh=True)
