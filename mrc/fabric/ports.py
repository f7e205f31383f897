# SPDX-License-Identifier: Apache-2.0
"""Selects the ports of a Context from the current interfaces of this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address, ip_interface
from typing import Annotated, Protocol

from msgspec import Meta, Struct
from msgspec.structs import replace

from mrc.errors import ConfigError
from mrc.fabric.addresses import IpAddress, IpInterface
from mrc.fabric.hostconfig import HostConfig
from mrc.limits import MAX_MTU, MAX_PORTS, MIN_MTU

_IP_HEADER = {4: 20, 6: 40}
_UDP_HEADER = 8
ENCAPSULATION = 64  # encap.red in the kernel's accounting: an IPv6 header and one segment
_SEGMENT = 16  # each further one
TRANSPORT = 44  # BTH, METH, TSETH, RETH, ImmDt and ICRC
SEAL_OVERHEAD = 24  # of a sealed packet: seal and tag instead of the ICRC
UdpPort = Annotated[int, Meta(ge=1, le=65535)]


class Interface(Protocol):
    """The properties of a network interface that this module uses."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def mtu(self) -> int: ...
    @property
    def up(self) -> bool: ...
    @property
    def addresses(self) -> Sequence[IpInterface]: ...


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


class Found(Struct, frozen=True):
    """The ports that the current interfaces provide.

    Numbers 1 to `reserved` belong to the configured ports. A port with `plane` 0 may get any other
    number. `missing` has the reason for each configured port that is not usable, `small` a line for
    each other port that is left out because its MTU has no room for a packet.
    """

    ports: tuple[LocalPort, ...]
    reserved: int = 0
    missing: tuple[str, ...] = ()
    small: tuple[str, ...] = ()


class RemotePort(Struct, frozen=True):
    """A port of the peer, as described in its hello."""

    nic: Annotated[str, Meta(max_length=64)]
    address: IpInterface
    source_ports: Annotated[tuple[UdpPort, ...], Meta(min_length=1, max_length=64)]
    mtu: Annotated[int, Meta(ge=0, le=MAX_MTU)]


def payload_mtu(link_mtu: int, version: int, *, encapsulation: int = 0) -> int:
    """Bytes of payload that fit a packet on a link: a multiple of 4, at most MRC_MAX_MTU."""
    room = link_mtu - encapsulation - _IP_HEADER[version] - _UDP_HEADER - TRANSPORT
    return max(0, min(room, MAX_MTU)) & ~3


def _carrying(
    ports: Iterable[LocalPort], left_out: list[str], *, encapsulation: int = 0
) -> list[LocalPort]:
    """The ports with room for the smallest packet; adds a line for each other to `left_out`."""
    found = []
    for port in ports:
        if port.mtu >= MIN_MTU:
            found.append(port)
        else:
            headers = encapsulation + _IP_HEADER[port.address.version] + _UDP_HEADER + TRANSPORT
            left_out.append(
                f"{port.nic} ({port.address.ip}) carries too little: raise its MTU to"
                f" {headers + MIN_MTU}"
            )
    return found


Kept = frozenset[IpAddress]
"""Addresses that a Context uses already. A newer address of an interface does not replace them."""


def srv6_ports(
    host: HostConfig, interfaces: Sequence[Interface], wanted: Sequence[str] = ()
) -> Found:
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
    encapsulation = ENCAPSULATION + _SEGMENT * (host.most_segments - 1)
    for plane, port in host.planes.items():
        if wanted and not {port.ifname, str(port.address.ip)} & set(wanted):
            continue
        interface = by_name.get(port.ifname)
        if interface is None or not interface.up:
            missing.append(f"{port.ifname} is down" if interface else f"no interface {port.ifname}")
            continue
        if port.address.ip not in own:
            missing.append(f"{port.address.ip} is not an address of this host")
            continue
        mtu = payload_mtu(port.mtu, port.address.version, encapsulation=encapsulation)
        made = replace(_tied_port(interface, port.address), plane=plane, mtu=mtu, any_address=True)
        ports += _carrying([made], missing, encapsulation=encapsulation)
    # Bound to lo, they can share the UDP port with sockets that receive on any address.
    loopback = [replace(port, ifname=port.nic) for port in _loopback_ports(interfaces)]
    return Found((*ports, *_with_sockets(loopback, 8)), max(host.planes, default=0), tuple(missing))


def interface_ports(
    interfaces: Sequence[Interface],
    wanted: Sequence[str],
    tx_sockets: int,
    kept: Kept = frozenset(),
) -> Found:
    """The usable ports of a host without SRv6: interfaces that are up, then loopback.

    `wanted` has interfaces or addresses in the order of the planes; empty: all. An interface with
    both IP versions provides two ports. All second ports follow all first ports, so the planes of
    an ordinary peer have the numbers 1, 2, ... A link-local address counts only where an interface
    in `wanted`, or the whole host, has no other address: many hosts have idle interfaces with one.
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
            ports = ports[: MAX_PORTS - len(loopback)]
        ports += loopback
    found = tuple(_with_sockets(ports, tx_sockets))
    return Found(found, len(wanted), tuple(missing), tuple(small))


def _tied_port(interface: Interface, address: IpInterface) -> LocalPort:
    mtu = payload_mtu(interface.mtu, address.version)
    name = interface.name
    return LocalPort(0, name, address, mtu, ifname=name, index=interface.index)


def _loopback_port(address: IpInterface, link_mtu: int = 65536) -> LocalPort:
    # Not bound to an interface: this requires no setup and no privilege.
    return LocalPort(0, "lo", address, payload_mtu(link_mtu, address.version), loopback=True)


def _is_loopback(interface: Interface) -> bool:
    return any(address.ip.is_loopback for address in interface.addresses)


def _best_addresses(interface: Interface, kept: Kept, *, link_local: bool) -> list[IpInterface]:
    """One usable address of each IP version, IPv6 first: an address in use, else the first."""
    usable = [a for a in interface.addresses if not a.ip.is_link_local]
    if link_local and not usable:
        usable = list(interface.addresses)
    if _is_loopback(interface):  # lo may also have routed addresses of the host
        usable = [a for a in usable if a.ip.is_loopback]
    usable.sort(key=lambda address: address.ip not in kept)
    versions = ([a for a in usable if a.version == version][:1] for version in (6, 4))
    return [address for found in versions for address in found]


def _group(
    interface: Interface, kept: Kept = frozenset(), *, link_local: bool = False
) -> list[LocalPort]:
    """The ports of an interface, one of each IP version."""
    best = _best_addresses(interface, kept, link_local=link_local)
    if _is_loopback(interface):
        return [_loopback_port(address, interface.mtu) for address in best]
    return [_tied_port(interface, address) for address in best]


def _loopback_ports(interfaces: Iterable[Interface]) -> list[LocalPort]:
    groups = (_group(each) for each in interfaces if each.up and _is_loopback(each))
    return _carrying(next(groups, []), [])


def _with_sockets(ports: Iterable[LocalPort], count: int) -> Iterator[LocalPort]:
    """The ports, those of IPv4 with `count` transmit sockets."""
    return (replace(p, tx_sockets=count if p.address.version == 4 else 1) for p in ports)


def _wanted_group(interfaces: Sequence[Interface], name: str, kept: Kept) -> list[LocalPort]:
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


def _named_interface(interfaces: Sequence[Interface], name: str, kept: Kept) -> list[LocalPort]:
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
