# SPDX-License-Identifier: Apache-2.0
"""Commands whose n-th call for a descriptor or for memory fails, and whose clock is set.

A first run counts the calls, then seeded draws choose those that fail. The slow tests take all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
from hostile.environments import ALL, Calls
from hostile.rows import ROWS, Place

_KINDS = ("files", "memory")
_LAST = 48  # calls of a command that do not only import


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Place]:
    """Fresh folders for each run."""
    return (Place(tmp_path / str(number)) for number in range(1 << 20))


def _sweep(row: str, kind: str, places: Iterator[Place], chosen: Callable[[int], Iterable[int]],
           most: int = 1, modules: str = "") -> None:  # fmt: skip
    usual = ROWS[row](next(places), Calls(kind, modules=modules))
    for first in chosen(usual.calls):
        done = ROWS[row](next(places), Calls(kind, first, most, modules))
        assert done.calls >= first or done.code == 0, (first, done)


def _drawn(seed: str, count: int) -> int:
    """One of the last calls: most of the others import modules."""
    return random.Random(seed).randint(max(1, count - _LAST), count)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("send", "files"),
        ("recv", "memory"),
        ("agent", "files"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [
                *product(("secret",), _KINDS),
                ("send", "memory"),
                ("recv", "files"),
                ("agent", "memory"),
                *product(("serve", "dissect", "install", "schema", "key", "up"), ["files"]),
            ]
        ),
    ],
)
def test_call__that_fails(row: str, kind: str, places: Iterator[Place]) -> None:
    _sweep(row, kind, places, lambda count: [_drawn(row + kind, count)])


def test_calls__that_fail_from_one_on(places: Iterator[Place]) -> None:
    """As many open files leave no descriptor for anything else."""
    _sweep("send", "files", places, lambda count: [count - 8], ALL)


@pytest.mark.default
@pytest.mark.parametrize("row", ["recv"])
def test_clock__that_is_set_by_a_day(row: str, places: Iterator[Place]) -> None:
    """A day ahead at one call, then a day behind."""
    done = ROWS[row](next(places), Calls("clock", random.Random(row).randint(1, 12)))
    assert done.code == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("row", ROWS)
def test_call__each_that_fails(row: str, kind: str, places: Iterator[Place], tmp_path: Path
                               ) -> None:  # fmt: skip
    """Also with all calls after it. All modules are imported before."""
    modules = tmp_path / "modules"
    ROWS[row](next(places), Calls(kind, modules=str(modules)))
    assert modules.stat().st_size
    for most in (1, ALL):
        _sweep(row, kind, places, lambda count: range(1, count + 1), most, str(modules))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_call__some_of_the_imports_that_fail(row: str, places: Iterator[Place]) -> None:
    for most in (1, ALL):
        _sweep(row, "files", places, lambda count: range(1, count + 1, 24), most)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_clock__that_is_set_at_each_call(row: str, places: Iterator[Place]) -> None:
    _sweep(row, "clock", places, lambda count: range(1, count + 1))
