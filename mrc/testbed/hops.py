# SPDX-License-Identifier: Apache-2.0
"""The hops of a fabric, and which of them a fault befalls. Pure.

A hop is one direction of a link with the port that feeds it. Every packet passes the hops of a
target once, so that 20% is 20% and 1 ms is 1 ms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mrc.testbed.plan import FABRIC, interface_name, t0_name, t1_name
from mrc.testbed.targets import Fault, Target
from mrc.topology import Topology

SOCKET = "fabric.sock"

# In the order of the enums in csrc/emu/emu.h.
HOST_UP, HOST_DOWN, T0_UP, T1_DOWN = HOP_KINDS = ("host-up", "host-down", "t0-up", "t1-down")
FAULT_KINDS = ("silent", "loss", "corrupt", "duplicate", "reorder", "delay", "jitter", "rate")


_ALL_PPM = 1_000_000
_REORDER_NS = 1_000_000  # a packet that is reordered comes so much later at most


class Hop(NamedTuple):
    """From a host to its T0, back, from a T0 to a T1, or back; T0 H serves host H."""

    kind: str
    plane: int
    host: int
    t1: int = 0

    def __str__(self) -> str:
        host, t0, t1 = (
            f"h{self.host}",
            f"t0:{self.plane}.{self.host}",
            f"t1:{self.plane}.{self.t1}",
        )
        ends = {HOST_UP: (host, t0), HOST_DOWN: (t0, host), T0_UP: (t0, t1), T1_DOWN: (t1, t0)}
        return ">".join(ends[self.kind])


FaultRow = tuple[str, int, int]
"""kind and its two numbers, see csrc/emu/emu.h"""


def all_hops(fabric: Topology) -> list[Hop]:
    """Every hop, plane by plane."""
    found = []
    for plane in fabric.plane_numbers():
        for host in fabric.host_numbers():
            found += [Hop(HOST_UP, plane, host), Hop(HOST_DOWN, plane, host)]
            for t1 in fabric.t1_numbers():
                found += [Hop(T0_UP, plane, host, t1), Hop(T1_DOWN, plane, host, t1)]
    return found


def hops_of(target: Target, fabric: Topology) -> list[Hop]:
    """Hops of which each packet that the target concerns passes exactly one."""
    plane, host, t1 = target.plane, target.host, target.t1
    if target.kind == "plane":
        return [Hop(HOST_UP, plane, each) for each in fabric.host_numbers()]
    if target.kind == "t1":
        assert t1 is not None
        return [Hop(T1_DOWN, plane, each, t1) for each in fabric.host_numbers()]
    assert host is not None
    if target.kind == "uplink":
        assert t1 is not None
        return [Hop(T0_UP, plane, host, t1), Hop(T1_DOWN, plane, host, t1)]
    return [Hop(HOST_UP, plane, host), Hop(HOST_DOWN, plane, host)]


def port(hop: Hop) -> tuple[str, str]:
    """Node and interface that send on a hop, where every switch is a namespace."""
    t0 = t0_name(hop.plane, hop.host)
    return {
        HOST_UP: (f"h{hop.host}", f"p{hop.plane}"),
        HOST_DOWN: (t0, f"h{hop.host}"),
        T0_UP: (t0, f"t1-{hop.t1}"),
        T1_DOWN: (t1_name(hop.plane, hop.t1), f"t0-{hop.host}"),
    }[hop.kind]


def filters(target: Target, fabric: Topology) -> dict[str, dict[str, Hop]]:
    """Which of the packets that a switch forwards are concerned, where every switch is a namespace:
    node -> nftables match -> the hop that these packets pass.

    Never at a host: its stack would see there what is lost.
    """
    found: dict[str, dict[str, Hop]] = {}
    for hop in hops_of(target, fabric):
        node, interface = port(hop)
        match = f"oifname {interface}"
        if hop.kind == HOST_UP:
            node, match = t0_name(hop.plane, hop.host), f"iifname h{hop.host}"
        found.setdefault(node, {})[match] = hop
    return found


def links(target: Target, fabric: Topology) -> list[tuple[str, str]]:
    """Node and interface of every link end that goes down with the target, in an emulated fabric:
    those of hosts.
    """
    if target.kind in ("t1", "uplink"):
        return []  # no host is at these links
    hosts = fabric.host_numbers() if target.host is None else [target.host]
    return [(FABRIC, interface_name(host, target.plane)) for host in hosts]


def place(
    faults: Mapping[Target, Fault],
    fabric: Topology,
    *,
    rate_bps: int | None = None,
    delay_ns: int = 0,
    jitter_ns: int = 0,
) -> dict[Hop, list[FaultRow]]:
    """What every failing hop suffers, all faults together; rate, delay and jitter are those of a
    link without faults.

    Raises ValueError for a share of no rate.
    """
    suffered: dict[Hop, list[Fault]] = {}
    rates: dict[Hop, list[int]] = {}
    for target, fault in faults.items():
        for hop in hops_of(target, fabric):
            suffered.setdefault(hop, []).append(fault)
        for hop in _links_of(target, fabric) if fault.cuts_rate else ():
            rates.setdefault(hop, []).append(fault.rate_of(rate_bps) or 0)
    placed = {hop: _rows(found, delay_ns, jitter_ns) for hop, found in suffered.items()}
    for hop, found in rates.items():
        placed.setdefault(hop, []).append(("rate", min(found), 0))
    return placed


def _links_of(target: Target, fabric: Topology) -> list[Hop]:
    """Hops of the links whose rate is the target's: of a plane, those to and from hosts."""
    found = hops_of(target, fabric)
    if target.kind == "plane":
        found += [hop._replace(kind=HOST_DOWN) for hop in found]
    if target.kind == "t1":
        found += [hop._replace(kind=T0_UP) for hop in found]
    return found


def _rows(faults: list[Fault], delay_ns: int, jitter_ns: int) -> list[FaultRow]:
    """Chances are independent of each other; delays add up."""
    rows: list[FaultRow] = []
    for kind in ("loss", "corrupt", "duplicate", "reorder"):
        spared = math.prod(1 - float(getattr(fault, kind)) for fault in faults)
        ppm = round((1 - spared) * _ALL_PPM)
        if kind == "loss" and ppm == _ALL_PPM:
            rows.append(("silent", 0, 0))
        elif ppm > 0:
            rows.append((kind, ppm, _REORDER_NS))
    delay_ns += sum(fault.delay_ns for fault in faults)
    jitter_ns += sum(fault.jitter_ns for fault in faults)
    return [*rows, ("delay", delay_ns, 0), ("jitter", jitter_ns, 0)]


def encode_faults(faults: Mapping[Hop, list[FaultRow]]) -> list[Any]:
    """For JSON."""
    return [[list(hop), [list(row) for row in rows]] for hop, rows in faults.items()]


def decode_faults(stored: list[Any]) -> dict[Hop, list[FaultRow]]:
    return {Hop(*hop): [(kind, a, b) for kind, a, b in rows] for hop, rows in stored}
