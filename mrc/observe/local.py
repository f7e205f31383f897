# SPDX-License-Identifier: Apache-2.0
"""Snapshots for a user of this machine, over a Unix socket in a folder that only this user can
open.

A socket in the file system does not belong to a network namespace, so a viewer sees the endpoints
in all of them. The endpoint answers each line of a viewer with one line: a snapshot as JSON.

The folder has mode 0700, and is the first of these that can be created or is already there:
/run/mrc-endpoints (root), $XDG_RUNTIME_DIR/mrc-endpoints, /tmp/mrc-endpoints-UID.
In test beds an ordinary user is root, with a separate /run. A systemd service sets
XDG_RUNTIME_DIR to its runtime folder, such as /run/mrc-recv.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mrc.connect.parse import parse
from mrc.errors import ProtocolError
from mrc.observe.results import Snapshot
from mrc.observe.server import Visit, Visits
from mrc.results import plain
from mrc.running import Limit

MAX_LINE = 1 << 20  # bytes of a snapshot; the limit of a remote snapshot too
MAX_SOCKETS = 256  # limit for one folder
MAX_VIEWERS = 8
ANSWER_SECONDS = 2.0
_NAME = "mrc-endpoints"
_SUFFIX = ".sock"
_numbers = itertools.count(1)


def _homes() -> Iterator[Path]:
    """The possible folders for the sockets of this user, the preferred one first."""
    if os.geteuid() == 0:
        yield Path("/run", _NAME)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, _NAME)
    yield Path("/tmp", f"{_NAME}-{os.geteuid()}")


def _folders(all_users: bool) -> Iterator[Path]:
    """The folders that this user may search; with `all_users` root searches all users' folders."""
    yield from _homes()
    if all_users:
        yield from Path("/run/user").glob(f"*/{_NAME}")
        yield from Path("/run").glob(f"*/{_NAME}")  # runtime folders of services
        yield from Path("/tmp").glob(f"{_NAME}-*")


def _make_home() -> Path:
    """Creates or finds the folder for this user's sockets. Raises OSError if none is usable."""
    for folder in _homes():
        with suppress(OSError):  # the folder exists, or cannot be created
            folder.mkdir(mode=0o700)
        with suppress(OSError), _opened_folder(folder, all_users=False):
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    raise OSError("no folder for the sockets of endpoints: set XDG_RUNTIME_DIR")


@contextmanager
def _opened_folder(folder: Path, *, all_users: bool) -> Iterator[int]:
    """Opens a folder that only its owner can open: this user, or with `all_users` any user.

    Raises OSError. Once it is open, nobody can substitute another folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    opened = os.open(folder, flags)
    try:
        found = os.fstat(opened)
        if found.st_mode & 0o077 or not (all_users or found.st_uid == os.geteuid()):
            wrong = "the folder belongs to another user, or others can open it"
            raise PermissionError(errno.EPERM, wrong, str(folder))
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _opened_socket(folder: int, name: str) -> Iterator[str]:
    """Opens a socket that belongs to the folder's owner, without following links. Yields a path
    that leads to this socket only.

    Raises OSError.
    """
    opened = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        found = os.fstat(opened)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.fstat(folder).st_uid:
            raise PermissionError(errno.EPERM, "not a socket of the folder's owner", name)
        yield f"/proc/self/fd/{opened}"
    finally:
        os.close(opened)


def _is_alive(folder: int, name: str) -> bool:
    """Whether a process listens on a socket. The socket of a killed process stays in the folder.

    Raises OSError if `name` is not a socket of the folder's owner.
    """
    with (
        _opened_socket(folder, name) as path,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial,
    ):
        trial.setblocking(False)
        try:
            trial.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def sockets(of_beds: Path | None = None, *, all_users: bool = False) -> list[Path]:
    """The sockets of the endpoints that this user may view. Removes this user's dead sockets.

    `of_beds`: the /run of the user's test beds. `all_users`: as root, the sockets of all users.
    """
    found = []
    beds = [] if of_beds is None else [of_beds / _NAME]
    for folder in dict.fromkeys([*_folders(all_users), *beds]):
        try:
            with _opened_folder(folder, all_users=all_users) as opened:
                found += [folder / name for name in _living(opened)]
        except OSError:
            pass  # the folder does not exist, or this user may not open it
    return found


def sockets_of(pid: int) -> list[Path]:
    """The sockets of one process of this user. They stay the same while the process runs."""
    return [path for path in sockets() if path.name.startswith(f"{pid}-")]


def _living(folder: int) -> list[str]:
    living = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))[:MAX_SOCKETS]:
        try:
            if _is_alive(folder, name):
                living.append(name)
            elif os.fstat(folder).st_uid == os.geteuid():
                os.unlink(name, dir_fd=folder)
        except OSError:
            pass  # not a socket, or removed meanwhile
    return living


class LocalView:
    """Answers viewers of this machine."""

    def __init__(self, show: Callable[[], Awaitable[Snapshot]]) -> None:
        self._show = show
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._visits = Visits(MAX_VIEWERS, self._answer)

    async def open(self) -> None:
        """Opens the socket. Raises OSError if there is no folder for it."""
        sockets()  # removes dead sockets: programs that are killed again and again leave many
        folder = _make_home()
        path = folder / f"{os.getpid()}-{next(_numbers)}{_SUFFIX}"
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        answer = self._visits.on_connection
        self._server = await asyncio.start_unix_server(answer, fresh, limit=1 << 10)
        self._path = fresh.rename(path)  # viewers find the socket only now, when it listens

    async def close(self) -> None:
        """Ends every visit; safe to call twice."""
        await self._visits.close(self._server)
        self.forget()

    def forget(self) -> None:
        """Removes the socket from the folder. Does not require an event loop."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: Visit
    ) -> None:
        while await reader.readline():
            visit.ask()
            writer.write(json.dumps(plain(await self._show())).encode() + b"\n")
            await writer.drain()


async def look(
    path: Path, seconds: float = ANSWER_SECONDS, *, all_users: bool = False
) -> dict[str, Any]:
    """A snapshot of the endpoint at a socket. Raises TimeoutError without an answer in `seconds`,
    OSError or ProtocolError.
    """
    async with Limit(seconds):
        with (
            _opened_folder(path.parent, all_users=all_users) as folder,
            _opened_socket(folder, path.name) as opened,
        ):
            reader, writer = await asyncio.open_unix_connection(opened, limit=MAX_LINE)
        try:
            writer.write(b"\n")
            if not (line := await reader.readline()):
                busy = f"it gives no answer: has it {MAX_VIEWERS} viewers already?"
                raise ProtocolError(busy)
            found = parse(line)
        except ValueError as error:
            raise ProtocolError(f"{path}: the answer is not a snapshot") from error
        finally:
            writer.transport.abort()
    return found
