# SPDX-License-Identifier: Apache-2.0
"""A network of which a part limps, and the receiver behind it."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mrc.conform.packets import Datagram
from mrc.conform.path import FaultyPath
from mrc.dissect.packet import Packet, UdpFlow

MS = 1_000_000
LIMPS = 7  # the source port of the part that limps


def packet(at_ns: int, sport: int) -> Datagram:
    address = ip_address("::1")
    return Datagram(at_ns, UdpFlow(address, address, sport, 4791), b"", Packet(0), sent=False)


def limps(seen: Datagram) -> bool:
    return seen.flow.sport == LIMPS


def test_arrivals__late_ones_are_overtaken() -> None:
    network = FaultyPath(limps, late_ns=5 * MS)
    first, second, third = packet(MS, LIMPS), packet(2 * MS, 1), packet(2 * MS, 1)
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
        network.send(packet(n, LIMPS))
        network.send(packet(n, 1))
    arrived = [seen for seen, _ in network.arrivals(MS)]
    assert [seen.at_ns for seen in arrived if limps(seen)] == arrive
    assert len(arrived) == len(arrive) + 4


def test_report__shows_the_packet_that_arrived() -> None:
    network = FaultyPath(limps, received={0, 1, 3, 100})
    assert network.report(3) == {"cum_psn": 1, "sack_offset": 1, "has": "3"}
    assert network.report(100) == {"cum_psn": 1, "sack_offset": 36, "has": "100"}
    assert network.report(0) == network.report(None) == network.report(3)
    assert FaultyPath(limps).report(None) == {"cum_psn": -1, "sack_offset": 1}
