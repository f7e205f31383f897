# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed capture`: writes the packets of a host or a link to a pcap file."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

from mrc.cli.arguments import add, count_argument, seconds_argument
from mrc.cli.ending import Ending
from mrc.cli.exits import UsageError
from mrc.cli.output import Output, format_bytes
from mrc.fabric.targets import FORMS
from mrc.results.plain import like, plain
from mrc.testbed import bed as beds
from mrc.testbed import capture, extras
from mrc.testbed.cli.action import Action
from mrc.testbed.names import is_host, part_name
from mrc.testbed.results import Captured
from mrc.testbed.shape import as_argument_error
from mrc.units import counted

_MAX_SNAP_BYTES = 1 << 18
_BUFFER_BYTES = 1 << 20

DESCRIPTION = """\
Write the packets of a host, a switch or a link to a pcap file, until SIGINT. tcpdump is
not required. The kernel moves bursts as one packet: capture splits a burst
into packets as on a wire, with their own lengths and checksums. A packet that
crosses two of the captured interfaces is written twice.
"""
OPTIONS = f"""
where HOST|SWITCH|LINK  h0, h1, ... for all ports of a host; mgmt; or {FORMS}
file FILE               file to write; -: stdout, such as for tshark -r -
--count N               stop after this many packets [no limit]
--seconds S             stop after this time [no limit]
--snaplen BYTES         keep only this many bytes of each packet [all]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(
        parser,
        OPTIONS,
        count={"type": count_argument(1 << 40)},
        seconds={"type": seconds_argument},
        snaplen={"type": count_argument(1 << 31), "default": _MAX_SNAP_BYTES},
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.file == "-" and (args.json or sys.stdout.isatty()):
        wrong = "FILE -: requires a pipe on stdout, and excludes --json"
        raise UsageError(args.prog, wrong)
    bed = beds.existing(args.name)
    if is_host(args.where):
        bed.elsewhere(args.where)  # its error names the hosts
    with as_argument_error():
        where = capture.interfaces(bed.plan, args.where)
    places = {bed.elsewhere(part_name(node)) for node, _ in where}
    if len(places) > 1:
        raise UsageError(
            args.prog, f"{args.where} is on several machines: capture one of its links or switches"
        )
    if (machine := places.pop()) is not None:
        found: int = extras.need(extras.THERE).capture(args, out, machine)
        return found
    names = " ".join(f"{node}:{interface}" for node, interface in where)
    deadline = None if args.seconds is None else time.monotonic() + args.seconds

    def begun() -> None:
        out.note(f"capturing at {names}")
        if not capture.splits_bursts():
            out.note("this kernel is older than Linux 6.2: the file shows a burst as one packet")

    with Ending() as ending, opened(args.file) as file:
        wanted = capture.Capture(file, min(args.snaplen, _MAX_SNAP_BYTES), args.count)
        try:
            taken = wanted.run(
                bed.plan,
                where,
                begun,
                lambda: (
                    ending.signum is not None
                    or (deadline or math.inf) <= time.monotonic()
                    or (args.until_eof and bool(select.select([0], [], [], 0)[0]))
                ),
            )
        except BrokenPipeError:
            out.note("stopped: the reader of the packets closed the pipe")
            return 0
    result = like(Captured, taken, interfaces=tuple(names.split()))
    if args.until_eof:  # stdout has the packets
        out.warn(json.dumps(plain(result)))
    else:
        tell(out, result)
    return 0


def tell(out: Output, taken: Captured) -> None:
    size = format_bytes(taken.bytes)
    out.note(f"{counted(taken.packets, 'packet')}, {size}, {taken.dropped} dropped by the kernel")
    out.result(taken)


@contextlib.contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    target = os.dup(sys.stdout.fileno()) if name == "-" else name
    file = open(target, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115  closed below
    try:
        yield file
    finally:
        with contextlib.suppress(BrokenPipeError):
            file.close()


ACTIONS = {"capture": Action(run, add_arguments)}
