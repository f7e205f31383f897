# SPDX-License-Identifier: Apache-2.0
"""The wire format of MRC: the fields of each header and the names of their values, packets that are
decoded and made by these tables, and packets as lines for people. Pure.

It shares nothing with `csrc/core/wire.c`, so each checks the other, and it shows also what the
engine refuses. `tools/dissector` makes the tables of `mrc.lua` from those here.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import ClassVar, NamedTuple, Self

from msgspec import Struct, field

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
SEALS = {AUTH: "auth", 2: "aead"}

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


class Field(NamedTuple):
    """A field of a header; without a name it is reserved."""

    name: str
    bits: int
    signed: bool


TABLES = {
    header: [
        Field(name, abs(int(bits)), bits.startswith("-"))
        for name, _, bits in (word.partition(":") for word in text.split())
    ]
    for header, text in _FORMATS.items()
}
BYTES = {header: sum(field.bits for field in table) // 8 for header, table in TABLES.items()}
BEHIND = {0xD1: ["AETH"], 0xD8: ["ERTH"], 0xD9: ["EETH"], 0xDC: ["SETH", "CC_STATE"],
          0xDD: ["NETH"], 0xDE: ["PETH"]}  # fmt: skip
"""The headers behind the BTH, by opcode; those of data packets depend on its fields."""

WIRESHARK = {
    "BTH": ("bth", "Base transport header"), "METH": ("meth", "Message numbers"),
    "TSETH": ("tseth", "Timestamp"), "RETH": ("reth", "Target memory"),
    "ImmDt": ("immdt", "Immediate"), "SETH": ("sack", "Selective acknowledgement"),
    "CC_STATE": ("cc", "NSCC state"), "CC_TIMES": ("times", "Times and state"),
    "NETH": ("nack", "Refusal"), "PETH": ("probe", "Reliability probe"),
    "ERTH": ("request", "Endpoint request"), "EETH": ("response", "Endpoint response"),
    "AETH": ("aeth", "Transport ACK"), "SEAL": ("seal", "Seal"),
}  # fmt: skip
"""Name of each header in filters of Wireshark, such as mrc.sack, and its title there."""
SHORTER = {
    "dest_qpn": "qpn", "sack_offset": "offset", "nack_psn": "psn", "probe_id": "id",
    "port_status_mask": "ports", "key_qpn": "qpn",
}  # fmt: skip
"""Fields whose name in filters differs."""


# ---- Packets -------------------------------------------------------------------------------------


IpAddress = IPv4Address | IPv6Address

CC_TIMES = 15
ICRC_BYTES = 4
SEAL_BYTES = 12
TAG_BYTES = 16
MIN_BYTES = 12 + ICRC_BYTES
_HEX = {"ev", "rkey", "va", "imm", "bitmap", "pkey", "spdcid", "dpdcid", "probe_id"}
_PSN = {"psn", "dest_qpn", "cum_psn", "nack_psn", "key_qpn"}


class UdpFlow(Struct, frozen=True):
    """Where a UDP payload came from: inner addresses, ports, and the carrier around it."""

    source: IpAddress
    destination: IpAddress
    sport: int
    dport: int
    flow_label: int = 0
    ce: bool = False  # a switch has marked it, in any of its IP headers
    trimmed: bool = False  # a switch has cut it off behind its headers
    carrier: IpAddress | None = None  # outer destination: the uSIDs of the path
    fragment: bytes = b""  # identification, flags and offset of the IPv4 header; empty: not known

    @property
    def ev(self) -> int:
        """The entropy value: source port, and the low 16 bits of the flow label."""
        return self.sport << 16 | self.flow_label & 0xFFFF

    def line(self) -> str:
        """Source, destination, the carrier around them, and the EV."""
        via = f" via {self.carrier}" if self.carrier is not None else ""
        return f"{self.source} > {self.destination}{via} ev {self.ev:08x}"

    def icrc(self, body: bytes, *, fragment: bytes = b"\xff" * 4) -> bytes:
        """The ICRC of a packet without its ICRC: over ones in place of all that changes on the way.

        `fragment`: identification, flags and offset of the IPv4 header, which RoCEv2 in hardware
        covers and MRC in software does not.
        """
        udp_bytes = 8 + len(body) + ICRC_BYTES
        if self.source.version == 4:
            ip = b"\x45\xff" + (20 + udp_bytes).to_bytes(2, "big") + fragment + b"\xff\x11\xff\xff"
        else:
            ip = b"\x6f\xff\xff\xff" + udp_bytes.to_bytes(2, "big") + b"\x11\xff"
        ip += self.source.packed + self.destination.packed
        udp = b"".join(n.to_bytes(2, "big") for n in (self.sport, self.dport, udp_bytes, 0xFFFF))
        masked = b"\xff" * 8 + ip + udp + body[:4] + b"\xff" + body[5:]
        return zlib.crc32(masked).to_bytes(4, "little")

    def carries_mrc(self, payload: bytes, ports: Collection[int] | None) -> bool:
        """Whether it goes to one of these ports; without ports, whether it begins as MRC."""
        if ports is not None:
            return self.dport in ports
        return len(payload) >= MIN_BYTES and payload[0] in OPCODES and payload[2:4] == b"\xff\xff"


class Packet(Struct):
    """One MRC packet. `headers` has the fields of each header that was complete."""

    DATA: ClassVar = range(0xC6, 0xCC)
    """the opcodes of data packets"""
    NAMES: ClassVar[dict[str, dict[int, str]]] = {
        "opcode": OPCODES, "mark": MARKS, "reason": REASONS, "operation": OPERATIONS,
        "syndrome": SYNDROMES, "mode": SEALS,
    }  # fmt: skip
    """of the fields whose values have names"""

    size: int  # also of bytes that the capture lacks
    headers: dict[str, dict[str, int]] = field(default_factory=dict)
    payload_bytes: int = 0
    complete: bool = True  # False: shorter than its headers
    missing_bytes: int = 0  # at its end, because the capture was limited to the start of frames
    trimmed: bool = False
    icrc_is_right: bool | None = None  # None: it has none
    icrc_covers_fragment: bool = False  # it is right as RoCEv2 in hardware computes it over IPv4

    @staticmethod
    def encode(kind: str, fields: Mapping[str, int]) -> bytes:
        """The BTH and the headers behind it. Raises ValueError for a field that none has."""
        bth = {"opcode": _OPCODE[kind], "ts": 0, **fields}
        left = set(fields)
        made = b""
        for header in ("BTH", *_headers_behind({**bth, "opcode": _OPCODE[kind]})):
            if header == "CC_STATE" and bth.get("cc_type") == CC_TIMES:
                header = "CC_TIMES"
            values = {**_USUAL.get(header, {}), **bth}
            number = 0
            for name, bits, signed in TABLES[header]:
                value = values.get(name, 0) if name else 0
                least = -(1 << bits - 1) if signed else 0
                most = least + (1 << bits) - 1
                if not least <= value <= most:
                    raise ValueError(f"{name}: {value} is not within {least}..{most}")
                number = number << bits | value & (1 << bits) - 1
            made += number.to_bytes(BYTES[header], "big")
            left -= {field.name for field in TABLES[header]}
        if left:
            raise ValueError(f"{kind} has no field {', '.join(sorted(left))}")
        return made

    @staticmethod
    def fields_of(kind: str, *, ts: bool) -> set[str]:
        """The names of all fields of a packet."""
        stack = ("BTH", *_headers_behind({"opcode": _OPCODE[kind], "ts": int(ts)}))
        return {field.name for header in stack for field in TABLES[header] if field.name}

    @classmethod
    def decode(cls, payload: bytes, flow: UdpFlow, *, missing: int = 0) -> Self:
        """Decodes a UDP payload that lacks `missing` bytes at its end; a short one has no BTH."""
        packet = cls(len(payload) + missing, missing_bytes=missing)
        if len(payload) < MIN_BYTES:
            packet.complete = False
            return packet
        bth = packet.headers["BTH"] = _fields("BTH", payload)
        at = BYTES["BTH"]
        for header in _headers_behind(bth):
            if header == "CC_STATE" and packet.headers["SETH"]["cc_type"] == CC_TIMES:
                header = "CC_TIMES"
            packet.complete = at + BYTES[header] <= len(payload)
            if not packet.complete:
                break
            packet.headers[header] = _fields(header, payload[at:])
            at += BYTES[header]
        is_sealed = bth["tver"] == 1
        packet.trimmed = flow.trimmed and "METH" in packet.headers
        if not missing and not packet.trimmed:
            if is_sealed and len(payload) >= at + SEAL_BYTES + TAG_BYTES:
                packet.headers["SEAL"] = _fields("SEAL", payload[-SEAL_BYTES - TAG_BYTES :])
            if bth["tver"] == 0:
                packet._check_icrc(payload, flow)
        if is_sealed and packet.headers.get("SEAL", {}).get("mode") != AUTH:
            packet.headers.pop("ImmDt", None)  # it is encrypted, or may be
        if not packet.trimmed:
            end = SEAL_BYTES + TAG_BYTES if is_sealed else ICRC_BYTES
            packet.payload_bytes = max(0, packet.size - at - end - bth["pad"])
        return packet

    def _check_icrc(self, payload: bytes, flow: UdpFlow) -> None:
        body, found = payload[:-ICRC_BYTES], payload[-ICRC_BYTES:]
        self.icrc_is_right = flow.icrc(body) == found
        if not self.icrc_is_right and flow.fragment:
            self.icrc_covers_fragment = flow.icrc(body, fragment=flow.fragment) == found
            self.icrc_is_right = self.icrc_covers_fragment

    @property
    def opcode(self) -> int:
        return self.headers["BTH"]["opcode"]

    @property
    def kind(self) -> str:
        return OPCODES.get(self.opcode, f"opcode 0x{self.opcode:02x}")

    def line(self, flow: UdpFlow) -> str:
        """Type, numbers, details and flags."""
        if "BTH" not in self.headers:
            missing = f", {self.missing_bytes} not captured" if self.missing_bytes else ""
            return f"{self.size} bytes{missing or ', too short for a BTH'}"
        bth = self.headers["BTH"]
        numbers = f"qp {bth['dest_qpn']:06x} psn {bth['psn']:06x}"
        return f"{self.kind} {numbers} {_details(self)}{_flags(self, flow)}"

    def field_lines(self) -> str:
        """A line for each header with all its fields."""
        lines = []
        for header, found in self.headers.items():
            values = (
                f"{name} {format(value, '06x' if name in _PSN else '#x' if name in _HEX else 'd')}"
                for name, value in found.items()
            )
            lines.append(f"  {header}: {', '.join(values)}")
        return "\n".join([*lines, f"  payload: {self.payload_bytes} bytes"])


def _headers_behind(bth: Mapping[str, int]) -> list[str]:
    """The headers behind the BTH."""
    if bth["opcode"] in Packet.DATA:
        imm = ["ImmDt"] * (bth["opcode"] in WITH_IMM)
        return ["METH", *["TSETH"] * bth["ts"], "RETH", *imm]
    return BEHIND.get(bth["opcode"], [])


def _fields(header: str, data: bytes) -> dict[str, int]:
    left = 8 * BYTES[header]
    number = int.from_bytes(data[: BYTES[header]], "big")
    found = {}
    for name, bits, signed in TABLES[header]:
        left -= bits
        value = number >> left & (1 << bits) - 1
        if name:
            found[name] = value - (1 << bits) * (signed and value >> bits - 1)
    return found


def split(payload: bytes) -> list[bytes]:
    """The MRC packets of a captured UDP payload.

    Where a host sends with UDP_SEGMENT or receives with GRO, a capture shows a burst as one
    datagram: packets of one length, except for the last, each with a BTH to the same QP. Returns
    the split with the shortest length for which this is true.
    """
    signature = payload[2:4] + b"\0" + payload[5:8]

    def begins_alike(at: int) -> bool:
        known = len(payload) - at >= MIN_BYTES and payload[at] in OPCODES
        qpn = payload[at + 5 : at + 8]
        return known and payload[at + 2 : at + 4] == b"\xff\xff" and qpn == payload[5:8]

    at = payload.find(signature, MIN_BYTES + 2)
    while at >= 0:  # a second BTH could begin two bytes before
        starts = range(0, len(payload), at - 2)
        if all(map(begins_alike, starts)):
            return [payload[start : start + at - 2] for start in starts]
        at = payload.find(signature, at + 1)
    return [payload]


# ---- Packets from fields, also wrong ones --------------------------------------------------------


_USUAL = {
    "BTH": {"pkey": 0xFFFF},
    "TSETH": {"tsr": 1, "ftype": 1},
    "NETH": {"cc_type": 2},
    "PETH": {"tsr": 1, "ftype": 1},
    "ERTH": {"tsr": 1, "ftype": 1},
}
"""Values of fields that have one usual value other than 0."""
_OPCODE = {name: code for code, name in OPCODES.items()}


# ---- Packets as lines for people -----------------------------------------------------------------


def _details(packet: Packet) -> str:
    headers = packet.headers
    if not packet.complete:
        return f"{packet.size} bytes"
    if "RETH" in headers:
        return _write(packet)
    if "SETH" in headers:
        return _sack(headers["SETH"], headers.get("CC_STATE") or headers.get("CC_TIMES"))
    if "NETH" in headers:
        neth = headers["NETH"]
        reason = REASONS.get(neth["reason"], str(neth["reason"]))
        return f"{reason} psn {neth['nack_psn']:06x} ev {neth['ev']:08x}"
    if "PETH" in headers:
        return f"id 0x{headers['PETH']['probe_id']:04x} ts {headers['PETH']['tx_timestamp']}"
    if "AETH" in headers:
        aeth = headers["AETH"]
        return f"{SYNDROMES.get(aeth['syndrome'], aeth['syndrome'])} msn {aeth['msn']}"
    for name in ("ERTH", "EETH"):
        if name in headers:
            return _endpoint(packet, name)
    return f"{packet.size} bytes"


def _write(packet: Packet) -> str:
    meth, reth = packet.headers["METH"], packet.headers["RETH"]
    text = f"msn {meth['msn']} va 0x{reth['va']:x} rkey 0x{reth['rkey']:08x}"
    text += f" bytes {packet.payload_bytes} of {reth['dma_bytes']}"
    if packet.opcode in WITH_IMM:
        imm = packet.headers.get("ImmDt")
        text += f" rqmsn {meth['rqmsn']} imm " + (f"0x{imm['imm']:08x}" if imm else "encrypted")
    if "TSETH" in packet.headers:
        text += f" ts {packet.headers['TSETH']['tx_timestamp']}"
    return text


def _sack(seth: dict[str, int], cc: dict[str, int] | None) -> str:
    trigger = f"probe 0x{seth['ack_psn_offset'] & 0xFFFF:04x}"
    if not seth["pr"]:
        trigger = f"for {(seth['cum_psn'] + seth['ack_psn_offset']) & 0xFFFFFF:06x}"
    base = (seth["cum_psn"] + seth["sack_offset"]) & 0xFFFFFF
    text = f"cum {seth['cum_psn']:06x} {trigger} ev {seth['ev']:08x}"
    text += f" bitmap {base:06x}+{seth['bitmap']:016x}"
    if seth["mark"]:
        text += f" {MARKS.get(seth['mark'], seth['mark'])}"
    if cc is not None:
        more = f"ooo {cc['ooo_count']}" if "ooo_count" in cc else f"sent {cc['sent_timestamp']}"
        text += f" ts {cc['tx_timestamp']} {more} rcvd {cc['rcvd_units'] * 256}"
    return text


def _endpoint(packet: Packet, name: str) -> str:
    header, psn = packet.headers[name], packet.headers["BTH"]["psn"]
    operation = OPERATIONS.get(header["operation"], str(header["operation"]))
    text = f"{operation} id 0x{psn & 0xFFFF:04x} ts {header['tx_timestamp']}"
    if name == "EETH":
        return text
    filling = packet.payload_bytes
    return text + (f" filled by {filling}" if filling else f" ports {header['port_status_mask']:b}")


def _flags(packet: Packet, flow: UdpFlow) -> str:
    bth = packet.headers["BTH"]
    names = [name for name in ("se", "m", "ack_req", "rtx") if bth[name]]
    if flow.ce:
        names.append("CE")
    if packet.trimmed:
        names.append("trimmed")
    if "SEAL" in packet.headers:
        seal = packet.headers["SEAL"]
        names.append(f"{SEALS.get(seal['mode'], seal['mode'])} {seal['counter']}")
    if packet.icrc_is_right is False:
        names.append("ICRC WRONG")
    if packet.missing_bytes:
        names.append(f"{packet.missing_bytes} bytes not captured")
    return f" [{' '.join(names)}]" if names else ""
