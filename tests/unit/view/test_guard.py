# SPDX-License-Identifier: Apache-2.0
"""Which requests get an answer."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from mrc.view.server import HEADERS, new_token, refusal

OURS = {"Host": "127.0.0.1:8000"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MISDIRECTED, MISSING = HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.NOT_FOUND
FORBIDDEN, WRONG_TYPE = HTTPStatus.FORBIDDEN, HTTPStatus.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize(
    ("method", "headers", "refused"),
    [
        # the page itself, and the user
        ("GET", OURS, None),
        ("GET", {"Host": "localhost:8000"}, None),
        ("GET", {"Host": "[::1]:8000"}, None),
        ("GET", OURS | {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}, None),
        ("GET", OURS | {"Sec-Fetch-Site": "same-origin"}, None),
        ("GET", OURS | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, None),
        ("POST", OURS | JSON, None),
        ("POST", OURS | JSON | {"Origin": "http://127.0.0.1:8000"}, None),
        # DNS rebinding
        ("GET", {"Host": "evil.example:8000"}, MISDIRECTED),
        ("GET", {"Host": "localhost.evil.example"}, MISDIRECTED),
        ("GET", {"Host": "192.0.2.1:8000"}, MISDIRECTED),
        ("GET", {}, MISDIRECTED),
        # another site that has the token
        ("POST", OURS | JSON | {"Origin": "http://evil.example"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Origin": "null"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Origin": "https://127.0.0.1:8000"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Origin": "http://127.0.0.1:9000"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Sec-Fetch-Site": "cross-site"}, FORBIDDEN),
        ("GET", OURS | {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"}, FORBIDDEN),
        ("GET", OURS | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, FORBIDDEN),
        ("GET", OURS | {"Sec-Fetch-Site": "cross-site"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"},
         FORBIDDEN),
        # its form, which no browser asks about before
        ("POST", OURS | FORM, WRONG_TYPE),
        ("POST", OURS | {"Content-Type": "text/plain"}, WRONG_TYPE),
        ("POST", OURS, WRONG_TYPE),
    ],
)  # fmt: skip
def test_refusal__of_others(
    method: str, headers: dict[str, str], refused: HTTPStatus | None
) -> None:
    assert refusal(method, headers, "right", "right") == refused
    assert refusal(method, headers, "wrong", "right") in (MISSING, MISDIRECTED)


@pytest.mark.parametrize("token", ["", "righ", "rights", "RIGHT", "r\u00efght"])
def test_refusal__without_the_token(token: str) -> None:
    assert refusal("GET", OURS, token, "right") == MISSING


def test_new_token__is_long_and_new() -> None:
    tokens = {new_token() for _ in range(8)}
    assert len(tokens) == 8 and all(len(token) >= 32 for token in tokens)


def test_headers__keep_other_sites_out() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy and "http:" not in policy
    assert not any(name.startswith("Access-Control-") for name in HEADERS)
