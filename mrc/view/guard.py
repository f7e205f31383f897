# SPDX-License-Identifier: Apache-2.0
"""Which requests the page's server answers: those of its own page only. Pure.

Any web site that the user visits can send requests to a server on this machine, and so can other
users of the machine. Each rule below stops one kind of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from http import HTTPStatus

from mrc.observe.server import is_of_this_machine

TOKEN_BYTES = 24

HEADERS = {
    # The page runs only its own scripts, sends nothing elsewhere, and is in no other page's frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
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
    if not is_of_this_machine(host):
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
