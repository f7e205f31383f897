# SPDX-License-Identifier: Apache-2.0
"""The C codec seen from Python: wire.c and crc.c in a shared library, for tests only.

A packet is a dict with the member names of struct mrc_wire. It omits members that the opcode does
not use; the union is a dict under the name of its member, as in {"sack": {...}}.

Hypothesis strategies make valid packets of every kind, and flows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Literal

import cbuild
import cffi
from hypothesis import strategies as st

Fields = dict[str, Any]

CORE = cbuild.CSRC / "core"
BTH = ("opcode", "pad", "se", "m", "ack_req", "rtx", "ts", "dest_qpn", "psn")
DATA = ("rqmsn", "msn", "tx_timestamp", "tsr", "rkey", "va", "dma_bytes", "imm")
OTHER_READING = ("lifted", "lifted_op")
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
    return ["NONE", *re.findall(r"^X\((\w+),", (CORE / "drops.def").read_text(), re.MULTILINE)]


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

    def lifted_operation(self, data: bytes) -> int:
        """Operation of an endpoint response by reading C6-B."""
        buffer = self.ffi.from_buffer(data)
        wire = self.ffi.new("struct mrc_wire *")
        assert self.lib.mrc_wire_decode(buffer, len(data), False, wire) == 0
        return int(wire.endpoint.lifted_op)

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
        return int(crc).to_bytes(ICRC_BYTES, "little")

    def packet(self, fields: Fields, flow: Flow) -> bytes:
        """The whole UDP payload: headers, payload, pad, ICRC."""
        body: bytes = self.encode(fields) + fields.get("payload", b"") + bytes(fields.get("pad", 0))
        return body + self.icrc(flow, body)

    def _members(self, struct: Any) -> Fields:
        names = [name for name, _ in self.ffi.typeof(struct).fields if name not in OTHER_READING]
        return {name: getattr(struct, name) for name in names}


# ---- Strategies ----------------------------------------------------------------------------------


PARTS = (0xC6, 0xC7, 0xC8, 0xC9)
ONLY = (0xCA, 0xCB)
WITH_IMM = (0xC9, 0xCB)
NACK_REASONS = (0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x19)
MAX_PAYLOAD = 70


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def bth(opcodes: tuple[int, ...]) -> dict[str, st.SearchStrategy[object]]:
    flags = {name: st.booleans() for name in ("se", "m", "ack_req", "rtx")}
    return {
        "opcode": st.sampled_from(opcodes),
        "pad": st.just(0),
        "ts": st.just(False),
        "dest_qpn": unsigned(24),
        "psn": unsigned(24),
        "payload": st.just(b""),
        **flags,
    }


@st.composite
def data_packets(draw: st.DrawFn) -> Fields:
    """A data packet whose payload fits its opcode and its message."""
    fields: Fields = draw(st.fixed_dictionaries(bth(PARTS + ONLY) | {"ts": st.booleans()}))
    only = fields["opcode"] in ONLY
    payload = draw(st.binary(min_size=0 if only else 1, max_size=MAX_PAYLOAD))
    n = len(payload)
    return fields | {
        "pad": -n % 4,
        "payload": payload,
        "rqmsn": draw(unsigned(16)),
        "msn": draw(unsigned(16)),
        "tx_timestamp": draw(unsigned(16)) if fields["ts"] else 0,
        "tsr": draw(st.booleans()) if fields["ts"] else False,
        "rkey": draw(unsigned(32)),
        "va": draw(unsigned(64)),
        "dma_bytes": n if only else draw(st.integers(n + 1, 0xFFFFFFFF)),
        "imm": draw(unsigned(32)) if fields["opcode"] in WITH_IMM else 0,
    }


def pdcids() -> dict[str, st.SearchStrategy[int]]:
    return {"spdcid": unsigned(16), "dpdcid": unsigned(16)}


def sack() -> st.SearchStrategy[Fields]:
    members = {
        "ack_psn_offset": signed(16),
        "m": st.integers(0, 2),
        "pr": st.booleans(),
        "ev": unsigned(32),
        **pdcids(),
        "cum_psn": unsigned(24),
        "cc_type": st.just(0),
        "cc_fl": unsigned(4),
        "mpr": unsigned(8),
        "sack_offset": signed(16),
        "bitmap": unsigned(64),
        "tx_timestamp": unsigned(16),
        "ooo_count": unsigned(15),
        "sent_timestamp": st.just(0),
        "restore_cwnd": st.booleans(),
        "rcv_cwnd_pen": unsigned(7),
        "rcvd_bytes": unsigned(24),
    }
    times = {**members, "cc_type": st.just(15), "ooo_count": st.just(0)}
    times["sent_timestamp"] = unsigned(16)
    return control(0xDC, "sack", members) | control(0xDC, "sack", times)


def nack() -> st.SearchStrategy[Fields]:
    members = {
        "reason": st.sampled_from(NACK_REASONS),
        "vendor_info": unsigned(8),
        "ev": unsigned(32),
        **pdcids(),
        "nack_psn": unsigned(24),
        "cc_type": st.just(2),
        "cc_fl": unsigned(4),
        "tx_timestamp": unsigned(16),
    }
    return control(0xDD, "nack", members)


def probe() -> st.SearchStrategy[Fields]:
    members = {
        "probe_id": unsigned(16),
        **pdcids(),
        "tx_timestamp": unsigned(16),
        "tsr": st.booleans(),
    }
    return control(0xDE, "probe", members)


def request() -> st.SearchStrategy[Fields]:
    members = {
        "op": st.integers(0, 1),
        "port_status_mask": unsigned(32),
        "m": st.just(0),
        "tx_timestamp": unsigned(16),
        "tsr": st.booleans(),
    }
    return control(0xD8, "endpoint", members, dest_qpn=st.just(2), psn=unsigned(16))


def response() -> st.SearchStrategy[Fields]:
    members = {
        "op": st.integers(0, 1),
        "port_status_mask": st.just(0),
        "m": st.integers(0, 2),
        "tx_timestamp": unsigned(16),
        "tsr": st.just(False),
    }
    return control(0xD9, "endpoint", members, dest_qpn=st.just(2), psn=unsigned(16))


def ack() -> st.SearchStrategy[Fields]:
    syndromes = st.sampled_from((0x1F, 0x61, 0x62, 0x63))
    return control(0xD1, "aeth", {"syndrome": syndromes, "msn": unsigned(24)})


def control(
    opcode: int,
    member: str,
    members: Mapping[str, st.SearchStrategy[object]],
    **header: st.SearchStrategy[object],
) -> st.SearchStrategy[Fields]:
    return st.fixed_dictionaries(bth((opcode,)) | header | {member: st.fixed_dictionaries(members)})


def packets() -> st.SearchStrategy[Fields]:
    """Any valid packet, with every member that the decoder returns."""
    return st.one_of(data_packets(), sack(), nack(), probe(), request(), response(), ack())


def flows() -> st.SearchStrategy[Flow]:
    def flow(version: Literal[4, 6]) -> st.SearchStrategy[Flow]:
        address = st.ip_addresses(v=version).map(lambda a: str(ip_address(a)))
        return st.builds(Flow, src=address, dst=address, sport=unsigned(16), dport=unsigned(16))

    return st.one_of(flow(4), flow(6))
