# SPDX-License-Identifier: Apache-2.0
"""`mrc top` on a terminal: what its keys show."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

from slowness import limit

COMMAND = [sys.executable, "-m", "mrc", "top", "--local", "-i", "60"]


class Terminal:
    """The side of a terminal of 80x24 on which a person sits."""

    def __init__(self) -> None:
        self.fd, self.far = pty.openpty()
        fcntl.ioctl(self.far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.seen = ""

    def until(self, text: str) -> None:
        """Reads on from the last place until this text comes."""
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], limit(20))
            assert ready, f"{text!r} does not come after {self.seen!r}"
            self.seen += os.read(self.fd, 4096).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())


def test_keys__show_tables_and_quit(tmp_path: Path) -> None:
    terminal = Terminal()
    environ = {**os.environ, "TERM": "xterm", "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(COMMAND, stdin=terminal.far, stdout=terminal.far, env=environ) as top:
        try:
            terminal.until("no endpoint of this user runs on this machine")
            terminal.until("arrows: scroll  p: QPs  e: EVs  q: quit")
            before = termios.tcgetattr(terminal.far)
            terminal.press("e")
            terminal.until("q: quit")
            terminal.press("q")
            assert top.wait(limit(20)) == 0
        finally:
            top.kill()
    assert not before[3] & termios.ICANON
    assert termios.tcgetattr(terminal.far)[3] & termios.ICANON, "the terminal is as it was"
    os.close(terminal.fd)
    os.close(terminal.far)
