# SPDX-License-Identifier: Apache-2.0
"""Questions to the user at the terminal. Standard input may carry data, so /dev/tty is asked."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from mrc.connect.parse import shown

_ANSWER_BYTES = 256


def terminal() -> bool:
    """Whether there is a user to ask."""
    if not sys.stderr.isatty():
        return False
    with _opened() as tty:
        return tty is not None


def hidden(prompt: str) -> str | None:
    """A line that the terminal does not show while it is typed; None without a terminal."""
    with _opened() as tty:
        if tty is None:
            return None
    try:
        return getpass.getpass(prompt)
    except EOFError:
        return ""


@contextmanager
def _opened() -> Iterator[int | None]:
    """A descriptor of the terminal; None without one."""
    try:
        tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        yield None
        return
    try:
        yield tty
    finally:
        os.close(tty)


class Question:
    """Asks one question at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def about_host(self, host: str, fingerprint: str) -> bool:
        question = f"{shown(host)} is {fingerprint}; trust it? [y/N] "
        return await self.ask(question) in ("y", "yes")

    async def for_code(self, host: str) -> str:
        with _opened() as tty, nullcontext() if tty is None else _hidden(tty):
            return await self.ask(f"one-time code that {shown(host)} shows: ")

    async def ask(self, question: str) -> str:
        """The answer in lower case, empty without a terminal; Ctrl-C ends the wait."""
        async with self._turn:
            with _opened() as tty:
                return "" if tty is None else await _typed_answer(tty, question)


@contextmanager
def _hidden(tty: int) -> Iterator[None]:
    """The terminal does not show what is typed."""
    before = termios.tcgetattr(tty)
    flags = list(before)
    flags[3] = flags[3] & ~termios.ECHO | termios.ECHONL
    termios.tcsetattr(tty, termios.TCSAFLUSH, flags)
    try:
        yield
    finally:
        termios.tcsetattr(tty, termios.TCSAFLUSH, before)


async def _typed_answer(tty: int, question: str) -> str:
    termios.tcflush(tty, termios.TCIFLUSH)  # keys pressed before the question do not answer it
    os.write(tty, question.encode())
    loop, answered, line = asyncio.get_running_loop(), asyncio.Event(), b""
    loop.add_reader(tty, answered.set)
    try:
        await answered.wait()
        line = os.read(tty, _ANSWER_BYTES)
    finally:
        loop.remove_reader(tty)
        if not line.endswith(b"\n"):
            os.write(tty, b"\n")
    return line.decode(errors="replace").strip().lower()
