# SPDX-License-Identifier: Apache-2.0
"""Serves one page over HTTP/1.1 to scrapers: each connection gets one answer to GET /metrics."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address

from mrc.errors import InUseError, ResolveError
from mrc.observe.visits import Visit, Visits
from mrc.running import Limit

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
