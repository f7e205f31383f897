# SPDX-License-Identifier: Apache-2.0
"""Programs that run in the namespaces of a test bed, and how they end with it.

A program that `exec` or `shell` started, and each of its children, has MRC_TESTBED with the folder
of the test bed in its environment. All others were brought in by other means.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from mrc.linux import netns
from mrc.testbed.results import Program

ENVIRONMENT = "MRC_TESTBED"
"""names the folder of the test bed to the programs in it"""

_GRACE_SECONDS = 3.0
_KILL_SECONDS = 3.0  # a killed process may still wait for a disk
_ROUNDS = 3  # a program may start others before it ends
_SHOWN = 100  # characters of a command


class Ending(Struct, frozen=True):
    """What happened to the programs of a test bed."""

    ended: tuple[Program, ...] = ()
    left: tuple[Program, ...] = ()
    """still running"""


class Removal(Struct, frozen=True):
    """What `down` did."""

    removed: bool
    """False: there was nothing"""
    ended: tuple[Program, ...] = ()
    """programs that it ended"""
    left: tuple[Program, ...] = ()
    """programs that still run, in a network that is gone"""
    unreachable: dict[str, str] = {}
    """machines that keep their part, and why they do not answer"""


def end_all(nodes: Mapping[str, str], folder: Path) -> Ending:
    """End what `exec` and `shell` started in these namespaces (namespace -> node) of the test bed
    with this folder.

    This leaves all other programs, and the shell in which this command was typed.
    """
    kept, ended = _ancestors(), []
    for _ in range(_ROUNDS):
        found = find(nodes, folder).items()
        ours = [program for program, is_ours in found if is_ours and program.pid not in kept]
        if not ours:
            break
        _end(ours)
        ended += ours
    left = find(nodes, folder)
    running = {program.pid for program in left}
    return Ending(tuple(each for each in ended if each.pid not in running), tuple(left))


def find(nodes: Mapping[str, str], folder: Path) -> dict[Program, bool]:
    """The programs in these namespaces, without this one, and whether mrc started them."""
    places = {}
    for namespace, node in nodes.items():
        with suppress(FileNotFoundError):
            places[_identity(netns.FOLDER / namespace)] = node
    pids = (int(each) for each in os.listdir("/proc") if each.isdigit()) if places else ()
    found = (_look(pid, places, folder) for pid in pids if pid != os.getpid())
    return dict(each for each in found if each is not None)


def _identity(namespace: Path) -> tuple[int, int]:
    found = namespace.stat()
    return found.st_dev, found.st_ino


def _look(
    pid: int, places: Mapping[tuple[int, int], str], folder: Path
) -> tuple[Program, bool] | None:
    """The process, if it is in one of the namespaces. Processes of others cannot be seen."""
    process = Path("/proc", str(pid))
    try:
        node = places.get(_identity(process / "ns/net"))
        if node is None:
            return None
        words = (process / "cmdline").read_bytes().split(b"\0")
        environment = (process / "environ").read_bytes().split(b"\0")
        command = b" ".join(words).decode(errors="replace").strip()
        command = command or (process / "comm").read_text().strip()
    except OSError:  # it has ended
        return None
    ours = os.fsencode(f"{ENVIRONMENT}={folder}") in environment
    return Program(pid, node, command[:_SHOWN]), ours


def _end(programs: Iterable[Program]) -> None:
    """Send SIGTERM, and SIGKILL to those that still run after some seconds."""
    with selectors.DefaultSelector() as running:
        for program in programs:
            with suppress(ProcessLookupError):
                running.register(os.pidfd_open(program.pid), selectors.EVENT_READ)
        try:
            for signum, seconds in (
                (signal.SIGTERM, _GRACE_SECONDS),
                (signal.SIGKILL, _KILL_SECONDS),
            ):
                for key in running.get_map().values():
                    with suppress(ProcessLookupError, PermissionError):
                        signal.pidfd_send_signal(key.fd, signum)
                _wait(running, time.monotonic() + seconds)
        finally:
            for key in running.get_map().values():
                os.close(key.fd)


def _wait(running: selectors.BaseSelector, deadline: float) -> None:
    """Wait for the ends of processes until the deadline, and forget those that ended."""
    while running.get_map() and (left := deadline - time.monotonic()) > 0:
        for key, _ in running.select(left):
            running.unregister(key.fd)
            os.close(key.fd)


def outside() -> Path:
    """The namespaces (/proc/PID/ns) from which `exec` or `shell` led into a host."""
    ours = _identity(Path("/proc/self/ns/net"))
    for pid in _ancestors():
        with suppress(OSError):
            found = Path("/proc", str(pid), "ns")
            if _identity(found / "net") != ours:
                return found
    return Path("/proc/1/ns")


def _ancestors() -> list[int]:
    """The processes that started this one, such as the shell in which it was typed; the nearest
    comes first.
    """
    found, pid = [], os.getppid()
    with suppress(OSError):  # a process that this user must not see
        while pid > 0:
            found.append(pid)
            status = Path("/proc", str(pid), "status").read_text()
            pid = int(status.split("PPid:")[1].split()[0])
    return found
