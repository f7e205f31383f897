# SPDX-License-Identifier: Apache-2.0
"""A whole terminal that shows a part of some blocks, with a footer; keys move the part."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mrc.cli.live import Block, rendered

_STEP = 8  # columns that an arrow moves the window


class Window:
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
        self.window = Window()

    def __enter__(self) -> Screen:
        self._live.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._resized)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGWINCH)
        self._live.stop()

    def _resized(self) -> None:
        self.show(*self._shown)

    def show(self, blocks: Sequence[Block], help_text: str) -> None:
        self._shown = blocks, help_text
        size = self._console.size
        text = self.window.show(blocks, help_text, size.width, size.height)
        text.no_wrap, text.overflow = True, "crop"
        self._live.update(text, refresh=True)
