# SPDX-License-Identifier: Apache-2.0
"""Addresses in the form that C uses."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mrc.fabric.hostconfig import pack_address, parse_address, unpack_address


@pytest.mark.parametrize("name", ["::1", "fd00:a:1::1:0", "192.0.2.7", "0.0.0.0"])
def test_pack_address__round_trip(name: str) -> None:
    packed = pack_address(ip_address(name))
    assert len(packed) == 16
    assert unpack_address(packed) == ip_address(name)


def test_pack_address__ipv4_is_mapped() -> None:
    assert pack_address(ip_address("192.0.2.7")) == bytes(10) + b"\xff\xff\xc0\x00\x02\x07"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fe80::1%eth0", "fe80::1"), ("::ffff:127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")],
)
def test_parse_address__scope_and_mapping(name: str, expected: str) -> None:
    assert parse_address(name) == ip_address(expected)
