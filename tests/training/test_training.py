# SPDX-License-Identifier: Apache-2.0
"""Training jobs ride out faults of the network: same losses, same weights, no long step."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from training.job import Job, Steps

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
