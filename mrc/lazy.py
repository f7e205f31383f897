# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are loaded at their first use. Its __init__.pyi is the only list of them,
which type checkers read too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

_homes: dict[str, dict[str, str]] = {}  # once read


def homes(package: str) -> dict[str, str]:
    """The module of each public name: from MODULE import NAME as NAME."""
    if package not in _homes:
        with open(f"{sys.modules[package].__file__}i", encoding="utf-8") as stub:
            lines = [line.split() for line in stub if line.startswith("from ")]
        _homes[package] = {words[3]: words[1] for words in lines}
    return _homes[package]


def names(package: str) -> Callable[[str], object]:
    """The `__getattr__` of a package. Those of products that are not in this tree are left out."""

    def load(name: str) -> object:
        if name == "__all__":
            has = import_module("mrc.products").has
            value: object = [
                each for each, home in homes(package).items()
                if has(f"{home}.{each}" if home == package else home)
            ]  # fmt: skip
        elif name.startswith("_") or (home := homes(package).get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        elif home == package:
            value = import_module(f"{home}.{name}")
        else:
            value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


def directory(package: str) -> Callable[[], list[str]]:
    """Its `__dir__`: the public names, for completion."""
    return lambda: list(sys.modules[package].__all__)
