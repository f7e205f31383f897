# SPDX-License-Identifier: Apache-2.0
"""Processes of tests: on a terminal with a person at it, of another user, their ends, what a new
interpreter loads, and tshark.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
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


# ---- ends of processes ---------------------------------------------------------------------------


def pidfds(pids: Iterable[str | bytes | int]) -> list[int]:
    """A descriptor for each process, which no other process gets that takes its number."""
    return [os.pidfd_open(int(pid)) for pid in pids]


def assert_end(descriptors: Iterable[int]) -> None:
    """All of these processes end."""
    for each in descriptors:
        assert select.select([each], [], [], PATIENCE)[0]
        os.close(each)


def assert_end_with(parent: Sequence[str], count: int = 2) -> None:
    """SIGKILL of `parent` ends the `count` processes whose numbers its first line has."""
    with subprocess.Popen(parent, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        ends = pidfds(starter.stdout.readline().split())
        assert len(ends) == count
        starter.kill()
        assert_end(ends)


# ---- another user --------------------------------------------------------------------------------

USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
_LISTEN = """\
import os, socket, sys
os.setuid(int(sys.argv[2]))
opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
opened.bind("\\0" + sys.argv[1][1:])
opened.listen(64)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def squatting(name: str, user: int = USER) -> Iterator[int]:
    """The process of a user who listens at an abstract name, and never answers."""
    command = [sys.executable, "-I", "-c", _LISTEN, name, str(user)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.stdin.close()


# ---- a new interpreter ---------------------------------------------------------------------------


def loaded(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after `code`."""
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


# ---- Wireshark ----------------------------------------------------------------------------------

needs_tshark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed: apt-get install tshark"
)


def tshark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs tshark. For root, Wireshark 4.4 loads no Lua scripts. In a user namespace of its own
    tshark is not root, but may still read root's files.
    """
    own = ("unshare", "--user") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*own, "tshark", *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done
