# SPDX-License-Identifier: Apache-2.0
"""The walls: which product, package and module imports which. tools/budget.toml has the products;
nothing here names a module that could be merged or renamed.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from project_text import (
    ROOT,
    code_without_comments,
    grep,
    imports,
    is_c,
    lines,
    python_files,
    report,
    tree,
    under,
)
from walls import BELOW, BUDGET, LIMITS

# Headers that the engine may include: no clock, thread, socket or file.
CORE_HEADERS = {
    "endian.h", "errno.h", "limits.h", "stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "string.h",
}  # fmt: skip
CORE_HEADERS_OF = {
    "base.c": {"stdio.h"},  # a failed assertion prints its place
    "crc.c": {"isa-l/crc.h", "zlib.h", "immintrin.h"},
}
CORE_FORBIDDEN_CALLS = ("rand", "random", "time", "clock_gettime", "getenv", "printf", "alloca")


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


def product(path: Path) -> str:
    return str(LIMITS.product_of(path))


def circle(graph: dict[str, set[str]]) -> None:
    """Reports a circle of imports, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        report([" -> ".join(error.args[1])])


def test_products__python_imports_only_products_below() -> None:
    report([
        f"{path}:{line}: {product(path)} imports {target}, of {product(modules()[target])}"
        for path in modules().values()
        for line, target in imported(path)
        if product(modules()[target]) not in {product(path), *BELOW[product(path)]}
    ])  # fmt: skip


def test_packages__no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in modules().values():
        package = BUDGET.package_of(path)
        if package != "mrc":  # its modules are below and above: each counts for itself
            graph.setdefault(package, set()).update(
                BUDGET.package_of(modules()[target]) for _, target in imported(path)
            )
    circle({package: its - {package, "mrc"} for package, its in graph.items()})


def test_modules__no_circle() -> None:
    circle(
        {
            module: {target for _, target in imported(path)} - {module}
            for module, path in modules().items()
        }
    )


def test_package_init__holds_no_code() -> None:
    """Only those of mrc and of mrc.testbed have code: they load a public name at its first use."""
    plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    report([
        f"{path}:{node.lineno}: {type(node).__name__} in __init__"
        for path in python_files("mrc")
        if path.name == "__init__.py" and not path.with_suffix(".pyi").exists()
        for node in tree(path).body
        if not isinstance(node, plain)
    ])  # fmt: skip


def test_imports__one_importer_each() -> None:
    """Of compiled modules, and of libraries that the project could replace."""
    allowed = {
        "cffi": {"mrc/_ffi_build.py"},  # at build time only
        "_cffi_backend": set(),
        "mrc._core": {"mrc/engine/native.py"},
        "mrc._sim": {"mrc/sim/native.py"},
        "mrc._emu": {"mrc/testbed/emulator.py"},
        "pyroute2": {"mrc/testbed/netlink.py"},
        "scapy": set(),
    }  # fmt: skip
    report([
        f"{path}:{line}: imports {name}"
        for path in python_files("mrc")
        for line, name in imports(path)
        for module, importers in allowed.items()
        if (name == module or name.startswith(f"{module}.")) and str(path) not in importers
    ])  # fmt: skip


# ---- C -------------------------------------------------------------------------------------------


def c_files() -> Iterator[Path]:
    return (path for path in under("csrc", "tests/pair") if path.suffix in {".c", ".h"})


def included(path: Path) -> Iterator[tuple[int, Path]]:
    """Line and file of each header of the project that a C file includes."""
    for number, line in enumerate(lines(path), 1):
        if header := re.match(r'\s*#\s*include\s+"([\w/]+\.\w+)"', line):
            for folder in (Path("csrc"), Path("tests"), path.parent):
                if (ROOT / folder / header[1]).exists():
                    yield number, folder / header[1]
                    break


def test_products__c_includes_only_products_below() -> None:
    """Tests may include all."""
    report([
        f"{path}:{line}: {product(path)} includes {header}, of {product(header)}"
        for path in c_files()
        if path.parts[0] == "csrc"
        for line, header in included(path)
        if product(header) not in {product(path), *BELOW[product(path)]}
    ])  # fmt: skip


@pytest.mark.parametrize("of", ["packages", "modules"])
def test_includes__no_circle(of: str) -> None:
    """A module is a header and its source."""

    def name(path: Path) -> str:
        return str(path.with_suffix("")) if of == "modules" else BUDGET.package_of(path)

    graph: dict[str, set[str]] = {}
    for path in c_files():
        graph.setdefault(name(path), set()).update(name(header) for _, header in included(path))
    circle({each: its - {each} for each, its in graph.items()})


def test_programs__reach_the_engine_by_its_public_headers() -> None:
    """And by its base: numbers, lists, the slots that messages and emulated RC share."""
    report([
        f"{path}:{line}: includes {header}"
        for path in under("csrc/agent", "csrc/verbs", "csrc/cm", "csrc/ofi")
        if path.suffix in {".c", ".h"}
        for line, header in included(path)
        if len(header.parts) > 2 and product(header) == "core"
        and header != Path("csrc/core/base.h")
    ])  # fmt: skip


def c_declarations(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line and name of every function that a file declares or (True) defines for others."""
    code = re.sub(r"^#.*(\\\n.*)*", "", code_without_comments(path), flags=re.MULTILINE)
    depth, start = 0, 0
    for place, char in enumerate(code):
        if depth == 0 and char in ";{":
            head = re.search(
                r"^(?!\s*(?:static|typedef)\b)[\w\s*]+[\s*](mrc_\w+)\([^{;]*$", code[start:place]
            )
            if head:
                line = code.count("\n", 0, start + head.start(1)) + 1
                yield line, head[1], char == "{"
        depth += (char == "{") - (char == "}")
        if depth == 0 and char in ";}":
            start = place + 1


def test_functions__are_defined_beside_their_header() -> None:
    """No module declares a function of another module: that would hide an include upwards. The
    headers at the top of csrc have no source of their own.
    """
    declared: dict[Path, dict[str, str]] = {}
    defined: dict[Path, set[str]] = {}
    offenders = []
    for path in c_files():
        module = path.with_suffix("")
        for line, name, is_defined in c_declarations(path):
            if is_defined:
                defined.setdefault(module, set()).add(name)
            elif path.suffix == ".h" and len(path.parts) > 2:
                declared.setdefault(module, {})[name] = f"{path}:{line}"
            elif path.suffix == ".c":
                offenders.append(f"{path}:{line}: declares {name}")
    report([
        *offenders,
        *(
            f"{place}: {name} is defined elsewhere"
            for module, names in declared.items()
            for name, place in names.items()
            if name not in defined.get(module, set())
        ),
    ])  # fmt: skip


def test_core__includes_and_calls_nothing_of_the_world() -> None:
    offenders = []
    calls = re.compile(rf"(?<![\w.>])({'|'.join(CORE_FORBIDDEN_CALLS)})\s*\(")
    for path in filter(is_c, under("csrc/core", "csrc/mrc.h")):
        allowed = CORE_HEADERS | CORE_HEADERS_OF.get(path.name, set())
        for number, line in enumerate(lines(path), 1):
            header = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
            if header and header[1] not in allowed:
                offenders.append(f"{path}:{number}: includes <{header[1]}>")
        offenders += [
            f"{path}:{number}: {line.strip()}"
            for number, line in enumerate(code_without_comments(path).splitlines(), 1)
            if path.suffix != ".def" and calls.search(line)
        ]
    report(offenders)


def test_atomics__only_where_two_contexts_meet() -> None:
    """Rings between two threads or with the kernel, who sleeps, the table that a signal handler
    reads, the count of lines that any thread prints, when a program has polled, and memory that
    ATOMICs of peers change.
    """
    meet = {"messages", "emulated", "spsc", "emu", "sigbus", "wake"}
    meet |= {f"csrc/agent/{name}" for name in ("link", "process")}
    meet.add("csrc/msg/receive")
    elsewhere = (
        path
        for path in filter(is_c, under("csrc"))
        if not {path.stem, str(path.with_suffix(""))} & meet
    )
    used = r"\b_Atomic\b|__atomic_|__sync_|\batomic_(?!cap)|stdatomic|\bvolatile\b"
    report(grep(used, elsewhere))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("product", [name for name in BELOW if name != "core"])
def test_without__a_product_the_rest_passes_its_tests(product: str) -> None:
    subprocess.run([ROOT / "tools" / "without", product], check=True, stdin=subprocess.DEVNULL)
