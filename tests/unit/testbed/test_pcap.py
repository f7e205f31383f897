# SPDX-License-Identifier: Apache-2.0
"""Bursts split into packets as on a wire; scapy checks the checksums."""

from __future__ import annotations

import io
import struct

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import PcapReader

from mrc.testbed import capture
from mrc.testbed.capture import Offload

ETHERNET = Ether(src="02:00:00:00:00:02", dst="02:00:00:00:00:01")
INNER = IPv6(src="fd00:a::1", dst="fd00:a:1::1:0")
CARRIER = "fcbb:1:100:201:e000::"
HEADERS = {
    "ipv6": INNER,
    "carrier": IPv6(src="fd00:a::1", dst=CARRIER) / INNER,
    "carrier and SRH": IPv6(src="fd00:a::1", dst=CARRIER)
    / IPv6ExtHdrSegmentRouting(addresses=["fcbb:1:7::", CARRIER])
    / INNER,
    "ipv4": IP(src="10.0.0.1", dst="10.0.0.2", id=7),
}
PAYLOAD = bytes(index * 7 % 256 for index in range(2501))


def wire(headers: Packet, payload: bytes, number: int = 0) -> bytes:
    """The packet as scapy builds it, lengths and checksums included."""
    packet = ETHERNET / headers.copy() / UDP(sport=7, dport=4791) / Raw(payload)
    if IP in packet:
        packet[IP].id += number
    return bytes(packet)


def burst(headers: Packet, payload: bytes, gso_type: int, gso_bytes: int) -> tuple[bytes, Offload]:
    """A burst as in the kernel: the checksum is the sum of the pseudo header."""
    frame = bytearray(wire(headers, payload))
    udp = len(frame) - len(payload) - 8
    ends = frame[udp - 32 : udp] if IPv6 in headers else frame[udp - 8 : udp]
    words = struct.unpack(f"!{len(ends) // 2}H", ends)
    total = sum(words) + 17 + 8 + len(payload)
    struct.pack_into("!H", frame, udp + 6, (total & 0xFFFF) + (total >> 16))
    return bytes(frame), Offload(1, gso_type, udp + 8, gso_bytes, udp, 6)


@pytest.mark.parametrize("name", HEADERS)
def test_on_the_wire__cuts_a_burst(name: str) -> None:
    packets = list(capture.on_the_wire(*burst(HEADERS[name], PAYLOAD, 5, 1000)))
    parts = [PAYLOAD[:1000], PAYLOAD[1000:2000], PAYLOAD[2000:]]
    assert packets == [wire(HEADERS[name], part, n) for n, part in enumerate(parts)]


@pytest.mark.parametrize("name", HEADERS)
def test_on_the_wire__completes_a_checksum(name: str) -> None:
    assert list(capture.on_the_wire(*burst(HEADERS[name], PAYLOAD, 0, 0))) == [
        wire(HEADERS[name], PAYLOAD)
    ]


def test_on_the_wire__leaves_the_rest_alone() -> None:
    frame, offload = burst(INNER, PAYLOAD, 4, 1000)  # a TCP burst
    assert list(capture.on_the_wire(frame, offload)) == [frame]
    assert list(capture.on_the_wire(frame, Offload(0, 0, 0, 0, 0, 0))) == [frame]


def test_write__is_what_a_reader_reads() -> None:
    file = io.BytesIO()
    capture.write_header(file, 100)
    frames = [wire(INNER, PAYLOAD), wire(INNER, b"x")]
    for number, frame in enumerate(frames):
        capture.write_packet(file, 1_700_000_000_123_456_789 + number, frame, 100)
    file.seek(0)
    with PcapReader(file) as reader:  # type: ignore[arg-type]
        found = list(reader)
    assert [bytes(packet) for packet in found] == [frame[:100] for frame in frames]
    assert [packet.wirelen for packet in found] == [len(frame) for frame in frames]
    assert round(found[1].time % 1 * 10**9) == 123_456_790
