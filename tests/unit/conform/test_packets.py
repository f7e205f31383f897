# SPDX-License-Identifier: Apache-2.0
"""Packets from the tables of formats.py are the golden packets."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from wire.golden import GOLDEN, Golden

from mrc.conform.packets import finished, headers, ip_packets
from mrc.dissect.formats import OPCODES
from mrc.dissect.packet import UdpFlow, decode


def flow_of(golden: Golden) -> UdpFlow:
    flow = golden.flow
    return UdpFlow(ip_address(flow.src), ip_address(flow.dst), flow.sport, flow.dport)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_headers__of_the_golden_packets(golden: Golden) -> None:
    """What `decode` found in a golden packet makes the same packet again."""
    flow = flow_of(golden)
    packet = decode(golden.packet, flow)
    fields = {name: value for header in packet.headers.values() for name, value in header.items()}
    kind = OPCODES[fields.pop("opcode")]
    made = headers(kind, fields)
    payload = golden.packet[len(made) : -4]
    assert finished(made + payload, flow).hex() == golden.packet.hex()


def test_headers__refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="psn: 16777216 is not within"):
        headers("SACK", {"psn": 1 << 24})
    with pytest.raises(ValueError, match="ACK has no field bitmap"):
        headers("ACK", {"bitmap": 1})


# ---- IP packets ----------------------------------------------------------------------------------
#
# IP packets with wrong headers, as scapy reads them.


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
