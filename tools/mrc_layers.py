# SPDX-License-Identifier: Apache-2.0
"""MRC for scapy: a layer for every header, made from the tables of `mrc.dissect.packet`.

    >>> import mrc_layers
    >>> mrc_layers.bind(4791)
    >>> rdpcap("a.pcap")[0][mrc_layers.BTH].show()

The layers also build packets, with reserved bits and values that the engine refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scapy.fields import BitEnumField, BitField, FCSField, SignedShortField
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers

from mrc.dissect import packet as formats

_DEFAULTS = {
    ("BTH", "opcode"): 0xCA, ("BTH", "pkey"): 0xFFFF, ("TSETH", "ftype"): 1, ("NETH", "reason"): 1,
    ("NETH", "cc_type"): 2, ("PETH", "ftype"): 1, ("ERTH", "ftype"): 1, ("AETH", "syndrome"): 0x1F,
}  # fmt: skip


def _fields(header: str) -> Iterator[Any]:
    """Fields without a name are reserved: they get one here."""
    for number, field in enumerate(formats.TABLES[header]):
        default = _DEFAULTS.get((header, field.name), 0)
        name = field.name or f"reserved{number}"
        if field.signed:
            yield SignedShortField(name, default)
        elif names := formats.Packet.NAMES.get(field.name):
            yield BitEnumField(name, default, field.bits, names)
        else:
            yield BitField(name, default, field.bits)
    if header == "BTH":
        yield FCSField("icrc", 0, fmt="!I")  # at the end of the packet


def _layer(header: str, **methods: Any) -> type[Packet]:
    members = {"name": header, "fields_desc": list(_fields(header)), **methods}
    return type(header, (Packet,), members)


def _behind_meth(meth: Packet, payload: bytes) -> type[Packet]:
    return TSETH if meth.underlayer is not None and meth.underlayer.ts else RETH


def _behind_reth(reth: Packet, payload: bytes) -> type[Packet]:
    layer = reth.underlayer
    while layer is not None and not isinstance(layer, BTH):
        layer = layer.underlayer
    return ImmDt if layer is not None and layer.opcode in formats.WITH_IMM else Raw


BTH, TSETH, ImmDt = _layer("BTH"), _layer("TSETH"), _layer("ImmDt")
METH = _layer("METH", guess_payload_class=_behind_meth)
RETH = _layer("RETH", guess_payload_class=_behind_reth)
SETH, CC_STATE, CC_TIMES = _layer("SETH"), _layer("CC_STATE"), _layer("CC_TIMES")
NETH, PETH, ERTH = _layer("NETH"), _layer("PETH"), _layer("ERTH")
EETH, AETH = _layer("EETH"), _layer("AETH")

for _opcode in formats.Packet.DATA:
    bind_layers(BTH, METH, opcode=_opcode)
for _opcode, _headers in formats.BEHIND.items():
    bind_layers(BTH, globals()[_headers[0]], opcode=_opcode)
bind_layers(TSETH, RETH)
bind_layers(SETH, CC_STATE, cc_type=0)
bind_layers(SETH, CC_TIMES, cc_type=15)


def bind(port: int) -> None:
    """Makes scapy decode packets to a UDP port as MRC."""
    bind_bottom_up(UDP, BTH, dport=port)


def payload_of(bth: Packet) -> bytes:
    """The payload behind the headers, without the pad."""
    raw = bytes(bth[Raw]) if Raw in bth else b""
    return raw[: len(raw) - bth.pad]
