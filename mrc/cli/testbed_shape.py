# SPDX-License-Identifier: Apache-2.0
"""The shape of a test bed on the command line: a topology file, options, or both."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import Any

from mrc.cli.arguments import argument, size_argument, time_argument
from mrc.errors import ArgumentError
from mrc.testbed import reader
from mrc.testbed.bed import as_argument_error
from mrc.testbed.shape import DEFAULT_RATE, Fabric, Shape, parse_rate, scale_rates, with_delay

rate_argument = argument(parse_rate)  # bit/s; None: no limit

_EMULATED = ("ecn_low_bytes", "ecn_high_bytes", "trim")
_COUNTS = (
    ("hosts", "2", "number of hosts"),
    ("planes", "4", "number of planes"),
    ("t0", "one for each host", "T0s per plane"),
    ("t1", "2", "T1s per plane"),
    ("mtu", "9000", "of every link of the fabric, in bytes"),
)


def add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE",
        help="topology file, or the name of a built-in topology or scenario; options count more",
    )  # fmt: skip
    for key, default, text in _COUNTS:
        parser.add_argument(f"--{key}", type=int, metavar="N", help=f"{text} [{default}]")
    parser.add_argument(
        "--rate", type=rate_argument, default=argparse.SUPPRESS, metavar="RATE",
        help="of the hosts' links, such as 10gbit, others keep their ratio to it; none for no "
        f"limit anywhere [{DEFAULT_RATE}]",
    )  # fmt: skip
    parser.add_argument("--delay", type=time_argument, metavar="TIME", help="of every link [0]")
    parser.add_argument(
        "--jitter", type=time_argument, metavar="TIME", dest="jitter_ns",
        help="added to it by chance, up to this [0]",
    )  # fmt: skip
    parser.add_argument(
        "--buffer", type=size_argument, metavar="SIZE", dest="buffer_bytes",
        help="of a switch port [10 ms at the rate, at least 256KiB]",
    )  # fmt: skip
    parser.add_argument(
        "--fabric", choices=[*Fabric], default=Fabric.KERNEL,
        help="kernel: a namespace for each switch; emulated: the simulator's switches in real "
        "time, which queue, mark and trim [%(default)s]",
    )  # fmt: skip
    group = parser.add_argument_group("of an emulated fabric")
    for level, text in (
        ("low", "data is marked by chance from here on [a tenth of the buffer]"),
        ("high", "and always from here on [four tenths of the buffer]"),
    ):
        group.add_argument(
            f"--ecn-{level}", type=size_argument, metavar="SIZE", dest=f"ecn_{level}_bytes",
            help=text,
        )  # fmt: skip
    group.add_argument(
        "--no-trim", action="store_true", help="drop what finds no room, with its header"
    )


def shape_of(args: argparse.Namespace) -> Shape:
    """Raises ArgumentError for options that cannot be, ConfigError for a file."""
    shape = reader.load(args.file, Fabric(args.fabric)).shape if args.file else None
    wanted: dict[str, Any] = {each.name: getattr(args, each.name, None) for each in fields(Shape)}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    if args.no_trim:
        wanted["trim"] = False
    if args.fabric == Fabric.KERNEL and not wanted.keys().isdisjoint(_EMULATED):
        raise ArgumentError("a kernel fabric neither marks nor trims: --fabric emulated")
    with as_argument_error():
        shape = Shape(**wanted) if shape is None else replace(shape, **wanted)
        if "rate" in args:
            shape = scale_rates(shape, args.rate)
        return shape if args.delay is None else with_delay(shape, args.delay)
