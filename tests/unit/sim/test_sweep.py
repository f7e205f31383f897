# SPDX-License-Identifier: Apache-2.0
"""Grids of parameters, and the names of jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.sim import sweep
from mrc.sim.sweep import parse_axis, plan_sweep

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
    monkeypatch.setattr(sweep, "version_here", lambda: "0.0")
    assert name() != first


def test_plan__an_unknown_key_is_named(scenario: str) -> None:
    with pytest.raises(ConfigError, match=r"small\.toml: transport\.mpx"):
        plan_sweep(scenario, {}, {"transport.mpx": [128]}, [1])


def test_line__says_what_the_job_measured(scenario: str) -> None:
    settings = {"baselines": ["go-back-n"]}
    (spot,) = plan_sweep(scenario, settings, {"transport.mpr": [128]}, [3])
    (planned,) = spot.jobs
    line = sweep.line_of(planned, sweep.swept_of(planned.job))
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
