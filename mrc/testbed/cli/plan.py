# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed plan`: shows what `up` would build, as text, JSON or a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from mrc.cli.arguments import add
from mrc.cli.output import Output, format_bytes, format_rate, format_table
from mrc.errors import ConfigError
from mrc.linux.files import write_whole
from mrc.results.plain import like
from mrc.testbed import extras, hops, picture, reader, svg
from mrc.testbed.cli.action import Action, Needs
from mrc.testbed.cli.shape import add_machines, add_shape, change_text, outside_lines, shape_of
from mrc.testbed.plan import census, emulator_config
from mrc.testbed.results import (
    HostAddresses,
    LinkProperties,
    MachineShare,
    Planned,
    Topologies,
)
from mrc.testbed.shape import MIN_KERNEL_DELAY_NS, Fabric, Shape
from mrc.units import counted, digits

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
        found = {name: reader.load(name).title for name in reader.names()}
        out.text(format_table(("topology", "title"), list(found.items())))
        out.result(Topologies(topologies=found))
        return 0
    shape = shape_of(args)
    title = reader.load(args.file, shape.fabric).title if args.file else "the default test bed"
    names = getattr(args, "on", None)
    shares = () if names is None else extras.need(extras.OPTIONS).planned(shape, names)
    lines = [*_describe(shape), *_absent(shape), *map(change_text, shape.links)]
    lines += outside_lines(shape)
    if args.svg:
        named = f"{Path(args.file).stem}: {title}" if args.file else title
        _write(args.svg, svg.draw(shape, named, lines))
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
        f"host links {_each(shape.host_rate_bps, shape.host_delay_ns)}; "
        f"uplinks {_each(shape.fabric_rate_bps, shape.fabric_delay_ns)}; {_core(shape)}"
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
    return f"links to T2s {_each(shape.core_rate_bps, shape.core_delay_ns)}; "


def _absent(shape: Shape) -> list[str]:
    """At most a line."""
    if not shape.absent:
        return []
    more = len(shape.absent) - _SAID
    return [f"absent: {', '.join(shape.absent[:_SAID])}{f' and {more} more' if more > 0 else ''}"]


def _each(rate_bps: int | None, delay_ns: int) -> str:
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
        ways = [link] if up == down else hops.hops_of_link(link, shape)
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


ACTIONS = {"plan": Action(run, add_arguments, Needs.NONE)}
