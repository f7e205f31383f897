# SPDX-License-Identifier: Apache-2.0
"""The C ICRC, with either library, against an independent one and a packet from hardware."""

from __future__ import annotations

import cbuild
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import reference
from wire.codec import Codec, Flow
from wire.golden import GOLDEN, Golden
from wire.strategies import flows

ONES = {"ident": 0xFFFF, "fragment": 0xFFFF}


@pytest.fixture(scope="session", params=[cbuild.SHARED, cbuild.SHARED_ZLIB], ids=lambda f: f.name)
def either(request: pytest.FixtureRequest) -> Codec:
    return Codec(request.param)


def test_reference__packet_of_a_connectx4() -> None:
    """The reference is right: a congestion notification captured from a ConnectX-4 Lx.

    The capture is part of scapy's regression tests for RoCE.
    """
    body = bytes.fromhex("8100ffff4000011800000000") + bytes(16)
    crc = reference.icrc("10.0.17.1", "10.0.18.1", 0, 4791, body, ident=0x718C, fragment=0x4000)
    assert crc.hex() == "82fd002a"


def test_library__is_the_one_that_was_asked_for(either: Codec) -> None:
    name = either.ffi.string(either.lib.mrc_icrc_library())
    assert name in (b"ISA-L", b"zlib")
    zlib = Codec(cbuild.SHARED_ZLIB)
    assert zlib.ffi.string(zlib.lib.mrc_icrc_library()) == b"zlib"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_icrc__golden(either: Codec, golden: Golden) -> None:
    body, icrc = golden.packet[:-4], golden.packet[-4:]
    assert either.icrc(golden.flow, body) == icrc


@given(flow=flows(), body=st.binary(min_size=5, max_size=300), data=st.data())
def test_icrc__equals_the_reference(
    either: Codec, flow: Flow, body: bytes, data: st.DataObject
) -> None:
    split = data.draw(st.integers(5, len(body)))
    expected = reference.icrc(flow.src, flow.dst, flow.sport, flow.dport, body, **ONES)
    assert either.icrc(flow, body, split) == expected
