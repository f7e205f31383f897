# SPDX-License-Identifier: Apache-2.0
"""The form of cases, readings, the packets of the judge, and golden packets and exchanges."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from printed import printed
from processes import needs_tshark, tshark
from project_text import ROOT
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from wire.codec import Codec
from wire.codec import Flow as Covered
from wire.golden import CARRIER, FLOW_LABEL, GOLDEN, Golden
from wire.golden import frame as by_scapy

from mrc.conform import exchanges
from mrc.conform.case import (
    CaseError,
    Choice,
    Step,
    after,
    load_cases,
    members,
    parse,
    psn_at,
    selected,
    span,
    value,
)
from mrc.conform.exchanges import ExchangePacket
from mrc.conform.history import Judge
from mrc.conform.packets import finished, frame, ip_packets
from mrc.conform.readings import BY_ID, READINGS, check, switches
from mrc.dissect import cli as dissect_cli
from mrc.dissect.capture import ETHERNET, udp_of
from mrc.dissect.packet import OPCODES, Packet, UdpFlow
from mrc.dissect.vectors import FLOWS, Vector, load, sealed

CASE = """\
# a comment
case one
    A device does this.
    why Because.
    section 7.5.2
    reading G13-A
    psn 0xfffffe
    > WRITE_ONLY psn=0 fill=0x61
    < SACK cum_psn=0 within=50ms
    ? C4-B < NACK reason=PSN_OOR_WINDOW
    ? C4-A ! NACK
    = immediates 1 2
    . write bytes=64
"""


def test_parse__all_parts() -> None:
    (case,) = parse(CASE, "topic")
    assert (case.name, case.topic, case.title) == ("one", "topic", "A device does this.")
    assert (case.why, case.section, case.readings) == ("Because.", "7.5.2", ("G13-A",))
    assert case.psn == "0xfffffe"
    send, expect, choice, check, ask = case.steps
    assert isinstance(send, Step) and (send.sign, send.what) == (">", "WRITE_ONLY")
    assert isinstance(expect, Step) and expect.fields == {"cum_psn": "0", "within": "50ms"}
    assert isinstance(choice, Choice) and choice.reading == "C4"
    assert [(letter, step.sign) for letter, step in choice.alternatives] == [("B", "<"), ("A", "!")]
    assert isinstance(check, Step) and check.words == ("1", "2")
    assert isinstance(ask, Step) and ask.fields == {"bytes": "64"}


def test_parse__each_makes_a_case_of_each_combination() -> None:
    text = CASE.replace("case one\n", "case one\n    each n: 1 2\n    each icrc: a b\n")
    text = text.replace("fill=0x61", "fill={n}")
    # The title follows the name, so `each` lines stand behind it.
    text = text.replace(
        "    each n: 1 2\n    each icrc: a b\n    A device does this.\n",
        "    A device does this.\n    each n: 1 2\n    each icrc: a b\n",
    )
    cases = parse(text, "topic")
    assert [case.name for case in cases] == ["one-1-a", "one-1-b", "one-2-a", "one-2-b"]
    first = cases[2].steps[0]
    assert isinstance(first, Step) and first.fields["fill"] == "2"


def test_parse__steps_with_a_name() -> None:
    named = "steps asked\n    . write bytes=64\n    = state RTS\n\n"
    (case,) = parse(named + CASE + "    asked\n    2 asked\n", "topic")
    assert case.text.splitlines()[-7:] == ["    . write bytes=64", *named.splitlines()[1:3] * 3]
    assert parse(named.replace("asked", "asked ") + CASE + "    3 asked\n", "topic") == [case]
    (case,) = parse(named + CASE.replace("A device does this.", "asked"), "topic")
    assert case.title == "asked"
    named = named.replace("= state", "{sign} state")
    text = CASE.replace("    why", "    each sign: =\n    why")
    assert parse(named + text + "    asked\n", "topic")[0].text.endswith("\n    = state RTS")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("steps a\n    . write\nsteps a\n    . write\n", "line 3: a: named twice"),
        ("steps \n    . write\n", "line 1: '' is no name"),
        ("steps a b\n    . write\n", "line 1: 'a b' is no name"),
        ("steps a\n", "line 1: a: needs steps"),
        ("\nsteps a\n    . write\n    = all\n", "line 2: 'all' is none of"),
        ("steps a\n    = all\n" + CASE + "    a\n", "line 1: 'all' is none of"),
        *(
            (f"steps a\n    . write\n{CASE}    {count} a\n", f"line 4: '{count} a' is no step")
            for count in ("9" * 23, "1000", "0", "٣")
        ),
    ],
)
def test_parse__steps_refused(text: str, part: str) -> None:
    with pytest.raises(CaseError, match=part):
        parse(text, "topic")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("WRITE_ONLY", "WRITE_SOME", "WRITE_SOME"),
        ("fill=0x61", "cum_psn=3", "cum_psn"),
        ("G13-A", "G13-B", "G13-B is no reading"),
        ("? C4-A !", "? C4-A >", "an alternative expects or forbids"),
        ("= immediates 1 2", "= everything", "everything"),
        ("    why Because.\n", "", "needs a line 'why'"),
        ("case one", "case One", "no name of a case"),
        ("    . write bytes=64\n", "    write\n", "no step"),
        ("    . write bytes=64\n", "  . write\n", "four blanks"),
    ],
)  # fmt: skip
def test_parse__refused(old: str, new: str, part: str) -> None:
    assert CASE.count(old) == 1
    with pytest.raises(CaseError, match=part):
        parse(CASE.replace(old, new), "topic")


def test_library__every_case_is_complete() -> None:
    cases = load_cases()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.title.endswith("."), case.name
        assert case.why.endswith("."), case.name
        letters = [step for step in case.steps if isinstance(step, Choice)]
        for choice in letters:
            assert len(choice.alternatives) > 1, case.name
            assert choice.reading in BY_ID


def test_selected__by_name_pattern_and_topic() -> None:
    cases = load_cases()
    assert [case.name for case in selected(cases, ["beyond-window"])] == ["beyond-window"]
    assert {case.topic for case in selected(cases, ["window"])} == {"window"}
    with pytest.raises(CaseError, match="no case matches 'nothing'"):
        selected(cases, ["nothing"])


# ---- Numbers -------------------------------------------------------------------------------------


NAMES = {"mpr": 1024, "half": 1 << 23}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), ("-1", -1), ("0xff", 255), ("mpr-1", 1023), ("-half", -(1 << 23)),
     ("mpr+half+2", 1024 + (1 << 23) + 2), ("2*mpr-9/4", 2046)],
)  # fmt: skip
def test_value__sums(text: str, expected: int) -> None:
    assert value(text, NAMES) == expected


@pytest.mark.parametrize("text", ["", "mpr-", "wimm", "1 2", "3..4", "mpr*", "mpr*2*3"])
def test_value__refused(text: str) -> None:
    with pytest.raises(ValueError):
        value(text, NAMES)


def test_span__both_ends_included() -> None:
    assert list(span("3..5", NAMES)) == [3, 4, 5]
    assert list(span("mpr-1", NAMES)) == [1023]


def test_members__lists_and_spans() -> None:
    assert list(members("1,3..5,-1", NAMES)) == [1, 3, 4, 5, -1]


@pytest.mark.parametrize("first", [0, 1, 0x7FFFFF, 0xFFFFFE])
@pytest.mark.parametrize("distance", [-1, 0, 1, 2, 0x7FFFFF, -0x800000])
def test_after__inverts_psn_at(first: int, distance: int) -> None:
    assert after(psn_at(distance, first), first) == distance


# ---- Readings ------------------------------------------------------------------------------------


def test_page__is_true() -> None:
    command = [sys.executable, str(ROOT / "tools" / "readings"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_readings__are_complete() -> None:
    ids = [each.id for each in READINGS]
    assert len(set(ids)) == len(ids)
    for each in READINGS:
        letters = [one.letter for one in each.alternatives]
        assert letters == list("ABCD"[: len(letters)]), each.id
        assert each.ours in letters, each.id
        assert all(one.sources for one in each.alternatives), each.id
        assert each.reason, each.id


def test_switches__are_other_alternatives_and_one_bit_each() -> None:
    assert [one.bit for _, one in switches()] == [1 << bit for bit in range(len(switches()))]
    for name, one in switches():
        reading = BY_ID[name.partition("_")[0]]
        assert one.letter != reading.ours
        assert name.replace("_", "-") in reading.names


def test_check__names_of_alternatives() -> None:
    for each in READINGS:
        check(each.choice)
    for name in ("C4", "C4-D", "C99-A", "c4-a", ""):
        with pytest.raises(ValueError, match="is no reading"):
            check(name)


# ---- Packets from tables are the golden packets --------------------------------------------------


def flow_of(golden: Golden) -> UdpFlow:
    flow = golden.flow
    return UdpFlow(ip_address(flow.src), ip_address(flow.dst), flow.sport, flow.dport)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_headers__of_the_golden_packets(golden: Golden) -> None:
    """What `decode` found in a golden packet makes the same packet again."""
    flow = flow_of(golden)
    packet = Packet.decode(golden.packet, flow)
    fields = {name: value for header in packet.headers.values() for name, value in header.items()}
    kind = OPCODES[fields.pop("opcode")]
    made = Packet.encode(kind, fields)
    payload = golden.packet[len(made) : -4]
    assert finished(made + payload, flow).hex() == golden.packet.hex()


def test_headers__refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="psn: 16777216 is not within"):
        Packet.encode("SACK", {"psn": 1 << 24})
    with pytest.raises(ValueError, match="ACK has no field bitmap"):
        Packet.encode("ACK", {"bitmap": 1})


# ---- IP packets ----------------------------------------------------------------------------------


V4 = UdpFlow(ip_address("192.0.2.1"), ip_address("192.0.2.2"), 50000, 4791)
V6 = UdpFlow(ip_address("2001:db8::1"), ip_address("2001:db8::2"), 50000, 4791, 0xABCDE)
PAYLOAD = bytes(range(100))


def parsed(flow: UdpFlow, **fields: int) -> list[Any]:
    kind = IP if flow.source.version == 4 else IPv6
    return [kind(each) for each in ip_packets(flow, PAYLOAD, 3, fields)]


def checksum_of(packet: Any) -> int:
    """As scapy computes it."""
    again = packet.copy()
    del again[UDP].chksum
    return int(type(packet)(bytes(again))[UDP].chksum)


@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
def test_packets__right_ones(flow: UdpFlow) -> None:
    (packet,) = parsed(flow, ttl=7)
    assert (packet.ttl if flow is V4 else packet.hlim) == 7
    assert (packet.tos if flow is V4 else packet.tc) == 3
    assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].len) == (50000, 4791, 108)
    assert bytes(packet[UDP].payload) == PAYLOAD
    assert packet[UDP].chksum == checksum_of(packet)
    if flow is V6:
        assert packet.fl == 0xABCDE


@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
def test_packets__checksum_and_length_are_added_to(flow: UdpFlow) -> None:
    (right,), (wrong,) = parsed(flow), parsed(flow, udp_checksum=1, udp_bytes=-8)
    assert wrong[UDP].chksum == right[UDP].chksum + 1
    assert wrong[UDP].len == 100 and len(wrong) == len(right)


@pytest.mark.parametrize("which", [1, 2, 3])
def test_packets__fragments_of_ipv4(which: int) -> None:
    found = parsed(V4, fragment=which, ip_id=77)
    places = {1: [(1, 0)], 2: [(0, 6)], 3: [(1, 0), (0, 6)]}[which]
    assert [(int(each.flags.MF), each.frag) for each in found] == places
    assert {each.id for each in found} == {77}


def test_packets__fragments_of_ipv6() -> None:
    first, second = parsed(V6, fragment=3, ip_id=77)
    assert (first[IPv6ExtHdrFragment].m, first[IPv6ExtHdrFragment].offset) == (1, 0)
    assert (second[IPv6ExtHdrFragment].m, second[IPv6ExtHdrFragment].offset) == (0, 6)
    assert len(first) + len(second) == 2 * (40 + 8) + 108


# ---- Golden exchanges: their bytes do not change, and others decode them -------------------------


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
    assert wire["psn"] == Packet.decode(sent.payload, flow).headers["BTH"]["psn"]


@pytest.mark.parametrize("each", EXCHANGES, ids=lambda each: each.name)
def test_load__breaks_no_invariant(each: exchanges.Exchange) -> None:
    judge = Judge()
    for sent in each.packets:
        judge.take(sent.at_ns / 1e9, sent.flow, Packet.decode(sent.payload, sent.flow))
    judge.finish()
    assert [way.findings for way in judge.directions.values() if way.findings] == []


# ---- Golden packets ------------------------------------------------------------------------------


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
    assert vector.flow.icrc(vector.payload[:-4], fragment=head) == vector.payload[-4:]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_frame__leads_back_to_the_packet(vector: Vector) -> None:
    found = udp_of(frame(vector.flow, vector.payload), ETHERNET)
    assert found is not None
    assert (replace(found[0], fragment=b""), found[1]) == (vector.flow, vector.payload)
    if vector.flow.source.version == 4:
        assert Packet.decode(vector.payload, found[0]).icrc_covers_fragment is (
            vector.reading == "S6-B"
        )


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


@needs_tshark
def test_wireshark__finds_nothing_malformed(tmp_path: Path) -> None:
    pcap = tmp_path / "vectors.pcap"
    with pcap.open("wb") as file:
        exchanges.write_golden(file, EVERY_PACKET, exchanges.load_exchanges())
    done = tshark(
        "-X", f"lua_script:{dissect_cli.LUA}", "-r", str(pcap),
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
