# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed plan`: shows what `up` would build, as text, JSON or a picture. The shape of a test
bed on the command line: a topology file, options, or both.

The SVG has one panel for equal planes, with T2s above T1s above T0s above hosts. Links that differ
from their tier are highlighted and labelled. Long lines are wrapped, so that no text is cut.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import Any

from msgspec.structs import fields, replace

from mrc import products
from mrc.cli.arguments import add
from mrc.cli.output import Output, format_table
from mrc.errors import ConfigError
from mrc.linux.system import write_whole
from mrc.results import like
from mrc.testbed.cli.main import Action
from mrc.testbed.faults import Hop
from mrc.testbed.plan import MachineShare, census
from mrc.testbed.results import HostAddresses, Planned, Topologies
from mrc.testbed.shape import (
    DEFAULT_RATE,
    MIN_KERNEL_DELAY_NS,
    BothWays,
    Fabric,
    LinkProperties,
    Shape,
    as_argument_error,
    chosen_shape,
    extra,
    load_topology,
    parse_rate,
    rate_text,
    topology_names,
)
from mrc.testbed.tiers import LinkChange
from mrc.testbed.topology import Target
from mrc.units import counted, digits, scaled

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


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a shape, which `args.shape(args)` returns."""
    parser.set_defaults(shape=_shape_of)
    add(
        parser,
        SHAPE_OPTIONS,
        file={"nargs": "?"},
        rate={"type": parse_rate, "default": argparse.SUPPRESS},
        jitter={"dest": "jitter_ns"},
        buffer={"dest": "buffer_bytes"},
        fabric={"choices": [*Fabric], "default": Fabric.KERNEL},
    )
    if (others := products.load("mrc.lab.outside")) is not None:
        others.add_outside(parser.add_argument_group("joined to the world"))
    dests = {name: {"dest": f"{name}_bytes"} for name in ("ecn_low", "ecn_high")}
    add(parser.add_argument_group("only with --fabric emulated"), EMULATED_OPTIONS, **dests)


def add_up_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a shape, and `--on`."""
    add_shape(parser)
    if (others := products.load("mrc.lab.outside")) is not None:
        others.add_on(parser)


def _shape_of(args: argparse.Namespace) -> Shape:
    """The shape from file and options. Raises ArgumentError for invalid options, ConfigError for
    an invalid file.
    """
    wanted: dict[str, Any] = {each.name: getattr(args, each.name, None) for each in fields(Shape)}
    wanted["delay"] = args.delay
    wanted = {key: value for key, value in wanted.items() if value is not None}
    if args.no_trim:
        wanted["trim"] = False
    if "rate" in args:
        wanted["rate"] = args.rate
    shape = chosen_shape(args.file, Fabric(wanted.pop("fabric")), wanted)
    if "uplink" in args:
        with as_argument_error():
            shape = replace(shape, outside=extra("outside").outside_of(args, shape.outside))
    return shape


def change_text(change: LinkChange) -> str:
    """`plane:2 has 100 Mbit/s, 500 us`"""
    told = [] if change.rate_bps is None else [scaled(change.rate_bps, "bit/s")]
    told += [] if change.delay_ns is None else [f"{digits(change.delay_ns / 1000)} us"]
    told += [] if change.loss is None else [f"loss {digits(change.loss * 100)}%"]
    told += [] if change.mtu is None else [f"MTU {change.mtu}"]
    return f"{change.target} has {', '.join(told)}"


def outside_lines(shape: Shape) -> list[str]:
    """What joins a test bed to the world."""
    if not shape.outside:
        return []
    found: list[str] = extra("outside").outside_lines(shape.outside)
    return found


# ---- For programs --------------------------------------------------------------------------------


# ---- The action ----------------------------------------------------------------------------------


OPTIONS = """
--svg FILE  draw the test bed into this SVG file
--list      list the built-in topologies, and nothing else
"""


_SAID = 6  # absent links that are named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_up_arguments(parser)
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.list:
        found = {name: load_topology(name).title for name in topology_names()}
        out.text(format_table(("topology", "title"), list(found.items())))
        out.result(Topologies(topologies=found))
        return 0
    shape = args.shape(args)
    title = load_topology(args.file, shape.fabric).title if args.file else "the default test bed"
    names = getattr(args, "on", None)
    shares = () if names is None else extra("outside").planned(shape, names)
    lines = [*_describe(shape), *map(change_text, shape.links)]
    lines += outside_lines(shape)
    if args.svg:
        named = f"{Path(args.file).stem}: {title}" if args.file else title
        try:
            write_whole(Path(args.svg), draw_svg(shape, named, lines).encode())
        except OSError as exc:
            raise ConfigError(f"{args.svg}: {exc.strerror}") from exc
    lines += [extra("outside").text(each, shape.planes) for each in shares]
    out.text("\n".join([title, *lines, *draw_plan(shape)]))
    out.result(_result(shape, title, shares))
    return 0


def _describe(shape: Shape) -> list[str]:
    count, addresses = census(shape), shape.addresses
    most, more, core = "at most " if shape.absent else "", "", ""
    if (unsaid := len(shape.absent) - _SAID) > 0:
        more = f" and {unsaid} more"
    if shape.t2:
        core = f"links to T2s {_rate_and_delay(shape.core_rate_bps, shape.core_delay_ns)}; "
    return [
        f"{counted(len(shape.host_numbers()), 'host')}, {most}{shape.hosts_per_t0} below each T0; "
        f"{counted(shape.planes, 'plane')} of {most}{_switches(shape)}",
        f"host links {_rate_and_delay(shape.host_rate_bps, shape.host_delay_ns)}; "
        f"uplinks {_rate_and_delay(shape.fabric_rate_bps, shape.fabric_delay_ns)}; {core}"
        f"MTU {shape.mtu}",
        *_queues(shape),
        f"{shape.fabric} fabric: {counted(count.namespaces, 'namespace')},"
        f" {counted(count.links, 'link')}, {counted(count.routes, 'route')},"
        f" {counted(count.paths, 'path')}",
        f"addresses: planes in {addresses.block}, hosts in {addresses.hosts}, management "
        f"{addresses.management}",
        "names: h1 on all planes, h1.p1 in plane 1, h1.mgmt on the management network",
        *([f"absent: {', '.join(shape.absent[:_SAID])}{more}"] if shape.absent else []),
    ]


def _switches(shape: Shape) -> str:
    if not shape.t2:
        return f"{counted(shape.t0, 'T0')} and {counted(shape.t1, 'T1')}"
    each = f"{counted(shape.t0 // shape.pods, 'T0')} and {counted(shape.t1s_per_pod, 'T1')} each"
    return f"{counted(shape.pods, 'pod')}, {each}, and {counted(shape.t2, 'T2')}"


def _rate_and_delay(rate_bps: int | None, delay_ns: int) -> str:
    return f"{rate_text(rate_bps)}, {digits(delay_ns / 1000)} us"


def _queues(shape: Shape) -> list[str]:
    if shape.is_emulated:
        told = shape.port_queue()
        sizes = [scaled(told[f"{key}_bytes"], "B") for key in ("buffer", "ecn_low", "ecn_high")]
        end = "trims" if shape.trim else "drops"
        marks = f"mark some packets from {sizes[1]}, all from {sizes[2]}"
        return [f"queues {marks}; {end} above {sizes[0]}"]
    shortest = f"{MIN_KERNEL_DELAY_NS // 1000} us"
    return [f"a kernel fabric cannot mark or trim, and ignores delays below {shortest}"]


def _result(shape: Shape, title: str, shares: tuple[MachineShare, ...]) -> Planned:
    addresses = shape.addresses
    links: dict[str, LinkProperties] = {}
    for link, (up, down) in shape.link_properties().items():
        ways = [link] if up == down else Hop.both_ways(link, shape)
        links |= dict(zip(map(str, ways), (up, down), strict=False))
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
        links=links,
        built=census(shape),
        machines=shares,
    )


# ---- Drawn as text -------------------------------------------------------------------------------


_ALL_NAMED = 4  # up to 4 hosts below a T0 are all named; of more, the first and the last


def draw(shape: Shape, failing: Collection[str]) -> list[str]:
    """Draws plane by plane, with an x at failing parts. Every T0 has an uplink to every T1, except
    for absent links, which are not drawn.

    plane 1    h0 -- t0:1.0 --+-- t1:1.0
               h1 -x t0:1.1 --+-- t1:1.1 x

    With T2s, pod by pod; then the T2s, each with a link to one T1 of each pod.
    """
    lines = []
    for plane in shape.plane_numbers():
        label = f"plane {plane}{' x' if f'plane:{plane}' in failing else ''}"
        lines += ["", *_draw_plane(shape, plane, str(plane), label, failing)]
    return lines


def draw_plan(shape: Shape) -> list[str]:
    """As `draw`, but once for all equal planes, and without faults."""
    lines = []
    for planes in alike(shape):
        name = plane_name(planes)
        label = f"plane {name}" if len(planes) == 1 else f"planes {listed(planes)}"
        lines += ["", *_draw_plane(shape, planes[0], name, label, ())]
    return lines


def alike(shape: Shape) -> list[list[int]]:
    """Groups the planes by the properties of their links."""
    links: dict[int, list[tuple[Target, BothWays]]] = {}
    for link, properties in shape.link_properties().items():
        links.setdefault(link.plane, []).append((replace(link, plane=0), properties))
    groups: dict[tuple[tuple[Target, BothWays], ...], list[int]] = {}
    for plane, found in links.items():
        groups.setdefault(tuple(found), []).append(plane)
    return list(groups.values())


def plane_name(planes: Sequence[int]) -> str:
    """The plane's part of its switches' names: a number, or P for several planes."""
    return str(planes[0]) if len(planes) == 1 else "P"


def listed(planes: Sequence[int]) -> str:
    """`1..4` or `1, 3, 4`."""
    if len(planes) > 2 and planes[-1] - planes[0] == len(planes) - 1:
        return f"{planes[0]}..{planes[-1]}"
    return ", ".join(map(str, planes))


def _draw_plane(
    shape: Shape, number: int, plane: str, label: str, failing: Collection[str]
) -> list[str]:
    """`number` of a plane; `plane` names it, or all that are equal to it."""
    lines: list[str] = []
    _, t0s, t1s, t2s = nodes(shape, number)
    left = {t0: _left(shape, number, plane, t0, failing) for t0 in t0s}
    width = max(map(len, left.values()), default=0)
    for pod in range(shape.pods):
        below = [left[t0].ljust(width) + " --" for t0 in t0s if shape.pod_of_t0(t0) == pod]
        above = [
            f"-- {_crossed(f't1:{plane}.{t1}', failing)}"
            for t1 in t1s
            if shape.pod_of_t1(t1) == pod
        ]
        for lower, upper in zip_longest(below, above, fillvalue=None):
            row = f"{lower or ' ' * (width + 3)}+{upper or ''}"
            lines.append(f"{'' if lines else label:12}{row}")
        lines += [""] if t2s else []
    names = [_crossed(f"t2:{plane}.{t2}", failing) for t2 in t2s]
    return lines + [f"{'':12}{line}" for line in wrap(f"T2s: {', '.join(names)}", 80) if names]


def nodes(shape: Shape, plane: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """The hosts, T0s, T1s and T2s that have links in a plane."""
    links = shape.links_of(Target("plane", plane))
    hosts = [link.host for link in links if link.host is not None]
    t0s = {shape.t0_of_link(link) for link in links if link.kind != "core"}
    t1s = {link.t1 for link in links if link.t1 is not None}
    t2s = {link.t2 for link in links if link.t2 is not None}
    return hosts, sorted(t0s), sorted(t1s), sorted(t2s)


def _left(shape: Shape, number: int, plane: str, t0: int, failing: Collection[str]) -> str:
    hosts = [host for host in shape.hosts_below(t0) if shape.has_link(host, number)]
    dead = [host for host in hosts if f"link:h{host}.{plane}" in failing]
    if len(hosts) == 1:
        link = "-x" if dead else "--"
        return f"h{hosts[0]} {link} {_crossed(f't0:{plane}.{t0}', failing)}"
    in_row = hosts and len(hosts) == hosts[-1] - hosts[0] + 1
    if len(hosts) > _ALL_NAMED and in_row and not dead:
        names = f"h{hosts[0]}..h{hosts[-1]}"
    else:
        names = " ".join(f"h{host} x" if host in dead else f"h{host}" for host in hosts)
    return f"{names} -- {_crossed(f't0:{plane}.{t0}', failing)}"


def _crossed(name: str, failing: Collection[str]) -> str:
    return f"{name} x" if name in failing else name


# ---- SVG -----------------------------------------------------------------------------------------


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #8b949e;
  --unlike: #b35900; --host: #dbeafe; --t0: #dcfce7; --t1: #fde9c8;
  --t2: #f3e0f7 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #6e7681;
  --unlike: #ffa657; --host: #1f3a5f; --t0: #1d4428; --t1: #4f3a13;
  --t2: #46284f } }
svg { background: var(--paper) }
text { fill: var(--ink); font: 12px sans-serif; text-anchor: middle }
text.title { font-weight: bold; text-anchor: start }
text.note { text-anchor: start }
text.unlike { fill: var(--unlike); stroke: var(--paper); stroke-width: 4; paint-order: stroke }
line { stroke: var(--line) }
line.unlike { stroke: var(--unlike); stroke-width: 2.5 }
rect { stroke: var(--line); rx: 4 }
rect.host { fill: var(--host) }
rect.t0 { fill: var(--t0) }
rect.t1 { fill: var(--t1) }
rect.t2 { fill: var(--t2) }
"""

_BOX_WIDTH, _BOX_HEIGHT, _GAP = 52, 24, 12
_ROW = 90  # from one tier to the next
_MARGIN, _TITLE = 20, 44
_MIN_WIDTH = 560
_LINE = 18
_LETTER, _BOLD_LETTER = 7.2, 8.2  # pixels of a letter, on average, in a wide font

Ends = tuple[float, float, float, float]
"""Where a link begins and ends: x and y of its lower end, then of its upper end."""


def draw_svg(shape: Shape, title: str, notes: Sequence[str]) -> str:
    """A whole SVG document. It highlights links whose properties differ from their tier's."""
    columns = max(shape.hosts, shape.t0, shape.t1, shape.t2)
    width = max(_MIN_WIDTH, 2 * _MARGIN + columns * (_BOX_WIDTH + _GAP) - _GAP)
    top = _MARGIN
    parts: list[str] = []
    room = width - 2 * _MARGIN
    lines = [("title", line) for line in wrap(title, int(room / _BOLD_LETTER))]
    lines += [("note", line) for note in notes for line in wrap(note, int(room / _LETTER))]
    for kind, line in lines:
        parts.append(_text(_MARGIN, top + 12, line, kind))
        top += _LINE
    for planes in alike(shape):
        parts += _panel_of(shape, planes, top, width)
        top += _TITLE + (3 if shape.t2 else 2) * _ROW + _BOX_HEIGHT + _MARGIN
    size = f'width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _panel_of(shape: Shape, planes: list[int], top: int, width: int) -> list[str]:
    name = plane_name(planes)
    word = "plane" if len(planes) == 1 else "planes"
    parts = [_text(_MARGIN, top + 26, f"{word} {listed(planes)}", "title")]
    usual = replace(shape, links=()).link_properties()
    places = _Panel(shape, top, width)
    unlike: dict[str, list[tuple[Ends, str]]] = {"link": [], "uplink": [], "core": []}
    for link, found in shape.link_properties().items():
        if link.plane != planes[0]:
            continue
        ends = places.ends(link)
        if found == usual[link]:
            parts.append(_line(ends, ""))
        else:
            parts.append(_line(ends, "unlike"))
            unlike[link.kind].append((ends, _difference(found, usual[link][0])))
    for kind, numbers in zip(("host", "t0", "t1", "t2"), nodes(shape, planes[0]), strict=True):
        label = "h" if kind == "host" else f"{kind}:{name}."
        parts += [_box(*places.at(kind, index), f"{label}{index}", kind) for index in numbers]
    counts = {
        "link": shape.hosts,
        "uplink": shape.t0 * shape.t1s_per_pod,
        "core": shape.pods * shape.t2,
    }
    for tier, links in unlike.items():
        parts += _labels(links, counts[tier], width)
    return parts


class _Panel:
    """Where the nodes of a panel are."""

    def __init__(self, shape: Shape, top: int, width: int) -> None:
        self._shape, self._width = shape, width
        counts = {"t2": shape.t2, "t1": shape.t1, "t0": shape.t0, "host": shape.hosts}
        self._rows = {
            kind: (top + _TITLE + row * _ROW, count)
            for row, (kind, count) in enumerate(each for each in counts.items() if each[1])
        }

    def at(self, kind: str, index: int) -> tuple[float, int]:
        """The middle and the top of a node."""
        row, count = self._rows[kind]
        return _MARGIN + (self._width - 2 * _MARGIN) * (index + 0.5) / count, row

    def ends(self, link: Target) -> Ends:
        match link:
            case Target(host=int(host)):
                lower, upper = ("host", host), ("t0", self._shape.t0_of(host))
            case Target(t0=int(t0), t1=int(t1)):
                lower, upper = ("t0", t0), ("t1", t1)
            case _:
                lower, upper = ("t1", link.t1 or 0), ("t2", link.t2 or 0)
        return (*self.at(*lower), *self.at(*upper))


def _difference(both: BothWays, usual: LinkProperties) -> str:
    """What a link has instead of what its tier has: "20 Mbit/s, 2000 us", "up 20 Mbit/s"."""
    up, down = (_words(found, usual) for found in both)
    if up == down:
        return up
    return "; ".join(f"{way} {words}" for way, words in (("up", up), ("down", down)) if words)


def _words(found: LinkProperties, usual: LinkProperties) -> str:
    words = []
    if found.rate_bps is not None and found.rate_bps != usual.rate_bps:
        words.append(f"{digits(found.rate_bps / 1e6)} Mbit/s")
    if found.delay_ns != usual.delay_ns:
        words.append(f"{digits(found.delay_ns / 1000)} us")
    words += [f"loss {digits(found.loss * 100)}%"] if found.loss != usual.loss else []
    words += [f"MTU {found.mtu}"] if found.mtu != usual.mtu else []
    return ", ".join(words)


def _labels(links: Sequence[tuple[Ends, str]], count: int, width: int) -> Iterator[str]:
    """A label for each link; only one if all `count` links of the tier differ in the same way."""
    if len(links) == count > 1 and len({text for _, text in links}) == 1:
        (_, y1, _, y2), text = links[0]
        yield _label(width / 2, (y1 + y2 + _BOX_HEIGHT) / 2, f"each {text}", width)
        return
    for number, ((x1, y1, x2, y2), text) in enumerate(links):
        part = (0.3, 0.5, 0.7)[number % 3]  # neighbours have their labels at other heights
        yield _label(x1 + part * (x2 - x1), y1 + part * (y2 + _BOX_HEIGHT - y1), text, width)


def _label(x: float, y: float, text: str, width: int) -> str:
    half = len(text) * _LETTER / 2
    inside = min(max(x, _MARGIN + half), width - _MARGIN - half)
    return _text(round(inside, 1), round(y + 4, 1), text, "unlike")


def _line(ends: Ends, kind: str) -> str:
    x1, y1, x2, y2 = ends
    name = f' class="{kind}"' if kind else ""
    return f'<line{name} x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2 + _BOX_HEIGHT}"/>'


def _box(x: float, y: float, label: str, kind: str) -> str:
    rect = (
        f'<rect class="{kind}" x="{x - _BOX_WIDTH / 2:.1f}" y="{y}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}"/>'
    )
    return rect + f'<text x="{x:.1f}" y="{y + 16}">{label}</text>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text class="{kind}" x="{x}" y="{y}">{escaped}</text>'


ACTIONS = {"plan": Action(run, add_arguments, "nothing")}
