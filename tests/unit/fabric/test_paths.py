# SPDX-License-Identifier: Apache-2.0
"""Pairs of ports and EVs, as tables."""

from __future__ import annotations

import random
from ipaddress import ip_address, ip_interface

import pytest

from mrc.fabric import paths
from mrc.fabric.hostconfig import HostPath
from mrc.fabric.paths import LocalPort, RemotePort, SourcePorts

# ---- Pairs ----------------------------------------------------------------------------------


def local_ports(*addresses: str) -> list[LocalPort]:
    """Ports of nics a, b, ...; 'a:ADDRESS' puts a second address on nic a."""
    named = [split_nic(i, address) for i, address in enumerate(addresses)]
    return [
        LocalPort(plane, name, ip_interface(address), 1408, ifname=name)
        for plane, (name, address) in enumerate(named, start=1)
    ]


def remote_ports(*addresses: str) -> list[RemotePort]:
    named = [split_nic(i, address) for i, address in enumerate(addresses)]
    return [RemotePort(name, ip_interface(address), (50000,), 1408) for name, address in named]


def split_nic(index: int, address: str) -> tuple[str, str]:
    name, found, rest = address.partition("@")
    return (name, rest) if found else (chr(ord("a") + index), address)


@pytest.mark.parametrize(
    ("local", "remote", "expected"),
    [
        # one link, one subnet
        (["10.0.1.1/24"], ["10.0.1.2/24"], [(1, "10.0.1.2")]),
        # two links, matched by subnet although the peer numbers them in reverse
        (
            ["10.0.1.1/24", "10.0.2.1/24"],
            ["10.0.2.2/24", "10.0.1.2/24"],
            [(1, "10.0.1.2"), (2, "10.0.2.2")],
        ),
        # two NICs in one subnet are two planes
        (
            ["10.0.1.1/24", "10.0.1.2/24"],
            ["10.0.1.3/24", "10.0.1.4/24"],
            [(1, "10.0.1.3"), (2, "10.0.1.4")],
        ),
        # different subnets: by order
        (
            ["10.0.1.1/24", "10.0.2.1/24"],
            ["10.1.1.1/24", "10.1.2.1/24"],
            [(1, "10.1.1.1"), (2, "10.1.2.1")],
        ),
        # a common subnet goes first, the rest by order
        (
            ["10.9.9.1/24", "10.0.2.1/24"],
            ["10.0.2.2/24", "10.1.1.1/24"],
            [(1, "10.1.1.1"), (2, "10.0.2.2")],
        ),
        # the peer has fewer links: both local links reach its one
        (
            ["10.0.1.1/24", "10.0.1.2/24"],
            ["10.0.1.3/24"],
            [(1, "10.0.1.3"), (2, "10.0.1.3")],
        ),
        # this host has fewer links: its one reaches both
        (
            ["10.0.1.1/24"],
            ["10.0.1.3/24", "10.0.1.4/24"],
            [(1, "10.0.1.3"), (1, "10.0.1.4")],
        ),
        # a link left over without a common subnet stays unused
        (["10.0.1.1/24", "10.7.7.1/24"], ["10.0.1.3/24"], [(1, "10.0.1.3")]),
        # both IP versions: IPv6, and each interface once
        (
            ["a@2001:db8::1/64", "a@10.0.1.1/24"],
            ["x@2001:db8::2/64", "x@10.0.1.2/24"],
            [(1, "2001:db8::2")],
        ),
        # IPv4 in a common subnet is better than IPv6 through a router
        (
            ["a@2001:db8::1/64", "a@10.0.1.1/24"],
            ["x@2001:db9::2/64", "x@10.0.1.2/24"],
            [(2, "10.0.1.2")],
        ),
        # no IP version in common
        (["10.0.1.1/24"], ["2001:db8::2/64"], []),
        # an address that both hosts have (a container bridge) does not count as the peer's
        (
            ["172.17.0.1/16", "10.0.1.1/24"],
            ["172.17.0.1/16", "10.0.1.2/24"],
            [(2, "10.0.1.2")],
        ),
    ],
)
def test_pair(local: list[str], remote: list[str], expected: list[tuple[int, str]]) -> None:
    pairs = paths.pair(local_ports(*local), remote_ports(*remote))
    assert [(port.plane, str(other.address.ip)) for port, other in pairs] == expected


def test_pair__link_local_addresses_may_be_on_any_link() -> None:
    pairs = paths.pair(
        local_ports("fe80::1/64", "fe80::2/64"), remote_ports("fe80::3/64", "fe80::4/64")
    )
    assert {(port.plane, str(other.address.ip)) for port, other in pairs} == {
        (1, "fe80::3"), (1, "fe80::4"), (2, "fe80::3"), (2, "fe80::4")
    }  # fmt: skip


def test_loopback_pairs__by_order_in_one_version() -> None:
    local = local_ports("::1/128", "127.0.0.1/8", "127.0.0.2/8")
    remote = remote_ports("127.0.0.1/8", "127.0.0.3/8", "::1/128")
    pairs = paths.loopback_pairs(local, remote, 4)
    assert [(p.plane, str(r.address.ip)) for p, r in pairs] == [(2, "127.0.0.1"), (3, "127.0.0.3")]
    assert [(p.plane, str(r.address.ip)) for p, r in paths.loopback_pairs(local, remote, 6)] == [
        (1, "::1")
    ]


# ---- EVs ------------------------------------------------------------------------------------


def test_pair_evs__ipv6_differ_in_the_flow_label_only() -> None:
    pairs = paths.pair(local_ports("2001:db8::1/64"), remote_ports("2001:db8::2/64"))
    evs = paths.pair_evs(pairs, SourcePorts({1: (40000,)}), 4791, 8, random.Random(1))
    assert len(evs) == 8
    assert {ev.attr.sport for ev in evs} == {40000}
    assert {ev.attr.tx_index for ev in evs} == {0}
    assert len({ev.attr.flow_label for ev in evs}) == 8
    assert all(0 < ev.attr.flow_label <= 0xFFFF for ev in evs)
    assert all(ev.attr.dport == 4791 and ev.attr.port == 1 for ev in evs)
    assert evs[0].name == "a>2001:db8::2#1"


def test_pair_evs__ipv4_differ_in_the_source_port() -> None:
    pairs = paths.pair(local_ports("10.0.1.1/24"), remote_ports("10.0.1.2/24"))
    sports = SourcePorts({1: tuple(range(40000, 40008))})
    evs = paths.pair_evs(pairs, sports, 4791, 8, random.Random(1))
    assert [(ev.attr.tx_index, ev.attr.sport) for ev in evs] == [(i, 40000 + i) for i in range(8)]
    assert {ev.attr.flow_label for ev in evs} == {0}


def test_pair_evs__pairs_of_one_ipv4_port_share_its_sockets() -> None:
    pairs = paths.pair(local_ports("10.0.1.1/24"), remote_ports("10.0.1.3/24", "10.0.1.4/24"))
    sports = SourcePorts({1: tuple(range(40000, 40008))})
    evs = paths.pair_evs(pairs, sports, 4791, 8, random.Random(1))
    by_target: dict[str, list[int]] = {str(ev.attr.destination): [] for ev in evs}
    for ev in evs:
        by_target[str(ev.attr.destination)].append(ev.attr.tx_index)
    assert by_target == {"10.0.1.3": [0, 2, 4, 6], "10.0.1.4": [1, 3, 5, 7]}


SRV6_PORTS = [
    LocalPort(plane, f"p{plane}", ip_interface("fd00:a::1/128"), 8844) for plane in (1, 2)
]


def test_srv6_evs__one_a_path() -> None:
    wanted = [
        HostPath(plane, f"t1:{plane}.{s}", ip_address(f"fd00:a:1::{plane}:{s}"), ("c",), ("0100",))
        for plane in (1, 2)
        for s in (0, 1)
    ]
    sports = SourcePorts({1: (40000,), 2: (40001,)})
    evs = paths.srv6_evs(wanted, SRV6_PORTS, sports, 4792, random.Random(1))
    assert [(ev.attr.port, ev.name, str(ev.attr.destination), ev.attr.sport) for ev in evs] == [
        (1, "t1:1.0", "fd00:a:1::1:0", 40000),
        (1, "t1:1.1", "fd00:a:1::1:1", 40000),
        (2, "t1:2.0", "fd00:a:1::2:0", 40001),
        (2, "t1:2.1", "fd00:a:1::2:1", 40001),
    ]
    assert all(str(ev.attr.source) == "fd00:a::1" for ev in evs)
    assert evs[0].usids == ("0100",)


def test_distinct__an_ev_of_the_same_32_bits_is_dropped() -> None:
    pairs = paths.pair(
        local_ports("10.0.1.1/24", "10.0.2.1/24"), remote_ports("10.0.1.2/24", "10.0.2.2/24")
    )
    sports = SourcePorts({1: (40000, 40001), 2: (40001, 40002)})
    evs = paths.pair_evs(pairs, sports, 4791, 8, random.Random(1))
    assert [(ev.attr.port, ev.attr.sport) for ev in evs] == [(1, 40000), (1, 40001), (2, 40002)]


def test_distinct__a_table_too_small_is_shared_between_the_planes() -> None:
    wanted = [
        HostPath(plane, f"t1:{plane}.{s}", ip_address(f"fd00:a:1::{plane}:{s:x}"))
        for plane in (1, 2)
        for s in range(700)
    ]
    sports = SourcePorts({1: (40000,), 2: (40001,)})
    evs = paths.srv6_evs(wanted, SRV6_PORTS, sports, 4791, random.Random(1))
    assert [sum(ev.attr.port == plane for ev in evs) for plane in (1, 2)] == [512, 512]


def test_peer_sources__each_once_and_no_more_than_the_engine_takes() -> None:
    one, two = ip_address("10.0.1.1"), ip_address("10.0.1.2")
    sources = paths.peer_sources([(one, [1, 2]), (one, [2]), (two, [2])])
    assert [(str(s.address), s.sport) for s in sources] == [
        ("10.0.1.1", 1),
        ("10.0.1.1", 2),
        ("10.0.1.2", 2),
    ]
    assert len(paths.peer_sources([(one, range(1, 1000))])) == 256
