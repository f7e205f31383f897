# SPDX-License-Identifier: Apache-2.0
"""The text of the project, for tests of its rules, and its tools as modules."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

TOP_LEVEL = {
    "mrc", "csrc", "tests", "bench", "tools",
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "setup.py",
}  # fmt: skip


class Release(NamedTuple):
    """A section of the changelog; without a version what is not released."""

    version: str
    date: str
    entries: int


def releases(changelog: str) -> list[Release]:
    """The sections of the changelog, from the newest on."""
    _, *sections = re.split(r"^## ", changelog, flags=re.MULTILINE)
    found = []
    for section in sections:
        head = re.match(r"\[(?:Unreleased|(\d+\.\d+\.\d+))\](?: - (\d{4}-\d\d-\d\d))?\n", section)
        if head is None:
            raise ValueError(f"CHANGELOG.md: not the heading of a release: {section[:40]!r}")
        count = len(re.findall(r"^- ", section, flags=re.MULTILINE))
        found.append(Release(head[1] or "", head[2] or "", count))
    return found


@cache
def sources() -> tuple[Path, ...]:
    """Every file of the project that git tracks or would track."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked source archive
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return tuple(sorted(path for path in found if path.parts[0] in TOP_LEVEL))
    return tuple(sorted(Path(name) for name in set(listed.split("\0")) if (ROOT / name).is_file()))


def tool(name: str) -> Any:
    """tools/NAME as a new module; it has no suffix, so that it cannot be imported."""
    loader = SourceFileLoader(f"{name}_tool", str(ROOT / "tools" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # its dataclasses look up their module there
    loader.exec_module(module)
    return module


def copy_sources(folder: Path) -> None:
    """Copies what git would clone."""
    for path in sources():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path)


@cache
def text(path: Path) -> str:
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def lines(path: Path) -> list[str]:
    return text(path).splitlines()


def is_program(path: Path) -> bool:
    return not path.suffix and text(path).startswith("#!")


def is_python(path: Path) -> bool:
    return path.suffix == ".py" or (is_program(path) and "python" in lines(path)[0])


def is_c(path: Path) -> bool:
    return path.suffix in {".c", ".h", ".def"}


def is_code(path: Path) -> bool:
    configuration = path.name in {"pyproject.toml", ".clang-format", ".gitignore"}
    return is_python(path) or is_c(path) or is_program(path) or configuration


def under(*folders: str) -> Iterator[Path]:
    for path in sources():
        if any(path.is_relative_to(folder) for folder in folders):
            yield path


def tree(path: Path) -> ast.Module:
    """Not kept: the garbage collector would look at all trees again and again."""
    return ast.parse(text(path), filename=str(path))


def python_files(*folders: str) -> Iterator[Path]:
    return (path for path in (under(*folders) if folders else sources()) if is_python(path))


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of every module that a Python file imports, at any level, except for types
    alone.
    """
    return tuple(_imports(tree(path)))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one, except what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            continue
        yield child
        yield from _run(child)


def _imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in _run(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def grep(pattern: str, paths: Iterator[Path], flags: int = 0) -> list[str]:
    regex = re.compile(pattern, flags)
    return [
        f"{path}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(lines(path), 1)
        if regex.search(line)
    ]


def report(offenders: list[str]) -> None:
    assert not offenders, "\n" + "\n".join(offenders)


def code_without_comments(path: Path) -> str:
    """C text with comments replaced by blanks, line breaks kept."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"/\*.*?\*/|//[^\n]*", blank, text(path), flags=re.DOTALL)
