# SPDX-License-Identifier: Apache-2.0
"""The fabric as data: planes, switches and hosts, their addresses and uSIDs, and every path.

Pure. Planes are numbered from 1, like the ports in them; hosts and switches from 0. All planes have
the same numbers of T0s and T1s, and every T0 has an uplink to every T1, except for links that are
absent. The hosts are spread over the T0s in order, the same number below each:

    h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2    P and S select a path: host, T0, T1 S of
    h1 -+           +-- t1:P.S --+           +- h3    plane P, T0, host. Below one T0 (h0 and h1)
                                                      P alone selects it

With T2s, a plane has three tiers. Its T0s and T1s are divided into pods, in order, and a T0 has an
uplink to every T1 of its pod. T2 M has one link to each pod: to the T1 whose place in the pod is M
modulo the number of T1s there. Between pods P and M select a path: host, T0, T1, T2 M, T1, T0,
host. Within a pod P and the T1's place S select it.

Default addresses (numbers inside addresses are hex):
    fcbb:P::/32          locator block of plane P, the prefix of its carriers
    0100 + S             uSID of T1 S: shift; the next uSID names the T0 below
    0200 + N             uSID of T0 N: shift; the next uSID names the port to the host
    2000 + M             uSID of T2 M: shift; the next uSID names the T1 below
    3000 + S             uSID of T1 S in a fabric with T2s
    e000 + K             uSID of port K of any T0, and of the host behind it: end of the carrier
    fd00:a:H::/64        prefix of host H, the same in all planes; H owns every address in it
    fd00:a:H::1          address of host H on all planes (ECMP), the source of its packets
    fd00:a:H::P:S        address of host H on path S, or M, of plane P: names the EV to the sender
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
from mrc.units import counted

MAX_HOSTS = 4096
MAX_PLANES = 64
MAX_T1 = 256
"""above one T0"""
MAX_ALL_T1 = 4096
"""of a plane with T2s"""
MAX_T2 = 4096

HOST_USID = 0xE000
_T1_USID = 0x0100
T0_USID = 0x0200
_T2_USID = 0x2000
_T1_OF_PODS_USID = 0x3000

_BLOCK = IPv6Network("fcbb::/16")
_HOSTS = IPv6Network("fd00:a::/32")
_MANAGEMENT = IPv6Network("fd00:c::/64")
_MANAGEMENT_IPV4, _MANAGEMENT_IPV4_BITS = IPv4Address("100.64.0.0"), 10


Origin = int | None
"""From where paths lead to a host: from a pod, or None: from below the same T0. Without T2s all
hosts are in pod 0.
"""

Switch = tuple[str, int]
"""Its tier and its number."""


class Path(Struct, frozen=True):
    """One path from a host to another."""

    plane: int
    name: str
    """of its highest switch: a T1, or the T0 if both hosts are below it, or a T2 between pods"""
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
    pods: int = 1
    """pods per plane; more than 1 only with T2s"""
    t2: int = 0
    """T2s per plane; 0: two tiers"""
    max_hosts: ClassVar[int] = MAX_HOSTS

    def __post_init__(self) -> None:
        _check("hosts", self.hosts, 2, self.max_hosts)
        _check("planes", self.planes, 1, MAX_PLANES)
        _check("t1", self.t1, 1, MAX_ALL_T1 if self.t2 else MAX_T1)
        structs.force_setattr(self, "t0", self.t0 or self.hosts)
        _check("t0", self.t0, 1, self.hosts)
        _check("pods", self.pods, 1, self.max_hosts)
        _check("t2", self.t2, 0, MAX_T2)
        if self.hosts % self.t0:
            raise ValueError(
                f"hosts is {self.hosts}, not a multiple of t0 ({self.t0}): use "
                f"{multiples(self.hosts, self.t0)}"
            )
        if (wrong := wrong_pods(self.t0, self.t1, self.pods, self.t2)) is not None:
            raise ValueError(" ".join(wrong))

    def host_numbers(self) -> Sequence[int]:
        return _hosts_with_links(self) if self.absent else range(self.hosts)

    def plane_numbers(self) -> range:
        return range(1, self.planes + 1)

    def t0_numbers(self) -> range:
        return range(self.t0)

    def t1_numbers(self) -> range:
        return range(self.t1)

    def t2_numbers(self) -> range:
        return range(self.t2)

    @property
    def t1s_per_pod(self) -> int:
        return self.t1 // self.pods

    def pod_of_t0(self, t0: int) -> int:
        return t0 * self.pods // self.t0

    def pod_of_t1(self, t1: int) -> int:
        return t1 // self.t1s_per_pod

    def pod_of(self, host: int) -> int:
        return self.pod_of_t0(self.t0_of(host))

    def t1s_above(self, t0: int) -> range:
        first = self.pod_of_t0(t0) * self.t1s_per_pod
        return range(first, first + self.t1s_per_pod)

    def t0s_below(self, t1: int) -> range:
        each = self.t0 // self.pods
        return range(self.pod_of_t1(t1) * each, (self.pod_of_t1(t1) + 1) * each)

    def t2s_above(self, t1: int) -> range:
        return range(t1 % self.t1s_per_pod, self.t2, self.t1s_per_pod)

    def t1s_below(self, t2: int) -> range:
        return range(t2 % self.t1s_per_pod, self.t1, self.t1s_per_pod)

    def t1_on(self, pod: int, number: int) -> int:
        """The T1 of a pod over which the path with this number goes."""
        return pod * self.t1s_per_pod + number % self.t1s_per_pod

    def has_link(self, host: int, plane: int) -> bool:
        return not self.absent or host_link(host, plane) not in _set_of(self.absent)

    def has_uplink(self, plane: int, t0: int, t1: int) -> bool:
        return not self.absent or uplink(plane, t0, t1) not in _set_of(self.absent)

    def has_core_link(self, plane: int, t1: int, t2: int) -> bool:
        return not self.absent or core_link(plane, t1, t2) not in _set_of(self.absent)

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
        paths = self.paths_to(dst, self.origin(src, dst))
        return tuple(paths[number] for number in self.present(src, dst))

    def paths_to(self, dst: int, origin: Origin) -> tuple[Path, ...]:
        """Every path to a host from all hosts of an origin, as if no link were absent."""
        return _paths(self, dst, origin)

    def origin(self, src: int, dst: int) -> Origin:
        return None if self.are_near(src, dst) else self.pod_of(src)

    def n_paths(self, dst: int, origin: Origin) -> int:
        """The number of paths of a plane."""
        if origin is None:
            return 1
        return self.t1s_per_pod if origin == self.pod_of(dst) else self.t2

    @property
    def most_paths(self) -> int:
        """The largest number of paths of a plane between two hosts."""
        return self.t2 or (self.t1 if self.t0 > 1 else 1)

    def present(self, src: int, dst: int) -> Sequence[int]:
        """Which of `paths_to` exist, by their place."""
        in_plane = self.n_paths(dst, self.origin(src, dst))
        every = range(self.planes * in_plane)
        if not self.absent:
            return every
        return [i for i in every if self.has_path(src, dst, i // in_plane + 1, i % in_plane)]

    def has_path(self, src: int, dst: int, plane: int, number: int) -> bool:
        """Whether the links of a path exist."""
        if not (self.has_link(src, plane) and self.has_link(dst, plane)):
            return False
        if self.are_near(src, dst):
            return True
        t1s = {host: self.t1_on(self.pod_of(host), number) for host in (src, dst)}
        return all(self.has_uplink(plane, self.t0_of(host), t1) for host, t1 in t1s.items()) and (
            t1s[src] == t1s[dst]
            or all(self.has_core_link(plane, t1, number) for t1 in t1s.values())
        )

    def planes_between(self, src: int, dst: int) -> Sequence[int]:
        """The planes with a path from a host to another."""
        if not self.absent:
            return self.plane_numbers()
        numbers = range(self.n_paths(dst, self.origin(src, dst)))
        return [
            plane
            for plane in self.plane_numbers()
            if any(self.has_path(src, dst, plane, number) for number in numbers)
        ]

    def are_near(self, one: int, other: int) -> bool:
        """Whether two hosts are below the same T0."""
        return self.t0_of(one) == self.t0_of(other)

    def path(self, plane: int, number: int, dst: int, origin: Origin) -> Path:
        """A path to a host."""
        way = self.way(number, dst, origin)
        usids = (*(self.usid(*switch) for switch in way), self.host_usid(dst))
        top, place = max(way) if way else ("t0", self.t0_of(dst))
        return Path(
            plane=plane,
            name=f"{top}:{plane}.{place}",
            dst=self.addresses.on_path(dst, plane, number),
            segments=srv6.segments(
                self.addresses.locator_block(plane), usids, self.addresses.carrier_usids
            ),
            usids=usids,
        )

    def way(self, number: int, dst: int, origin: Origin) -> tuple[Switch, ...]:
        """The switches of a path in their order, from behind the sender's T0 on."""
        if origin is None:
            return ()
        pod, last = self.pod_of(dst), ("t0", self.t0_of(dst))
        if origin == pod:
            return ("t1", self.t1_on(pod, number)), last
        first, second = self.t1_on(origin, number), self.t1_on(pod, number)
        return ("t1", first), ("t2", number), ("t1", second), last

    def usid(self, tier: str, number: int) -> int:
        """Of a switch."""
        t1 = _T1_OF_PODS_USID if self.t2 else _T1_USID
        return {"t0": T0_USID, "t1": t1, "t2": _T2_USID}[tier] + number


@lru_cache(maxsize=1024)
def _paths(fabric: Topology, dst: int, origin: Origin) -> tuple[Path, ...]:
    """Cached, because a large fabric has many hosts with the same paths."""
    return tuple(
        fabric.path(plane, number, dst, origin)
        for plane in fabric.plane_numbers()
        for number in range(fabric.n_paths(dst, origin))
    )


def switch_of_usid(plane: int, usid: int) -> str:
    """The name of the switch that has this uSID."""
    firsts = (("t1", _T1_OF_PODS_USID), ("t2", _T2_USID), ("t0", T0_USID), ("t1", _T1_USID))
    tier, first = next((each for each in firsts if usid >= each[1]), ("usid", 0))
    return f"{tier}:{plane}.{usid - first}"


def wrong_pods(t0: int, t1: int, pods: int, t2: int) -> tuple[str, str] | None:
    """The key that does not go with the others, and why; None: all do."""
    if not t2:
        remedy = "set t2 to a multiple of the T1s of a pod"
        why = f"is {pods} without t2: only T2s join pods; {remedy}"
        return ("pods", why) if pods > 1 else None
    if pods < 2:
        return "t2", f"is {t2} with one pod: T2s join pods; set pods to 2 or more"
    for key, number in (("t0", t0), ("t1", t1)):
        if number % pods:
            remedy = f"use {multiples(number, pods)}"
            return key, f"is {number}, not a multiple of pods ({pods}): {remedy}"
    if t1 // pods > MAX_T1:
        return "t1", f"is {t1}, more than {MAX_T1} in each of {counted(pods, 'pod')}"
    if t2 % (each := t1 // pods):
        why = f"is {t2}, not a multiple of the T1s of a pod ({each}): use {multiples(t2, each)}"
        return "t2", why
    return None


def multiples(number: int, divisor: int) -> str:
    """`4 or 6`: the multiples around a number."""
    below = number // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def host_link(host: int, plane: int) -> str:
    return f"link:h{host}.{plane}"


def uplink(plane: int, t0: int, t1: int) -> str:
    return f"uplink:{plane}.{t0}.{t1}"


def core_link(plane: int, t1: int, t2: int) -> str:
    return f"core:{plane}.{t1}.{t2}"


@lru_cache(maxsize=64)
def _set_of(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


@lru_cache(maxsize=64)
def _hosts_with_links(fabric: Topology) -> tuple[int, ...]:
    return tuple(host for host in range(fabric.hosts) if fabric.planes_of(host))


def _inside(network: IPv6Network, offset: int, length: int) -> IPv6Network:
    return IPv6Network((int(network.network_address) | offset, length))


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, not in {low}..{high}")
