# SPDX-License-Identifier: Apache-2.0
"""UDP payloads as frames of a capture. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from mrc.dissect.packet import Flow
from mrc.testbed import pcap

_UDP = 17
_SNAP_BYTES = 1 << 18
_CE = 3
_TRIMMED = 0x07 << 2


def frame(flow: Flow, payload: bytes) -> bytes:
    """An Ethernet frame with IP and UDP headers of this flow."""
    udp_bytes = 8 + len(payload)
    tclass = (_TRIMMED if flow.trimmed else 0) | (_CE if flow.ce else 0)
    ends = flow.source.packed + flow.destination.packed
    head = b"".join(number.to_bytes(2, "big") for number in (flow.sport, flow.dport, udp_bytes))
    pseudo = ends + udp_bytes.to_bytes(4, "big") + _UDP.to_bytes(4, "big")
    checksum = _checksum(pseudo + head + payload) or 0xFFFF
    udp = head + checksum.to_bytes(2, "big") + payload
    if flow.source.version == 6:
        first = 6 << 28 | tclass << 20 | flow.flow_label
        ip = first.to_bytes(4, "big") + udp_bytes.to_bytes(2, "big") + bytes([_UDP, 64]) + ends
        return bytes(12) + b"\x86\xdd" + ip + udp
    start = bytes([0x45, tclass]) + (20 + udp_bytes).to_bytes(2, "big") + b"\0\0\x40\0"
    start += bytes([64, _UDP])
    sums = _checksum(start + b"\0\0" + ends)
    return bytes(12) + b"\x08\x00" + start + sums.to_bytes(2, "big") + ends + udp


def write(file: BinaryIO, datagrams: Iterable[tuple[int, Flow, bytes]]) -> None:
    """Writes a capture: for each datagram its time in ns since the epoch, its flow and payload."""
    pcap.write_header(file, _SNAP_BYTES)
    for at_ns, flow, payload in datagrams:
        pcap.write_packet(file, at_ns, frame(flow, payload), _SNAP_BYTES)


def _checksum(data: bytes) -> int:
    """The ones' complement of the sum of all 16-bit words."""
    return 0xFFFF - (int.from_bytes(data) << 8 * (len(data) % 2)) % 0xFFFF
