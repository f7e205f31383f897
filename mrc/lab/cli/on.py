# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed up --on`: the option, and what it gives each machine."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrc.cli.arguments import add
from mrc.testbed.plan import make_plan
from mrc.testbed.results import MachineShare
from mrc.testbed.shape import Shape, as_argument_error
from mrc.units import counted

if TYPE_CHECKING:
    from mrc.lab.machines import Machines

OPTIONS = """
--on MACHINES  spread it over these machines: names for ssh, separated by commas, one of them this
               machine; or a TOML file that lists them
"""
_NAMED = 6  # switches of a machine that a line names


def add_option(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS)


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
