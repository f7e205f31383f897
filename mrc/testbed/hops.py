# SPDX-License-Identifier: Apache-2.0
"""The hops of an emulated fabric, and which of them a fault befalls. Pure.

A hop is one direction of a link with the port that feeds it. Every packet passes the hops of a
target once, so that 20% is 20% and 1 ms is 1 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mrc.testbed.plan import FABRIC, interface_name
from mrc.testbed.targets import Fault, Target
from mrc.topology import Topology

SOCKET = "fabric.sock"

# In the order of the enums in csrc/emu/emu.h.
HOST_UP, HOST_DOWN, T0_UP, T1_DOWN = HOP_KINDS = ("host-up", "host-down", "t0-up", "t1-down")
FAULT_KINDS = ("silent", "loss", "corrupt", "duplicate", "reorder", "delay", "jitter", "rate")


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


def links(target: Target, fabric: Topology) -> list[tuple[str, str]]:
    """Node and interface of every link end that goes down with the target."""
    if target.kind in ("t1", "uplink"):
        return []  # no host is at these links
    hosts = fabric.host_numbers() if target.host is None else [target.host]
    return [(FABRIC, interface_name(host, target.plane)) for host in hosts]


def place(faults: Mapping[Target, Fault], fabric: Topology) -> dict[Hop, list[FaultRow]]:
    """What every failing hop suffers, all faults together."""
    kept: dict[Hop, float] = {}
    for target, fault in faults.items():
        for hop in hops_of(target, fabric):
            kept[hop] = kept.get(hop, 1.0) * (1 - fault.loss)
    return {hop: [_loss(1 - share)] for hop, share in kept.items()}


def _loss(share: float) -> FaultRow:
    ppm = round(share * 1_000_000)
    return ("silent", 0, 0) if ppm == 1_000_000 else ("loss", ppm, 0)


def encode_faults(faults: Mapping[Hop, list[FaultRow]]) -> list[Any]:
    """For JSON."""
    return [[list(hop), [list(row) for row in rows]] for hop, rows in faults.items()]


def decode_faults(stored: list[Any]) -> dict[Hop, list[FaultRow]]:
    return {Hop(*hop): [(kind, a, b) for kind, a, b in rows] for hop, rows in stored}
