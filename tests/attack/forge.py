# SPDX-License-Identifier: Apache-2.0
"""Data of an attacker: forged packets with a correct ICRC, hellos, frames of the exchange."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from struct import pack, unpack
from typing import Any
from zlib import crc32

from mrc.versions import EXCHANGE

ACK, EV_PROBE, PORT_STATUS = 0xD1, 0xD9, 0xD8  # opcodes
ENDPOINT_QPN = 2
Message = dict[str, Any]


def icrc(src: str, dst: str, sport: int, dport: int, body: bytes) -> bytes:
    """The ICRC of an IPv4 packet with the UDP payload `body` + ICRC. It needs no secret."""
    udp = 8 + len(body) + 4
    ip = bytearray(b"\xff" * 20)
    ip[0], ip[2:4], ip[9] = 0x45, pack(">H", 20 + udp), socket.IPPROTO_UDP
    ip[12:16], ip[16:20] = socket.inet_aton(src), socket.inet_aton(dst)
    masked = bytearray(body)
    masked[4] = 0xFF
    head = bytes(ip) + pack(">HHHH", sport, dport, udp, 0xFFFF)
    return pack("<I", crc32(bytes(masked), crc32(head, 0x2144DF1C)))


def bth(opcode: int, qpn: int, psn: int) -> bytes:
    return pack(">BBHII", opcode, 0, 0xFFFF, qpn, psn)


def packet(src: str, dst: str, sport: int, dport: int, payload: bytes) -> bytes:
    """An IPv4 packet with a UDP header, without checksums."""
    udp = pack(">HHHH", sport, dport, 8 + len(payload), 0)
    ip = pack(">BBHHHBBH", 0x45, 0, 0, 0, 0, 64, socket.IPPROTO_UDP, 0)
    return ip + socket.inet_aton(src) + socket.inet_aton(dst) + udp + payload


def spoof(raw: socket.socket, src: str, dst: str, sport: int, dport: int, body: bytes) -> None:
    """Sends a packet as if from `src`; adds the ICRC."""
    payload = body + icrc(src, dst, sport, dport, body)
    raw.sendto(packet(src, dst, sport, dport, payload), (dst, 0))


def frame(message: Message) -> bytes:
    """The bytes of one message of the exchange."""
    body = json.dumps(message).encode()
    return pack(">I", len(body)) + body


def hello(
    address: str = "10.7.4.2/24",
    *,
    source_ports: Sequence[int] = (40000,),
    private: Message | None = None,
    **more: Any,
) -> Message:
    """A hello that names one port; `more` replaces attributes."""
    port = {"nic": "eth0", "address": address, "source_ports": [*source_ports], "mtu": 8908}
    attributes = {
        "qpn": 77, "first_psn": 1, "path_mtu": 8908, "mpr": 1024, "max_wimm": 128,
        "integrity": "icrc", "udp_port": 4791, "ports": [port], **more,
    }  # fmt: skip
    return {"type": "hello", "version": EXCHANGE, "host": "x", "private": private or {},
            "attributes": attributes}  # fmt: skip


def answer(tcp: socket.socket) -> Message | None:
    """The next message that a host sends over the exchange, or None at the end."""
    try:
        with tcp.makefile("rb") as stream:
            head = stream.read(4)
            if len(head) < 4:
                return None
            found: Message = json.loads(stream.read(unpack(">I", head)[0]))
            return found
    except ConnectionError:
        return None
