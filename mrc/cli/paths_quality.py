# SPDX-License-Identifier: Apache-2.0
"""`mrc paths --measure` and `--locate`: the quality of paths, links at fault."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mrc.aio.qp import QP
from mrc.cli.output import format_seconds
from mrc.control.quality import FAILS_FROM, TRAIN, Quality, Train, extra_delays, failed, quality
from mrc.enums import EvState
from mrc.events import EvInfo
from mrc.fabric.locate import PathCheck, links_of, suspects
from mrc.results import paths as results
from mrc.results.plain import like
from mrc.running import RunningClock
from mrc.units import counted

HEAD = ("loss", "extra delay", "jitter", "reordered")
_EVS_AT_ONCE = 32
_LOOK_SECONDS = 0.05  # between two looks whether this process was stopped


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


def told(evs: Sequence[EvInfo], found: Mapping[int, Quality]) -> dict[int, results.Quality]:
    """EV -> its quality as a result."""
    extra = extra_delays(found, {ev.index: ev.plane for ev in evs})
    return {
        index: like(
            results.Quality,
            each,
            loss=each.lost / each.sent,
            extra_delay_ns=extra[index],
        )
        for index, each in found.items()
    }


def cells(found: results.Quality | None) -> list[str]:
    """The columns of HEAD."""
    if found is None:
        return ["-"] * len(HEAD)
    times = (found.extra_delay_ns, found.jitter_ns)
    shown = ["-" if ns is None else format_seconds(ns / 1e9) for ns in times]
    return [f"{found.loss:.1%}", *shown, str(found.reordered)]


def located(
    evs: Sequence[EvInfo], found: Mapping[int, Quality], peer: str
) -> list[results.Suspect]:
    """Links that the failed paths share."""
    planes = {ev.index: ev.plane for ev in evs}
    bad = failed(found, planes)
    seen = [
        PathCheck(links_of(ev.plane, ev.path, ev.usids, peer), ev.index not in bad)
        for ev in evs
        if ev.state is not EvState.DENIED
    ]
    return [like(results.Suspect, each) for each in suspects(seen)]


def lines(suspected: Sequence[results.Suspect]) -> list[str]:
    """A line for each group of links."""
    if not suspected:
        return [f"no path loses {FAILS_FROM:.0%} of its probes"]
    return [
        f"may be at fault: {' or '.join(each.links)}: {counted(each.failed, 'failed path')}"
        + (f", and {each.working} that work" if each.working else ", and none that works")
        for each in suspected
    ]
