# SPDX-License-Identifier: Apache-2.0
"""Faults of the fabric and their times, runs of a contender through them, and the figures of a run
with the targets of mrc.

Goodput at a moment is the mean over the following 50 ms: a burst is up to 64 KiB, 1 ms of a plane's
rate, so a much shorter window would show single bursts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from bed import PATIENCE, Bed, until
from figures import Check, checks_table
from program import note
from streams import BIN_SECONDS, Contender, Seen

from mrc.cli.output import format_table
from mrc.demo.cli import Timeline
from mrc.linux.system import stolen_seconds
from mrc.testbed.faults import Fault, Mode
from mrc.testbed.plan import BURST_BYTES

SILENT, DOWN, LOSS, SLOW = "silent", "down", "loss", "slow"
Run = Mapping[str, Any]
"""A run of a contender, as in JSON."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fault with its begin and end, in seconds since the first traffic."""

    name: str
    target: str  # in the notation of `mrc testbed fail`
    plane: int
    at: float
    until: float
    mode: str = SILENT
    loss: float = 1.0
    rate: float = 0.0  # remaining share of the rate of its target's links


@dataclass(frozen=True, slots=True)
class Phase:
    """A time without changes, and its number of planes without a fault."""

    name: str  # the change at its start; of a training: the fault, empty without one
    start: float
    end: float
    planes: float  # a slow plane counts with its remaining share


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults over one time axis."""

    name: str
    title: str
    events: tuple[Event, ...]
    seconds: float

    def faster(self, speed: float) -> Scenario:
        """The same scenario, `speed` times as fast."""
        events = tuple(replace(e, at=e.at / speed, until=e.until / speed) for e in self.events)
        return replace(self, events=events, seconds=self.seconds / speed)


STORY = Scenario(
    "story",
    "A plane falls silent, a link goes down, a plane loses packets, a plane is slow",
    (
        Event("plane 1 silent", "plane:1", 1, 2, 6),
        Event("NIC link down", "link:h0.1", 1, 8, 10, DOWN),
        Event("20% loss", "plane:1", 1, 12, 14, LOSS, 0.2),
        Event("plane 1 at 10%", "plane:1", 1, 16, 18, SLOW, 0.0, 0.1),
    ),
    20,
)
FAR_LINK = Scenario(
    "far link",
    "The link of the receiver's NIC goes down",
    (Event("receiver's NIC link down", "link:h1.1", 1, 1, 2, DOWN),),
    3.5,
)
ONE_BY_ONE = Scenario(
    "one by one",
    "The planes die one by one; one of them returns, then all",
    (
        Event("plane 1", "plane:1", 1, 1, 6.5),
        Event("plane 3", "plane:3", 3, 2, 6.5),
        Event("plane 4", "plane:4", 4, 3, 6.5),
        Event("plane 2", "plane:2", 2, 4, 5),
    ),
    8,
)


def phases(events: Sequence[Event], seconds: float, planes: int) -> list[Phase]:
    """The phases from 0 to the end, each from one change to the next. A lossy plane counts as gone,
    a slow plane with its remaining share.
    """
    found = [Phase("start", 0.0, seconds, planes)]
    changes = [(event.at, event.name) for event in events]
    changes += [(event.until, healed(event)) for event in events]
    for moment, name in sorted(changes):
        left = dict.fromkeys(range(1, planes + 1), 1.0)
        for event in events:
            if event.at <= moment < event.until:
                left[event.plane] = min(left[event.plane], event.rate)
        found[-1] = replace(found[-1], end=moment)
        if found[-1].start == moment:
            name = found.pop().name
        found.append(Phase(name, moment, seconds, sum(left.values())))
    return found


def healed(event: Event) -> str:
    """The name of the end of a fault."""
    name = event.name.replace(" down", " up").replace(" silent", "")
    names = {DOWN: name, LOSS: "loss over", SLOW: "full rate again"}
    return names.get(event.mode, f"{name} healed")


# ---- a run ---------------------------------------------------------------------------------------

_TRAFFIC_BYTES = 1 << 20
_PREPARE_SECONDS = 0.15  # the preparation of a change starts this much earlier
_SPARE_SECONDS = 0.5  # a contender sends this much longer than the scenario


def repeated(
    name: str, repeats: int, run: Callable[[], Run], amount: Callable[[Run], float]
) -> tuple[Run, list[Run]]:
    """Several runs of mrc, whose checks are medians; one run of another contender. Returns the run
    to show, which has the median amount, and all of them.
    """
    runs = []
    for number in range(repeats if name == "mrc" else 1):
        note(f"{name}, run {number + 1}")
        runs.append(run())
    return sorted(runs, key=amount)[len(runs) // 2], runs


def through_faults(
    bed: Bed, scenario: Scenario, zero: float
) -> tuple[list[Event], list[float], float]:
    """Lets the faults happen until the scenario is over. Returns the events with the actual times,
    the seconds that each change took, and the CPU time that the hypervisor has stolen.
    """
    stolen = stolen_seconds()
    events, took = let_happen(bed, scenario, zero)
    time.sleep(max(0.0, zero + scenario.seconds - time.monotonic()))
    return events, took, stolen_seconds() - stolen


def run(contender: Contender, scenario: Scenario) -> Run:
    """Runs one contender through one scenario. Returns the run for JSON."""
    bed = contender.bed
    with ExitStack() as stack:
        note(f"{contender.name}: {scenario.title}")
        contender.start(stack, scenario.seconds + _SPARE_SECONDS)
        zero = _first_traffic(contender)
        events, took, stolen = through_faults(bed, scenario, zero)
        seen = contender.finish()
    found = document(contender, scenario, events, seen, zero)
    return found | {"changes_took_seconds": took, "stolen_cpu_seconds": stolen}


def _first_traffic(contender: Contender) -> float:
    """Waits until the sender has sent 1 MiB. Returns the monotonic time. Raises BenchError with the
    words of an end that ends before.
    """
    bed = contender.bed
    enough = sum(bed.sent_bytes()) + _TRAFFIC_BYTES
    until(lambda: sum(bed.sent_bytes()) >= enough, contender.words,
          f"the sender sent less than 1 MiB in {PATIENCE} s")  # fmt: skip
    return time.monotonic()


def let_happen(bed: Bed, scenario: Scenario, zero: float) -> tuple[list[Event], list[float]]:
    """Makes every change at its time. Returns the events with the actual times, and the seconds
    that each change took.
    """
    took: list[float] = []
    begun: dict[Event, float] = {}
    ended: dict[Event, float] = {}
    changes = [(event.at, event, begun) for event in scenario.events]
    changes += [(event.until, event, ended) for event in scenario.events]
    for moment, group in groupby(sorted(changes, key=itemgetter(0)), key=itemgetter(0)):
        together = [(event, moments) for _, event, moments in group]
        struck: list[float] = []

        def ready(due: float = zero + moment, struck: list[float] = struck) -> None:
            time.sleep(max(0.0, due - time.monotonic()))
            struck.append(time.monotonic())

        time.sleep(max(0.0, zero + moment - _PREPARE_SECONDS - time.monotonic()))
        _change(bed, [event for event, _ in together], together[0][1] is begun, ready)
        took.append(time.monotonic() - struck[0])
        for event, moments in together:
            moments[event] = struck[0] - zero
            note(f"{moment:5.2f} s: {event.name}{'' if moments is begun else ' is over'}")
    return [replace(e, at=begun[e], until=ended[e]) for e in scenario.events], took


def _change(bed: Bed, events: list[Event], begins: bool, ready: Callable[[], None]) -> None:
    """Begins faults at once, ends one fault, or ends all faults."""
    if begins:
        faults = {}
        for event in events:
            mode = Mode.DOWN if event.mode == DOWN else Mode.SILENT
            target = bed.testbed.shape.target(event.target)
            faults[target] = Fault(mode, event.loss, rate_share=event.rate)
        bed.testbed.set_faults(faults, ready)
    else:
        bed.testbed.heal(events[0].target if len(events) == 1 else "all", ready)


def document(
    contender: Contender,
    scenario: Scenario,
    events: list[Event],
    seen: Seen,
    zero: float,
) -> dict[str, Any]:
    """A run for JSON. Its seconds count from the first traffic."""
    bed = contender.bed
    total = [sum(counts) for counts in zip(*seen.streams, strict=True)]
    series = Series(seen.start - zero, seen.width, total)
    plane_bps = (bed.payload_capacity_bps() or 0.0) / bed.planes
    found = figures(series, events, scenario.seconds, bed.planes, plane_bps)
    stalls = [
        Series(series.start, series.width, stream).stall(0.1, scenario.seconds)[0]
        for stream in seen.streams
    ]
    found["longest_stall_of_a_stream_seconds"] = max(stalls)
    found["retransmitted_bytes"] = seen.resent_bytes
    coarse = max(1, round(BIN_SECONDS / seen.width))
    return {
        "contender": contender.name,
        "what": contender.what,
        "measured": contender.measured,
        "ended": seen.ended,
        "scenario": scenario.name,
        "title": scenario.title,
        "seconds": scenario.seconds,
        "events": [asdict(event) for event in events],
        "figures": found,
        "bins": {"start_seconds": series.start, "width_seconds": seen.width, "bytes": total},
        "planes": {
            "start_seconds": series.start,
            "width_seconds": seen.width * coarse,
            "bytes": {
                plane: [sum(counts[i : i + coarse]) for i in range(0, len(counts), coarse)]
                for plane, counts in seen.planes.items()
            },
        },
        "evs": seen.evs,
        "ev_changes": _changes(seen.ev_changes, zero, ("plane", "path", "old", "new", "reason")),
        "plane_changes": _changes(seen.plane_changes, zero, ("plane", "suspended", "reason")),
    }


def _changes(changes: list[dict[str, Any]], zero: float, names: tuple[str, ...]) -> Any:
    return [
        {"at_seconds": change["at"] - zero, **{name: change[name] for name in names}}
        for change in changes
    ]


# ---- figures -------------------------------------------------------------------------------------

WINDOW_SECONDS = 0.05
STEP_SECONDS = 0.001
BACK_SHARE = 0.97  # of the capacity of the planes without a fault
LOW_SHARE = 0.95
BACK_SECONDS = {DOWN: 0.010, SLOW: 0.2}
_BACK_SECONDS = 0.020  # for other faults
GAP_SECONDS = 0.005
FIRST_SECONDS = 0.1  # only gaps in this time count: later gaps are as long without any fault
REUSE_SECONDS = 1.0


class Series(Timeline):
    """Payload that arrived, in bins; seconds count from the first traffic."""

    def __init__(self, start: float, width: float, counts: Sequence[int]) -> None:
        super().__init__(start, width, counts)
        self.start, self.width, self.bytes = start, width, counts

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


def figures(
    series: Series, events: Sequence[Event], seconds: float, planes: int, plane_bps: float
) -> dict[str, Any]:
    """All figures of a run, for JSON. `plane_bps` is the payload rate of a plane."""
    parts = phases(events, seconds, planes)
    stall, stall_at = series.stall(0.1, seconds)
    # What the planes can carry in all phases, starting with full buckets. A lossy plane carries
    # what it does not lose, although the checks do not require it.
    full_seconds = sum((part.end - part.start) * part.planes for part in parts)
    full_seconds += sum((e.until - e.at) * (1 - e.loss) for e in events if e.mode == LOSS)
    capacity = full_seconds * plane_bps / 8 + planes * BURST_BYTES
    faults = {event.name: event for event in events}
    before = [parts[0], *parts]
    return {
        "delivered_bytes": round(series.bytes_at(seconds) - series.bytes_at(0.0)),
        "capacity_bytes": round(capacity),
        "longest_stall_seconds": stall,
        "longest_stall_at_seconds": stall_at,
        "phases": [
            _phase(series, earlier, part, plane_bps, faults.get(part.name))
            for earlier, part in zip(before, parts, strict=False)
        ],
    }


def allowed_seconds(event: Event | None) -> float:
    """Time limit in which goodput must return."""
    if event is None:
        return REUSE_SECONDS
    return BACK_SECONDS.get(event.mode, _BACK_SECONDS)


def back_share(event: Event | None) -> float:
    """The share of the capacity to which goodput must return."""
    return LOW_SHARE if event is not None and event.mode == SLOW else BACK_SHARE


def _phase(
    series: Series, earlier: Phase, part: Phase, plane_bps: float, event: Event | None
) -> dict[str, Any]:
    """Goodput after a change."""
    capacity = part.planes * plane_bps
    enough = back_share(event) * capacity
    moments = (
        at
        for at in _windows(part.start, part.end)
        if part.planes and series.goodput(at, at + WINDOW_SECONDS) >= enough
    )
    back = next((at - part.start for at in moments), None)
    settled = part.start + allowed_seconds(event)
    until_back = part.end if back is None else part.start + back
    mean = series.goodput(settled, part.end) / capacity if capacity and part.end > settled else None
    soon = min(part.end, part.start + FIRST_SECONDS)
    return {
        "name": part.name,
        "start_seconds": part.start,
        "end_seconds": part.end,
        "planes": part.planes,
        "back_seconds": back,  # until goodput reached back_share of the capacity; None: never
        "below_seconds": _below(series, part, LOW_SHARE * capacity),
        # The lowest goodput of the capacity after the allowed seconds; of the earlier phase's until
        # `back_seconds`.
        "worst_share": _worst(series, settled, part.end, capacity),
        "mean_share": mean,
        "dip_share": _worst(series, part.start, until_back, earlier.planes * plane_bps),
        "longest_gap_seconds": series.stall(part.start, part.end)[0],
        "first_gap_seconds": series.stall(part.start, soon)[0],  # probably caused by the change
    }


def _windows(start: float, end: float) -> Iterator[float]:
    """Starts of all windows that end by `end`."""
    for i in range(int((end - WINDOW_SECONDS - start) / STEP_SECONDS + 1e-6) + 1):
        yield start + i * STEP_SECONDS


def _below(series: Series, part: Phase, level: float) -> float:
    """Time below a level. The last window of a phase is shortened."""
    low = 0
    steps = int((part.end - part.start) / STEP_SECONDS + 1e-6)
    for i in range(steps):
        at = part.start + i * STEP_SECONDS
        end = min(at + WINDOW_SECONDS, part.end)
        low += series.goodput(at, end) < level and end - at >= WINDOW_SECONDS / 2
    return low * STEP_SECONDS


def _worst(series: Series, start: float, end: float, capacity: float) -> float | None:
    """The lowest share of any window; None if the time is shorter, or the capacity is 0."""
    if not capacity or end - start < WINDOW_SECONDS:
        return None
    found = (series.goodput(at, at + WINDOW_SECONDS) for at in _windows(start, end))
    return min(found) / capacity


# ---- targets of mrc -----------------------------------------------------------------------------


def checks(run: Run) -> Iterator[Check]:
    """The checks of mrc in one scenario. A phase that is too short has none."""
    events = events_of(run)
    faults = {event.name: event for event in events}
    many = len({event.plane for event in events}) > 1
    for part in run["figures"]["phases"][1:]:
        event = faults.get(part["name"])
        if part["planes"] == 0:
            continue
        name, limit, share = part["name"], allowed_seconds(event), part["mean_share"]
        if many:
            yield _in_time(f"{name}, {part['planes']:g} left: back to 97%, s", part, REUSE_SECONDS)
        elif event is None:
            yield _in_time(f"{name}: capacity used again, s", part, REUSE_SECONDS)
            dip = part["dip_share"]
            yield _share(f"{name}: worst 50 ms until then", 1.0 if dip is None else dip)
        elif event.mode == LOSS:
            yield _share(f"{name}: worst 50 ms after 20 ms", part["worst_share"])
        elif event.mode == SLOW:
            yield _in_time(f"{name}: back to 95%, s", part, limit)
            if share is not None:
                yield _share(f"{name}: mean from then on", share, LOW_SHARE)
        else:
            yield _in_time(f"{name}: back to 97%, s", part, limit)
            yield _share(f"{name}: mean from then on", share)
            gap = part["first_gap_seconds"]
            yield Check(f"{name}: longest gap in the first 0.1 s", gap, "<=", GAP_SECONDS)


def _in_time(name: str, part: Mapping[str, Any], limit: float) -> Check:
    back = part["back_seconds"]
    never = part["end_seconds"] - part["start_seconds"]
    return Check(name, never if back is None else back, "<=", limit)


def _share(name: str, share: float | None, least: float = BACK_SHARE) -> Check:
    return Check(name, 0.0 if share is None else share, ">=", least)


# ---- a run from its JSON ------------------------------------------------------------------------


def story_of(result: Mapping[str, Any]) -> list[Run]:
    """The runs that all contenders have in common."""
    return [run for run in result["runs"] if run["scenario"] == STORY.name]


def events_of(run: Run) -> list[Event]:
    return [Event(**event) for event in run["events"]]


def rates(run: Run, start: float, end: float, step: float) -> list[tuple[float, float]]:
    """(seconds, goodput in bit/s) of each step, from start to end."""
    bins = run["bins"]
    series = Series(bins["start_seconds"], bins["width_seconds"], bins["bytes"])
    count = round((end - start) / step)
    moments = [start + i * step for i in range(count + 1)]
    return [((a + b) / 2, series.goodput(a, b)) for a, b in pairwise(moments)]


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


# ---- text ----------------------------------------------------------------------------------------


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The whole result, line by line."""
    story = story_of(result)
    for run in story:
        yield f"{run['contender']}: {summary(run)}"
    if story:
        yield ""
        yield _table(story)
    yield ""
    yield checks_table(result["checks"], result.get("busy", ""))


def _table(story: Sequence[Mapping[str, Any]]) -> str:
    """Time below 95% of the remaining capacity, from each change to the next."""
    names = [part["name"] for part in story[0]["figures"]["phases"][1:]]
    rows = [
        (
            run["contender"],
            *(duration(part["below_seconds"]) for part in run["figures"]["phases"][1:]),
            f"{run['figures']['retransmitted_bytes'] / 1e6:.1f} MB",
        )
        for run in story
    ]
    return format_table(("below 95% after", *names, "sent again"), rows)
