# SPDX-License-Identifier: Apache-2.0
"""Which products each test is about: those whose packages it names, or a helper that it imports
names. Nothing lists the tests; tools/budget.toml lists the packages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from project_text import ROOT, tool

BUDGET = tool("budget")
LIMITS = BUDGET.read((ROOT / "tools" / "budget.toml").read_text())
TESTS = ROOT / "tests"
BELOW: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "beds": frozenset({"core"}),
    "programs": frozenset({"core"}),
    "judge": frozenset({"core", "beds"}),
    "lab": frozenset({"core", "beds"}),
}
"""The products that each imports, beside itself."""


def above(product: str) -> set[str]:
    """A product and those that import it: what goes with it."""
    return {product, *(name for name, below in BELOW.items() if product in below)}


@cache
def commands() -> dict[str, str]:
    """The product of each command of `mrc`."""
    text = (ROOT / "mrc" / "products.py").read_text()
    table = re.findall(r'^    "(\w+)": "(mrc\.[\w.]+)",$', text, re.MULTILINE)
    return {name: _of_module(module) or "core" for name, module in table}


@cache
def _public() -> dict[str, str]:
    """The module of each public name of mrc."""
    text = (ROOT / "mrc" / "__init__.pyi").read_text()
    return {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", text, re.M)}


def _of_module(name: str) -> str:
    """The product of a module of mrc, or of a name in it; "" if it is not of mrc."""
    top, *below = name.split(".")
    if top != "mrc":
        return ""
    below = _public().get(below[0], name).split(".")[1:] if below else []
    for parts in (below, below[:-1]):
        path = Path("mrc", *parts)
        if parts and (ROOT / path).is_dir():
            return str(LIMITS.product_of(path / "__init__.py"))
        if parts and (ROOT / path.with_suffix(".py")).is_file():
            return str(LIMITS.product_of(path.with_suffix(".py")))
    return "core"


@cache
def products(path: Path) -> frozenset[str]:
    """The products other than the core that a file of tests/ is about, by its absolute path."""
    found: set[str] = set()
    _collect(path, found, set())
    return frozenset(found - {"core"})


def _collect(path: Path, found: set[str], seen: set[Path]) -> None:
    if path in seen:
        return
    seen.add(path)
    named, helpers = _named_in(path)
    found |= named
    for helper in helpers:
        _collect(helper, found, seen)


@cache
def _named_in(path: Path) -> tuple[set[str], list[Path]]:
    """The products that a file names itself, and the helpers that it imports."""
    found: set[str] = set()
    helpers: list[Path] = []
    if path.suffix in {".c", ".h"}:
        for header in re.findall(r'#include "([\w./]+)"', path.read_text()):
            if (ROOT / "csrc" / header).exists():
                found.add(str(LIMITS.product_of(Path("csrc", header))))
            else:
                beside = (path.parent / header, TESTS / header)
                helpers += [each for each in beside if each.exists()][:1]
        return found, helpers
    nodes = list(ast.walk(ast.parse(path.read_text())))
    for name in _imported(nodes, path):
        if product := _of_module(name):
            found.add(product)
        elif (helper := _helper(name)) is not None:
            helpers.append(helper)
    if path.name.startswith("test_"):  # what a helper types depends on who calls it
        found.update(_typed(nodes))
    for folder in path.parents:
        if TESTS not in folder.parents:
            break
        if folder.parent == TESTS / "unit":  # tests of a package
            found.add(LIMITS.product(f"mrc/{folder.name}"))
        if (conftest := folder / "conftest.py").exists():
            helpers.append(conftest)
    return found, helpers


def _imported(nodes: Sequence[ast.AST], path: Path) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            place = path.parent.relative_to(ROOT).parts[1:]  # below tests, bench or tools
            package = ".".join(place) if node.level else ""
            start = ".".join(each for each in (package, node.module or "") if each)
            yield from (f"{start}.{each.name}" for each in node.names)


def _helper(name: str) -> Path | None:
    """The file, of the folders in `pythonpath`, that this module or name in a module is in."""
    for parts in (name.split("."), name.split(".")[:-1]):
        for folder in (TESTS, ROOT / "bench", ROOT / "tools"):
            if parts and (file := folder.joinpath(*parts).with_suffix(".py")).is_file():
                return file
    return None


def _typed(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The products whose commands strings type: ["sim", "list"], "testbed up --planes 2",
    "mrc demo".
    """
    calls = (node for node in nodes if isinstance(node, ast.Call))
    named = {  # as products, by `needs`
        id(each)
        for call in calls
        if getattr(call.func, "attr", "") == "needs"
        for each in call.args
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in named:
            text = node.value
            words = text.split()
            if words and words[0] in commands() and (len(words) == 1 or " -" in text):
                yield commands()[words[0]]
            for word in re.findall(r"\bmrc (\w+)", text):
                yield commands().get(word, "core")


def may_run(path: Path, there: set[str]) -> bool:
    """Whether a test can run in a tree that has these products beside the core."""
    return products(path) <= there


def needs(*products: str) -> pytest.MarkDecorator:
    """Skips a test where a tree is without one of these products."""
    lacking = [
        product
        for product in products
        if not any((ROOT / package).is_dir() for package in LIMITS.products[product])
    ]
    return pytest.mark.skipif(bool(lacking), reason=f"this tree is without {' '.join(lacking)}")


def is_about(path: Path, name: str) -> bool:
    """Whether a test is of a product, the last of those that it is about, or of a package: in its
    folder, or in C with a header of it.
    """
    if name in BELOW:
        return max(products(path) | {"core"}, key=list(BELOW).index) == name
    package = name.rpartition("/")[2]
    if path.suffix == ".c":
        return re.search(rf'#include "{package}/', path.read_text()) is not None
    return any(folder in path.parents for folder in (TESTS / "unit" / package, TESTS / package))


def names() -> set[str]:
    """What `is_about` knows: products, and packages by path and by the last part of it."""
    packages = set(LIMITS.packages)
    return {*BELOW, *packages, *(name.rpartition("/")[2] for name in packages)}
