# SPDX-License-Identifier: Apache-2.0
"""Runs many trials in processes of their own. A trial that fails, or whose process ends, costs only
itself; an interrupt keeps the trials that have ended.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from mrc.errors import MrcError
from mrc.results.sim import LostTrial
from mrc.sim.scenario import Scenario, evs_of_qp
from mrc.sim.traffic import n_flows

Job = tuple[Scenario, int]
"""A scenario and a seed."""

T = TypeVar("T")

_KILLED = "its process ended: is there enough memory?"
_PROCESS_BYTES = 80 << 20  # Python with its modules
_HOST_BYTES, _QP_BYTES, _EV_BYTES, _PSN_BYTES = 32 << 10, 12 << 10, 110, 24


class Ran(Struct, Generic[T], frozen=True):
    """What became of jobs."""

    results: list[T | LostTrial]
    """in the order of the jobs"""
    interrupted: bool

    @property
    def lost(self) -> tuple[LostTrial, ...]:
        return tuple(each for each in self.results if isinstance(each, LostTrial))


def needed_bytes(scenario: Scenario) -> int:
    """About the memory that one run takes."""
    topology, transport = scenario.topology, scenario.transport
    qp = _QP_BYTES + evs_of_qp(topology, transport) * _EV_BYTES + transport.mpr * _PSN_BYTES
    flows = sum(n_flows(topology.hosts, traffic) for traffic in scenario.traffic)
    return _PROCESS_BYTES + topology.hosts * _HOST_BYTES + 2 * flows * qp


def available_bytes() -> int:
    """Memory that new processes can have: of the host, or of this process's cgroup."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    words = dict(line.split(":", 1) for line in lines)
    return min(int(words["MemAvailable"].split()[0]) << 10, _cgroup_bytes())


def _cgroup_bytes() -> int:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
        folder = Path("/sys/fs/cgroup", own.lstrip("/"))
        most = int((folder / "memory.max").read_text())
        return most - int((folder / "memory.current").read_text())
    except (OSError, StopIteration, ValueError):  # no limit
        return 1 << 62


def check_memory(scenarios: Iterable[Scenario]) -> None:
    """Raises MrcError for a scenario that cannot fit."""
    available = available_bytes()
    for scenario in scenarios:
        if (needed := needed_bytes(scenario)) > available:
            raise MrcError(
                f"{scenario.name} needs about {needed / 2**30:.1f} GiB of memory, and"
                f" {available / 2**30:.1f} GiB are available: fewer hosts, flows or EVs"
            )


def workers_for(jobs: Sequence[Job]) -> int:
    """How many of these run at once: one for each processor that this process may use, if the
    memory allows it.
    """
    most = max((needed_bytes(scenario) for scenario, _ in jobs), default=1)
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, len(jobs), available_bytes() // most))


def run_all(
    work: Callable[[Job], T], jobs: Sequence[Job], workers: int, done: Callable[[int, str], None]
) -> Ran[T]:
    """Runs `work` for each job, in `workers` processes. Calls `done` with the number of finished
    jobs and the scenario name of the last one.
    """
    found: dict[int, T | LostTrial] = {}

    def tell(number: int, result: T | LostTrial) -> None:
        found[number] = result
        done(len(found), jobs[number][0].name)

    waiting, interrupted = deque(range(len(jobs))), False
    try:
        while waiting:
            for suspect in _batch(work, jobs, waiting, workers, tell):
                if _batch(work, jobs, deque([suspect]), 1, tell):
                    tell(suspect, _lost(jobs[suspect], _KILLED))
    except KeyboardInterrupt:
        interrupted = True
    results = [found.get(i) or _lost(job, "interrupted") for i, job in enumerate(jobs)]
    return Ran(results, interrupted)


def _lost(job: Job, reason: str) -> LostTrial:
    scenario, seed = job
    return LostTrial(scenario=scenario.name, variant=scenario.variant, seed=seed, reason=reason)


def _batch(
    work: Callable[[Job], T],
    jobs: Sequence[Job],
    waiting: deque[int],
    workers: int,
    tell: Callable[[int, T | LostTrial], None],
) -> list[int]:
    """Runs what is waiting, until a process ends; then returns the jobs that ran: one of them may
    have ended it.
    """
    # "spawn", because a forked process could inherit a lock that the progress bar's thread holds.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, _DIES_AT_INTERRUPT)
    flying: dict[Future[T], int] = {}
    try:
        while waiting or flying:
            while waiting and len(flying) < workers:
                future = pool.submit(work, jobs[waiting[0]])
                flying[future] = waiting.popleft()
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                number = flying[future]
                try:
                    tell(number, future.result())
                except (MrcError, OSError, MemoryError) as error:
                    tell(number, _lost(jobs[number], str(error) or type(error).__name__))
                del flying[future]
    except BrokenProcessPool:
        return list(flying.values())
    except KeyboardInterrupt:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return []


_DIES_AT_INTERRUPT = (signal.SIGINT, signal.SIG_DFL)  # a worker would print a traceback
