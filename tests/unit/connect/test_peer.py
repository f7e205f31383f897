# SPDX-License-Identifier: Apache-2.0
"""The owners of real sockets on loopback."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address

import pytest

from mrc.connect.peer import Owner, SocketAddress, owner_of
from mrc.fabric.hostconfig import parse_address


def end(address: tuple[str | int, ...]) -> SocketAddress:
    return parse_address(str(address[0])), int(address[1])


@pytest.mark.parametrize(
    ("listens", "calls"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("::", "::1")],
)
def test_owner_of__both_ends(listens: str, calls: str) -> None:
    """`::` takes IPv4 too: then its socket has an IPv4 address that is written as IPv6."""
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with socket.create_server(
        (listens, 0), family=family, dualstack_ipv6=listens == "::"
    ) as server:
        client = socket.create_connection((calls, server.getsockname()[1]))
        with client:
            here, there = end(client.getsockname()), end(client.getpeername())
            assert owner_of(here, there) == Owner(os.geteuid(), accepted=True)
            found = owner_of(there, here)
            assert found is not None and not found.accepted
            accepted, _ = server.accept()
            with accepted:
                assert owner_of(there, here) == Owner(os.geteuid(), accepted=True)
            assert owner_of(here, (ip_address(calls), 1)) is None


def test_owner_of__nobody() -> None:
    assert owner_of((ip_address("127.0.0.1"), 1), (ip_address("127.0.0.1"), 2)) is None
