# SPDX-License-Identifier: Apache-2.0
"""Test beds of network namespaces: hosts in which a Context of this program can be, and faults.

    async with mrc.testbed.up(planes=2, rate="200mbit") as bed:
        async with bed.host("h0").context() as context, bed.fail("plane:2"):
            ...

Import every public name from here: submodules may move between releases. A name is loaded at its
first use.
"""

from importlib import import_module

_HOMES: dict[str, str] = {}  # once read


def __getattr__(name: str) -> object:
    if not _HOMES:  # the module of each public name, as __init__.pyi lists them
        with open(__file__.rpartition(".")[0] + ".pyi", encoding="utf-8") as stub:
            lines = [line.split() for line in stub]
        _HOMES.update({words[3]: words[1] for words in lines if words[:1] == ["from"]})
    if name == "__all__":
        value: object = list(_HOMES)
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
