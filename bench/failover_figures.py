# SPDX-License-Identifier: Apache-2.0
"""Figures of a run through a scenario, and the targets of mrc. Pure.

Goodput at a moment is the mean over the following 50 ms. A burst is up to 64 KiB, 1 ms of a plane's
rate, so a much shorter window would show single bursts. 2 ms without a byte reduce the mean by 4%.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from failover_scenario import DOWN, LOSS, SLOW, STORY, Event, Phase, phases
from figures import Check

from mrc.demo.run import Timeline
from mrc.testbed.plan import BURST_BYTES

WINDOW_SECONDS = 0.05
STEP_SECONDS = 0.001
BACK_SHARE = 0.97  # of the capacity of the planes without a fault
LOW_SHARE = 0.95
BACK_SECONDS = {DOWN: 0.010, SLOW: 0.2}
_BACK_SECONDS = 0.020  # for other faults
GAP_SECONDS = 0.005
FIRST_SECONDS = 0.1  # only gaps in this time count: later gaps are as long without any fault
REUSE_SECONDS = 1.0

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """Payload that arrived, in bins; seconds count from the first traffic."""

    start: float
    width: float
    bytes: Sequence[int]

    def timeline(self) -> Timeline:
        return Timeline(self.start, self.width, self.bytes)

    def stall(self, start: float, end: float) -> tuple[float, float]:
        """The longest time without a byte in [start, end), and its begin; 0 for none.

        The time of n empty bins can be n to n + 2 bins, so this returns n + 1 bins.
        """
        first = max(0, round((start - self.start) / self.width))
        last = max(first, round((end - self.start) / self.width))
        longest, longest_end, run = 0, first, 0
        for i in range(first, last):
            run = 0 if i < len(self.bytes) and self.bytes[i] else run + 1
            if run > longest:
                longest, longest_end = run, i + 1
        at = self.start + (longest_end - longest) * self.width
        return (longest + 1) * self.width if longest else 0.0, at


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """Goodput after a change."""

    name: str
    start_seconds: float
    end_seconds: float
    planes: float
    back_seconds: float | None  # until goodput reached back_share of the capacity; None: never
    below_seconds: float  # time in which goodput was below 95%
    worst_share: float | None  # lowest goodput of the capacity, after the allowed seconds
    mean_share: float | None
    dip_share: float | None  # lowest goodput of the earlier phase's capacity, until back_seconds
    longest_gap_seconds: float
    first_gap_seconds: float  # the longest in the first 0.1 s, probably caused by the change


def figures(
    series: Series, events: Sequence[Event], seconds: float, planes: int, plane_bps: float
) -> dict[str, Any]:
    """All figures of a run, for JSON. `plane_bps` is the payload rate of a plane."""
    timeline = series.timeline()
    parts = phases(events, seconds, planes)
    stall, stall_at = series.stall(0.1, seconds)
    capacity = _carried(parts, events, planes, plane_bps)
    faults = {event.name: event for event in events}
    before = [parts[0], *parts]
    return {
        "delivered_bytes": round(timeline.bytes_at(seconds) - timeline.bytes_at(0.0)),
        "capacity_bytes": round(capacity),
        "longest_stall_seconds": stall,
        "longest_stall_at_seconds": stall_at,
        "phases": [
            asdict(_phase(series, timeline, earlier, part, plane_bps, faults.get(part.name)))
            for earlier, part in zip(before, parts, strict=False)
        ],
    }


def _carried(
    parts: Sequence[Phase], events: Sequence[Event], planes: int, plane_bps: float
) -> float:
    """Payload bytes that the planes can carry in all phases, starting with full buckets. A lossy
    plane carries what it does not lose, although the checks do not require it.
    """
    seconds = sum((part.end - part.start) * part.planes for part in parts)
    seconds += sum((e.until - e.at) * (1 - e.loss) for e in events if e.mode == LOSS)
    return seconds * plane_bps / 8 + planes * BURST_BYTES


def allowed_seconds(event: Event | None) -> float:
    """Time limit in which goodput must return."""
    if event is None:
        return REUSE_SECONDS
    return BACK_SECONDS.get(event.mode, _BACK_SECONDS)


def back_share(event: Event | None) -> float:
    """The share of the capacity to which goodput must return."""
    return LOW_SHARE if event is not None and event.mode == SLOW else BACK_SHARE


def _phase(
    series: Series,
    timeline: Timeline,
    earlier: Phase,
    part: Phase,
    plane_bps: float,
    event: Event | None,
) -> PhaseFigures:
    capacity = part.planes * plane_bps
    back = _back(timeline, part, back_share(event) * capacity) if part.planes else None
    settled = part.start + allowed_seconds(event)
    until_back = part.end if back is None else part.start + back
    return PhaseFigures(
        name=part.name,
        start_seconds=part.start,
        end_seconds=part.end,
        planes=part.planes,
        back_seconds=back,
        below_seconds=_below(timeline, part, LOW_SHARE * capacity),
        worst_share=_worst(timeline, settled, part.end, capacity),
        mean_share=timeline.goodput(settled, part.end) / capacity
        if capacity and part.end > settled
        else None,
        dip_share=_worst(timeline, part.start, until_back, earlier.planes * plane_bps),
        longest_gap_seconds=series.stall(part.start, part.end)[0],
        first_gap_seconds=series.stall(part.start, min(part.end, part.start + FIRST_SECONDS))[0],
    )


def _windows(start: float, end: float) -> Iterator[float]:
    """Starts of all windows that end by `end`."""
    for i in range(int((end - WINDOW_SECONDS - start) / STEP_SECONDS + 1e-6) + 1):
        yield start + i * STEP_SECONDS


def _goodput(timeline: Timeline, at: float) -> float:
    return timeline.goodput(at, at + WINDOW_SECONDS)


def _back(timeline: Timeline, part: Phase, level: float) -> float | None:
    for at in _windows(part.start, part.end):
        if _goodput(timeline, at) >= level:
            return at - part.start
    return None


def _below(timeline: Timeline, part: Phase, level: float) -> float:
    """Time below a level. The last window of a phase is shortened."""
    low = 0
    steps = int((part.end - part.start) / STEP_SECONDS + 1e-6)
    for i in range(steps):
        at = part.start + i * STEP_SECONDS
        end = min(at + WINDOW_SECONDS, part.end)
        low += timeline.goodput(at, end) < level and end - at >= WINDOW_SECONDS / 2
    return low * STEP_SECONDS


def _worst(timeline: Timeline, start: float, end: float, capacity: float) -> float | None:
    """The lowest share of any window; None if the time is shorter, or the capacity is 0."""
    if not capacity or end - start < WINDOW_SECONDS:
        return None
    return min(_goodput(timeline, at) for at in _windows(start, end)) / capacity


# ---- targets of mrc -----------------------------------------------------------------------------


def checks(found: Mapping[str, Any], events: Sequence[Event]) -> Iterator[Check]:
    """The checks of mrc in one scenario. A phase that is too short has none."""
    faults = {event.name: event for event in events}
    many = len({event.plane for event in events}) > 1
    for part in found["phases"][1:]:
        event = faults.get(part["name"])
        if part["planes"] == 0:
            continue
        if many:
            yield from _capacity_followed(part)
        elif event is None:
            yield from _reused(part)
        elif event.mode == LOSS:
            yield _share(f"{part['name']}: worst 50 ms after 20 ms", part["worst_share"])
        elif event.mode == SLOW:
            yield from _followed(part, event)
        else:
            yield from _survived(part, event)


def _survived(part: Mapping[str, Any], event: Event) -> Iterator[Check]:
    limit = allowed_seconds(event)
    yield _in_time(f"{event.name}: back to 97%, s", part, limit)
    yield _share(f"{event.name}: mean from then on", part["mean_share"])
    gap = part["first_gap_seconds"]
    yield Check(f"{event.name}: longest gap in the first 0.1 s", gap, "<=", GAP_SECONDS)


def _followed(part: Mapping[str, Any], event: Event) -> Iterator[Check]:
    yield _in_time(f"{event.name}: back to 95%, s", part, allowed_seconds(event))
    if part["mean_share"] is not None:
        yield _share(f"{event.name}: mean from then on", part["mean_share"], LOW_SHARE)


def _reused(part: Mapping[str, Any]) -> Iterator[Check]:
    yield _in_time(f"{part['name']}: capacity used again, s", part, REUSE_SECONDS)
    dip = part["dip_share"]
    yield _share(f"{part['name']}: worst 50 ms until then", 1.0 if dip is None else dip)


def _capacity_followed(part: Mapping[str, Any]) -> Iterator[Check]:
    name = f"{part['name']}, {part['planes']:g} left"
    yield _in_time(f"{name}: back to 97%, s", part, REUSE_SECONDS)


def _in_time(name: str, part: Mapping[str, Any], limit: float) -> Check:
    back = part["back_seconds"]
    never = part["end_seconds"] - part["start_seconds"]
    return Check(name, never if back is None else back, "<=", limit)


def _share(name: str, share: float | None, least: float = BACK_SHARE) -> Check:
    return Check(name, 0.0 if share is None else share, ">=", least)


def checks_of(run: Run) -> list[Check]:
    return list(checks(run["figures"], events_of(run)))


# ---- a run from its JSON ------------------------------------------------------------------------


def story_of(result: Mapping[str, Any]) -> list[Run]:
    """The runs that all contenders have in common."""
    return [run for run in result["runs"] if run["scenario"] == STORY.name]


def events_of(run: Run) -> list[Event]:
    return [Event(**event) for event in run["events"]]


def rates(run: Run, start: float, end: float, step: float) -> list[tuple[float, float]]:
    """(seconds, goodput in bit/s) of each step, from start to end."""
    bins = run["bins"]
    timeline = Timeline(bins["start_seconds"], bins["width_seconds"], bins["bytes"])
    count = round((end - start) / step)
    moments = [start + i * step for i in range(count + 1)]
    return [((a + b) / 2, timeline.goodput(a, b)) for a, b in pairwise(moments)]


def summary(run: Run) -> str:
    """The most important figures, in a line."""
    found = run["figures"]
    longest = found["longest_stall_of_a_stream_seconds"]
    share = found["delivered_bytes"] / found["capacity_bytes"]
    of_one = " of a flow" if longest > 2 * max(found["longest_stall_seconds"], 0.01) else ""
    return f"{share:.0%} of the planes' capacity; longest stall{of_one} {duration(longest)}"


def duration(seconds: float | None) -> str:
    """3 ms, 0.25 s."""
    if seconds is None:
        return "never"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.0995 else f"{seconds:.2f} s"
