# SPDX-License-Identifier: Apache-2.0
"""Programs that this process starts and exchanges lines with, such as one in a host of a test bed,
or by ssh on another machine.

`Child` is for asyncio, `BlockingChild` for code without it. Both keep what the program writes to
stderr, because its last line says why it ended; end it within a time limit; and close all
descriptors. A program that is tied ends with this process, also if it is stuck, and this process
is killed (mrc/testbed/children.py).
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Self

from mrc.tasks import cancelled
from mrc.testbed.children import tied

_END_SECONDS = 10.0
_LINE_BYTES = 1 << 16
_MOST_NOTES = 100


class Child:
    """A tied program with pipes. `pid` is that of the program itself."""

    def __init__(self, process: Process, on_note: Callable[[str], None] | None = None) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._on_note = process, on_note
        self._input, self._output = process.stdin, process.stdout
        self.pid = process.pid
        self.notes: deque[str] = deque(maxlen=_MOST_NOTES)
        """the last lines of its stderr"""
        self._noting = asyncio.create_task(self._take_notes())
        self._reading: asyncio.Task[bytes] | None = None

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        apart: bool = True,
        line_bytes: int = _LINE_BYTES,
        on_note: Callable[[str], None] | None = None,
    ) -> Self:
        """`apart`: as in `tied`. `on_note`: is called with each line of its stderr."""
        process = await asyncio.create_subprocess_exec(
            *tied(command, apart=apart), env=environment,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=line_bytes,
        )  # fmt: skip
        return cls(process, on_note)

    @property
    def exit_code(self) -> int | None:
        """None: it runs."""
        return self._process.returncode

    async def _take_notes(self) -> None:
        """Reads all of stderr: a program must not wait because nobody reads."""
        assert self._process.stderr is not None
        while True:
            with suppress(ValueError):  # a line that is too long
                if not (line := await self._process.stderr.readline()):
                    return
                self.notes.append(line.decode(errors="replace").rstrip())
                if self._on_note is not None:
                    self._on_note(self.notes[-1])

    def send(self, line: bytes) -> None:
        """Sends a line, without its end. Never fails: reading the answer does."""
        self._input.write(line + b"\n")

    async def line(self) -> bytes:
        """Its next line, with its end; empty if it has ended, also in the middle of a line."""
        line = await self._output.readline()
        return line if line.endswith(b"\n") else b""

    async def output(self) -> bytes:
        """All that it prints until it ends; it has ended then. May be called again, also after a
        call was cancelled.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._output.read())
        await asyncio.wait((self._reading, self._noting))  # cancels neither
        await self._process.wait()
        return await self._reading

    async def last_words(self) -> str:
        """Why it ended. Ends it if it only closed its output."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._noting), _END_SECONDS)
        if said := [note for note in self.notes if note.strip()]:
            return said[-1].strip()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        await self.end()
        return f"its process ended with exit code {self.exit_code}"

    async def end(self, seconds: float = _END_SECONDS) -> None:
        """Ends it if it still runs: by the end of its input and SIGTERM, then by SIGKILL."""
        self._input.close()
        with suppress(ProcessLookupError):
            if self.exit_code is None:
                self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        # Its pipes too: uvloop reports the end of a process before that of its output.
        self._process._transport.close()  # type: ignore[attr-defined]
        await cancelled(self._noting, *([self._reading] if self._reading is not None else ()))


class BlockingChild:
    """A program whose standard input and output are a socket, so that each answer has a limit."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        ties: bool = True,
        seconds: float | None = None,
        keeps_notes: bool = True,
    ) -> None:
        """`ties`: it ends with this process, else by the end of its input, when it can clean up.
        `seconds`: until an answer. Without `keeps_notes` its stderr is that of this process.

        It gets no ^C of the terminal. Raises OSError if it cannot be started.
        """
        with ExitStack() as if_it_fails, ExitStack() as its_own:
            self.socket, its = socket.socketpair()
            if_it_fails.callback(self.socket.close)
            its_own.callback(its.close)
            self._notes = if_it_fails.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                tied(command) if ties else command, env=environment,
                stdin=its.fileno(), stdout=its.fileno(),
                stderr=self._notes if keeps_notes else None, process_group=-1 if ties else 0,
            )  # fmt: skip
            if_it_fails.pop_all()
        self.socket.settimeout(seconds)
        self._file = self.socket.makefile("rb")

    def send(self, line: bytes) -> None:
        """Sends a line, without its end. Never fails: reading the answer does."""
        with suppress(OSError):
            self.socket.sendall(line + b"\n")

    def line(self, most_bytes: int = -1) -> bytes:
        """Its next line, with its end; empty if it has ended, also in the middle of a line. Raises
        TimeoutError.
        """
        try:
            line = self._file.readline(most_bytes)
        except ConnectionError:  # it ended, and left something unread
            return b""
        return line if line.endswith(b"\n") else b""

    def notes(self) -> str:
        """What it has written to stderr."""
        self._notes.seek(0)
        return self._notes.read().decode(errors="replace")

    def last_words(self) -> str:
        """Why it ended. Ends it if it only closed its output."""
        self._wait(_END_SECONDS)
        if said := self.notes().strip().splitlines():
            return said[-1].strip()
        return f"its process ended with exit code {self.process.returncode}"

    def _wait(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def end(self, *, at_once: bool = False) -> None:
        """Ends its input; `at_once`: it can write no more either."""
        with suppress(OSError):  # it has ended
            self.socket.shutdown(socket.SHUT_RDWR if at_once else socket.SHUT_WR)

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Ends it by the end of its input, and kills it if that takes longer. A tied program takes
        its process group along.
        """
        self.end()
        self._wait(seconds)
        self._file.close()  # the descriptor stays open for as long as its file does
        self.socket.close()
        self._notes.close()
