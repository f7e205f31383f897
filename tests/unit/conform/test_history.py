# SPDX-License-Identifier: Apache-2.0
"""What a capture shows: invariants, each with a packet that breaks it, and readings."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from printed import printed

from mrc.conform import packets
from mrc.conform.history import Judge, PacketInference, SenderHistory
from mrc.conform.packets import finished
from mrc.conform.readings import READINGS
from mrc.dissect import vectors
from mrc.dissect.capture import ETHERNET, udp_of
from mrc.dissect.packet import Packet, UdpFlow

A, B = ip_address("192.0.2.1"), ip_address("192.0.2.2")
A_QPN, B_QPN = 0xAAAAAA, 0xBBBBBB
FIRST = 0xFFFFFE  # PSNs wrap after the second packet
MTU = 1024
Datagram = tuple[float, UdpFlow, bytes]


def data(at: float, psn: int, sport: int = 50000, kind: str = "WRITE_ONLY", **fields: int) -> Any:
    """A packet of A to B's QP; `psn` counts from the first."""
    size = fields.pop("bytes", 64)
    flow = UdpFlow(A + fields.pop("plane", 0), B, sport, 4791, ce=bool(fields.pop("ce", 0)))
    settings = {
        "dest_qpn": B_QPN, "psn": (FIRST + psn) % (1 << 24), "msn": psn, "va": 4096,
        "rkey": 1, "dma_bytes": size, **fields,
    }  # fmt: skip
    return at, flow, finished(Packet.encode(kind, settings) + bytes(size), flow)


def answer(at: float, kind: str, cum: int, bits: tuple[int, ...] = (), **fields: int) -> Any:
    """An answer of B."""
    flow = UdpFlow(B, A, 60000, 4791)
    settings = {"dest_qpn": A_QPN, "psn": (FIRST + cum) % (1 << 24), **fields}
    if kind == "SACK":
        settings |= {
            "cum_psn": settings["psn"], "spdcid": B_QPN & 0xFFFF, "dpdcid": A_QPN & 0xFFFF,
            "sack_offset": 1, "bitmap": sum(1 << psn - cum - 1 for psn in bits),
        }  # fmt: skip
        settings.setdefault("ev", 50000 << 16)
    if kind == "NACK":
        settings |= {"nack_psn": settings["psn"], "spdcid": B_QPN & 0xFFFF}
    return at, flow, finished(Packet.encode(kind, settings), flow)


def judged(*datagrams: Datagram) -> Judge:
    judge = Judge()
    for seconds, flow, payload in datagrams:
        judge.take(seconds, flow, Packet.decode(payload, flow))
    judge.finish()
    return judge


GOOD = (
    data(0.0, 0),
    data(0.1, 1, kind="WRITE_FIRST", bytes=MTU, dma_bytes=MTU + 64, sport=50001),
    data(0.2, 2, kind="WRITE_LAST", msn=1, va=4096 + MTU, dma_bytes=MTU + 64),
    answer(0.3, "SACK", 0, (2,), ack_psn_offset=2),
    data(0.4, 1, kind="WRITE_FIRST", bytes=MTU, dma_bytes=MTU + 64, rtx=1),
    answer(0.5, "SACK", 2),
    answer(0.5, "ACK", 2, syndrome=0x1F, msn=2),
)


def test_take__a_loss_and_its_retransmission() -> None:
    (way,) = judged(*GOOD).directions.values()
    assert way.broken == {}
    assert (way.packets, way.retransmissions, way.lost, way.sacks, way.acks) == (4, 1, 1, 2, 1)
    assert way.window == 3
    assert way.waits == [pytest.approx(0.3)]
    assert way.rtts[0] == pytest.approx(0.1)
    assert way.uncaptured == 0
    assert way.fairness == pytest.approx(16 / (2 * (9 + 1)))


@pytest.mark.parametrize(
    ("invariant", "changed", "at"),
    [
        ("rtx is set",
         data(0.4, 1, kind="WRITE_FIRST", bytes=MTU, dma_bytes=MTU + 64), 4),
        ("one packet for a PSN",
         data(0.4, 1, kind="WRITE_FIRST", bytes=MTU, dma_bytes=MTU + 64, rtx=1, va=0), 4),
        ("another EV for a retransmission",
         data(0.4, 1, kind="WRITE_FIRST", bytes=MTU, dma_bytes=MTU + 64, rtx=1, sport=50001), 4),
        ("no retransmission of what arrived", answer(0.3, "SACK", 1), 3),
        ("a SACK reports what was sent", answer(0.3, "SACK", 0, (3,)), 3),
        ("a SACK reports what was sent, no retransmission of what arrived",
         answer(0.3, "SACK", 5), 3),
        ("messages are whole", data(0.2, 2, msn=2), 2),
        ("addresses advance by the payload",
         data(0.2, 2, kind="WRITE_LAST", msn=1, va=4096, dma_bytes=MTU + 64), 2),
        ("addresses advance by the payload",
         data(0.2, 2, kind="WRITE_LAST", msn=2, va=4096 + MTU, dma_bytes=MTU + 64), 2),
        ("MSN counts messages", data(0.0, 0, msn=5), 0),
    ],
)  # fmt: skip
def test_take__breaks(invariant: str, changed: Datagram, at: int) -> None:
    (way,) = judged(*GOOD[:at], changed, *GOOD[at + 1 :]).directions.values()
    assert set(way.broken) == set(invariant.split(", "))


def test_take__a_capture_that_lacks_packets() -> None:
    """A SACK for a packet that the capture lacks is no lie of the receiver."""
    (way,) = judged(data(0, 0), answer(1, "SACK", 1), data(2, 2)).directions.values()
    assert way.broken == {} and way.uncaptured == 1


def test_take__readings() -> None:
    swapped = answer(1, "SACK", 0, ev=50000)
    (way,) = judged(data(0, 0), swapped).directions.values()
    assert way.readings["C3-B"] == 1 and way.readings["C3-A"] == 0
    (way,) = judged(data(0, 0), answer(1, "NACK", 0, reason=0x0B)).directions.values()
    assert way.readings["C4-B"] == 1 and way.nacks == {"PSN_OOR_WINDOW": 1}
    hole = (data(0, 0), data(0, 1), data(0, 2), answer(1, "SACK", 0, (2,)))
    (way,) = judged(*hole, answer(1, "ACK", 0, syndrome=0x1F, msn=1)).directions.values()
    assert way.readings["S5-A"] == 1


@pytest.mark.parametrize(("bits", "reading"), [(4, "C6-A"), (16, "C6-B")])
def test_take__operation_of_an_endpoint_response(bits: int, reading: str) -> None:
    flow = UdpFlow(A, B, 50000, 4791)
    request = finished(
        Packet.encode("ENDPOINT_REQUEST", {"operation": 1, "psn": 7, "dest_qpn": 2}), flow
    )
    made = bytearray(Packet.encode("ENDPOINT_RESPONSE", {"psn": 7, "dest_qpn": 2}))
    made[13] = bits
    judge = judged((0, flow, request), (1, flow, finished(bytes(made), flow)))
    assert {name for name in judge.readings if name.startswith("C6")} == {reading}


def test_take__marks_and_turns_of_an_ev() -> None:
    sports = [50000, 50001, 50000, 50001, 50001, 50001, 50000]
    packets = [data(n, n, sport) for n, sport in enumerate(sports)]
    packets.insert(3, answer(2.5, "SACK", 2, mark=1))
    (way,) = judged(*packets).directions.values()
    assert way.turns == [2, 2, 1, 1] and way.turns_after_mark == [4]


def test_take__a_suspended_plane_lengthens_no_turn() -> None:
    """Method: packets of plane 1 are few among those of plane 2."""
    sports = [51, 61, 52, 62, 61, 62, 61, 62, 51, 52]
    packets = [data(n, n, sport, plane=1 + (sport > 60)) for n, sport in enumerate(sports)]
    (way,) = judged(*packets).directions.values()
    assert way.turns == [2] * 6


def test_take__a_wrong_icrc_is_not_judged() -> None:
    seconds, flow, payload = data(0, 0)
    judge = judged((seconds, flow, payload[:-1] + bytes([payload[-1] ^ 1])))
    assert judge.wrong_icrc == 1 and judge.directions == {}


def test_judge__as_typed(tmp_path: Path) -> None:
    file = tmp_path / "a.pcap"
    with file.open("wb") as made:
        packets.write_capture(made, ((int(at * 1e9), flow, payload) for at, flow, payload in GOOD))
    command = [sys.executable, "-m", "mrc", "conform", "judge", str(file)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    (way,) = printed("conform judge", done.stdout)["directions"]
    assert (way["qpn"], way["lost"], way["broken"]) == (B_QPN, 1, [])
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "1 PSN sent again, 1 packet with rtx, median wait 300000 us" in told
    broken = subprocess.run([*command, "--port", "1"], capture_output=True, text=True, check=False)
    assert "no data of MRC was found" in broken.stderr


UD_SEND_ONLY = 0x64  # of RoCEv2


@pytest.mark.parametrize(
    ("port", "payload"),
    [
        pytest.param(9999, struct.pack("!QBB", 7, 2, 0) + b"X" * 32, id="spray"),
        pytest.param(4791, struct.pack("!BBHII", UD_SEND_ONLY, 0, 0xFFFF, 0x0201, 7)
                     + struct.pack("!QBB", 7, 2, 0) + b"X" * 34, id="rocev2"),
    ],
)  # fmt: skip
def test_judge__packets_of_srv6_mrc_emulator(tmp_path: Path, port: int, payload: bytes) -> None:
    """As its documents describe them: they have uSID carriers, but no packets of MRC."""
    carrier = ip_address("fc00:2:f000:e00f:d000::")
    inner = UdpFlow(ip_address("2001:db8:bbbb::2"), ip_address("2001:db8:bbbb:f::2"), port, port,
                 carrier=carrier)  # fmt: skip
    file = tmp_path / "a.pcap"
    with file.open("wb") as made:
        packets.write_capture(made, [(0, inner, payload)])
    command = [sys.executable, "-m", "mrc", "conform", "judge", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "" and "no data of MRC was found" in done.stderr
    assert udp_of(packets.frame(inner, payload), ETHERNET) == (inner, payload)


def test_frame__inside_vxlan() -> None:
    _, flow, payload = data(0, 0)
    inner = packets.frame(flow, payload)
    tunnel = UdpFlow(A, B, 1234, 4789)
    outer = packets.frame(tunnel, b"\x08" + bytes(7) + inner)
    assert udp_of(outer, ETHERNET) == (replace(flow, fragment=b"\0\0@\0"), payload)
    nested = inner
    for _ in range(20):
        nested = packets.frame(tunnel, b"\x08" + bytes(7) + nested)
    assert udp_of(nested, ETHERNET) is None


# ---- A sender over time --------------------------------------------------------------------------


@pytest.mark.parametrize(("flights", "expected"), [([10, 10, 10], 1.0), ([9, 5, 8], 0.5)])
def test_course__reaction_is_the_least_flight(flights: list[int], expected: float) -> None:
    course = SenderHistory()
    course.on_round_trip(0.01)
    course.on_news("mark", 1.0, 10)
    for n, flight in enumerate(flights, 1):
        course.on_flight(1.0 + n / 100, flight)
    assert course.reaction("mark") is None  # four round trips have not passed
    course.on_flight(1.1, 2)
    assert course.reaction("mark") == pytest.approx(expected)


def test_course__reaction_ends_after_four_round_trips() -> None:
    course = SenderHistory()
    course.on_round_trip(0.01)
    course.on_news("loss", 1.0, 10)
    course.on_flight(1.02, 8)
    course.on_flight(1.039, 7)
    course.on_flight(2.0, 10)
    assert course.reaction("loss") == pytest.approx(0.7)
    assert course.reaction("mark") is None


def test_course__news_in_a_row_are_one() -> None:
    course = SenderHistory()
    course.on_round_trip(0.01)
    for n in range(3):
        course.on_news("trim", 1.0 + n / 1000, 10)
    course.on_flight(2.0, 10)
    assert course.reactions == {"trim": [1.0]}


def test_course__timers_and_news() -> None:
    course = SenderHistory()
    course.on_again(0.3, reported=False)
    course.on_again(0.1, reported=True)
    assert (course.waits_silent, course.waits_reported) == ([0.3], [0.1])


# ---- Readings that one packet shows --------------------------------------------------------------


A6, B6 = ip_address("2001:db8::1"), ip_address("2001:db8::2")
FLOW = UdpFlow(A6, B6, 50000, 4791)
MARKED = UdpFlow(A6, B6, 50000, 4791, ce=True)
TRIMMED = UdpFlow(A6, B6, 50000, 4791, trimmed=True)
Sent = tuple[UdpFlow, bytes]


def packet(kind: str, flow: UdpFlow = FLOW, payload: bytes = b"", **fields: int) -> Sent:
    return flow, finished(Packet.encode(kind, fields) + payload, flow)


def shown_readings(*sent: Sent) -> set[str]:
    traits = PacketInference()
    return {name for flow, data in sent for name in traits.shown(flow, Packet.decode(data, flow))}


def middle(*, byte_1: int) -> Sent:
    """A Middle packet with these bits in byte 1 of its BTH."""
    body = bytearray(Packet.encode("WRITE_MIDDLE", {"dma_bytes": 64}) + bytes(4))
    body[1] = byte_1
    return FLOW, finished(bytes(body), FLOW)


PROBE: dict[str, Any] = {"operation": 1, "psn": 7}
CUT = (TRIMMED, Packet.encode("WRITE_ONLY", {"dest_qpn": 0xB0001, "psn": 5})[:26])


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ((packet("ACK", UdpFlow(A6, B6, 50000, 4971), syndrome=0x1F),), {"C1-A", "G13-A"}),
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
    body = Packet.encode("ACK", {"syndrome": 0x1F})
    fragment = packets.frame(flow, body + bytes(4))[14 + 4 : 14 + 8]
    check = flow.icrc(body) if name == "S6-A" else flow.icrc(body, fragment=fragment)
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
