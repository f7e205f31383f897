# SPDX-License-Identifier: Apache-2.0
"""The fabric as data: planes, switches and hosts, their names, addresses and uSIDs, and every path.

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

A carrier (F3216) is an IPv6 address. A switch whose uSID comes first shifts the rest forward and
routes the packet by the result. One destination address therefore holds the whole path:

    | locator block: 32 bits | uSID | uSID | uSID | uSID | uSID | uSID |    16 bits each; 0 = none
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Network
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, ClassVar, Self, overload

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from mrc.fabric.hostconfig import HostPath
from mrc.units import counted

if TYPE_CHECKING:  # slow import
    from mrc.fabric.document import Table

_BLOCK_BITS, _USID_BITS = 32, 16
USIDS_PER_CARRIER = (128 - _BLOCK_BITS) // _USID_BITS
_MAX_USID = (1 << _USID_BITS) - 1

MIN_MTU, MAX_MTU = 1400, 65535
MAX_HOSTS = 4096
MAX_PLANES = 64
MAX_ALL_T1 = 4096
"""of a plane with T2s"""
MAX_T2 = 4096

HOST_USID = 0xE000

_BLOCK = IPv6Network("fcbb::/16")
_HOSTS = IPv6Network("fd00:a::/32")
_MANAGEMENT = IPv6Network("fd00:c::/64")
_MANAGEMENT_IPV4, _MANAGEMENT_IPV4_BITS = IPv4Address("100.64.0.0"), 10


class Path(Struct, frozen=True):
    """One path from a host to another."""

    plane: int
    name: str
    """of its highest switch: a T1, or the T0 if both hosts are below it, or a T2 between pods"""
    dst: IPv6Address
    """destination address inside the peer's prefix; the sender's route for it picks the path"""
    segments: tuple[IPv6Address, ...]
    usids: tuple[int, ...]

    @property
    def usid_words(self) -> tuple[str, ...]:
        """Four hex digits each, as in a carrier."""
        return tuple(f"{usid:04x}" for usid in self.usids)


class _AddressesError(ValueError):
    """Networks that do not fit."""

    def __init__(self, keys: tuple[str, ...], text: str) -> None:
        super().__init__(f"{keys[0]}: {text}" if len(keys) == 1 else text)
        self.keys = keys
        self.text = text


class Addresses(Struct, frozen=True, forbid_unknown_fields=True):
    """The networks from which a fabric takes its addresses."""

    block: IPv6Network = _BLOCK
    """contains the locator block of each plane"""
    hosts: IPv6Network = _HOSTS
    """contains the prefix of each host"""
    management: IPv6Network = _MANAGEMENT
    carrier_usids: int = USIDS_PER_CARRIER
    """uSIDs that a carrier holds; the others of a path go into an SRH"""

    def __post_init__(self) -> None:
        for name, length in (("block", 16), ("hosts", 32), ("management", 64)):
            network: IPv6Network = getattr(self, name)
            if network.prefixlen != length:
                raise _AddressesError((name,), f"{network} is not a /{length}")
        networks = {"block": self.block, "hosts": self.hosts, "management": self.management}
        for (one, network), (two, other) in combinations(networks.items(), 2):
            if network.overlaps(other):
                overlap = f"{one} {network} and {two} {other} overlap"
                raise _AddressesError((one, two), overlap)

    @classmethod
    def read(cls, table: Table) -> Self:
        """From a table `[addresses]`; raises ConfigError."""
        usual = cls()
        read = {
            key: table.parsed(key, partial(_network, getattr(usual, key)), str(getattr(usual, key)))
            for key in ("block", "hosts", "management")
        }
        most = usual.carrier_usids
        carrier_usids = table.integer("carrier_usids", 1, most, most)
        table.close()
        try:
            return cls(**read, carrier_usids=carrier_usids)
        except _AddressesError as error:
            given = next((key for key in error.keys if table.has(key)), error.keys[0])
            raise table.error(given, error.text) from error

    def locator_block(self, plane: int) -> IPv6Network:
        return _inside(self.block, plane << 96, _BLOCK_BITS)

    def locator(self, plane: int, usid: int) -> IPv6Network:
        """The prefix that routes to the node with this uSID in a plane."""
        block = self.locator_block(plane)
        return IPv6Network((carrier(block, (usid,)), _BLOCK_BITS + _USID_BITS))

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


def _network(usual: IPv6Network, text: str) -> IPv6Network:
    try:
        return IPv6Network(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv6 network such as {usual}") from None


class Topology(Struct, frozen=True):
    """The numbers of hosts, planes and switches."""

    MAX_T1: ClassVar = 256
    """above one T0"""

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
        _check("t1", self.t1, 1, MAX_ALL_T1 if self.t2 else self.MAX_T1)
        force_setattr(self, "t0", self.t0 or self.hosts)
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
        return not self.absent or f"link:h{host}.{plane}" not in _set_of(self.absent)

    def has_uplink(self, plane: int, t0: int, t1: int) -> bool:
        return not self.absent or f"uplink:{plane}.{t0}.{t1}" not in _set_of(self.absent)

    def has_core_link(self, plane: int, t1: int, t2: int) -> bool:
        return not self.absent or f"core:{plane}.{t1}.{t2}" not in _set_of(self.absent)

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

    def paths_to(self, dst: int, origin: int | None) -> tuple[Path, ...]:
        """Every path to a host from all hosts of an origin, as if no link were absent."""
        return _paths(self, dst, origin)

    def origin(self, src: int, dst: int) -> int | None:
        """From where paths lead to a host: from a pod, or None: from below the same T0. Without T2s
        all hosts are in pod 0.
        """
        return None if self.are_near(src, dst) else self.pod_of(src)

    def n_paths(self, dst: int, origin: int | None) -> int:
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

    def path(self, plane: int, number: int, dst: int, origin: int | None) -> Path:
        """A path to a host."""
        way = self.way(number, dst, origin)
        usids = (*(self.usid(*switch) for switch in way), self.host_usid(dst))
        top, place = max(way) if way else ("t0", self.t0_of(dst))
        return Path(
            plane=plane,
            name=f"{top}:{plane}.{place}",
            dst=self.addresses.on_path(dst, plane, number),
            segments=segments(
                self.addresses.locator_block(plane), usids, self.addresses.carrier_usids
            ),
            usids=usids,
        )

    def way(self, number: int, dst: int, origin: int | None) -> tuple[tuple[str, int], ...]:
        """The switches of a path, tier and number, in order from behind the sender's T0 on."""
        if origin is None:
            return ()
        pod, last = self.pod_of(dst), ("t0", self.t0_of(dst))
        if origin == pod:
            return ("t1", self.t1_on(pod, number)), last
        first, second = self.t1_on(origin, number), self.t1_on(pod, number)
        return ("t1", first), ("t2", number), ("t1", second), last

    def usid(self, tier: str, number: int) -> int:
        """Of a switch."""
        t1 = HostPath.T1_OF_PODS_USID if self.t2 else HostPath.T1_USID
        return {"t0": HostPath.T0_USID, "t1": t1, "t2": HostPath.T2_USID}[tier] + number

    @staticmethod
    def check_mtu(mtu: int) -> None:
        """Raises ValueError for an MTU that no link has."""
        _check("mtu", mtu, MIN_MTU, MAX_MTU)

    # ---- Parts by their names --------------------------------------------------------------------

    def target(self, text: str) -> Target:
        """Parses a target. Raises ValueError if the fabric lacks the target."""
        target = _parsed(text, self)
        if not self.has_target(text):
            raise ValueError(f"target {text} is absent from this fabric")
        return target

    def has_target(self, text: str) -> bool:
        """Whether a target of the fabric has links that are not absent."""
        if not self.absent:
            return True
        target = _parsed(text, self)
        return any(self._has(link) for link in _named_links(target, self))

    def every_link(self) -> list[Target]:
        """Every link: in each plane first the host links, then those from T0s, then from T1s to
        T2s.
        """
        return self.links_of(Target("all"))

    def links_of(self, target: Target) -> list[Target]:
        """The links that belong to a target; of one direction, its link."""
        found = list(_named_links(target, self))
        return [link for link in found if self._has(link)] if self.absent else found

    def _has(self, link: Target) -> bool:
        if link.host is not None:
            return self.has_link(link.host, link.plane)
        assert link.t1 is not None
        if link.t2 is not None:
            return self.has_core_link(link.plane, link.t1, link.t2)
        assert link.t0 is not None
        return self.has_uplink(link.plane, link.t0, link.t1)

    def parts(self, text: str) -> Sequence[str]:
        """The parts that a target with `*` names, whether they are absent or not. Raises
        ValueError.
        """
        return _Parts(text, self)

    def absent_links(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of all links of these targets, which may have `*`, for `absent`.

        Raises ValueError.
        """
        found: set[str] = set()
        for name in names:
            for part in self.parts(name) if Target.ANY in name else [name]:
                target = _parsed(part, self)
                if target.kind in ("all", "plane") or target.direction:
                    raise ValueError(f"target {name}: only links and switches can be absent")
                found |= set(map(str, _named_links(target, self)))
        return tuple(sorted(found))

    def t0_of_link(self, link: Target) -> int:
        """The T0 at one end of a link."""
        if link.t0 is not None:
            return link.t0
        assert link.host is not None
        return self.t0_of(link.host)

    def without(self, targets: Iterable[Target]) -> Self:
        """The fabric as if no link of these targets existed. A direction counts as its link."""
        links = {str(link) for target in targets for link in self.links_of(target)}
        return replace(self, absent=tuple(sorted({*self.absent, *links})))

    def cut_off(self, left: Topology) -> tuple[int, int] | None:
        """Two hosts that have a path in this fabric, but none in what is left of it."""
        for pair in combinations(self.host_numbers(), 2):
            if self.planes_between(*pair) and not left.planes_between(*pair):
                return pair
        return None


@lru_cache(maxsize=1024)
def _paths(fabric: Topology, dst: int, origin: int | None) -> tuple[Path, ...]:
    """Cached, because a large fabric has many hosts with the same paths."""
    return tuple(
        fabric.path(plane, number, dst, origin)
        for plane in fabric.plane_numbers()
        for number in range(fabric.n_paths(dst, origin))
    )


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
    if t1 // pods > Topology.MAX_T1:
        return "t1", f"is {t1}, more than {Topology.MAX_T1} in each of {counted(pods, 'pod')}"
    if t2 % (each := t1 // pods):
        why = f"is {t2}, not a multiple of the T1s of a pod ({each}): use {multiples(t2, each)}"
        return "t2", why
    return None


def multiples(number: int, divisor: int) -> str:
    """`4 or 6`: the multiples around a number."""
    below = number // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


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


# ---- Names of parts ------------------------------------------------------------------------------


_PLANE, _HOST = r"(?P<plane>\d+)", r"h(?P<host>\d+)"
_T0, _T1 = rf"t0:{_PLANE}\.(?P<t0>\d+)", rf"t1:{_PLANE}\.(?P<t1>\d+)"
_T2 = rf"t2:{_PLANE}\.(?P<t2>\d+)"
_PATTERNS = (
    ("all", "", "all"),
    ("plane", "", f"plane:{_PLANE}"),
    ("t0", "", _T0),
    ("t1", "", _T1),
    ("t2", "", _T2),
    ("link", "", rf"link:{_HOST}\.{_PLANE}"),
    ("link", "up", f"{_HOST}>{_T0}"),
    ("link", "down", f"{_T0}>{_HOST}"),
    ("uplink", "", rf"uplink:{_PLANE}\.(?P<t0>\d+)\.(?P<t1>\d+)"),
    ("uplink", "up", rf"{_T0}>t1:(?P=plane)\.(?P<t1>\d+)"),
    ("uplink", "down", rf"{_T1}>t0:(?P=plane)\.(?P<t0>\d+)"),
    ("core", "", rf"core:{_PLANE}\.(?P<t1>\d+)\.(?P<t2>\d+)"),
    ("core", "up", rf"{_T1}>t2:(?P=plane)\.(?P<t2>\d+)"),
    ("core", "down", rf"{_T2}>t1:(?P=plane)\.(?P<t1>\d+)"),
)
"""Kind, direction and form of each target."""


class Target(Struct, frozen=True):
    """A plane, switch or link of a fabric by its numbers, one direction of a link, or the whole
    fabric.

    None and plane 0: does not apply.
    """

    FORMS: ClassVar = (
        "all, plane:P, t0:P.N, t1:P.S, t2:P.M, link:hH.P, uplink:P.N.S, core:P.S.M"
        " or one direction of a link, hH>t0:P.N"
    )
    ANY: ClassVar = "*"
    """stands for every number in the name of a part"""
    UP: ClassVar = "up"
    DOWN: ClassVar = "down"
    """the directions of a link: from its lower end to its upper end, and back"""

    kind: str
    plane: int = 0
    host: int | None = None
    t0: int | None = None
    t1: int | None = None
    direction: str = ""
    """UP or DOWN; empty: both"""
    t2: int | None = None

    def __str__(self) -> str:
        if self.direction:
            t0, t1 = f"t0:{self.plane}.{self.t0}", f"t1:{self.plane}.{self.t1}"
            ends = {
                "link": (f"h{self.host}", t0),
                "uplink": (t0, t1),
                "core": (t1, f"t2:{self.plane}.{self.t2}"),
            }[self.kind]
            return ">".join(ends if self.direction == self.UP else reversed(ends))
        return {
            "all": "all",
            "plane": f"plane:{self.plane}",
            "t1": f"t1:{self.plane}.{self.t1}",
            "t0": f"t0:{self.plane}.{self.t0}",
            "t2": f"t2:{self.plane}.{self.t2}",
            "link": f"link:h{self.host}.{self.plane}",
            "uplink": f"uplink:{self.plane}.{self.t0}.{self.t1}",
            "core": f"core:{self.plane}.{self.t1}.{self.t2}",
        }[self.kind]

    @property
    def ways(self) -> tuple[bool, bool]:
        """Whether packets up, and packets down, are on the target's links or its direction."""
        return self.direction != self.DOWN, self.direction != self.UP

    @property
    def both(self) -> Target:
        """The link that this is a direction of; other targets as they are."""
        if not self.direction:
            return self
        return replace(self, t0=None if self.kind == "link" else self.t0, direction="")


def _parsed(text: str, fabric: Topology) -> Target:
    """As `Topology.target`, as if no link were absent."""
    target = _target(text)
    if target is None:
        raise ValueError(f"target {text!r} is not {Target.FORMS}")
    if target.kind == "all":
        return target
    if target.plane not in fabric.plane_numbers():
        raise ValueError(f"target {text}: no plane {target.plane}, use 1..{fabric.planes}")
    if target.host is not None and not target.host < fabric.hosts:
        raise ValueError(f"target {text}: no host h{target.host}, use 0..{fabric.hosts - 1}")
    if target.t0 is not None and target.t0 not in fabric.t0_numbers():
        raise ValueError(f"target {text}: no T0 {target.t0}, use 0..{fabric.t0 - 1}")
    if target.t1 is not None and target.t1 not in fabric.t1_numbers():
        raise ValueError(f"target {text}: no T1 {target.t1}, use 0..{fabric.t1 - 1}")
    if target.t2 is not None and target.t2 not in fabric.t2_numbers():
        last = f"no T2 {target.t2}, use 0..{fabric.t2 - 1}" if fabric.t2 else "no T2s"
        raise ValueError(f"target {text}: {last}")
    if not _are_joined(target, fabric):
        raise ValueError(f"target {text}: no link joins these switches")
    if target.kind == "link" and target.direction and fabric.t0_of_link(target.both) != target.t0:
        raise ValueError(f"target {text}: h{target.host} is below another T0")
    return target


def _are_joined(target: Target, fabric: Topology) -> bool:
    """Whether the ends of a link between switches have a link; other targets: True."""
    if target.t1 is None:
        return True
    if target.t0 is not None:
        return target.t1 in fabric.t1s_above(target.t0)
    return target.t2 is None or target.t2 in fabric.t2s_above(target.t1)


def _target(text: str) -> Target | None:
    for kind, direction, form in _PATTERNS:
        if match := re.fullmatch(form, text):
            numbers = {key: int(number) for key, number in match.groupdict().items()}
            found = Target(kind, direction=direction, **numbers)
            return found if str(found) == text else None  # plane:01 would be a second name
    return None


class _Parts(Sequence[str]):
    """The parts that a target with `*` names."""

    def __init__(self, text: str, fabric: Topology) -> None:
        """Raises ValueError."""
        self._kind, _, rest = text.partition(":")
        planes, t0s, t1s = fabric.plane_numbers(), fabric.t0_numbers(), fabric.t1_numbers()
        t2s, per_pod = fabric.t2_numbers(), fabric.t1s_per_pod
        every: tuple[Sequence[int], ...] = {
            "plane": (planes,),
            "t0": (planes, t0s),
            "t1": (planes, t1s),
            "t2": (planes, t2s),
            "uplink": (planes, t0s, range(per_pod)),  # the last one above each T0
            "core": (planes, t1s, range(fabric.t2 // per_pod)),  # above each T1
            "link": (range(fabric.hosts), planes),
        }.get(self._kind, ())
        named = rest.removeprefix("h").split(".")
        if len(named) != len(every) or not all(
            name == Target.ANY or name.isdecimal() for name in named
        ):
            raise ValueError(f"target {text!r} does not name parts: use * in place of numbers")
        self._ranges = [
            numbers if name == Target.ANY else range(int(name), int(name) + 1)
            for name, numbers in zip(named, every, strict=True)
        ]
        self._above: Callable[[int], Sequence[int]] | None = None
        if self._kind in ("uplink", "core"):
            self._join(fabric, named[-1] == Target.ANY, named[-2] == Target.ANY)
        if not all(self._ranges):
            raise ValueError(f"target {text!r} names no part of this fabric")

    def _join(self, fabric: Topology, any_upper: bool, any_lower: bool) -> None:
        """Names only the switches above, or below, that a switch is joined with."""
        lowers, uppers = fabric.t0_numbers(), fabric.t1_numbers()
        above: Callable[[int], range] = fabric.t1s_above
        below: Callable[[int], range] = fabric.t0s_below
        if self._kind == "core":
            lowers, uppers = uppers, fabric.t2_numbers()
            above, below = fabric.t2s_above, fabric.t1s_below
        if any_upper:
            self._above = above
            self._ranges[-2] = [lower for lower in self._ranges[-2] if lower in lowers]
        elif any_lower:
            (upper,) = self._ranges[-1]
            self._ranges[-2] = below(upper) if upper in uppers else []

    def __len__(self) -> int:
        return prod(map(len, self._ranges))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        left, numbers = range(len(self))[index], list[int]()
        for values in reversed(self._ranges):
            left, i = divmod(left, len(values))
            numbers.insert(0, values[i])
        if self._above is not None:
            numbers[-1] = self._above(numbers[-2])[numbers[-1]]
        named = ".".join(map(str, numbers))
        return f"{self._kind}:{'h' if self._kind == 'link' else ''}{named}"


def _named_links(target: Target, fabric: Topology) -> Iterator[Target]:
    hosts, t0s, cores = _numbers(target, fabric)
    for plane in [target.plane] if target.plane else fabric.plane_numbers():
        yield from (Target("link", plane, host) for host in hosts)
        yield from (
            Target("uplink", plane, t0=t0, t1=t1)
            for t0 in t0s
            for t1 in ([target.t1] if target.t1 is not None else fabric.t1s_above(t0))
        )
        yield from (Target("core", plane, t1=t1, t2=t2) for t1, t2 in cores)


def _numbers(
    target: Target, fabric: Topology
) -> tuple[Iterable[int], Iterable[int], Sequence[tuple[int, int]]]:
    """The hosts of a target's links, the T0s of its uplinks, and T1 and T2 of its core links."""
    match target:
        case Target(kind="t0", t0=int(t0)):
            return fabric.hosts_below(t0), [t0], []
        case Target(kind="t1", t1=int(t1)):
            return [], fabric.t0s_below(t1), [(t1, t2) for t2 in fabric.t2s_above(t1)]
        case Target(kind="t2", t2=int(t2)):
            return [], [], [(t1, t2) for t1 in fabric.t1s_below(t2)]
        case Target(kind="link", host=int(host)):
            return [host], [], []
        case Target(kind="uplink", t0=int(t0)):
            return [], [t0], []
        case Target(kind="core", t1=int(t1), t2=int(t2)):
            return [], [], [(t1, t2)]
    cores = [(t1, t2) for t1 in fabric.t1_numbers() for t2 in fabric.t2s_above(t1)]
    return range(fabric.hosts), fabric.t0_numbers(), cores


# ---- Carriers of uSIDs ---------------------------------------------------------------------------


def carrier(block: IPv6Network, usids: Sequence[int]) -> IPv6Address:
    """One to six uSIDs, in the order of their use, in a carrier of the locator block."""
    if block.prefixlen != _BLOCK_BITS:
        raise ValueError(f"locator block {block} is not a /{_BLOCK_BITS}")
    if not 1 <= len(usids) <= USIDS_PER_CARRIER:
        raise ValueError(f"a carrier holds 1 to {USIDS_PER_CARRIER} uSIDs, not {len(usids)}")
    packed = block.network_address.packed[: _BLOCK_BITS // 8]
    for usid in usids:
        if not 1 <= usid <= _MAX_USID:
            raise ValueError(f"uSID {usid:#x} is not in 0x1..{_MAX_USID:#x}")
        packed += usid.to_bytes(_USID_BITS // 8)
    return IPv6Address(packed.ljust(16, b"\0"))


def segments(
    block: IPv6Network, usids: Sequence[int], each: int = USIDS_PER_CARRIER
) -> tuple[IPv6Address, ...]:
    """The segment list for any number of uSIDs, `each` to a carrier. One carrier needs no SRH."""
    if not usids:
        raise ValueError("a segment list requires at least one uSID")
    return tuple(
        carrier(block, usids[start : start + each]) for start in range(0, len(usids), each)
    )
