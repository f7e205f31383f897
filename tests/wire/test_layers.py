# SPDX-License-Identifier: Apache-2.0
"""The scapy layers of tools/mrc_layers.py and the C decoder read every packet alike."""

from __future__ import annotations

import mrc_layers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.packet import Packet
from wire.codec import BTH, DATA, UNION, Codec, Dropped, Fields, Flow
from wire.golden import GOLDEN, Golden
from wire.strategies import flows, packets

from mrc.dissect.packet import MIN_BYTES

HEADERS = {  # the layers behind the BTH, by the member of the union that they fill
    "aeth": ("AETH",),
    "sack": ("SETH", "CC_STATE", "CC_TIMES"),
    "nack": ("NETH",),
    "probe": ("PETH",),
    "endpoint": ("ERTH", "EETH"),
}


IN_TABLES = {"m": "mark", "op": "operation", "rcvd_bytes": "rcvd_units"}
"""Fields that the C decoder calls otherwise."""


def find(packet: Packet, names: tuple[str, ...], member: str) -> int:
    """A field from the named layers; 0 when no present layer has it."""
    member = IN_TABLES.get(member, member)
    for name in names:
        layer = packet.getlayer(name)
        if layer is not None and member in layer.fields:
            return int(layer.getfieldval(member))
    return 0


def read(packet: bytes, like: Fields) -> Fields:
    """A UDP payload as scapy decodes it, as a dict of the same shape as `like`."""
    bth = mrc_layers.BTH(packet)
    fields: Fields = {name: getattr(bth, name) for name in BTH}
    if bth.opcode in UNION:
        member = UNION[bth.opcode]
        fields[member] = {name: find(bth, HEADERS[member], name) for name in like[member]}
    else:
        fields |= {name: find(bth, ("METH", "TSETH", "RETH", "ImmDt"), name) for name in DATA}
    return fields | {"payload": mrc_layers.payload_of(bth)}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_layers__golden(codec: Codec, golden: Golden) -> None:
    decoded = codec.decode(golden.packet)
    assert read(golden.packet, decoded) == decoded
    assert bytes(mrc_layers.BTH(golden.packet)) == golden.packet


@given(fields=packets(), flow=flows())
def test_layers__any_packet(codec: Codec, fields: Fields, flow: Flow) -> None:
    packet = codec.packet(fields, flow)
    assert read(packet, fields) == fields


@given(
    golden=st.sampled_from(GOLDEN),
    changes=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=3),
)
def test_layers__whatever_the_c_decoder_takes(
    codec: Codec, golden: Golden, changes: list[tuple[int, int]]
) -> None:
    """Both must find the same fields, even if reserved bits are set."""
    data = bytearray(golden.packet)
    for offset, value in changes:
        data[offset % len(data)] = value
    try:
        fields = codec.decode(bytes(data))
    except Dropped:
        return
    if "endpoint" in fields:  # the private id is 16 of the 24 bits
        data[9] = 0
    assert read(bytes(data), fields) == fields


@given(data=st.binary(min_size=MIN_BYTES, max_size=100))
def test_layers__rubbish_is_shown_not_refused(data: bytes) -> None:
    assert mrc_layers.BTH(data).show(dump=True)


def test_layers__bytes_of_a_packet_built_in_scapy(codec: Codec) -> None:
    """The layers also build packets, and the C decoder reads them."""
    seth = mrc_layers.SETH(mark="SKIP_ONCE", ev=0xC0010000, cum_psn=41, sack_offset=1, bitmap=6)
    packet = mrc_layers.BTH(opcode=0xDC, dest_qpn=0x123456, psn=41) / seth / mrc_layers.CC_STATE()
    sack = codec.decode(bytes(packet))["sack"]
    assert (sack["m"], sack["ev"], sack["cum_psn"], sack["bitmap"]) == (1, 0xC0010000, 41, 6)
