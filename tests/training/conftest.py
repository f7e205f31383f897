# SPDX-License-Identifier: Apache-2.0
"""Training jobs with torch in test beds. Without torch, these tests are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.conftest import fresh_name, missing_privilege
from skips import mark
from training.job import Job, Steps, local_job

from mrc.testbed.bed import Testbed

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
    return local_job("ddp.py", "--steps", "90").steps()
