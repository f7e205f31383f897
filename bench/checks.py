# SPDX-License-Identifier: Apache-2.0
"""The targets of mrc relative to the other contenders in one run. Pure.

A check is omitted if one of its rows was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any

from figures import GOODPUT, P50, P99, Check

Metrics = Mapping[str, Any]
Rounds = Mapping[str, Sequence[Metrics]]
Rows = tuple[str, ...]
"""Rows of which the one with the most goodput counts."""

RATE = "messages_per_second"


@dataclass(frozen=True, slots=True)
class Target:
    """A metric of `row` relative to the same of `other`, or alone."""

    name: str
    row: str | Rows
    relation: str
    target: float
    other: str | Rows = ()
    metric: Callable[[Metrics], float] = itemgetter(GOODPUT)

    def check(self, rounds: Rounds) -> Iterator[Check]:
        mine, value = _best(rounds, self.row), self.metric
        if self.other:
            pairs = zip(mine, _best(rounds, self.other), strict=False)
            values = [value(ours) / value(theirs) for ours, theirs in pairs]
        else:
            values = list(map(value, mine))
        if values:
            yield Check(self.name, median(values), self.relation, self.target)


def _best(rounds: Rounds, rows: str | Rows) -> Sequence[Metrics]:
    names = (rows,) if isinstance(rows, str) else rows
    found = [rounds[name] for name in names if name in rounds]
    if len(found) < 2:
        return found[0] if found else ()
    return max(found, key=lambda each: median(metrics[GOODPUT] for metrics in each))


def _cpu(metrics: Metrics) -> float:
    """Of both sides together: ACKs move a part of TCP's sending to the receiver's core."""
    sides = ("sender_cpu_seconds_per_gib", "receiver_cpu_seconds_per_gib")
    return sum(float(metrics[side]) for side in sides)


def _million(metrics: Metrics) -> float:
    return float(metrics[RATE]) / 1e6


def _bulk(what: str, *targets: float) -> Iterator[Target]:
    others: dict[str, str | Rows] = {"floor": FLOOR, "best TCP flow": ONE_TCP, "MPTCP": "MPTCP"}
    for size in ("1 MiB", "64 MiB"):
        row = f"{what}, WRITE {size}"
        for (name, other), target in zip(others.items(), targets, strict=True):
            yield Target(f"{row}, of {name}", row, ">=", target, other)


def _sealed(where: str, encrypted: float) -> Iterator[Target]:
    for name, target in (("aead", encrypted), ("auth", 0.95), ("aead by libcrypto", 0.4)):
        row = f"mrc, seal={name}, WRITE 1 MiB"
        yield Target(f"{where}seal={name}, of plain", row, ">=", target, MRC)


def _latency(how: str) -> Iterator[Target]:
    row, other = f"mrc, polled, {how}, WRITE_IMM 2 B", f"UDP ping-pong, {how}, 2 B"
    for metric, target in ((P50, 1.25), (P99, 1.5)):
        name = f"WRITE_IMM 2 B, {how}, {metric[:3]}, of UDP"
        yield Target(name, row, "<=", target, other, itemgetter(metric))
    row, other = f"mrc, asyncio, polled, {how}, WRITE_IMM 2 B", "UDP ping-pong, asyncio, 2 B"
    name = f"WRITE_IMM 2 B, asyncio, {how}, p50, of UDP"
    yield Target(name, row, "<=", 2.0, other, itemgetter(P50))


MRC, UNCHECKED, FLOOR = "mrc, WRITE 1 MiB", "mrc, integrity=udp, WRITE 1 MiB", "UDP floor"
ONE_TCP = (
    *(f"TCP, {cc}, {mode}" for cc in ("cubic", "bbr") for mode in ("write", "sendfile")),
    "TCP, iperf3",
    "TCP, iperf3 -Z",
)
_RATE = itemgetter(RATE)
_SINGLY = ("mrc, WRITE 64 B", "mrc, polled, WRITE 64 B")
_LISTS, _POLLED = "mrc, lists, WRITE 64 B", "mrc, polled, lists, WRITE 64 B"


DIRECT = {
    f"{links}x{mtu}": {"links": links, "mtu": mtu}
    for mtu in (9000, 1500, 65535)
    for links in (1, 2, 4)
}
"""Beds of two hosts joined by cables, as most have them."""


def _direct(links: int, mtu: int) -> Iterator[Target]:
    """Two hosts joined by cables."""
    where, one = f"{links} x {mtu} B MTU", links == 1
    of_tcp = {9000: 1.2 if one else 1.6, 1500: 1.6 if one else 1.8}.get(mtu)
    if of_tcp:
        yield Target(f"{where}, of best TCP flow", MRC, ">=", of_tcp, ONE_TCP)
    if one:
        yield Target(f"{where}, of floor", MRC, ">=", 0.95, FLOOR)
    if mtu == 9000 and links != 2:
        yield Target(
            f"{where}, file, of one TCP flow",
            "file, mrc send",
            ">=",
            0.9 if one else 1.2,
            "file, one TCP flow",
        )
        yield Target(
            f"{where}, file, encrypted, of TLS",
            "file, mrc send, encrypted",
            ">=",
            2.5,
            "file, socat, TLS",
        )


TARGETS: dict[str, list[Target]] = {
    **{name: list(_direct(**bed)) for name, bed in DIRECT.items()},
    "9000": [
        *_bulk("mrc", 0.78, 0.9, 1.1),
        *_bulk("mrc, integrity=udp", 0.88, 1.0, 1.25),
        *_sealed("", 0.78),
        Target("spray=1, of floor a packet a send", "mrc, spray=1, WRITE 1 MiB", ">=", 0.85,
               "UDP floor, a packet a send"),
        Target("WRITE 64 KiB, of WRITE 1 MiB", "mrc, WRITE 64 KiB", ">=", 0.9, MRC),
        Target("WRITE 64 MiB, of WRITE 1 MiB", "mrc, WRITE 64 MiB", ">=", 0.95, MRC),
        Target("16 QPs, of one QP", "mrc, 16 QPs, WRITE 1 MiB", ">=", 0.95, MRC),
        Target("CPU a GiB, both sides, of best TCP flow", MRC, "<=", 1.15, ONE_TCP, _cpu),
        Target("CPU a GiB, both sides, of TCP by write", MRC, "<=", 1.15, ONE_TCP[0], _cpu),
        Target("file, of bulk WRITE", "file, mrc send", ">=", 0.75, MRC),
        Target("file, of the file over one TCP flow", "file, mrc send", ">=", 1.3,
               ("file, one TCP flow", "file, socat")),
        Target("file, encrypted, of TLS or scp", "file, mrc send, encrypted", ">=", 1.0,
               ("file, socat, TLS", "file, scp")),
        Target("64 B WRITE rate, of floor", (*_SINGLY, _LISTS, _POLLED), ">=", 0.55,
               "UDP floor, 64 B", _RATE),
        Target("64 B WRITE rate, thread, of polled", _LISTS, ">=", 0.95, _POLLED, _RATE),
        Target("64 B WRITE rate, seal=aead, of plain", "mrc, seal=aead, lists, WRITE 64 B", ">=",
               0.9, _LISTS, _RATE),
        Target("asyncio WRITE 64 B, million/s", "mrc, asyncio, WRITE 64 B", ">=", 0.15,
               metric=_million),
        Target("asyncio WRITE 64 B in batches, million/s", "mrc, asyncio, in batches, WRITE 64 B",
               ">=", 1.0, metric=_million),
        *_latency("spinning"),
        *_latency("sleeping"),
    ],
    "1500": [
        Target("1500 B MTU, of floor", MRC, ">=", 0.85, FLOOR),
        Target("1500 B MTU, of one TCP flow", MRC, ">=", 0.85, "TCP, cubic, write"),
        Target("1500 B MTU, integrity=udp, of floor", UNCHECKED, ">=", 0.92, FLOOR),
        *_sealed("1500 B MTU, ", 0.85),
    ],
}  # fmt: skip


def evaluate(beds: Mapping[str, Rounds], capacities_bps: Mapping[str, float | None]) -> list[Check]:
    """Every check that the rows of the beds allow. Beds with a rate limit have a capacity."""
    found = [
        check
        for bed, targets in TARGETS.items()
        for target in targets
        for check in target.check(beds.get(bed, {}))
    ]
    for bed, of_limit in (("500mbit", _limited), ("25ms", _long)):
        if (rounds := beds.get(bed)) and (capacity_bps := capacities_bps.get(bed)):
            found += of_limit(rounds, capacity_bps)
    return found


def _limited(rounds: Rounds, capacity_bps: float) -> Iterator[Check]:
    found = rounds.get(MRC)
    if not found:
        return
    share = median(metrics[GOODPUT] for metrics in found) / capacity_bps
    yield Check("rate-limited, of payload capacity", share, ">=", 0.97)
    uneven = median(
        max(abs(share * len(metrics["plane_shares"]) - 1) for share in metrics["plane_shares"])
        for metrics in found
    )
    yield Check("rate-limited, worst plane's distance from an equal share", uneven, "<=", 0.02)


def _long(rounds: Rounds, capacity_bps: float) -> Iterator[Check]:
    if found := rounds.get("mrc"):
        share = median(metrics[GOODPUT] for metrics in found) / capacity_bps
        yield Check("25 ms, from the 20th round trip on, of payload capacity", share, ">=", 0.9)
