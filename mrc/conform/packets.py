# SPDX-License-Identifier: Apache-2.0
"""The packets of the judge: made from tables, as frames of a capture, and as IP packets that no UDP
socket makes. Pure.

Their headers follow the tables of `mrc/dissect/formats.py`, also wrong ones, and share no code with
the engine's encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address
from typing import BinaryIO

from msgspec import Struct

from mrc.dissect.formats import BYTES, OPCODES, TABLES
from mrc.dissect.packet import CC_TIMES, IpAddress, Packet, UdpFlow, headers_behind, icrc
from mrc.enums import Reading
from mrc.testbed import capture

OPERATION_BYTE = 13  # of an endpoint response
ENDPOINT_QPN = 2
OPCODE = {name: code for code, name in OPCODES.items()}
_USUAL = {
    "BTH": {"pkey": 0xFFFF},
    "TSETH": {"tsr": 1, "ftype": 1},
    "NETH": {"cc_type": 2},
    "PETH": {"tsr": 1, "ftype": 1},
    "ERTH": {"tsr": 1, "ftype": 1},
}
"""Values of fields that have one usual value other than 0."""


def headers(kind: str, fields: Mapping[str, int]) -> bytes:
    """The BTH and the headers behind it. Raises ValueError for a field that none of them has."""
    bth = {"opcode": OPCODE[kind], "ts": 0, **fields}
    left = set(fields)
    made = b""
    for header in ("BTH", *headers_behind({**bth, "opcode": OPCODE[kind]})):
        if header == "CC_STATE" and bth.get("cc_type") == CC_TIMES:
            header = "CC_TIMES"
        values = {**_USUAL.get(header, {}), **bth}
        made += _header(header, values)
        left -= {field.name for field in TABLES[header]}
    if left:
        raise ValueError(f"{kind} has no field {', '.join(sorted(left))}")
    return made


def fields_of(kind: str, *, ts: bool) -> set[str]:
    """The names of all fields of a packet."""
    stack = ("BTH", *headers_behind({"opcode": OPCODE[kind], "ts": int(ts)}))
    return {field.name for header in stack for field in TABLES[header] if field.name}


def _header(header: str, values: Mapping[str, int]) -> bytes:
    number = 0
    for name, bits, signed in TABLES[header]:
        value = values.get(name, 0) if name else 0
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if not least <= value <= most:
            raise ValueError(f"{name}: {value} is not within {least}..{most}")
        number = number << bits | value & (1 << bits) - 1
    return number.to_bytes(BYTES[header], "big")


def endpoint_response(number: int, request: Mapping[str, int], readings: Reading) -> bytes:
    """The answer to an endpoint request with this ERTH, without its ICRC."""
    lifted = Reading.C6_B in readings
    fields = {
        "operation": 0 if lifted else request["operation"], "psn": number,
        "tx_timestamp": request["tx_timestamp"], "dest_qpn": ENDPOINT_QPN,
    }  # fmt: skip
    body = bytearray(headers("ENDPOINT_RESPONSE", fields))
    if lifted:
        body[OPERATION_BYTE] |= request["operation"] << 4
    return bytes(body)


def finished(body: bytes, flow: UdpFlow) -> bytes:
    """The UDP payload: the body and its ICRC."""
    return body + icrc(body, flow)


# ---- Datagrams -----------------------------------------------------------------------------------


class Datagram(Struct):
    """One datagram."""

    at_ns: int
    """Since the epoch."""
    flow: UdpFlow
    payload: bytes
    packet: Packet
    sent: bool
    """By the judge."""
    same_ev: bool = False
    """Whether its PSN came on the same EV before."""
    after_mark: int = 0
    """It is the n-th packet on its EV since a mark of the judge for that EV; 0: there was none."""


# ---- Frames --------------------------------------------------------------------------------------


_UDP, _IPIP, _IPV6_IN_IP = 17, 4, 41
_HOPS = 64
_NO_FRAGMENT = b"\0\0\x40\0"  # identification 0, flag DF
_OUTER_SOURCE = IPv6Address("fd00:f::1")
_SNAP_BYTES = 1 << 18
_CE = 3
_TRIMMED = 0x07 << 2


def frame(flow: UdpFlow, payload: bytes) -> bytes:
    """An Ethernet frame with the IP and UDP headers of this flow, and the carrier around them."""
    tclass = (_TRIMMED if flow.trimmed else 0) | (_CE if flow.ce else 0)
    inner = _ip_of_frame(
        flow.source, flow.destination, udp(flow, payload), _UDP, tclass, flow.flow_label
    )
    if flow.carrier is not None:
        kind = _IPV6_IN_IP if flow.source.version == 6 else _IPIP
        inner = _ip_of_frame(_OUTER_SOURCE, flow.carrier, inner, kind, tclass, flow.flow_label)
    return bytes(12) + (b"\x86\xdd" if inner[0] >> 4 == 6 else b"\x08\x00") + inner


def udp(flow: UdpFlow, payload: bytes) -> bytes:
    """The UDP header of a flow, and the payload."""
    length = 8 + len(payload)
    ends = flow.source.packed + flow.destination.packed
    pseudo = ends + length.to_bytes(4, "big") + _UDP.to_bytes(4, "big")
    head = b"".join(number.to_bytes(2, "big") for number in (flow.sport, flow.dport, length))
    found = checksum(pseudo + head + payload) or 0xFFFF
    return head + found.to_bytes(2, "big") + payload


def _ip_of_frame(
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


def write_capture(file: BinaryIO, datagrams: Iterable[tuple[int, UdpFlow, bytes]]) -> None:
    """Writes a capture: for each datagram its time in ns since the epoch, its flow and payload."""
    capture.write_header(file, _SNAP_BYTES)
    for at_ns, flow, payload in datagrams:
        capture.write_packet(file, at_ns, frame(flow, payload), _SNAP_BYTES)


def checksum(data: bytes) -> int:
    """The ones' complement of the sum of all 16-bit words."""
    return 0xFFFF - (int.from_bytes(data) << 8 * (len(data) % 2)) % 0xFFFF


# ---- IP packets ----------------------------------------------------------------------------------


RAW_FIELDS = ("udp_checksum", "udp_bytes", "fragment", "ttl", "ip_id")
"""Of a step that needs them."""
_FRAGMENT_HEADER = 44
_MORE = 0x2000


def ip_packets(
    flow: UdpFlow, payload: bytes, tclass: int, fields: Mapping[str, int]
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
        yield _fragment(flow, segment, tclass, fields, 0)
        return
    half = len(segment) // 2 // 8 * 8
    if parts & 1:
        yield _fragment(flow, segment[:half], tclass, fields, _MORE)
    if parts & 2:
        yield _fragment(flow, segment[half:], tclass, fields, half // 8)


def _fragment(
    flow: UdpFlow, data: bytes, tclass: int, fields: Mapping[str, int], place: int
) -> bytes:
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
