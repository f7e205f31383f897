# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed join`: prints what a real host of a test bed has to configure."""

from __future__ import annotations

import argparse

from mrc.cli.arguments import add
from mrc.cli.output import Output
from mrc.lab import realhost
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.main import Action
from mrc.testbed.shape import as_argument_error

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    interfaces = args.interfaces.split(",") if args.interfaces else ()
    with as_argument_error():
        found = realhost.joined(bed.name, bed.shape, args.host, interfaces, args.management or "")
    out.text(found.script.rstrip("\n"))
    out.result(found)
    return 0


ACTIONS = {"join": Action(run, add_arguments)}
