# SPDX-License-Identifier: Apache-2.0
"""The fabric as data: planes, T0s, T1s and hosts, their addresses and uSIDs, and every path.

Pure. Planes are numbered from 1, like the ports that live in them; hosts and T1s from 0. Each
plane P has one T0 per host and the same number of T1s, and every T0 has an uplink to every T1:

    h0 -- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -- h1          a path is the choice of P and of S:
                   +-- t1:P.S --+                         host, T0, T1 S of plane P, T0, host

Addresses (hex where the address is):
    fcbb:P::/32          locator block of plane P; carriers are made of it
    0100 + S             uSID of T1 S: shift, then the next uSID names the T0 to go down to
    0200 + H             uSID of the T0 above host H: shift, then go down to the host
    e000                 uSID of "this host": end of the carrier
    fd00:a:H::/64        prefix of host H, the same over all planes; it owns every address in it
    fd00:a:H::1          its address, the source of what it sends
    fd00:a:H::P:S        its address on the path over T1 S of plane P: names the EV to the sender
    fd00:c::(H+1)        its address on the management network, where the OOB exchange runs
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from mrc import srv6

MAX_HOSTS = 4096
MAX_PLANES = 64
MAX_T1 = 256

HOST_USID = 0xE000
MANAGEMENT = IPv6Network("fd00:c::/64")

_T1_USID = 0x0100
_T0_USID = 0x0200
_BLOCKS = int(IPv6Address("fcbb::"))
_HOSTS = int(IPv6Address("fd00:a::"))


@dataclass(frozen=True, slots=True)
class Path:
    """One way from a host to another: the plane, the T1 in the middle, and how to name it."""

    plane: int
    t1: int
    dst: IPv6Address
    """destination address inside the peer's prefix; the sender's route for it picks the path"""
    segments: tuple[IPv6Address, ...]
    usids: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"t1:{self.plane}.{self.t1}"


@dataclass(frozen=True, slots=True)
class Topology:
    """How many of each there are."""

    hosts: int
    planes: int
    t1: int
    """T1s per plane"""

    def __post_init__(self) -> None:
        _check("hosts", self.hosts, 2, MAX_HOSTS)
        _check("planes", self.planes, 1, MAX_PLANES)
        _check("t1", self.t1, 1, MAX_T1)

    def host_numbers(self) -> range:
        return range(self.hosts)

    def plane_numbers(self) -> range:
        return range(1, self.planes + 1)

    def t1_numbers(self) -> range:
        return range(self.t1)

    def paths(self, dst: int) -> tuple[Path, ...]:
        """Every path to a host, plane by plane. They do not depend on where they start."""
        return tuple(
            _path(plane, t1, dst) for plane in self.plane_numbers() for t1 in self.t1_numbers()
        )


def block(plane: int) -> IPv6Network:
    return IPv6Network((_BLOCKS | plane << 96, srv6.BLOCK_BITS))


def t1_usid(t1: int) -> int:
    return _T1_USID + t1


def t0_usid(host: int) -> int:
    return _T0_USID + host


def host_prefix(host: int) -> IPv6Network:
    return IPv6Network((_HOSTS | host << 80, 64))


def host_address(host: int) -> IPv6Address:
    return host_prefix(host).network_address + 1


def path_address(host: int, plane: int, t1: int) -> IPv6Address:
    """Planes count from 1, so that no path has the host's own address."""
    return host_prefix(host).network_address + (plane << 16 | t1)


def oob_address(host: int) -> IPv6Address:
    return MANAGEMENT.network_address + host + 1


def _path(plane: int, t1: int, dst: int) -> Path:
    usids = (t1_usid(t1), t0_usid(dst), HOST_USID)
    return Path(
        plane=plane,
        t1=t1,
        dst=path_address(dst, plane, t1),
        segments=srv6.segments(block(plane), usids),
        usids=usids,
    )


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, not in {low}..{high}")
