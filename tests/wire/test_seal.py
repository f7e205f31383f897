# SPDX-License-Identifier: Apache-2.0
"""The C engine and an independent decoder (seal.py) agree about sealed packets."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cryptography.exceptions import InvalidTag
from wire import seal, vectors
from wire.seal import AEAD, AUTH, Direction, Opened
from wire.sealing_engine import EPOCH_BITS, ONE, OTHER, PATH_MTU, Engine, Sent, engine

from mrc.engine import native
from mrc.trust.secret import Secret

LIBRARIES = ("libcrypto", "ipsec_mb")
FROM_ONE, FROM_OTHER = Direction(ONE.secret, EPOCH_BITS), Direction(OTHER.secret, EPOCH_BITS)
REQUEST, RESPONSE, SACK = 0xD8, 0xD9, 0xDC
WRITE_FIRST, WRITE_ONLY_IMM = 0xC6, 0xCB


@pytest.fixture(params=[(library, mode) for library in LIBRARIES for mode in (AEAD, AUTH)])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    library, mode = request.param
    try:
        with (
            engine(library, mode, ONE, OTHER) as one,
            engine(library, mode, OTHER, ONE) as other,
        ):
            yield one, other
    except LookupError as error:
        pytest.skip(str(error))


def opened(engine: Engine, direction: Direction, sent: list[Sent]) -> list[Opened]:
    """Opens packets of an engine; seals them again, which gives the same bytes."""
    found = [direction.open(packet, ev) for ev, packet in sent]
    for (ev, packet), each in zip(sent, found, strict=True):
        assert each.mode == engine.mode
        assert direction.close(each, ev) == packet
    return found


def passed(to: Engine, sent: list[Sent]) -> None:
    for ev, packet in sent:
        assert to.receive(ev, packet) == ""


def test_secrets__of_both_directions() -> None:
    randoms = secrets.token_bytes(32), secrets.token_bytes(32)
    first, second = map(Secret.copy, randoms)
    out = seal.qp_secret(randoms, ONE.qpn, OTHER.qpn)
    back = seal.qp_secret(randoms, OTHER.qpn, ONE.qpn)
    one = native.secret_struct("mrc_seal_attr", peer_qpn=OTHER.qpn)
    native.agree(one, ONE.qpn, first.bytes, second.bytes, first=True)
    assert (bytes(one.send), bytes(one.receive)) == (out, back)
    other = native.secret_struct("mrc_seal_attr", peer_qpn=ONE.qpn)
    native.agree(other, OTHER.qpn, second.bytes, first.bytes, first=False)
    assert (bytes(other.send), bytes(other.receive)) == (back, out)


def test_engine__seals_what_the_decoder_opens(sides: tuple[Engine, Engine]) -> None:
    """Writes of several packets, with immediates and padding, and their answers; many epochs."""
    one, other = sides
    out: list[Opened] = []
    back: list[Opened] = []
    for turn in range(40):
        data = secrets.token_bytes(3 * PATH_MTU + turn % 4 + 1)
        one.write(other.address, data, imm=turn if turn % 2 else None)
        before, done = len(out), []
        for _ in range(20):
            sent = one.sent()
            out += opened(one, FROM_ONE, sent)
            passed(other, sent)
            answers = other.sent()
            back += opened(other, FROM_OTHER, answers)
            passed(one, answers)
            if done := one.completions():
                break
            one.later(1_000_000)
            other.later(1_000_000)
        assert [status for _, status, _ in done] == [0]
        assert [imm for _, _, imm in other.completions()] == ([turn] if turn % 2 else [])
        assert bytes(other.memory[0 : len(data)]) == data
        assert b"".join(payload_of(each) for each in out[before:]) == data
    assert {WRITE_FIRST, SACK} <= {each.body[0] for each in out + back}
    for packets, to in ((out, OTHER), (back, ONE)):
        assert {each.qpn for each in packets} == {to.qpn}
        assert [each.counter for each in packets] == list(range(len(packets)))
    assert len(out) >= 160 and len(back) >= 40, "several epochs of 64 packets"


def test_golden__packets(sides: tuple[Engine, Engine]) -> None:
    """The engine makes the first two packets of the published vectors."""
    one, _ = sides
    published = json.loads(vectors.FILE.read_text())["packets"]
    golden = [bytes.fromhex(each["sealed"]) for each in published
              if vectors.MODES[each["mode"]] == one.mode][:2]  # fmt: skip
    one.write(0x1000, b"golden", imm=0x0102)
    sent = one.sent()
    one.probe()
    sent += one.sent()
    assert [packet for _, packet in sent] == golden


def payload_of(packet: Opened) -> bytes:
    if not seal.FIRST_DATA <= packet.body[0] <= seal.LAST_DATA:
        return b""
    imm = seal.IMM_BYTES if packet.body[0] in seal.WITH_IMM else 0
    pad = packet.body[1] >> 4 & 3
    return packet.body[seal.clear_bytes(packet.body) + imm : len(packet.body) - pad]


def test_engine__seals_endpoint_packets(sides: tuple[Engine, Engine]) -> None:
    """Probes of an EV, small and padded, their answers, and port status."""
    one, other = sides
    for size in (0, 700):
        one.probe(size)
        asked = one.sent()
        (probe,) = opened(one, FROM_ONE, asked)
        assert (probe.body[0], probe.qpn) == (REQUEST, OTHER.qpn)
        assert len(asked[0][1]) >= size
        passed(other, asked)
        answered = other.sent()
        (answer,) = opened(other, FROM_OTHER, answered)
        assert answer.body[0] == RESPONSE
        passed(one, answered)
        assert one.answered_probes() == 1
    one.port_up(2, up=False)
    one.later(1_000_000)
    packets = opened(one, FROM_ONE, one.sent())
    reports = [each.body for each in packets if each.body[0] == REQUEST]
    assert reports and all(body[5:8] == b"\0\0\2" for body in reports)


@pytest.mark.parametrize("epoch", [0, 1])
def test_engine__opens_what_the_encoder_seals(sides: tuple[Engine, Engine], epoch: int) -> None:
    """A write with an immediate, and a probe, in the first epoch and the one that may follow."""
    one, other = sides
    body = bytes([WRITE_ONLY_IMM, 0x31]) + b"\xff\xff\0" + OTHER.qpn.to_bytes(3, "big")
    body += bytes.fromhex("80 0000000000 0000") + other.address.to_bytes(8, "big")
    body += OTHER.rkey.to_bytes(4, "big") + (5).to_bytes(4, "big") + b"\0\0\1\2" + b"bytes\0\0\0"
    counter = epoch << EPOCH_BITS
    packet = FROM_ONE.close(Opened(body, one.mode, OTHER.qpn, counter), ONE.evs[0])
    for changed in (counter + 1, counter | 1 << 40):
        wrong = packet[:-24] + changed.to_bytes(8, "big") + packet[-16:]
        assert other.receive(ONE.evs[0], wrong) in ("SEAL", "REPLAY")
    assert other.receive(ONE.evs[1], packet) == "SEAL", "the tag covers the EV"
    assert other.receive(ONE.evs[0], packet) == ""
    assert bytes(other.memory[0:5]) == b"bytes"
    assert [imm for _, _, imm in other.completions()] == [0x0102]
    assert other.receive(ONE.evs[0], packet) == "DUPLICATE"
    later = one_probe(one)
    probe = FROM_ONE.close(replace(later, counter=counter + 2), ONE.evs[0])
    assert other.receive(ONE.evs[0], probe) == ""
    answers = opened(other, FROM_OTHER, other.sent())
    assert RESPONSE in {each.body[0] for each in answers}


def one_probe(one: Engine) -> Opened:
    one.probe()
    ((ev, packet),) = one.sent()
    return FROM_ONE.open(packet, ev)


def test_decoder__refuses_what_was_changed(sides: tuple[Engine, Engine]) -> None:
    """Otherwise it would prove nothing."""
    one, _ = sides
    one.write(0x1000, b"some bytes of data")
    ((ev, packet),) = one.sent()
    FROM_ONE.open(packet, ev)
    for at in (5, 20, seal.clear_bytes(packet), -17, -1):
        wrong = bytearray(packet)
        wrong[at] ^= 1
        with pytest.raises(InvalidTag):
            FROM_ONE.open(bytes(wrong), ev)
    with pytest.raises(InvalidTag):
        FROM_ONE.open(packet, ev + 1)
    with pytest.raises(InvalidTag):
        FROM_OTHER.open(packet, ev)
