# SPDX-License-Identifier: Apache-2.0
"""Keys of the terminal while an event loop runs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
