# SPDX-License-Identifier: Apache-2.0
"""Reads what a `[[faults]]` table says: the same for simulated fabrics and for test beds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mrc import units
from mrc.sim import native
from mrc.sim.scenario import Fault
from mrc.sim.table import Table


def read_time(table: Table, key: str, rtt_ns: int | None, default: str | None = None) -> int:
    return table.parsed(key, lambda text: units.parse_time(text, rtt_ns), default)


def read_fault(
    table: Table, parse_target: Callable[[str], object], rtt_ns: int | None = None
) -> Fault:
    """One table; `parse_target` raises ValueError for a target that is none there.

    Raises ConfigError.
    """
    target = table.text("target")
    table.parsed("target", parse_target)
    kind = table.choice("kind", native.KINDS)
    a, b = _degree(table, kind)
    fault = Fault(
        target=target,
        kind=kind,
        packets=table.choice("packets", native.CLASSES, "all"),
        at_ns=read_time(table, "at", rtt_ns, "0ns"),
        until_ns=read_time(table, "until", rtt_ns) if table.has("until") else native.NEVER,
        a=a,
        b=b,
        every_ns=read_time(table, "every", rtt_ns) if table.has("every") else 0,
        for_ns=read_time(table, "for", rtt_ns) if table.has("for") else 0,
    )
    table.close()
    if fault.until_ns <= fault.at_ns:
        raise table.error("until", "is not after at")
    if bool(fault.every_ns) != bool(fault.for_ns):
        raise table.error("every", "every goes with for: how often, and for how long each time")
    if fault.for_ns and fault.for_ns >= fault.every_ns:
        raise table.error("for", "is not below every")
    return fault


def occurrences(fault: Fault, end_ns: int = native.NEVER) -> Iterator[tuple[int, int]]:
    """From when to when, each time; no begin is at or after `end_ns`."""
    begin, last = fault.at_ns, min(fault.until_ns, end_ns)
    if not fault.every_ns:
        yield begin, fault.until_ns
        return
    while begin < last:
        yield begin, min(begin + fault.for_ns, fault.until_ns)
        begin += fault.every_ns


def _degree(table: Table, kind: str) -> tuple[int, int]:
    """The two numbers of a fault, from the keys that its kind has."""
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
        case "delay" | "jitter":
            return table.parsed(kind, units.parse_time), 0
        case _:
            rate, share = table.parsed("rate", _parse_rate)
            if rate == share == 0:
                raise table.error("rate", "a link without a rate carries nothing: say silent")
            return rate, share


def _parse_rate(text: str) -> tuple[int, int]:
    """Bits a second, or a share in parts per million."""
    if text.endswith(("%", "ppm")):
        return 0, units.parse_share(text)
    return units.parse_rate(text), 0
