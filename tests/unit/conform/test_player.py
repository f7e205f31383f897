# SPDX-License-Identifier: Apache-2.0
"""Cases that are played: from their steps to packets, and from packets to what a step expects; and
that the judge itself stood still is not held against a device.
"""

from __future__ import annotations

import random
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.conform.adapter import AdapterAnswer, QpAttributes, QpPort
from mrc.conform.case import step
from mrc.conform.packets import Datagram, FaultyPath, finished
from mrc.conform.player import JudgeDelay, Play, StepFailure
from mrc.conform.situation import DevicePacket, Situation
from mrc.dissect.packet import Packet, UdpFlow

FLOW = UdpFlow(ip_address("192.0.2.1"), ip_address("192.0.2.2"), 50000, 4791)
PORTS = (QpPort("192.0.2.1", (50000,)),)


def end(**changed: int) -> QpAttributes:
    attributes: dict[str, Any] = {
        "qpn": 0x123456, "first_psn": 0xFFFFFE, "path_mtu": 1024, "mpr": 128, "max_wimm": 32,
        "udp_port": 4791, "va": 0x1000, "rkey": 7, "memory_bytes": 4096, **changed,
    }  # fmt: skip
    return QpAttributes(ports=PORTS, **attributes)


@pytest.fixture
def situation() -> Situation:
    return Situation(end(), end(qpn=0xABCDEF, first_psn=0x10), [0xC3500000, 0xC3510000])


def made(situation: Situation, line: str, psn: int = 0, flow: UdpFlow = FLOW) -> Datagram:
    payload = finished(situation.sent(step(line), psn), flow)
    return Datagram(0, flow, payload, Packet.decode(payload, flow), sent=False)


def test_sent__a_write(situation: Situation) -> None:
    seen = made(situation, "> WRITE_ONLY psn=2 at=256 bytes=5 fill=0x61", psn=2)
    packet, payload = seen.packet, seen.payload
    assert packet.headers["BTH"]["psn"] == 0  # 2 after 0xfffffe
    assert packet.headers["BTH"]["dest_qpn"] == 0xABCDEF
    assert packet.headers["BTH"]["pad"] == 3
    assert packet.headers["RETH"] == {"va": 0x1100, "rkey": 7, "dma_bytes": 5}
    assert payload[-12:-4] == b"aaaaa\0\0\0"
    assert packet.icrc_is_right is True


def test_sent__an_answer_counts_from_the_device(situation: Situation) -> None:
    packet = made(situation, "> SACK cum_psn=3 has=5,7 for=7").packet
    seth = packet.headers["SETH"]
    assert packet.headers["BTH"]["psn"] == seth["cum_psn"] == 0x13
    assert (seth["sack_offset"], seth["bitmap"]) == (1, 0b1010)
    assert seth["ack_psn_offset"] == 4


def test_sent__reflects_the_last_data_of_the_device(situation: Situation) -> None:
    flow = UdpFlow(FLOW.source, FLOW.destination, 0xC351, 4791)
    situation.note(made(situation, "> WRITE_ONLY psn=0 tx_timestamp=77", flow=flow))
    headers = made(situation, "> SACK cum_psn=0").packet.headers
    assert headers["SETH"]["ev"] == 0xC3510000
    assert headers["CC_STATE"]["tx_timestamp"] == 77


def test_note__a_psn_that_comes_again_on_an_ev(situation: Situation) -> None:
    flows = [UdpFlow(FLOW.source, FLOW.destination, sport, 4791) for sport in (1, 2, 1)]
    seen = [made(situation, "> WRITE_ONLY psn=0", flow=flow) for flow in flows]
    for each in seen:
        situation.note(each)
    assert [each.same_ev for each in seen] == [False, False, True]


@pytest.mark.parametrize(("left", "turns"), [((1, 2, 3, 4), 2), ((1, 2), 4)])
def test_note__counts_the_turns_of_other_evs_of_the_plane(
    situation: Situation, left: tuple[int, ...], turns: int
) -> None:
    """EVs 1 and 2 are of one plane, 3 and 4 of another, which may carry nothing after the mark."""
    first = ip_address("192.0.2.2"), ip_address("192.0.2.3")
    flows = {port: UdpFlow(FLOW.source, first[port > 2], port, 4791) for port in (1, 2, 3, 4)}
    for port in (4, 3, 2, 1):
        situation.note(made(situation, "> WRITE_ONLY psn=0", flow=flows[port]))
    assert situation.names["turns"] == 0
    made(situation, "> SACK cum_psn=0 mark=SKIP_ONCE")  # of EV 1
    for at in range(8):
        situation.note(made(situation, "> WRITE_ONLY psn=0", flow=flows[left[at % len(left)]]))
    assert situation.names["turns"] == turns


@pytest.fixture
def sack(situation: Situation) -> Datagram:
    """Of the device: the cumulative PSN is 1, 3 and 65 have come too, the last one on path 1."""
    other = Situation(
        situation.device, situation.own, situation.evs, last=DevicePacket(ev=0xC3510000)
    )
    return made(other, "> SACK cum_psn=1 has=3,65 for=3 mark=SKIP_ONCE")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("< SACK cum_psn=1", ""),
        ("< SACK has=0,1,3,65 lacks=2,4..64,66,67 for=3 mark=SKIP_ONCE path=1", ""),
        ("< any", ""),
        ("< SACK cum_psn=0..2", ""),
        ("< SACK mark=NONE|SKIP_ONCE", ""),
        ("< SACK cum_psn=2", "cum_psn is 1, not 2"),
        ("< SACK has=2", "it lacks PSN 2"),
        ("< SACK lacks=65", "it has PSN 65"),
        ("< SACK path=0", "its EV is not c3500000"),
        ("< SACK mark=NONE", "mark is SKIP_ONCE, not NONE"),
        ("< SACK probe_id=3", "it has no probe_id"),
    ],
)
def test_differs(situation: Situation, sack: Datagram, line: str, why: str) -> None:
    assert situation.differs(step(line), sack) == why


@pytest.mark.parametrize(("line", "is_it"), [("< SACK", True), ("< any", True), ("< NACK", False)])
def test_is_of_kind(situation: Situation, sack: Datagram, line: str, is_it: bool) -> None:
    assert situation.is_of_kind(step(line), sack) is is_it
    payload = sack.payload[:30]
    short = Datagram(0, FLOW, payload, Packet.decode(payload, FLOW), sent=False)
    assert not situation.is_of_kind(step(line), short)


def test_unsound__reserved_bits(situation: Situation) -> None:
    other = Situation(situation.device, situation.own, situation.evs)
    body = bytearray(other.sent(step("> WRITE_ONLY psn=0"), 0))
    assert situation.unsound(seen_of(finished(bytes(body), FLOW))) == ""
    body[8] |= 1  # below the flags of the BTH
    assert "reserved" in situation.unsound(seen_of(finished(bytes(body), FLOW)))


def seen_of(payload: bytes) -> Datagram:
    return Datagram(0, FLOW, payload, Packet.decode(payload, FLOW), sent=False)


def test_differs__data_of_the_device(situation: Situation) -> None:
    other = Situation(situation.device, situation.own, situation.evs)
    seen = made(other, "> WRITE_ONLY psn=1 at=64 bytes=8 fill=0x22", psn=1)
    assert situation.differs(step("< WRITE_ONLY psn=1 at=64 bytes=8 fill=0x22"), seen) == ""
    assert situation.differs(step("< WRITE_ONLY fill=0x23"), seen) == "fill is 34, not 0x23"


# ---- A judge that stood still --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_prompt", "stalled", "unread", "completions", "error"),
    [
        (True, 0.2, 0.2, (), JudgeDelay),
        (True, 0.01, 0.2, (), StepFailure),
        (False, 0.2, 0.2, (), StepFailure),
        (False, 0.2, 0.2, None, StepFailure),
        (False, 0.02, 0.2, ("SUCCESS", "RETRY_EXC_ERR"), JudgeDelay),
        (False, 0.001, 0.01, ("RETRY_EXC_ERR",), StepFailure),
    ],
)
def test_take__after_the_judge_stood_still(
    is_prompt: bool, stalled: float, unread: float, completions: tuple[str, ...] | None,
    error: type[Exception], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever step fails then: a QP that has given up does nothing more."""
    peer: Any = SimpleNamespace(seen=[], stalled_seconds=stalled, unread_seconds=unread)
    situation: Any = SimpleNamespace(is_prompt=is_prompt)
    device: Any = SimpleNamespace(ask=lambda _: AdapterAnswer(completions=completions))
    play = Play(peer, device, situation, random.Random(1), 1.0)

    def fail(step: object) -> None:
        raise StepFailure("< WRITE_ONLY psn=0: nothing came")

    monkeypatch.setattr(play, "_take", fail)
    step: Any = None
    with pytest.raises(error):
        play.take(step)


@pytest.mark.parametrize(("kind", "waits"), [("ENDPOINT_REQUEST", 1), ("ENDPOINT_RESPONSE", 0)])
def test_write__after_a_request_of_the_device(
    situation: Situation, kind: str, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter can be quicker than the judge's answer."""
    seen = made(situation, f"> {kind} operation=EV_PROBE psn=5")
    peer: Any = SimpleNamespace(seen=[seen], fences=set())
    device: Any = SimpleNamespace(ask=lambda _: AdapterAnswer())
    play, fences = Play(peer, device, situation, random.Random(1), 1.0), []
    monkeypatch.setattr(play, "_fence", lambda: fences.append(1))
    for line in (f"< {kind} operation=EV_PROBE", ". write bytes=64"):
        play.take(step(line))
    assert len(fences) == waits


# ---- A faulty path -------------------------------------------------------------------------------


MS = 1_000_000
LIMPS = 7  # the source port of the part that limps


def passing(at_ns: int, sport: int) -> Datagram:
    address = ip_address("::1")
    return Datagram(at_ns, UdpFlow(address, address, sport, 4791), b"", Packet(0), sent=False)


def limps(seen: Datagram) -> bool:
    return seen.flow.sport == LIMPS


def test_arrivals__late_ones_are_overtaken() -> None:
    network = FaultyPath(limps, late_ns=5 * MS)
    first, second, third = passing(MS, LIMPS), passing(2 * MS, 1), passing(2 * MS, 1)
    for each in (first, second, third):
        network.send(each)
    assert network.next_ns == 2 * MS
    assert list(network.arrivals(3 * MS)) == [(second, 0), (third, 0)]
    assert network.next_ns == 6 * MS
    assert list(network.arrivals(6 * MS)) == [(first, 5 * MS)]
    assert network.next_ns is None


@pytest.mark.parametrize(
    ("loses", "arrive"), [(0, [0, 1, 2, 3]), (1, []), (2, [0, 2]), (3, [0, 1, 3])]
)
def test_send__every_nth_is_lost(loses: int, arrive: list[int]) -> None:
    network = FaultyPath(limps, loses=loses)
    for n in range(4):
        network.send(passing(n, LIMPS))
        network.send(passing(n, 1))
    arrived = [seen for seen, _ in network.arrivals(MS)]
    assert [seen.at_ns for seen in arrived if limps(seen)] == arrive
    assert len(arrived) == len(arrive) + 4


def test_report__shows_the_packet_that_arrived() -> None:
    network = FaultyPath(limps, received={0, 1, 3, 100})
    assert network.report(3) == {"cum_psn": 1, "sack_offset": 1, "has": "3"}
    assert network.report(100) == {"cum_psn": 1, "sack_offset": 36, "has": "100"}
    assert network.report(0) == network.report(None) == network.report(3)
    assert FaultyPath(limps).report(None) == {"cum_psn": -1, "sack_offset": 1}
