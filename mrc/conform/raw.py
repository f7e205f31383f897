# SPDX-License-Identifier: Apache-2.0
"""IP packets with headers that no UDP socket makes: checksums, lengths, fragments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mrc.conform.frames import checksum, udp
from mrc.dissect.packet import Flow

FIELDS = ("udp_checksum", "udp_bytes", "fragment", "ttl", "ip_id")
"""Of a step that needs them."""
_UDP, _FRAGMENT_HEADER = 17, 44
_MORE = 0x2000
_HOPS = 64


def packets(
    flow: Flow, payload: bytes, tclass: int, fields: Mapping[str, int]
) -> Iterator[bytes]:  # fmt: skip
    """The datagram as IP packets. `udp_checksum` and `udp_bytes` are added to the right checksum
    and length. `fragment` 1 is the first half alone, 2 the second one, 3 both.
    """
    segment = udp(flow, payload)
    length = int.from_bytes(segment[4:6], "big") + fields.get("udp_bytes", 0)
    changed = (int.from_bytes(segment[6:8], "big") + fields.get("udp_checksum", 0)) % 0xFFFF
    segment = segment[:4] + length.to_bytes(2, "big") + changed.to_bytes(2, "big") + segment[8:]
    parts = fields.get("fragment", 0)
    if not parts:
        yield _ip(flow, segment, tclass, fields, 0)
        return
    half = len(segment) // 2 // 8 * 8
    if parts & 1:
        yield _ip(flow, segment[:half], tclass, fields, _MORE)
    if parts & 2:
        yield _ip(flow, segment[half:], tclass, fields, half // 8)


def _ip(flow: Flow, data: bytes, tclass: int, fields: Mapping[str, int], place: int) -> bytes:
    """`place`: offset in units of 8 bytes, and whether more fragments follow, as in IPv4."""
    ends = flow.source.packed + flow.destination.packed
    hops, identity = fields.get("ttl", _HOPS), fields.get("ip_id", 0x4D52)
    if flow.source.version == 4:
        head = bytes([0x45, tclass]) + (20 + len(data)).to_bytes(2, "big")
        head += identity.to_bytes(2, "big") + place.to_bytes(2, "big") + bytes([hops, _UDP])
        return head + checksum(head + b"\0\0" + ends).to_bytes(2, "big") + ends + data
    following = _UDP
    if place:
        offset = (place & 0x1FFF) << 3 | place >> 13
        data = bytes([_UDP, 0]) + offset.to_bytes(2, "big") + identity.to_bytes(4, "big") + data
        following = _FRAGMENT_HEADER
    first = 6 << 28 | tclass << 20 | flow.flow_label
    head = first.to_bytes(4, "big") + len(data).to_bytes(2, "big") + bytes([following, hops])
    return head + ends + data
