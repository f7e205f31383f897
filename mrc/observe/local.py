# SPDX-License-Identifier: Apache-2.0
"""Snapshots for the user of this machine, over a Unix socket in a folder that is his alone.

A socket in the file system is bound to no network namespace: who looks sees the endpoints of every
namespace. Each line that a viewer sends is answered with one line, a snapshot as JSON.

The folder is the first of these that can be ours, with mode 0700:
/run/mrc-endpoints (root), $XDG_RUNTIME_DIR/mrc-endpoints, /tmp/mrc-endpoints-UID.
In test beds an ordinary user is root, with a /run of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from mrc.errors import MrcError, ProtocolError
from mrc.foreign import parse
from mrc.observe.snapshot import Snapshot

logger = logging.getLogger("mrc.observe")

MAX_LINE = 4 << 20  # bytes of a snapshot
MAX_VIEWERS = 8
ANSWER_SECONDS = 2.0
_NAME = "mrc-endpoints"
_SUFFIX = ".sock"
_numbers = itertools.count(1)


def _homes() -> Iterator[Path]:
    """Where the sockets of this user may lie, the best place first."""
    if os.geteuid() == 0:
        yield Path("/run", _NAME)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, _NAME)
    yield Path("/tmp", f"{_NAME}-{os.geteuid()}")


def _folders() -> Iterator[Path]:
    """Where this user may look: root everywhere."""
    yield from _homes()
    if os.geteuid() == 0:
        yield from Path("/run/user").glob(f"*/{_NAME}")
        yield from Path("/tmp").glob(f"{_NAME}-*")


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder that only this user can reach into."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and found.st_mode & 0o077 == 0
    return private and found.st_uid == os.geteuid()


def _make_home() -> Path:
    """Raises OSError when there is no place."""
    for folder in _homes():
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            pass  # it is there, or cannot be
        if _is_ours(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise OSError("no folder for the sockets of endpoints: set XDG_RUNTIME_DIR")


def _is_alive(path: Path) -> bool:
    """Whether somebody listens on a socket: that of a process that was killed stays."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.setblocking(False)
        try:
            trial.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def sockets(of_beds: Path | None = None) -> list[Path]:
    """The sockets of the endpoints that this user may look into. Those of the dead are removed.

    `of_beds`: the /run of the user's test beds.
    """
    found = []
    beds = [] if of_beds is None else [of_beds / _NAME]
    for folder in dict.fromkeys([*_folders(), *beds]):
        ours = _is_ours(folder)
        if not ours and os.geteuid() != 0:
            continue
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            if _is_alive(path):
                found.append(path)
            elif ours:
                path.unlink(missing_ok=True)
    return found


class LocalView:
    """Answers viewers of this machine."""

    def __init__(self, show: Callable[[], Awaitable[Snapshot]]) -> None:
        self._show = show
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Raises OSError when there is no place for the socket."""
        sockets()  # sweeps: who is killed over and over must not fill the folder
        folder = _make_home()
        path = folder / f"{os.getpid()}-{next(_numbers)}{_SUFFIX}"
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._on_viewer, fresh, limit=1 << 10)
        self._path = fresh.rename(path)  # only now may it be found: it listens

    async def close(self) -> None:
        """Ends every visit; safe to call twice."""
        if self._server is not None:
            self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)
        self.forget()

    def forget(self) -> None:
        """Is found no more; all that is left to do when the event loop has ended."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    async def _on_viewer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        if len(self._visits) >= MAX_VIEWERS:
            writer.transport.abort()
            return
        self._visits.add(visit)
        try:
            while await reader.readline():
                writer.write(json.dumps(await self._show()).encode() + b"\n")
                await writer.drain()
        except (MrcError, OSError, ValueError) as error:
            logger.debug("a viewer went: %s", error)
        finally:
            self._visits.discard(visit)
            writer.transport.abort()


async def look(path: Path) -> Snapshot:
    """A snapshot of the endpoint at a socket; raises OSError, TimeoutError or ProtocolError."""
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
        try:
            writer.write(b"\n")
            line = await reader.readline()
            found = parse(line)
        except ValueError as error:
            raise ProtocolError(f"{path}: no snapshot") from error
        finally:
            writer.transport.abort()
    return found
