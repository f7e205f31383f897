# SPDX-License-Identifier: Apache-2.0
"""Scheduled faults of a test bed: read from a file, sorted by time, injected."""

from __future__ import annotations

import heapq
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from mrc.cli.output import Output
from mrc.errors import BadFileError
from mrc.fabric import document
from mrc.fabric.document import Table
from mrc.results import Result
from mrc.testbed import build
from mrc.testbed.bed import Testbed
from mrc.testbed.children import tied
from mrc.testbed.faults import Fault, Mode, TargetFault
from mrc.testbed.plan import BedPlan
from mrc.testbed.shape import Shape, as_argument_error
from mrc.testbed.signals import FirstSignal
from mrc.testbed.tiers import TimedFault
from mrc.testbed.topology import Target
from mrc.units import counted, scaled

_ALL_PPM = 1_000_000

# The preparation of a fault starts this much earlier, because nft takes some ms to start.
_PREPARE_SECONDS = 0.05

# A change takes up to this long. Faults that repeat faster would fall behind for ever.
_KERNEL_CHANGE_NS, _EMULATED_CHANGE_NS = 50_000_000, 5_000_000


class ScheduledFault(Struct, frozen=True):
    """One table of a file."""

    target: Target
    fault: Fault
    times: TimedFault


class Scheduled(Result, frozen=True, kw_only=True):
    """A line of `mrc testbed run` for each change."""

    event: Literal["fail", "heal"]
    """What happened."""
    target: str
    """The target."""
    due_seconds: float
    """When the file says, from the start."""
    seconds: float
    """When it happened, from the start."""
    fault: TargetFault | None
    """How the target fails from now on; null: it is healed."""


class FaultChange(Struct, frozen=True):
    at_ns: int
    """since the start"""
    target: Target
    fault: Fault | None
    """None: the target is healed"""

    def result(self, seconds: float) -> Scheduled:
        """For programs: when it happened, from the start, and what."""
        target = str(self.target)
        return Scheduled(
            event="heal" if self.fault is None else "fail",
            target=target,
            due_seconds=self.at_ns / 1e9,
            seconds=round(seconds, 6),
            fault=None if self.fault is None else self.fault.result(target),
        )

    def line(self, seconds: float) -> str:
        """For people: when it happened, from the start, and what."""
        what = "healed" if self.fault is None else f"fails: {self.fault}"
        return f"{seconds:9.4f} s  {self.target} {what}"


def load_faults(path: str, plan: BedPlan) -> list[ScheduledFault]:
    """The `[[faults]]` of a TOML file. Ignores the rest of the file.

    Raises BadFileError, also for faults that this test bed or this kernel cannot inject.
    """
    found = []
    for table in Table(document.load(Path(path), path), path).tables("faults"):
        times = TimedFault.read(table, plan.shape.target)
        try:
            found.append(schedule_fault(times, plan))
        except ValueError as error:
            raise table.error("kind", str(error)) from error
        if wrong := _too_fast(times, plan.shape):
            raise table.error("every", wrong)
    if not found:
        raise BadFileError(f"{path}: has no [[faults]]")
    return found


def schedule_fault(times: TimedFault, plan: BedPlan) -> ScheduledFault:
    """Raises ValueError for a fault that this test bed or this kernel cannot inject."""
    target, fault = plan.shape.target(times.target), _fault(times)
    build.check_faults(plan, {target: fault})
    return ScheduledFault(target, fault, times)


def least_ns(shape: Shape) -> int:
    """How long a fault lasts at least, and the pause after it."""
    return _EMULATED_CHANGE_NS if shape.is_emulated else _KERNEL_CHANGE_NS


def _too_fast(times: TimedFault, shape: Shape) -> str | None:
    least = least_ns(shape)
    if not times.every_ns or min(times.for_ns, times.every_ns - times.for_ns) >= least:
        return None
    other = ", or --fabric emulated" if not shape.is_emulated else ""
    return (
        f"a change takes up to {least // 10**6} ms in this test bed: set for and the pause "
        f"after it to at least that{other}; mrc sim has no such limit"
    )


def _fault(times: TimedFault) -> Fault:
    """Raises ValueError for a kind that only simulated fabrics have."""
    share = times.a / _ALL_PPM
    if times.packets != "all":
        raise ValueError(f"packets = {times.packets!r} is only for mrc sim")
    impairments: dict[str, dict[str, Any]] = {
        "corrupt": {"corrupt": share},
        "duplicate": {"duplicate": share, "by_ns": times.b},
        "reorder": {"reorder": share, "by_ns": times.b},
        "delay": {"delay_ns": times.a},
        "jitter": {"jitter_ns": times.a},
        "rate": {"rate_bps": times.a} if times.a else {"rate_share": times.b / _ALL_PPM},
        "mtu": {"mtu": times.a},
    }
    match times.kind:
        case "silent":
            return Fault()
        case "down":
            return Fault(Mode.DOWN)
        case "loss":
            return Fault(loss=share)
        case kind if kind in impairments:
            return Fault(loss=0, **impairments[kind])
    raise ValueError(f"{times.kind} is only for mrc sim")


def fault_changes(scheduled: Sequence[ScheduledFault]) -> Iterator[FaultChange]:
    """The events in order of time. Endless if a fault repeats without an end."""
    active: set[int] = set()
    now: dict[Target, Fault] = {}
    for at_ns, group in groupby(heapq.merge(*map(_edges, range(len(scheduled)), scheduled)),
                                key=lambda edge: edge[0]):  # fmt: skip
        touched: dict[Target, None] = {}
        for _, number, begins in group:
            (active.add if begins else active.discard)(number)
            touched[scheduled[number].target] = None
        for target in touched:
            found = [scheduled[each].fault for each in active if scheduled[each].target == target]
            fault = combined(found) if found else None
            if fault != now.get(target):
                yield FaultChange(at_ns, target, fault)
            if fault is None:
                now.pop(target, None)
            else:
                now[target] = fault


def _edges(number: int, scheduled: ScheduledFault) -> Iterator[tuple[int, int, bool]]:
    for begin, end in scheduled.times.occurrences():
        yield begin, number, True
        if end < TimedFault.NEVER:
            yield end, number, False


def combined(found: Sequence[Fault]) -> Fault:
    """Combines faults of one target: chances are independent, delays add up."""
    if any(each.mode is Mode.DOWN for each in found):
        return Fault(Mode.DOWN)

    def chance(key: str) -> float:
        first, *others = (float(getattr(each, key)) for each in found)
        return 1 - math.prod(1 - each for each in (first, *others)) if others else first

    def least(key: str, default: Any) -> Any:
        return min((value for each in found if (value := getattr(each, key))), default=default)

    shares: dict[str, Any] = {
        key: chance(key) for key in ("loss", "corrupt", "duplicate", "reorder")
    }
    return Fault(
        **shares,
        by_ns=max(each.by_ns for each in found),
        delay_ns=sum(each.delay_ns for each in found),
        jitter_ns=sum(each.jitter_ns for each in found),
        rate_bps=least("rate_bps", None),
        rate_share=least("rate_share", 0.0),
        mtu=least("mtu", None),
    )


def run_faults(
    bed: Testbed,
    scheduled: Sequence[ScheduledFault],
    wait: Callable[[float | None], bool],
    told: Callable[[FaultChange, float], None],
) -> None:
    """Inject the scheduled faults from now on. Heals its faults in the end.

    `wait` sleeps until a time (of time.monotonic; None: without end) and returns True to end the
    run. After each event this calls `told` with the event and its time in seconds since the start.

    Raises ArgumentError for faults of one target that exclude each other.
    """
    begun = time.monotonic()
    failing: dict[Target, None] = {}
    try:
        for event in fault_changes(scheduled):
            due = begun + event.at_ns / 1e9
            if wait(due - _PREPARE_SECONDS):
                return
            _carry_out(bed, event, due)
            told(event, time.monotonic() - begun)
            if event.fault is None:
                failing.pop(event.target, None)
            else:
                failing[event.target] = None
        if failing:
            wait(None)
    finally:
        for target in failing:
            bed.heal(str(target))


def _carry_out(bed: Testbed, event: FaultChange, due: float) -> None:
    def ready() -> None:
        time.sleep(max(0.0, due - time.monotonic()))

    if event.fault is None:
        bed.heal(str(event.target), ready)
        return
    with as_argument_error():
        bed.set_faults({event.target: event.fault}, ready)


# ---- Beside a command ----------------------------------------------------------------------------


_LATE_SECONDS = 0.05  # a change takes less, on a machine that is not too busy


class Lateness:
    """Counts the changes that came late, and names them as a whole."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._changes = 0
        self._late: list[float] = []

    def counted(
        self, told: Callable[[FaultChange, float], None]
    ) -> Callable[[FaultChange, float], None]:
        """As `told`, but also counts."""

        def tell(event: FaultChange, seconds: float) -> None:
            told(event, seconds)
            self._changes += 1
            late = seconds - event.at_ns / 1e9
            if late > _LATE_SECONDS:
                self._late.append(late)

        return tell

    def tell(self) -> None:
        if self._late:
            self._out.warn(
                f"late: {len(self._late)} of {counted(self._changes, 'change')}, the worst by "
                f"{scaled(max(self._late), 's')}: this machine is too busy for this schedule"
            )


def run_beside(
    bed: Testbed, path: str, argv: Sequence[str], environment: dict[str, str], prog: str
) -> int:
    """Runs a command, and the scheduled faults until it ends; returns its exit code."""
    out = Output(prog, as_json=False, quiet=False)
    scheduled, late = load_faults(path, bed.plan), Lateness(out)
    bed.connect()
    words = tied(argv, apart=False)
    with FirstSignal() as ending, subprocess.Popen(words, env=environment) as process:
        child = os.pidfd_open(process.pid)
        try:
            run_faults(
                bed,
                scheduled,
                lambda until: ending.wait(until, child),
                late.counted(lambda event, seconds: out.note(event.line(seconds))),
            )
            late.tell()
            ending.wait(None, child)
        finally:
            os.close(child)
        # At ^C the terminal itself sends SIGINT to the command.
        if ending.signum and not (ending.signum == signal.SIGINT and os.isatty(0)):
            process.send_signal(ending.signum)
        code = process.wait()
    return code if code >= 0 else 128 - code
