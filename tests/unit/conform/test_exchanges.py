# SPDX-License-Identifier: Apache-2.0
"""Golden exchanges: their bytes do not change, and others decode them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import wireshark
from msgspec.structs import replace
from printed import printed
from wire.capture import CARRIER, FLOW_LABEL
from wire.capture import frame as by_scapy
from wire.codec import Codec
from wire.codec import Flow as Covered
from wire.golden import GOLDEN

from mrc.conform import exchanges
from mrc.conform.exchanges import ExchangePacket
from mrc.conform.history import Judge
from mrc.conform.packets import frame
from mrc.conform.readings import check
from mrc.dissect import formats
from mrc.dissect.capture import ETHERNET, udp_of
from mrc.dissect.formats import OPCODES
from mrc.dissect.packet import decode, icrc
from mrc.dissect.vectors import FLOWS, Vector, load, sealed

EXCHANGES = exchanges.load_exchanges()
EVERY = [pytest.param(sent, id=f"{each.name}-{n}")
         for each in EXCHANGES for n, sent in enumerate(each.packets)]  # fmt: skip
DIGEST = {1: "3608ecb5dbad5bef7a108173437a644051e0d034baef3c59ef49341023343648"}
"""Of all bytes of a version. Exchanges may be added without a new version; then it changes, too."""


def test_load__bytes_of_the_version() -> None:
    digest = hashlib.sha256()
    for each in EXCHANGES:
        for sent in each.packets:
            digest.update(sent.payload)
    assert digest.hexdigest() == DIGEST[exchanges.VERSION]


def test_load__shows_every_opcode() -> None:
    kinds = {OPCODES[sent.payload[0]] for each in EXCHANGES for sent in each.packets}
    assert set(OPCODES.values()) - kinds == {"WRITE_LAST_IMM"}


@pytest.mark.parametrize("sent", EVERY)
def test_load__the_engine_accepts_each_packet(sent: ExchangePacket) -> None:
    flow = sent.flow
    covered = Covered(str(flow.source), str(flow.destination), flow.sport, flow.dport)
    if not flow.trimmed:
        assert Codec().icrc(covered, sent.payload[:-4]) == sent.payload[-4:]
    wire = Codec().decode(sent.payload, trimmed=flow.trimmed)
    assert wire["psn"] == decode(sent.payload, flow).headers["BTH"]["psn"]


@pytest.mark.parametrize("each", EXCHANGES, ids=lambda each: each.name)
def test_load__breaks_no_invariant(each: exchanges.Exchange) -> None:
    judge = Judge()
    for sent in each.packets:
        judge.take(sent.at_ns / 1e9, sent.flow, decode(sent.payload, sent.flow))
    judge.finish()
    assert [way.findings for way in judge.directions.values() if way.findings] == []


# ---- Golden packets ------------------------------------------------------------------------------
#
# The golden packets, as published: their ICRCs, their frames, and what others decode.


VECTORS = list(load().values())
EVERY_PACKET = [*VECTORS, *sealed()]
WITH_ICRC = [each for each in VECTORS if not each.flow.trimmed and each.reading != "S6-B"]


def test_load__names_readings_that_there_are() -> None:
    for reading in {each.reading for each in VECTORS} - {""}:
        check(reading)


@pytest.mark.parametrize("vector", WITH_ICRC, ids=lambda vector: vector.name)
def test_icrc__of_the_engine(vector: Vector) -> None:
    flow = vector.flow
    covered = Covered(str(flow.source), str(flow.destination), flow.sport, flow.dport)
    assert Codec().icrc(covered, vector.payload[:-4]) == vector.payload[-4:]


def test_icrc__of_rocev2() -> None:
    (vector,) = (each for each in VECTORS if each.reading == "S6-B")
    head = frame(vector.flow, vector.payload)[14 + 4 : 14 + 8]
    assert icrc(vector.payload[:-4], vector.flow, fragment=head) == vector.payload[-4:]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_frame__leads_back_to_the_packet(vector: Vector) -> None:
    found = udp_of(frame(vector.flow, vector.payload), ETHERNET)
    assert found is not None
    assert (replace(found[0], fragment=b""), found[1]) == (vector.flow, vector.payload)
    if vector.flow.source.version == 4:
        assert decode(vector.payload, found[0]).icrc_covers_fragment is (vector.reading == "S6-B")


@pytest.mark.parametrize("name", ["v6", "v4", "srv6"])
def test_frame__is_that_of_scapy(name: str) -> None:
    flow, payload = FLOWS[name], VECTORS[0].payload
    covered = Covered(str(flow.source), str(flow.destination), flow.sport, flow.dport)
    via = None if flow.carrier is None else CARRIER
    assert flow.flow_label in (0, FLOW_LABEL)
    made = by_scapy(payload, covered, via=via, tclass=0)
    if name == "v4":
        made["IP"].id, made["IP"].flags = 0, "DF"
    assert frame(flow, payload)[14:].hex() == bytes(made)[14:].hex()


def test_load__covers_every_opcode_and_the_codec_s_packets() -> None:
    assert {each.packet.kind for each in VECTORS} == set(OPCODES.values())
    assert {golden.name for golden in GOLDEN} == {
        each.name
        for each in VECTORS
        if not each.reading and each.flow in (FLOWS["v6"], FLOWS["v4"])
    }


def test_vectors__as_typed(tmp_path: Path) -> None:
    pcap = tmp_path / "vectors.pcap"
    command = [sys.executable, "-m", "mrc"]
    words = [*command, "conform", "vectors", "--json", "--pcap", str(pcap)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = printed("conform vectors", done.stdout)
    assert [each["name"] for each in found["packets"]] == [each.name for each in EVERY_PACKET]
    for each in found["packets"]:
        assert "".join(part["bytes"] for part in each["parts"]) == each["bytes"]
    dissected = subprocess.run(
        [*command, "dissect", str(pcap)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = [each.name for each in EVERY_PACKET]
    names += [each.name for each in exchanges.load_exchanges() for _ in each.packets]
    wrong = [name for name, line in zip(names, dissected, strict=True)
             if "WRONG" in line or "too short" in line]  # fmt: skip
    assert wrong == []


@wireshark.required
def test_wireshark__finds_nothing_malformed(tmp_path: Path) -> None:
    pcap = tmp_path / "vectors.pcap"
    with pcap.open("wb") as file:
        exchanges.write_golden(file, EVERY_PACKET, exchanges.load_exchanges())
    done = wireshark.tshark(
        "-X", f"lua_script:{formats.LUA}", "-r", str(pcap),
        "-T", "fields", "-e", "_ws.malformed", "-e", "mrc.opcode",
    )  # fmt: skip
    payloads = [each.payload for each in EVERY_PACKET]
    payloads += [sent.payload for each in exchanges.load_exchanges() for sent in each.packets]
    assert done.stdout.splitlines() == [f"\t{payload[0]:#04x}" for payload in payloads]


def test_sealed__are_read_as_such() -> None:
    kinds = {each.packet.kind for each in sealed()}
    assert {each.packet.headers["SEAL"]["mode"] for each in sealed()} == {1, 2}
    assert {"WRITE_ONLY_IMM", "SACK"} <= kinds
    assert all(each.packet.icrc_is_right is None for each in sealed())
