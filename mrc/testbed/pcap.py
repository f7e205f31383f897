# SPDX-License-Identifier: Apache-2.0
"""Turns captured frames into the packets of a wire, and writes the file format of libpcap. Pure.

Between hosts of one machine the kernel moves whole bursts and leaves the checksums to an interface
that never computes them. This module cuts the bursts and computes the checksums, so every packet of
a capture has its own headers and a correct checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from msgspec import Struct

_NANOSECONDS = 0xA1B23C4D
_LINKTYPE_ETHERNET = 1

_NEEDS_CHECKSUM = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM
_GSO_NONE, _GSO_UDP = 0, 5  # VIRTIO_NET_HDR_GSO_NONE, _UDP_L4

_ETHERNET_BYTES, _IPV6_BYTES, _UDP_BYTES = 14, 40, 8
_IN_IPV4, _UDP, _IN_IPV6 = 4, 17, 41
_EXTENSIONS = (0, 43, 60)  # hop-by-hop and destination options, routing


class Offload(Struct, frozen=True):
    """The work left to the interface: the fields of `struct virtio_net_hdr`."""

    flags: int
    gso_type: int
    header_bytes: int
    gso_bytes: int
    checksum_start: int
    checksum_offset: int


def write_header(file: BinaryIO, snap_bytes: int) -> None:
    header = (_NANOSECONDS, 2, 4, 0, 0, snap_bytes, _LINKTYPE_ETHERNET)
    file.write(struct.pack("=IHHiIII", *header))


def write_packet(file: BinaryIO, time_ns: int, frame: bytes, snap_bytes: int) -> None:
    kept = frame[:snap_bytes]
    seconds, rest_ns = divmod(time_ns, 10**9)
    file.write(struct.pack("=IIII", seconds, rest_ns, len(kept), len(frame)) + kept)


def on_the_wire(frame: bytes, offload: Offload) -> Iterator[bytes]:
    """The packets of a frame. A TCP burst stays whole."""
    if not offload.flags & _NEEDS_CHECKSUM:
        yield frame
    elif offload.gso_type == _GSO_NONE:
        yield _with_checksum(frame, offload)
    elif offload.gso_type == _GSO_UDP and offload.gso_bytes:
        yield from _cut(frame, offload)
    else:
        yield frame


def _with_checksum(frame: bytes, offload: Offload) -> bytes:
    """Computes a missing checksum. Its field holds the sum of the pseudo header."""
    start = offload.checksum_start
    made = bytearray(frame)
    struct.pack_into("!H", made, start + offload.checksum_offset, 0xFFFF - _sum(frame[start:]))
    return bytes(made)


def _cut(frame: bytes, offload: Offload) -> Iterator[bytes]:
    udp = offload.checksum_start
    headers = _ip_headers(frame)
    payload = frame[udp + _UDP_BYTES :]
    for number, start in enumerate(range(0, len(payload), offload.gso_bytes)):
        part = payload[start : start + offload.gso_bytes]
        head = bytearray(frame[: udp + _UDP_BYTES])
        for at in headers:
            _set_length(head, at, len(head) + len(part) - at, number)
        length = _UDP_BYTES + len(part)
        struct.pack_into("!HH", head, udp + 4, length, 0)
        ends = _addresses(head, headers[-1])
        pseudo = ends + struct.pack("!HH", _UDP, length)
        struct.pack_into("!H", head, udp + 6, 0xFFFF - _sum(pseudo + head[udp:] + part))
        yield bytes(head) + part


def _ip_headers(frame: bytes) -> list[int]:
    """The offsets of the IP headers, the outermost first."""
    found = []
    at, kind = _ETHERNET_BYTES, _IN_IPV6 if frame[12:14] == b"\x86\xdd" else _IN_IPV4
    while kind in (_IN_IPV4, _IN_IPV6):
        found.append(at)
        if kind == _IN_IPV4:
            at, kind = at + (frame[at] & 0xF) * 4, frame[at + 9]
            continue
        at, kind = at + _IPV6_BYTES, frame[at + 6]
        while kind in _EXTENSIONS:
            at, kind = at + (frame[at + 1] + 1) * 8, frame[at]
    return found


def _set_length(head: bytearray, at: int, length: int, number: int) -> None:
    """Sets the length of the IP header at `at`, for IPv4 also its identification and checksum."""
    if head[at] >> 4 == 6:
        struct.pack_into("!H", head, at + 4, length - _IPV6_BYTES)
        return
    ident = (struct.unpack_from("!H", head, at + 4)[0] + number) & 0xFFFF
    struct.pack_into("!HH", head, at + 2, length, ident)
    struct.pack_into("!H", head, at + 10, 0)
    struct.pack_into("!H", head, at + 10, 0xFFFF - _sum(head[at : at + (head[at] & 0xF) * 4]))


def _addresses(head: bytearray, at: int) -> bytes:
    return bytes(head[at + 8 : at + 40] if head[at] >> 4 == 6 else head[at + 12 : at + 20])


def _sum(data: bytes | bytearray) -> int:
    """The ones' complement sum of all 16-bit words, because 2^16 is 1 modulo 65535.

    The sum is never 0xFFFF, so no checksum is 0. To UDP, 0 means no checksum.
    """
    return (int.from_bytes(data) << 8 * (len(data) % 2)) % 0xFFFF
