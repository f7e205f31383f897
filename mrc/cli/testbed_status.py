# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed status`: what is up, what fails, what was counted."""

from __future__ import annotations

import argparse
from typing import Any

from mrc import topology
from mrc.cli.output import Output, format_rate, listed
from mrc.cli.testbed_fault import fault_to_json
from mrc.errors import StateError
from mrc.testbed import Fabric, Fault, Testbed, picture
from mrc.testbed import state as stored


def status(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = stored.load(args.name)
    if found is None or not found.up:
        state = "down" if found is None else "half built"
        others = listed(name for name in stored.names() if name != args.name)
        out.text(f"{args.name} is {state}; other test beds: {others}")
        out.result({"name": args.name, "state": state})
        return 1
    bed = Testbed.existing(args.name)
    out.text("\n".join([f"{args.name} is up: {summary(bed)}", *_details(bed, found.faults)]))
    measured: dict[str, Any] = {}
    if bed.shape.fabric is Fabric.EMULATED and not bed.missing():
        measured = {"counters": bed.counters(), "links": bed.links()}
    out.result(to_json(bed, found.faults) | measured)
    return 0


def summary(bed: Testbed) -> str:
    shape = bed.shape
    rate = "no rate limit" if shape.rate_bps is None else f"{format_rate(shape.rate_bps)} a link"
    return (
        f"{shape.hosts} hosts, {shape.planes} planes, {shape.t1} T1s a plane, {rate}, "
        f"MTU {shape.mtu}" + (", emulated" if shape.fabric is Fabric.EMULATED else "")
    )


def _details(bed: Testbed, faults: dict[str, Fault]) -> list[str]:
    lines = picture.draw(bed.shape, faults)
    lines += [
        "",
        *_emulated(bed),
        *(f"{target} fails: {fault}" for target, fault in faults.items()),
    ]
    gone = bed.missing()
    if gone:
        lines.append(f"namespaces missing: {', '.join(gone)}; mrc testbed up builds it anew")
    return lines if lines[-1] else lines[:-1]


def _emulated(bed: Testbed) -> list[str]:
    """What an emulated fabric counted: in all, and on each link that did not just carry."""
    if bed.shape.fabric is Fabric.KERNEL or bed.missing():
        return []
    words = ("received", "sent", "marked", "trimmed", "dropped", "lost", "unroutable", "overloaded")
    try:
        counters = bed.counters()
    except StateError as exc:
        return [str(exc)]
    lines = ["packets: " + ", ".join(f"{counters[word]} {word}" for word in words)]
    if counters["overloaded"]:
        lines.append("overloaded: this machine is too slow for what it carries; results are wrong")
    for link, info in bed.links().items():
        told = [f"{info[word]} {word}" for word in words if info.get(word)]
        if told:
            lines.append(f"{link:16} {', '.join(told)}, queue up to {info['peak_bytes']} bytes")
    return [*lines, ""]


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
                "address": str(topology.host_address(host)),
                "oob": str(topology.oob_address(host)),
            }
            for host in range(shape.hosts)
        ],
        "planes": shape.planes,
        "t1": shape.t1,
        "rate_bits_per_second": shape.rate_bps,
        "mtu_bytes": shape.mtu,
        "fabric": shape.fabric,
        "faults": [fault_to_json(target, fault) for target, fault in faults.items()],
        "missing": bed.missing(),
    }
