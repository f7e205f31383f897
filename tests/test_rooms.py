# SPDX-License-Identifier: Apache-2.0
"""The rooms of mrc/: which room imports which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from project_text import imports, python_files, report, text, tree

# The rooms of mrc/, from the ground floor up: modules at its top, and folders. Every import, also
# one inside a function, is from a room on a lower floor.
FLOORS = (
    {
        "_ffi_build",
        "children",
        "enums",
        "limits",
        "products",
        "running",
        "tasks",
        "typed",
        "units",
        "versions",
        "whole",
    },
    {"errors", "events"},
    {"dissect", "fabric", "trust"},
    {"results"},
    {"binding", "exchange", "linux", "sim"},
    {"config", "testbed"},
    {"datapath"},
    {"control", "observe"},
    {"aio"},
    {"messaging"},
    {"group", "transfer"},
    {"agent", "demo", "perf", "torch", "view", "workload"},
    {"__init__", "conform", "doctor"},
    {"blocking", "cli"},
    {"__main__", "examples"},
)


@cache
def modules() -> dict[str, Path]:
    """Every module of mrc by its full name; a folder by that of its __init__."""
    found = {".".join(path.with_suffix("").parts): path for path in python_files("mrc")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each module of mrc that a file imports from."""
    for line, name in imports(path):
        known = (name, name.rpartition(".")[0])
        if module := next((each for each in known if each in modules()), None):
            yield line, module


def room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def importers(module: str, *folders: str) -> dict[str, str]:
    return {
        str(path): f"{path}:{line}: imports {name}"
        for path in python_files(*folders)
        for line, name in imports(path)
        if name == module or name.startswith(f"{module}.")
    }


def test_imports__one_importer_each() -> None:
    allowed = {
        "cffi": {"mrc/_ffi_build.py"},  # at build time only
        "_cffi_backend": set(),
        "mrc._core": {"mrc/binding/native.py"},
        "mrc._sim": {"mrc/sim/native.py"},
        "mrc._emu": {"mrc/testbed/emulator.py"},
        "pyroute2": {"mrc/linux/netlink/messages.py"},
        "scapy": set(),
    }  # fmt: skip
    report([
        line
        for module, names in allowed.items()
        for path, line in importers(module, "mrc").items()
        if path not in names
    ])  # fmt: skip


def test_rooms__are_those_of_the_table() -> None:
    named = [name for floor in FLOORS for name in sorted(floor)]
    assert sorted(named) == sorted({room(module) for module in modules()})


def test_rooms__are_drawn_where_they_are() -> None:
    """The table of ARCHITECTURE.md matches; it omits the build and the start."""
    rows = re.findall(r"^\| (\d*) ?\| (`.*?`) \|", text(Path("ARCHITECTURE.md")), re.MULTILINE)
    drawn: dict[int, set[str]] = {}
    floor = 0
    for number, names in rows:
        floor = int(number or floor)
        found = re.findall(r"`(?:mrc/)?(\w+)(?:/|\.py)`", names)
        drawn.setdefault(floor, set()).update(found)
    left_out = {"_ffi_build", "__main__"}
    floors = {number: names - left_out for number, names in enumerate(FLOORS, 1)}
    assert drawn == {number: names for number, names in floors.items() if names}


def test_rooms__imports_lead_to_lower_floors() -> None:
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    report([
        f"{path}:{line}: {room(module)} imports {target}"
        for module, path in modules().items()
        for line, target in imported(path)
        if room(target) != room(module) and floor_of[room(target)] >= floor_of[room(module)]
    ])  # fmt: skip


def test_modules__import_by_full_names() -> None:
    report([
        f"{path}:{node.lineno}: a relative import"
        for path in python_files("mrc")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ])  # fmt: skip


def test_modules__no_circle() -> None:
    graph = {
        module: {target for _, target in imported(path)} - {module}
        for module, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        report([" -> ".join(error.args[1])])


def test_package_init__holds_no_code() -> None:
    """Only mrc/__init__.py has code: it loads a public name at its first use."""
    plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    report([
        f"{path}:{node.lineno}: {type(node).__name__} in __init__"
        for path in python_files("mrc")
        if path.name == "__init__.py"
        for node in tree(path).body
        if not isinstance(node, plain)
        and not (path == Path("mrc/__init__.py") and loads_lazily(node))
    ])  # fmt: skip


def loads_lazily(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in ("_homes", "__getattr__")


def test_print__only_in_the_cli() -> None:
    report([
        f"{path}:{node.lineno}: print() outside the CLI"
        for path in python_files("mrc")
        if path.parts[1] not in {"cli", "examples"}
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ])  # fmt: skip
