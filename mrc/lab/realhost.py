# SPDX-License-Identifier: Apache-2.0
"""What a real host has to configure to be a host of a test bed. Pure.

Its addresses, routes and queues are those that a namespace would have. It keeps its own default
routes, and the settings of interfaces that the test bed does not use.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mrc.cli.arguments import add
from mrc.cli.output import Output
from mrc.lab import export
from mrc.lab.outside import check_interface, links_of
from mrc.results import Result
from mrc.testbed import plan as plans
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.main import Action
from mrc.testbed.plan import BedLink, BedPlan, Node
from mrc.testbed.shape import MANAGEMENT, Shape, as_argument_error, real_host
from mrc.units import counted

_OF_MACHINE = {
    "net/ipv6/conf/all/seg6_enabled": "1",
    "net/ipv6/conf/lo/seg6_enabled": "1",
    "net/ipv6/fib_multipath_hash_policy": "1",
}
_OF_INTERFACE = {
    "disable_ipv6": "0", "seg6_enabled": "1", "accept_dad": "0", "accept_ra": "0",
    "addr_gen_mode": "1",
}  # fmt: skip

_HEAD = """\
#!/bin/sh
# Makes this machine {host} of the mrc test bed {name}. Run it as root; it requires iproute2 6.1 and
# nftables. It may run again. A restart of the machine undoes it.
set -e
folder=/run/mrc-{name}-{host}
mkdir -p "$folder"
cat > "$folder/mrc.toml" <<'END'
{config}END
cat > "$folder/hosts" <<'END'
{hosts}END
"""
_TAIL = """\
echo "this is {host}: export MRC_CONFIG=$folder/mrc.toml; names for /etc/hosts: $folder/hosts"
"""


def joined(
    name: str, shape: Shape, host: str, interfaces: Sequence[str] = (), management: str = ""
) -> HostSetup:
    """`interfaces`: the names that its interfaces have on that machine, plane by plane; empty: p1,
    p2, ... Raises ValueError.
    """
    real = real_host(shape.outside, host)
    if real is None:
        others = ", ".join(each.host for each in shape.outside.hosts) or "there is none"
        raise ValueError(f"{host} is no real host of this test bed: {others}")
    plan = plans.make_plan(name, shape)
    planes = [link.lower_name for link in links_of(real, plan) if link.upper != MANAGEMENT]
    own = list(interfaces or planes)
    if len(own) != len(planes):
        raise ValueError(
            f"{host} has {counted(len(planes), 'plane')}, not {len(own)}: name one for each"
        )
    if management and real.management is None:
        raise ValueError(f"{host} has no interface of the management network")
    for each in (*own, management or MANAGEMENT):
        check_interface(each)
    names = {"lo": "lo"} | dict(zip(planes, own, strict=True))
    if real.management is not None:
        names[MANAGEMENT] = management or MANAGEMENT
    config = re.sub(
        r'^ifname = "(.*)"$', lambda it: f'ifname = "{names[it[1]]}"', plan.configs[host],
        flags=re.M,
    )  # fmt: skip
    hosts = plans.hosts_file(shape)
    text = export.script(*_renamed(plan, plan.nodes[host], names))
    return HostSetup(
        host=host,
        interfaces=tuple(own),
        management=names.get(MANAGEMENT),
        config=config,
        hosts_file=hosts,
        script=_HEAD.format(host=host, name=name, config=config, hosts=hosts)
        + text
        + _TAIL.format(host=host),
    )


def _renamed(plan: BedPlan, node: Node, names: Mapping[str, str]) -> tuple[BedPlan, Node]:
    """The plan and its node, with that machine's interfaces, and without those that it lacks."""
    sysctls = {
        f"net/ipv6/conf/{names[plane]}/{key}": value
        for plane in names
        if plane != "lo"
        for key, value in _OF_INTERFACE.items()
    }
    links = (link for link in plan.links if link.lower == node.name and link.lower_name in names)
    return (
        replace(plan, links=tuple(_own(link, names) for link in links)),
        replace(
            node,
            sysctls=_OF_MACHINE | sysctls,
            routes=tuple(
                dataclasses.replace(route, dev=names[route.dev])
                for route in node.routes
                if route.dev in names
            ),
            addresses=tuple((names[dev], its) for dev, its in node.addresses if dev in names),
            ipv4=tuple((names[dev], *its) for dev, *its in node.ipv4 if dev in names),
            neighbours=tuple((names[dev], *its) for dev, *its in node.neighbours if dev in names),
        ),
    )


def _own(link: BedLink, names: Mapping[str, str]) -> BedLink:
    """The link without its delay, which the stand-in adds."""
    up = replace(link.up, delay_ns=0)
    return replace(link, lower_name=names[link.lower_name], up=up)


# ---- mrc testbed join ----------------------------------------------------------------------------


DESCRIPTION = """\
Print a script for sh(1) that makes a machine, a virtual machine or a container
a real host of the test bed: its addresses, its routes and its configuration
for mrc. Run the script there, as root. Example: mrc testbed join h1
--interfaces ens4,ens5 | ssh root@vm sh
"""
OPTIONS = """
host HOST             the real host: h1
--interfaces IFNAMES  its own names of its interfaces, plane by plane: ens4,ens5 [p1,p2,...]
--management IFNAME   its own name of its interface on the management network [mgmt]
"""


class HostSetup(Result, frozen=True, kw_only=True):
    """`mrc testbed join`: what the machine at the other end of the interfaces has to configure."""

    host: str
    """Name of the host."""
    interfaces: tuple[str, ...]
    """Interfaces of that machine, one in each plane."""
    management: str | None
    """Its interface on the management network; null: none."""
    config: str
    """Its host configuration file."""
    hosts_file: str
    """Names and addresses of all hosts, for its /etc/hosts."""
    script: str
    """A script for sh(1) that sets all of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    interfaces = args.interfaces.split(",") if args.interfaces else ()
    with as_argument_error():
        found = joined(bed.name, bed.shape, args.host, interfaces, args.management or "")
    out.text(found.script.rstrip("\n"))
    out.result(found)
    return 0


ACTIONS = {"join": Action(run, add_arguments)}
