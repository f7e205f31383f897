# SPDX-License-Identifier: Apache-2.0
"""A terminal with a person at it, for commands that ask."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slowness import PATIENCE, until

_LAST = "\0"  # no program writes it


class Terminal:
    """The side of a terminal of 80x24 on which a person sits."""

    def __init__(self) -> None:
        self.fd, self.far = pty.openpty()
        self.resize(24, 80)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.seen = ""  # since the place that `until` has found
        self.all = ""

    def resize(self, rows: int, columns: int) -> None:
        """Programs that run on the terminal get SIGWINCH."""
        fcntl.ioctl(self.far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: str) -> str:
        """Reads on from the last place until this text comes. Returns what came before it."""
        while text not in self.seen:
            self._read(f"{text!r} does not come after {self.seen!r}")
        before, _, self.seen = self.seen.partition(text)
        return before

    def rest(self) -> str:
        """What has come since that place: the kernel may deliver it after the program's end."""
        while select.select([self.fd], [], [], 0)[0]:
            self._read("")
        os.write(self.far, _LAST.encode())
        while _LAST not in self.seen:
            self._read("the terminal is broken")
        self.seen, self.all = (each.replace(_LAST, "") for each in (self.seen, self.all))
        return self.seen

    def _read(self, otherwise: str) -> None:
        ready, _, _ = select.select([self.fd], [], [], PATIENCE)
        assert ready, otherwise
        came = self._decode(os.read(self.fd, 4096))
        self.seen += came
        self.all += came

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def interrupt(self, process: subprocess.Popen[Any]) -> None:
        """Presses Ctrl-C when the process waits: a read does not see a signal from before it."""
        stat = Path(f"/proc/{process.pid}/stat")
        until(lambda: stat.read_text().rpartition(") ")[2].startswith("S"))
        self.press("\x03")

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self.far)[3] & termios.ECHO)

    @contextmanager
    def running(self, *command: object, **environment: str) -> Iterator[subprocess.Popen[Any]]:
        """Runs a command on this terminal, which is the only thing that it reads and writes."""
        words: Sequence[str] = ["setsid", "--ctty", *map(str, command)]
        with subprocess.Popen(
            words, stdin=self.far, stdout=self.far, stderr=self.far,
            env={**os.environ, **environment},
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.far)


@contextmanager
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    try:
        yield made
    finally:
        made.close()
