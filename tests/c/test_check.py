# SPDX-License-Identifier: Apache-2.0
"""The C harness itself: the program and the sanitizers must report a check that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cbuild
import pytest

SOURCE = """
#include "check.h"
#include <stdlib.h>
TEST(test_good) { CHECK(true); CHECK_EQ(-1, -1); CHECK_STR_EQ("a", "a"); }
TEST(test_bad) {
  CHECK_EQ(2 + 2, 5);
  CHECK_ROW(3);
  CHECK_MEM_EQ("abc", "abd", 3);
  CHECK_STR_EQ("a", "b");
  CHECK(1 > 2);
  CHECK_FAIL("seven is %d", 7);
}
TEST(test_many) { for (int i = 0; i < 1000; i++) CHECK_EQ(i, -1); }
TEST(test_out_of_bounds) {
  volatile int at = 3;
  char *bytes = malloc(3);
  bytes[at] = 1;
  free(bytes);
}
TEST(test_overflow) { volatile int n = INT32_MAX; n = n + 1; CHECK(n != 0); }
TEST(test_leak) { void *volatile lost = malloc(3); lost = NULL; CHECK(lost == NULL); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("check") / "check_itself.c"
    source.write_text(SOURCE)
    return cbuild.program(source)


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_pass(program: Path) -> None:
    done = run(program, "test_good")
    assert (done.returncode, done.stdout) == (0, "ok test_good\n1 passed, 0 failed\n")


def test_fail__prints_place_row_and_values(program: Path) -> None:
    done = run(program, "test_bad")
    assert done.returncode == 1
    lines = [line.split("check_itself.c:")[-1] for line in done.stdout.splitlines()]
    assert lines == [
        "6: 2 + 2 is 4 (0x4), expected 5 (0x5)",
        '8: row 3: "abc": byte 2 is 63, expected 64',
        '9: row 3: "a" is "a", expected "b"',
        "10: row 3: not true: 1 > 2",
        "11: row 3: seven is 7",
        "FAILED test_bad",
        "0 passed, 1 failed",
    ]


def test_fail__a_flood_is_cut(program: Path) -> None:
    done = run(program, "test_many", "test_good")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 20 + 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_out_of_bounds", "insufficient space"),
        ("test_overflow", "signed integer overflow"),
        ("test_leak", "detected memory leaks"),
    ],
)
def test_fail__sanitizers_are_on(program: Path, name: str, message: str) -> None:
    done = run(program, name)
    assert done.returncode != 0
    assert message in done.stderr


def test_list_and_unknown_name(program: Path) -> None:
    assert run(program, "--list").stdout.splitlines()[:2] == ["test_good", "test_bad"]
    assert run(program, "test_nothing").returncode == 2
