# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed status`: shows a test bed, its addresses, its faults and its counters."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError, format_table
from mrc.cli.runner import run_async
from mrc.results import plain
from mrc.tasks import begun
from mrc.testbed import operations
from mrc.testbed import state as stored
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.main import Action
from mrc.testbed.cli.plan import change_text, draw, outside_lines
from mrc.testbed.operations import Look
from mrc.testbed.results import FabricCounters, LinkCounters
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS)


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


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
        while (look := operations.look(args.name, seconds, out.warn, look)) is not None:
            out.text("\n".join(_lines(look, with_addresses=not args.watch)))
            out.rows([{"link": name} | plain(link) for name, link in look.links.items()])
            out.result(look.status)
            if not args.watch:
                return 0
            if not look.links:  # the measurement has failed at once
                time.sleep(seconds)
    found = operations.not_up(args.name)
    others = listed(name for name in stored.names() if name != args.name)
    out.text(f"{args.name} is {found.state}; other test beds: {others}")
    out.result(found)
    return 1


async def _watch(name: str, seconds: float, out: Output) -> bool:
    """Shows a test bed on the terminal, which scrolls. True: the key q ended it; False: the test
    bed is down.
    """
    from mrc.cli import terminal  # slow imports: rich

    ended = asyncio.get_running_loop().create_future()
    look: Look | None = None
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
            looking = asyncio.wrap_future(begun(operations.look, name, seconds, out.warn, look))
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


def _lines(look: Look, *, with_addresses: bool) -> Iterator[str]:
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


def _troubles(look: Look) -> list[str]:
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


ACTIONS = {"status": Action(run, add_arguments, "name")}
