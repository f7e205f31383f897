# SPDX-License-Identifier: Apache-2.0
"""The scapy layers of tools/mrc_layers.py and the C decoder read every packet alike."""

from __future__ import annotations

import mrc_layers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet
from wire.codec import BTH, DATA, UNION, Codec, Dropped, Fields, Flow
from wire.golden import GOLDEN, V4, V6, Golden
from wire.strategies import flows, packets

HEADERS = {  # the layers behind the BTH, by the member of the union that they fill
    "aeth": ("AETH",),
    "sack": ("SETH", "CC_STATE", "CC_TIMES"),
    "nack": ("NETH",),
    "probe": ("PETH",),
    "endpoint": ("ERTH", "EETH"),
}


def find(packet: Packet, names: tuple[str, ...], member: str) -> int:
    """A field from the named layers; 0 when no present layer has it."""
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


@given(data=st.binary(min_size=mrc_layers.MIN_BYTES, max_size=100))
def test_layers__rubbish_is_shown_not_refused(data: bytes) -> None:
    assert mrc_layers.BTH(data).show(dump=True)


def test_layers__bytes_of_a_packet_built_in_scapy(codec: Codec) -> None:
    """The layers also build packets, and the C decoder reads them."""
    seth = mrc_layers.SETH(m=1, ev=0xC0010000, cum_psn=41, sack_offset=1, bitmap=6)
    packet = mrc_layers.BTH(opcode=0xDC, dest_qpn=0x123456, psn=41) / seth / mrc_layers.CC_STATE()
    sack = codec.decode(bytes(packet))["sack"]
    assert (sack["m"], sack["ev"], sack["cum_psn"], sack["bitmap"]) == (1, 0xC0010000, 41, 6)


# ---- Bursts that the kernel coalesced ----------------------------------------------------------


def burst(codec: Codec, sizes: list[int], flow: Flow = V6) -> list[bytes]:
    """Packets of one message with the given payload bytes each."""
    fields = GOLDEN[0].fields | {"dma_bytes": 1 << 20}
    return [
        codec.packet(fields | {"psn": i, "pad": -n % 4, "payload": bytes([i]) * n}, flow)
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    "sizes", [[100], [100, 100], [100] * 15, [100] * 3 + [1], [8844] * 6 + [8001], [4, 4]]
)
def test_split__finds_the_packets(codec: Codec, sizes: list[int]) -> None:
    parts = burst(codec, sizes)
    assert mrc_layers.split(b"".join(parts)) == parts


def test_split__a_payload_that_looks_like_a_header(codec: Codec) -> None:
    """A BTH in the payload is no second packet: the bytes after it must be valid too."""
    inner = burst(codec, [4])[0]
    fields = GOLDEN[0].fields | {"dma_bytes": 1 << 20, "payload": inner + bytes(100)}
    packet = codec.packet(fields, V6)
    assert mrc_layers.split(packet) == [packet]


@pytest.mark.parametrize("flow", [V4, V6], ids=["ipv4", "ipv6"])
def test_icrc_is_right__of_each_and_not_of_a_damaged_one(codec: Codec, flow: Flow) -> None:
    ip = (IP if flow.family == 4 else IPv6)(src=flow.src, dst=flow.dst)
    udp = (ip / UDP(sport=flow.sport, dport=flow.dport))[UDP]
    for packet in burst(codec, [16, 16, 5], flow):
        assert mrc_layers.icrc_is_right(udp, packet)
        assert not mrc_layers.icrc_is_right(udp, packet[:-1] + bytes([packet[-1] ^ 1]))
