# SPDX-License-Identifier: Apache-2.0
"""Servers that only answer: so many connections at a time, and none once they close. Metrics go to
scrapers over HTTP/1.1, and snapshots to viewers on other hosts over the TCP port of the exchange.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

from msgspec import Struct

from mrc.connect.admission import network_of, source_of, victim
from mrc.connect.oob import SNAPSHOT_BYTES, TOP, Channel
from mrc.errors import InUseError, MrcError, ProtocolError, ResolveError
from mrc.observe.results import Snapshot
from mrc.observe.snapshot import public
from mrc.results import plain
from mrc.running import Limit
from mrc.tasks import cancelled, took_cancellation

# ---- Connections that have a place ---------------------------------------------------------------


logger = logging.getLogger("mrc.observe")

PATIENCE_SECONDS = 60.0
"""A connection that asks nothing for so long gives its place to another."""
_GRACE_SECONDS = 0.1  # for the first request; a flood of connections is slower


class Visit(Struct, eq=False):
    """A connection that has a place."""

    source: str
    network: str
    since: float
    """when it came, or asked last"""
    silent: bool = True
    """it has asked nothing yet"""
    task: asyncio.Task[None] | None = None
    """answers it"""

    def ask(self) -> None:
        """It has asked: to be called for each whole request."""
        self.silent, self.since = False, asyncio.get_running_loop().time()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Visit], Awaitable[None]]
"""Answers one visit. May raise MrcError, OSError or ValueError, which ends the visit."""


class Visits:
    """At most `most` connections at a time. When all places are taken, a newcomer gets that of a
    connection that asks nothing, or of a source that has more places than its own will have. If
    there is none, the newcomer is turned away.
    """

    def __init__(self, most: int, answer: Answer | None = None) -> None:
        self._most = most
        self._answer = answer
        self._running: set[Visit] = set()
        self._closed = False

    async def close(self, server: asyncio.Server | None) -> None:
        """Ends the server and every visit; safe to call twice."""
        self._closed = True
        if server is not None:
            server.close()
        await cancelled(*(visit.task for visit in self._running if visit.task is not None))

    def admit(self, address: str) -> Visit | None:
        """A place for a connection from this address ("" if all are of one user of this machine);
        `start` has to follow at once. None: there is no place.
        """
        source, network = (source_of(address), network_of(address)) if address else ("", "")
        now = asyncio.get_running_loop().time()
        if self._closed or not self._has_room(source, now):
            return None
        return Visit(source, network, now)

    def start(self, visit: Visit, task: asyncio.Task[None]) -> None:
        """The task answers the visit, which has its place until the task ends. It may be cancelled,
        for a newcomer.
        """
        visit.task = task
        self._running.add(visit)
        task.add_done_callback(lambda _: self._running.discard(visit))

    def _has_room(self, source: str, now: float) -> bool:
        """Takes a place away if that is needed and possible."""
        if len(self._running) < self._most:
            return True
        places = Counter(visit.source for visit in self._running)
        least = places[source] + 1
        loose = [
            visit
            for visit in self._running
            if now - visit.since > (_GRACE_SECONDS if visit.silent else PATIENCE_SECONDS)
            or places[visit.source] > least
        ]
        if loose:
            gone = victim(loose, now)
            self._running.discard(gone)
            assert gone.task is not None
            gone.task.cancel()
        return bool(loose)

    async def on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A connection of the server. It may have come just before the server closed."""
        task = asyncio.current_task()
        assert task is not None and self._answer is not None
        peer = writer.get_extra_info("peername")
        visit = self.admit(peer[0] if isinstance(peer, tuple) else "")
        if visit is None:
            writer.transport.abort()
            return
        self.start(visit, task)
        try:
            await self._answer(reader, writer, visit)
        except (MrcError, OSError, ValueError, EOFError) as error:
            logger.debug("a connection ended: %s", error)
        except asyncio.CancelledError:
            took_cancellation()  # asyncio would print a traceback of a cancelled task
        finally:
            writer.transport.abort()


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
        self._of_this_machine = is_of_this_machine(address)
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
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: Visit
    ) -> None:
        async with Limit(REQUEST_SECONDS):
            writer.write(await self._answer(reader, visit))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, visit: Visit) -> bytes:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        visit.ask()
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
        if self._of_this_machine and not is_of_this_machine(headers.get("host", "localhost")):
            return _response(HTTPStatus.MISDIRECTED_REQUEST)
        body, content_type = await self._page(headers.get("accept", ""))
        return _response(HTTPStatus.OK, f"Content-Type: {content_type}\r\n", body)


def is_of_this_machine(host: str) -> bool:
    """Whether `host`, with or without a port, is localhost or a loopback address: names that no
    name server can redirect.
    """
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host
    if name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _response(status: HTTPStatus, headers: str = "", body: bytes | None = None) -> bytes:
    if body is None:
        body = f"{status.phrase}; the metrics are at {PATH}\n".encode()
        headers += "Content-Type: text/plain\r\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{headers}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


# ---- Snapshots for viewers on other hosts --------------------------------------------------------


VIEW_VERSION = 1
MAX_REMOTE_VIEWERS = 4
PAUSE_SECONDS = 0.1  # minimum time between two answers


class RemoteView:
    """Answers the viewers of one listener; without `show`, rejects them.

    This port has no authentication, and a snapshot reveals peers, paths and amounts of data. So
    remote viewing is off unless `ContextConfig.remote_view` is set, the number of viewers is
    limited, and the snapshots omit QPNs, EVs and UDP ports, because these protect QPs against
    forged packets.
    """

    def __init__(self, show: Callable[[], Awaitable[Snapshot]] | None) -> None:
        self._show = show
        self._key = secrets.token_bytes(16)
        self._visits = Visits(MAX_REMOTE_VIEWERS)

    async def admit(self, channel: Channel) -> None:
        """Takes over a connection whose first message is of type TOP."""
        if self._show is None:
            await channel.refuse("remote viewing is off: restart the program with --top")
        elif (visit := self._visits.admit(channel.remote)) is None:
            await channel.refuse(f"{MAX_REMOTE_VIEWERS} viewers are connected, which is the limit")
        else:
            task = asyncio.create_task(self._answer(channel, self._show, visit))
            task.add_done_callback(lambda _: channel.abort())  # also if it never began
            self._visits.start(visit, task)

    async def _answer(
        self, channel: Channel, show: Callable[[], Awaitable[Snapshot]], visit: Visit
    ) -> None:
        try:
            while True:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    message = await channel.expect(TOP)
                visit.ask()
                if message.get("version") != VIEW_VERSION:
                    await channel.refuse(f"only version {VIEW_VERSION} of snapshots is supported")
                    return
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await channel.send(TOP, snapshot=plain(public(await show(), self._key)))
                await asyncio.sleep(PAUSE_SECONDS)
        except (MrcError, OSError) as error:  # TimeoutError is an OSError
            logger.debug("a viewer disconnected: %s", error)

    async def close(self) -> None:
        """Ends every visit."""
        await self._visits.close(None)


async def look_at_peer(channel: Channel) -> dict[str, Any]:
    """A snapshot of the peer. Raises ConnectError if the peer refuses, and errors of `Channel`."""
    await channel.send(TOP, version=VIEW_VERSION)
    found = (await channel.expect(TOP, SNAPSHOT_BYTES)).get("snapshot")
    if not isinstance(found, dict):
        raise ProtocolError("the peer sent no snapshot")
    return found
