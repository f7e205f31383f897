# SPDX-License-Identifier: Apache-2.0
"""`mrc paths --measure` and `--locate`: the quality of paths, links at fault."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from mrc.aio.qp import QP
from mrc.cli.output import format_seconds
from mrc.enums import EvState
from mrc.events import EvInfo
from mrc.fabric.locate import PathCheck, links_of, suspects
from mrc.results.paths import Quality, Suspect
from mrc.results.plain import like
from mrc.running import RunningClock
from mrc.units import counted

HEAD = ("loss", "extra delay", "jitter", "reordered")
_EVS_AT_ONCE = 32
_LOOK_SECONDS = 0.05  # between two looks whether this process was stopped
TRAIN = 3  # probes that follow each other on one EV: they show whether packets overtake

FAILS_FROM = 0.1
"""A path that loses this share of its probes counts as failed."""


async def measure(
    qp: QP, evs: Sequence[int], seconds: float, *, payload: int, timeout: float
) -> dict[int, Quality]:
    """Probes EVs for this long, at least once; times in seconds, payload in bytes.

    A peer may end the look before: what it then does not answer does not count, nor what comes too
    late because this process was stopped.
    """
    rounds: list[dict[int, Train]] = []
    latest: dict[int, Train] = {}
    with RunningClock(lambda stop: _LOOK_SECONDS) as clock:
        deadline = clock.time() + seconds
        while not latest or (clock.time() < deadline and not qp.peer_has_gone):
            stopped = clock.stopped
            latest = await _round(qp, evs, payload, timeout)
            if not qp.peer_has_gone and clock.stopped == stopped:
                rounds.append(latest)
    return {index: quality([each[index] for each in rounds or [latest]]) for index in evs}


async def _round(qp: QP, evs: Sequence[int], payload: int, timeout: float) -> dict[int, Train]:
    latest: dict[int, Train] = {}
    for start in range(0, len(evs), _EVS_AT_ONCE):
        some = evs[start : start + _EVS_AT_ONCE]
        sent = await asyncio.gather(*(_train(qp, each, payload, timeout) for each in some))
        latest |= zip(some, sent, strict=True)
    return latest


async def _train(qp: QP, index: int, payload: int, timeout: float) -> Train:
    arrivals: list[int] = []

    async def probe(place: int) -> int | None:
        (result,) = await qp.probe_evs([index], payload=payload, timeout=timeout)
        if result.answered:
            arrivals.append(place)
        return result.rtt_ns

    rtts = await asyncio.gather(*map(probe, range(TRAIN)))
    return Train(tuple(rtts), tuple(arrivals))


def with_extra_delays(evs: Sequence[EvInfo], found: Mapping[int, Quality]) -> dict[int, Quality]:
    """EV -> its quality beside the other EVs."""
    extra = extra_delays(found, {ev.index: ev.plane for ev in evs})
    return {index: replace(each, extra_delay_ns=extra[index]) for index, each in found.items()}


def cells(found: Quality | None) -> list[str]:
    """The columns of HEAD."""
    if found is None:
        return ["-"] * len(HEAD)
    times = (found.extra_delay_ns, found.jitter_ns)
    shown = ["-" if ns is None else format_seconds(ns / 1e9) for ns in times]
    return [f"{found.loss:.1%}", *shown, str(found.reordered)]


def located(evs: Sequence[EvInfo], found: Mapping[int, Quality], peer: str) -> list[Suspect]:
    """Links that the failed paths share."""
    planes = {ev.index: ev.plane for ev in evs}
    bad = failed(found, planes)
    seen = [
        PathCheck(links_of(ev.plane, ev.path, ev.usids, peer), ev.index not in bad)
        for ev in evs
        if ev.state is not EvState.DENIED
    ]
    return [like(Suspect, each) for each in suspects(seen)]


def lines(suspected: Sequence[Suspect]) -> list[str]:
    """A line for each group of links."""
    if not suspected:
        return [f"no path loses {FAILS_FROM:.0%} of its probes"]
    return [
        f"may be at fault: {' or '.join(each.links)}: {counted(each.failed, 'failed path')}"
        + (f", and {each.working} that work" if each.working else ", and none that works")
        for each in suspected
    ]


# ---- Trains of probes ----------------------------------------------------------------------------


class Train(Struct, frozen=True):
    """Probes of one EV, sent one directly after the other."""

    rtts_ns: tuple[int | None, ...]
    """in the order in which they were sent; None: without an answer"""
    arrivals: tuple[int, ...]
    """their places, in the order of the answers"""


def quality(trains: Iterable[Train]) -> Quality:
    """What trains of one path show, of one probe at least."""
    trains = list(trains)
    rtts = [rtt for train in trains for rtt in train.rtts_ns if rtt is not None]
    sent = sum(len(train.rtts_ns) for train in trains)
    steps = [abs(b - a) for a, b in pairwise(rtts)]
    return Quality(
        sent=sent,
        lost=sent - len(rtts),
        loss=(sent - len(rtts)) / sent,
        shortest_ns=min(rtts, default=None),
        extra_delay_ns=None,
        jitter_ns=round(sum(steps) / len(steps)) if steps else None,
        reordered=sum(
            any(earlier > each for earlier in train.arrivals[:place])
            for train in trains
            for place, each in enumerate(train.arrivals)
        ),
    )


def extra_delays(found: Mapping[int, Quality], planes: Mapping[int, int]) -> dict[int, int | None]:
    """By how much the way to the peer takes longer on each EV than on the best EV of its plane.

    Answers return on any path of the plane, so the shortest round trips share the best way back;
    their difference is that of the ways there. `planes`: EV -> plane.
    """
    best: dict[int, int] = {}
    for index, each in found.items():
        if each.shortest_ns is not None:
            plane = planes[index]
            best[plane] = min(best.get(plane, each.shortest_ns), each.shortest_ns)
    return {
        index: None if each.shortest_ns is None else each.shortest_ns - best[planes[index]]
        for index, each in found.items()
    }


def failed(found: Mapping[int, Quality], planes: Mapping[int, int]) -> set[int]:
    """The EVs whose paths fail.

    Answers return on any path of the plane, and may be lost there. So the best path of a plane
    shows what the way back loses, and a path fails if it loses more than chance explains; or all
    fail, if all lose the same.
    """
    bad: set[int] = set()
    for plane in {planes[index] for index in found}:
        here = {index: each for index, each in found.items() if planes[index] == plane}
        best = min(each.lost / each.sent for each in here.values())
        worse = {
            index
            for index, each in here.items()
            if each.lost / each.sent > best + _chance(best, each.sent)
        }
        bad |= worse or (set(here) if best >= FAILS_FROM else set())
    return bad


def _chance(share: float, sent: int) -> float:
    """By how much the losses of two paths may differ that lose the same share: two standard
    deviations, and at least FAILS_FROM.
    """
    return max(FAILS_FROM, 2 * math.sqrt(2 * share * (1 - share) / sent))
