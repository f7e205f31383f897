# SPDX-License-Identifier: Apache-2.0
"""The lines of a sweep: cut ones, foreign ones, several files."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from mrc.errors import MrcError
from mrc.sim.results import SweptJob
from mrc.sim.sweep import append_jobs, read_jobs


def job(name: str, seed: int = 1) -> SweptJob:
    return SweptJob(
        job=name, version="1", scenario="s", variant="", seed=seed, parameters={"a.b": [1, "x"]},
        runs=(),
    )  # fmt: skip


def test_read__what_was_appended(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for name in ("part-1-of-2", "part-2-of-2"):
        with append_jobs(folder, name) as add:
            add(job(name))
            add(job(f"{name}+"))
    assert [each.job for each in read_jobs(folder)] == [
        "part-1-of-2", "part-1-of-2+", "part-2-of-2", "part-2-of-2+",
    ]  # fmt: skip
    assert read_jobs(folder)[0] == job("part-1-of-2")
    assert read_jobs(tmp_path / "nowhere") == []


@pytest.mark.parametrize("cut", [1, 20])
def test_appending__repairs_a_cut_last_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "jobs.jsonl"
    for name in ("a", "b"):
        with append_jobs(tmp_path, "jobs") as add:
            add(job(name))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [each.job for each in read_jobs(tmp_path)] == ["a"]
    with append_jobs(tmp_path, "jobs") as add:
        add(job("c"))
    assert [each.job for each in read_jobs(tmp_path)] == ["a", "c"]
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("line", ["x", "{}", "\xff"])
def test_read__names_a_line_of_something_else(tmp_path: Path, line: str) -> None:
    with append_jobs(tmp_path, "jobs") as add:
        add(job("a"))
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
        add(job("a"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
        try:
            with pytest.raises(OSError, match=r"File too large: .*jobs\.jsonl"):
                add(job("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "jobs.jsonl").stat().st_size == 200, "a part of the line"
    assert [each.job for each in read_jobs(tmp_path)] == ["a"]
