# SPDX-License-Identifier: Apache-2.0
"""What other packages add to a test bed: their modules by name, each with the functions that the
test bed calls. They are loaded only for a test bed that has what they add.
"""

from __future__ import annotations

from types import ModuleType

from mrc import products

MACHINES = "mrc.lab.machines"
"""several machines: `decode(stored)`, what `State.machines` holds"""
CUT = "mrc.lab.machines"
"""`part(plan, machines)`: the part of a plan that this machine has"""
SPREAD = "mrc.lab.remote"
"""`SpreadTestbed`: a Testbed over all of them"""
THERE = "mrc.lab.remote"
"""`shell` and `capture` on another machine"""
OUTSIDE = "mrc.lab.outside"
"""what joins it to the world, in `Shape.outside`: `read(table)` of a topology file, `check` and
`make_plan`
"""
UPLINK = "mrc.lab.uplink"
"""`after_build(plan)` and `before_down(name)` of a test bed that is joined to the world"""
LENDING = "mrc.lab.uplink"
"""`follow(plan, held_down)`: links of real hosts, after a change of faults"""
OPTIONS = "mrc.lab.outside"
"""options of `up`, `plan` and `export`, and what people read of what they add"""


def need(module: str) -> ModuleType:
    """Raises ConfigError in a tree without this module."""
    return products.need(module, "this test bed")
