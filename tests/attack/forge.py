# SPDX-License-Identifier: Apache-2.0
"""Data of an attacker: packets of any source, hellos; and the answers to them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import pack, unpack
from typing import Any

from mrc.versions import EXCHANGE

Message = dict[str, Any]


def packet(src: str, dst: str, sport: int, dport: int, payload: bytes) -> bytes:
    """An IPv4 packet with a UDP header, without checksums."""
    udp = pack(">HHHH", sport, dport, 8 + len(payload), 0)
    ip = pack(">BBHHHBBH", 0x45, 0, 0, 0, 0, 64, socket.IPPROTO_UDP, 0)
    return ip + socket.inet_aton(src) + socket.inet_aton(dst) + udp + payload


def hello(
    address: str = "10.7.4.2/24",
    *,
    source_ports: Sequence[int] = (40000,),
    **more: Any,
) -> Message:
    """A hello that names one port; `more` replaces attributes."""
    port = {"nic": "eth0", "address": address, "source_ports": [*source_ports], "mtu": 8908}
    attributes = {
        "qpn": 77, "first_psn": 1, "path_mtu": 8908, "mpr": 1024, "max_wimm": 128,
        "integrity": "icrc", "udp_port": 4791, "ports": [port], **more,
    }  # fmt: skip
    return {"type": "hello", "version": EXCHANGE, "host": "x", "private": {},
            "attributes": attributes}  # fmt: skip


def answers(tcp: socket.socket) -> Iterator[Message]:
    """The messages that a host sends over the exchange."""
    with suppress(ConnectionError), tcp.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield json.loads(stream.read(unpack(">I", head)[0]))


def answer(tcp: socket.socket) -> Message | None:
    """The next of them, or None at the end."""
    return next(answers(tcp), None)
