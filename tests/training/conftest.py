# SPDX-License-Identifier: Apache-2.0
"""Training jobs with torch in test beds: one process for each rank, in the hosts of a bed. Without
torch, these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from netns.conftest import fresh_name, missing_privilege
from netns.processes import Mrc
from ports import free_port
from skips import mark
from slowness import PATIENCE, until

from mrc.testbed.bed import Testbed

SCRIPTS = Path(__file__).parent / "scripts"
RANKS = str(SCRIPTS / "ranks.py")
MASTER = "fd00:c::1"  # h0 in the management network


@dataclass
class Rank(Mrc):
    """One process. It prints a JSON object a line."""

    printed: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._printer = threading.Thread(target=self._parse, daemon=True)
        self._printer.start()

    def _parse(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(json.loads(line))

    def until(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first object that `found` accepts."""
        until(lambda: any(map(found, self.printed)) or not self._printer.is_alive(), self.lines)
        first = next(filter(found, self.printed), None)
        assert first is not None, (self.printed[-1:], self.lines[-20:])
        return first

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self._printer.join(PATIENCE)
        super().end()


@dataclass(frozen=True)
class Steps:
    """What a training printed."""

    losses: list[float]
    weights: set[str]
    """digests of the final weights of all ranks"""
    seconds: list[float]

    def median(self, begin: int, end: int) -> float:
        return statistics.median(self.seconds[begin:end])


def command_of(script: str) -> tuple[str, ...]:
    """A job of ranks.py, or another script."""
    return (str(SCRIPTS / script),) if script.endswith(".py") else (RANKS, script)


@dataclass
class Job:
    ranks: list[Rank] = field(default_factory=list)

    def start(self, bed: Testbed, script: str, *options: str, **environment: str) -> Job:
        """One rank in each host of the bed, over mrc."""
        for rank in range(bed.shape.hosts):
            self.start_rank(bed, rank, script, *options, **environment)
        return self

    def start_rank(
        self, bed: Testbed, rank: int, script: str, *options: str, **environment: str
    ) -> None:
        command = [sys.executable, *command_of(script), *options]
        argv, base = bed.host_command(f"h{rank}", command)
        self._start(argv, base, rank, bed.shape.hosts, MASTER, 29500, **environment)

    def _start(
        self,
        argv: list[str],
        base: dict[str, str],
        rank: int,
        size: int,
        master: str,
        port: int,
        **environment: str,
    ) -> None:
        env = {
            **base,
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0",
            "MASTER_ADDR": master, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "GLOO_DEVICE_TRANSPORT": "MRC",
            **environment,
        }  # fmt: skip
        pipe = subprocess.PIPE
        env = {name: value for name, value in env.items() if value}
        process = subprocess.Popen(
            argv, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self.ranks.append(Rank(process))

    def until_step(self, step: int) -> None:
        self.ranks[0].until(lambda line: line.get("step") == step)

    def ends(self) -> list[list[dict[str, Any]]]:
        """Waits for the end of all ranks, with success; returns what each printed."""
        for rank in self.ranks:
            assert rank.process.wait(PATIENCE) == 0, rank.lines[-20:]
            rank.end()
        return [rank.printed for rank in self.ranks]

    def steps(self) -> Steps:
        printed = self.ends()
        steps = [line for line in printed[0] if "step" in line]
        return Steps(
            [line["loss"] for line in steps],
            {line["weights"] for lines in printed for line in lines if "weights" in line},
            [line["seconds"] for line in steps],
        )

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()


def local_job(script: str, *options: str, size: int = 2, transport: str = "TCP") -> Job:
    """All ranks on the loopback interface; without a `transport`, torch's default."""
    job = Job()
    port = free_port()
    for rank in range(size):
        argv = [sys.executable, *command_of(script), *options]
        job._start(
            argv, dict(os.environ), rank, size, "127.0.0.1", port, GLOO_DEVICE_TRANSPORT=transport
        )
    return job


# ---- Fixtures -----------------------------------------------------------------------------------

PLANES = 4
RATE = "500mbit"


def missing_torch() -> str | None:
    """Why torch cannot run here, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed: pip install torch"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(
        items,
        Path(__file__).parent,
        lambda: missing_torch() or missing_privilege(),
        "torch",
        "netns",
    )


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(fresh_name(), planes=PLANES, rate=RATE) as bed:
        yield bed


@pytest.fixture(scope="module")
def four() -> Iterator[Testbed]:
    with Testbed(fresh_name(), planes=PLANES, rate=RATE, hosts=4) as bed:
        yield bed


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    """Starts ranks in the hosts of a bed; ends those that still run, and heals the bed."""
    job = Job()
    yield job
    job.end()
    for name in {"bed", "four"} & set(request.fixturenames):
        request.getfixturevalue(name).heal("all")


@pytest.fixture(scope="session")
def over_tcp() -> Steps:
    """The same training over Gloo's TCP, on the loopback interface."""
    return local_job("ddp", "--steps", "90").steps()
