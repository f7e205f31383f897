# SPDX-License-Identifier: Apache-2.0
"""Decodes one MRC packet. Pure.

The headers are tables of field widths, as in the specification. This shares no code with
`csrc/core/wire.c`, and unlike it shows also what the engine refuses.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct, field

IpAddress = IPv4Address | IPv6Address

OPCODES = {
    0xC6: "WRITE_FIRST", 0xC7: "WRITE_MIDDLE", 0xC8: "WRITE_LAST", 0xC9: "WRITE_LAST_IMM",
    0xCA: "WRITE_ONLY", 0xCB: "WRITE_ONLY_IMM", 0xD1: "ACK", 0xD8: "ENDPOINT_REQUEST",
    0xD9: "ENDPOINT_RESPONSE", 0xDC: "SACK", 0xDD: "NACK", 0xDE: "PROBE",
}  # fmt: skip
WITH_IMM = (0xC9, 0xCB)
MARKS = {0: "NONE", 1: "SKIP_ONCE", 2: "ALWAYS_SKIP"}
REASONS = {
    0x01: "TRIMMED", 0x02: "TRIMMED_LASTHOP", 0x06: "NO_BITMAP", 0x07: "NO_PKT_BUFFER",
    0x0A: "NO_RESOURCE", 0x0B: "PSN_OOR_WINDOW", 0x19: "UNEXP_EVENT",
}  # fmt: skip
OPERATIONS = {0: "PORT_STATUS", 1: "EV_PROBE"}
SYNDROMES = {0x1F: "ACK", 0x61: "NAK_INV_REQ", 0x62: "NAK_REM_ACCESS", 0x63: "NAK_REM_OP"}
AUTH = 1
_CC_TIMES = 15
SEALS = {AUTH: "auth", 2: "aead"}
ICRC_BYTES = 4
SEAL_BYTES = 12
TAG_BYTES = 16
MIN_BYTES = 12 + ICRC_BYTES

# name:bits; a minus sign: signed. Fields without a name are reserved.
_FORMATS = {
    "BTH": "opcode:8 se:1 m:1 pad:2 tver:4 pkey:16 var_res:8 dest_qpn:24 ack_req:1 :1 rtx:1 ts:1"
    " :4 psn:24",
    "METH": "rqmsn:16 msn:16",
    "TSETH": "tx_timestamp:16 tsr:1 :11 ftype:4",
    "RETH": "va:64 rkey:32 dma_bytes:32",
    "ImmDt": "imm:32",
    "SETH": "type:4 nh:5 mark:2 :3 pr:1 :1 ack_psn_offset:-16 ev:32 spdcid:16 dpdcid:16 :8"
    " cum_psn:24 cc_type:4 cc_fl:4 mpr:8 sack_offset:-16 bitmap:64",
    "CC_STATE": "tx_timestamp:16 :1 ooo_count:15 restore_cwnd:1 rcv_cwnd_pen:7 rcvd_units:24",
    "CC_TIMES": "tx_timestamp:16 sent_timestamp:16 restore_cwnd:1 rcv_cwnd_pen:7 rcvd_units:24",
    "NETH": "type_nh:16 reason:8 vendor_info:8 ev:32 spdcid:16 dpdcid:16 :8 nack_psn:24 cc_type:4"
    " cc_fl:4 :8 tx_timestamp:16",
    "PETH": "type_nh:16 :8 vendor:8 probe_id:16 :16 spdcid:16 dpdcid:16 tx_timestamp:16 tsr:1 :11"
    " ftype:4",
    "ERTH": "type_nh:14 operation:2 :8 vendor:8 port_status_mask:32 :32 tx_timestamp:16 tsr:1 :11"
    " ftype:4",
    "EETH": "type_nh:9 mark:2 :1 operation:2 :2 :208 tx_timestamp:16 :48",
    "AETH": "syndrome:8 msn:24",
    "SEAL": "mode:8 key_qpn:24 counter:64",
}
_TABLES = {
    header: [
        (name, abs(int(bits)), bits.startswith("-"))
        for name, _, bits in (word.partition(":") for word in text.split())
    ]
    for header, text in _FORMATS.items()
}
_BYTES = {header: sum(bits for _, bits, _ in table) // 8 for header, table in _TABLES.items()}
_BEHIND = {0xD1: ["AETH"], 0xD8: ["ERTH"], 0xD9: ["EETH"], 0xDC: ["SETH", "CC_STATE"],
           0xDD: ["NETH"], 0xDE: ["PETH"]}  # fmt: skip


class Flow(Struct, frozen=True):
    """Where a UDP payload came from: inner addresses, ports, and the carrier around it."""

    source: IpAddress
    destination: IpAddress
    sport: int
    dport: int
    flow_label: int = 0
    ce: bool = False  # a switch has marked it, in any of its IP headers
    trimmed: bool = False  # a switch has cut it off behind its headers
    carrier: IpAddress | None = None  # outer destination: the uSIDs of the path

    @property
    def ev(self) -> int:
        """The entropy value: source port, and the low 16 bits of the flow label."""
        return self.sport << 16 | self.flow_label & 0xFFFF


class Packet(Struct):
    """One MRC packet. `headers` has the fields of each header that was complete."""

    size: int  # also of bytes that the capture lacks
    headers: dict[str, dict[str, int]] = field(default_factory=dict)
    payload_bytes: int = 0
    complete: bool = True  # False: shorter than its headers
    missing_bytes: int = 0  # at its end, because the capture was limited to the start of frames
    trimmed: bool = False
    icrc_is_right: bool | None = None  # None: it has none

    @property
    def opcode(self) -> int:
        return self.headers["BTH"]["opcode"]

    @property
    def kind(self) -> str:
        return OPCODES.get(self.opcode, f"opcode 0x{self.opcode:02x}")


def decode(payload: bytes, flow: Flow, *, missing: int = 0) -> Packet:
    """Decodes a UDP payload that lacks `missing` bytes at its end; a short one has no BTH."""
    packet = Packet(len(payload) + missing, missing_bytes=missing)
    if len(payload) < MIN_BYTES:
        packet.complete = False
        return packet
    bth = packet.headers["BTH"] = _fields("BTH", payload)
    at = _BYTES["BTH"]
    for header in _stack(bth):
        if header == "CC_STATE" and packet.headers["SETH"]["cc_type"] == _CC_TIMES:
            header = "CC_TIMES"
        packet.complete = at + _BYTES[header] <= len(payload)
        if not packet.complete:
            break
        packet.headers[header] = _fields(header, payload[at:])
        at += _BYTES[header]
    is_sealed = bth["tver"] == 1
    packet.trimmed = flow.trimmed and "METH" in packet.headers
    if not missing and not packet.trimmed:
        if is_sealed and len(payload) >= at + SEAL_BYTES + TAG_BYTES:
            packet.headers["SEAL"] = _fields("SEAL", payload[-SEAL_BYTES - TAG_BYTES :])
        if bth["tver"] == 0:
            packet.icrc_is_right = icrc(payload[:-ICRC_BYTES], flow) == payload[-ICRC_BYTES:]
    if is_sealed and packet.headers.get("SEAL", {}).get("mode") != AUTH:
        packet.headers.pop("ImmDt", None)  # it is encrypted, or may be
    if not packet.trimmed:
        end = SEAL_BYTES + TAG_BYTES if is_sealed else ICRC_BYTES
        packet.payload_bytes = max(0, packet.size - at - end - bth["pad"])
    return packet


def _stack(bth: dict[str, int]) -> list[str]:
    """The headers behind the BTH."""
    if 0xC6 <= bth["opcode"] <= 0xCB:
        imm = ["ImmDt"] * (bth["opcode"] in WITH_IMM)
        return ["METH", *["TSETH"] * bth["ts"], "RETH", *imm]
    return _BEHIND.get(bth["opcode"], [])


def _fields(header: str, data: bytes) -> dict[str, int]:
    left = 8 * _BYTES[header]
    number = int.from_bytes(data[: _BYTES[header]], "big")
    found = {}
    for name, bits, signed in _TABLES[header]:
        left -= bits
        value = number >> left & (1 << bits) - 1
        if name:
            found[name] = value - (1 << bits) * (signed and value >> bits - 1)
    return found


def icrc(body: bytes, flow: Flow) -> bytes:
    """The ICRC of a packet without its ICRC: over ones in place of all that changes on the way."""
    udp_bytes = 8 + len(body) + ICRC_BYTES
    if flow.source.version == 4:
        ip = b"\x45\xff" + (20 + udp_bytes).to_bytes(2, "big") + b"\xff" * 5 + b"\x11\xff\xff"
    else:
        ip = b"\x6f\xff\xff\xff" + udp_bytes.to_bytes(2, "big") + b"\x11\xff"
    ip += flow.source.packed + flow.destination.packed
    udp = b"".join(n.to_bytes(2, "big") for n in (flow.sport, flow.dport, udp_bytes, 0xFFFF))
    masked = b"\xff" * 8 + ip + udp + body[:4] + b"\xff" + body[5:]
    return zlib.crc32(masked).to_bytes(4, "little")


def split(payload: bytes) -> list[bytes]:
    """The MRC packets of a captured UDP payload.

    Where a host sends with UDP_SEGMENT or receives with GRO, a capture shows a burst as one
    datagram: packets of one length, except for the last, each with a BTH to the same QP. Returns
    the split with the shortest length for which this is true.
    """
    for size in _likely_sizes(payload):
        starts = range(0, len(payload), size)
        if all(_begins_alike(payload, at) for at in starts):
            return [payload[at : at + size] for at in starts]
    return [payload]


def _begins_alike(payload: bytes, at: int) -> bool:
    known = len(payload) - at >= MIN_BYTES and payload[at] in OPCODES
    return known and payload[at + 2 : at + 4] == b"\xff\xff" and (
        payload[at + 5 : at + 8] == payload[5:8]
    )  # fmt: skip


def _likely_sizes(payload: bytes) -> Iterator[int]:
    """Offsets at which a second BTH could begin."""
    signature = payload[2:4] + b"\0" + payload[5:8]
    at = payload.find(signature, MIN_BYTES + 2)
    while at >= 0:
        yield at - 2
        at = payload.find(signature, at + 1)
