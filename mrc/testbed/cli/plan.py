# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed plan`: shows what `up` would build, as text, JSON or a picture. The shape of a test
bed on the command line: a topology file, options, or both.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from msgspec.structs import fields, replace

from mrc import products
from mrc.cli.arguments import add, argument
from mrc.cli.output import Output, format_bytes, format_rate, format_table
from mrc.errors import ArgumentError, ConfigError
from mrc.fabric.faults import LinkChange
from mrc.linux.files import write_whole
from mrc.results import Result, like
from mrc.testbed import extras, picture
from mrc.testbed.cli.main import Action
from mrc.testbed.faults import hops_of_link
from mrc.testbed.plan import census, emulator_config
from mrc.testbed.results import HostAddresses, MachineShare, Planned
from mrc.testbed.shape import (
    DEFAULT_RATE,
    MIN_KERNEL_DELAY_NS,
    Fabric,
    LinkProperties,
    Shape,
    as_argument_error,
    load_topology,
    parse_rate,
    scale_rates,
    topology_names,
    with_delay,
)
from mrc.units import counted, digits

rate_argument = argument(parse_rate)  # bit/s; None: no limit

_EMULATED = ("ecn_low_bytes", "ecn_high_bytes", "trim")
SHAPE_OPTIONS = f"""
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
EMULATED_OPTIONS = """
--ecn-low SIZE   mark some packets when the queue exceeds this [a tenth of the buffer]
--ecn-high SIZE  mark all packets when the queue exceeds this [four tenths of the buffer]
--no-trim        drop a packet when the queue is full, instead of trimming it
"""


class Topologies(Result, frozen=True, kw_only=True):
    """`mrc testbed plan --list`."""

    topologies: dict[str, str]
    """Built-in topologies: name and title."""


def add_shape(parser: argparse.ArgumentParser) -> None:
    add(
        parser,
        SHAPE_OPTIONS,
        file={"nargs": "?"},
        rate={"type": rate_argument, "default": argparse.SUPPRESS},
        jitter={"dest": "jitter_ns"},
        buffer={"dest": "buffer_bytes"},
        fabric={"choices": [*Fabric], "default": Fabric.KERNEL},
    )
    if (others := products.load(extras.OPTIONS)) is not None:
        others.add_outside(parser.add_argument_group("joined to the world"))
    dests = {name: {"dest": f"{name}_bytes"} for name in ("ecn_low", "ecn_high")}
    add(parser.add_argument_group("only with --fabric emulated"), EMULATED_OPTIONS, **dests)


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Adds `--on`."""
    if (others := products.load(extras.OPTIONS)) is not None:
        others.add_on(parser)


def shape_of(args: argparse.Namespace) -> Shape:
    """The shape from file and options. Raises ArgumentError for invalid options, ConfigError for
    an invalid file.
    """
    shape = load_topology(args.file, Fabric(args.fabric)).shape if args.file else None
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
    if not shape.outside:
        return []
    found: list[str] = extras.need(extras.OPTIONS).outside_lines(shape.outside)
    return found


# ---- The action ----------------------------------------------------------------------------------


OPTIONS = """
--svg FILE  draw the test bed into this SVG file
--list      list the built-in topologies, and nothing else
"""


_SAID = 6  # absent links that are named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape(parser)
    add_machines(parser)
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.list:
        found = {name: load_topology(name).title for name in topology_names()}
        out.text(format_table(("topology", "title"), list(found.items())))
        out.result(Topologies(topologies=found))
        return 0
    shape = shape_of(args)
    title = load_topology(args.file, shape.fabric).title if args.file else "the default test bed"
    names = getattr(args, "on", None)
    shares = () if names is None else extras.need(extras.OPTIONS).planned(shape, names)
    lines = [*_describe(shape), *_absent(shape), *map(change_text, shape.links)]
    lines += outside_lines(shape)
    if args.svg:
        named = f"{Path(args.file).stem}: {title}" if args.file else title
        _write(args.svg, picture.draw_svg(shape, named, lines))
    lines += [extras.need(extras.OPTIONS).text(each, shape.planes) for each in shares]
    out.text("\n".join([title, *lines, *picture.draw_plan(shape)]))
    out.result(_result(shape, title, shares))
    return 0


def _write(path: str, text: str) -> None:
    try:
        write_whole(Path(path), text.encode())
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc


def _describe(shape: Shape) -> list[str]:
    count, addresses = census(shape), shape.addresses
    most = "at most " if shape.absent else ""
    return [
        f"{counted(len(shape.host_numbers()), 'host')}, {most}{shape.hosts_per_t0} below each T0; "
        f"{counted(shape.planes, 'plane')} of {most}{_switches(shape)}",
        f"host links {_rate_and_delay(shape.host_rate_bps, shape.host_delay_ns)}; "
        f"uplinks {_rate_and_delay(shape.fabric_rate_bps, shape.fabric_delay_ns)}; {_core(shape)}"
        f"MTU {shape.mtu}",
        *_queues(shape),
        f"{shape.fabric} fabric: {counted(count.namespaces, 'namespace')},"
        f" {counted(count.links, 'link')}, {counted(count.routes, 'route')},"
        f" {counted(count.paths, 'path')}",
        f"addresses: planes in {addresses.block}, hosts in {addresses.hosts}, management "
        f"{addresses.management}",
        "names: h1 on all planes, h1.p1 in plane 1, h1.mgmt on the management network",
    ]


def _switches(shape: Shape) -> str:
    if not shape.t2:
        return f"{counted(shape.t0, 'T0')} and {counted(shape.t1, 'T1')}"
    each = f"{counted(shape.t0 // shape.pods, 'T0')} and {counted(shape.t1s_per_pod, 'T1')} each"
    return f"{counted(shape.pods, 'pod')}, {each}, and {counted(shape.t2, 'T2')}"


def _core(shape: Shape) -> str:
    if not shape.t2:
        return ""
    return f"links to T2s {_rate_and_delay(shape.core_rate_bps, shape.core_delay_ns)}; "


def _absent(shape: Shape) -> list[str]:
    """At most a line."""
    if not shape.absent:
        return []
    more = len(shape.absent) - _SAID
    return [f"absent: {', '.join(shape.absent[:_SAID])}{f' and {more} more' if more > 0 else ''}"]


def _rate_and_delay(rate_bps: int | None, delay_ns: int) -> str:
    rate = "no rate limit" if rate_bps is None else format_rate(rate_bps)
    return f"{rate}, {digits(delay_ns / 1000)} us"


def _queues(shape: Shape) -> list[str]:
    if shape.fabric is Fabric.EMULATED:
        told = emulator_config(shape)["config"]
        sizes = [format_bytes(told[f"{key}_bytes"]) for key in ("buffer", "ecn_low", "ecn_high")]
        end = "trims" if shape.trim else "drops"
        marks = f"mark some packets from {sizes[1]}, all from {sizes[2]}"
        return [f"queues {marks}; {end} above {sizes[0]}"]
    shortest = f"{MIN_KERNEL_DELAY_NS // 1000} us"
    return [f"a kernel fabric cannot mark or trim, and ignores delays below {shortest}"]


def _links(shape: Shape) -> dict[str, LinkProperties]:
    found: dict[str, LinkProperties] = {}
    for link, (up, down) in shape.link_properties().items():
        ways = [link] if up == down else hops_of_link(link, shape)
        found |= dict(zip(map(str, ways), (up, down), strict=False))
    return found


def _result(shape: Shape, title: str, shares: tuple[MachineShare, ...]) -> Planned:
    addresses = shape.addresses
    return like(
        Planned,
        shape,
        title=title,
        addresses=tuple(
            HostAddresses(
                host=f"h{host}",
                address=str(addresses.host(host)),
                plane_addresses=tuple(map(str, shape.plane_addresses(host))),
                oob=str(addresses.oob(host)),
            )
            for host in shape.host_numbers()
        ),
        links=_links(shape),
        built=census(shape),
        machines=shares,
    )


ACTIONS = {"plan": Action(run, add_arguments, "nothing")}
