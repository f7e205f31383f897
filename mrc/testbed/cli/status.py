# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed status`: shows a test bed, its addresses, its faults and its counters."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError, format_table
from mrc.cli.runner import run_async
from mrc.errors import MrcError
from mrc.results import KEYS, Result, like, plain
from mrc.tasks import begun
from mrc.testbed import state as stored
from mrc.testbed.bed import LinkCounters, Testbed
from mrc.testbed.cli.main import Action
from mrc.testbed.cli.plan import Bed, BedHost, change_text, draw, outside_lines
from mrc.testbed.faults import Fault
from mrc.testbed.shape import DEFAULT_NAME, Shape, extra, part_name, rate_text
from mrc.units import digits, scaled

# The kernel's own traffic (multicast reports, neighbour discovery) stays below this rate.
_QUIET_BITS_PER_SECOND = 10_000
_SECONDS, _WATCH_SECONDS = 0.2, 1.0
_SCROLL = "arrows, page up, page down: scroll  q: quit"
OPTIONS = f"""
--watch             refresh it, until ^C or the key q; arrows scroll
--interval SECONDS  measure rates over this time [{_SECONDS}, with --watch {digits(_WATCH_SECONDS)}]
--csv               print only CSV on stdout: each direction of each link
"""


class FabricCounters(Struct, frozen=True, kw_only=True, rename=KEYS):
    """Packets of an emulated fabric, since it is up."""

    received: int
    """From hosts."""
    sent: int
    """To hosts."""
    lost: int
    """Lost by faults."""
    dropped: int
    """Dropped by full queues."""
    trimmed: int
    """Trimmed by full queues."""
    marked: int
    """Marked by ECN."""
    unroutable: int
    """Dropped: no switch has a route, or the hop limit ran out."""
    refused: int
    """Dropped: the host's interface was down."""
    offloaded: int
    """Dropped: the host had left segmentation or checksum to its interface."""
    overloaded: int
    """Dropped by the emulator or the kernel because the machine is too slow. Above 0 the results of
    the test bed are wrong.
    """


class Status(Bed, frozen=True, kw_only=True):
    """`mrc testbed status` of a test bed that is up."""

    counters: FabricCounters | None
    """What the emulator counted; null in a kernel fabric."""
    links: dict[str, LinkCounters]
    """Each direction of each link, by its name, such as h0>t0:1.0."""


class NotUp(Result, frozen=True, kw_only=True):
    """`mrc testbed status` of a test bed that is not up."""

    name: str
    """Name of the test bed."""
    state: Literal["down", "half built"]
    """half built: a command that built or removed it was interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS)


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


class _Look(Struct, frozen=True):
    """A test bed that is up, and its traffic during one interval."""

    bed: Testbed
    faults: dict[str, Fault]
    links: dict[str, LinkCounters]
    counters: FabricCounters | None
    lost: dict[str, str]
    drained: tuple[str, ...]


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.watch and out.as_csv:
        raise UsageError(args.prog, "--csv: not with --watch; --json prints a line each interval")
    seconds = args.interval or (_WATCH_SECONDS if args.watch else _SECONDS)
    if args.watch and not out.as_json and sys.stdout.isatty():
        if run_async(_watch(args.name, seconds, out)):
            return 0
    else:
        look = None
        while (look := _look(args.name, seconds, out, look)) is not None:
            out.text("\n".join(_lines(look, with_addresses=not args.watch)))
            out.rows([{"link": name} | plain(link) for name, link in look.links.items()])
            found = bed_result(look.bed, look.faults, look.lost, look.drained)
            out.result(like(Status, found, counters=look.counters, links=look.links))
            if not args.watch:
                return 0
            if not look.links:  # the measurement has failed at once
                time.sleep(seconds)
    state: Literal["down", "half built"] = (
        "down" if stored.load(args.name) is None else "half built"
    )
    others = listed(name for name in stored.names() if name != args.name)
    out.text(f"{args.name} is {state}; other test beds: {others}")
    out.result(NotUp(name=args.name, state=state))
    return 1


async def _watch(name: str, seconds: float, out: Output) -> bool:
    """Shows a test bed on the terminal, which scrolls. True: the key q ended it; False: the test
    bed is down.
    """
    from mrc.cli import terminal  # slow imports: rich

    ended = asyncio.get_running_loop().create_future()
    look: _Look | None = None
    blocks = [terminal.Block(f"measuring {name}")]

    def on_key(key: str) -> None:
        if key == "q" and not ended.done():
            ended.set_result(None)
        screen.window.move(key)
        screen.show(blocks, help_text)

    with terminal.Screen() as screen, terminal.keys(on_key) as has_keys:
        help_text = _SCROLL if has_keys else "^C ends; no keys: stdin is no terminal"
        while not ended.done():
            screen.show(blocks, help_text)
            looking = asyncio.wrap_future(begun(_look, name, seconds, out, look))
            await asyncio.wait({looking, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not looking.done():
                looking.cancel()
            elif (look := looking.result()) is None:
                return False
            else:
                first, *rest = _lines(look, with_addresses=False)
                blocks[:] = [terminal.Block(first), terminal.Block("\n".join(rest), style="")]
                if not look.links:
                    await asyncio.wait({ended}, timeout=seconds)
    return True


def _look(name: str, seconds: float, out: Output, before: _Look | None) -> _Look | None:
    """Measures a test bed for some seconds; None if it is not up. `before`: the last look, whose
    connections to other machines it uses.
    """
    found = stored.load(name)
    if found is None or not found.up:
        return None
    if before is not None and before.bed.is_current():
        bed = before.bed
    else:
        bed = Testbed.spanning(name, found.shape, found.machines)
    counters: FabricCounters | None = None
    links: dict[str, LinkCounters] = {}
    lost: dict[str, str] = {}
    if not bed.missing():
        try:
            links, lost = bed.measure(seconds), bed.lost()
            if bed.shape.is_emulated:
                counters = like(FabricCounters, bed.counters())
        except MrcError as exc:  # show the status without counters
            out.warn(str(exc))
    return _Look(bed, found.faults, links, counters, lost, found.drained)


def _lines(look: _Look, *, with_addresses: bool) -> Iterator[str]:
    shape = look.bed.shape
    yield f"{look.bed.name} is up: {look.bed.summary()}"
    yield from machines(look.bed)
    yield from map(change_text, shape.links)
    yield from outside_lines(shape)
    yield from draw(shape, look.faults)
    addresses = _addresses(shape) if with_addresses else []
    packets = _packets(look.counters)
    for part in (addresses, packets, _busy(look.links), _troubles(look)):
        yield from ["", *part] if part else []


def machines(bed: Testbed) -> list[str]:
    """What each machine of a test bed over several has."""
    planes = bed.shape.planes
    return [extra("outside").text(each, planes) for each in bed.shares()]


def _addresses(shape: Shape) -> list[str]:
    """The addresses of every host, with the names that lead to them."""
    rows = []
    for host in shape.host_numbers():
        planes = [str(address) for address in shape.plane_addresses(host)]
        in_planes = planes[0] if len(planes) == 1 else f"{planes[0]} .. {planes[-1]}"
        ecmp, oob = shape.addresses.host(host), shape.addresses.oob(host)
        rows.append((f"h{host}", str(ecmp), in_planes, str(oob)))
    names = "h0.p1" if shape.planes == 1 else f"h0.p1 .. h0.p{shape.planes}"
    head = ("host", "all planes: h0", f"each plane: {names}", "management: h0.mgmt")
    return format_table(head, rows).splitlines()


def _troubles(look: _Look) -> list[str]:
    bed = look.bed
    lost = [each for each in bed.shares() if each.lost]
    lines = [extra("outside").lost_text(each) for each in lost]
    lines += [f"{target} fails: {fault}" for target, fault in look.faults.items()]
    lines += [f"{target} is drained" for target in look.drained]
    named = "" if bed.name == DEFAULT_NAME else f" --name {bed.name}"
    if gone := list(map(part_name, bed.missing())):
        lines.append(f"missing: {', '.join(gone)}; rebuild with the same mrc testbed up{named}")
    for end, target in look.lost.items():
        lines.append(f"{end} was taken down by hand: mrc testbed heal {target}{named}")
    return lines


def _packets(counters: FabricCounters | None) -> list[str]:
    """The packet counters of an emulated fabric."""
    if counters is None:
        return []
    words = ("received", "sent", "marked", "trimmed", "dropped", "lost", "unroutable", "overloaded")
    lines = ["packets: " + ", ".join(f"{getattr(counters, word)} {word}" for word in words)]
    if counters.overloaded:
        lines.append("overloaded: this machine is too slow for this traffic; results are wrong")
    return lines


def _busy(links: Mapping[str, LinkCounters]) -> list[str]:
    """The links that carry traffic now, and links that dropped, lost, trimmed or marked packets."""
    words = ("dropped", "lost", "trimmed", "marked")
    rows: list[Sequence[object]] = []
    differ = len({link.rate_bps for link in links.values()}) > 1
    for name, link in links.items():
        rate, limit, queued = link.bits_per_second, link.rate_bps, link.queue_bytes
        counts = [getattr(link, word) for word in words]
        if rate > _QUIET_BITS_PER_SECOND or queued or any(counts):
            share = f"{rate / limit:.0%}" if limit else ""
            peak = scaled(link.peak_bytes or queued, "B")
            own = [rate_text(limit)] if differ else []
            shown = (scaled(rate, "bit/s"), *own, share, scaled(queued, "B"), peak)
            rows.append((name, *shown, link.packets, *counts))
    limits = ["limit"] if differ else []
    head = ("link", "rate", *limits, "busy", "queue", "peak", "packets", *words)
    return format_table(head, rows).splitlines() if rows else []


def bed_result(
    bed: Testbed,
    faults: Mapping[str, Fault],
    lost: Mapping[str, str] | None = None,
    drained: tuple[str, ...] | None = None,
) -> Bed:
    """`lost`: the ends of links that were taken down by hand; None: looks for them, and for what is
    drained.
    """
    lost = bed.lost() if lost is None else lost
    shape = bed.shape
    return like(
        Bed,
        shape,
        name=bed.name,
        hosts=tuple(_host(bed, f"h{number}", number) for number in shape.host_numbers()),
        faults=tuple(fault.result(target) for target, fault in faults.items()),
        missing=tuple(bed.missing()),
        drained=bed.drained() if drained is None else drained,
        taken_down=tuple(lost),
        machines=bed.shares(),
    )


def _host(bed: Testbed, name: str, number: int) -> BedHost:
    return BedHost(
        host=name,
        namespace=bed.plan.nodes[name].namespace,
        config=str(stored.config_path(bed.name, name)),
        address=str(bed.shape.addresses.host(number)),
        plane_addresses=tuple(map(str, bed.shape.plane_addresses(number))),
        oob=str(bed.shape.addresses.oob(number)),
    )


ACTIONS = {"status": Action(run, add_arguments, "name")}
