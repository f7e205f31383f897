# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed capture`: what passes a host or a link, as a pcap file."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

from mrc.cli.arguments import count_argument, seconds_argument
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
Write what passes a host or a link into a pcap file, until SIGINT. Bursts, which the kernel moves
whole, are cut into the packets that a wire would carry, each with its lengths and checksum; a
packet that is seen at two interfaces is written twice. Needs no tcpdump.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "where", metavar="HOST|LINK",
        help=f"h0, h1, ... for all ports of a host, or a target of faults: {FORMS}",
    )  # fmt: skip
    parser.add_argument("file", metavar="FILE", help="to write; - for stdout: | tshark -r -")
    parser.add_argument(
        "--count", type=count_argument(1 << 40), metavar="N", help="end after so many packets"
    )
    parser.add_argument("--seconds", type=seconds_argument, metavar="S", help="end after so long")
    parser.add_argument(
        "--snaplen", type=count_argument(1 << 31), default=_MAX_SNAP_BYTES, metavar="BYTES",
        help="keep so many of each packet [all]",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.file == "-" and (args.json or sys.stdout.isatty()):
        raise UsageError(args.prog, "packets on stdout want a pipe, and no --json beside them")
    bed = Testbed.existing(args.name)
    with as_argument_error():
        where = capture.interfaces(bed.plan, args.where)
    names = " ".join(f"{node}:{interface}" for node, interface in where)
    deadline = None if args.seconds is None else time.monotonic() + args.seconds

    def begun() -> None:
        out.note(f"capturing at {names}")
        if not capture.splits_bursts():
            out.note("this kernel is older than Linux 6.2: each burst is one packet here")

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
            out.note("whoever read the packets has gone")
            return 0
    size = format_bytes(taken.bytes)
    out.note(f"{taken.packets} packets, {size}, {taken.dropped} dropped by the kernel")
    out.result(
        like(Captured, taken, dropped_packets=taken.dropped, interfaces=tuple(names.split()))
    )
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
