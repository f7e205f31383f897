# SPDX-License-Identifier: Apache-2.0
"""Golden packets: every kind of packet in bytes, with each header explained.

They were written by hand from the tables of the format. The tests compare them with the engine's
codec and with `mrc/dissect`, which share no code.
"""

from __future__ import annotations

import json
import re
from ipaddress import ip_address
from pathlib import Path

import msgspec
from msgspec import Struct

from mrc.dissect.packet import SEAL_BYTES, TAG_BYTES, Packet, UdpFlow

VERSION = 1
"""Grows when the bytes of a packet change; packets may be added."""
FILE = Path(__file__).parent / "packets.txt"
SEALED = Path(__file__).parents[1] / "connect" / "vectors.json"

_V6 = UdpFlow(ip_address("fd00:a::1"), ip_address("fd00:a:1::1:0"), 0xC001, 4791, 0x7ABCD)
_V4 = UdpFlow(ip_address("192.0.2.1"), ip_address("198.51.100.2"), 0xC002, 4791)
FLOWS = {
    "v6": _V6,
    "v4": _V4,
    "srv6": UdpFlow(
        _V6.source, _V6.destination, _V6.sport, _V6.dport, _V6.flow_label,
        carrier=ip_address("fcbb:1:100:201:e000::"),
    ),
    "port-4971": UdpFlow(_V6.source, _V6.destination, _V6.sport, 4971, _V6.flow_label),
    "trimmed": UdpFlow(
        _V6.source, _V6.destination, _V6.sport, _V6.dport, _V6.flow_label, trimmed=True
    ),
}  # fmt: skip


class VectorPart(Struct, frozen=True):
    """Some bytes of a packet, mostly a header."""

    data: bytes
    text: str


class Vector(Struct, frozen=True):
    """One golden packet."""

    name: str
    flow: UdpFlow
    parts: tuple[VectorPart, ...]
    reading: str = ""
    """The reading that it follows where the engine follows another one."""

    @property
    def payload(self) -> bytes:
        """The UDP payload."""
        return b"".join(part.data for part in self.parts)

    @property
    def packet(self) -> Packet:
        """As `mrc/dissect` decodes it, by the readings of the engine."""
        return Packet.decode(self.payload, self.flow)


_SEALED_TEXTS = {"auth": "payload and pad", "aead": "immediate, payload and pad, encrypted"}


def sealed() -> list[Vector]:
    """The sealed packets of `mrc/connect/vectors.json`, which has their keys."""
    found = []
    for each in json.loads(SEALED.read_text())["packets"]:
        ev, payload = int(each["ev"], 16), bytes.fromhex(each["sealed"])
        flow = msgspec.structs.replace(_V6, sport=ev >> 16, flow_label=ev & 0xFFFF)
        headers, end = len(each["headers"]) // 2, len(payload) - SEAL_BYTES - TAG_BYTES
        parts = [
            VectorPart(payload[:headers], "headers, TVER 1"),
            VectorPart(payload[headers:end], _SEALED_TEXTS[each["mode"]]),
            VectorPart(payload[end:-TAG_BYTES], f"seal: {each['mode']}, {each['sender']}"),
            VectorPart(payload[-TAG_BYTES:], "tag"),
        ]
        name = "-".join(re.findall(r"\w+", f"sealed {each['mode']} {each['name']}"))
        shown = tuple(part for part in parts if part.data)
        found.append(Vector(f"{name}-{each['counter']}", flow, shown))
    return found


def load(text: str | None = None) -> dict[str, Vector]:
    """The golden packets by name."""
    found: dict[str, Vector] = {}
    for block in ("\n" + (FILE.read_text() if text is None else text)).split("\npacket ")[1:]:
        head, *lines = block.strip().splitlines()
        name, *marks = head.split()
        settings = dict(mark.split("=", 1) for mark in marks)
        parts = []
        for line in lines:
            digits, _, caption = line.partition("|")
            parts.append(VectorPart(bytes.fromhex(digits), caption.strip()))
        assert name not in found, name
        flow, reading = FLOWS[settings.get("flow", "v6")], settings.get("reading", "")
        found[name] = Vector(name, flow, tuple(parts), reading)
    return found
