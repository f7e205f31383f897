# SPDX-License-Identifier: Apache-2.0
"""From the steps of a case to packets, and from packets to what a step expects."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from mrc.conform.adapter import QpAttributes, QpPort
from mrc.conform.case import step
from mrc.conform.packets import Datagram, finished
from mrc.conform.situation import DevicePacket, Situation
from mrc.dissect.packet import UdpFlow, decode

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
    return Datagram(0, flow, payload, decode(payload, flow), sent=False)


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
    short = Datagram(0, FLOW, payload, decode(payload, FLOW), sent=False)
    assert not situation.is_of_kind(step(line), short)


def test_unsound__reserved_bits(situation: Situation) -> None:
    other = Situation(situation.device, situation.own, situation.evs)
    body = bytearray(other.sent(step("> WRITE_ONLY psn=0"), 0))
    assert situation.unsound(seen_of(finished(bytes(body), FLOW))) == ""
    body[8] |= 1  # below the flags of the BTH
    assert "reserved" in situation.unsound(seen_of(finished(bytes(body), FLOW)))


def seen_of(payload: bytes) -> Datagram:
    return Datagram(0, FLOW, payload, decode(payload, FLOW), sent=False)


def test_differs__data_of_the_device(situation: Situation) -> None:
    other = Situation(situation.device, situation.own, situation.evs)
    seen = made(other, "> WRITE_ONLY psn=1 at=64 bytes=8 fill=0x22", psn=1)
    assert situation.differs(step("< WRITE_ONLY psn=1 at=64 bytes=8 fill=0x22"), seen) == ""
    assert situation.differs(step("< WRITE_ONLY fill=0x23"), seen) == "fill is 34, not 0x23"
