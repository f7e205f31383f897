# SPDX-License-Identifier: Apache-2.0
"""The scenarios that bench/congestion runs in the simulator and over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mrc.enums import CcKind
from mrc.fabric.topology import Addresses
from mrc.sim import scenario
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Fabric, shape_of
from mrc.workload import fit, run

FILES = sorted((Path(__file__).parents[3] / "bench" / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenarios__are_those_of_real_hosts(path: Path) -> None:
    """They have the timeouts and acknowledgements of real hosts, so a test bed changes nothing.
    NSCC runs with and without trimming.
    """
    parts = scenario.load_scenario(str(path)).parts
    if parts[0].transport.cc is CcKind.NSCC:
        assert {part.topology.trimming for part in parts} == {True, False}
    for part in parts:
        shape = shape_of(part.topology, Addresses(), (), Fabric.EMULATED)
        same = replace(part, baselines=(), plot="time", links=(), sample_ns=10_000_000)
        assert fit.fitted(replace(part, links=()), shape) == same
        assert run.unsupported(part, "mrc") is None
        run.scheduled_faults(part, make_plan("x", shape))
