# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed drain` and `undrain`: maintenance without loss."""

from __future__ import annotations

import argparse

from mrc.cli.arguments import add
from mrc.cli.output import Output, listed
from mrc.fabric.targets import FORMS
from mrc.testbed import spread
from mrc.testbed.bed import Testbed
from mrc.testbed.results import Drained

DESCRIPTION = """\
Move the hosts' traffic off a part of the fabric: each host withdraws its routes
over it. Packets in flight still arrive. mrc goes on on other paths without a
retransmission. What would leave two hosts without a path is refused.
"""


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(parser, f"target TARGET  what to drain: {FORMS}")


def add_undrain_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, f"target TARGET  what to use again: {FORMS}; all: all that is drained")


def drain(args: argparse.Namespace) -> int:
    bed = spread.existing(args.name)
    changed = (args.target,) if bed.drain(args.target) else ()
    Output.of(args).text(f"{args.target} {'is' if changed else 'was already'} drained")
    return _told(args, bed, changed)


def undrain(args: argparse.Namespace) -> int:
    bed = spread.existing(args.name)
    changed = tuple(bed.undrain(args.target))
    Output.of(args).text(f"in use again: {listed(changed)}; still drained: {listed(bed.drained())}")
    return _told(args, bed, changed)


def _told(args: argparse.Namespace, bed: Testbed, changed: tuple[str, ...]) -> int:
    Output.of(args).result(Drained(name=args.name, changed=changed, drained=bed.drained()))
    return 0
