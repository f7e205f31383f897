# SPDX-License-Identifier: Apache-2.0
"""Trials in processes of their own: one that fails costs only itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from processes import assert_end, pidfds
from slowness import until

from mrc.errors import MrcError
from mrc.sim import trials
from mrc.sim.results import LostTrial
from mrc.sim.scenario import Scenario, parse_scenario
from mrc.sim.trials import Bounds, JobResults, bounds_here, check_memory, needed_bytes, run_all

TWO = Bounds(jobs=2, memory_bytes=1 << 40)


def named(name: str, hosts: int = 4, kind: str = "permutation") -> Scenario:
    topology = {"hosts": hosts, "planes": 2, "t0": 2, "t1": 2}
    traffic = [{"kind": kind, "write": "4KiB"}]
    return parse_scenario({"title": "t", "topology": topology, "traffic": traffic}, name, "t.toml")


def work(scenario: Scenario, seed: int) -> str:
    """Runs in a process of its own."""
    if scenario.name == "fails":
        raise MrcError("why not")
    if scenario.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{scenario.name} {seed}"


def ran(*names: str) -> JobResults[str]:
    jobs = [(named(name), number) for number, name in enumerate(names)]
    return run_all(work, jobs, TWO, lambda *_: None)


def test_run_all__in_the_order_of_the_jobs() -> None:
    assert ran("a", "b", "c") == JobResults(["a 0", "b 1", "c 2"], interrupted=False)


def test_run_all__a_failure_costs_only_itself() -> None:
    lost = LostTrial(scenario="fails", variant="", seed=1, reason="why not")
    found = ran("a", "fails", "c")
    assert found.results == ["a 0", lost, "c 2"]
    assert [str(each) for each in found.lost] == ["fails, seed 1: no result: why not"]


def test_run_all__a_killed_process_costs_only_its_job() -> None:
    found = ran("a", "killed", "c", "d", "e")
    assert [each for each in found.results if isinstance(each, str)] == ["a 0", "c 2", "d 3", "e 4"]
    assert [(each.scenario, each.seed) for each in found.lost] == [("killed", 1)]
    assert "its process ended" in found.lost[0].reason


def test_run_all__an_interrupt_keeps_what_has_ended() -> None:
    told = []

    def interrupt(number: int, _: object) -> None:
        told.append(number)
        if len(told) == 2:
            raise KeyboardInterrupt

    found = run_all(work, [(named("a"), seed) for seed in range(20)], TWO, interrupt)
    assert found.interrupted
    assert len([each for each in found.results if isinstance(each, str)]) == 2
    assert {each.reason for each in found.lost} == {"interrupted"}


class Counting(ThreadPoolExecutor):
    """Knows how many jobs ran at once, at most."""

    def __init__(self) -> None:
        super().__init__(8)
        self.lock, self.now, self.most = Lock(), 0, 0

    def work(self, scenario: Scenario, seed: int) -> str:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        result = work(scenario, seed)
        with self.lock:
            self.now -= 1
        return result


@pytest.mark.parametrize(("fit", "most"), [(1, 1), (2.5, 2), (0.5, 1)])
def test_run_all__keeps_within_the_memory(fit: float, most: int) -> None:
    jobs = [(named("a"), seed) for seed in range(30)]
    memory = int(fit * needed_bytes(jobs[0][0]))
    with Counting() as pool:
        found = run_all(pool.work, jobs, Bounds(8, memory), lambda *_: None, pool)
    assert not found.lost and 1 <= pool.most <= most


def test_run_all__an_executor_that_breaks_loses_what_it_had() -> None:
    class Breaks(ThreadPoolExecutor):
        def submit(self, *args: Any, **more: Any) -> Any:
            if args[2] == 3:
                raise BrokenExecutor
            return super().submit(*args, **more)

    jobs = [(named("a"), seed) for seed in range(5)]
    with Breaks(1) as pool:
        found = run_all(work, jobs, Bounds(1, 1 << 40), lambda *_: None, pool)
    assert found.results[:3] == ["a 0", "a 1", "a 2"]
    assert [each.reason for each in found.lost] == ["the executor has ended"] * 2


def test_run_all__any_error_of_an_executor_costs_only_its_job() -> None:
    def fail(scenario: Scenario, seed: int) -> str:
        if seed == 1:
            raise KeyError("worker gone")
        return work(scenario, seed)

    with ThreadPoolExecutor(2) as pool:
        jobs = [(named("a"), seed) for seed in range(3)]
        found = run_all(fail, jobs, TWO, lambda *_: None, pool)
    assert [(each.seed, each.reason) for each in found.lost] == [(1, "'worker gone'")]


def test_available_bytes__of_the_narrowest_cgroup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    cgroup = next((line[3:] for line in lines if line.startswith("0::")), "/")
    own = tmp_path / cgroup.lstrip("/")
    own.mkdir(parents=True, exist_ok=True)
    (own / "memory.max").write_text("10000")
    (own / "memory.current").write_text("9000")
    (own / "memory.stat").write_text("anon 5\ninactive_file 70\n")
    monkeypatch.setattr(trials, "_CGROUPS", tmp_path)
    assert trials.available_bytes() == 1070
    (own / "memory.max").write_text("max")
    assert trials.available_bytes() > 1 << 20


def test_check_memory__names_what_is_needed() -> None:
    here = bounds_here()
    check_memory([named("small")], here)
    with pytest.raises(MrcError, match=r"large needs about .* GiB of memory, and"):
        check_memory([named("small"), named("large", hosts=131072, kind="all-to-all")], here)


def test_needed_bytes__grows_with_flows() -> None:
    few, many = (needed_bytes(named("a", hosts)) for hosts in (64, 1024))
    assert 50 * 960 < (many - few) / 1024 < 150 * 960


def test_needed_bytes__grows_with_samples() -> None:
    values = {
        "title": "t",
        "topology": {"hosts": 4, "planes": 2, "t0": 2, "t1": 2},
        "traffic": [{"kind": "tcp", "pairs": [[0, 2]]}],
        "run": {"until": "10s", "sample": "1us"},
    }
    found = [
        needed_bytes(parse_scenario(values | more, "a", "a.toml"))
        for more in (
            {},
            {"checks": [{"measure": "least_plane", "at_least": 0}]},
            {"run": {"until": "10s", "sample": "0ns"}},
        )
    ]
    assert found[0] - found[2] == pytest.approx(10**7 * 110)
    assert found[1] - found[0] == 10**7 * 2 * 25


POOL = """
import os, signal, sys
from pathlib import Path
from mrc.sim.trials import Bounds, run_all

def work(scenario, seed):
    (Path(sys.argv[1]) / str(os.getpid())).touch()
    signal.pause()

if __name__ == "__main__":
    from mrc.sim.scenario import parse_scenario
    table = {"title": "t", "topology": {"hosts": 4, "planes": 2, "t0": 2, "t1": 2},
             "traffic": [{"kind": "permutation", "write": "4KiB"}]}
    jobs = [(parse_scenario(table, "a", "t.toml"), number) for number in range(2)]
    run_all(work, jobs, Bounds(jobs=2, memory_bytes=1 << 40), lambda *_: None)
"""


def test_run_all__its_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    """Workers, and the process that keeps their semaphores, end when `mrc sim` is killed."""
    script, begun = tmp_path / "pool.py", tmp_path / "begun"
    script.write_text(POOL)
    begun.mkdir()
    command = [sys.executable, str(script), str(begun)]
    with subprocess.Popen(command) as parent:
        until(lambda: len(list(begun.iterdir())) == 2 or parent.poll() is not None)
        threads = Path(f"/proc/{parent.pid}/task").iterdir()
        children = [pid for each in threads for pid in (each / "children").read_text().split()]
        assert len(children) == 3  # with multiprocessing's resource tracker
        ends = pidfds(children)
        parent.send_signal(signal.SIGKILL)
        assert_end(ends)
