# SPDX-License-Identifier: Apache-2.0
"""The ports of a Context from the interfaces of this host, and the paths and EVs to a peer. Pure.

There are two path sources. `srv6` takes the paths of the host configuration, one EV each.
`interfaces` pairs local with remote addresses and gives each pair several EVs. On IPv6 these EVs
differ in the flow label. IPv4 has no flow label, so each EV requires its own source port and
therefore its own transmit socket.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_interface
from itertools import islice, product
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
    weight: int = 100
    """What a plane with it carries, in per cent of the one that carries most; 0: a backup."""
    loose: bool = False
    """Whether packets for its address may come in at other interfaces."""
    deprecated: bool = False
    """Whether new QPs use another port of its interface, if it has one."""


class PortSelection(Struct, frozen=True):
    """The ports that the current interfaces provide.

    Numbers 1 to `reserved` belong to the configured ports. A port with `plane` 0 may get any other
    number. `missing` has the reason for each configured port that is not usable, `small` a line for
    each other port that is left out because its MTU has no room for a packet, and `unused` one for
    each other interface or address that gives no port.
    """

    ports: tuple[LocalPort, ...]
    reserved: int = 0
    missing: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @classmethod
    def of_srv6(
        cls,
        host: HostConfig,
        interfaces: Sequence[Interface],
        wanted: Sequence[str] = (),
        weights: Mapping[str, int] = {},
    ) -> Self:
        """The usable ports of the host configuration, followed by loopback ports.

        These ports receive on any local address, because each EV has its own destination address.
        `wanted` selects some by interface or address, which keep their planes; empty: all. Those in
        `weights` have another weight than in the host configuration.
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
            named = {port.ifname, str(port.address.ip)}
            if wanted and not named & set(wanted):
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
            made = replace(
                _tied_port(interface, port.address),
                plane=plane,
                mtu=payload_mtu(port.mtu, port.address.version, segments=segments),
                any_address=True,
                weight=min((weights[name] for name in named & set(weights)), default=port.weight),
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
        weights: Mapping[str, int] = {},
    ) -> Self:
        """The usable ports of a host without SRv6: interfaces that are up, then loopback.

        `wanted` has interfaces or addresses in the order of the planes; empty: all. An interface
        with both IP versions provides two ports. All second ports follow all first ports, so the
        planes of an ordinary peer have the numbers 1, 2, ... A link-local address counts only where
        an interface in `wanted`, or the whole host, has no other address: many hosts have idle
        interfaces with one. `weights` are those of names in `wanted`, where they are not 100.
        """
        groups: list[list[LocalPort]] = []
        missing: list[str] = []
        small: list[str] = []
        if not wanted:
            links = [each for each in interfaces if each.up and not _is_loopback(each)]
            groups = [_group(each, kept) + _beside(each, links, kept) for each in links]
            if all(port.address.ip.is_link_local for group in groups for port in group):
                groups = [_group(each, kept, link_local=True) for each in links]
            groups = [_carrying(group, small) for group in groups]
        for plane, name in enumerate(wanted, start=1):
            try:
                group = _carrying(_wanted_group(interfaces, name, kept), missing)
            except ConfigError as error:
                missing.append(str(error))
            else:
                group = [replace(port, weight=weights.get(name, 100)) for port in group]
                groups.append([replace(port, plane=plane) for port in group[:1]] + group[1:])
        ports = [group[0] for group in groups if group]
        ports += [port for group in groups for port in group[1:]]
        if not any(port.loopback for port in ports):
            loopback = _loopback_ports(interfaces)
            if not wanted:  # a host with many bridges must work without a configuration
                ports = ports[: limits.MAX_PORTS - len(loopback)]
            ports += loopback
        found = tuple(_with_sockets(_loosened(ports), tx_sockets))
        unused = () if wanted else tuple(_unused(interfaces, found))
        return cls(found, len(wanted), tuple(missing), tuple(small), unused)


class RemotePort(Struct, frozen=True):
    """A port of the peer, as described in its hello."""

    nic: Annotated[str, Meta(max_length=64)]
    address: IpInterface
    source_ports: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(min_length=1, max_length=64)
    ]
    mtu: Annotated[int, Meta(ge=0, le=limits.MAX_MTU)]
    number: Annotated[int, Meta(ge=0, le=limits.MAX_PORTS)] = 0
    """Its number there, from 1; 0: unknown."""
    weight: Annotated[int, Meta(ge=0, le=100)] = 100
    """As that of a LocalPort."""

    @classmethod
    def of(cls, port: LocalPort, sports: Sequence[int]) -> Self:
        """What a peer is told of a port and its source ports."""
        return cls(port.nic, port.address, tuple(sports), port.mtu, port.plane, port.weight)


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


def untied_port(link: Interface, address: IpInterface, tx_sockets: int) -> LocalPort:
    """A port that routes lead to, over `link`, for QPs of peers that have named its address."""
    tied = _tied_port(link, address)
    (port,) = _with_sockets([replace(tied, ifname="", index=0, deprecated=True)], tx_sockets)
    return port


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
    Link-local ones are used where there is no other, and as long as they are in use.
    """
    usable = [a for a in interface.addresses if a.ip in kept or not a.ip.is_link_local]
    if link_local and all(a.ip.is_link_local for a in usable):
        usable = list(interface.addresses)
    if _is_loopback(interface):  # lo may also have routed addresses of the host
        usable = [a for a in usable if a.ip.is_loopback]
    old = interface.deprecated
    usable.sort(key=lambda a: (a.ip in old, a.ip.is_link_local, a.ip not in kept))
    versions = [[a for a in usable if a.version == version] for version in (6, 4)]
    firsts = (each[0] for each in versions if each)
    best = sorted(firsts, key=lambda a: (a.ip in old, a.ip.is_link_local))
    if _is_loopback(interface):
        return [_loopback_port(address, interface.mtu) for address in best]
    # Of each version the newest: temporary addresses follow each other without an end.
    left = [[a for a in each[1:] if a.ip in kept][:1] for each in versions]
    later = [address for each in left for address in each]
    return [
        replace(_tied_port(interface, a), deprecated=a.ip in old or a in later)
        for a in [*best, *later]
    ]


def link_local_port(interface: Interface, tx_sockets: int) -> LocalPort | None:
    """The link-local port of an interface, unless it has another IPv6 address."""
    sixes = [a for a in interface.addresses if a.version == 6]
    if not sixes or not all(a.ip.is_link_local for a in sixes):
        return None
    (port,) = _with_sockets([_tied_port(interface, sixes[0])], tx_sockets)
    return port


def _beside(interface: Interface, links: Iterable[Interface], kept: _Kept) -> list[LocalPort]:
    """The link-local port of an interface that shares an IPv4 network with another one and has no
    other IPv6 address, unless it is in use: `_group` has it then. By Linux's defaults both answer
    ARP requests for either address, so packets to it may come in at the wrong one; IPv6 has no such
    doubt.
    """
    own = [a for a in interface.addresses if a.version == 4]
    shares = any(
        a.ip in other.network
        for link in links
        if link.index != interface.index
        for other in link.addresses
        for a in own
        if other.version == 4
    )
    port = link_local_port(interface, 1)
    return [port] if shares and port is not None and port.address.ip not in kept else []


def _loopback_ports(interfaces: Iterable[Interface]) -> list[LocalPort]:
    groups = (_group(each) for each in interfaces if each.up and _is_loopback(each))
    return _carrying(next(groups, []), [])


def _with_sockets(ports: Iterable[LocalPort], count: int) -> Iterator[LocalPort]:
    """The ports, those of IPv4 with `count` transmit sockets, and some for pairs that join."""
    count = min(count + SPARE_SOCKETS, _MOST_SOCKETS)
    return (replace(p, tx_sockets=count if p.address.version == 4 else 1) for p in ports)


def _loosened(ports: Sequence[LocalPort]) -> Iterator[LocalPort]:
    """The ports, loose ones where interfaces share an IPv4 network."""
    for port in ports:
        yield replace(port, loose=shares_network(port, ports) and bool(port.ifname))


def _unused(interfaces: Sequence[Interface], ports: Sequence[LocalPort]) -> Iterator[str]:
    """A line for each interface or deprecated address that gives no port, beside loopback."""
    used = {port.address.ip for port in ports}
    small = {port.ifname for port in ports}
    for each in interfaces:
        if _is_loopback(each):
            continue
        if not each.up:
            yield f"{each.name} is down"
        elif not each.addresses:
            yield f"{each.name} has no address"
        elif each.name not in small and all(a.ip.is_link_local for a in each.addresses):
            yield f"{each.name} has only a link-local address"
        else:
            for address in sorted(each.deprecated - used, key=str):
                yield f"{address} of {each.name} is deprecated"


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
        return ports + _beside(interface, [each for each in interfaces if each.up], kept)
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
    plane: int
    peer_port: int = 0
    """The number that the peer gives to its port; 0: that of the plane."""

    @property
    def ev(self) -> int:
        """The 32 bits in a packet: source port in the upper half, flow label in the lower."""
        return self.sport << 16 | self.flow_label


class PeerSource(Struct, frozen=True):
    """A source address and source UDP port of the peer's packets."""

    address: IpAddress
    sport: int
    is_nat: bool = False
    """Whether a NAT has this address, and this port for now, for the other source."""


class PathEv(Struct, frozen=True):
    """An EV and the path that it names."""

    attr: EvAttr
    name: str
    segments: tuple[str, ...] = ()
    usids: tuple[str, ...] = ()


# ---- Pairs of ports -------------------------------------------------------------------------


ARP_REMEDY = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
"""for interfaces that share an IPv4 network"""


def shares_network(port: LocalPort | RemotePort, ports: Iterable[LocalPort | RemotePort]) -> bool:
    """Whether another interface among the host's `ports` is in the IPv4 network of this one: by
    Linux's defaults each of them answers ARP requests for the addresses of all.
    """
    return any(
        port.address.version == other.address.version == 4
        and port.nic != other.nic
        and port.address.ip in other.address.network
        for other in ports
    )


class PortPair(Struct, frozen=True):
    """A port of each host."""

    local: LocalPort
    remote: RemotePort
    late: bool = False
    """Whether it serves only an interface that no other pair reaches: a running QP tries it."""
    spare: bool = False
    """Whether it carries data only while the named pair of addresses, of the same interfaces, does
    not."""

    @property
    def addresses(self) -> tuple[IpAddress, IpAddress]:
        """That of this host and that of the peer."""
        return self.local.address.ip, self.remote.address.ip

    def beside(self, named: PortPair) -> PortPair:
        """This pair when the two hosts have named the addresses of another one."""
        return replace(self, spare=self.nics == named.nics and not self.late)

    @property
    def nics(self) -> frozenset[tuple[bool, str]]:
        """Its interfaces, those of this host with True."""
        return frozenset({(True, self.local.nic), (False, self.remote.nic)})

    @property
    def may_wait(self) -> bool:
        """Whether it is one of all pairs of links, of which only probes show the right ones."""
        return _is_link_local(self.local)

    @property
    def weight(self) -> int:
        """The smaller of the weights that both hosts give it."""
        return min(self.local.weight, self.remote.weight)

    @property
    def mtu(self) -> int:
        """The payload that both ports allow, in bytes."""
        return min(self.local.mtu, self.remote.mtu)


MOST_PAIRS = 16
"""of a QP, tried or not"""

# Rounds of pairing: whether the IP version is that of the named addresses, whether both ports must
# share a subnet, and how many of the two interfaces must still be without a pair.
_ROUNDS = (
    (True, True, 2),
    (False, True, 2),
    (True, False, 2),
    (False, False, 2),
    (True, True, 1),
    (False, True, 1),
)


def pair(
    local: Sequence[LocalPort],
    remote: Sequence[RemotePort],
    named: tuple[IpAddress, IpAddress] | None = None,
    *,
    first: bool = True,
) -> list[PortPair]:
    """Pairs local with remote ports: first within common subnets, then by order.

    The two addresses `named`, of this host and of the peer, are the first pair if both have ports,
    and their IP version goes first; else IPv6. Where interfaces share an IPv4 network IPv6 goes
    first, too, and IPv4 is a spare.

    Each interface is used in one IP version. A port left over on either side is paired with a port
    of its subnet that already has a pair. The other pairs are late: those over routers of ports
    that are left over, then all others. Both hosts find the same pairs: those of the side that
    connected, which is this one if it is `first`.
    """
    both = _common(local, remote)
    ends = [
        [port for port in side if port.address.ip not in both]
        for side in ((local, remote) if first else (remote, local))
    ]
    pairing = _Pairing(*ends)
    pairing.take_usual(6 if named is None or pairing.doubtful else named[0].version)
    if named is not None:
        pairing.take_named(named if first else named[::-1])
    pairing.take_late()
    made = [
        PortPair(*(ends if first else ends[::-1]), late=late)  # type: ignore[arg-type]
        for ends, late in pairing.found.items()
    ]
    for main in [each for each in made if each.addresses == named]:
        made.remove(main)
        if pairing.doubtful and main.local.address.version == 4:
            soon = [each for each in made if not each.late]
            made = [*soon, replace(main, spare=True), *made[len(soon) :]]
        else:
            made = [main, *(each.beside(main) for each in made)]
    return made[:MOST_PAIRS]


_Port = LocalPort | RemotePort


class _Pairing:
    """The pairs of the ports of two sides, found so far."""

    def __init__(self, one: Sequence[_Port], two: Sequence[_Port]) -> None:
        self._one, self._two = one, two
        self._subnets = _Subnets(one), _Subnets(two)
        self._uses: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.found: dict[tuple[_Port, _Port], bool] = {}
        """in order, and whether they are late"""
        self.doubtful = any(shares_network(port, side) for side in (one, two) for port in side)
        """whether packets to IPv4 addresses may come in at the wrong interface"""

    def _take(self, port: _Port, other: _Port, *, late: bool) -> None:
        if (port, other) not in self.found:
            self.found[port, other] = late
            self._uses[0][port.nic] += 1
            self._uses[1][other.nic] += 1

    def misfit(self, port: _Port, other: _Port) -> str:
        """Why packets between them are not possible; or ""."""
        if port.address.version != other.address.version:
            return "no common IP version"
        if _is_link_local(port) != _is_link_local(other):
            return "only one of the addresses is link-local"
        one, two = self._subnets
        if _is_link_local(port) and not one.may_meet(port.nic, two, other.nic):
            return "link-local addresses of links without a common subnet"
        return ""

    def _fits(self, port: _Port, other: _Port) -> bool:
        return not self.misfit(port, other)

    def take_usual(self, version: int) -> None:
        """Pairs for all interfaces, if possible in this IP version and within subnets."""
        for of_version, in_subnet, least_free in _ROUNDS:
            for port, other in product(self._one, self._two):
                fit = (port.address.version == version) is of_version and self._fits(port, other)
                if in_subnet:
                    fit = fit and _share_subnet(port, other)
                free = (not self._uses[0][port.nic]) + (not self._uses[1][other.nic])
                if fit and free >= least_free:
                    self._take(port, other, late=False)
        # Link-local addresses of all links are in one subnet: only probes show which one is right.
        for port, other in product(self._one, self._two):
            if _is_link_local(port) and self._fits(port, other):
                self._take(port, other, late=False)

    def take_named(self, named: tuple[IpAddress, ...]) -> None:
        for port, other in product(self._one, self._two):
            if named == (port.address.ip, other.address.ip):
                self._take(port, other, late=False)

    def take_late(self) -> None:
        """Interfaces left over with the least used of the other side, then all other pairs."""
        for port in self._one:
            others = [other for other in self._two if self._fits(port, other)]
            if others and not self._uses[0][port.nic]:
                least = min(others, key=lambda other: self._uses[1][other.nic])
                self._take(port, least, late=True)
        for other in self._two:
            ports = [port for port in self._one if self._fits(port, other)]
            if ports and not self._uses[1][other.nic]:
                least = min(ports, key=lambda port: self._uses[0][port.nic])
                self._take(least, other, late=True)
        for port, other in product(self._one, self._two):
            if self._fits(port, other):
                self._take(port, other, late=True)


def lacking_link_local(local: Sequence[LocalPort], remote: Sequence[RemotePort]) -> list[str]:
    """Interfaces of this host without an IPv6 port that share a subnet with one of the peer that
    has a link-local port: another interface of the peer may answer for its IPv4 address.
    """
    subnets = _Subnets(local), _Subnets(remote)
    have = {port.nic for port in local if port.address.version == 6}
    theirs = {port.nic for port in remote if _is_link_local(port)}
    return [
        nic
        for nic in dict.fromkeys(port.nic for port in local)
        if nic not in have and any(subnets[0].may_meet(nic, subnets[1], each) for each in theirs)
    ]


_NEAR = 0.97


def common_mtu(
    pairs: Collection[PortPair],
    others: Iterable[PortPair],
    local: Sequence[LocalPort],
    remote: Sequence[RemotePort],
) -> int:
    """The most payload that lets pairs join a QP: a little less than that of `pairs` if IPv6 may
    have to serve an interface that IPv4 does not.
    """
    least = min((each.mtu for each in pairs), default=0)
    reached = frozenset(nic for each in pairs for nic in each.nics)
    later = [each.mtu for each in others if not each.nics <= reached]
    if lacking_link_local(local, remote):
        later.append(least - (_IP_AND_UDP[6] - _IP_AND_UDP[4]))
    return min((mtu for mtu in later if mtu >= _NEAR * least), default=limits.MAX_MTU)


class _Subnets:
    """The subnets of a host's interfaces, beside the one of link-local addresses."""

    def __init__(self, ports: Iterable[_Port]) -> None:
        self._of: dict[str, list[_Port]] = {}
        for port in ports:
            if not _is_link_local(port):
                self._of.setdefault(port.nic, []).append(port)

    def may_meet(self, nic: str, others: _Subnets, other: str) -> bool:
        """Whether two links may be one: they have a common subnet, or nothing tells."""
        ours, theirs = self._of.get(nic, []), others._of.get(other, [])
        if not ours or not theirs:
            return not ours and not theirs
        return any(_share_subnet(*each) for each in product(ours, theirs))


def misfit(pair: PortPair, local: Sequence[LocalPort], remote: Sequence[RemotePort]) -> str:
    """Why two ports, of all that both hosts have, may not be a pair of a QP; or ""."""
    if {pair.local.address.ip, pair.remote.address.ip} & _common(local, remote):
        return "both hosts have this address"
    return _Pairing(local, remote).misfit(pair.local, pair.remote)


def _common(local: Iterable[_Port], remote: Iterable[_Port]) -> set[IpAddress]:
    return {port.address.ip for port in local} & {port.address.ip for port in remote}


def _share_subnet(port: _Port, other: _Port) -> bool:
    ours, theirs = port.address, other.address
    return theirs.ip in ours.network and ours.ip in theirs.network


def loopback_pairs(
    local: Sequence[LocalPort], remote: Sequence[RemotePort], version: int
) -> list[PortPair]:
    """Pairs the loopback ports of two Contexts on one host by order, in one IP version."""
    return [
        PortPair(ours, theirs)
        for ours, theirs in zip(
            [port for port in local if port.address.version == version],
            [port for port in remote if port.address.version == version],
            strict=False,
        )
    ]


def configured_pairs(
    local: Sequence[LocalPort], remote: Sequence[RemotePort]
) -> dict[int, PortPair]:
    """The pairs by plane where a host configuration defines the paths: ports of one number."""
    return {
        port.plane: PortPair(port, other)
        for port in local
        for place, other in enumerate(remote, 1)
        if (other.number or place) == port.plane
    }


def numbered(
    pairs: Iterable[PortPair], most: int, taken: Collection[int] = ()
) -> dict[int, PortPair]:
    """The pairs by plane: the first pair of a port has its number, others have free ones up to
    `most`. Pairs beyond that are left out.
    """
    pairs = list(pairs)
    used = set(taken)
    numbers: dict[int, int] = {}  # planes, by place
    for place, each in enumerate(pairs):
        if each.local.plane not in used:
            used.add(each.local.plane)
            numbers[place] = each.local.plane
    ports = {each.local.plane for each in pairs}
    free = [*range(max(ports, default=0) + 1, most + 1), *range(1, most + 1)]
    for place in range(len(pairs)):
        plane = next((n for n in free if n not in used), None)
        if place not in numbers and plane is not None:
            used.add(plane)
            numbers[place] = plane
    return {numbers[place]: each for place, each in enumerate(pairs) if place in numbers}


def left_over(pairs: Iterable[PortPair], others: Iterable[PortPair]) -> list[PortPair]:
    """Those of the `others` that serve an interface which no pair before them reaches."""
    reached = {nic for each in pairs for nic in each.nics}
    found: list[PortPair] = []
    for each in others:
        if each.mtu >= limits.MIN_MTU + SEAL_OVERHEAD and not each.nics <= reached:
            found.append(each)
            reached |= each.nics
    return found


def _is_link_local(port: _Port) -> bool:
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
                plane=path.plane,
            ),
            path.name,
            path.segments,
            path.usids,
        )
        for path, label in zip(paths, labels, strict=True)
    ]
    return distinct(evs)


_MOST_SOCKETS = 64
SPARE_SOCKETS = 4
"""of an IPv4 port, for pairs that join a QP"""


def pair_evs(
    pairs: Mapping[int, PortPair],
    sports: Mapping[int, Sequence[int]],
    dport: int,
    per_pair: int,
    rng: random.Random,
    used: Collection[int] = (),
) -> list[PathEv]:
    """Several EVs for each pair of ports, by plane. `used`: the values of EVs that the QP has."""
    # With so many, each pair finds enough that no other EV has.
    count = min(len(used) + len(pairs) * per_pair, len(_FLOW_LABELS))
    labels = rng.sample(_FLOW_LABELS, count)
    evs: list[PathEv] = []
    taken = set(used)
    for plane, each in pairs.items():
        local, remote = each.local, each.remote
        made: list[tuple[int, int]] = []  # transmit socket and flow label
        if local.address.version == 6:
            sport = sports[local.plane][0]
            found = (label for label in labels if sport << 16 | label not in taken)
            made = [(0, label) for label in islice(found, per_pair)]
        else:
            # Pairs of one IPv4 port divide its sockets, because only the source port names an EV.
            sharing = [other for other, its in pairs.items() if its.local.plane == local.plane]
            own = sports[local.plane]
            if used:
                pool = [i for i, sport in enumerate(own) if sport << 16 not in taken][:2]
            else:
                pool = list(range(min(per_pair, len(own))))
                pool = pool[sharing.index(plane) :: len(sharing)]
            made = [(tx_index, 0) for tx_index in pool[:per_pair]]
        for k, (tx_index, label) in enumerate(made):
            attr = EvAttr(
                port=local.plane,
                tx_index=tx_index,
                source=local.address.ip,
                destination=remote.address.ip,
                sport=sports[local.plane][tx_index],
                flow_label=label,
                dport=dport,
                plane=plane,
                peer_port=remote.number,
            )
            taken.add(attr.ev)
            evs.append(PathEv(attr, f"{local.nic}>{remote.address.ip}#{k + 1}"))
    return distinct(evs)


def nat_evs(
    pair: PortPair, udp_port: int, dport: int, per_pair: int, rng: random.Random
) -> list[PathEv]:
    """EVs of a pair with a NAT between its ports. They leave from the receive socket, because a NAT
    lets packets back only to where packets came from; so on IPv4 there is one.
    """
    local = pair.local
    evs = pair_evs({local.plane: pair}, {local.plane: (udp_port,)}, dport, per_pair, rng)
    return [replace(ev, attr=replace(ev.attr, tx_index=local.tx_sockets)) for ev in evs]


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
        planes.setdefault(ev.attr.plane, []).append(ev)
    share = limits.MAX_EVS // max(1, len(planes))
    return [ev for plane in sorted(planes) for ev in planes[plane][:share]]


def peer_sources(addresses: Iterable[tuple[IpAddress, Iterable[int]]]) -> list[PeerSource]:
    """The distinct sources of a peer's packets, from addresses with their source ports."""
    sources = {(address, sport): None for address, sports in addresses for sport in sports}
    return [PeerSource(*source) for source in sources][: limits.MAX_PEER_SOURCES]
