# SPDX-License-Identifier: Apache-2.0
"""What a Context tells its observer, and the views that show it: so many connections at a time, and
none once they close. Metrics go to scrapers over HTTP/1.1, snapshots to viewers on other hosts over
the TCP port of the exchange, and to a user of this machine over a Unix socket.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrc.connect.admission import Visits
from mrc.connect.parse import parse
from mrc.connect.remote_view import RemoteView
from mrc.errors import InUseError, ProtocolError, ResolveError
from mrc.events import QpInfo
from mrc.linux import system
from mrc.observe.snapshot import Ledger, public, snapshot
from mrc.results import plain
from mrc.tasks import Limit

if TYPE_CHECKING:
    from mrc.aio.context import Context
    from mrc.aio.qp import QP

logger = logging.getLogger("mrc.observe")


# ---- Metrics: each connection gets one answer to GET /metrics ------------------------------------


PATH = "/metrics"
MAX_REQUEST_BYTES = 8192
MAX_REQUESTS = 8  # at the same time
REQUEST_SECONDS = 5.0

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Takes the request's Accept header; returns the page and its content type."""


class MetricsServer:
    """Serves the page on one TCP port."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._requests = Visits(MAX_REQUESTS, self._serve)
        self._of_this_machine = True
        self.port = 0

    async def open(self, address: str, port: int) -> None:
        """Listens on a TCP port; 0 chooses a free port. Raises InUseError or ResolveError."""
        self._of_this_machine = system.is_of_this_machine(address)
        try:
            self._server = await asyncio.start_server(
                self._requests.on_connection, address, port, limit=MAX_REQUEST_BYTES
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                wrong = f"metrics: TCP port {port} is in use: choose another port"
                raise InUseError(wrong) from error
            raise ResolveError(f"metrics: cannot listen on {address}: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends every request; safe to call twice."""
        await self._requests.close(self._server)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: Callable[[], None]
    ) -> None:
        async with Limit(REQUEST_SECONDS):
            writer.write(await self._answer(reader, ask))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, ask: Callable[[], None]) -> bytes:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        ask()
        request, *lines = head.split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        if words[0] != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET\r\n")
        if words[1].partition("?")[0] != PATH:
            return _response(HTTPStatus.NOT_FOUND)
        fields = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        # DNS rebinding: a web page's own name may resolve to this machine, and the page could then
        # read the metrics. So on loopback the Host header must name this machine.
        if self._of_this_machine and not system.is_of_this_machine(
            headers.get("host", "localhost")
        ):
            return _response(HTTPStatus.MISDIRECTED_REQUEST)
        body, content_type = await self._page(headers.get("accept", ""))
        return _response(HTTPStatus.OK, f"Content-Type: {content_type}\r\n", body)


def _response(status: HTTPStatus, headers: str = "", body: bytes | None = None) -> bytes:
    if body is None:
        body = f"{status.phrase}; the metrics are at {PATH}\n".encode()
        headers += "Content-Type: text/plain\r\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{headers}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


# ---- Snapshots for a user of this machine --------------------------------------------------------


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

    def __init__(self, show: Callable[[], Awaitable[dict[str, Any]]]) -> None:
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
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: Callable[[], None]
    ) -> None:
        while await reader.readline():
            ask()
            writer.write(json.dumps(await self._show()).encode() + b"\n")
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


# ---- All views of one Context --------------------------------------------------------------------


class Observatory:
    """The views of one Context, which opens and closes them."""

    def __init__(self) -> None:
        self._ctx: Context
        self._local = LocalView(lambda: self.snapshot(self._ctx))
        self._ledger = Ledger()
        self._metrics: MetricsServer | None = None
        self.metrics_port = 0
        """The TCP port of the metrics; 0 without metrics."""

    async def open(self, ctx: Context) -> None:
        """Raises InUseError or ResolveError if the address of the metrics is not available."""
        self._ctx = ctx
        if ctx.config.metrics is not None:
            from mrc.observe import metrics  # slow: prometheus_client takes half as long as mrc

            async def page(accept: str) -> tuple[bytes, str]:
                return metrics.exposition(await metrics.read(ctx, self._ledger), accept)

            self._metrics = MetricsServer(page)
            await self._metrics.open(*ctx.config.metrics)
            self.metrics_port = self._metrics.port
        if ctx.config.local_view:
            try:
                await self._local.open()
            except OSError as error:
                logger.info("mrc top --local cannot show this endpoint: %s", error)

    async def close(self) -> None:
        """Closes all views; safe to call twice."""
        if self._metrics is not None:
            await self._metrics.close()
        await self._local.close()

    def forget(self) -> None:
        """Does the part of `close` that does not require an event loop."""
        self._local.forget()

    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None] | None:
        """Begins to count a connected QP. Returns the function to call at its end; None without
        metrics.
        """
        if self._metrics is None:
            return None
        self._ledger.add(qp)
        return functools.partial(self._ledger.retire, qp)

    def viewers(self) -> RemoteView:
        """The remote view for a new listener; it rejects viewers without `remote_view`."""
        return RemoteView(self._show_publicly if self._ctx.config.remote_view else None)

    async def _show_publicly(self, key: bytes) -> dict[str, Any]:
        found: dict[str, Any] = plain(public(await snapshot(self._ctx), key))
        return found

    @staticmethod
    async def snapshot(ctx: Context) -> dict[str, Any]:
        """The state of a Context as data for `json`."""
        found: dict[str, Any] = plain(await snapshot(ctx))
        return found
