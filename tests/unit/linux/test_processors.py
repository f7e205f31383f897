# SPDX-License-Identifier: Apache-2.0
"""What a busy machine says of itself."""

from __future__ import annotations

import os
import subprocess

import pytest

from mrc.linux import processes


@pytest.mark.parametrize(
    ("got", "busy", "stolen", "said"),
    [
        (0.78, 0.8, 0.0, "is not busy: mrc gets 98% of the time of 2 processors"),
        (
            0.5, 0.78, 0.0,
            "is busy: mrc gets 62% of the time of 2 processors;"
            " other programs take 35% of its processors",
        ),
        (
            0.4, 0.6, 0.16,
            "is busy: mrc gets 50% of the time of 2 processors;"
            " other programs take 25% of its processors, its hypervisor withholds 20%",
        ),
    ],
)  # fmt: skip
def test_shares__in_plain_words(got: float, busy: float, stolen: float, said: str) -> None:
    found = processes.processor_shares(2, got, 0.8, total=0.8, busy=busy, stolen=stolen)
    assert (str(found), found.is_busy) == (said, said.startswith("is busy"))


def test_measure__others_that_compete() -> None:
    """Two spinning programs share one processor, so that each gets half of it or less."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    os.sched_setaffinity(0, one)
    try:
        spin = ["sh", "-c", "echo; while :; do :; done"]
        with subprocess.Popen(spin, stdout=subprocess.PIPE) as rival:
            assert rival.stdout is not None
            try:
                assert rival.stdout.readline() == b"\n"
                found = processes.measure_processors(0.2)
            finally:
                rival.kill()
    finally:
        os.sched_setaffinity(0, allowed)
    assert found.count == 1 and found.is_busy and found.share < 0.75
    assert found.others > 0
