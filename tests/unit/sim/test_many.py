# SPDX-License-Identifier: Apache-2.0
"""Trials in processes of their own: one that fails costs only itself."""

from __future__ import annotations

import os
import signal

import pytest

from mrc.errors import MrcError
from mrc.results.sim import LostTrial
from mrc.sim import reader
from mrc.sim.many import Job, Ran, check_memory, needed_bytes, run_all
from mrc.sim.scenario import Scenario


def named(name: str, hosts: int = 4, kind: str = "permutation") -> Scenario:
    topology = {"hosts": hosts, "planes": 2, "t0": 2, "t1": 2}
    traffic = [{"kind": kind, "write": "4KiB"}]
    return reader.parse({"title": "t", "topology": topology, "traffic": traffic}, name, "t.toml")


def work(job: Job) -> str:
    """Runs in a process of its own."""
    scenario, seed = job
    if scenario.name == "fails":
        raise MrcError("why not")
    if scenario.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{scenario.name} {seed}"


def ran(*names: str) -> Ran[str]:
    jobs = [(named(name), number) for number, name in enumerate(names)]
    return run_all(work, jobs, 2, lambda *_: None)


def test_run_all__in_the_order_of_the_jobs() -> None:
    assert ran("a", "b", "c") == Ran(["a 0", "b 1", "c 2"], interrupted=False)


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
    def interrupt(done: int, _: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = run_all(work, [(named("a"), seed) for seed in range(20)], 2, interrupt)
    assert found.interrupted
    assert len([each for each in found.results if isinstance(each, str)]) == 2
    assert {each.reason for each in found.lost} == {"interrupted"}


def test_check_memory__names_what_is_needed() -> None:
    check_memory([named("small")])
    with pytest.raises(MrcError, match=r"large needs about .* GiB of memory, and"):
        check_memory([named("small"), named("large", hosts=131072, kind="all-to-all")])


def test_needed_bytes__grows_with_flows() -> None:
    few, many = (needed_bytes(named("a", hosts)) for hosts in (64, 1024))
    assert 50 * 960 < (many - few) / 1024 < 150 * 960
