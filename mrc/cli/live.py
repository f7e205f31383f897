# SPDX-License-Identifier: Apache-2.0
"""Tables that are shown again and again: in place on a terminal, else one block after the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mrc.cli.output import format_table

_STYLES = {"GOOD": "green", "SKIP": "yellow", "ASSUMED_BAD": "red", "suspended": "red",
           "DENIED": "magenta", "ERROR": "red"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """A title and, under it, a table; without rows the title alone."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()

    def text(self) -> str:
        return f"{self.title}\n{format_table(self.head, self.rows)}" if self.rows else self.title


def blocks_text(blocks: Sequence[Block]) -> str:
    """All of them for whoever reads no terminal."""
    return "\n".join(block.text() for block in blocks)


class Screen:
    """Where blocks are shown. A context manager; `whole` takes all of the terminal meanwhile."""

    def __init__(self, *, whole: bool) -> None:
        console = Console()
        self._live: Live | None = None
        if sys.stdout.isatty():
            self._live = Live(
                console=console, screen=whole, auto_refresh=False, vertical_overflow="ellipsis"
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, blocks: Sequence[Block]) -> None:
        """Shows these in place of those before."""
        if self._live is None:
            print(blocks_text(blocks) + "\n", flush=True)
        else:
            self._live.update(Group(*map(rendered, blocks)), refresh=True)


def rendered(block: Block) -> Text:
    """The same text as anywhere else, with colours."""
    text = Text(block.text(), no_wrap=True, overflow="ellipsis")
    text.stylize("bold", 0, len(block.title))
    if block.rows:
        head = len(block.title) + 1
        text.stylize("dim", head, text.plain.find("\n", head))
    for word, style in _STYLES.items():
        text.highlight_regex(rf"\b{word}\b", style)
    return text
