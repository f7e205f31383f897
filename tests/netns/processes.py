# SPDX-License-Identifier: Apache-2.0
"""mrc as a process inside a host of a test bed: its output, progress and exit code."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Self

import pytest
from slowness import PATIENCE, limit, until

from mrc.errors import MrcError
from mrc.observe import views
from mrc.testbed.bed import Testbed


@dataclass
class Mrc:
    """One mrc in a host."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    changed: threading.Event = field(default_factory=threading.Event)
    socket: Path | None = None  # its socket for `mrc top`

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def begin(cls, argv: list[str], environment: dict[str, str] | None = None) -> Mrc:
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(argv, env=environment, stdout=pipe, stderr=pipe, text=True))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            self.changed.set()
        self.changed.set()

    def until_says(self, words: str) -> Mrc:
        """Waits for a line on stderr."""
        while not any(words in line for line in self.lines):
            assert self.process.poll() is None, self.lines
            assert self.changed.wait(PATIENCE), self.lines
            self.changed.clear()
        return self

    def until_listening(self) -> Mrc:
        return self.until_says("listening on")

    def received(self) -> int:
        """Payload bytes placed so far, as `mrc top --local` shows them.

        Raises OSError or MrcError when the endpoint is closed.
        """
        assert self.socket is not None
        counters: dict[str, int] = asyncio.run(views.look(self.socket, PATIENCE))["counters"]
        return counters.get("RX_BYTES", 0)

    def until_received(self, count: int) -> None:
        """Waits until it has received so much, or has ended with success."""
        seen = 0

        def received() -> bool:
            nonlocal seen
            with suppress(OSError, MrcError):  # it ends, or the machine is busy
                seen = self.received()
            return seen >= count or self.process.poll() is not None

        until(received, self.lines, pause=0.02)
        assert seen >= count or self.process.returncode == 0, self.lines

    def until_suspended(self, plane: int) -> None:
        """Waits until its QP sends no data over the plane."""

        def suspended() -> bool:
            assert self.process.poll() is None, self.lines
            with suppress(OSError, MrcError, ValueError):  # it begins or ends
                (socket,) = views.sockets_of(self.process.pid)
                (qp,) = asyncio.run(views.look(socket))["qps"]
                return any(each["suspended"] for each in qp["planes"] if each["plane"] == plane)
            return False

        until(suspended, self.lines, pause=0.02)

    def ends(self, code: int, *, within: float | None = None) -> str:
        """Waits for the end and returns stdout; `lines` has stderr.

        `within`: the time that mrc promises, or needs for much work, in a slow test.
        """
        output = self._output(within)
        assert self.process.returncode == code, (self.lines, output)
        return output

    def _output(self, within: float | None) -> str:
        chunks: list[str] = []
        stdout = self.process.stdout
        assert stdout is not None
        reader = threading.Thread(target=lambda: chunks.append(stdout.read()))
        reader.start()
        self.process.wait(PATIENCE if within is None else limit(within))
        reader.join(PATIENCE)
        self._reader.join(PATIENCE)
        return "".join(chunks)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def said(self) -> list[str]:
        """The lines on stderr, without those about planes that stood still: each does for a while
        if its peer stands still, on a busy machine.
        """
        return [line for line in self.lines if not _STOOD_STILL.search(line)]

    def complaint(self) -> str:
        """Why it failed: the only line on stderr besides where it listens, or may go on."""
        notes = ("listening on", "goes on from there", "goes on where this one stopped")
        complaints = [line for line in self.said() if not any(note in line for note in notes)]
        assert len(complaints) == 1, self.lines
        return complaints[0]


_STOOD_STILL = re.compile(r"plane \d+ (was lost|carried \d+% of the others)")
Start = Callable[..., Mrc]


def sockets(pid: int, port: int, state: str) -> list[str]:
    """The TCP sockets with this port and state, in the namespace of this process."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = "\n".join(tables).splitlines()
    return [line for line in lines if f":{port:04X} " in line and f" {state} " in line]


def sent_bytes(process: int | str) -> list[int]:
    """What each plane's interface of this process's host has sent."""
    lines = Path(f"/proc/{process}/net/dev").read_text().splitlines()
    return [int(line.split()[9]) for line in lines if re.match(r" *p\d:", line)]


def until_it_sends(program: Mrc, amount: int) -> None:
    """Waits until so many bytes have left the host of a program that runs on."""

    def sent() -> int:
        assert program.process.poll() is None, program.lines
        return sum(sent_bytes(program.process.pid))

    until(sent, program.lines)  # before, it is not in its host yet
    start = sent()
    until(lambda: sent() >= start + amount, program.lines)


@dataclass
class Hosts:
    """Starts mrc in the hosts of a bed; ends the processes that still run at the end."""

    bed: Testbed
    running: list[Mrc] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, host: str, *arguments: str | Path, fed: bool = False) -> Mrc:
        command = [sys.executable, "-m", "mrc", *arguments]
        pipe = subprocess.PIPE
        process = popen(self.bed, host, *command, stdin=pipe if fed else None, stderr=pipe)
        self.running.append(Mrc(process))
        return self.running[-1]

    def agent(self, host: str) -> Mrc:
        """mrc agent, which serves programs."""
        return self.start(host, "agent", "--insecure").until_says("socket @")

    def recv(self, inbox: Path, *options: str) -> Mrc:
        receiver = self.start("h1", "recv", "--output", inbox, *options).until_listening()
        (receiver.socket,) = views.sockets_of(receiver.process.pid)
        return receiver

    def send(self, *arguments: str | Path) -> Mrc:
        return self.start("h0", "send", *arguments, "h1")

    @contextmanager
    def send_fed(self, copy: Path, *arguments: str | Path) -> Iterator[Mrc]:
        """Sends files, then random bytes while the body runs. `copy` has these bytes afterwards."""
        sender = self.start("h0", "send", *arguments, "-", "h1", fed=True)
        stream, enough = sender.process.stdin, threading.Event()
        assert stream is not None

        def feed() -> None:
            with copy.open("wb") as kept, suppress(BrokenPipeError):
                while not enough.is_set():
                    piece = os.urandom(1 << 16)
                    kept.write(piece[: os.write(stream.fileno(), piece)])
                stream.close()

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield sender
        except BaseException:
            sender.process.kill()  # it may not read any more
            raise
        finally:
            enough.set()
            feeder.join()

    def end(self) -> None:
        for each in self.running:
            each.end()

    def transfer(self, sender: str, receiver: str, folder: Path, size: int = 4 << 20) -> None:
        """Sends a file, and checks what arrives."""
        file, inbox = folder / "file", folder / "inbox"
        file.write_bytes(os.urandom(size))
        inbox.mkdir()
        receiving = self.start(receiver, "recv", "--once", "--output", inbox).until_listening()
        self.start(sender, "send", file, receiver).ends(0)
        receiving.ends(0)
        assert (inbox / "file").read_bytes() == file.read_bytes()


def popen(
    bed: Testbed, host: str, *command: str | Path, environment: Mapping[str, str] | None = None,
    **streams: Any,
) -> subprocess.Popen[str]:  # fmt: skip
    """Starts a command in a host or switch; its output is a pipe."""
    argv, env = bed.host_command(host, list(map(str, command)))
    env |= environment or {}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, **streams)


def run(bed: Testbed, host: str, *command: str) -> str:
    """Runs a command in a host or switch; what it prints. Raises CalledProcessError."""
    argv, env = bed.host_command(host, command)
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


# ---- Python and this checkout for every user, also where only root may read ----------------------


ROOT = Path(__file__).parents[2]
PLACE = Path("/media")  # a folder for mounts, on every Debian


def shown_to_all() -> list[str]:
    """The words before a command that root starts and that then becomes another user. They change
    its mount namespace only. Skips the test where the files themselves are root's alone.
    """
    folders = {Path(sys.executable).resolve().parents[1], Path(sys.prefix), ROOT}
    for folder in (ROOT / "mrc", Path(sys.prefix) / "lib"):
        if not folder.stat().st_mode & 1:
            pytest.skip(f"other users cannot read {folder}: it was made under a umask like 077")
    return ["unshare", "-m", "sh", "-ec", _script(folders, PLACE), "sh"]


def _script(folders: Iterable[Path], empty: Path) -> str:
    """Commands that make folders visible which lie in a folder that not every user may enter, such
    as /root: in a mount namespace, an empty folder replaces that one, and each folder is mounted in
    it.
    """
    hidden: dict[Path, Path] = {}  # folder -> its first parent that not every user may enter
    for folder in sorted(folders):
        closed = [each for each in reversed(folder.parents) if not each.stat().st_mode & 1]
        if closed and not any(shown in folder.parents for shown in hidden):
            hidden[folder] = closed[0]
    show = [f"umask 022; mount -t tmpfs tmpfs {quote(str(empty))}"]
    hide = [f"mount -t tmpfs -o mode=755 tmpfs {quote(str(each))}" for each in {*hidden.values()}]
    move = []
    for number, folder in enumerate(hidden):
        here, there = quote(str(empty / str(number))), quote(str(folder))
        show.append(f"mkdir {here}; mount --bind {there} {here}")
        move.append(f"mkdir -p {there}; mount --move {here} {there}")
    return "\n".join([*show, *hide, *move, 'exec "$@"'])
