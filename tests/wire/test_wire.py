# SPDX-License-Identifier: Apache-2.0
"""The C codec against golden packets, round trips and random bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.codec import BTH, DATA, UNION, Codec, Dropped, Fields
from wire.golden import GOLDEN, Golden
from wire.strategies import packets

from mrc.dissect import vectors

each = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


def complete(golden: Golden) -> Fields:
    """The golden packet's fields, with omitted members filled in."""
    members = BTH if golden.fields["opcode"] in UNION else BTH + DATA
    return dict.fromkeys(members, 0) | {"payload": b""} | golden.fields


@each
def test_decode__golden(codec: Codec, golden: Golden) -> None:
    assert codec.decode(golden.packet) == complete(golden)


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
    assert codec.lifted_operation(packet) == (op, 0)
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


@given(data=st.binary(max_size=120), trimmed=st.booleans())
def test_decode__any_bytes(codec: Codec, data: bytes, trimmed: bool) -> None:
    decode_or_drop(codec, data, trimmed=trimmed)


@given(
    golden=st.sampled_from(GOLDEN),
    changes=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=4),
    length=st.integers(0, 100),
)
def test_decode__mutated_golden(
    codec: Codec, golden: Golden, changes: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(golden.packet)
    for offset, value in changes:
        data[offset % len(data)] = value
    decode_or_drop(codec, bytes(data[:length]), trimmed=False)


def decode_or_drop(codec: Codec, data: bytes, *, trimmed: bool) -> None:
    """An accepted packet survives another round trip; any other has a drop reason."""
    try:
        fields = codec.decode(data, trimmed=trimmed)
    except Dropped as drop:
        assert drop.reason in {"SHORT", "OPCODE", "VERSION", "PKEY", "FIELD", "LENGTH"}
        return
    again = codec.packet(fields, GOLDEN[0].flow)
    if trimmed:
        again = codec.encode(fields)
    assert codec.decode(again, trimmed=trimmed) == fields
