# SPDX-License-Identifier: Apache-2.0
"""Every kind of operation over four ranks gives what Gloo over TCP gives."""

from __future__ import annotations

import pytest
from training.job import Job, local_job

from mrc.testbed.bed import Testbed


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
