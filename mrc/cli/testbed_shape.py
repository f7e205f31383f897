# SPDX-License-Identifier: Apache-2.0
"""The shape of a test bed on the command line: a topology file, options, or both."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec.structs import fields, replace

from mrc.cli.arguments import argument, size_argument, time_argument
from mrc.cli.output import format_rate
from mrc.errors import ArgumentError
from mrc.testbed import reader
from mrc.testbed.bed import as_argument_error
from mrc.testbed.shape import (
    DEFAULT_RATE,
    Fabric,
    LinkChange,
    Shape,
    parse_rate,
    scale_rates,
    with_delay,
)

rate_argument = argument(parse_rate)  # bit/s; None: no limit

_EMULATED = ("ecn_low_bytes", "ecn_high_bytes", "trim")
_COUNTS = (
    ("hosts", "2", "number of hosts"),
    ("planes", "4", "number of planes"),
    ("t0", "one for each host", "number of T0s in each plane"),
    ("t1", "2", "number of T1s in each plane"),
    ("mtu", "9000", "MTU of every link, in bytes"),
)


def add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE",
        help="topology file, or name of a built-in topology or scenario; options override it",
    )  # fmt: skip
    for key, default, text in _COUNTS:
        parser.add_argument(f"--{key}", type=int, metavar="N", help=f"{text} [{default}]")
    parser.add_argument(
        "--rate", type=rate_argument, default=argparse.SUPPRESS, metavar="RATE",
        help="rate of the host links, such as 10gbit; the rates of other links change in "
        f"proportion; none: no link has a limit [{DEFAULT_RATE}]",
    )  # fmt: skip
    parser.add_argument(
        "--delay", type=time_argument, metavar="TIME",
        help="delay of every link in one direction, such as 5us [0]",
    )  # fmt: skip
    parser.add_argument(
        "--jitter", type=time_argument, metavar="TIME", dest="jitter_ns",
        help="random extra delay of every packet, at most this time [0]",
    )  # fmt: skip
    parser.add_argument(
        "--buffer", type=size_argument, metavar="SIZE", dest="buffer_bytes",
        help="queue of each switch port [10 ms at the rate, at least 256KiB]",
    )  # fmt: skip
    parser.add_argument(
        "--fabric", choices=[*Fabric], default=Fabric.KERNEL,
        help="kernel: each switch is a namespace, which cannot mark or trim; emulated: the "
        "switches of the simulator in real time, which queue, mark and trim [%(default)s]",
    )  # fmt: skip
    group = parser.add_argument_group("only with --fabric emulated")
    for level, text in (
        ("low", "mark some packets when the queue exceeds this [a tenth of the buffer]"),
        ("high", "mark all packets when the queue exceeds this [four tenths of the buffer]"),
    ):
        group.add_argument(
            f"--ecn-{level}", type=size_argument, metavar="SIZE", dest=f"ecn_{level}_bytes",
            help=text,
        )  # fmt: skip
    group.add_argument(
        "--no-trim", action="store_true",
        help="drop a packet when the queue is full, instead of trimming it",
    )  # fmt: skip


def shape_of(args: argparse.Namespace) -> Shape:
    """The shape from file and options. Raises ArgumentError for invalid options, ConfigError for
    an invalid file.
    """
    shape = reader.load(args.file, Fabric(args.fabric)).shape if args.file else None
    wanted: dict[str, Any] = {each.name: getattr(args, each.name, None) for each in fields(Shape)}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    if args.no_trim:
        wanted["trim"] = False
    if args.fabric == Fabric.KERNEL and not wanted.keys().isdisjoint(_EMULATED):
        raise ArgumentError("a kernel fabric cannot mark or trim: use --fabric emulated")
    with as_argument_error():
        shape = Shape(**wanted) if shape is None else replace(shape, **wanted)
        if "rate" in args:
            shape = scale_rates(shape, args.rate)
        return shape if args.delay is None else with_delay(shape, args.delay)


def change_text(change: LinkChange) -> str:
    """`plane:2 has 100 Mbit/s, 500 us`"""
    told = [] if change.rate_bps is None else [format_rate(change.rate_bps)]
    told += [] if change.delay_ns is None else [f"{change.delay_ns / 1000:g} us"]
    return f"{change.target} has {', '.join(told)}"
