# SPDX-License-Identifier: Apache-2.0
"""Writes captures of MRC packets for the tools that read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap
from wire.codec import Flow
from wire.golden import GOLDEN

CARRIER = "fcbb:1:100:201:e000::"  # outer destination of the encapsulated packets
FLOW_LABEL = 0x7ABCD
BY_NAME = {golden.name: golden for golden in GOLDEN}


def sealed(name: str, mode: int) -> bytes:
    """A golden packet with a seal of counter 77 in place of its ICRC; nothing is encrypted."""
    packet = bytearray(BY_NAME[name].packet[:-4])
    packet[1] |= 1
    seal = mode.to_bytes(1, "big") + packet[5:8] + (77).to_bytes(8, "big")
    return bytes(packet + seal) + b"\xee" * 16


def frame(payload: bytes, flow: Flow, *, via: str | None = None, tclass: int = 2) -> Packet:
    """An Ethernet frame with a UDP payload; `via`: inside IPv6 to that address."""
    if flow.family == 4:
        ip: Packet = IP(src=flow.src, dst=flow.dst, tos=tclass)
    else:
        ip = IPv6(src=flow.src, dst=flow.dst, tc=tclass, fl=FLOW_LABEL)
    if via is not None:
        ip = IPv6(src="fd00:f::1", dst=via, tc=tclass, fl=FLOW_LABEL) / ip
    ethernet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return ethernet / ip / UDP(sport=flow.sport, dport=flow.dport) / Raw(payload)


def write(path: Path, frames: Sequence[Packet]) -> Path:
    """Frame i is captured i milliseconds after the first."""
    for i, one in enumerate(frames):
        one.time = 1_000_000 + i / 1000
    wrpcap(str(path), list(frames))
    return path
