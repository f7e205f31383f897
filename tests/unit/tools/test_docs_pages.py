# SPDX-License-Identifier: Apache-2.0
"""`tools/docs`: the API pages build without warnings and show every public name."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

import mrc

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pdoc", reason="tools/setup")
    folder = tmp_path_factory.mktemp("api")
    command: list[str | Path] = [sys.executable, ROOT / "tools" / "docs", "--output", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder}/index.html\n"
    return folder


@pytest.mark.more
def test_pages__show_every_public_name(pages: Path) -> None:
    shown = set(re.findall(r'<section id="(\w+)"', (pages / "mrc.html").read_text()))
    assert set(mrc.__all__) <= shown
    assert {"Context", "QP", "Listener"} <= set(
        re.findall(r'<section id="(\w+)"', (pages / "mrc" / "blocking.html").read_text())
    )


def undocumented() -> list[str]:
    """Public methods, properties and fields of the classes of `mrc` without a docstring."""
    found = []
    for name in mrc.__all__:
        value = getattr(mrc, name)
        if not (value.__doc__ or "").strip():
            found.append(name)
        for member, what in vars(value).items() if isinstance(value, type) else ():
            function = getattr(what, "fget", what)
            if member.startswith("_") or not callable(function):
                continue
            if not (getattr(function, "__doc__", None) or "").strip():
                found.append(f"{name}.{member}")
    return found


def test_public_names__have_docstrings() -> None:
    assert undocumented() == []


def fields_without_a_word(kind: type) -> list[str]:
    """Fields of a public class without a docstring after them."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    return [
        f"{kind.__name__}.{field.target.id}"
        for field, behind in zip_longest(body.body, body.body[1:])
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not (isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant))
    ]


@pytest.mark.parametrize("name", [n for n in mrc.__all__ if isinstance(getattr(mrc, n), type)])
def test_public_fields__have_docstrings(name: str) -> None:
    assert fields_without_a_word(getattr(mrc, name)) == []
