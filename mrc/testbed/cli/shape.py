# SPDX-License-Identifier: Apache-2.0
"""The shape of a test bed on the command line: a topology file, options, or both."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec.structs import fields, replace

from mrc import products
from mrc.cli.arguments import add, argument
from mrc.cli.output import format_rate
from mrc.errors import ArgumentError
from mrc.fabric.faults import LinkChange
from mrc.testbed import extras, reader
from mrc.testbed.shape import (
    DEFAULT_RATE,
    NOTHING,
    Fabric,
    Shape,
    as_argument_error,
    parse_rate,
    scale_rates,
    with_delay,
)
from mrc.units import digits

rate_argument = argument(parse_rate)  # bit/s; None: no limit

_EMULATED = ("ecn_low_bytes", "ecn_high_bytes", "trim")
OPTIONS = f"""
file FILE      topology file, or name of a built-in topology or scenario; options override it
--hosts N      number of hosts [2]
--planes N     number of planes [4]
--t0 N         number of T0s in each plane [one for each host]
--t1 N         number of T1s in each plane [2]
--pods N       three tiers: pods of each plane, each with as many T0s and T1s; with --t2 [1]
--t2 N         three tiers: number of T2s in each plane, which join the pods; with --pods [0]
--mtu N        MTU of every link, in bytes [9000]
--rate RATE    rate of the host links, such as 10gbit; the rates of other links change in
               proportion; none: no link has a limit [{DEFAULT_RATE}]
--delay TIME   delay of every link in one direction, such as 5us [0]
--jitter TIME  random extra delay of every packet, at most this time [0]
--buffer SIZE  queue of each switch port [10 ms at the rate, at least 256KiB]
--fabric       kernel: each switch is a namespace, which cannot mark or trim; emulated: the switches
               of the simulator in real time, which queue, mark and trim [%(default)s]
"""
EMULATED = """
--ecn-low SIZE   mark some packets when the queue exceeds this [a tenth of the buffer]
--ecn-high SIZE  mark all packets when the queue exceeds this [four tenths of the buffer]
--no-trim        drop a packet when the queue is full, instead of trimming it
"""


def add_shape(parser: argparse.ArgumentParser) -> None:
    add(
        parser,
        OPTIONS,
        file={"nargs": "?"},
        rate={"type": rate_argument, "default": argparse.SUPPRESS},
        jitter={"dest": "jitter_ns"},
        buffer={"dest": "buffer_bytes"},
        fabric={"choices": [*Fabric], "default": Fabric.KERNEL},
    )
    if (others := products.load(extras.OPTIONS)) is not None:
        others.add_outside(parser.add_argument_group("joined to the world"))
    dests = {name: {"dest": f"{name}_bytes"} for name in ("ecn_low", "ecn_high")}
    add(parser.add_argument_group("only with --fabric emulated"), EMULATED, **dests)


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Adds `--on`."""
    if (others := products.load(extras.OPTIONS)) is not None:
        others.add_on(parser)


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
        if "uplink" in args:
            outside = extras.need(extras.OPTIONS).outside_of(args, shape.outside)
            shape = replace(shape, outside=outside)
        if "rate" in args:
            shape = scale_rates(shape, args.rate)
        return shape if args.delay is None else with_delay(shape, args.delay)


def change_text(change: LinkChange) -> str:
    """`plane:2 has 100 Mbit/s, 500 us`"""
    told = [] if change.rate_bps is None else [format_rate(change.rate_bps)]
    told += [] if change.delay_ns is None else [f"{digits(change.delay_ns / 1000)} us"]
    told += [] if change.loss is None else [f"loss {digits(change.loss * 100)}%"]
    told += [] if change.mtu is None else [f"MTU {change.mtu}"]
    return f"{change.target} has {', '.join(told)}"


def outside_lines(shape: Shape) -> list[str]:
    """What joins a test bed to the world."""
    if shape.outside == NOTHING:
        return []
    found: list[str] = extras.need(extras.OPTIONS).outside_lines(shape.outside)
    return found
