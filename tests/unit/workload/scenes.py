# SPDX-License-Identifier: Apache-2.0
"""Small scenarios for a test bed of four hosts and two planes."""

from __future__ import annotations

from typing import Any

from mrc.sim.scenario import Scenario, parse_scenario
from mrc.testbed.shape import Fabric, Shape
from mrc.workload import fit

SHAPE = Shape(hosts=4, planes=2, t0=2, t1=2, host_rate_bps=10**8, fabric_rate_bps=10**8)
EMULATED = Shape(
    hosts=4, planes=2, t0=2, t1=2, host_rate_bps=10**8, fabric_rate_bps=10**8,
    fabric=Fabric.EMULATED, host_delay_ns=200_000,
)  # fmt: skip
PAIR = {"kind": "pairs", "pairs": [[0, 2]], "write": "64KiB", "writes": 4}


def scenario(shape: Shape = SHAPE, **values: Any) -> Scenario:
    """A fitted scenario of one flow, unless `values` say otherwise."""
    topology = {"hosts": 4, "planes": 2, "t0": 2, "t1": 2, "host_rate": "10Gbit/s"}
    document = {"title": "scene", "topology": topology, "traffic": [PAIR], **values}
    return fit.fitted(parse_scenario(document, "scene", "scene.toml", fabric=shape), shape)
