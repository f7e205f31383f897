# SPDX-License-Identifier: Apache-2.0
"""Interfaces from messages as the kernel writes them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from ipaddress import ip_interface
from typing import Any

import pytest

from mrc.linux.rtnetlink import Interface

TEMPORARY, OPTIMISTIC, FAILED, DEPRECATED, TENTATIVE = 0x1, 0x4, 0x8, 0x20, 0x40
NO_PREFIX_ROUTE = 0x200  # has no place in the eight bits of the header
IFNAME, MTU, AF_SPEC, INET6_CONF = 3, 4, 26, 2
LOCAL, ADDRESS, FLAGS = 2, 1, 8
INDEX = 7


def attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


class Kernel:
    """What a dump of links and one of addresses return."""

    def __init__(self, addresses: Sequence[tuple[str, int]], use_tempaddr: int | None) -> None:
        settings = b""
        if use_tempaddr is not None:
            table = struct.pack("=60i", *[9] * 10, use_tempaddr, *[9] * 49)
            settings = attribute(socket.AF_INET6, attribute(INET6_CONF, table))
        link = struct.pack("=BxHiII", 0, 1, INDEX, 1, 0)
        link += attribute(IFNAME, b"eth0\0") + attribute(MTU, struct.pack("=I", 1500))
        self._links = [link + attribute(AF_SPEC, settings)]
        self._addresses = [self._address(*each) for each in addresses]

    @staticmethod
    def _address(text: str, flags: int) -> bytes:
        address = ip_interface(text)
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        header = struct.pack("=BBBBI", family, address.network.prefixlen, flags & 0xFF, 0, INDEX)
        kind = ADDRESS if address.version == 6 else LOCAL
        body = attribute(kind, address.ip.packed) + attribute(FLAGS, struct.pack("=I", flags))
        return header + body

    def dump(self, kind: int, _: bytes) -> list[bytes]:
        return {18: self._links, 22: self._addresses}[kind]


def addresses_of(kernel: Any) -> list[str]:
    (found,) = Interface.read(kernel)
    return [str(address.ip) for address in found.addresses]


@pytest.mark.parametrize(
    ("use_tempaddr", "addresses", "expected"),
    [
        # as the kernel lists them
        (0, [("2001:db8::2/64", 0), ("2001:db8::1/64", 0)], ["2001:db8::2", "2001:db8::1"]),
        # deprecated: told by the header, and beside a flag that only the attribute has
        (
            0,
            [("2001:db8::1/64", DEPRECATED), ("2001:db8::2/64", 0)],
            ["2001:db8::2", "2001:db8::1"],
        ),
        (
            0,
            [("10.0.0.9/24", DEPRECATED | NO_PREFIX_ROUTE), ("10.0.0.1/24", 0)],
            ["10.0.0.1", "10.0.0.9"],
        ),
        # temporary ones are preferred from 2 on; where IPv6 has no settings, they are not
        (2, [("2001:db8::1/64", 0), ("2001:db8::2/64", TEMPORARY)], ["2001:db8::2", "2001:db8::1"]),
        (1, [("2001:db8::2/64", TEMPORARY), ("2001:db8::1/64", 0)], ["2001:db8::1", "2001:db8::2"]),
        (
            None,
            [("2001:db8::2/64", TEMPORARY), ("2001:db8::1/64", 0)],
            ["2001:db8::1", "2001:db8::2"],
        ),
        # rather a public one than a temporary one that is deprecated
        (
            2,
            [("2001:db8::2/64", TEMPORARY | DEPRECATED), ("2001:db8::1/64", 0)],
            ["2001:db8::1", "2001:db8::2"],
        ),
        # of IPv4 the same bit is that of a secondary address, which the kernel never chooses
        (2, [("10.0.0.2/24", TEMPORARY), ("10.0.0.1/24", 0)], ["10.0.0.1", "10.0.0.2"]),
        # duplicate address detection: running, failed, and usable while it runs, but not first
        (0, [("2001:db8::1/64", TENTATIVE), ("2001:db8::2/64", FAILED)], []),
        (0, [("2001:db8::1/64", TENTATIVE | OPTIMISTIC | FAILED)], []),
        (
            0,
            [("2001:db8::1/64", TENTATIVE | OPTIMISTIC), ("2001:db8::2/64", 0)],
            ["2001:db8::2", "2001:db8::1"],
        ),
    ],
)
def test_interface__addresses_in_the_order_of_the_kernel(
    use_tempaddr: int | None, addresses: list[tuple[str, int]], expected: list[str]
) -> None:
    assert addresses_of(Kernel(addresses, use_tempaddr)) == expected


def test_interface__deprecated_addresses() -> None:
    given = [("10.0.0.9/24", DEPRECATED), ("10.0.0.1/24", 0), ("2001:db8::1/64", DEPRECATED)]
    (found,) = Interface.read(Kernel(given, 0))  # type: ignore[arg-type]
    assert sorted(map(str, found.deprecated)) == ["10.0.0.9", "2001:db8::1"]
