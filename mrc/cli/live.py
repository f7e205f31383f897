# SPDX-License-Identifier: Apache-2.0
"""Tables that are refreshed: in place on a terminal, otherwise printed one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mrc.cli.output import format_table

_STYLES = {"GOOD": "green", "SKIP": "yellow", "ASSUMED_BAD": "red", "suspended": "red",
           "DENIED": "magenta", "ERROR": "red", "NO_ANSWER": "red"}  # fmt: skip


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
