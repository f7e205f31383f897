# SPDX-License-Identifier: Apache-2.0
"""Which name servers hosts use: never one that is the machine itself."""

from __future__ import annotations

import pytest

from mrc.lab.uplink import usable


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["nameserver 192.0.2.1\nsearch a.example\n"], "nameserver 192.0.2.1\nsearch a.example\n"),
        (["nameserver 127.0.0.1\nnameserver 2001:db8::1"], "nameserver 2001:db8::1\n"),
        (["nameserver 127.0.0.53\n", "nameserver 192.0.2.1\n"], "nameserver 192.0.2.1\n"),
        (["nameserver ::1\n", ""], None),
        (["nameserver fe80::1%eth0\n"], None),
        (["nameserver\nnameserver here\nsearch a.example\n"], None),
    ],
)
def test_usable(texts: list[str], expected: str | None) -> None:
    assert usable(texts) == expected
