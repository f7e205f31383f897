# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed status`: shows a test bed, its faults and its counters."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from mrc.cli.arguments import seconds_argument
from mrc.cli.output import Output, format_bytes, format_rate, format_table, listed
from mrc.cli.testbed_fault import fault_result
from mrc.errors import MrcError
from mrc.results.plain import like
from mrc.results.testbed import Bed, Counters, Host, Link, NotUp, Status
from mrc.testbed import picture
from mrc.testbed import state as stored
from mrc.testbed.bed import Testbed
from mrc.testbed.fault import Fault
from mrc.testbed.shape import Fabric, Shape

# The kernel's own traffic (multicast reports, neighbour discovery) stays below this rate.
_QUIET_BITS_PER_SECOND = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=seconds_argument, default=0.2, metavar="SECONDS",
        help="measure rates over this time [%(default)s]",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = stored.load(args.name)
    if found is None or not found.up:
        state: Literal["down", "half built"] = "down" if found is None else "half built"
        others = listed(name for name in stored.names() if name != args.name)
        out.text(f"{args.name} is {state}; other test beds: {others}")
        out.result(NotUp(name=args.name, state=state))
        return 1
    bed = Testbed.existing(args.name)
    counters: Counters | None = None
    links: Mapping[str, Link] = {}
    if not bed.missing():
        try:
            links = {name: _link(told) for name, told in bed.measure(args.interval).items()}
            if bed.shape.fabric is Fabric.EMULATED:
                counters = _counters(bed.counters())
        except MrcError as exc:  # show the status without counters
            out.warn(str(exc))
    lines = [f"{args.name} is up: {summary(bed.shape)}", *picture.draw(bed.shape, found.faults)]
    for part in (_counted(counters), _busy(links), _troubles(bed, found.faults)):
        lines += ["", *part] if part else []
    out.text("\n".join(lines))
    bed_now = bed_result(bed, found.faults)
    out.result(like(Status, bed_now, counters=counters, links=dict(links)))
    return 0


def summary(shape: Shape) -> str:
    below = "" if shape.t0 == shape.hosts else f"{shape.t0} T0s and "
    rate = _rate(shape.host_rate_bps)
    if shape.fabric_rate_bps != shape.host_rate_bps:
        rate += f" per host link, {_rate(shape.fabric_rate_bps)} per uplink"
    elif shape.host_rate_bps is not None:
        rate += " per link"
    return (
        f"{shape.hosts} hosts, {shape.planes} planes, {below}{shape.t1} T1s per plane, {rate}, "
        f"MTU {shape.mtu}" + (", emulated" if shape.fabric is Fabric.EMULATED else "")
    )


def _rate(rate_bps: int | None) -> str:
    return "no rate limit" if rate_bps is None else format_rate(rate_bps)


def _troubles(bed: Testbed, faults: dict[str, Fault]) -> list[str]:
    lines = [f"{target} fails: {fault}" for target, fault in faults.items()]
    gone = bed.missing()
    if gone:
        lines.append(f"namespaces missing: {', '.join(gone)}; rebuild with mrc testbed up")
    return lines


def _counted(counters: Counters | None) -> list[str]:
    """The packet counters of an emulated fabric."""
    if counters is None:
        return []
    words = ("received", "sent", "marked", "trimmed", "dropped", "lost", "unroutable", "overloaded")
    counts = (f"{getattr(counters, word + '_packets')} {word}" for word in words)
    lines = ["packets: " + ", ".join(counts)]
    if counters.overloaded_packets:
        lines.append("overloaded: this machine is too slow for this traffic; results are wrong")
    return lines


def _busy(links: Mapping[str, Link]) -> list[str]:
    """The links that carry traffic now, and links that dropped, lost, trimmed or marked packets."""
    words = ("dropped", "lost", "trimmed", "marked")
    rows = []
    for name, link in links.items():
        rate, limit, queued = link.bits_per_second, link.rate_bits_per_second, link.queue_bytes
        counts = [getattr(link, f"{word}_packets") for word in words]
        if rate > _QUIET_BITS_PER_SECOND or queued or any(counts):
            share = f"{rate / limit:.0%}" if limit else ""
            peak = format_bytes(link.peak_bytes or queued)
            shown = (format_rate(rate), share, format_bytes(queued), peak)
            rows.append((name, *shown, link.packets, *counts))
    head = ("link", "rate", "busy", "queue", "peak", "packets", *words)
    return format_table(head, rows).splitlines() if rows else []


def _link(told: Mapping[str, Any]) -> Link:
    words = ("dropped", "lost", "trimmed", "marked")
    counts = {f"{word}_packets": told[word] for word in words}
    kept = ("packets", "bytes", "bits_per_second", "rate_bits_per_second", "queue_bytes")
    return Link(**counts, **{key: told[key] for key in kept}, peak_bytes=told.get("peak_bytes"))


def _counters(told: Mapping[str, Any]) -> Counters:
    names = (each.name for each in fields(Counters))
    return Counters(**{name: told[name.removesuffix("_packets")] for name in names})


def bed_result(bed: Testbed, faults: Mapping[str, Fault]) -> Bed:
    shape = bed.shape
    return like(
        Bed,
        shape,
        name=bed.name,
        hosts=tuple(_host(bed, f"h{number}", number) for number in range(shape.hosts)),
        host_rate_bits_per_second=shape.host_rate_bps,
        fabric_rate_bits_per_second=shape.fabric_rate_bps,
        mtu_bytes=shape.mtu,
        fabric=shape.fabric.value,
        faults=tuple(fault_result(target, fault) for target, fault in faults.items()),
        missing=tuple(bed.missing()),
    )


def _host(bed: Testbed, name: str, number: int) -> Host:
    return Host(
        host=name,
        namespace=bed.plan.nodes[name].namespace,
        config=str(stored.config_path(bed.name, name)),
        address=str(bed.shape.addresses.host(number)),
        plane_addresses=tuple(map(str, bed.shape.plane_addresses(number))),
        oob=str(bed.shape.addresses.oob(number)),
    )
