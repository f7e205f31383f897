# SPDX-License-Identifier: Apache-2.0
"""One seed of a scenario: its run, and the runs for comparison; and many of these, in processes of
their own or where an executor runs them. A trial that fails, or whose process ends, costs only
itself; an interrupt keeps the trials that have ended.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mrc.errors import MrcError
from mrc.sim import checks
from mrc.sim.checks import Measured
from mrc.sim.results import LostTrial
from mrc.sim.run import (
    Curve,
    Progress,
    SimRun,
    least_ns,
    line_rate_bps,
    n_flows,
    run,
)
from mrc.sim.scenario import Scenario, evs_of_qp
from mrc.testbed.children import end_with

# ---- One seed ------------------------------------------------------------------------------------


_MOST_FLOWS = 2000


class Trial(Struct, frozen=True):
    """The runs of one seed. There is a reference if a check compares with it."""

    result: SimRun
    reference: SimRun | None
    baselines: dict[str, tuple[SimRun, SimRun | None]]  # by name, each with its own reference

    @property
    def results(self) -> list[SimRun]:
        """The run itself, then the baselines."""
        return [self.result, *(result for result, _ in self.baselines.values())]


class Series(Struct, frozen=True):
    """The data that a plot draws for one traffic group in one run."""

    group: str
    kind: str  # one of scenario.TRANSPORTS
    curve: Curve  # bytes of all flows of the group
    line_bps: float  # line rate of the group
    flows: tuple[float, ...]  # goodput of each flow as a share of line rate; slowest first


class Summary(Struct, frozen=True):
    """A trial without its details, small enough to keep for every seed."""

    measured: Measured
    series: tuple[Series, ...]
    end_ns: int  # of the run itself, not of the baselines
    seconds: float = 0  # that all of its runs took, in `summary_of`


def run_trial(
    scenario: Scenario,
    seed: int,
    *,
    trace: str | None = None,
    progress: Progress | None = None,
    threads: int = 1,
) -> Trial:
    """Runs a scenario, its baselines, and the references of all of them, with one seed."""
    return Trial(
        result=run(scenario, seed, trace=trace, progress=progress, threads=threads),
        reference=_reference(scenario, seed, progress, threads),
        baselines={
            kind: (
                run(scenario.as_baseline(kind), seed, progress=progress, threads=threads),
                _reference(scenario.as_baseline(kind), seed, progress, threads),
            )
            for kind in scenario.baselines
        },
    )


def _reference(
    scenario: Scenario, seed: int, progress: Progress | None, threads: int
) -> SimRun | None:
    if not scenario.needs_reference:
        return None
    return run(scenario.as_reference(), seed, progress=progress, threads=threads)


def measured(trial: Trial) -> Measured:
    """The values of all checks."""
    scenario = trial.result.scenario
    return Measured(
        seed=trial.result.seed,
        values=checks.values_of(scenario, trial.result, trial.reference),
        baselines={
            kind: checks.values_of(scenario, result, reference)
            for kind, (result, reference) in trial.baselines.items()
        },
    )


def summarize(trial: Trial) -> Summary:
    """The values of all checks, and the series for plots."""
    return Summary(
        measured=measured(trial),
        series=tuple(series for result in trial.results for series in series_of(result)),
        end_ns=trial.result.stats.now_ns,
    )


def series_of(result: SimRun) -> Iterator[Series]:
    """A series for each group of flows."""
    scenario = result.scenario
    for group in dict.fromkeys(flow.traffic.group for flow in result.flows):
        numbers = result.of_group(group)
        times = result.curves[numbers[0]].times_ns
        arrived = [
            sum(column) for column in zip(*(result.curves[i].bytes for i in numbers), strict=True)
        ]
        shares = sorted(
            result.goodput_bps(i) / line_rate_bps(scenario, [result.flows[i]]) for i in numbers
        )
        step = max((len(shares) - 1) / (_MOST_FLOWS - 1), 1)
        yield Series(
            group=group,
            kind=scenario.transport.kind,
            curve=Curve(times, tuple(arrived)),
            line_bps=line_rate_bps(scenario, [result.flows[i] for i in numbers]),
            # As many as a plot can show, with the first and the last.
            flows=tuple(shares[round(i * step)] for i in range(min(len(shares), _MOST_FLOWS))),
        )


def summary_of(scenario: Scenario, seed: int) -> Summary:
    begin = perf_counter()
    return replace(summarize(run_trial(scenario, seed)), seconds=perf_counter() - begin)


# ---- Many ----------------------------------------------------------------------------------------


Job = tuple[Scenario, int]
"""A scenario and a seed."""

T = TypeVar("T")

_PROCESS_BYTES = 80 << 20  # Python with its modules
_HOST_BYTES, _QP_BYTES, _EV_BYTES, _PSN_BYTES = 32 << 10, 13 << 10, 110, 16
_HOP_BYTES, _PACKET_BYTES = 128, 208
_SAMPLE_BYTES, _SAMPLE_PLANE_BYTES = 110, 25  # of a flow, and of each plane that checks look at


class Bounds(Struct, frozen=True):
    """What runs at once, at most."""

    jobs: int
    memory_bytes: int  # by the estimate of `needed_bytes`


class JobResults(Struct, Generic[T], frozen=True):
    """What became of jobs."""

    results: list[T | LostTrial]
    """in the order of the jobs"""
    interrupted: bool

    @property
    def lost(self) -> tuple[LostTrial, ...]:
        return tuple(each for each in self.results if isinstance(each, LostTrial))


def needed_bytes(scenario: Scenario) -> int:
    """About the memory that one run takes. The next run of the same process uses it again."""
    topology, transport = scenario.topology, scenario.transport
    links = topology.hosts + topology.t0 * topology.t1s_per_pod + topology.pods * topology.t2
    hops = 2 * topology.planes * links
    line = topology.hosts * topology.planes * topology.host_rate_bps // 8  # bytes a second
    of_lines = line * scenario.base_rtt_ns // 1_000_000_000 // transport.path_mtu
    qp = _QP_BYTES + evs_of_qp(topology, transport) * _EV_BYTES + transport.mpr * _PSN_BYTES
    flows = sum(n_flows(len(topology.host_numbers()), each)[0] for each in scenario.traffic)
    planes = topology.planes if scenario.tells_planes_apart else 0
    sample = _SAMPLE_BYTES + planes * _SAMPLE_PLANE_BYTES
    samples = flows * (least_ns(scenario) // scenario.sample_ns) if scenario.sample_ns else 0
    packets = min(of_lines, flows * transport.mpr) * _PACKET_BYTES  # in flight
    fabric = topology.hosts * _HOST_BYTES + hops * _HOP_BYTES + packets
    return _PROCESS_BYTES + fabric + 2 * flows * qp + samples * sample


def available_bytes() -> int:
    """Memory that new processes can have: of the host, or of this process's cgroup or one above
    it. Pages of files that nobody uses count: the kernel takes them back.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    words = dict(line.split(":", 1) for line in lines)
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = _CGROUPS / next((line[4:] for line in lines if line.startswith("0::/")), "")
    left = (_left_bytes(each) for each in (own, *own.parents) if each.is_relative_to(_CGROUPS))
    return min(int(words["MemAvailable"].split()[0]) << 10, *left)


_CGROUPS = Path("/sys/fs/cgroup")


def _left_bytes(cgroup: Path) -> int:
    try:
        most = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = dict(map(str.split, (cgroup / "memory.stat").read_text().splitlines()))
        return most - used + int(stat["inactive_file"])
    except (OSError, KeyError, ValueError):  # no limit
        return 1 << 62


def bounds_here(memory_bytes: int | None = None) -> Bounds:
    """A job for each processor that this process may use, in this or in the available memory."""
    return Bounds(len(os.sched_getaffinity(0)), memory_bytes or available_bytes())


def check_memory(scenarios: Iterable[Scenario], bounds: Bounds) -> None:
    """Raises MrcError for a scenario that cannot fit."""
    for scenario in scenarios:
        if (needed := needed_bytes(scenario)) > bounds.memory_bytes:
            raise MrcError(
                f"{scenario.name} needs about {needed / 2**30:.1f} GiB of memory, and"
                f" {bounds.memory_bytes / 2**30:.1f} GiB are available: fewer hosts, flows or EVs"
            )


def run_all(
    work: Callable[[Scenario, int], T],
    jobs: Sequence[Job],
    bounds: Bounds,
    done: Callable[[int, T | LostTrial], None],
    executor: Executor | None = None,
) -> JobResults[T]:
    """Runs `work` for each job, by an executor or in processes of its own. Calls `done` with the
    number of a job and its result as soon as it has ended.
    """
    found: dict[int, T | LostTrial] = {}

    def tell(number: int, result: T | LostTrial) -> None:
        found[number] = result
        done(number, result)

    flight, interrupted = _Flight(work, jobs, bounds, tell), False
    try:
        if executor is not None:
            # It fails with exceptions of its own, and starts processes anew by itself.
            for number in [*flight.run(executor, flight.waiting, Exception), *flight.waiting]:
                flight.lose(number, "the executor has ended")
        while executor is None and flight.waiting:
            for suspect in flight.run_here(flight.waiting):
                if flight.run_here(deque([suspect])):
                    flight.lose(suspect, "its process ended: is there enough memory?")
    except KeyboardInterrupt:
        interrupted = True
    results = [found.get(i) or _lost(job, "interrupted") for i, job in enumerate(jobs)]
    return JobResults(results, interrupted)


def _lost(job: Job, reason: str) -> LostTrial:
    scenario, seed = job
    return LostTrial(scenario=scenario.name, variant=scenario.variant, seed=seed, reason=reason)


class _Flight(Generic[T]):
    """The jobs that wait, and those that run."""

    def __init__(
        self,
        work: Callable[[Scenario, int], T],
        jobs: Sequence[Job],
        bounds: Bounds,
        tell: Callable[[int, T | LostTrial], None],
    ) -> None:
        self.waiting = deque(range(len(jobs)))
        self._work, self._jobs, self._bounds, self._tell = work, jobs, bounds, tell

    def lose(self, number: int, reason: str) -> None:
        self._tell(number, _lost(self._jobs[number], reason))

    def run(self, pool: Executor, waiting: deque[int], failures: type[Exception]) -> list[int]:
        """Runs these jobs, until the pool breaks; then returns the jobs that ran: one of them may
        have broken it. A job that raises one of `failures`, or that finds too little memory or a
        bad file, is lost.
        """
        flying: dict[Future[T], int] = {}
        ended: SimpleQueue[Future[T]] = SimpleQueue()
        room = self._bounds.memory_bytes
        try:
            while waiting or flying:
                while waiting:
                    scenario, seed = self._jobs[waiting[0]]
                    needed = needed_bytes(scenario)
                    if flying and (len(flying) >= self._bounds.jobs or needed > room):
                        break
                    future = pool.submit(self._work, scenario, seed)
                    flying[future] = waiting.popleft()
                    room -= needed
                    future.add_done_callback(ended.put)
                future = ended.get()
                number = flying[future]
                try:
                    self._tell(number, future.result())
                except BrokenExecutor:
                    raise
                except (failures, OSError, MemoryError) as error:
                    self.lose(number, str(error) or type(error).__name__)
                room += needed_bytes(self._jobs[flying.pop(future)][0])
        except BrokenExecutor:
            return list(flying.values())
        finally:
            for future in flying:
                future.cancel()
        return []

    def run_here(self, waiting: deque[int]) -> list[int]:
        """The same in processes of its own."""
        # "spawn": a forked process could inherit a lock that the progress bar's thread holds.
        workers = min(self._bounds.jobs, len(waiting))
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker, (os.getpid(),))
        try:
            return self.run(pool, waiting, MrcError)
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler prints a traceback
    end_with(parent)
