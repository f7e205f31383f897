# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are loaded at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def names(package: str) -> Callable[[str], object]:
    """The `__getattr__` of a package whose __init__.pyi lists its names: from MODULE import NAME as
    NAME. Type checkers read the same file.
    """

    def load(name: str) -> object:
        module = sys.modules[package]
        with open(f"{module.__file__}i", encoding="utf-8") as stub:
            lines = [line.split() for line in stub if line.startswith("from ")]
        homes = {words[3]: words[1] for words in lines}
        if name == "__all__":
            value: object = list(homes)
        elif name in homes:
            value = getattr(import_module(homes[name]), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, value)
        return value

    return load
