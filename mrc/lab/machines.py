# SPDX-License-Identifier: Apache-2.0
"""The machines of a test bed that spans several: how to run a command on each, and which part of
the test bed it has.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import combinations, count
from typing import Any
from zlib import crc32

from msgspec import Struct, convert
from msgspec.structs import replace

from mrc.errors import ArgumentError, ResolveError
from mrc.fabric import document
from mrc.fabric.document import Table
from mrc.testbed.bed import Testbed
from mrc.testbed.plan import (
    BedLink,
    BedPlan,
    MachineShare,
    Node,
)
from mrc.testbed.shape import MANAGEMENT, Shape
from mrc.units import counted

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 {name}"
PORT = 47900
_IP_MTU, _IPV6_MTU = 14, 24


class BedMachine(Struct, frozen=True):
    """A machine with a part of a test bed."""

    name: str
    """for people, and for `reach`"""
    address: str = ""
    """where the other machines reach it; empty: not looked up yet"""
    reach: str = SSH
    """a command that takes one more word, a command line for a shell, and runs it there"""
    mrc: str = "mrc"
    """path of mrc there"""

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        return ip_address(self.address)

    def command(self, words: Sequence[str], *, terminal: bool = False) -> list[str]:
        """Arguments that run `mrc testbed` with these words there."""
        argv = shlex.split(self.reach.replace("{name}", self.name))
        if terminal and os.path.basename(argv[0]) == "ssh":
            argv.insert(1, "-t")
        return [*Testbed.way_out(), *argv, f"exec {shlex.join([self.mrc, 'testbed', *words])}"]


class Machines(Struct, frozen=True):
    """All machines of a test bed, in their order."""

    every: tuple[BedMachine, ...]
    port: int = PORT
    """UDP port of VXLAN"""
    here: int = -1
    """which of them this is"""

    @property
    def names(self) -> list[str]:
        return [machine.name for machine in self.every]


def decode(stored: Any) -> Machines:
    """The machines from JSON. Raises ValueError."""
    return convert(stored, Machines)


def read(text: str) -> Machines:
    """The machines of `--on`: names for ssh, separated by commas, or the path of a file.

    Raises ArgumentError, and BadFileError for an invalid file.
    """
    if "/" in text or text.endswith(".toml"):
        found = document.read(text, {}, "file of machines")
        machines = _parse(Table(found.values, found.place))
    else:
        machines = Machines(tuple(BedMachine(name) for name in text.split(",")))
    names = machines.names
    if len(names) < 2 or not all(names) or len({*names}) < len(names):
        raise ArgumentError(f"--on {text}: at least two machines, each with a name of its own")
    return machines


def _parse(table: Table) -> Machines:
    reach, mrc = table.text("reach", SSH), table.text("mrc", "mrc")
    port = table.integer("port", 1, 65535, PORT)
    every = []
    for each in table.tables("machines"):
        machine = BedMachine(
            name=each.text("name"),
            address=str(each.parsed("address", ip_address)) if each.has("address") else "",
            reach=each.text("reach", reach),
            mrc=each.text("mrc", mrc),
        )
        each.close()
        if not shlex.split(machine.reach):
            raise table.error("reach", "is empty")
        every.append(machine)
    table.close()
    return Machines(tuple(every), port)


def located(machines: Machines) -> Machines:
    """With the address of each machine, and which of them this is.

    Raises ResolveError, and ArgumentError if none of them is this machine.
    """
    found = [replace(each, address=each.address or _look_up(each.name)) for each in machines.every]
    here = [place for place, each in enumerate(found) if _is_here(each)]
    if len(here) != 1:
        named = " and ".join(found[each].name for each in here) + " are all" if here else "none is"
        raise ArgumentError(
            f"of {', '.join(machines.names)}, {named} this machine: list each machine once, and "
            "run this command on one of them"
        )
    if found[here[0]].ip.is_loopback:  # as /etc/hosts of Debian has it
        other = found[here[0] - 1]
        found[here[0]] = replace(found[here[0]], address=toward(other)[0])
    for one, other in combinations(found, 2):
        if one.ip.version != other.ip.version:
            raise ArgumentError(
                f"{one.name} has {one.address}, but {other.name} {other.address}: give addresses "
                "of one IP version in a file, see mrc/testbed/README.md"
            )
    return Machines(tuple(found), machines.port, here[0])


def toward(machine: BedMachine) -> tuple[str, int]:
    """The address that this machine sends from to another, and the MTU on the way as far as the
    kernel knows it. Raises ResolveError if there is no route.
    """
    is_ipv4 = machine.ip.version == 4
    family = socket.AF_INET if is_ipv4 else socket.AF_INET6
    level, option = (socket.IPPROTO_IP, _IP_MTU) if is_ipv4 else (socket.IPPROTO_IPV6, _IPV6_MTU)
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((machine.address, PORT))
        except OSError as exc:
            raise ResolveError(
                f"no route to {machine.name} at {machine.address}: {exc.strerror}"
            ) from exc
        return str(sock.getsockname()[0]), sock.getsockopt(level, option)


def _look_up(name: str) -> str:
    host = name.rpartition("@")[2]
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as exc:
        raise ResolveError(
            f"no address of {name}: {exc.strerror}; give it in a file: mrc testbed up --on FILE, "
            "see mrc/testbed/README.md"
        ) from exc


def _is_here(machine: BedMachine) -> bool:
    family = socket.AF_INET if machine.ip.version == 4 else socket.AF_INET6
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
        try:
            sock.bind((machine.address, 0))
        except OSError:
            return False
    return True


# ---- Partition -----------------------------------------------------------------------------------
#
# A T0 has the same machine in every plane, with all its hosts: neighbours in their order. The other
# switches are dealt out in turns, so each machine has some of every plane. Every machine has a
# `mgmt` for its hosts, and a link from it to that of every other machine:
#
#     mK      interface of `mgmt`, to that of machine K; the machine with the lower number is above
#
# A link between nodes on two machines is a VXLAN with a VNI of its own. All VNIs of a test bed
# begin with the same byte, which depends on its name.


OVERHEAD = {4: 50, 6: 70}
"""What VXLAN adds to the MTU of a link, by the version of the machines' addresses."""

_MOST_LINKS = 1 << 16


def check_partition(shape: Shape, machines: int) -> None:
    """Raises ArgumentError for a test bed that cannot be cut."""
    if shape.is_emulated:
        raise ArgumentError(
            "the switches of an emulated fabric are one process, on one machine: use a kernel "
            "fabric over several"
        )
    if shape.outside:
        raise ArgumentError(
            "an uplink, interfaces and real hosts join a test bed on one machine to the world: not "
            "over several"
        )
    if machines > shape.t0:
        raise ArgumentError(
            f"{counted(machines, 'machine')} for {counted(shape.t0, 'T0')} in a plane: a T0 with "
            f"its hosts is on one machine; use at most {shape.t0}, or --t0 {machines} or more"
        )


def owners_of(plan: BedPlan, machines: int) -> dict[str, int]:
    """Node -> number of its machine. `mgmt` is on all of them and is left out."""
    shape, turns = plan.shape, count()
    found = {}
    for name in plan.nodes:
        if name in plan.configs:
            found[name] = shape.t0_of(int(name[1:])) * machines // shape.t0
        elif name.startswith("t0-"):
            found[name] = int(name.rpartition("-")[2]) * machines // shape.t0
        elif name != MANAGEMENT:
            found[name] = next(turns) % machines
    return found


def machine_shares(
    plan: BedPlan, machines: Machines, lost: Mapping[str, str]
) -> tuple[MachineShare, ...]:
    """What each machine has. `lost`: machine -> why it does not answer."""
    of = owners_of(plan, len(machines.every))
    crossing = [
        {of[link.lower], of[link.upper]}
        for link in plan.links
        if link.upper != MANAGEMENT and of[link.lower] != of[link.upper]
    ]
    return tuple(
        MachineShare(
            name=machine.name,
            address=machine.address or None,
            hosts=tuple(name for name in plan.configs if of[name] == place),
            switches=tuple(
                node.part
                for name, node in plan.nodes.items()
                if of.get(name) == place and name not in plan.configs
            ),
            tunnels=sum(place in pair for pair in crossing),
            lost=lost.get(machine.name),
        )
        for place, machine in enumerate(machines.every)
    )


def part(plan: BedPlan, machines: Machines) -> BedPlan:
    """The part of a whole plan that this machine has."""
    of, here = owners_of(plan, len(machines.every)), machines.here
    links = tuple(_links(plan, of, machines))
    nodes = {name: node for name, node in plan.nodes.items() if of.get(name, here) == here}
    nodes[MANAGEMENT] = _management(nodes[MANAGEMENT], of, here).on_links(links)
    configs = {host: text for host, text in plan.configs.items() if of[host] == here}
    return replace(plan, nodes=nodes, links=links, configs=configs)


def _links(plan: BedPlan, of: Mapping[str, int], machines: Machines) -> Iterator[BedLink]:
    here, vnis = machines.here, count((1 + crc32(plan.name.encode()) % 255) * _MOST_LINKS)

    def tunnel(link: BedLink, lower: int, upper: int) -> Iterator[BedLink]:
        vni = next(vnis)
        if here in (lower, upper):
            end = int(upper == here)
            remote = machines.every[lower if end else upper].ip
            yield link.through(end, vni, remote, machines.port)

    for one, other in combinations(range(len(machines.every)), 2):
        # As large as those of the planes, to try at `up` whether packets of this size pass.
        link = BedLink(MANAGEMENT, f"m{one}", MANAGEMENT, f"m{other}", plan.shape.mtu)
        yield from tunnel(link, other, one)
    for link in plan.links:
        lower = of[link.lower]
        upper = of.get(link.upper, lower)  # the mgmt of its machine
        if lower != upper:
            yield from tunnel(link, lower, upper)
        elif lower == here:
            is_plane = link.upper != MANAGEMENT
            yield link if is_plane else replace(link, mtu=min(link.mtu, plan.shape.mtu))


def _management(node: Node, of: Mapping[str, int], here: int) -> Node:
    """The `mgmt` of this machine, without its addresses on its links."""
    way = {host: f"m{at}" for host, at in of.items() if host[0] == "h" and at != here}
    # Our end of a link to a machine with a lower number is the lower one.
    upper, lower = (BedLink.UPPER, BedLink.UPPER_MAC), (BedLink.LOWER, BedLink.LOWER_MAC)
    far = {f"m{at}": upper if at < here else lower for at in of.values()}

    def passed_on() -> Iterator[tuple[str, IPv4Address, str]]:
        for host, _, address in node.ipv4:
            if host in way and address is not None:
                yield way[host], address, far[way[host]][1]

    return replace(
        node,
        routes=tuple(
            dataclasses.replace(route, dev=way[route.dev], via=far[way[route.dev]][0])
            if route.dev in way
            else route
            for route in node.routes
        ),
        addresses=(),
        neighbours=tuple(passed_on()),
        ipv4=tuple((way.get(host, host), own, address) for host, own, address in node.ipv4),
    )
