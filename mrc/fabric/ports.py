# SPDX-License-Identifier: Apache-2.0
"""Which ports a Context has, of the interfaces that this host has now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface
from typing import Annotated, Protocol

from msgspec import Meta

from mrc.errors import ConfigError
from mrc.fabric.addresses import IpAddress, IpInterface
from mrc.fabric.hostconfig import HostConfig
from mrc.limits import MAX_MTU, MAX_PORTS

_IP_HEADER = {4: 20, 6: 40}
_UDP_HEADER = 8
ENCAPSULATION = 64  # encap.red in the kernel's accounting: an IPv6 header and one segment
TRANSPORT = 44  # BTH, METH, TSETH, RETH, ImmDt and ICRC
UdpPort = Annotated[int, Meta(ge=1, le=65535)]


class Interface(Protocol):
    """What this module needs to know of a network interface."""

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


@dataclass(frozen=True, slots=True)
class LocalPort:
    """A port of this host. `plane` is its number, `mtu` the payload of a full packet.

    `index` is that of the interface: one that is deleted and made again has a new one.
    """

    plane: int
    nic: str
    address: IpInterface
    mtu: int
    loopback: bool = False
    ifname: str = ""  # the interface that its sockets are tied to; empty: none
    any_address: bool = False
    tx_sockets: int = 1
    index: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The ports that interfaces have right now.

    A port whose `plane` is 0 may have any number that is not reserved; 1 to `reserved` are those of
    ports that were asked for. `missing` says of each of these that is not usable why.
    """

    ports: tuple[LocalPort, ...]
    reserved: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemotePort:
    """A port of the peer, as it described it."""

    nic: Annotated[str, Meta(max_length=64)]
    address: IpInterface
    source_ports: Annotated[tuple[UdpPort, ...], Meta(min_length=1, max_length=64)]
    mtu: Annotated[int, Meta(ge=0, le=MAX_MTU)]


def payload_mtu(link_mtu: int, version: int, *, encapsulation: int = 0) -> int:
    """Bytes of payload that fit a packet on a link: a multiple of 4, at most MRC_MAX_MTU."""
    room = link_mtu - encapsulation - _IP_HEADER[version] - _UDP_HEADER - TRANSPORT
    return min(room, MAX_MTU) & ~3


Kept = frozenset[IpAddress]
"""Addresses that a Context uses already: a newer one of the same interface takes over no port."""


def srv6_ports(host: HostConfig, interfaces: Sequence[Interface]) -> Found:
    """The ports of the host configuration that are usable, and loopback ports after them.

    Any local address is received on, because each EV has a destination address of its own.
    """
    by_name = {interface.name: interface for interface in interfaces}
    own = {address.ip for interface in interfaces for address in interface.addresses}
    ports: list[LocalPort] = []
    missing: list[str] = []
    for plane, port in enumerate(host.ports, start=1):
        interface = by_name.get(port.ifname)
        if interface is None or not interface.up:
            missing.append(f"{port.ifname} is down" if interface else f"there is no {port.ifname}")
            continue
        if port.address.ip not in own:
            missing.append(f"{port.address.ip} is not an address of this host")
            continue
        mtu = payload_mtu(port.mtu, port.address.version, encapsulation=ENCAPSULATION)
        made = _tied_port(interface, port.address)
        ports.append(replace(made, plane=plane, mtu=mtu, any_address=True))
    # Tied to lo, they can share the UDP port with sockets that take any address.
    loopback = [replace(port, ifname=port.nic) for port in _loopback_ports(interfaces)]
    return Found((*ports, *_with_sockets(loopback, 8)), len(host.ports), tuple(missing))


def interface_ports(
    interfaces: Sequence[Interface],
    wanted: Sequence[str],
    tx_sockets: int,
    kept: Kept = frozenset(),
) -> Found:
    """The usable ports of a host without SRv6: interfaces that are up, then loopback.

    `wanted` names interfaces or addresses in the order of the planes; empty: all. An interface with
    both IP versions gives two ports, the second behind the first ports of all others, so that the
    planes of an ordinary peer count 1, 2, ... whatever else there is.
    """
    groups: list[list[LocalPort]] = []
    missing: list[str] = []
    if not wanted:
        groups = [_group(each, kept) for each in interfaces if each.up and not _is_loopback(each)]
    for plane, name in enumerate(wanted, start=1):
        try:
            first, *others = _wanted_group(interfaces, name, kept)
        except ConfigError as error:
            missing.append(str(error))
        else:
            groups.append([replace(first, plane=plane), *others])
    ports = [group[0] for group in groups if group]
    ports += [port for group in groups for port in group[1:]]
    if not any(port.loopback for port in ports):
        loopback = _loopback_ports(interfaces)
        if not wanted:  # a host full of bridges must work without naming those that matter
            ports = ports[: MAX_PORTS - len(loopback)]
        ports += loopback
    return Found(tuple(_with_sockets(ports, tx_sockets)), len(wanted), tuple(missing))


def _tied_port(interface: Interface, address: IpInterface) -> LocalPort:
    mtu = payload_mtu(interface.mtu, address.version)
    name = interface.name
    return LocalPort(0, name, address, mtu, ifname=name, index=interface.index)


def _loopback_port(address: IpInterface, link_mtu: int = 65536) -> LocalPort:
    # Not tied to an interface: then nothing has to be set up or allowed.
    return LocalPort(0, "lo", address, payload_mtu(link_mtu, address.version), loopback=True)


def _is_loopback(interface: Interface) -> bool:
    return any(address.ip.is_loopback for address in interface.addresses)


def _best_addresses(interface: Interface, kept: Kept) -> list[IpInterface]:
    """The first usable address of each IP version, IPv6 first; rather one that is in use."""
    usable = [a for a in interface.addresses if not a.ip.is_link_local]
    if _is_loopback(interface):  # which may hold routed addresses of the host too
        usable = [a for a in usable if a.ip.is_loopback]
    usable.sort(key=lambda address: address.ip not in kept)
    versions = ([a for a in usable if a.version == version][:1] for version in (6, 4))
    return [address for found in versions for address in found]


def _group(interface: Interface, kept: Kept = frozenset()) -> list[LocalPort]:
    """The ports of an interface, of each IP version one."""
    best = _best_addresses(interface, kept)
    if _is_loopback(interface):
        return [_loopback_port(address, interface.mtu) for address in best]
    return [_tied_port(interface, address) for address in best]


def _loopback_ports(interfaces: Iterable[Interface]) -> list[LocalPort]:
    return next((_group(each) for each in interfaces if each.up and _is_loopback(each)), [])


def _with_sockets(ports: Iterable[LocalPort], count: int) -> Iterator[LocalPort]:
    """Ports of IPv4 with so many transmit sockets."""
    return (replace(p, tx_sockets=count if p.address.version == 4 else 1) for p in ports)


def _wanted_group(interfaces: Sequence[Interface], name: str, kept: Kept) -> list[LocalPort]:
    """The ports of an interface or address that was named, one at least."""
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
        if not (ports := _group(interface, kept)):
            raise ConfigError(f"{name} has no address")
        return ports
    known = ", ".join(interface.name for interface in interfaces)
    raise ConfigError(f"there is no {name} (there are: {known})")
