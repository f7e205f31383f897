# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed up --on`: a test bed over several machines, and `mrc testbed part` on each."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence

from mrc.cli.arguments import add
from mrc.errors import StateError
from mrc.linux import installed
from mrc.testbed import cut, machines, part
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.action import Action, Needs
from mrc.testbed.machines import Machine, Machines
from mrc.testbed.plan import make_plan
from mrc.testbed.results import MachineShare
from mrc.testbed.shape import Shape, as_argument_error
from mrc.testbed.spread import SpreadTestbed
from mrc.units import counted

OPTIONS = """
--on MACHINES  spread it over these machines: names for ssh, separated by commas, one of them this
               machine; or a TOML file that lists them
"""
PART = """\
Serve the part of a test bed that is on this machine, over stdin and stdout.
mrc testbed starts this on the machines of up --on; nobody has to type it.
"""
PART_OPTIONS = """
--traffic  instead serve mrc testbed run: pass on what the processes in the hosts of this machine
           are told and say
"""
_NAMED = 6  # switches of a machine that a line names


def add_option(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS)


def machines_of(args: argparse.Namespace) -> Machines | None:
    """Raises ArgumentError, and BadFileError for an invalid file."""
    return None if args.on is None else machines.read(args.on)


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = PART
    add(parser, PART_OPTIONS)


def run_part(args: argparse.Namespace) -> int:
    if args.traffic:
        from mrc.workload import relay  # slow import

        relay.serve(args.name)
    else:
        part.serve(args.name, sys.stdin.buffer, sys.stdout.buffer)
    return 0


def forward(machine: Machine, words: Sequence[str]) -> int:
    """Replaces this process by `mrc testbed` on another machine."""
    argv = machine.command(words, terminal=os.isatty(0) and os.isatty(1))
    if installed.find(argv[0]) is None:
        raise StateError(f"{machine.name}: {installed.not_found(argv[0])}")
    return os.execvp(argv[0], argv)


def planned(shape: Shape, wanted: Machines) -> tuple[MachineShare, ...]:
    """What each machine would have. Raises ArgumentError."""
    with as_argument_error():
        cut.check(shape, len(wanted.every))
    shares = cut.shares(make_plan("plan", shape), len(wanted.every))
    return tuple(
        _share(machine, share, None) for machine, share in zip(wanted.every, shares, strict=True)
    )


def found(bed: Testbed) -> tuple[MachineShare, ...]:
    """What each machine of a test bed has, and why it does not answer."""
    if not isinstance(bed, SpreadTestbed):
        return ()
    shares = cut.shares(bed.plan, len(bed.machines.every))
    return tuple(
        _share(machine, share, bed.unreachable.get(machine.name))
        for machine, share in zip(bed.machines.every, shares, strict=True)
    )


def _share(machine: Machine, share: cut.Share, lost: str | None) -> MachineShare:
    return MachineShare(
        name=machine.name,
        address=machine.address or None,
        hosts=share.hosts,
        switches=share.switches,
        tunnels=share.tunnels,
        lost=lost,
    )


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


def lines(bed: Testbed) -> list[str]:
    return [text(each, bed.shape.planes) for each in found(bed)]


def lost_text(share: MachineShare) -> str:
    return f"{share.name} is lost, with its hosts and switches: {share.lost}"


ACTIONS = {"part": Action(run_part, add_part_arguments, Needs.NONE, prints=False)}
