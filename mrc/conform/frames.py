# SPDX-License-Identifier: Apache-2.0
"""UDP payloads as frames of a capture. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address
from typing import BinaryIO

from mrc.dissect.packet import Flow, IpAddress
from mrc.testbed import pcap

_UDP, _IPIP, _IPV6_IN_IP = 17, 4, 41
_HOPS = 64
_NO_FRAGMENT = b"\0\0\x40\0"  # identification 0, flag DF
_OUTER_SOURCE = IPv6Address("fd00:f::1")
_SNAP_BYTES = 1 << 18
_CE = 3
_TRIMMED = 0x07 << 2


def frame(flow: Flow, payload: bytes) -> bytes:
    """An Ethernet frame with the IP and UDP headers of this flow, and the carrier around them."""
    tclass = (_TRIMMED if flow.trimmed else 0) | (_CE if flow.ce else 0)
    inner = _ip(flow.source, flow.destination, udp(flow, payload), _UDP, tclass, flow.flow_label)
    if flow.carrier is not None:
        kind = _IPV6_IN_IP if flow.source.version == 6 else _IPIP
        inner = _ip(_OUTER_SOURCE, flow.carrier, inner, kind, tclass, flow.flow_label)
    return bytes(12) + (b"\x86\xdd" if inner[0] >> 4 == 6 else b"\x08\x00") + inner


def udp(flow: Flow, payload: bytes) -> bytes:
    """The UDP header of a flow, and the payload."""
    length = 8 + len(payload)
    ends = flow.source.packed + flow.destination.packed
    pseudo = ends + length.to_bytes(4, "big") + _UDP.to_bytes(4, "big")
    head = b"".join(number.to_bytes(2, "big") for number in (flow.sport, flow.dport, length))
    found = checksum(pseudo + head + payload) or 0xFFFF
    return head + found.to_bytes(2, "big") + payload


def _ip(
    source: IpAddress, destination: IpAddress, payload: bytes, kind: int, tclass: int, label: int
) -> bytes:
    ends = source.packed + destination.packed
    if source.version == 6:
        first = 6 << 28 | tclass << 20 | label
        head = first.to_bytes(4, "big") + len(payload).to_bytes(2, "big")
        return head + bytes([kind, _HOPS]) + ends + payload
    head = bytes([0x45, tclass]) + (20 + len(payload)).to_bytes(2, "big") + _NO_FRAGMENT
    head += bytes([_HOPS, kind])
    found = checksum(head + b"\0\0" + ends)
    return head + found.to_bytes(2, "big") + ends + payload


def write(file: BinaryIO, datagrams: Iterable[tuple[int, Flow, bytes]]) -> None:
    """Writes a capture: for each datagram its time in ns since the epoch, its flow and payload."""
    pcap.write_header(file, _SNAP_BYTES)
    for at_ns, flow, payload in datagrams:
        pcap.write_packet(file, at_ns, frame(flow, payload), _SNAP_BYTES)


def checksum(data: bytes) -> int:
    """The ones' complement of the sum of all 16-bit words."""
    return 0xFFFF - (int.from_bytes(data) << 8 * (len(data) % 2)) % 0xFFFF
