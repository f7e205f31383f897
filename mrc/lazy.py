# SPDX-License-Identifier: Apache-2.0
"""The public names of a package, each loaded from its module at its first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def names_of(package: str) -> Callable[[str], object]:
    """The `__getattr__` of a package, whose __init__.pyi beside it lists its public names as `from
    MODULE import NAME as NAME`.
    """
    homes: dict[str, str] = {}  # once read

    def load(name: str) -> object:
        module = sys.modules[package]
        if not homes:
            stub = str(module.__file__).rpartition(".")[0] + ".pyi"
            with open(stub, encoding="utf-8") as file:
                lines = [line.split() for line in file]
            homes.update({words[3]: words[1] for words in lines if words[:1] == ["from"]})
        if name == "__all__":
            value: object = list(homes)
        elif name in homes:
            value = getattr(import_module(homes[name]), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, value)
        return value

    return load
