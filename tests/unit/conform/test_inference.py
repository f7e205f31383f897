# SPDX-License-Identifier: Apache-2.0
"""`mrc conform judge` on captures of two engines: it finds out which readings they follow."""

from __future__ import annotations

import io
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import cbuild
import pytest
from printed import printed

from mrc.conform import packets
from mrc.conform.inference import DirectionInference, PacketInference
from mrc.conform.packets import finished, headers
from mrc.conform.readings import BY_ID, READINGS
from mrc.dissect import vectors
from mrc.dissect.capture import ETHERNET, udp_of
from mrc.dissect.packet import UdpFlow, decode, icrc
from mrc.enums import Reading

# ---- Several packets -----------------------------------------------------------------------------


ENGINES = Path(__file__).with_name("engines.c")
SENDER, RECEIVER = 0, 1
OTHERS = [str(each.name).replace("_", "-") for each in Reading]
HIDDEN = {
    "C4",  # a correct requester sends nothing beyond the window
    "G2",  # only the time until a SACK shows it
}
SHOWN = [name for name in OTHERS if name.partition("-")[0] not in HIDDEN]
AT_RECEIVER = {"G10", "G15", "S8"}  # shown only where marks, trims and arrivals are seen


def captured(line: str) -> tuple[int, UdpFlow, bytes]:
    """A packet of engines.c."""
    words = line.split()
    at_ns, sport, dport, label, ce, trimmed = map(int, (words[0], *words[4:9]))
    source, destination = (ip_address(bytes.fromhex(word)) for word in words[2:4])
    flow = UdpFlow(source, destination, sport, dport, label, ce=bool(ce), trimmed=bool(trimmed))
    return at_ns, flow, bytes.fromhex(words[9])


def judged(folder: Path, names: list[str]) -> list[set[str]]:
    """What captures at the sender and at the receiver show, with these readings."""
    readings = Reading.OURS
    for name in names:
        readings |= Reading[name.replace("-", "_")]
    engines = cbuild.program(ENGINES, cbuild.FAST)
    done = subprocess.run([engines, str(int(readings))], capture_output=True, text=True, check=True)
    found = []
    for host in (SENDER, RECEIVER):
        lines = [line for line in done.stdout.splitlines() if line.split()[1] == str(host)]
        file = folder / f"{host}.pcap"
        with file.open("wb") as made:
            packets.write_capture(made, sorted(map(captured, lines), key=lambda packet: packet[0]))
        command = [sys.executable, "-m", "mrc", "conform", "judge", "--json", str(file)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result = printed("conform judge", told)
        (way,) = result["directions"]
        assert (result["wrong_icrc"], way["broken"]) == (0, [])
        found.append({*result["readings"], *way["readings"]})
        assert not {name.partition("-")[0] for name in found[-1]} & set(result["hidden"])
        assert set(result["hidden"]) >= HIDDEN
    return found


def finds_out(folder: Path, names: list[str]) -> None:
    at_sender, at_receiver = judged(folder, names)
    for name in names:
        subject = name.partition("-")[0]
        shown = {each for each in at_receiver if each.startswith(f"{subject}-")}
        assert shown == {name}, "at the receiver"
        shown = {each for each in at_sender if each.startswith(f"{subject}-")}
        assert shown == {name} or (not shown and subject in AT_RECEIVER), "at the sender"


@pytest.mark.more
def test_judge__engines_with_all_other_readings(tmp_path: Path) -> None:
    finds_out(tmp_path, SHOWN)


@pytest.mark.more
def test_judge__engines_with_their_own_readings(tmp_path: Path) -> None:
    shown = set().union(*judged(tmp_path, []))
    assert [name for name in shown if BY_ID[name.partition("-")[0]].choice != name] == []
    expected = {name.partition("-")[0] for name in SHOWN} - {"S4"}  # S4-A: nothing is sent
    assert {name.partition("-")[0] for name in shown} >= expected


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_judge__engines_with_another_reading(tmp_path: Path, name: str) -> None:
    finds_out(tmp_path, [name])


# ---- Single habits ---------------------------------------------------------------------------


def shown(
    habits: DirectionInference, turns: list[int] | None = None, *, acks: bool = False
) -> set[str]:
    return set(habits.readings(turns or [], acks_beside_holes=acks))


def test_on_timestamp__only_late_sacks_show_that_nothing_is_added() -> None:
    for seconds, at_receiver, names in (
        (1e-6, True, set()), (1e-3, False, set()), (1e-3, True, {"G15-B"}),
    ):  # fmt: skip
        habits = DirectionInference()
        for _ in range(8):
            habits.on_timestamp(65535, 65535, seconds, at_receiver=at_receiver)
        assert shown(habits) == names
    habits.on_timestamp(65535, 3, 1e-3, at_receiver=True)
    assert shown(habits) == {"G15-A"}


def test_on_cut__a_nack_takes_it_back() -> None:
    habits = DirectionInference()
    habits.on_cut(5)
    habits.on_nack(5)
    habits.on_whole(5, 1)
    assert shown(habits) == set()
    habits.on_cut(6)
    assert shown(habits) == set()  # it is not yet known what the receiver does
    habits.on_whole(6, 1)
    assert shown(habits) == {"G10-B"}


def test_on_sack__an_ack_beside_a_hole() -> None:
    habits = DirectionInference()
    habits.on_sack(3, hole=True)
    habits.on_ack(3)
    habits.on_sack(3, hole=True)
    assert shown(habits) == set()
    habits.on_sack(4, hole=True)
    habits.on_sack(5, hole=True)
    assert shown(habits) == {"S5-B"}
    assert shown(habits, acks=True) == set()


def test_on_whole__the_flight() -> None:
    habits = DirectionInference()
    for _ in range(8):
        habits.on_whole(1, 128)
    assert shown(habits) == {"S1-A"}
    habits.on_whole(1, 129)
    assert shown(habits) == {"S1-B"}


@pytest.mark.parametrize(
    ("packets", "times", "name"), [(8, 32, "G5-A"), (8, 31, ""), (16, 8, "G5-B"), (16, 7, "")]
)
def test_on_turn__marks_in_a_row(packets: int, times: int, name: str) -> None:
    habits = DirectionInference()
    habits.on_feedback(7, marked=True)
    habits.on_turn(7, 100)  # one mark shows nothing
    habits.on_feedback(7, marked=True)
    for _ in range(times):
        habits.on_turn(7, packets)
    habits.on_feedback(7, marked=False)
    habits.on_turn(7, 100)
    assert shown(habits, [4, 4, 4]) == ({name} if name else set())


# ---- One packet ----------------------------------------------------------------------------------
#
# Readings that packets show, and `mrc dissect --readings`, which prints them.


A, B = ip_address("2001:db8::1"), ip_address("2001:db8::2")
FLOW = UdpFlow(A, B, 50000, 4791)
MARKED = UdpFlow(A, B, 50000, 4791, ce=True)
TRIMMED = UdpFlow(A, B, 50000, 4791, trimmed=True)
Sent = tuple[UdpFlow, bytes]


def packet(kind: str, flow: UdpFlow = FLOW, payload: bytes = b"", **fields: int) -> Sent:
    return flow, finished(headers(kind, fields) + payload, flow)


def shown_readings(*sent: Sent) -> set[str]:
    traits = PacketInference()
    return {name for flow, data in sent for name in traits.shown(flow, decode(data, flow))}


def middle(*, byte_1: int) -> Sent:
    """A Middle packet with these bits in byte 1 of its BTH."""
    body = bytearray(headers("WRITE_MIDDLE", {"dma_bytes": 64}) + bytes(4))
    body[1] = byte_1
    return FLOW, finished(bytes(body), FLOW)


PROBE: dict[str, Any] = {"operation": 1, "psn": 7}
CUT = (TRIMMED, headers("WRITE_ONLY", {"dest_qpn": 0xB0001, "psn": 5})[:26])


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ((packet("ACK", UdpFlow(A, B, 50000, 4971), syndrome=0x1F),), {"C1-A", "G13-A"}),
        ((packet("ACK", syndrome=0x61),), {"C1-B"}),
        ((packet("ENDPOINT_REQUEST", operation=0),), {"C1-B", "C2-B"}),
        ((middle(byte_1=0x40),), {"C1-B", "C7-A"}),
        ((middle(byte_1=0x80),), {"C1-B", "C7-B"}),
        ((middle(byte_1=0xC0),), {"C1-B"}),
        ((packet("WRITE_ONLY", payload=bytes(4), dma_bytes=3, pad=1),), {"C1-B", "G16-A"}),
        ((packet("SACK", mark=2),), {"C1-B", "S4-B"}),
        ((packet("SACK", mark=1),), {"C1-B"}),
        ((CUT, packet("NACK", reason=1, spdcid=1, nack_psn=5)), {"C1-B", "G10-A"}),
        ((CUT, packet("NACK", reason=1, spdcid=1, nack_psn=6)), {"C1-B"}),
        ((packet("ENDPOINT_REQUEST", MARKED, **PROBE), packet("ENDPOINT_RESPONSE", **PROBE)),
         {"C1-B", "C6-A", "S8-B"}),
        ((packet("ENDPOINT_REQUEST", MARKED, **PROBE),
          packet("ENDPOINT_RESPONSE", **PROBE, mark=1)), {"C1-B", "C6-A", "S8-A"}),
    ],
)  # fmt: skip
def test_shown__by_packets(sent: tuple[Sent, ...], names: set[str]) -> None:
    assert shown_readings(*sent) == names


@pytest.mark.parametrize("name", ["S6-A", "S6-B"])
def test_shown__what_the_icrc_covers(name: str) -> None:
    """The identification of the header is in the capture, so its ICRC can be checked both ways."""
    flow = vectors.FLOWS["v4"]
    body = headers("ACK", {"syndrome": 0x1F})
    fragment = packets.frame(flow, body + bytes(4))[14 + 4 : 14 + 8]
    check = icrc(body, flow) if name == "S6-A" else icrc(body, flow, fragment=fragment)
    found = udp_of(packets.frame(flow, body + check), ETHERNET)
    assert found is not None
    assert name in shown_readings(found)


def test_dissect__prints_the_readings(tmp_path: Path) -> None:
    file, made = tmp_path / "a.pcap", io.BytesIO()
    sent = [packet("SACK", mark=2), packet("ENDPOINT_REQUEST", operation=0)]
    packets.write_capture(made, ((n, flow, data) for n, (flow, data) in enumerate(sent)))
    file.write_bytes(made.getvalue())
    command = [sys.executable, "-m", "mrc", "dissect", "--readings"]
    done = subprocess.run(
        [*command, "--json", str(file)], capture_output=True, check=True, text=True
    )
    found = printed("dissect --readings", done.stdout)
    assert [(one["reading"], one["packets"], one["ours"]) for one in found["readings"]] == [
        ("C1-B", 2, True), ("C2-B", 1, True), ("S4-B", 1, False),
    ]  # fmt: skip
    assert len(found["hidden"]) == len(READINGS) - 3 and "C3" in found["hidden"]
    told = subprocess.run([*command, str(file)], capture_output=True, check=True, text=True).stdout
    assert "S4-B         1 packets  ALWAYS_SKIP: sent by a criterion" in told
    wrong = subprocess.run([*command, "-i", "lo"], capture_output=True, check=False, text=True)
    assert wrong.returncode == 2 and "needs a capture in a FILE" in wrong.stderr
