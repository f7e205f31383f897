# SPDX-License-Identifier: Apache-2.0
"""The steps of `bench/training`: its faults, the model of mrc.lab.examples.train that is trained
over one transport meanwhile, and the figures and checks of the steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from bed import PATIENCE, Bed, last_words, start_once, stop, until
from faults import DOWN, LOSS, SILENT, SLOW, Event, Phase, Run, Scenario, through_faults
from figures import Check
from program import note
from ranks import RankBed, Transport

from mrc.cli.output import format_table

LONGEST = 3.0  # a step may take so many medians of the time before the first fault
SLACK = 1.1  # of the median while planes are away, beyond their share of the rate


def _one(name: str, at: float, until: float, mode: str = SILENT, **more: Any) -> Event:
    return Event(name, "link:h0.1" if mode == DOWN else "plane:1", 1, at, until, mode, **more)


_FLAPS = tuple(_one("plane 1 flaps", at, at + 0.5) for at in (24.0, 25.0, 26.0, 27.0))
STORY = Scenario(
    "training",
    "One or two planes fail in every way while a model is trained",
    (
        _one("plane 1 silent", 4, 8),
        _one("plane 1 at 10%", 11, 15, SLOW, loss=0.0, rate=0.1),
        _one("two planes silent", 18, 21),
        replace(_one("two planes silent", 18, 21), target="plane:2", plane=2),
        *_FLAPS,
        _one("20% loss", 30, 33, LOSS, loss=0.2),
        _one("link down", 36, 38, DOWN),
    ),
    40,
)


def chapters(events: Sequence[Event], seconds: float, planes: int) -> list[Phase]:
    """The time in parts. Events of one name form one chapter."""
    found, now = [], 0.0
    for name in dict.fromkeys(event.name for event in events):
        same = [event for event in events if event.name == name]
        begin, end = min(event.at for event in same), max(event.until for event in same)
        away = {event.plane: 1 - event.rate for event in same}
        found += [
            Phase("", now, begin, planes),
            Phase(name, begin, end, planes - sum(away.values())),
        ]
        now = end
    return [*found, Phase("", now, seconds, planes)]


def spans_of(
    ended: Sequence[float], seconds: Sequence[float], zero: float, until: float
) -> list[tuple[float, float]]:
    """Begin and length of each step, in seconds since `zero`. The last one has no end yet.

    `ended` also has the end of the step before the first.
    """
    found = [(end - zero - took, took) for end, took in zip(ended[1:], seconds, strict=True)]
    found = [(begin, took) for begin, took in found if begin + took <= until]
    last = sum(found[-1]) if found else ended[0] - zero
    return [*found, (last, until - last)]


def figures(steps: Sequence[Sequence[float]], parts: Sequence[Phase]) -> list[dict[str, Any]]:
    """Number, median and longest of the steps of each chapter; `steps` has begin and length.

    The median is that of the steps which begin in the chapter. The longest step may have begun
    earlier, as long as it lasted into the chapter.
    """
    found = []
    for part in parts:
        begun = [length for begin, length in steps if part.start <= begin < part.end]
        met = [y for x, y in steps if x < part.end and x + y > part.start]
        found.append({
            "name": part.name, "begin_seconds": part.start, "end_seconds": part.end,
            "planes": part.planes, "steps": len(begun),
            "median_seconds": median(begun) if begun else None,
            "longest_seconds": max(met, default=None),
        })  # fmt: skip
    return found


def checks(run: Run, planes: int) -> Iterator[Check]:
    """The targets of mrc: no long step, and no slower than the planes that are left."""
    first, *rest = run["chapters"]
    usual = first["median_seconds"]
    for part in rest:
        name = part["name"] or f"healthy from {part['begin_seconds']:.0f} s on"
        longest = part["longest_seconds"] / usual
        yield Check(f"{name}: longest step, of the first median", longest, "<=", LONGEST)
        if part["name"] and part["planes"] < planes:
            share = part["median_seconds"] / usual * part["planes"] / planes
            yield Check(f"{name}: median step, of what the planes left allow", share, "<=", SLACK)


def steps_of(run: Run) -> float:
    return len(run["steps"])


def same_losses(runs: Sequence[Run]) -> bool:
    """Whether all contenders computed the same losses, to the bit, as far as each came."""
    shortest = min(len(run["losses"]) for run in runs)
    return len({tuple(run["losses"][:shortest]) for run in runs}) == 1


def table(runs: Sequence[Run]) -> str:
    """Median and longest step of each contender in each chapter, in ms."""
    head = ("median; longest step, ms", *(run["contender"] for run in runs))
    lines = []
    for parts in zip(*(run["chapters"] for run in runs), strict=True):
        begin, end = (round(parts[0][name]) for name in ("begin_seconds", "end_seconds"))
        name = parts[0]["name"] or "all planes"
        lines.append((f"{begin:2} to {end:2} s: {name}", *map(_cell, parts)))
    return format_table(head, lines)


def _cell(part: Mapping[str, Any]) -> str:
    usual, longest = (
        "none" if seconds is None else f"{seconds * 1e3:.0f}"
        for seconds in (part["median_seconds"], part["longest_seconds"])
    )  # fmt: skip
    return f"{usual}; {longest}"


# ---- a run ---------------------------------------------------------------------------------------

WARM_UP = 5  # steps before the time begins
_TRAIN = "from mrc.lab.examples.train import train; train(1_000_000)"  # until it is stopped


class Steps(threading.Thread):
    """Reads what a rank prints: rank 0 its steps, each with the time at which it ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._words = ""
        self.ended: list[float] = []
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.start()

    def run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            for line in printed:
                if not line.startswith("{"):
                    self._words += line
                    continue
                told = json.loads(line)
                self.seconds.append(told["seconds"])
                self.losses.append(told["loss"])
                self.ended.append(time.monotonic())

    def words(self) -> str:
        """The job's last words if it has ended; empty if it still runs."""
        return "" if self.is_alive() else last_words(self._words, self._process.wait())

    def until(self, count: int) -> float:
        """Waits for a number of steps. Returns the time at which the last one ended."""
        late = f"no {count} steps in {PATIENCE} s"
        until(lambda: len(self.ended) >= count, self.words, late)
        return self.ended[count - 1]


def run(bed: Bed, transport: Transport, scenario: Scenario) -> Run:
    """Trains through the scenario. Returns the run for JSON; seconds count from a warm job."""
    ranks = RankBed(bed, transport)
    with ExitStack() as stack:
        processes = []
        for host in bed.hosts:
            process = start_once(ranks, host, [sys.executable, "-c", _TRAIN])
            stack.callback(stop, process)
            processes.append(process)
        steps, *others = (Steps(process) for process in processes)
        zero = steps.until(WARM_UP)
        events, _, stolen = through_faults(bed, scenario, zero)
        if any(process.poll() is not None for process in processes):
            note(f"{transport.name}: the job has ended early")
    for each in (steps, *others):
        each.join()
    spans = spans_of(steps.ended[WARM_UP - 1 :], steps.seconds[WARM_UP:], zero, scenario.seconds)
    return {
        "contender": transport.name,
        "what": transport.what,
        "seconds": scenario.seconds,
        "events": [asdict(event) for event in events],
        "stolen_cpu_seconds": stolen,
        "steps": spans,
        "losses": steps.losses,
        "chapters": figures(spans, chapters(events, scenario.seconds, bed.planes)),
    }
