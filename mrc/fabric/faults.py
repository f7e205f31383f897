# SPDX-License-Identifier: Apache-2.0
"""Scheduled faults of parts of a fabric: the table `[[faults]]` of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, get_args

from msgspec import Struct

from mrc import units
from mrc.fabric.table import Table

NEVER = (1 << 64) - 1  # ns
LEAST_MTU, LARGEST_MTU = 1280, 1 << 16  # of IPv6; of a loopback interface
KINDS = (
    "silent", "down", "loss", "lose", "mask", "burst", "corrupt", "duplicate", "reorder", "delay",
    "jitter", "rate", "mtu",
)  # fmt: skip
Packets = Literal["all", "control", "data"]
CLASSES: tuple[Packets, ...] = get_args(Packets)


class Fault(Struct, frozen=True):
    """What befalls a part of the fabric, from one time to another."""

    target: str
    """What fails: plane:2, t1:3.0, uplink:1.0.0, ..."""
    kind: str
    """How it fails: silent, down, loss, delay, rate, ..."""
    packets: Packets
    """Packets that it affects."""
    at_ns: int
    """Begin."""
    until_ns: int | None
    """End; None: the end of the run."""
    a: int
    """Degree: parts per million for loss, corrupt, duplicate and reorder; ns for delay and jitter;
    bit/s for rate; bytes for mtu.
    """
    b: int
    """Second number: ns for duplicate and reorder; parts per million for rate when `a` is 0."""
    every_ns: int = 0
    """Period of a repeated fault; 0: it occurs once."""
    for_ns: int = 0
    """Duration of each occurrence of a repeated fault."""
    draw: int = 0
    """Parts that the seed draws from those that a target with `*` names; 0: all of them."""

    @property
    def end_ns(self) -> int:
        """As `until_ns`; NEVER: the end of the run."""
        return NEVER if self.until_ns is None else self.until_ns


def read_time(table: Table, key: str, rtt_ns: int | None, default: str | None = None) -> int:
    return table.parsed(key, lambda text: units.parse_time(text, rtt_ns), default)


def read_fault(
    table: Table, parse_target: Callable[[str], object], rtt_ns: int | None = None
) -> Fault:
    """Reads one table. `parse_target` raises ValueError for a target that does not exist.

    Raises ConfigError.
    """
    target = table.text("target")
    table.parsed("target", parse_target)
    kind = table.choice("kind", KINDS)
    a, b = _degree(table, kind)
    fault = Fault(
        target=target,
        kind=kind,
        packets=table.choice("packets", CLASSES, "all"),
        at_ns=read_time(table, "at", rtt_ns, "0ns"),
        until_ns=read_time(table, "until", rtt_ns) if table.has("until") else None,
        a=a,
        b=b,
        every_ns=read_time(table, "every", rtt_ns) if table.has("every") else 0,
        for_ns=read_time(table, "for", rtt_ns) if table.has("for") else 0,
    )
    table.close()
    if kind == "down" and ">" in target:
        raise table.error("kind", "a link goes down in both directions: use silent for one")
    if fault.end_ns <= fault.at_ns:
        raise table.error("until", "must be later than at")
    if bool(fault.every_ns) != bool(fault.for_ns):
        raise table.error("every", "requires for, and for requires every: set both or neither")
    if fault.for_ns and fault.for_ns >= fault.every_ns:
        raise table.error("for", "must be shorter than every")
    return fault


def occurrences(fault: Fault, end_ns: int = NEVER) -> Iterator[tuple[int, int]]:
    """Begin and end in ns of each occurrence. Repeated occurrences begin before `end_ns`."""
    begin, last = fault.at_ns, min(fault.end_ns, end_ns)
    if not fault.every_ns:
        yield begin, fault.end_ns
        return
    while begin < last:
        yield begin, min(begin + fault.for_ns, fault.end_ns)
        begin += fault.every_ns


def _degree(table: Table, kind: str) -> tuple[int, int]:
    """The two numbers of a fault, from the keys of its kind."""
    match kind:
        case "silent" | "down":
            return 0, 0
        case "loss" | "corrupt":
            return table.parsed("share", units.parse_share), 0
        case "lose":
            return table.integer("n", 1, 10**6), table.integer("of", 1, 10**6)
        case "mask":
            return table.integer("mask", 1, (1 << 63) - 1), 0
        case "burst":
            return table.parsed("share", units.parse_share), table.integer("length", 1, 10**6)
        case "duplicate" | "reorder":
            return table.parsed("share", units.parse_share), table.parsed("by", units.parse_time)
        case "mtu":
            return table.integer("mtu", LEAST_MTU, LARGEST_MTU), 0
        case "delay" | "jitter":
            return table.parsed(kind, units.parse_time), 0
        case _:
            rate, share = table.parsed("rate", _parse_rate)
            if rate == share == 0:
                raise table.error("rate", "must not be 0; for a dead link use kind silent")
            return rate, share


def _parse_rate(text: str) -> tuple[int, int]:
    """Returns (bits a second, 0) or (0, share of the link's rate in parts per million)."""
    if text.endswith(("%", "ppm")):
        return 0, units.parse_share(text)
    return units.parse_rate(text), 0
