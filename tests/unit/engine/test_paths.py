# SPDX-License-Identifier: Apache-2.0
"""Ports of a host, pairs of ports and EVs, as tables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from ipaddress import ip_address, ip_interface

import pytest
from msgspec.structs import replace

from mrc import limits
from mrc.engine import paths
from mrc.engine.paths import (
    LocalPort,
    PortSelection,
    RemotePort,
    payload_mtu,
)
from mrc.fabric.hostconfig import HostConfig, HostPath
from mrc.linux.rtnetlink import Interface

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
    "case",  # local | remote | plane>address of each pair
    [
        # one link, one subnet
        "10.0.1.1/24 | 10.0.1.2/24 | 1>10.0.1.2",
        # two links, matched by subnet although the peer numbers them in reverse
        "10.0.1.1/24 10.0.2.1/24 | 10.0.2.2/24 10.0.1.2/24 | 1>10.0.1.2 2>10.0.2.2",
        # two NICs in one subnet are two planes
        "10.0.1.1/24 10.0.1.2/24 | 10.0.1.3/24 10.0.1.4/24 | 1>10.0.1.3 2>10.0.1.4",
        # different subnets: by order
        "10.0.1.1/24 10.0.2.1/24 | 10.1.1.1/24 10.1.2.1/24 | 1>10.1.1.1 2>10.1.2.1",
        # a common subnet goes first, the rest by order
        "10.9.9.1/24 10.0.2.1/24 | 10.0.2.2/24 10.1.1.1/24 | 1>10.1.1.1 2>10.0.2.2",
        # the peer has fewer links: both local links reach its one
        "10.0.1.1/24 10.0.1.2/24 | 10.0.1.3/24 | 1>10.0.1.3 2>10.0.1.3",
        # this host has fewer links: its one reaches both
        "10.0.1.1/24 | 10.0.1.3/24 10.0.1.4/24 | 1>10.0.1.3 1>10.0.1.4",
        # a link left over without a common subnet: a running QP tries it over routers
        "10.0.1.1/24 10.7.7.1/24 | 10.0.1.3/24 | 1>10.0.1.3 late:2>10.0.1.3",
        # the same at the other end, then what two hosts may need when links die
        "10.0.1.1/24 10.0.2.1/24 | 10.1.1.1/24 10.1.2.1/24 10.1.3.1/24 |"
        " 1>10.1.1.1 2>10.1.2.1 late:1>10.1.3.1 late:1>10.1.2.1 late:2>10.1.1.1 late:2>10.1.3.1",
        # both IP versions: IPv6, and each interface once
        "a@2001:db8::1/64 a@10.0.1.1/24 | x@2001:db8::2/64 x@10.0.1.2/24 | 1>2001:db8::2",
        # IPv4 in a common subnet is better than IPv6 through a router
        "a@2001:db8::1/64 a@10.0.1.1/24 | x@2001:db9::2/64 x@10.0.1.2/24 | 2>10.0.1.2",
        # no IP version in common
        "10.0.1.1/24 | 2001:db8::2/64 | ",
        # an address that both hosts have (a container bridge) does not count as the peer's
        "172.17.0.1/16 10.0.1.1/24 | 172.17.0.1/16 10.0.1.2/24 | 2>10.0.1.2",
    ],
)
def test_pair(case: str) -> None:
    local, remote, expected = (part.split() for part in case.split("|"))
    pairs = paths.pair(local_ports(*local), remote_ports(*remote))
    soon = sorted((p for p in pairs if not p.late), key=lambda each: each.local.plane)
    shown = [f"{each.local.plane}>{each.remote.address.ip}" for each in soon]
    if any(name.startswith("late:") for name in expected):
        late = (each for each in pairs if each.late)
        shown += [f"late:{each.local.plane}>{each.remote.address.ip}" for each in late]
    assert shown == expected


def test_misfit__names_the_reason() -> None:
    local = local_ports("10.0.1.1/24", "fe80::1/64", "172.17.0.1/16", "b@10.0.2.1/24")
    remote = remote_ports("172.17.0.1/16", "10.0.9.2/24", "fe80::2/64", "c@10.0.3.2/24")
    reasons = [
        [paths.misfit(paths.PortPair(ours, theirs), local, remote) for theirs in remote]
        for ours in local
    ]
    both, version = "both hosts have this address", "no common IP version"
    apart = "link-local addresses of links without a common subnet"
    assert reasons == [
        [both, "", version, ""],
        [both, version, apart, version],
        [both] * 4,
        [both, "", version, ""],
    ]


def test_shares_network__of_another_interface_in_ipv4() -> None:
    ports = local_ports("10.0.1.1/24", "10.0.1.2/24", "10.0.2.1/24", "c@10.0.2.2/24", "fd00::1/64",
                        "fd00::2/64")  # fmt: skip
    shares = [paths.shares_network(port, ports) for port in ports]
    assert shares == [True, True, False, False, False, False]


def test_pair__both_hosts_find_the_same() -> None:
    rng = random.Random(1)
    for _ in range(200):
        one, two = (
            [
                f"{rng.choice('abc')}@10.{rng.randrange(3)}.{rng.randrange(2)}.{host + 2 * n}/24"
                for n in range(1, rng.randrange(2, 5))
            ]
            for host in (1, 2)
        )
        here = paths.pair(local_ports(*one), remote_ports(*two), first=True)
        there = paths.pair(local_ports(*two), remote_ports(*one), first=False)
        assert [(p.local.address, p.remote.address, p.late) for p in here] == [
            (p.remote.address, p.local.address, p.late) for p in there
        ]


def test_left_over__pairs_of_interfaces_that_no_other_reaches() -> None:
    local = local_ports("10.0.1.1/24", "10.0.2.1/24", "a@fd00::1/64")
    found = paths.pair(local, remote_ports("10.0.3.1/24", "a@fd00:1::1/64"))
    usual = [each for each in found if not each.late]
    others = [each for each in found if each.late]
    assert [each.local.nic for each in usual] == ["a"]
    assert [each.local.nic for each in paths.left_over(usual, others)] == ["b"]
    small = [replace(each, local=replace(each.local, mtu=256)) for each in others]
    assert paths.left_over(usual, small) == []


def test_numbered__the_first_pair_of_a_port_has_its_number() -> None:
    pairs = paths.pair(local_ports("10.0.1.1/24"), remote_ports("10.0.1.3/24", "10.0.1.4/24"))
    planes = paths.numbered(pairs, 16)
    assert {plane: str(each.remote.address.ip) for plane, each in planes.items()} == {
        1: "10.0.1.3", 2: "10.0.1.4"
    }  # fmt: skip
    assert sorted(paths.numbered(pairs, 16, taken=(1, 2))) == [3, 4]
    assert paths.numbered(pairs, 2, taken=(1,)).keys() == {2}  # the table is full


@pytest.mark.parametrize(
    ("local", "remote", "named", "expected", "spare"),
    [
        # an address in no subnet, beside that of the interface
        (["a@10.0.1.1/24", "a@2001:db8::1/64"], ["x@10.0.1.2/24", "x@2001:db9::9/128"],
         "2001:db8::1>2001:db9::9",
         ["10.0.1.1>10.0.1.2", "2001:db8::1>2001:db9::9"], ["10.0.1.1>10.0.1.2"]),
        # of two links, one has an alternative
        (["a@10.0.1.1/24", "b@10.0.2.1/24"],
         ["x@10.0.1.2/24", "y@10.0.2.2/24", "x@10.0.9.9/32"], "10.0.1.1>10.0.9.9",
         ["10.0.1.1>10.0.1.2", "10.0.1.1>10.0.9.9", "10.0.2.1>10.0.2.2"], ["10.0.1.1>10.0.1.2"]),
        # its IP version goes first, on all links
        (["a@10.0.1.1/24", "a@2001:db8:1::1/64", "b@10.0.2.1/24", "b@2001:db8:2::1/64"],
         ["x@10.0.1.2/24", "x@2001:db8:1::2/64", "y@10.0.2.2/24", "y@2001:db8:2::2/64"],
         "10.0.1.1>10.0.1.2", ["10.0.1.1>10.0.1.2", "10.0.2.1>10.0.2.2"], []),
        # the pair of the subnet is the named one
        (["a@10.0.1.1/24"], ["x@10.0.1.2/24"], "10.0.1.1>10.0.1.2", ["10.0.1.1>10.0.1.2"], []),
        # the peer is called by an address that is not its own: behind a forwarded port
        (["a@10.0.1.1/24"], ["x@10.0.2.2/24"], "10.0.1.1>192.0.2.1", ["10.0.1.1>10.0.2.2"], []),
    ],
)  # fmt: skip
def test_pair__the_named_one_is_among_them(
    local: list[str], remote: list[str], named: str, expected: list[str], spare: list[str]
) -> None:
    ours, theirs = map(ip_address, named.split(">"))
    pairs = [
        each
        for each in paths.pair(local_ports(*local), remote_ports(*remote), (ours, theirs))
        if not each.late
    ]
    found = [
        [">".join(map(str, each.addresses)) for each in some]
        for some in (pairs, [each for each in pairs if each.spare])
    ]
    assert [sorted(found[0]), found[1]] == [expected, spare]


def test_pair__link_local_addresses_may_be_on_any_link() -> None:
    pairs = paths.pair(
        local_ports("fe80::1/64", "fe80::2/64"), remote_ports("fe80::3/64", "fe80::4/64")
    )
    assert {(p.local.plane, str(p.remote.address.ip)) for p in pairs} == {
        (1, "fe80::3"), (1, "fe80::4"), (2, "fe80::3"), (2, "fe80::4")
    }  # fmt: skip


def test_pair__interfaces_of_one_ipv4_network() -> None:
    """Packets to their IPv4 addresses may come in at the wrong one, so link-local ports go first,
    and the named pair of IPv4 is a spare.
    """
    local = local_ports("a@10.0.0.1/24", "a@fe80::1/64")
    remote = remote_ports("x@10.0.0.3/24", "y@10.0.0.4/24", "x@fe80::3/64", "y@fe80::4/64")
    named = ip_address("10.0.0.1"), ip_address("10.0.0.3")
    soon = [each for each in paths.pair(local, remote, named) if not each.late]
    assert [(str(each.remote.address.ip), each.spare) for each in soon] == [
        ("fe80::3", False), ("fe80::4", False), ("10.0.0.3", True)
    ]  # fmt: skip
    assert paths.lacking_link_local(local[:1], remote) == ["a"]
    assert paths.lacking_link_local(local, remote) == []
    assert paths.lacking_link_local(local[:1], remote[:2]) == []


def test_common_mtu__leaves_room_for_what_may_join() -> None:
    local = local_ports("a@10.0.0.1/24")
    remote = remote_ports("x@10.0.0.3/24", "y@10.0.0.4/24")
    pairs = [
        replace(each, local=replace(each.local, mtu=1428)) for each in paths.pair(local, remote)
    ]
    pairs = [replace(each, remote=replace(each.remote, mtu=1428)) for each in pairs]
    assert paths.common_mtu(pairs, [], local, remote) == limits.MAX_MTU
    more = remote_ports("x@fe80::3/64", "y@fe80::4/64")
    assert paths.common_mtu(pairs, [], local, [*remote, *more]) == 1408


def test_loopback_pairs__by_order_in_one_version() -> None:
    local = local_ports("::1/128", "127.0.0.1/8", "127.0.0.2/8")
    remote = remote_ports("127.0.0.1/8", "127.0.0.3/8", "::1/128")
    pairs = paths.loopback_pairs(local, remote, 4)
    shown = [(p.local.plane, str(p.remote.address.ip)) for p in pairs]
    assert shown == [(2, "127.0.0.1"), (3, "127.0.0.3")]
    (pair,) = paths.loopback_pairs(local, remote, 6)
    assert (pair.local.plane, str(pair.remote.address.ip)) == (1, "::1")


# ---- EVs ------------------------------------------------------------------------------------


def test_pair_evs__ipv6_differ_in_the_flow_label_only() -> None:
    pairs = paths.pair(local_ports("2001:db8::1/64"), remote_ports("2001:db8::2/64"))
    evs = paths.pair_evs(paths.numbered(pairs, 16), {1: (40000,)}, 4791, 8, random.Random(1))
    assert len(evs) == 8
    assert {ev.attr.sport for ev in evs} == {40000}
    assert {ev.attr.tx_index for ev in evs} == {0}
    assert len({ev.attr.flow_label for ev in evs}) == 8
    assert all(0 < ev.attr.flow_label <= 0xFFFF for ev in evs)
    assert all(ev.attr.dport == 4791 and ev.attr.port == 1 for ev in evs)
    assert evs[0].name == "a>2001:db8::2#1"


def test_pair_evs__ipv4_differ_in_the_source_port() -> None:
    pairs = paths.pair(local_ports("10.0.1.1/24"), remote_ports("10.0.1.2/24"))
    sports = {1: tuple(range(40000, 40012))}
    evs = paths.pair_evs(paths.numbered(pairs, 16), sports, 4791, 8, random.Random(1))
    assert [(ev.attr.tx_index, ev.attr.sport) for ev in evs] == [(i, 40000 + i) for i in range(8)]
    assert {ev.attr.flow_label for ev in evs} == {0}


def test_pair_evs__pairs_of_one_ipv4_port_share_its_sockets() -> None:
    pairs = paths.pair(local_ports("10.0.1.1/24"), remote_ports("10.0.1.3/24", "10.0.1.4/24"))
    sports = {1: tuple(range(40000, 40012))}
    evs = paths.pair_evs(paths.numbered(pairs, 16), sports, 4791, 8, random.Random(1))
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
    sports = {1: (40000,), 2: (40001,)}
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
    pairs = [each for each in pairs if not each.late]
    sports = {1: (40000, 40001), 2: (40001, 40002)}
    evs = paths.pair_evs(paths.numbered(pairs, 16), sports, 4791, 8, random.Random(1))
    assert [(ev.attr.port, ev.attr.sport) for ev in evs] == [(1, 40000), (1, 40001), (2, 40002)]


def test_distinct__a_table_too_small_is_shared_between_the_planes() -> None:
    wanted = [
        HostPath(plane, f"t1:{plane}.{s}", ip_address(f"fd00:a:1::{plane}:{s:x}"))
        for plane in (1, 2)
        for s in range(700)
    ]
    sports = {1: (40000,), 2: (40001,)}
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


# ---- Ports of a host -----------------------------------------------------------------------------


def nic(name: str, *addresses: str, mtu: int = 1500, up: bool = True) -> Interface:
    return Interface(name, 7, mtu, up, tuple(ip_interface(address) for address in addresses))


LO = nic("lo", "127.0.0.1/8", "fd00:a::1/128", "::1/128", mtu=65536)
ETH0 = nic("eth0", "10.0.0.1/24", "2001:db8::1/64", "fe80::1/64")
ETH1 = nic("eth1", "10.0.1.1/24", mtu=9000)


@pytest.mark.parametrize(
    ("link_mtu", "version", "segments", "expected"),
    [
        (1500, 6, 0, 1408),
        (1500, 4, 0, 1428),
        (9000, 6, 0, 8908),
        (9000, 6, 1, 8844),
        (1501, 6, 0, 1408),  # a multiple of 4
        (65536, 6, 0, 16384),  # the largest that the engine supports
        (1280, 6, 0, 1188),
    ],
)
def test_payload_mtu(link_mtu: int, version: int, segments: int, expected: int) -> None:
    assert payload_mtu(link_mtu, version, segments=segments) == expected


def summary(ports: Sequence[LocalPort]) -> list[tuple[int, str, str]]:
    return [(port.plane, port.ifname or "-", str(port.address.ip)) for port in ports]


def test_interface_ports__second_addresses_come_behind_and_loopback_last() -> None:
    ports = PortSelection.of_interfaces([LO, ETH0, ETH1], (), 8).ports
    assert summary(ports) == [
        (0, "eth0", "2001:db8::1"),
        (0, "eth1", "10.0.1.1"),
        (0, "eth0", "10.0.0.1"),
        (0, "-", "::1"),
        (0, "-", "127.0.0.1"),
    ]
    assert [port.loopback for port in ports] == [False, False, False, True, True]
    assert [port.tx_sockets for port in ports] == [1, 12, 12, 1, 12]
    assert ports[1].mtu == 8928


def test_interface_ports__what_is_down_or_has_only_link_local_addresses_is_left_out() -> None:
    down = nic("eth2", "10.0.2.1/24", up=False)
    bare = nic("veth", "fe80::2/64")
    found = PortSelection.of_interfaces([LO, down, bare, ETH1], (), 1)
    assert "veth" not in {port.ifname for port in found.ports}
    assert not found.missing


def test_interface_ports__says_what_it_leaves_out() -> None:
    moves = replace(nic("eth3", "10.0.3.1/24", "10.0.3.9/24"),
                    deprecated=frozenset([ip_address("10.0.3.9")]))  # fmt: skip
    links = [LO, nic("eth2", up=False), nic("veth", "fe80::2/64"), nic("eth4"), moves, ETH1]
    assert PortSelection.of_interfaces(links, (), 1).unused == (
        "eth2 is down",
        "veth has only a link-local address",
        "eth4 has no address",
        "10.0.3.9 of eth3 is deprecated",
    )
    assert PortSelection.of_interfaces(links, ("eth1",), 1).unused == ()
    alone = PortSelection.of_interfaces([LO, nic("veth", "fe80::2/64")], (), 1)
    assert alone.unused == (), "it is used"


def test_interface_ports__link_local_addresses_of_a_host_without_others() -> None:
    links = [nic("eth2", "fe80::2/64"), nic("eth3", "fe80::3/64")]
    found = PortSelection.of_interfaces([LO, *links], (), 1)
    assert summary(found.ports)[:2] == [(0, "eth2", "fe80::2"), (0, "eth3", "fe80::3")]
    named = PortSelection.of_interfaces([LO, ETH0, *links], ["eth3", "eth0"], 1)
    assert summary(named.ports)[:2] == [(1, "eth3", "fe80::3"), (2, "eth0", "2001:db8::1")]


def test_interface_ports__an_address_in_use_stays_the_one_of_its_interface() -> None:
    two = nic("eth0", "2001:db8::2/64", "2001:db8::1/64", "10.0.0.2/24", "10.0.0.1/24")
    kept = frozenset({ip_address("2001:db8::1"), ip_address("10.0.0.1")})
    found = PortSelection.of_interfaces([two], (), 1, kept)
    assert [str(port.address.ip) for port in found.ports] == ["2001:db8::1", "10.0.0.1"]


def test_interface_ports__a_link_local_address_in_use_stays() -> None:
    """Although its interface is no longer one of two in a subnet, or has another address now."""
    eth0 = nic("eth0", "10.0.0.1/24", "fe80::1/64")
    eth1 = replace(nic("eth1", "10.0.0.2/24", "fe80::2/64"), index=8)
    two = PortSelection.of_interfaces([eth0, eth1], (), 1).ports
    kept = frozenset(port.address.ip for port in two)
    assert ip_address("fe80::1") in kept
    for wanted in ([], ["eth0", "eth1"]):
        found = PortSelection.of_interfaces([eth0, replace(eth1, up=False)], wanted, 1, kept)
        assert [str(port.address.ip) for port in found.ports] == ["10.0.0.1", "fe80::1"]
    more = nic("eth0", "fe80::1/64", "10.0.0.1/24", "2001:db8::1/64")
    found = PortSelection.of_interfaces([more], (), 1, kept)
    assert [(str(port.address.ip), port.deprecated) for port in found.ports] == [
        ("2001:db8::1", False), ("10.0.0.1", False), ("fe80::1", True)
    ]  # fmt: skip


def test_interface_ports__a_link_that_comes_to_a_host_with_link_local_addresses_only() -> None:
    links = [nic("eth2", "fe80::2/64"), nic("eth3", "fe80::3/64")]
    found = PortSelection.of_interfaces(links, (), 1, frozenset({ip_address("fe80::2")}))
    assert [port.ifname for port in found.ports] == ["eth2", "eth3"]


def deprecated(interface: Interface, *addresses: str) -> Interface:
    return replace(interface, deprecated=frozenset(map(ip_address, addresses)))


def test_interface_ports__a_deprecated_address_in_use_stays_beside_a_better_one() -> None:
    both = nic("eth0", "2001:db8::2/64", "2001:db8::1/64", "2001:db8::9/64", "10.0.0.1/24")
    both = deprecated(both, "2001:db8::1", "2001:db8::9")
    kept = frozenset(map(ip_address, ("2001:db8::1", "2001:db8::9", "10.0.0.1")))
    for wanted in ([], ["eth0"]):
        found = PortSelection.of_interfaces([both], wanted, 1, kept)
        assert [(str(port.address.ip), port.deprecated) for port in found.ports] == [
            ("2001:db8::2", False), ("10.0.0.1", False), ("2001:db8::1", True)
        ]  # fmt: skip


def test_interface_ports__a_deprecated_address_without_another() -> None:
    """That of the other IP version comes first."""
    eth0 = deprecated(nic("eth0", "2001:db8::1/64", "10.0.0.1/24"), "2001:db8::1")
    eth1 = deprecated(nic("eth1", "10.0.1.1/24"), "10.0.1.1")
    ports = PortSelection.of_interfaces([eth0, eth1], (), 1).ports
    assert [(str(port.address.ip), port.deprecated) for port in ports] == [
        ("10.0.0.1", False), ("10.0.1.1", True), ("2001:db8::1", True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["eth1", "eth0"], [(1, "eth1"), (2, "eth0"), (0, "eth0"), (0, "-"), (0, "-")]),
        (["eth9", "eth0"], [(2, "eth0"), (0, "eth0"), (0, "-"), (0, "-")]),
        (["10.0.0.1"], [(1, "eth0"), (0, "-"), (0, "-")]),
        (["127.0.0.1"], [(1, "-")]),
        (["127.0.0.1", "127.0.0.2"], [(1, "-"), (2, "-")]),
        (["lo"], [(1, "-"), (0, "-")]),
    ],
)
def test_interface_ports__wanted_ones_have_their_planes(
    wanted: list[str], expected: list[tuple[int, str]]
) -> None:
    found = PortSelection.of_interfaces([LO, ETH0, ETH1], wanted, 1)
    assert [(port.plane, port.ifname or "-") for port in found.ports] == expected
    assert found.reserved == len(wanted)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ("eth9", "no interface eth9; this host has lo, eth0, eth2, eth3"),
        ("10.9.9.9", "10.9.9.9 is not an address of this host"),
        ("eth2", "eth2 is down"),
        ("10.0.2.1", "eth2 (10.0.2.1) is down"),
        ("eth3", "eth3 has no address"),
    ],
)
def test_interface_ports__a_wanted_one_that_is_missing(wanted: str, complaint: str) -> None:
    nics = [LO, ETH0, nic("eth2", "10.0.2.1/24", up=False), nic("eth3")]
    found = PortSelection.of_interfaces(nics, [wanted], 1)
    assert found.missing == (complaint,)
    assert all(port.loopback for port in found.ports)


def test_interface_ports__weights() -> None:
    """All ports of an interface have it: those of both IP versions."""
    wanted, weights = ["eth1", "eth0"], {"eth0": 0, "10.0.1.1": 7}
    found = PortSelection.of_interfaces([LO, ETH0, ETH1], wanted, 1, weights=weights)
    assert {(port.nic, port.weight) for port in found.ports} == {
        ("eth1", 100), ("eth0", 0), ("lo", 100)
    }  # fmt: skip


def test_interface_ports__one_that_cannot_carry_a_packet_is_left_out() -> None:
    """MTU 327 leaves 252 bytes of payload with IPv4, 4 below the smallest packet."""
    small, least = nic("tun0", "10.0.7.1/24", mtu=327), nic("tun1", "10.0.8.1/24", mtu=328)
    tiny = nic("tun2", "10.0.9.1/24", mtu=68)
    found = PortSelection.of_interfaces([LO, small, ETH0, tiny, least], (), 1)
    names = [port.ifname for port in found.ports if not port.loopback]
    assert names == ["eth0", "tun1", "eth0"]
    lines = tuple(f"{each} carries too little: raise its MTU to 328"
                  for each in ("tun0 (10.0.7.1)", "tun2 (10.0.9.1)"))  # fmt: skip
    assert (found.small, found.missing) == (lines, ())
    for wanted in ("tun0", "10.0.7.1"):
        found = PortSelection.of_interfaces([LO, small, ETH0], ["eth0", wanted], 1)
        assert [port.plane for port in found.ports if not port.loopback] == [1, 0]
        assert (found.small, found.missing) == ((), lines[:1])
    lo = nic("lo", "127.0.0.1/8", mtu=68)
    assert PortSelection.of_interfaces([lo], (), 1).ports == ()


def test_interface_ports__more_than_the_engine_has() -> None:
    nics = [nic(f"eth{i}", f"10.0.{i}.1/24") for i in range(33)]
    ports = PortSelection.of_interfaces([LO, *nics], (), 1).ports
    assert [port.nic for port in ports] == [f"eth{i}" for i in range(30)] + ["lo", "lo"]


HOST = """
schema = 1
host = "h0"
source = "srv6"
[[ports]]
ifname = "p1"
address = "fd00:a:0::1"
mtu = 9000
[[ports]]
ifname = "p2"
address = "fd00:a:0::1"
mtu = 9000
"""


P1, P2 = nic("p1", mtu=9000), nic("p2", mtu=9000)
SRV6_LO = nic("lo", "127.0.0.1/8", "fd00:a::1/128", "::1/128", mtu=65536)


def test_srv6_ports__take_any_address_and_count_the_encapsulation() -> None:
    ports = PortSelection.of_srv6(HostConfig.parse(HOST, "h0.toml"), [SRV6_LO, P1, P2]).ports
    assert summary(ports)[:2] == [(1, "p1", "fd00:a::1"), (2, "p2", "fd00:a::1")]
    assert [port.any_address for port in ports] == [True, True, False, False]
    assert [port.mtu for port in ports] == [8844, 8844, 16384, 16384]


def test_srv6_ports__a_path_with_two_segments_has_a_longer_encapsulation() -> None:
    peer = """
[peers.h1]
oob = "fd00:c::2"
sources = ["fd00:a:1::1"]
[[peers.h1.paths]]
plane = 1
name = "t1:1.0"
dst = "fd00:a:1::1:0"
segments = ["fcbb:1:100:201::", "fcbb:1:e000::"]
usids = ["0100", "0201", "e000"]
"""
    ports = PortSelection.of_srv6(HostConfig.parse(HOST + peer, "h0.toml"), [SRV6_LO, P1, P2]).ports
    assert ports[0].mtu == 8844 - 16


def test_srv6_ports__loopback_is_tied_to_share_the_udp_port() -> None:
    ports = PortSelection.of_srv6(HostConfig.parse(HOST, "h0.toml"), [SRV6_LO, P1, P2]).ports
    assert [(port.ifname, port.loopback) for port in ports[2:]] == [("lo", True), ("lo", True)]


def test_srv6_ports__those_that_are_usable_keep_their_planes() -> None:
    host = HostConfig.parse(HOST, "h0.toml")
    found = PortSelection.of_srv6(host, [SRV6_LO, nic("p1", up=False), P2])
    assert summary(found.ports)[0] == (2, "p2", "fd00:a::1")
    assert found.reserved == 2
    assert found.missing == ("p1 is down",)
    assert PortSelection.of_srv6(host, [SRV6_LO, P2]).missing == ("no interface p1",)
    away = nic("lo", "127.0.0.1/8")
    assert (
        PortSelection.of_srv6(host, [away, P1, P2]).missing
        == ("fd00:a::1 is not an address of this host",) * 2
    )


def test_srv6_ports__wanted_ones_keep_their_planes() -> None:
    host = HostConfig.parse(HOST, "h0.toml")
    found = PortSelection.of_srv6(host, [SRV6_LO, P1, P2], ["p2", "p9"])
    assert [(port.plane, port.nic) for port in found.ports if not port.loopback] == [(2, "p2")]
    assert found.reserved == 2
    assert found.missing == ("p9 is no port of the host configuration, which has p1, p2",)


def test_srv6_ports__weights() -> None:
    """Those of the host configuration, or what a caller says instead."""
    text = HOST.replace('"p2"', '"p2"\nweight = 0')
    host = HostConfig.parse(text, "h0.toml")
    for weights, expected in (({}, [100, 0]), ({"p2": 50}, [100, 50]), ({"p1": 0}, [0, 0])):
        ports = PortSelection.of_srv6(host, [SRV6_LO, P1, P2], (), weights).ports
        assert [port.weight for port in ports if not port.loopback] == expected
