# SPDX-License-Identifier: Apache-2.0
"""What other packages add to a test bed: their modules by name, each with the functions that the
test bed calls. They are loaded only for a test bed that has what they add.
"""

from __future__ import annotations

from types import ModuleType

from mrc import products
from mrc.errors import ConfigError

MACHINES = "mrc.lab.machines"
"""several machines: `decode(stored)`, what `State.machines` holds"""
CUT = "mrc.lab.cut"
"""`part(plan, machines)`: the part of a plan that this machine has"""
SPREAD = "mrc.lab.spread"
"""`SpreadTestbed`: a Testbed over all of them"""
ON = "mrc.lab.cli.on"
"""`--on`, and what each machine has, for people"""
THERE = "mrc.lab.cli.there"
"""`shell` and `capture` on another machine"""


def need(module: str) -> ModuleType:
    """Raises ConfigError in a tree without this module."""
    found = products.load(module)
    if found is None:
        raise ConfigError(f"this test bed needs {module}, which is not installed")
    return found
