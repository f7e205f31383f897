# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF012  scapy's fields_desc is a list of the class
"""MRC for scapy: a layer for every header, the ICRC, and the packets of GSO and GRO bursts.

    >>> import mrc_layers
    >>> mrc_layers.bind(4791)
    >>> rdpcap("a.pcap")[0][mrc_layers.BTH].show()

This module shares no code with csrc/core/wire.c, so each checks the other. Both follow the format's
tables. This module also shows reserved bits and values that the C decoder refuses.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from ipaddress import ip_address

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    FCSField,
    IntField,
    ShortField,
    SignedShortField,
    ThreeBytesField,
    X3BytesField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
    XStrFixedLenField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers

OPCODES = {
    0xC6: "WRITE_FIRST",
    0xC7: "WRITE_MIDDLE",
    0xC8: "WRITE_LAST",
    0xC9: "WRITE_LAST_IMM",
    0xCA: "WRITE_ONLY",
    0xCB: "WRITE_ONLY_IMM",
    0xD1: "ACK",
    0xD8: "ENDPOINT_REQUEST",
    0xD9: "ENDPOINT_RESPONSE",
    0xDC: "SACK",
    0xDD: "NACK",
    0xDE: "PROBE",
}
DATA = range(0xC6, 0xCC)
WITH_IMM = (0xC9, 0xCB)
M_VALUES = {0: "NONE", 1: "SKIP_ONCE", 2: "ALWAYS_SKIP"}
NACK_REASONS = {
    0x01: "TRIMMED",
    0x02: "TRIMMED_LASTHOP",
    0x06: "NO_BITMAP",
    0x07: "NO_PKT_BUFFER",
    0x0A: "NO_RESOURCE",
    0x0B: "PSN_OOR_WINDOW",
    0x19: "UNEXP_EVENT",
}
ENDPOINT_OPS = {0: "PORT_STATUS", 1: "EV_PROBE"}
SYNDROMES = {0x1F: "ACK", 0x61: "NAK_INV_REQ", 0x62: "NAK_REM_ACCESS", 0x63: "NAK_REM_OP"}
ICRC_BYTES = 4
MIN_BYTES = 12 + ICRC_BYTES  # shortest packet that BTH(bytes) can decode


class BTH(Packet):
    """Base transport header. The ICRC at the packet's end is a field of this layer."""

    name = "BTH"
    fields_desc = [
        ByteEnumField("opcode", 0xCA, OPCODES),
        BitField("se", 0, 1),
        BitField("m", 0, 1),
        BitField("pad", 0, 2),
        BitField("tver", 0, 4),
        XShortField("pkey", 0xFFFF),
        XByteField("var_res", 0),
        X3BytesField("dest_qpn", 0),
        BitField("ack_req", 0, 1),
        BitField("res", 0, 1),
        BitField("rtx", 0, 1),
        BitField("ts", 0, 1),
        BitField("inv_res", 0, 4),
        X3BytesField("psn", 0),
        FCSField("icrc", 0, fmt="!I"),
    ]


class METH(Packet):
    """Message numbers."""

    name = "METH"
    fields_desc = [ShortField("rqmsn", 0), ShortField("msn", 0)]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return TSETH if self.underlayer is not None and self.underlayer.ts else RETH


class TSETH(Packet):
    """Timestamp."""

    name = "TSETH"
    fields_desc = [
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("res", 0, 11),
        BitField("ftype", 1, 4),
    ]


class RETH(Packet):
    """Address, key and length of the target memory."""

    name = "RETH"
    fields_desc = [XLongField("va", 0), XIntField("rkey", 0), IntField("dma_bytes", 0)]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        layer = self.underlayer
        while layer is not None and not isinstance(layer, BTH):
            layer = layer.underlayer
        return ImmDt if layer is not None and layer.opcode in WITH_IMM else Raw


class ImmDt(Packet):
    """The immediate."""

    name = "ImmDt"
    fields_desc = [XIntField("imm", 0)]


class SETH(Packet):
    """Selective acknowledgement."""

    name = "SETH"
    fields_desc = [
        BitField("type", 0, 4),
        BitField("nh", 0, 5),
        BitEnumField("m", 0, 2, M_VALUES),
        BitField("res1", 0, 3),
        BitField("pr", 0, 1),
        BitField("res2", 0, 1),
        SignedShortField("ack_psn_offset", 0),
        XIntField("ev", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ByteField("res3", 0),
        X3BytesField("cum_psn", 0),
        BitField("cc_type", 0, 4),
        BitField("cc_fl", 0, 4),
        ByteField("mpr", 0),
        SignedShortField("sack_offset", 0),
        XLongField("bitmap", 0),
    ]


class CC_STATE(Packet):
    """NSCC's part of a SACK."""

    name = "CC_STATE"
    fields_desc = [
        ShortField("tx_timestamp", 0),
        BitField("res", 0, 1),
        BitField("ooo_count", 0, 15),
        BitField("restore_cwnd", 0, 1),
        BitField("rcv_cwnd_pen", 0, 7),
        ThreeBytesField("rcvd_bytes", 0),
    ]


class CC_TIMES(Packet):
    """As CC_STATE, with the send time of the SACK."""

    name = "CC_TIMES"
    fields_desc = [
        ShortField("tx_timestamp", 0),
        ShortField("sent_timestamp", 0),
        BitField("restore_cwnd", 0, 1),
        BitField("rcv_cwnd_pen", 0, 7),
        ThreeBytesField("rcvd_bytes", 0),
    ]


class NETH(Packet):
    """Refusal of one PSN."""

    name = "NETH"
    fields_desc = [
        XShortField("type_nh", 0),
        ByteEnumField("reason", 0x01, NACK_REASONS),
        XByteField("vendor_info", 0),
        XIntField("ev", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ByteField("res1", 0),
        X3BytesField("nack_psn", 0),
        BitField("cc_type", 2, 4),
        BitField("cc_fl", 0, 4),
        ByteField("res2", 0),
        ShortField("tx_timestamp", 0),
    ]


class PETH(Packet):
    """Reliability probe."""

    name = "PETH"
    fields_desc = [
        XShortField("type_nh", 0),
        ByteField("res1", 0),
        XByteField("vendor", 0),
        XShortField("probe_id", 0),
        ShortField("res2", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("res3", 0, 11),
        BitField("ftype", 1, 4),
    ]


class ERTH(Packet):
    """Endpoint request."""

    name = "ERTH"
    fields_desc = [
        BitField("type_nh", 0, 14),
        BitEnumField("op", 0, 2, ENDPOINT_OPS),
        ByteField("res1", 0),
        XByteField("vendor", 0),
        XIntField("port_status_mask", 0),
        IntField("res2", 0),
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("res3", 0, 11),
        BitField("ftype", 1, 4),
    ]


class EETH(Packet):
    """Endpoint response."""

    name = "EETH"
    fields_desc = [
        BitField("type_nh", 0, 9),
        BitEnumField("m", 0, 2, M_VALUES),
        BitField("res0", 0, 1),
        BitEnumField("op", 0, 2, ENDPOINT_OPS),
        BitField("res1", 0, 2),
        XStrFixedLenField("res2", bytes(26), 26),
        ShortField("tx_timestamp", 0),
        XStrFixedLenField("res3", bytes(6), 6),
    ]


class AETH(Packet):
    """Transport ACK or NAK."""

    name = "AETH"
    fields_desc = [ByteEnumField("syndrome", 0x1F, SYNDROMES), X3BytesField("msn", 0)]


for _opcode in DATA:
    bind_layers(BTH, METH, opcode=_opcode)
bind_layers(TSETH, RETH)
bind_layers(BTH, AETH, opcode=0xD1)
bind_layers(BTH, ERTH, opcode=0xD8)
bind_layers(BTH, EETH, opcode=0xD9)
bind_layers(BTH, SETH, opcode=0xDC)
bind_layers(SETH, CC_STATE, cc_type=0)
bind_layers(SETH, CC_TIMES, cc_type=15)
bind_layers(BTH, NETH, opcode=0xDD)
bind_layers(BTH, PETH, opcode=0xDE)


def bind(port: int) -> None:
    """Makes scapy decode packets to a UDP port as MRC."""
    bind_bottom_up(UDP, BTH, dport=port)


def payload_of(bth: BTH) -> bytes:
    """The payload behind the headers, without the pad."""
    raw = bytes(bth[Raw]) if Raw in bth else b""
    return raw[: len(raw) - bth.pad]


def ev_of(udp: UDP) -> int:
    """The entropy value: UDP source port, and the low 16 bits of the flow label."""
    ip = udp.underlayer
    return udp.sport << 16 | (ip.fl & 0xFFFF if isinstance(ip, IPv6) else 0)


def icrc(
    src: str,
    dst: str,
    sport: int,
    dport: int,
    body: bytes,
    *,
    ident: int = 0xFFFF,
    fragment: int = 0xFFFF,
) -> bytes:
    """ICRC of the UDP payload `body`, which must not include it, in wire byte order.

    `ident` and `fragment` are the IPv4 identification and the following 16 bits of flags and
    offset. RoCEv2 covers their values, MRC in software covers ones.
    """
    udp_bytes = 8 + len(body) + ICRC_BYTES
    addresses = ip_address(src).packed + ip_address(dst).packed
    if len(addresses) == 8:
        fixed = (0x45, 0xFF, 20 + udp_bytes, ident, fragment, 0xFF, 17, 0xFFFF)
        ip = struct.pack("!BBHHHBBH", *fixed) + addresses
    else:
        ip = struct.pack("!IHBB", 0x6FFFFFFF, udp_bytes, 17, 0xFF) + addresses
    udp = struct.pack("!HHHH", sport, dport, udp_bytes, 0xFFFF)
    masked = b"\xff" * 8 + ip + udp + body[:4] + b"\xff" + body[5:]
    return struct.pack("<I", zlib.crc32(masked))


def icrc_is_right(udp: UDP, payload: bytes) -> bool:
    """Whether a UDP payload ends with its ICRC."""
    ip = udp.underlayer
    if not isinstance(ip, (IP, IPv6)) or len(payload) < MIN_BYTES:
        return False
    body = payload[:-ICRC_BYTES]
    return icrc(ip.src, ip.dst, udp.sport, udp.dport, body) == payload[-ICRC_BYTES:]


def split(payload: bytes) -> list[bytes]:
    """The MRC packets of a captured UDP payload.

    On a host that sends with UDP_SEGMENT or receives with GRO, a capture shows a whole burst as one
    datagram. Its packets have the same length, except for the last, and each begins with a BTH to
    the same QP. This returns the split with the shortest length for which this is true.
    """
    for size in _likely_sizes(payload):
        parts = [payload[at : at + size] for at in range(0, len(payload), size)]
        if all(_looks_alike(part, payload) for part in parts):
            return parts
    return [payload]


def _looks_alike(part: bytes, first: bytes) -> bool:
    known = len(part) >= MIN_BYTES and part[0] in OPCODES
    return known and part[2:4] == b"\xff\xff" and part[5:8] == first[5:8]


def _likely_sizes(payload: bytes) -> Iterator[int]:
    """Offsets at which a second BTH could begin."""
    signature = payload[2:4] + b"\0" + payload[5:8]
    at = payload.find(signature, MIN_BYTES + 2)
    while at >= 0:
        yield at - 2
        at = payload.find(signature, at + 1)
