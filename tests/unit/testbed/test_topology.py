# SPDX-License-Identifier: Apache-2.0
"""Addresses, uSIDs and paths of small fabrics, written out."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network
from itertools import permutations
from typing import Any

import pytest
from msgspec import structs

from mrc.cli.paths import PathCheck, Suspect, links_on, suspects
from mrc.fabric.hostconfig import HostPath
from mrc.testbed import topology
from mrc.testbed.topology import Addresses, Path, Topology

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
    host, t1 = topology.MAX_HOSTS - 1, topology.Topology.MAX_T1 - 1
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


SMALL = {"hosts": 2, "planes": 4, "t1": 2}
THREE_TIERS = {"hosts": 12, "planes": 2, "t0": 6, "t1": 6, "pods": 3, "t2": 4}


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        (SMALL | {"hosts": 1}, "hosts is 1, not in 2..4096"),
        (SMALL | {"hosts": 4097}, "hosts is 4097"),
        (SMALL | {"planes": 0}, "planes is 0, not in 1..64"),
        (SMALL | {"planes": 65}, "planes is 65"),
        (SMALL | {"t1": 0}, "t1 is 0, not in 1..256"),
        (SMALL | {"t1": 257}, "t1 is 257"),
        (SMALL | {"hosts": 4, "t0": 3}, "hosts is 4, not a multiple of t0"),
        (SMALL | {"t0": 3}, "t0 is 3, not in 1..2"),
        (THREE_TIERS | {"pods": 1}, "t2 is 4 with one pod"),
        (THREE_TIERS | {"pods": 4}, r"t0 is 6, not a multiple of pods \(4\)"),
        (THREE_TIERS | {"t1": 7}, r"t1 is 7, not a multiple of pods \(3\)"),
        (THREE_TIERS | {"t2": 3}, r"t2 is 3, not a multiple of the T1s of a pod \(2\)"),
        (THREE_TIERS | {"t2": 0}, "pods is 3 without t2"),
        (THREE_TIERS | {"t2": 5000}, r"t2 is 5000, not in 0\.\.4096"),
        (THREE_TIERS | {"t1": 900}, "t1 is 900, more than 256 in each of 3 pods"),
    ],
)
def test_topology__refuses(numbers: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Topology(**numbers)


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


# ---- Three tiers: 3 pods of 2 T0s and 2 T1s, 4 T2s, 2 hosts below each T0 ------------------------


PODS = Topology(hosts=12, planes=2, t0=6, t1=6, pods=3, t2=4)


def test_paths__one_of_each_kind() -> None:
    far = PODS.paths(0, 7)[7]
    assert far == Path(
        plane=2,
        name="t2:2.3",
        dst=PODS.addresses.on_path(7, 2, 3),
        segments=(topology.carrier(PODS.addresses.locator_block(2), far.usids),),
        usids=(0x3001, 0x2003, 0x3003, 0x0203, 0xE001),
    )
    in_pod = PODS.paths(5, 7)[1]
    assert (in_pod.name, in_pod.usids) == ("t1:1.3", (0x3003, 0x0203, 0xE001))
    assert [path.usids for path in PODS.paths(6, 7)] == [(0xE001,)] * 2


def walk(src: int, path: Path) -> list[str]:
    """The links that a packet takes: each switch goes by the next uSID."""
    at, links = PODS.t0_of(src), [f"link:h{src}.{path.plane}"]
    name = f"t0:{path.plane}.{at}"
    for usid in path.usids[:-1]:
        there = HostPath.switch_of(path.plane, usid)
        target = PODS.target(f"{name}>{there}")  # raises if there is no such link
        links.append(str(target.both))
        name = there
    host = PODS.hosts_below(int(name.split(".")[1]))[path.usids[-1] - 0xE000]
    return [*links, f"link:h{host}.{path.plane}"]


def test_paths__lead_over_links_that_exist_to_their_host() -> None:
    every = {str(link) for link in PODS.every_link()}
    for src, dst in permutations(range(12), 2):
        paths = PODS.paths(src, dst)
        near, pod = PODS.are_near(src, dst), PODS.pod_of(src) == PODS.pod_of(dst)
        assert len(paths) == 2 * (1 if near else 2 if pod else 4)
        assert len({path.usids for path in paths if path.plane == 1}) == len(paths) // 2
        assert len({path.dst for path in paths}) == len(paths)
        for path in paths:
            links = walk(src, path)
            assert every.issuperset(links) and links[-1] == f"link:h{dst}.{path.plane}"
            assert len(path.segments) == 1  # one carrier


def test_has_path__is_what_the_links_say() -> None:
    """Any absent link removes the paths that cross it, and no others."""
    for name in ("link:h7.1", "uplink:1.3.3", "core:1.3.1", "core:1.1.3", "core:2.4.2"):
        left = structs.replace(PODS, absent=(name,))
        for src, dst in permutations((0, 5, 7, 9), 2):
            gone = {path.usids for path in PODS.paths(src, dst) if name in walk(src, path)}
            kept = [path for path in PODS.paths(src, dst) if name not in walk(src, path)]
            assert list(left.paths(src, dst)) == kept, (name, src, dst, gone)
            assert set(left.planes_between(src, dst)) == {path.plane for path in kept}


# ---- uSIDs and carriers --------------------------------------------------------------------------


BLOCK = IPv6Network("fcbb:1::/32")

CARRIERS = [
    ((0x0100,), "fcbb:1:100::"),
    ((0x0100, 0x0201, 0xE000), "fcbb:1:100:201:e000::"),
    ((1, 2, 3, 4, 5, 0xFFFF), "fcbb:1:1:2:3:4:5:ffff"),
]


@pytest.mark.parametrize(("usids", "carrier"), CARRIERS)
def test_pack__puts_the_first_usid_first(usids: tuple[int, ...], carrier: str) -> None:
    assert topology.carrier(BLOCK, usids) == IPv6Address(carrier)


@pytest.mark.parametrize(
    ("usids", "complaint"),
    [
        ((), "1 to 6 uSIDs, not 0"),
        ((1,) * 7, "1 to 6 uSIDs, not 7"),
        ((0x100, 0), "uSID 0x0"),
        ((0x10000,), "uSID 0x10000"),
    ],
)
def test_pack__refuses_what_does_not_fit(usids: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        topology.carrier(BLOCK, usids)


def test_pack__refuses_a_block_of_another_length() -> None:
    with pytest.raises(ValueError, match="not a /32"):
        topology.carrier(IPv6Network("fcbb:1::/48"), (1,))


def test_segments__needs_a_second_carrier_for_the_seventh_usid() -> None:
    assert [str(each) for each in topology.segments(BLOCK, range(1, 8))] == [
        "fcbb:1:1:2:3:4:5:6",
        "fcbb:1:7::",
    ]


def test_segments__with_few_usids_in_each_carrier() -> None:
    found = topology.segments(BLOCK, (0x100, 0x201, 0xE000), 2)
    assert [str(each) for each in found] == ["fcbb:1:100:201::", "fcbb:1:e000::"]


def test_segments__refuses_none() -> None:
    with pytest.raises(ValueError, match="requires at least one uSID"):
        topology.segments(BLOCK, ())


def test_locator__is_the_block_and_one_usid() -> None:
    assert ADDRESSES.locator(1, 0x201) == IPv6Network("fcbb:1:201::/48")


def test_usid_words__have_four_digits() -> None:
    assert PODS.paths(0, 7)[7].usid_words == ("3001", "2003", "3003", "0203", "e001")


# ---- Links at fault, from one host's paths to others ---------------------------------------------


FABRIC = Topology(hosts=4, planes=2, t0=2, t1=2)


def observed(*failed: str, peers: tuple[int, ...] = (2,)) -> list[PathCheck]:
    """The paths from h0 to peers. A failed path is named as `h2 t1:1.0`, or by a link of it."""
    found = []
    for peer in peers:
        for path in FABRIC.paths(0, peer):
            links = links_on(path.plane, path.name, path.usid_words, f"h{peer}")
            works = not {f"h{peer} {path.name}", *links} & set(failed)
            found.append(PathCheck(links, works))
    return found


def test_links_of__a_path() -> None:
    assert observed()[1].links == (
        "this host's link of plane 1", "uplink to t1:1.1", "t1:1.1>t0:1.1", "h2's link of plane 1"
    )  # fmt: skip
    assert observed(peers=(1,))[0].links == (
        "this host's link of plane 1", "h1's link of plane 1"
    )  # fmt: skip
    near = links_on(1, "eth0>10.0.0.2#3", (), "peer")
    assert near == ("eth0 of this host", "10.0.0.2 of peer")


@pytest.mark.parametrize(
    ("failed", "peers", "expected"),
    [
        ((), (2,), []),
        (("h2 t1:1.0",), (2,), [Suspect(("uplink to t1:1.0", "t1:1.0>t0:1.1"), 1, 0)]),
        (
            ("this host's link of plane 2",), (2,),
            [Suspect(("this host's link of plane 2", "h2's link of plane 2"), 2, 0)],
        ),
        # Other peers tell the ends apart.
        (
            ("this host's link of plane 2",), (1, 2, 3),
            [Suspect(("this host's link of plane 2",), 5, 0)],
        ),
        (("h3's link of plane 1",), (1, 2, 3), [Suspect(("h3's link of plane 1",), 2, 0)]),
        (
            ("uplink to t1:1.1", "h3's link of plane 2"), (1, 2, 3),
            [
                Suspect(("uplink to t1:1.1", "t1:1.1>t0:1.1"), 2, 0),
                Suspect(("h3's link of plane 2",), 2, 0),
            ],
        ),
        # Every link of the failed path carries a path that works: only some packets are hit.
        (
            ("h2 t1:1.0",), (2, 3),
            [Suspect(("uplink to t1:1.0", "t1:1.0>t0:1.1", "h2's link of plane 1"), 1, 1)],
        ),
    ],
)  # fmt: skip
def test_suspects__explain_the_failed_paths(
    failed: tuple[str, ...], peers: tuple[int, ...], expected: list[Suspect]
) -> None:
    assert suspects(observed(*failed, peers=peers)) == expected


def test_locate__names_the_link_of_three_tiers() -> None:
    def observed(dead: str) -> list[PathCheck]:
        found = []
        for peer in (3, 7, 9):
            for path in PODS.paths(0, peer):
                links = links_on(path.plane, path.name, path.usid_words, f"h{peer}")
                found.append(PathCheck(links, dead not in links))
        return found

    assert links_on(1, "t2:1.3", ["3001", "2003", "3003", "0203", "e001"], "h7") == (
        "this host's link of plane 1", "uplink to t1:1.1", "t1:1.1>t2:1.3", "t2:1.3>t1:1.3",
        "t1:1.3>t0:1.3", "h7's link of plane 1",
    )  # fmt: skip
    for dead in ("t2:1.3>t1:1.3", "t1:1.1>t2:1.3", "uplink to t1:2.0"):
        (suspect, *others) = suspects(observed(dead))
        assert dead in suspect.links and not others
