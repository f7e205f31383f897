# SPDX-License-Identifier: Apache-2.0
"""The page's server, on loopback: which requests get an answer, its files, its feed (server-sent
events), and changes of the test bed.

Any web site that the user visits can send requests to a server on this machine, and so can other
users of the machine. Each rule of `refusal` stops one kind of them.

Tornado is an optional extra of the package, so this module is imported only where the page is.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

import msgspec
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from mrc.errors import MrcError
from mrc.linux import system
from mrc.tasks import within
from mrc.typed import take
from mrc.view.fabric import FabricChange
from mrc.view.feed import PageFeed

# ---- Which requests get an answer: those of the page only ----------------------------------------


TOKEN_BYTES = 24

HEADERS = {
    # The page runs only its own scripts, sends nothing elsewhere, and is in no other page's frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer."""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def refusal(method: str, headers: Mapping[str, str], given: str, token: str) -> HTTPStatus | None:
    """Why a request gets no answer; None if it gets one. `given`: the token in its path."""
    host = headers.get("Host", "")
    # DNS rebinding: a site's own name may lead to this machine.
    if not system.is_of_this_machine(host):
        return HTTPStatus.MISDIRECTED_REQUEST
    # Other users of this machine, and sites that guess the port.
    if not secrets.compare_digest(given.encode(), token.encode()):
        return HTTPStatus.NOT_FOUND
    # A site that has learned the token: browsers name the site in these headers.
    if headers.get("Origin", f"http://{host}") != f"http://{host}":
        return HTTPStatus.FORBIDDEN
    if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not (
        method == "GET" and headers.get("Sec-Fetch-Dest") == "document"  # the user follows a link
    ):
        return HTTPStatus.FORBIDDEN
    # A form of a site cannot send this type.
    if method == "POST" and headers.get("Content-Type") != "application/json":
        return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    return None


# ---- Answers -------------------------------------------------------------------------------------


_PAGE = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_MAX_BODY_BYTES, _MAX_HEADER_BYTES = 4096, 16384
_IDLE_SECONDS, _QUIET_SECONDS = 60.0, 1.0


class _Guarded(RequestHandler):
    """Refuses requests that do not come from the page."""

    def initialize(self, feed: PageFeed, token: str) -> None:
        self.feed, self.token = feed, token

    def set_default_headers(self) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.clear_header("Server")

    def prepare(self) -> None:
        request = self.request
        refused = refusal(
            request.method or "", request.headers, self.path_args[0] or "", self.token
        )
        if refused is not None:
            raise HTTPError(refused.value)

    def write_error(self, status_code: int, **_: object) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{HTTPStatus(status_code).phrase}\n")


class _PageFile(_Guarded):
    """A file of the page. All are read before: no request chooses a path."""

    files: ClassVar = {
        path.name: path.read_bytes() for path in _PAGE.iterdir() if path.suffix in _TYPES
    }

    def get(self, _: str, name: str) -> None:
        name = name or "index.html"
        if name not in self.files:
            raise HTTPError(HTTPStatus.NOT_FOUND.value)
        self.set_header("Content-Type", f"{_TYPES[Path(name).suffix]}; charset=utf-8")
        self.finish(self.files[name])


class _Nothing(_Guarded):
    """Any other path."""

    def prepare(self) -> None:
        raise HTTPError(HTTPStatus.NOT_FOUND.value)


class _FeedHandler(_Guarded):
    """Messages until the page closes."""

    async def get(self, _: str) -> None:
        if self.feed.is_full:
            raise HTTPError(HTTPStatus.SERVICE_UNAVAILABLE.value)
        self.set_header("Content-Type", "text/event-stream")
        try:
            async with self.feed.open() as messages:
                while True:
                    try:
                        async with within(_QUIET_SECONDS):
                            self.write(await messages.get())
                    except TimeoutError:
                        self.write(":\n\n")  # finds out whether the page is still open
                    await self.flush()
        except (StreamClosedError, asyncio.CancelledError):
            pass  # the page, or the command, ends; tornado would report the latter as an error


class _ChangeHandler(_Guarded):
    """Fails or heals a part."""

    async def post(self, _: str) -> None:
        try:
            change = take(msgspec.json.decode(self.request.body), FabricChange)
            await self.feed.change(change)
        except (MrcError, ValueError, OSError) as error:
            self.set_status(HTTPStatus.CONFLICT.value)
            self.finish({"error": str(error)})
        else:
            self.set_status(HTTPStatus.NO_CONTENT.value)
            self.finish()


@asynccontextmanager
async def served(feed: PageFeed, listener: socket.socket) -> AsyncIterator[str]:
    """Serves the page; yields its address."""
    token = new_token()
    given = {"feed": feed, "token": token}
    application = Application(
        [
            (r"/([^/]+)/feed", _FeedHandler, given),
            (r"/([^/]+)/change", _ChangeHandler, given),
            (r"/([^/]+)/([^/]*)", _PageFile, given),
        ],
        default_handler_class=_Nothing,
        default_handler_args=given,
        log_function=lambda _: None,  # addresses have the token
    )
    server = HTTPServer(
        application,
        max_body_size=_MAX_BODY_BYTES,
        max_buffer_size=_MAX_BODY_BYTES,
        max_header_size=_MAX_HEADER_BYTES,
        idle_connection_timeout=_IDLE_SECONDS,
        body_timeout=_IDLE_SECONDS,
    )
    listener.setblocking(False)
    server.add_sockets([listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"
    finally:
        server.stop()
        await server.close_all_connections()
