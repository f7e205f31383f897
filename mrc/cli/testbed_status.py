# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed status`: what is up, what fails, what was counted."""

from __future__ import annotations

import argparse
from typing import Any

from mrc.cli.arguments import seconds_argument
from mrc.cli.output import Output, format_bytes, format_rate, format_table, listed
from mrc.cli.testbed_fault import fault_to_json
from mrc.errors import MrcError
from mrc.testbed import picture
from mrc.testbed import state as stored
from mrc.testbed.bed import Testbed
from mrc.testbed.fault import Fault
from mrc.testbed.shape import Fabric, Shape

# Reports of the kernel itself, of multicast groups and neighbours, stay below.
_QUIET_BITS_PER_SECOND = 10_000

Links = dict[str, dict[str, int | None]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=seconds_argument, default=0.2, metavar="SECONDS",
        help="over which rates are measured [%(default)s]",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = stored.load(args.name)
    if found is None or not found.up:
        state = "down" if found is None else "half built"
        others = listed(name for name in stored.names() if name != args.name)
        out.text(f"{args.name} is {state}; other test beds: {others}")
        out.result({"name": args.name, "state": state})
        return 1
    bed = Testbed.existing(args.name)
    counters: dict[str, Any] = {}
    links: Links = {}
    if not bed.missing():
        try:
            links = bed.measure(args.interval)
            if bed.shape.fabric is Fabric.EMULATED:
                counters = bed.counters()
        except MrcError as exc:  # the rest can be told without
            out.warn(str(exc))
    lines = [f"{args.name} is up: {summary(bed.shape)}", *picture.draw(bed.shape, found.faults)]
    for part in (_counted(counters), _busy(links), _troubles(bed, found.faults)):
        lines += ["", *part] if part else []
    out.text("\n".join(lines))
    out.result(to_json(bed, found.faults) | {"counters": counters, "links": links})
    return 0


def summary(shape: Shape) -> str:
    below = "" if shape.t0 == shape.hosts else f"{shape.t0} T0s and "
    rate = _rate(shape.host_rate_bps)
    if shape.fabric_rate_bps != shape.host_rate_bps:
        rate += f" a host link, {_rate(shape.fabric_rate_bps)} an uplink"
    elif shape.host_rate_bps is not None:
        rate += " a link"
    return (
        f"{shape.hosts} hosts, {shape.planes} planes, {below}{shape.t1} T1s a plane, {rate}, "
        f"MTU {shape.mtu}" + (", emulated" if shape.fabric is Fabric.EMULATED else "")
    )


def _rate(rate_bps: int | None) -> str:
    return "no rate limit" if rate_bps is None else format_rate(rate_bps)


def _troubles(bed: Testbed, faults: dict[str, Fault]) -> list[str]:
    lines = [f"{target} fails: {fault}" for target, fault in faults.items()]
    gone = bed.missing()
    if gone:
        lines.append(f"namespaces missing: {', '.join(gone)}; mrc testbed up builds it anew")
    return lines


def _counted(counters: dict[str, Any]) -> list[str]:
    """What an emulated fabric counted in all."""
    if not counters:
        return []
    words = ("received", "sent", "marked", "trimmed", "dropped", "lost", "unroutable", "overloaded")
    lines = ["packets: " + ", ".join(f"{counters[word]} {word}" for word in words)]
    if counters["overloaded"]:
        lines.append("overloaded: this machine is too slow for what it carries; results are wrong")
    return lines


def _busy(links: Links) -> list[str]:
    """The links that carry something now, or did not carry all that they were given."""
    words = ("dropped", "lost", "trimmed", "marked")
    rows = []
    for name, link in links.items():
        rate, limit, queued = (
            link[key] or 0 for key in ("bits_per_second", "rate_bits_per_second", "queue_bytes")
        )
        if rate > _QUIET_BITS_PER_SECOND or queued or any(link[word] for word in words):
            share = f"{rate / limit:.0%}" if limit else ""
            peak = format_bytes(link.get("peak_bytes") or queued)
            counts = [link[word] for word in ("packets", *words)]
            rows.append((name, format_rate(rate), share, format_bytes(queued), peak, *counts))
    head = ("link", "rate", "busy", "queue", "peak", "packets", *words)
    return format_table(head, rows).splitlines() if rows else []


def to_json(bed: Testbed, faults: dict[str, Fault]) -> dict[str, Any]:
    shape = bed.shape
    return {
        "name": bed.name,
        "state": "up",
        "hosts": [
            {
                "host": f"h{host}",
                "namespace": bed.plan.nodes[f"h{host}"].namespace,
                "config": str(stored.config_path(bed.name, f"h{host}")),
                "address": str(shape.addresses.host(host)),
                "oob": str(shape.addresses.oob(host)),
            }
            for host in range(shape.hosts)
        ],
        "planes": shape.planes,
        "t0": shape.t0,
        "t1": shape.t1,
        "host_rate_bits_per_second": shape.host_rate_bps,
        "fabric_rate_bits_per_second": shape.fabric_rate_bps,
        "mtu_bytes": shape.mtu,
        "fabric": shape.fabric,
        "faults": [fault_to_json(target, fault) for target, fault in faults.items()],
        "missing": bed.missing(),
    }
