# SPDX-License-Identifier: Apache-2.0
"""The targets of mrc relative to the other contenders in one run. Pure.

A check is the median of the ratios of two neighbouring rows in each round, so a slow round affects
both rows. A check is omitted if one of its rows was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from figures import GOODPUT, Check

Rounds = Mapping[str, Sequence[Mapping[str, Any]]]

RATE = "messages_per_second"
_CPU = ("sender_cpu_seconds_per_gib", "receiver_cpu_seconds_per_gib")
_ONE_TCP = (
    *(f"TCP, {cc}, {mode}" for cc in ("cubic", "bbr") for mode in ("write", "sendfile")),
    "TCP, iperf3",
    "TCP, iperf3 -Z",
)


def evaluate(beds: Mapping[str, Rounds], capacities_bps: Mapping[str, float | None]) -> list[Check]:
    """Every check that the rows of the beds allow. Beds with a rate limit have a capacity."""
    found: list[Check] = []
    if rounds := beds.get("9000"):
        found += [*_bulk(rounds), *_sizes(rounds), *_cpu(rounds), *_files(rounds)]
        found += _small(rounds)
        found += _latency(rounds)
    if rounds := beds.get("1500"):
        found += _short_mtu(rounds)
    for bed, of_limit in (("500mbit", _limited), ("25ms", _long)):
        if (rounds := beds.get(bed)) and (capacity_bps := capacities_bps.get(bed)):
            found += of_limit(rounds, capacity_bps)
    return found


def _bulk(rounds: Rounds) -> Iterator[Check]:
    for what, targets in (
        ("mrc", (0.78, 0.9, 1.1)),
        ("mrc, integrity=udp", (0.88, 1.0, 1.25)),
    ):
        best = _best(rounds, _ONE_TCP)
        for size in ("1 MiB", "64 MiB"):
            row = f"{what}, WRITE {size}"
            for name, other, target in zip(
                ("floor", "best TCP flow", "MPTCP"), ("UDP floor", best, "MPTCP"), targets,
                strict=True,
            ):  # fmt: skip
                yield from _ratio(rounds, f"{row}, of {name}", row, ">=", target, other)
    yield from _sealed(rounds, "", 0.78)
    yield from _ratio(rounds, "spray=1, of floor a packet a send", "mrc, spray=1, WRITE 1 MiB",
                      ">=", 0.85, "UDP floor, a packet a send")  # fmt: skip


def _short_mtu(rounds: Rounds) -> Iterator[Check]:
    row, unchecked = "mrc, WRITE 1 MiB", "mrc, integrity=udp, WRITE 1 MiB"
    yield from _ratio(rounds, "1500 B MTU, of floor", row, ">=", 0.85)
    yield from _ratio(rounds, "1500 B MTU, of one TCP flow", row, ">=", 0.85, "TCP, cubic, write")
    yield from _ratio(rounds, "1500 B MTU, integrity=udp, of floor", unchecked, ">=", 0.92)
    yield from _sealed(rounds, "1500 B MTU, ", 0.85)


def _sealed(rounds: Rounds, where: str, encrypted: float) -> Iterator[Check]:
    """What sealed packets cost."""
    row = "mrc, WRITE 1 MiB"
    for name, target in (("aead", encrypted), ("auth", 0.95), ("aead by libcrypto", 0.4)):
        other = f"mrc, seal={name}, WRITE 1 MiB"
        yield from _ratio(rounds, f"{where}seal={name}, of plain", other, ">=", target, row)


def _sizes(rounds: Rounds) -> Iterator[Check]:
    """What other sizes and more QPs cost."""
    row = "mrc, WRITE 1 MiB"
    for name, other, target in (
        ("WRITE 64 KiB, of WRITE 1 MiB", "mrc, WRITE 64 KiB", 0.9),
        ("WRITE 64 MiB, of WRITE 1 MiB", "mrc, WRITE 64 MiB", 0.95),
        ("16 QPs, of one QP", "mrc, 16 QPs, WRITE 1 MiB", 0.95),
    ):
        yield from _ratio(rounds, name, other, ">=", target, row)


def _cpu(rounds: Rounds) -> Iterator[Check]:
    """CPU of both sides together: ACKs move a part of TCP's sending to the receiver's core."""
    row = "mrc, WRITE 1 MiB"
    for name, other in (("best TCP flow", _best(rounds, _ONE_TCP)), ("TCP by write", _ONE_TCP[0])):
        pairs = list(zip(rounds.get(row, ()), rounds.get(other, ()), strict=False))
        if pairs:
            value = median(_cpu_of(mine) / _cpu_of(theirs) for mine, theirs in pairs)
            yield Check(f"CPU a GiB, both sides, of {name}", value, "<=", 1.15)


def _cpu_of(metrics: Mapping[str, Any]) -> float:
    return sum(float(metrics[side]) for side in _CPU)


def _files(rounds: Rounds) -> Iterator[Check]:
    row = "file, mrc send"
    yield from _ratio(rounds, "file, of bulk WRITE", row, ">=", 0.75, "mrc, WRITE 1 MiB")
    best = _best(rounds, ("file, one TCP flow", "file, socat"))
    yield from _ratio(rounds, "file, of the file over one TCP flow", row, ">=", 1.3, best)
    best = _best(rounds, ("file, socat, TLS", "file, scp"))
    sealed = "file, mrc send, encrypted"
    yield from _ratio(rounds, "file, encrypted, of TLS or scp", sealed, ">=", 1.0, best)


def _small(rounds: Rounds) -> Iterator[Check]:
    thread, polled = "mrc, lists, WRITE 64 B", "mrc, polled, lists, WRITE 64 B"
    singly = ("mrc, WRITE 64 B", "mrc, polled, WRITE 64 B")
    best = _best(rounds, (*singly, thread, polled), RATE)
    yield from _ratio(
        rounds, "64 B WRITE rate, of floor", best, ">=", 0.55, "UDP floor, 64 B", RATE
    )
    yield from _ratio(
        rounds, "64 B WRITE rate, thread, of polled", thread, ">=", 0.95, polled, RATE
    )
    sealed = "mrc, seal=aead, lists, WRITE 64 B"
    yield from _ratio(
        rounds, "64 B WRITE rate, seal=aead, of plain", sealed, ">=", 0.9, thread, RATE
    )
    for name, row, target in (
        ("asyncio WRITE 64 B, million/s", "mrc, asyncio, WRITE 64 B", 0.15),
        ("asyncio WRITE 64 B in batches, million/s", "mrc, asyncio, in batches, WRITE 64 B", 1.0),
    ):
        if found := rounds.get(row):
            yield Check(name, median(metrics[RATE] for metrics in found) / 1e6, ">=", target)


def _latency(rounds: Rounds) -> Iterator[Check]:
    for how in ("spinning", "sleeping"):
        row, other = f"mrc, polled, {how}, WRITE_IMM 2 B", f"UDP ping-pong, {how}, 2 B"
        for metric, target in (("p50_ns", 1.25), ("p99_ns", 1.5)):
            name = f"WRITE_IMM 2 B, {how}, {metric[:3]}, of UDP"
            yield from _ratio(rounds, name, row, "<=", target, other, metric)
    for how in ("spinning", "sleeping"):
        row, other = f"mrc, asyncio, polled, {how}, WRITE_IMM 2 B", "UDP ping-pong, asyncio, 2 B"
        name = f"WRITE_IMM 2 B, asyncio, {how}, p50, of UDP"
        yield from _ratio(rounds, name, row, "<=", 2.0, other, "p50_ns")


def _limited(rounds: Rounds, capacity_bps: float) -> Iterator[Check]:
    found = rounds.get("mrc, WRITE 1 MiB")
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


def _ratio(
    rounds: Rounds,
    name: str,
    row: str,
    relation: str,
    target: float,
    other: str = "UDP floor",
    metric: str = GOODPUT,
) -> Iterator[Check]:
    pairs = list(zip(rounds.get(row, ()), rounds.get(other, ()), strict=False))
    if pairs:
        value = median(mine[metric] / theirs[metric] for mine, theirs in pairs)
        yield Check(name, value, relation, target)


def _best(rounds: Rounds, names: Sequence[str], metric: str = GOODPUT) -> str:
    """The row with the highest median; the first row if none was measured."""

    def middle(name: str) -> float:
        return float(median([metrics[metric] for metrics in rounds.get(name, ())] or [0.0]))

    return max(names, key=middle)
