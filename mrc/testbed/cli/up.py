# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed up` and `down`: build a test bed, and remove it."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext

from mrc.cli.exits import Exit
from mrc.cli.output import Output
from mrc.errors import ConfigError, StateError
from mrc.linux import netns
from mrc.results.plain import like
from mrc.testbed import bed as beds
from mrc.testbed import extras
from mrc.testbed import state as stored
from mrc.testbed.bed import Testbed
from mrc.testbed.cli import status
from mrc.testbed.cli.action import Action, Needs
from mrc.testbed.cli.shape import add_machines, add_shape, shape_of
from mrc.testbed.programs import Removal
from mrc.testbed.results import Built, Removed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape(parser)
    add_machines(parser)


def _allowed(args: argparse.Namespace) -> AbstractContextManager[None]:
    if getattr(args, "on", None) is not None and (lacks := netns.lacks()):
        raise StateError(f"a test bed over several machines requires root on each: needs {lacks}")
    return nullcontext()


def up(args: argparse.Namespace) -> int:
    out = Output.of(args)
    shape, names = shape_of(args), getattr(args, "on", None)
    machines = None if names is None else extras.need(extras.OPTIONS).located(names)
    bed = beds.of(args.name, shape, machines)
    built = bed.up()
    summary = status.summary(bed.shape)
    first = f"{args.name} {'is up' if built else 'was up already'}: {summary}"
    out.text("\n".join([first, *status.machines(bed)]))
    if out.as_json:  # else nothing that may fail: the test bed is up
        out.result(like(Built, status.bed_result(bed, {}), built=built))
    return 0


def down(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = Removal(removed=False)
    if not netns.lacks() or stored.load(args.name) is not None:
        found = _named(args.name).down()
    for each in found.ended:
        out.text(f"ended in {each.node}: {each.command} (process {each.pid})")
    for each in found.left:
        out.warn(f"still runs, in {each.node} that is gone: {each.command} (process {each.pid})")
    out.text(f"{args.name} {'is down' if found.removed else 'was not up'}")
    for machine, why in found.unreachable.items():
        out.warn(
            f"{machine} does not answer: {why}; it keeps its part until mrc testbed down "
            f"--name {args.name} there"
        )
    out.result(like(Removed, found, name=args.name))
    return Exit.UNREACHABLE if found.unreachable else Exit.OK


def _named(name: str) -> Testbed:
    """A test bed to take down: also one whose file is damaged."""
    try:
        return beds.named(name)
    except ConfigError:
        return Testbed(name)


ACTIONS = {
    "up": Action(up, add_arguments, Needs.NEW, prepared=_allowed),
    "down": Action(down, needs=Needs.NAME),
}
