# SPDX-License-Identifier: Apache-2.0
"""Trains the model of mrc.examples.train over one transport while faults happen."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict

from allreduce_ranks import RankBed, Transport
from bed import Bed
from end import PATIENCE, BenchError, stop
from failover_figures import Run
from failover_run import through_faults
from failover_scenario import Scenario
from program import note
from training_figures import chapters, figures, spans_of

WARM_UP = 5  # steps before the time begins
_TRAIN = "from mrc.examples.train import train; train(1_000_000)"  # until it is stopped


class Steps(threading.Thread):
    """Reads the steps of rank 0, each with the time at which it ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._changed = threading.Condition()
        self.ended: list[float] = []
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._changed:
                self.ended.append(time.monotonic())
                self.seconds.append(told["seconds"])
                self.losses.append(told["loss"])
                self._changed.notify_all()

    def until(self, count: int) -> float:
        """Waits for a number of steps. Returns the time at which the last one ended."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.ended) >= count, PATIENCE):
                raise BenchError(f"no {count} steps in {PATIENCE} s")
            return self.ended[count - 1]


def run(bed: Bed, transport: Transport, scenario: Scenario) -> Run:
    """Trains through the scenario. Returns the run for JSON; seconds count from a warm job."""
    ranks = RankBed(bed, transport)
    with ExitStack() as stack:
        processes = []
        for host in bed.hosts:
            command, environment = ranks.command(host, [sys.executable, "-c", _TRAIN])
            out = subprocess.PIPE if host == 0 else subprocess.DEVNULL
            process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.DEVNULL, text=True
            )
            stack.callback(stop, process)
            processes.append(process)
        steps = Steps(processes[0])
        steps.start()
        zero = steps.until(WARM_UP)
        events, _, stolen = through_faults(bed, scenario, zero)
        if any(process.poll() is not None for process in processes):
            note(f"{transport.name}: the job has ended early")
    steps.join()
    assert processes[0].stdout is not None
    processes[0].stdout.close()
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
