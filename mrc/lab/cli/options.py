# SPDX-License-Identifier: Apache-2.0
"""The options by which `mrc testbed up` joins a test bed to the world, or spreads it over several
machines, and what people read of these.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mrc.cli.arguments import add, argument
from mrc.lab.outside import parse_lent, parse_real_host
from mrc.testbed.plan import make_plan
from mrc.testbed.results import MachineShare, Outside
from mrc.testbed.shape import Shape, as_argument_error
from mrc.units import counted

if TYPE_CHECKING:
    from mrc.lab.machines import Machines

OUTSIDE = """
--uplink IFNAME               hosts reach what this machine reaches over this interface, by NAT
--interface IFNAME=NODE...    move an interface of this machine into a host or a switch, such as
                              eth2=h0 or eth3=t1:2.0; down returns it
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
    real = {"type": argument(parse_real_host)}
    lent = {"type": argument(parse_lent)}
    add(group, OUTSIDE, interface=lent, real_host=real)


def outside_of(args: argparse.Namespace, outside: Outside) -> Outside:
    """With what options add or override."""
    return replace(
        outside,
        uplink=args.uplink or outside.uplink,
        interfaces=(*outside.interfaces, *args.interface),
        hosts=(*outside.hosts, *args.real_host),
    )


def outside_lines(outside: Outside) -> list[str]:
    """What joins the test bed to the world, for people."""
    found = [f"uplink {outside.uplink}: hosts reach the world by NAT"] if outside.uplink else []
    found += [f"{each.node} has the interface {each.interface}" for each in outside.interfaces]
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
    from mrc.lab import cut, machines  # slow imports

    wanted = machines.read(names)
    with as_argument_error():
        cut.check(shape, len(wanted.every))
    return cut.machine_shares(make_plan("plan", shape), wanted, {})


def located(names: str) -> Machines:
    """The machines of `--on`, with their addresses. Raises ArgumentError, and BadFileError."""
    from mrc.lab import machines  # slow import

    return machines.located(machines.read(names))


def text(share: MachineShare, planes: int) -> str:
    """`host-b (192.0.2.2): h8..h15, t0:*.1, t1:1.0, t1:2.1, 64 links to other machines`"""
    where = f" ({share.address})" if share.address else ""
    hosts = share.hosts[0] if len(share.hosts) == 1 else f"{share.hosts[0]}..{share.hosts[-1]}"
    switches = _in_every_plane(share.switches, planes)
    named = ", ".join(switches[:_NAMED])
    if (more := len(switches) - _NAMED) > 0:
        named += f" and {more} more"
    links = counted(share.tunnels, "link")
    return f"{share.name}{where}: {hosts}, {named}, {links} to other machines"


def _in_every_plane(switches: Sequence[str], planes: int) -> list[str]:
    """`t0:*.1` stands for those of all planes."""
    alike = Counter(re.sub(r":\d+\.", ":*.", name) for name in switches)
    every = [name for name, count in alike.items() if count == planes]
    return every + [name for name in switches if re.sub(r":\d+\.", ":*.", name) not in every]


def lost_text(share: MachineShare) -> str:
    return f"{share.name} is lost, with its hosts and switches: {share.lost}"
