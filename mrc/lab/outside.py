# SPDX-License-Identifier: Apache-2.0
"""What joins a test bed to the world: the table `[outside]` of a file, its options, and what they
add to the plan. Pure.

With an uplink, hosts route what is outside of the test bed to `mgmt`, and `mgmt` to the machine:

    h0 mgmt --- h0 mgmt uplink --- mrc-NAME (the machine) eth0 --- the world

Both `mgmt` and the machine rewrite the source address (NAT), so the machine needs no route to the
hosts, and several test beds have the same addresses.

The namespace of a real host is its *stand-in*: a bridge for each plane, and nothing else. So
faults, queues and counters of its links are those of any host, in both fabrics:

    the real host --- tap1 p1 --- h1 t0:1.1
                      stand-in
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface, IPv6Network
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from mrc.cli.arguments import add
from mrc.errors import ArgumentError
from mrc.fabric.document import Table
from mrc.testbed import plan as plans
from mrc.testbed.plan import BedLink, BedPlan, MachineShare, Node
from mrc.testbed.routes import Route
from mrc.testbed.shape import (
    MANAGEMENT,
    Outside,
    RealHost,
    Shape,
)
from mrc.units import counted

if TYPE_CHECKING:
    from mrc.lab.machines import Machines


UPLINK = "uplink"
"""the interface of `mgmt` towards the machine"""
_OUTSIDE = IPv6Network("::/0")
_STAND_IN_MAC = "02:00:00:00:00:03"  # the bridge must not take packets for the real host itself
_STAND_IN = {f"net/ipv6/conf/{scope}/disable_ipv6": "1" for scope in ("all", "default")}

# 198.18.0.0/15 is for tests of networks (RFC 2544), and the other prefix is a random ULA.
_TRANSIT_IPV4 = int(IPv4Address("198.18.0.0"))
_TRANSIT = int(IPv6Network("fd6d:7263:616c::/48").network_address)
_TRANSITS = 1 << 15

_MANAGEMENT_PREFIX = "mgmt:"
_INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")


def read(table: Table) -> Outside:
    """The table `[outside]` of a topology file. Raises ConfigError."""
    hosts = []
    for each in table.tables("hosts"):
        management = each.text("management") if each.has("management") else None
        hosts.append(RealHost(each.text("host"), each.texts("interfaces"), management))
        each.close()
    uplink = table.text("uplink") if table.has("uplink") else None
    table.close()
    return Outside(uplink, tuple(hosts))


def parse_real_host(text: str) -> RealHost:
    """`h1=tap1,tap2`, with a last `,mgmt:tap0` for the management network."""
    host, equals, names = text.partition("=")
    *planes, last = names.split(",")
    management = last.removeprefix(_MANAGEMENT_PREFIX) if last.startswith("mgmt:") else None
    interfaces = (*planes,) if management is not None else (*planes, last)
    if not (equals and host and interfaces and all(interfaces)):
        raise ValueError(f"{text!r} is not HOST=INTERFACE,..., such as h1=tap1,tap2,mgmt:tap0")
    return RealHost(host, interfaces, management)


def check(outside: Outside, shape: Shape) -> None:
    """Raises ValueError for what this fabric cannot have."""
    hosts = {f"h{number}": number for number in shape.host_numbers()}
    for each in outside.hosts:
        if each.host not in hosts:
            names = sorted(hosts, key=lambda name: hosts[name])
            raise ValueError(
                f"{each.host} is no host of this topology: use {names[0]}..{names[-1]}"
            )
        planes = shape.planes_of(hosts[each.host])
        if len(each.interfaces) != len(planes):
            raise ValueError(
                f"{each.host} has {counted(len(planes), 'plane')}, not {len(each.interfaces)}: one "
                "interface for each plane"
            )
    real = [each.host for each in outside.hosts]
    _no_twins("host", real)
    if len(real) == len(hosts):
        raise ValueError("all hosts are real hosts: leave one to the test bed")
    _no_twins("interface", list(_interfaces(outside)))
    for interface in _interfaces(outside):
        check_interface(interface)


def check_interface(name: str) -> None:
    """Raises ArgumentError for a name that would need quotes in scripts."""
    if not _INTERFACE.fullmatch(name):
        raise ArgumentError(f"{name!r} is not the name of an interface")


def _interfaces(outside: Outside) -> Iterator[str]:
    """Every interface of the machine, as often as it is named."""
    if outside.uplink is not None:
        yield outside.uplink
    for each in outside.hosts:
        yield from each.interfaces
        if each.management is not None:
            yield each.management


def _no_twins(what: str, names: list[str]) -> None:
    if twins := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{what} {twins[0]} is named twice")


class Transit(Struct, frozen=True):
    """The link between `mgmt` and the machine, with addresses from the test bed's name."""

    machine_end: str
    """the interface of the machine"""
    machine_ipv4: IPv4Interface
    machine_ipv6: IPv6Interface
    ipv4: IPv4Interface
    ipv6: IPv6Interface


def transit(name: str) -> Transit:
    number = crc32(name.encode())
    place = number % _TRANSITS
    return Transit(
        machine_end=f"mrc-{name}" if len(name) <= 11 else f"mrc-{number:08x}",
        machine_ipv4=IPv4Interface((_TRANSIT_IPV4 + 4 * place + 1, 30)),
        machine_ipv6=IPv6Interface((_TRANSIT + (place << 64) + 1, 64)),
        ipv4=IPv4Interface((_TRANSIT_IPV4 + 4 * place + 2, 30)),
        ipv6=IPv6Interface((_TRANSIT + (place << 64) + 2, 64)),
    )


def make_plan(name: str, shape: Shape) -> BedPlan:
    """The plan of a whole test bed, with what its hosts need for the world. Raises ValueError."""
    plan = plans.make_plan(name, shape)
    real = {each.host for each in shape.outside.hosts}
    nodes = {}
    for node in plan.nodes.values():
        if node.name in real:
            nodes[node.name] = Node(node.name, node.namespace, _STAND_IN, routes=())
        elif node.name in plan.configs and shape.outside.uplink is not None:
            nodes[node.name] = _with_way_out(node, shape)
        else:
            nodes[node.name] = node
    links = tuple(
        replace(link, lower_mac=_STAND_IN_MAC) if link.lower in real else link
        for link in plan.links
    )
    return replace(plan, nodes=nodes, links=links)


def bridges(real: RealHost, plan: BedPlan) -> dict[str, str]:
    """Interface of the machine -> the interface in the stand-in that it is joined with."""
    planes = [each.lower_name for each in links_of(real, plan) if each.upper != MANAGEMENT]
    found = dict(zip(real.interfaces, planes, strict=True))
    return found | ({} if real.management is None else {real.management: MANAGEMENT})


def links_of(real: RealHost, plan: BedPlan) -> list[BedLink]:
    """The links of a real host, in the order of its planes; the management network is the first."""
    return [link for link in plan.links if link.lower == real.host]


def _with_way_out(node: Node, shape: Shape) -> Node:
    """A host with default routes to `mgmt`, from its addresses there."""
    own = shape.addresses.oob(int(node.name.removeprefix("h")))
    return replace(
        node,
        routes=(*node.routes, Route(_OUTSIDE, MANAGEMENT, via=BedLink.UPPER, src=own)),
        gateway=(MANAGEMENT, BedPlan.ROUTER_IPV4.ip),
        neighbours=(*node.neighbours, (MANAGEMENT, BedPlan.ROUTER_IPV4.ip, BedLink.UPPER_MAC)),
    )


# ---- Options -------------------------------------------------------------------------------------


OUTSIDE = """
--uplink IFNAME               hosts reach what this machine reaches over this interface, by NAT
--real-host HOST=IFNAMES...   this host is what is at the other end of these interfaces, one for
                              each plane: h1=tap1,tap2; at the end mgmt:tap0 for the management
                              network. mrc testbed join prints what it has to configure
"""
ON = """
--on MACHINES  spread it over these machines: names for ssh, separated by commas, one of them this
               machine; or a TOML file that lists them
"""
_NAMED = 6  # switches of a machine that a line names


def add_outside(group: argparse._ArgumentGroup) -> None:
    add(group, OUTSIDE, real_host={"type": parse_real_host})


def outside_of(args: argparse.Namespace, outside: Outside) -> Outside:
    """With what options add or override."""
    return replace(
        outside,
        uplink=args.uplink or outside.uplink,
        hosts=(*outside.hosts, *args.real_host),
    )


def outside_lines(outside: Outside) -> list[str]:
    """What joins the test bed to the world, for people."""
    found = [f"uplink {outside.uplink}: hosts reach the world by NAT"] if outside.uplink else []
    for each in outside.hosts:
        management = f", management {each.management}" if each.management else ""
        found.append(
            f"{each.host} is a real host at {', '.join(each.interfaces)}{management}; what it "
            f"configures: mrc testbed join {each.host}"
        )
    return found


def add_on(parser: argparse.ArgumentParser) -> None:
    add(parser, ON)


def planned(shape: Shape, names: str) -> tuple[MachineShare, ...]:
    """What each machine of `--on` would have. Raises ArgumentError, and BadFileError."""
    from mrc.lab import machines  # slow imports

    wanted = machines.read(names)
    machines.check_partition(shape, len(wanted.every))
    return machines.machine_shares(plans.make_plan("plan", shape), wanted, {})


def located(names: str) -> Machines:
    """The machines of `--on`, with their addresses. Raises ArgumentError, and BadFileError."""
    from mrc.lab import machines  # slow import

    return machines.located(machines.read(names))


def text(share: MachineShare, planes: int) -> str:
    """`host-b (192.0.2.2): h8..h15, t0:*.1, t1:1.0, t1:2.1, 64 links to other machines`"""
    where = f" ({share.address})" if share.address else ""
    hosts = share.hosts[0] if len(share.hosts) == 1 else f"{share.hosts[0]}..{share.hosts[-1]}"
    every = re.compile(r":\d+\.")  # `t0:*.1` stands for those of all planes
    alike = Counter(every.sub(":*.", name) for name in share.switches)
    switches = [name for name, count in alike.items() if count == planes]
    switches += [name for name in share.switches if every.sub(":*.", name) not in switches]
    named = ", ".join(switches[:_NAMED])
    if (more := len(switches) - _NAMED) > 0:
        named += f" and {more} more"
    links = counted(share.tunnels, "link")
    return f"{share.name}{where}: {hosts}, {named}, {links} to other machines"


def lost_text(share: MachineShare) -> str:
    return f"{share.name} is lost, with its hosts and switches: {share.lost}"
