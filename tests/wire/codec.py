# SPDX-License-Identifier: Apache-2.0
"""The C codec seen from Python: wire.c and crc.c in a shared library, for tests only.

A packet is a dict with the member names of struct mrc_wire. It omits members that the opcode does
not use; the union is a dict under the name of its member, as in {"sack": {...}}.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import cbuild
import cffi

Fields = dict[str, Any]

CORE = cbuild.CSRC / "core"
BTH = ("opcode", "pad", "se", "m", "ack_req", "rtx", "ts", "dest_qpn", "psn")
DATA = ("rqmsn", "msn", "tx_timestamp", "tsr", "rkey", "va", "dma_bytes", "imm")
ENCODED_ONLY = ("lifted",)
UNION = {
    0xD1: "aeth",
    0xD8: "endpoint",
    0xD9: "endpoint",
    0xDC: "sack",
    0xDD: "nack",
    0xDE: "probe",
}
HEADER_ROOM = 64  # MRC_MAX_HEADER
ICRC_BYTES = 4


class Dropped(Exception):
    """The decoder refused the packet; `reason` is a name from drops.def."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Flow:
    """Addresses and UDP ports of a packet, as the ICRC covers them."""

    src: str
    dst: str
    sport: int
    dport: int = 4791

    @property
    def family(self) -> int:
        return ip_address(self.src).version


def declarations() -> str:
    """The parts of wire.h and crc.h that cffi can read."""
    text = "".join((CORE / name).read_text() for name in ("wire.h", "crc.h"))
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^static inline .*?^}$|^static inline .*}$", "", text, flags=re.M | re.S)


def drop_names() -> list[str]:
    return [
        "NONE",
        *re.findall(r"^X\((\w+),", (CORE / "drops.def").read_text(), re.MULTILINE),
    ]


def mapped(address: str) -> bytes:
    """16 bytes: IPv4 in the mapped form."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv4Address):
        parsed = IPv6Address(b"\0" * 10 + b"\xff\xff" + parsed.packed)
    return parsed.packed


class Codec:
    """Encoder, decoder and ICRC of one build of the C sources."""

    def __init__(self, flavour: cbuild.Flavour = cbuild.FAST) -> None:
        sources = [CORE / name for name in ("wire.c", "crc.c", "base.c")]
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations())
        self.lib = self.ffi.dlopen(str(cbuild.shared_library(sources, "wire", flavour)))
        self.drops = drop_names()

    def decode(self, data: bytes, *, trimmed: bool = False) -> Fields:
        """Decodes a UDP payload; raises Dropped."""
        buffer = self.ffi.from_buffer(data)
        wire = self.ffi.new("struct mrc_wire *")
        drop = self.lib.mrc_wire_decode(buffer, len(data), trimmed, wire)
        if drop != 0:
            raise Dropped(self.drops[drop])
        fields: Fields = {name: getattr(wire, name) for name in BTH}
        if wire.opcode in UNION:
            member = UNION[wire.opcode]
            fields[member] = self._members(getattr(wire, member))
        else:
            fields |= {name: getattr(wire, name) for name in DATA}
        fields["payload"] = b""
        if wire.payload_bytes:
            fields["payload"] = bytes(self.ffi.buffer(wire.payload, wire.payload_bytes))
        return fields

    def lifted_operation(self, data: bytes) -> tuple[int, int]:
        """Operation and mark of an endpoint response by reading C6-B."""
        buffer = self.ffi.from_buffer(data)
        wire = self.ffi.new("struct mrc_wire *")
        assert self.lib.mrc_wire_decode(buffer, len(data), False, wire) == 0
        self.lib.mrc_wire_lift_response(buffer, wire)
        return wire.endpoint.op, wire.endpoint.m

    def encode(self, fields: Fields) -> bytes:
        """The headers alone."""
        named = {k: v for k, v in fields.items() if k != "payload"}
        wire = self.ffi.new("struct mrc_wire *", named)
        out = self.ffi.new("uint8_t[]", HEADER_ROOM)
        n = self.lib.mrc_wire_encode(wire, out)
        return bytes(self.ffi.buffer(out, n))

    def icrc(self, flow: Flow, body: bytes) -> bytes:
        """The ICRC of a UDP payload that does not have one yet."""
        src, dst = (self.ffi.new("uint8_t[]", mapped(a)) for a in (flow.src, flow.dst))
        c_flow = self.ffi.new(
            "struct mrc_icrc_flow *", [src, dst, flow.sport, flow.dport, flow.family]
        )
        crc = self.lib.mrc_icrc_begin(c_flow, len(body) + ICRC_BYTES)
        crc = self.lib.mrc_icrc_packet(crc, body, len(body))
        out = self.ffi.new("uint8_t[4]")
        self.lib.mrc_icrc_store(crc, out)
        return bytes(out)

    def packet(self, fields: Fields, flow: Flow) -> bytes:
        """The whole UDP payload: headers, payload, pad, ICRC."""
        body: bytes = self.encode(fields) + fields.get("payload", b"") + bytes(fields.get("pad", 0))
        return body + self.icrc(flow, body)

    def _members(self, struct: Any) -> Fields:
        names = [name for name, _ in self.ffi.typeof(struct).fields if name not in ENCODED_ONLY]
        return {name: getattr(struct, name) for name in names}
