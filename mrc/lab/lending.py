# SPDX-License-Identifier: Apache-2.0
"""Interfaces that a test bed has from the machine, and how they return.

The machine is the network namespace in which `up` runs; `mrc-NAME-machine` names it. A record in
the test bed's folder is written before the machine is changed, so `down` returns everything, also
after a command that was killed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path

from msgspec import Struct, convert, to_builtins

from mrc.errors import NetlinkError, StateError
from mrc.lab.outside import bridges, links_of
from mrc.linux import netns
from mrc.linux.files import write_whole
from mrc.linux.interfaces import Interface, interfaces
from mrc.linux.netlink import Netlink
from mrc.testbed import rootless, state
from mrc.testbed.build import LinkEnd
from mrc.testbed.plan import BedPlan
from mrc.testbed.shape import MACHINE, Fabric, namespace_of, node_of, part_name

_DEFAULT = "0" * 8, "0" * 32  # destinations in /proc/net/route and /proc/net/ipv6_route

_log = logging.getLogger("mrc.testbed")


class Lent(Struct, frozen=True):
    """An interface in a test bed, and what it was on the machine."""

    interface: str
    namespace: str
    inside: str
    """its name there"""
    mtu: int
    enabled: bool
    addresses: tuple[str, ...]


class Record(Struct, frozen=True):
    """What a test bed has changed on the machine."""

    lent: tuple[Lent, ...] = ()
    sysctls: dict[str, str] = {}
    """path under /proc/sys -> its value before"""


def load(name: str) -> Record:
    """The record of a test bed; empty if there is none. Raises StateError."""
    path = state.outside_path(name)
    try:
        return convert(json.loads(path.read_text()), Record)
    except FileNotFoundError:
        return Record()
    except ValueError as exc:
        raise StateError(f"{path}: cannot read: {exc}") from exc


def save(name: str, record: Record) -> None:
    text = json.dumps(to_builtins(record), indent=2) + "\n"
    write_whole(state.outside_path(name), text.encode())


def lend(plan: BedPlan) -> None:
    """Moves the interfaces of the machine into the test bed. Raises StateError, NetlinkError."""
    wanted = list(_wanted(plan))
    if not wanted:
        return
    machine = namespace_of(plan.name, MACHINE)
    netns.keep(machine)
    there = {each.name: each for each in interfaces(machine)}
    ways_out = _with_default_route(machine)
    lent = []
    for interface, node, inside in wanted:
        found = existing(interface, there)
        if interface in ways_out:
            raise StateError(f"{interface} has the default route: the machine would be cut off")
        addresses = tuple(map(str, found.addresses))
        place = plan.nodes[node].namespace
        _check_free(inside, node, place)
        lent.append(Lent(interface, place, inside, found.mtu, found.enabled, addresses))
    save(plan.name, Record(tuple(lent)))
    for each in lent:
        with Netlink(machine) as netlink:
            netlink.move(each.interface, each.namespace, each.inside)
        if each.interface == each.inside:  # else it is a port of a bridge
            _enable(each.namespace, each)
    _join_real_hosts(plan)


def _check_free(name: str, node: str, place: str) -> None:
    """Raises StateError if the node has an interface of this name, such as lo: the two could not be
    told apart when one returns.
    """
    if name in {each.name for each in interfaces(place)}:
        raise StateError(
            f"{part_name(node)} has an interface {name} of its own: lend another one, or rename "
            "this one first"
        )


def existing(interface: str, there: Mapping[str, Interface]) -> Interface:
    """Raises StateError if the machine has no such interface."""
    if interface in there:
        return there[interface]
    why = f"it has {', '.join(name for name in there if name != 'lo') or 'none'}"
    if rootless.KEEPER in os.environ:
        why = "a test bed of an ordinary user has none of its interfaces: run this command as root"
    raise StateError(f"this machine has no interface {interface}; {why}")


def give_back(name: str) -> None:
    """Returns every interface to the machine, with its name, addresses and state.

    Raises StateError, and NetlinkError.
    """
    machine = namespace_of(name, MACHINE)
    for each in load(name).lent:
        netns.keep(machine)  # somebody may have removed the name
        _return(each, machine)
    netns.remove(machine)


def follow(plan: BedPlan, held_down: Collection[LinkEnd]) -> None:
    """Sets the interfaces of real hosts down where faults hold their links down, and up elsewhere:
    a bridge would hide the state of the link.
    """
    for real in plan.shape.outside.hosts:
        upper = {link.lower_name: (link.upper, link.upper_name) for link in links_of(real, plan)}
        with Netlink(plan.nodes[real.host].namespace) as netlink:
            for port in bridges(real, plan).values():
                netlink.set_links([_port(port)], up=upper[port] not in held_down)


def _wanted(plan: BedPlan) -> Iterator[tuple[str, str, str]]:
    """Interface of the machine, node, and the name there."""
    shape = plan.shape
    has_switches = shape.fabric is Fabric.KERNEL
    for lent in shape.outside.interfaces:
        node = node_of(lent.node, shape, has_switches=has_switches)
        yield lent.interface, node, lent.interface
    for real in shape.outside.hosts:
        for interface, port in bridges(real, plan).items():
            yield interface, real.host, _port(port)


def _port(name: str) -> str:
    """The interface towards a real host, which is joined with this one."""
    return f"real-{name}"


def _join_real_hosts(plan: BedPlan) -> None:
    for real in plan.shape.outside.hosts:
        mtus = {link.lower_name: link.mtu for link in links_of(real, plan)}
        with Netlink(plan.nodes[real.host].namespace) as netlink:
            for port in bridges(real, plan).values():
                netlink.set_mtu(_port(port), mtus[port])
                netlink.add_bridge(f"br-{port}", (port, _port(port)))
                netlink.set_links([_port(port)], up=True)


def _return(lent: Lent, machine: str) -> None:
    """Moves an interface back, from wherever it is. The kernel itself returns a network card whose
    namespace was removed, under the name that it had there.
    """
    places = [lent.namespace] if lent.namespace in netns.names() else []
    for place in (*places, machine):
        is_there = lent.inside in {each.name for each in interfaces(place)}
        if is_there and (place, lent.inside) != (machine, lent.interface):
            _move_back(lent, place, machine)
    if lent.interface in {each.name for each in interfaces(machine)}:
        with Netlink(machine) as netlink:
            netlink.set_mtu(lent.interface, lent.mtu)
        _enable(machine, lent)
    else:
        _log.warning("%s does not exist any more", lent.interface)


def _move_back(lent: Lent, place: str, machine: str) -> None:
    try:
        with Netlink(place) as netlink:
            netlink.move(lent.inside, machine, lent.interface)
    except NetlinkError as exc:
        if exc.code != errno.EEXIST:
            raise
        raise StateError(
            f"{lent.interface} cannot return, because the machine has another interface of this "
            "name: rename that one, then run mrc testbed down again"
        ) from exc


def _enable(place: str, lent: Lent) -> None:
    """Sets the interface up, if it was, with its addresses."""
    every = [ip_interface(each) for each in lent.addresses]
    ipv6 = [(lent.interface, each) for each in every if isinstance(each, IPv6Interface)]
    ipv4: list[tuple[str, IPv4Interface, IPv4Address | None]] = [
        (lent.interface, each, None) for each in every if isinstance(each, IPv4Interface)
    ]
    with Netlink(place) as netlink:
        netlink.set_links([lent.interface], up=lent.enabled)
        netlink.add_ipv4(ipv4)
        netlink.add_addresses(ipv6)


def _with_default_route(machine: str) -> set[str]:
    """The interfaces over which the machine reaches the rest of the world."""
    with netns.inside(machine):
        files = [Path("/proc/thread-self/net", name) for name in ("route", "ipv6_route")]
        ipv4, ipv6 = (path.read_text().splitlines() for path in files)
    found = {row[0] for row in map(str.split, ipv4) if (row[1], row[7]) == (_DEFAULT[0],) * 2}
    found |= {row[-1] for row in map(str.split, ipv6) if row[:2] == [_DEFAULT[1], "00"]}
    return found - {"lo"}
