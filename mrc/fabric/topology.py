# SPDX-License-Identifier: Apache-2.0
"""The fabric as data: planes, T0s, T1s and hosts, their addresses and uSIDs, and every path.

Pure. Planes are numbered from 1, like the ports in them; hosts, T0s and T1s from 0. All planes have
the same numbers of T0s and T1s, and every T0 has an uplink to every T1, except for links that are
absent. The hosts are spread over the T0s in order, the same number below each:

    h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2    P and S select a path: host, T0, T1 S of
    h1 -+           +-- t1:P.S --+           +- h3    plane P, T0, host. Below one T0 (h0 and h1)
                                                      P alone selects it

Default addresses (numbers inside addresses are hex):
    fcbb:P::/32          locator block of plane P, the prefix of its carriers
    0100 + S             uSID of T1 S: shift; the next uSID names the T0 below
    0200 + N             uSID of T0 N: shift; the next uSID names the port to the host
    e000 + K             uSID of port K of any T0, and of the host behind it: end of the carrier
    fd00:a:H::/64        prefix of host H, the same in all planes; H owns every address in it
    fd00:a:H::1          address of host H on all planes (ECMP), the source of its packets
    fd00:a:H::P:S        address of host H on path S of plane P: names the EV to the sender
    fd00:a:H::P:0        also the address of host H in plane P, for programs that are not mrc
    fd00:c::(H+1)        address of host H on the management network, for the OOB exchange
    100.64.0.0 + H + 1   the same for programs that know only IPv4
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Network
from itertools import combinations
from typing import ClassVar

from msgspec import Struct, field, structs

from mrc.fabric import srv6

MAX_HOSTS = 4096
MAX_PLANES = 64
MAX_T1 = 256

PATH_USIDS = 3  # of the longest path: T1, T0, host
HOST_USID = 0xE000
_T1_USID = 0x0100
T0_USID = 0x0200

_BLOCK = IPv6Network("fcbb::/16")
_HOSTS = IPv6Network("fd00:a::/32")
_MANAGEMENT = IPv6Network("fd00:c::/64")
_MANAGEMENT_IPV4, _MANAGEMENT_IPV4_BITS = IPv4Address("100.64.0.0"), 10


class Path(Struct, frozen=True):
    """One path from a host to another."""

    plane: int
    name: str
    """of the T1, or of the T0 if both hosts are below it"""
    dst: IPv6Address
    """destination address inside the peer's prefix; the sender's route for it picks the path"""
    segments: tuple[IPv6Address, ...]
    usids: tuple[int, ...]


class AddressesError(ValueError):
    """Networks that do not fit."""

    def __init__(self, keys: tuple[str, ...], text: str) -> None:
        super().__init__(f"{keys[0]}: {text}" if len(keys) == 1 else text)
        self.keys = keys
        self.text = text


class Addresses(Struct, frozen=True):
    """The networks from which a fabric takes its addresses."""

    block: IPv6Network = _BLOCK
    """contains the locator block of each plane"""
    hosts: IPv6Network = _HOSTS
    """contains the prefix of each host"""
    management: IPv6Network = _MANAGEMENT
    carrier_usids: int = srv6.USIDS_PER_CARRIER
    """uSIDs that a carrier holds; the others of a path go into an SRH"""

    def __post_init__(self) -> None:
        for name, length in (("block", 16), ("hosts", 32), ("management", 64)):
            network: IPv6Network = getattr(self, name)
            if network.prefixlen != length:
                raise AddressesError((name,), f"{network} is not a /{length}")
        networks = {"block": self.block, "hosts": self.hosts, "management": self.management}
        for (one, network), (two, other) in combinations(networks.items(), 2):
            if network.overlaps(other):
                overlap = f"{one} {network} and {two} {other} overlap"
                raise AddressesError((one, two), overlap)

    def locator_block(self, plane: int) -> IPv6Network:
        return _inside(self.block, plane << 96, srv6.BLOCK_BITS)

    def host_prefix(self, host: int) -> IPv6Network:
        return _inside(self.hosts, host << 80, 64)

    def host(self, host: int) -> IPv6Address:
        return self.host_prefix(host).network_address + 1

    def on_path(self, host: int, plane: int, path: int) -> IPv6Address:
        """A host's address on a path. Planes count from 1, so it differs from the host's own."""
        return self.host_prefix(host).network_address + (plane << 16 | path)

    def in_plane(self, host: int, plane: int) -> IPv6Address:
        """A host's address in a plane, for programs that select a path by address."""
        return self.on_path(host, plane, 0)

    def oob(self, host: int) -> IPv6Address:
        return self.management.network_address + host + 1

    def oob_ipv4(self, host: int) -> IPv4Interface:
        return IPv4Interface((_MANAGEMENT_IPV4 + host + 1, _MANAGEMENT_IPV4_BITS))


class Topology(Struct, frozen=True):
    """The numbers of hosts, planes and switches."""

    hosts: int
    planes: int
    t1: int
    """T1s per plane"""
    t0: int = 0
    """T0s per plane; 0: one for each host"""
    addresses: Addresses = field(default_factory=Addresses)
    absent: tuple[str, ...] = ()
    """names of links that do not exist, in order; a host without a link does not exist either"""
    max_hosts: ClassVar[int] = MAX_HOSTS

    def __post_init__(self) -> None:
        _check("hosts", self.hosts, 2, self.max_hosts)
        _check("planes", self.planes, 1, MAX_PLANES)
        _check("t1", self.t1, 1, MAX_T1)
        structs.force_setattr(self, "t0", self.t0 or self.hosts)
        _check("t0", self.t0, 1, self.hosts)
        if self.hosts % self.t0:
            raise ValueError(f"hosts is {self.hosts}, not a multiple of t0 ({self.t0})")

    def host_numbers(self) -> Sequence[int]:
        return _hosts_with_links(self) if self.absent else range(self.hosts)

    def plane_numbers(self) -> range:
        return range(1, self.planes + 1)

    def t0_numbers(self) -> range:
        return range(self.t0)

    def t1_numbers(self) -> range:
        return range(self.t1)

    def has_link(self, host: int, plane: int) -> bool:
        return not self.absent or host_link(host, plane) not in _set_of(self.absent)

    def has_uplink(self, plane: int, t0: int, t1: int) -> bool:
        return not self.absent or uplink(plane, t0, t1) not in _set_of(self.absent)

    def planes_of(self, host: int) -> Sequence[int]:
        """The planes in which a host has a link."""
        return [plane for plane in self.plane_numbers() if self.has_link(host, plane)]

    def plane_addresses(self, host: int) -> tuple[IPv6Address, ...]:
        """A host's address in each of its planes."""
        return tuple(self.addresses.in_plane(host, plane) for plane in self.planes_of(host))

    @property
    def hosts_per_t0(self) -> int:
        return self.hosts // self.t0

    def t0_of(self, host: int) -> int:
        """The T0 above a host, the same in every plane."""
        return host // self.hosts_per_t0

    def hosts_below(self, t0: int) -> range:
        return range(t0 * self.hosts_per_t0, (t0 + 1) * self.hosts_per_t0)

    def host_usid(self, host: int) -> int:
        return HOST_USID + host % self.hosts_per_t0

    def paths(self, src: int, dst: int) -> tuple[Path, ...]:
        """Every path from a host to another, plane by plane."""
        paths = self.paths_to(dst, near=self.are_near(src, dst))
        return tuple(paths[number] for number in self.present(src, dst))

    def paths_to(self, dst: int, *, near: bool) -> tuple[Path, ...]:
        """Every path to a host, from all hosts below its T0 (`near`) or from all others, as if no
        link were absent.
        """
        return _paths(self, dst, near)

    def present(self, src: int, dst: int) -> Sequence[int]:
        """Which of `paths_to` exist, by their place."""
        in_plane = 1 if self.are_near(src, dst) else self.t1
        every = range(self.planes * in_plane)
        if not self.absent:
            return every
        return [i for i in every if self.has_path(src, dst, i // in_plane + 1, i % in_plane)]

    def has_path(self, src: int, dst: int, plane: int, number: int) -> bool:
        """Whether a path exists; its number is that of its T1, or 0 below one T0."""
        if not (self.has_link(src, plane) and self.has_link(dst, plane)):
            return False
        return self.are_near(src, dst) or all(
            self.has_uplink(plane, self.t0_of(host), number) for host in (src, dst)
        )

    def planes_between(self, src: int, dst: int) -> Sequence[int]:
        """The planes with a path from a host to another."""
        if not self.absent:
            return self.plane_numbers()
        numbers = range(1) if self.are_near(src, dst) else self.t1_numbers()
        return [
            plane
            for plane in self.plane_numbers()
            if any(self.has_path(src, dst, plane, number) for number in numbers)
        ]

    def are_near(self, one: int, other: int) -> bool:
        """Whether two hosts are below the same T0."""
        return self.t0_of(one) == self.t0_of(other)

    def path(self, plane: int, number: int, dst: int, *, near: bool) -> Path:
        """A path to a host; `near`: from a host below the same T0, where `number` is 0."""
        t0 = self.t0_of(dst)
        way = () if near else (t1_usid(number), t0_usid(t0))
        usids = (*way, self.host_usid(dst))
        return Path(
            plane=plane,
            name=f"t0:{plane}.{t0}" if near else f"t1:{plane}.{number}",
            dst=self.addresses.on_path(dst, plane, number),
            segments=srv6.segments(
                self.addresses.locator_block(plane), usids, self.addresses.carrier_usids
            ),
            usids=usids,
        )


@lru_cache(maxsize=1024)
def _paths(fabric: Topology, dst: int, near: bool) -> tuple[Path, ...]:
    """Cached, because a large fabric has many hosts with the same paths."""
    return tuple(
        fabric.path(plane, number, dst, near=near)
        for plane in fabric.plane_numbers()
        for number in (range(1) if near else fabric.t1_numbers())
    )


def host_link(host: int, plane: int) -> str:
    return f"link:h{host}.{plane}"


def uplink(plane: int, t0: int, t1: int) -> str:
    return f"uplink:{plane}.{t0}.{t1}"


@lru_cache(maxsize=64)
def _set_of(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


@lru_cache(maxsize=64)
def _hosts_with_links(fabric: Topology) -> tuple[int, ...]:
    return tuple(host for host in range(fabric.hosts) if fabric.planes_of(host))


def t1_usid(number: int) -> int:
    return _T1_USID + number


def t0_usid(number: int) -> int:
    return T0_USID + number


def _inside(network: IPv6Network, offset: int, length: int) -> IPv6Network:
    return IPv6Network((int(network.network_address) | offset, length))


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, not in {low}..{high}")
