# SPDX-License-Identifier: Apache-2.0
"""The C ICRC, with either library, against independent implementations and a hardware packet."""

from __future__ import annotations

from ipaddress import ip_address

import cbuild
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib import roce
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet
from wire.codec import Codec, Fields, Flow
from wire.golden import GOLDEN, Golden
from wire.strategies import flows, packets

from mrc.dissect import packet as dissected


@pytest.fixture(scope="session", params=[cbuild.FAST, cbuild.SHARED_ZLIB], ids=lambda f: f.name)
def either(request: pytest.FixtureRequest) -> Codec:
    return Codec(request.param)


def test_dissect__packet_of_a_connectx4() -> None:
    """The ICRC of mrc dissect is right: a congestion notification captured from a ConnectX-4 Lx.

    The capture is part of scapy's regression tests for RoCE.
    """
    body = bytes.fromhex("8100ffff4000011800000000") + bytes(16)
    flow = dissected.UdpFlow(ip_address("10.0.17.1"), ip_address("10.0.18.1"), 0, 4791)
    crc = flow.icrc(body, fragment=bytes.fromhex("718c4000"))
    assert crc.hex() == "82fd002a"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_icrc__golden(either: Codec, golden: Golden) -> None:
    body, icrc = golden.packet[:-4], golden.packet[-4:]
    assert either.icrc(golden.flow, body) == icrc


@given(flow=flows(), body=st.binary(min_size=5, max_size=300))
def test_icrc__equals_that_of_mrc_dissect(either: Codec, flow: Flow, body: bytes) -> None:
    theirs = dissected.UdpFlow(ip_address(flow.src), ip_address(flow.dst), flow.sport, flow.dport)
    assert either.icrc(flow, body) == theirs.icrc(body)


@given(flow=flows(), packet=packets())
def test_icrc__equals_that_of_scapys_roce(codec: Codec, flow: Flow, packet: Fields) -> None:
    """Over IPv4, scapy's ICRC covers identification and flags, so the test sets them to ones."""
    ours = codec.packet(packet, flow)
    if flow.family == 4:
        ip: Packet = IP(src=flow.src, dst=flow.dst, id=0xFFFF, flags=7, frag=0x1FFF)
    else:
        ip = IPv6(src=flow.src, dst=flow.dst)
    bth = roce.BTH(ours)
    del bth.icrc
    theirs = ip / UDP(sport=flow.sport, dport=flow.dport) / bth
    assert bytes(theirs[UDP].payload)[-4:] == ours[-4:]
