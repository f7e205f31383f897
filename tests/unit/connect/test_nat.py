# SPDX-License-Identifier: Apache-2.0
"""Tests of mrc.connect.nat."""

from __future__ import annotations

import random
from ipaddress import ip_address, ip_interface

import pytest

from mrc import limits
from mrc.connect.nat import Ends
from mrc.engine.paths import LocalPort, PeerSource, PortPair, RemotePort, nat_evs

NAT = Ends("10.1.0.2", "203.0.113.5", "198.51.100.9", "198.51.100.9")


@pytest.mark.parametrize(
    ("ends", "has_nat", "words"),
    [
        (Ends("10.1.0.2", "10.1.0.2", "10.2.0.2", "10.2.0.2"), False, ""),
        (NAT, True, "a NAT shows 10.1.0.2 as 203.0.113.5"),
        (
            Ends("10.1.0.2", "10.1.0.2", "198.51.100.9", "10.2.0.2"),
            False,
            "198.51.100.9 is forwarded to 10.2.0.2, which requires a VPN",
        ),
        (
            Ends("10.1.0.2", "10.3.0.1", "10.3.0.1", "10.2.0.2"),
            False,
            "10.3.0.1 is forwarded to 10.2.0.2, which requires a VPN",
        ),
    ],
)
def test_ends(ends: Ends, *, has_nat: bool, words: str) -> None:
    assert ends.has_nat is has_nat
    assert ends.in_words(passed=True) == words


def test_ends__of_packets_that_pass_no_nat() -> None:
    told = NAT.in_words(passed=False)
    assert told.startswith("a NAT shows 10.1.0.2 as 203.0.113.5, and only sealed packets pass it")


def port(address: str, plane: int = 1) -> LocalPort:
    found = ip_interface(address)
    return LocalPort(plane, f"eth{plane}", found, 1408, tx_sockets=8 if found.version == 4 else 1)


def remote(address: str) -> RemotePort:
    return RemotePort("p", ip_interface(address), (40000,), 1400)


def test_pair__is_the_same_on_both_sides() -> None:
    ours, theirs = [port("10.9.0.2/24"), port("10.1.0.2/24", 2)], port("198.51.100.9/24")
    pairs = [PortPair(each, remote("198.51.100.9/24"), late=each is ours[1]) for each in ours]
    back = [PortPair(theirs, remote(str(each.address))) for each in ours]
    assert NAT.pair(pairs, dialed=True) is pairs[1]
    assert NAT.pair(back, dialed=False) is back[1]
    assert NAT.pair(pairs[:1], dialed=True) is None


def test_sources__the_nat_is_the_last() -> None:
    pair = PortPair(port("198.51.100.9/24"), remote("10.1.0.2/24"))
    inner, other = PeerSource(ip_address("10.1.0.2"), 4800), PeerSource(ip_address("10.1.0.2"), 1)
    outer = PeerSource(ip_address("203.0.113.5"), 4800, is_nat=True)
    assert NAT.sources(pair, 4800, [other], dialed=False) == [inner, other, outer]
    assert NAT.sources(pair, 4800, [other], dialed=True) == [inner, other]
    many = [PeerSource(ip_address("10.1.0.2"), sport) for sport in range(1, 300)]
    found = NAT.sources(pair, 4800, many, dialed=False)
    assert len(found) == limits.MAX_PEER_SOURCES
    assert (found[0], found[-1]) == (inner, outer)


@pytest.mark.parametrize(
    ("here", "there", "count", "tx_index"),
    [("10.1.0.2/24", "198.51.100.9/24", 1, 8), ("fd01::2/64", "2001:db8::9/64", 4, 1)],
)
def test_evs__leave_from_the_receive_socket(
    here: str, there: str, count: int, tx_index: int
) -> None:
    pair = PortPair(port(here, 2), remote(there))
    evs = nat_evs(pair, 4800, 4791, 4, random.Random(1))
    assert len({ev.attr.ev for ev in evs}) == count
    for ev in evs:
        assert (ev.attr.port, ev.attr.plane, ev.attr.tx_index) == (2, 2, tx_index)
        assert (ev.attr.sport, ev.attr.dport) == (4800, 4791)
