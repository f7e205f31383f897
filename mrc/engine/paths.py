# SPDX-License-Identifier: Apache-2.0
"""The ports of a Context from the interfaces of this host, and the paths and EVs to a peer. Pure.

There are two path sources. `srv6` takes the paths of the host configuration, one EV each.
`interfaces` pairs local with remote addresses and gives each pair several EVs. On IPv6 these EVs
differ in the flow label. IPv4 has no flow label, so each EV requires its own source port and
therefore its own transmit socket.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_interface
from itertools import product
from typing import TYPE_CHECKING, Annotated, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from mrc import limits
from mrc.errors import ConfigError
from mrc.fabric.hostconfig import HostConfig, HostPath, IpAddress, IpInterface

if TYPE_CHECKING:
    from mrc.linux.rtnetlink import Interface

# ---- Ports ---------------------------------------------------------------------------------------


_IP_AND_UDP = {4: 28, 6: 48}
TRANSPORT = 44  # BTH, METH, TSETH, RETH, ImmDt and ICRC
SEAL_OVERHEAD = 24  # of a sealed packet: seal and tag instead of the ICRC


class LocalPort(Struct, frozen=True):
    """A port of this host."""

    plane: int
    """Its number, from 1."""
    nic: str
    """Name of the port in the host configuration, or of its interface."""
    address: IpInterface
    """Its address and network."""
    mtu: int
    """Payload of a full packet, in bytes."""
    loopback: bool = False
    """Whether only this host can be reached from it."""
    ifname: str = ""
    """The interface to which its sockets are bound; empty: none."""
    any_address: bool = False
    """Whether its sockets receive what was sent to any address."""
    tx_sockets: int = 1
    """Number of its sockets that send."""
    index: int = 0
    """Index of the interface. It changes if the interface is deleted and created again."""
    deprecated: bool = False
    """Whether new QPs use another port of its interface, if it has one."""


class PortSelection(Struct, frozen=True):
    """The ports that the current interfaces provide.

    Numbers 1 to `reserved` belong to the configured ports. A port with `plane` 0 may get any other
    number. `missing` has the reason for each configured port that is not usable, `small` a line for
    each other port that is left out because its MTU has no room for a packet.
    """

    ports: tuple[LocalPort, ...]
    reserved: int = 0
    missing: tuple[str, ...] = ()
    small: tuple[str, ...] = ()

    @classmethod
    def of_srv6(
        cls, host: HostConfig, interfaces: Sequence[Interface], wanted: Sequence[str] = ()
    ) -> Self:
        """The usable ports of the host configuration, followed by loopback ports.

        These ports receive on any local address, because each EV has its own destination address.
        `wanted` selects some by interface or address, which keep their planes; empty: all.
        """
        by_name = {interface.name: interface for interface in interfaces}
        own = {address.ip for interface in interfaces for address in interface.addresses}
        ports: list[LocalPort] = []
        names = {name for port in host.ports for name in (port.ifname, str(port.address.ip))}
        known = ", ".join(port.ifname for port in host.ports)
        missing = [
            f"{name} is no port of the host configuration, which has {known}"
            for name in wanted
            if name not in names
        ]
        segments = host.most_segments
        for plane, port in host.planes.items():
            if wanted and not {port.ifname, str(port.address.ip)} & set(wanted):
                continue
            interface = by_name.get(port.ifname)
            if interface is None or not interface.up:
                missing.append(
                    f"{port.ifname} is down" if interface else f"no interface {port.ifname}"
                )
                continue
            if port.address.ip not in own:
                missing.append(f"{port.address.ip} is not an address of this host")
                continue
            mtu = payload_mtu(port.mtu, port.address.version, segments=segments)
            made = replace(
                _tied_port(interface, port.address), plane=plane, mtu=mtu, any_address=True
            )
            ports += _carrying([made], missing, segments=segments)
        # Bound to lo, they can share the UDP port with sockets that receive on any address.
        loopback = [replace(port, ifname=port.nic) for port in _loopback_ports(interfaces)]
        return cls(
            (*ports, *_with_sockets(loopback, 8)), max(host.planes, default=0), tuple(missing)
        )

    @classmethod
    def of_interfaces(
        cls,
        interfaces: Sequence[Interface],
        wanted: Sequence[str],
        tx_sockets: int,
        kept: _Kept = frozenset(),
    ) -> Self:
        """The usable ports of a host without SRv6: interfaces that are up, then loopback.

        `wanted` has interfaces or addresses in the order of the planes; empty: all. An interface
        with both IP versions provides two ports. All second ports follow all first ports, so the
        planes of an ordinary peer have the numbers 1, 2, ... A link-local address counts only where
        an interface in `wanted`, or the whole host, has no other address: many hosts have idle
        interfaces with one.
        """
        groups: list[list[LocalPort]] = []
        missing: list[str] = []
        small: list[str] = []
        if not wanted:
            links = [each for each in interfaces if each.up and not _is_loopback(each)]
            groups = [_group(each, kept) for each in links]
            if not any(groups):
                groups = [_group(each, kept, link_local=True) for each in links]
            groups = [_carrying(group, small) for group in groups]
        for plane, name in enumerate(wanted, start=1):
            try:
                group = _carrying(_wanted_group(interfaces, name, kept), missing)
            except ConfigError as error:
                missing.append(str(error))
            else:
                groups.append([replace(port, plane=plane) for port in group[:1]] + group[1:])
        ports = [group[0] for group in groups if group]
        ports += [port for group in groups for port in group[1:]]
        if not any(port.loopback for port in ports):
            loopback = _loopback_ports(interfaces)
            if not wanted:  # a host with many bridges must work without a configuration
                ports = ports[: limits.MAX_PORTS - len(loopback)]
            ports += loopback
        found = tuple(_with_sockets(ports, tx_sockets))
        return cls(found, len(wanted), tuple(missing), tuple(small))


class RemotePort(Struct, frozen=True):
    """A port of the peer, as described in its hello."""

    nic: Annotated[str, Meta(max_length=64)]
    address: IpInterface
    source_ports: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(min_length=1, max_length=64)
    ]
    mtu: Annotated[int, Meta(ge=0, le=limits.MAX_MTU)]


def payload_mtu(link_mtu: int, version: int, *, segments: int = 0) -> int:
    """Bytes of payload that fit a packet on a link, behind an encapsulation with so many segments
    of SRv6: a multiple of 4, at most MRC_MAX_MTU.
    """
    return max(0, min(link_mtu - _headers(version, segments), limits.MAX_MTU)) & ~3


def _headers(version: int, segments: int) -> int:
    """In the kernel's accounting, encap.red takes an IPv6 header and one segment, then 16 bytes for
    each further one.
    """
    encapsulation = 48 + 16 * segments if segments else 0
    return encapsulation + _IP_AND_UDP[version] + TRANSPORT


def _carrying(
    ports: Iterable[LocalPort], left_out: list[str], *, segments: int = 0
) -> list[LocalPort]:
    """The ports with room for the smallest packet; adds a line for each other to `left_out`."""
    found = []
    for port in ports:
        if port.mtu >= limits.MIN_MTU:
            found.append(port)
        else:
            least = _headers(port.address.version, segments) + limits.MIN_MTU
            left_out.append(
                f"{port.nic} ({port.address.ip}) carries too little: raise its MTU to {least}"
            )
    return found


_Kept = frozenset[IpAddress]
"""Addresses that a Context uses already. A newer address of an interface does not replace them."""


def _tied_port(interface: Interface, address: IpInterface) -> LocalPort:
    mtu = payload_mtu(interface.mtu, address.version)
    name = interface.name
    return LocalPort(0, name, address, mtu, ifname=name, index=interface.index)


def _loopback_port(address: IpInterface, link_mtu: int = 65536) -> LocalPort:
    # Not bound to an interface: this requires no setup and no privilege.
    return LocalPort(0, "lo", address, payload_mtu(link_mtu, address.version), loopback=True)


def _is_loopback(interface: Interface) -> bool:
    return any(address.ip.is_loopback for address in interface.addresses)


def _group(
    interface: Interface, kept: _Kept = frozenset(), *, link_local: bool = False
) -> list[LocalPort]:
    """The ports of an interface, one of each IP version: an address in use, else the first, IPv6
    before IPv4, deprecated ones last. Then come the addresses in use that have become deprecated.
    """
    usable = [a for a in interface.addresses if not a.ip.is_link_local]
    if link_local and not usable:
        usable = list(interface.addresses)
    if _is_loopback(interface):  # lo may also have routed addresses of the host
        usable = [a for a in usable if a.ip.is_loopback]
    old = interface.deprecated
    usable.sort(key=lambda address: (address.ip in old, address.ip not in kept))
    versions = [[a for a in usable if a.version == version] for version in (6, 4)]
    best = sorted((each[0] for each in versions if each), key=lambda address: address.ip in old)
    if _is_loopback(interface):
        return [_loopback_port(address, interface.mtu) for address in best]
    # Of each version the newest: temporary addresses follow each other without an end.
    left = [[a for a in each[1:] if a.ip in kept][:1] for each in versions]
    later = [address for each in left for address in each]
    return [
        replace(_tied_port(interface, a), deprecated=a.ip in old or a in later)
        for a in [*best, *later]
    ]


def _loopback_ports(interfaces: Iterable[Interface]) -> list[LocalPort]:
    groups = (_group(each) for each in interfaces if each.up and _is_loopback(each))
    return _carrying(next(groups, []), [])


def _with_sockets(ports: Iterable[LocalPort], count: int) -> Iterator[LocalPort]:
    """The ports, those of IPv4 with `count` transmit sockets."""
    return (replace(p, tx_sockets=count if p.address.version == 4 else 1) for p in ports)


def _wanted_group(interfaces: Sequence[Interface], name: str, kept: _Kept) -> list[LocalPort]:
    """The ports of an interface or address; at least one. Raises ConfigError."""
    try:
        address = ip_address(name)
    except ValueError:
        return _named_interface(interfaces, name, kept)
    if address.is_loopback:
        return [_loopback_port(ip_interface(f"{name}/{8 if address.version == 4 else 128}"))]
    for interface in interfaces:
        for own in interface.addresses:
            if own.ip != address:
                continue
            if not interface.up:
                raise ConfigError(f"{interface.name} ({name}) is down")
            return [_tied_port(interface, own)]
    raise ConfigError(f"{name} is not an address of this host")


def _named_interface(interfaces: Sequence[Interface], name: str, kept: _Kept) -> list[LocalPort]:
    for interface in interfaces:
        if interface.name != name:
            continue
        if not interface.up:
            raise ConfigError(f"{name} is down")
        if not (ports := _group(interface, kept, link_local=True)):
            raise ConfigError(f"{name} has no address")
        return ports
    known = ", ".join(interface.name for interface in interfaces)
    raise ConfigError(f"no interface {name}; this host has {known}")


_FLOW_LABELS = range(1, 1 << 16)  # 0 makes Linux choose a label


class EvAttr(Struct, frozen=True):
    """One entropy value, with the addresses and header fields that select its path."""

    port: int
    tx_index: int
    source: IpAddress
    destination: IpAddress
    sport: int
    flow_label: int
    dport: int

    @property
    def ev(self) -> int:
        """The 32 bits in a packet: source port in the upper half, flow label in the lower."""
        return self.sport << 16 | self.flow_label


class PeerSource(Struct, frozen=True):
    """A source address and source UDP port of the peer's packets."""

    address: IpAddress
    sport: int


class PathEv(Struct, frozen=True):
    """An EV and the path that it names."""

    attr: EvAttr
    name: str
    segments: tuple[str, ...] = ()
    usids: tuple[str, ...] = ()


# ---- Pairs of ports -------------------------------------------------------------------------

Pair = tuple[LocalPort, RemotePort]

# Rounds of pairing: IP versions, whether both ports must share a subnet, and how many of the two
# interfaces must still be without a pair.
_ROUNDS = (
    ((6,), True, 2),
    ((4,), True, 2),
    ((6,), False, 2),
    ((4,), False, 2),
    ((4, 6), True, 1),
)


def pair(local: Sequence[LocalPort], remote: Sequence[RemotePort]) -> list[Pair]:
    """Pairs local with remote ports: first within common subnets, then by order.

    Each interface is used in one IP version. A port left over on either side is paired with a port
    of its subnet that already has a pair, so all links are used even if their numbers differ.
    """
    own = {port.address.ip for port in local if not port.loopback}
    remote = [port for port in remote if port.address.ip not in own]
    pairs: list[Pair] = []
    used_local: set[str] = set()
    used_remote: set[str] = set()
    for versions, in_subnet, least_free in _ROUNDS:
        for port, other in product(local, remote):
            ours, theirs = port.address, other.address
            version = ours.version
            fit = version == theirs.version
            if in_subnet:
                fit = fit and theirs.ip in ours.network and ours.ip in theirs.network
            free = (port.nic not in used_local) + (other.nic not in used_remote)
            if version in versions and fit and free >= least_free:
                pairs.append((port, other))
                used_local.add(port.nic)
                used_remote.add(other.nic)
    # Link-local addresses of all links are in one subnet: only probes show which link leads where.
    pairs += [
        (port, other)
        for port, other in product(local, remote)
        if _is_link_local(port) and _is_link_local(other) and (port, other) not in pairs
    ]
    return sorted(pairs, key=lambda made: made[0].plane)


def loopback_pairs(
    local: Sequence[LocalPort], remote: Sequence[RemotePort], version: int
) -> list[Pair]:
    """Pairs the loopback ports of two Contexts on one host by order, in one IP version."""
    return list(
        zip(
            [port for port in local if port.address.version == version],
            [port for port in remote if port.address.version == version],
            strict=False,
        )
    )


def _is_link_local(port: LocalPort | RemotePort) -> bool:
    return port.address.version == 6 and port.address.ip.is_link_local


# ---- EVs ------------------------------------------------------------------------------------


def srv6_evs(
    paths: Sequence[HostPath],
    ports: Sequence[LocalPort],
    sports: Mapping[int, Sequence[int]],
    dport: int,
    rng: random.Random,
) -> list[PathEv]:
    """One EV for each path of the host configuration whose port exists. `sports`: the UDP source
    ports of this Context by plane, one for each transmit socket.
    """
    by_plane = {port.plane: port for port in ports}
    paths = [path for path in paths if path.plane in by_plane]
    labels = rng.sample(_FLOW_LABELS, len(paths))
    evs = [
        PathEv(
            EvAttr(
                port=path.plane,
                tx_index=0,
                source=by_plane[path.plane].address.ip,
                destination=path.destination,
                sport=sports[path.plane][0],
                flow_label=label,
                dport=dport,
            ),
            path.name,
            path.segments,
            path.usids,
        )
        for path, label in zip(paths, labels, strict=True)
    ]
    return distinct(evs)


def pair_evs(
    pairs: Sequence[Pair],
    sports: Mapping[int, Sequence[int]],
    dport: int,
    per_pair: int,
    rng: random.Random,
) -> list[PathEv]:
    """Several EVs for each pair of ports."""
    labels = iter(rng.sample(_FLOW_LABELS, len(pairs) * per_pair))
    evs: list[PathEv] = []
    for i, (local, remote) in enumerate(pairs):
        rank = sum(1 for port, _ in pairs[:i] if port.plane == local.plane)
        sharing = sum(1 for port, _ in pairs if port.plane == local.plane)
        # Pairs of one IPv4 port divide its sockets, because only the source port names an EV.
        pool = range(len(sports[local.plane]))[rank::sharing]
        for k in range(per_pair if local.address.version == 6 else min(per_pair, len(pool))):
            tx_index = pool[k] if local.address.version == 4 else 0
            attr = EvAttr(
                port=local.plane,
                tx_index=tx_index,
                source=local.address.ip,
                destination=remote.address.ip,
                sport=sports[local.plane][tx_index],
                flow_label=0 if local.address.version == 4 else next(labels),
                dport=dport,
            )
            evs.append(PathEv(attr, f"{local.nic}>{remote.address.ip}#{k + 1}"))
    return distinct(evs)


def distinct(evs: Iterable[PathEv]) -> list[PathEv]:
    """Removes duplicates and surplus EVs.

    A duplicate has the same 32 bits as an earlier EV: two ports can have the same source port. Each
    plane keeps at most its equal share of the EV table.
    """
    seen: dict[int, PathEv] = {}
    for ev in evs:
        seen.setdefault(ev.attr.ev, ev)
    planes: dict[int, list[PathEv]] = {}
    for ev in seen.values():
        planes.setdefault(ev.attr.port, []).append(ev)
    share = limits.MAX_EVS // max(1, len(planes))
    return [ev for plane in sorted(planes) for ev in planes[plane][:share]]


def peer_sources(addresses: Iterable[tuple[IpAddress, Iterable[int]]]) -> list[PeerSource]:
    """The distinct sources of a peer's packets, from addresses with their source ports."""
    sources = {(address, sport): None for address, sports in addresses for sport in sports}
    return [PeerSource(*source) for source in sources][: limits.MAX_PEER_SOURCES]
