# SPDX-License-Identifier: Apache-2.0
"""tools/budget: what it counts, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_text import ROOT, tool

TOOL = tool("budget")
BUDGET = TOOL.read("""
[products]
lab = ["mrc/view"]
[packages]
"mrc/aio" = { code = 100, names = 10, doors = 2, files = 3 }
"mrc/view" = { code = 50, names = 5, doors = 0, files = 1 }
[lines]
"README.md" = 100
""")


UNITS = '''\
"""Doc."""

# why
K = 1


def digits() -> str:
    """Doc."""
    return ""
'''
QP = '''\
from mrc.units import K, digits


class QP:
    a: int = K
    """Doc."""
'''
BASE = """\
/* why
   so */
int mrc_a(void);
static inline int mrc_b(int x) {
  return x;
}
"""
CTX = """\
#include "core/base.h"
int main(void) {
  return mrc_a();
}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in (
        ("mrc/units.py", UNITS), ("mrc/aio/qp.py", QP), ("csrc/core/base.h", BASE),
        ("csrc/io/ctx.c", CTX),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_measure__code_names_doors_and_files(tree: Path) -> None:
    assert {
        name: (c.code, c.names, c.doors, c.files) for name, c in TOOL.measure(tree).items()
    } == {
        "mrc": (3, 1, 2, 1),
        "mrc/aio": (3, 1, 0, 1),
        "csrc/core": (4, 1, 2, 1),
        "csrc/io": (4, 1, 0, 1),
    }


def costs(**changed: int) -> dict[str, dict[str, int]]:
    return {
        "mrc/aio": {"code": 100, "names": 10, "doors": 2, "files": 3} | changed,
        "mrc/view": {"code": 50, "names": 5, "doors": 0, "files": 1},
        "lines": {"README.md": 100},
    }


def test_complaints__dearer_much_cheaper_and_unknown() -> None:
    assert list(TOOL.complaints(BUDGET, costs())) == []
    assert list(TOOL.complaints(BUDGET, costs(names=9, code=97))) == []
    assert list(TOOL.complaints(BUDGET, costs(names=11))) == ["mrc/aio: names: 11, at most 10"]
    (line,) = TOOL.complaints(BUDGET, costs(code=80))
    assert line.startswith("mrc/aio: code: 80, the budget is 100")
    (line,) = TOOL.complaints(BUDGET, costs() | {"mrc/new": {"code": 1}})
    assert line.startswith("mrc/new: has no line")


def test_lowered__never_above_and_never_raised() -> None:
    tables = TOOL.lowered(BUDGET, costs(code=80, names=11))
    assert tables["mrc/aio"] == {"code": 80, "names": 10, "doors": 2, "files": 3}
    text = (ROOT / "tools" / "budget.toml").read_text()
    budget = TOOL.read(text)
    same = {**budget.packages, **budget.others}
    assert TOOL.written(text, same, budget) == text


def test_counted__a_program_that_fails() -> None:
    with pytest.raises(SystemExit, match=r"(?s)^budget: .*\nValueError: no such thing\n$"):
        TOOL.counted("raise ValueError('no such thing')")


def test_dearer__a_product_pays_for_its_packages() -> None:
    def budget(view: str, demo: str) -> object:
        packages = f'[packages]\n"mrc/view" = {{ {view} }}\n"mrc/demo" = {{ {demo} }}\n'
        return TOOL.read('[products]\nlab = ["mrc/view", "mrc/demo"]\n' + packages)

    before = budget("code = 50, names = 5, doors = 0, files = 1", "code = 50, names = 5")
    now = budget("code = 60, names = 5, doors = 1, files = 1", "code = 30, names = 5")
    assert list(TOOL.dearer(before, now)) == []
    now = budget("code = 61, names = 6, doors = 0, files = 1", "code = 30, names = 5")
    (line,) = TOOL.dearer(before, now)
    assert line.startswith("lab: may cost 1 more")
