# SPDX-License-Identifier: Apache-2.0
"""The C codec against golden packets and round trips; its ICRC, with either library,
against independent implementations and a hardware packet; and the layers for scapy.
"""

from __future__ import annotations

from ipaddress import ip_address

import cbuild
import mrc_layers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib import roce
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet
from wire.codec import BTH, DATA, UNION, Codec, Dropped, Fields, Flow, flows, packets
from wire.golden import GOLDEN, Golden

from mrc.dissect import packet as dissected
from mrc.dissect import vectors
from mrc.dissect.packet import MIN_BYTES

each = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


def check_bth(packet: bytes, fields: Fields) -> None:
    """scapy's RoCE, which does not support MRC, reads the same BTH."""
    bth = roce.BTH(packet)
    known = {name: fields.get(name, 0) for name in BTH}
    assert (bth.opcode, bth.dqpn, bth.psn) == (known["opcode"], known["dest_qpn"], known["psn"])
    assert (bth.solicited, bth.migreq, bth.padcount) == (known["se"], known["m"], known["pad"])
    assert (bth.version, bth.pkey, bth.ackreq) == (0, 0xFFFF, known["ack_req"])
    assert bth.resv7 == known["rtx"] << 5 | known["ts"] << 4
    assert (bth.fecn, bth.becn, bth.resv6) == (0, 0, 0)


def complete(golden: Golden) -> Fields:
    """The golden packet's fields, with omitted members filled in."""
    members = BTH if golden.fields["opcode"] in UNION else BTH + DATA
    return dict.fromkeys(members, 0) | {"payload": b""} | golden.fields


@each
def test_decode__golden(codec: Codec, golden: Golden) -> None:
    assert codec.decode(golden.packet) == complete(golden)
    check_bth(golden.packet, golden.fields)


@each
def test_encode__golden(codec: Codec, golden: Golden) -> None:
    """encode(decode(b)) == b, ICRC included."""
    assert codec.packet(codec.decode(golden.packet), golden.flow) == golden.packet


@each
def test_decode__golden_trimmed(codec: Codec, golden: Golden) -> None:
    """A packet cut off after its headers decodes to the same fields, without a payload. Data that
    is cut behind METH and TSETH lacks the fields that follow.
    """
    headers = codec.encode(golden.fields)
    expected = complete(golden) | {"payload": b""}
    assert codec.decode(headers, trimmed=True) == expected
    least = len(headers)
    if golden.fields["opcode"] in range(0xC6, 0xCC):
        least = 16 + 4 * golden.fields.get("ts", False)
        expected |= dict.fromkeys(("va", "rkey", "dma_bytes", "imm"), 0)
        assert codec.decode(headers[:least], trimmed=True) == expected
        assert codec.decode(headers[:-1], trimmed=True) == expected
    with pytest.raises(Dropped, match="SHORT"):
        codec.decode(headers[: least - 1], trimmed=True)


@pytest.mark.parametrize("op", [0, 1])
def test_response__of_reading_c6_b(codec: Codec, op: int) -> None:
    """The operation stands in bits 5:4 of byte 1 of the EETH."""
    endpoint = {"op": op, "lifted": True, "tx_timestamp": 0x0300}
    fields = {"opcode": 0xD9, "dest_qpn": 2, "psn": 1, "endpoint": endpoint, "payload": b""}
    packet = codec.packet(fields, GOLDEN[0].flow)
    assert packet[13] == op << 4
    assert codec.lifted_operation(packet) == op
    if op:
        assert packet[:-4] == vectors.load()["ev-probe-answer-op-in-bits-5-4"].payload[:-4]


def test_golden__covers_every_opcode() -> None:
    opcodes = {golden.fields["opcode"] for golden in GOLDEN}
    assert opcodes == set(range(0xC6, 0xCC)) | {0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE}


@given(fields=packets())
def test_decode__round_trip(codec: Codec, fields: Fields) -> None:
    """decode(encode(x)) == x."""
    golden = GOLDEN[0]
    decoded = codec.decode(codec.packet(fields, golden.flow))
    assert decoded == fields


# ---- The ICRC ------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=[cbuild.FAST, cbuild.SHARED_ZLIB], ids=lambda f: f.name)
def either(request: pytest.FixtureRequest) -> Codec:
    return Codec(request.param)


def test_dissect__packet_of_a_connectx4() -> None:
    """The ICRC of mrc dissect is right: a congestion notification captured from a ConnectX-4 Lx.

    The capture is part of scapy's regression tests for RoCE.
    """
    body = bytes.fromhex("8100ffff4000011800000000") + bytes(16)
    flow = dissected.UdpFlow(ip_address("10.0.17.1"), ip_address("10.0.18.1"), 0, 4791)
    crc = flow.icrc(body, fragment=bytes.fromhex("718c4000"))
    assert crc.hex() == "82fd002a"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_icrc__golden(either: Codec, golden: Golden) -> None:
    body, icrc = golden.packet[:-4], golden.packet[-4:]
    assert either.icrc(golden.flow, body) == icrc


@given(flow=flows(), body=st.binary(min_size=5, max_size=300))
def test_icrc__equals_that_of_mrc_dissect(either: Codec, flow: Flow, body: bytes) -> None:
    theirs = dissected.UdpFlow(ip_address(flow.src), ip_address(flow.dst), flow.sport, flow.dport)
    assert either.icrc(flow, body) == theirs.icrc(body)


@given(flow=flows(), packet=packets())
def test_packet__is_one_of_scapys_roce(codec: Codec, flow: Flow, packet: Fields) -> None:
    """Over IPv4, scapy's ICRC covers identification and flags, so the test sets them to ones."""
    ours = codec.packet(packet, flow)
    check_bth(ours, packet)
    if flow.family == 4:
        ip: Packet = IP(src=flow.src, dst=flow.dst, id=0xFFFF, flags=7, frag=0x1FFF)
    else:
        ip = IPv6(src=flow.src, dst=flow.dst)
    bth = roce.BTH(ours)
    del bth.icrc
    theirs = ip / UDP(sport=flow.sport, dport=flow.dport) / bth
    assert bytes(theirs[UDP].payload)[-4:] == ours[-4:]


# ---- The layers of tools/mrc_layers.py -----------------------------------------------------------


LAYERS_BEHIND = {  # the layers behind the BTH, by the member of the union that they fill
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
        fields[member] = {name: find(bth, LAYERS_BEHIND[member], name) for name in like[member]}
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
