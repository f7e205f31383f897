# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed capture`: writes the packets of a host or a link to a pcap file."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

from mrc.cli.arguments import add, count_argument, seconds_argument
from mrc.cli.ending import Ending
from mrc.cli.exits import UsageError
from mrc.cli.output import Output, format_bytes
from mrc.fabric.targets import FORMS
from mrc.results.plain import like
from mrc.results.testbed import Captured
from mrc.testbed import capture
from mrc.testbed.bed import Testbed, as_argument_error

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


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.file == "-" and (args.json or sys.stdout.isatty()):
        wrong = "FILE -: requires a pipe on stdout, and excludes --json"
        raise UsageError(args.prog, wrong)
    bed = Testbed.existing(args.name)
    with as_argument_error():
        where = capture.interfaces(bed.plan, args.where)
    names = " ".join(f"{node}:{interface}" for node, interface in where)
    deadline = None if args.seconds is None else time.monotonic() + args.seconds

    def begun() -> None:
        out.note(f"capturing at {names}")
        if not capture.splits_bursts():
            out.note("this kernel is older than Linux 6.2: the file shows a burst as one packet")

    with Ending() as ending, _file(args.file) as file:
        wanted = capture.Capture(file, min(args.snaplen, _MAX_SNAP_BYTES), args.count)
        try:
            taken = wanted.run(
                bed.plan,
                where,
                begun,
                lambda: ending.signum is not None or (deadline or math.inf) <= time.monotonic(),
            )
        except BrokenPipeError:
            out.note("stopped: the reader of the packets closed the pipe")
            return 0
    size = format_bytes(taken.bytes)
    out.note(f"{taken.packets} packets, {size}, {taken.dropped} dropped by the kernel")
    out.result(like(Captured, taken, interfaces=tuple(names.split())))
    return 0


@contextlib.contextmanager
def _file(name: str) -> Iterator[BinaryIO]:
    target = os.dup(sys.stdout.fileno()) if name == "-" else name
    file = open(target, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115  closed below
    try:
        yield file
    finally:
        with contextlib.suppress(BrokenPipeError):
            file.close()
