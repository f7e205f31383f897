# SPDX-License-Identifier: Apache-2.0
"""What the products bring to the core: commands, findings of `mrc doctor`, results. The core names
their modules here and in no import: a tree without a product has less of each.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

COMMANDS = {
    "send": "mrc.cli.send",
    "recv": "mrc.cli.recv",
    "perf": "mrc.cli.perf",
    "paths": "mrc.cli.paths",
    "top": "mrc.cli.top",
    "key": "mrc.cli.key",
    "dissect": "mrc.cli.dissect",
    "conform": "mrc.cli.conform",
    "run": "mrc.cli.run",
    "agent": "mrc.cli.agent",
    "testbed": "mrc.testbed.cli.main",
    "demo": "mrc.demo.cli",
    "lab": "mrc.lab.cli.lessons",
    "sim": "mrc.cli.sim",
    "doctor": "mrc.cli.doctor",
    "schema": "mrc.cli.schema",
    "completion": "mrc.cli.completion",
}
"""The module of each command of `mrc`, in the order of its help"""


def has(module: str) -> bool:
    """Whether a module is in this tree."""
    try:
        return bool(module) and find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that is not there either
        return False


def commands() -> tuple[str, ...]:
    """The commands that are in this tree."""
    return tuple(name for name, module in COMMANDS.items() if has(module))


def load(module: str) -> ModuleType | None:
    """A module of a product, or None in a tree without it."""
    return import_module(module) if has(module) else None
