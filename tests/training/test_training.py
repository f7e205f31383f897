# SPDX-License-Identifier: Apache-2.0
"""Training jobs ride out faults of the network: same losses, same weights, no long step. Every kind
of operation over four ranks gives what Gloo over TCP gives. Short runs of benchmarks with torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slowness import limit
from training.job import Job, Steps, local_job

from mrc.linux import netns
from mrc.testbed.bed import Testbed

WARM_UP = 5
LONGEST_STEP = 3.0  # times the median before the fault
PLANES = ("plane:1", "plane:2", "plane:3", "plane:4")


def same(steps: Steps, reference: Steps) -> None:
    """Bit for bit."""
    assert steps.losses == reference.losses
    assert steps.weights == reference.weights
    assert len(steps.weights) == 1


def rides_out(steps: Steps, reference: Steps, planes_left: float) -> None:
    """Same results, no long step, and a median step as long as the planes left allow."""
    same(steps, reference)
    before, during = steps.median(WARM_UP, 30), steps.median(32, 60)
    longest = max(steps.seconds[WARM_UP:])
    step = steps.seconds.index(longest)
    print(f"medians: {before * 1e3:.0f} ms before, {during * 1e3:.0f} ms = {during / before:.2f}")
    print(f"longest step: {longest * 1e3:.0f} ms = {longest / before:.2f} medians, step {step}")
    assert during <= before * len(PLANES) / planes_left * 1.1
    assert longest <= LONGEST_STEP * before


@pytest.mark.slow
def test_ddp__a_plane_loses_packets(bed: Testbed, job: Job, over_tcp: Steps) -> None:
    bed.fail("plane:2", loss=0.2)
    job.start(bed, "ddp.py", "--steps", "90")
    same(job.steps(), over_tcp)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "fault"),
    [
        (("plane:2",), {}),
        (("plane:2",), {"rate_share": 0.1}),
        (("plane:1", "plane:3"), {}),
        (("plane:2",), {"loss": 0.2}),
        (("plane:2",), {"mode": "down"}),
    ],
    ids=["silent", "slow", "two", "loss", "down"],
)
def test_ddp__faults(
    bed: Testbed, job: Job, over_tcp: Steps, targets: tuple[str, ...], fault: dict[str, Any]
) -> None:
    job.start(bed, "ddp.py", "--steps", "90")
    job.until_step(30)
    bed.fail(targets, **fault)
    job.until_step(60)
    bed.heal("all")
    rides_out(job.steps(), over_tcp, len(PLANES) - len(targets))


@pytest.mark.slow
def test_ddp__a_plane_flaps(bed: Testbed, job: Job, over_tcp: Steps) -> None:
    job.start(bed, "ddp.py", "--steps", "90")
    for step in range(30, 60, 10):
        job.until_step(step)
        bed.fail("plane:3")
        job.until_step(step + 5)
        bed.heal("all")
    rides_out(job.steps(), over_tcp, len(PLANES) - 1)


@pytest.mark.slow
def test_example__tells_the_story() -> None:
    command = [sys.executable, "-m", "mrc.lab.examples.train"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "plane:2 is silent" in done.stdout
    assert done.stdout.endswith("losses and weights are bit for bit those of TCP\n")


# ---- Collectives ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_collectives__as_over_tcp(four: Testbed, job: Job) -> None:
    over_mrc = job.start(four, "collectives.py").ends()
    assert over_mrc == local_job("collectives.py", size=4).ends()
    assert all(len(lines) >= 22 for lines in over_mrc)


@pytest.mark.slow
def test_fsdp__as_over_tcp(four: Testbed, job: Job) -> None:
    over_mrc = job.start(four, "fsdp.py").steps()
    assert over_mrc == local_job("fsdp.py", size=4).steps()
    assert len(over_mrc.weights) == 1


def test_collectives__loopback() -> None:
    """The group named mrc, on one host, without the variable."""
    job = local_job("collectives.py", "mrc", size=4, transport="")
    printed = job.ends()
    assert printed[0][0] == printed[1][0]


# ---- Benchmarks that need torch: they measure every contender, and clean up ----------------------


ROOT = Path(__file__).parents[2]


def bench(tmp_path: Path, name: str, *options: str) -> dict[str, Any]:
    """Runs a benchmark; returns its JSON."""
    before = set(netns.names())
    file = tmp_path / "run.json"
    command = [sys.executable, str(ROOT / "bench" / name), *options, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(110), check=False)
    assert done.returncode == 0, done.stderr
    assert not [left for left in set(netns.names()) - before if left.startswith(name)]
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@pytest.mark.slow
def test_allreduce__quick(tmp_path: Path) -> None:
    """The ranks check their sums. One path has a quarter of the planes, MPTCP has more."""
    result = bench(tmp_path, "allreduce", "--quick", "--only", "500mbit", "--ranks", "2",
                 "--size", "4096", "--size", "16777216")  # fmt: skip
    (bed,) = result["beds"]
    large = {row["contender"]: row["metrics"]["bus_bits_per_second"]["median"]
             for row in bed["rows"] if row["bytes"] == 16 << 20}  # fmt: skip
    capacity = bed["payload_capacity_bits_per_second"]
    assert large["TCP"] < 0.3 * capacity < large["MPTCP"] < 1.1 * capacity
    assert 0.3 * capacity < large["mrc"] < 1.1 * capacity
    assert len(result["checks"]) == 2


@pytest.mark.slow
def test_allreduce__pinned_and_unpinned(tmp_path: Path) -> None:
    """Both are measured in one run; the checks are about the pinned ranks."""
    result = bench(tmp_path, "allreduce", "--quick", "--only", "500mbit", "--ranks", "2",
                 "--contender", "mrc", "--unpinned", "--size", "4194304")  # fmt: skip
    assert list(result["contenders"]) == ["mrc", "mrc, unpinned"]
    (bed,) = result["beds"]
    assert [row["contender"] for row in bed["rows"]] == ["mrc", "mrc, unpinned"]
    assert len(result["checks"]) == 1


@pytest.mark.slow
def test_training__quick(tmp_path: Path) -> None:
    """TCP takes no step while its plane is silent; mrc goes on, and both compute the same."""
    result = bench(tmp_path, "training", "--quick", "--only", "mrc", "--only", "TCP",
                 "--picture", str(tmp_path / "steps"))  # fmt: skip
    ours, theirs = result["runs"]
    assert result["same_losses"]
    assert [part["planes"] for part in ours["chapters"]] == [4, 3, 4]
    assert ours["chapters"][1]["steps"] > 5
    assert theirs["chapters"][1]["longest_seconds"] > 3.5
    assert {path.name for path in tmp_path.glob("*.svg")} == {"steps.svg"}
