# SPDX-License-Identifier: Apache-2.0
"""Trains the model of mrc.lab.examples.train over one transport while faults happen."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import IO

from allreduce_ranks import RankBed, Transport
from bed import Bed
from end import PATIENCE, BenchError, last_words, start_once, stop
from failover_figures import Run
from failover_run import through_faults
from failover_scenario import Scenario
from program import note
from training_figures import chapters, figures, spans_of

WARM_UP = 5  # steps before the time begins
_TRAIN = "from mrc.lab.examples.train import train; train(1_000_000)"  # until it is stopped


class Steps(threading.Thread):
    """Reads what a rank prints: rank 0 its steps, each with the time at which it ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._changed = threading.Condition()
        self._is_over = False
        self._words = ""
        self.ended: list[float] = []
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            self._read(printed)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _read(self, printed: IO[str]) -> None:
        for line in printed:
            if not line.startswith("{"):
                self._words += line
                continue
            told = json.loads(line)
            with self._changed:
                self.ended.append(time.monotonic())
                self.seconds.append(told["seconds"])
                self.losses.append(told["loss"])
                self._changed.notify_all()

    def until(self, count: int) -> float:
        """Waits for a number of steps. Returns the time at which the last one ended. Raises
        BenchError with the job's last words if it ends before.
        """
        with self._changed:
            waited = self._changed.wait_for(
                lambda: len(self.ended) >= count or self._is_over, PATIENCE
            )
            if len(self.ended) >= count:
                return self.ended[count - 1]
            if waited:
                raise BenchError(last_words(self._words, self._process.wait()))
            raise BenchError(f"no {count} steps in {PATIENCE} s")


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
        for each in (steps, *others):
            each.start()
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
