# SPDX-License-Identifier: Apache-2.0
"""Addresses and paths of small fabrics, written out."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network
from typing import Any

import pytest

from mrc.fabric import topology
from mrc.fabric.topology import Addresses, Path, Topology

ADDRESSES = Addresses()


def test_paths__every_t1_of_every_plane() -> None:
    paths = Topology(hosts=2, planes=2, t1=2).paths(0, 1)
    assert [(path.name, str(path.dst), str(path.segments[0])) for path in paths] == [
        ("t1:1.0", "fd00:a:1::1:0", "fcbb:1:100:201:e000::"),
        ("t1:1.1", "fd00:a:1::1:1", "fcbb:1:101:201:e000::"),
        ("t1:2.0", "fd00:a:1::2:0", "fcbb:2:100:201:e000::"),
        ("t1:2.1", "fd00:a:1::2:1", "fcbb:2:101:201:e000::"),
    ]


def test_paths__one_in_full() -> None:
    assert Topology(hosts=20, planes=4, t1=3).paths(0, 17)[-1] == Path(
        plane=4,
        name="t1:4.2",
        dst=IPv6Address("fd00:a:11::4:2"),
        segments=(IPv6Address("fcbb:4:102:211:e000::"),),
        usids=(0x0102, 0x0211, 0xE000),
    )


def test_addresses__of_the_largest_fabric_are_distinct() -> None:
    """No uSID, no prefix and no path address is used twice."""
    host, t1 = topology.MAX_HOSTS - 1, topology.MAX_T1 - 1
    two, three = Topology(2, 1, 1), Topology(2, 1, 2, pods=2, t2=1)
    numbers = {"t0": host, "t1": topology.MAX_ALL_T1 - 1, "t2": topology.MAX_T2 - 1}
    usids = {three.usid(tier, at) for tier, last in numbers.items() for at in (0, last)}
    usids |= {two.usid("t1", 0), two.usid("t1", t1), topology.HOST_USID}
    assert sorted(usids) == [
        0x0100, 0x01FF, 0x0200, 0x11FF, 0x2000, 0x2FFF, 0x3000, 0x3FFF, 0xE000,
    ]  # fmt: skip
    assert ADDRESSES.host_prefix(host) == IPv6Network("fd00:a:fff::/64")
    assert ADDRESSES.on_path(host, topology.MAX_PLANES, t1) == IPv6Address("fd00:a:fff::40:ff")


def test_path_address__is_never_the_hosts_own() -> None:
    paths = Topology(hosts=2, planes=topology.MAX_PLANES, t1=4).paths(1, 0)
    prefix, own = ADDRESSES.host_prefix(0), ADDRESSES.host(0)
    assert own not in {path.dst for path in paths}
    assert all(path.dst in prefix for path in paths)
    assert len({path.dst for path in paths}) == len(paths)


def test_oob_address__counts_from_one() -> None:
    assert [str(ADDRESSES.oob(host)) for host in range(2)] == ["fd00:c::1", "fd00:c::2"]


@pytest.mark.parametrize(
    ("hosts", "planes", "t1", "complaint"),
    [
        (1, 4, 2, "hosts is 1, not in 2..4096"),
        (4097, 4, 2, "hosts is 4097"),
        (2, 0, 2, "planes is 0, not in 1..64"),
        (2, 65, 2, "planes is 65"),
        (2, 4, 0, "t1 is 0, not in 1..256"),
        (2, 4, 257, "t1 is 257"),
    ],
)
def test_topology__refuses_sizes(hosts: int, planes: int, t1: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Topology(hosts, planes, t1)


def test_paths__below_one_t0_lead_over_it_alone() -> None:
    fabric = Topology(hosts=4, planes=2, t1=2, t0=2)
    near = [(path.name, str(path.dst), path.usids) for path in fabric.paths(0, 1)]
    assert near == [
        ("t0:1.0", "fd00:a:1::1:0", (0xE001,)),
        ("t0:2.0", "fd00:a:1::2:0", (0xE001,)),
    ]
    assert [path.usids for path in fabric.paths(0, 3)][:2] == [
        (0x100, 0x201, 0xE001),
        (0x101, 0x201, 0xE001),
    ]


@pytest.mark.parametrize(
    ("hosts", "t0", "complaint"),
    [(4, 3, "hosts is 4, not a multiple of t0"), (2, 3, "t0 is 3, not in 1..2")],
)
def test_topology__refuses_uneven_t0s(hosts: int, t0: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Topology(hosts, 1, 1, t0)


def test_addresses__of_ones_own() -> None:
    ours = Addresses(IPv6Network("5f00::/16"), IPv6Network("fd01:b::/32"), IPv6Network("fd02::/64"))
    fabric = Topology(2, 1, 1, addresses=ours)
    (path,) = fabric.paths(0, 1)
    assert (str(path.dst), str(path.segments[0])) == ("fd01:b:1::1:0", "5f00:1:100:201:e000::")
    assert str(ours.oob(0)) == "fd02::1"


@pytest.mark.parametrize(
    ("networks", "complaint"),
    [
        ({"block": IPv6Network("fcbb:1::/32")}, "block: fcbb:1::/32 is not a /16"),
        ({"hosts": IPv6Network("fcbb:a::/32")}, "block fcbb::/16 and hosts fcbb:a::/32 overlap"),
    ],
)
def test_addresses__refuses(networks: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Addresses(**networks)
