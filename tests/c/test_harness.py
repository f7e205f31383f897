# SPDX-License-Identifier: Apache-2.0
"""The C harness, the compilers, and what the engine costs: the harness and the sanitizers report a
check that fails, the sources compile with clang, and the socket driver with older kernel headers;
the engine's instructions per operation, against the stored count (bench/core-baseline.json); and
the tests detect a sample of small changes of the engine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cbuild
import pytest

BENCH = cbuild.ROOT / "bench"
GROWTH = 1.1
TOOL = cbuild.ROOT / "tools" / "maintainers" / "mutate"
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


# ---- compilers -----------------------------------------------------------------------------------


def test_io__compiles_where_headers_hide_the_flow_label_options(tmp_path: Path) -> None:
    """As in Linux 6.1.4, whose headers come with the cross compilers of Debian 12."""
    shown = Path("/usr/include/linux/in6.h").read_text()
    hidden = re.sub(r"^#define\s+IPV6_FLOWINFO(_SEND)?\s.*$", "", shown, flags=re.MULTILINE)
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux" / "in6.h").write_text(hidden)
    for source in sorted((cbuild.CSRC / "io").glob("*.c")):
        check = ["gcc", *cbuild.COMMON, "-fsyntax-only", f"-I{tmp_path}", f"-I{cbuild.CSRC}"]
        done = subprocess.run([*check, source], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_sources__compile_with_clang() -> None:
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed: apt-get install clang")
    check = ["clang", *cbuild.COMMON, "-fsyntax-only", f"-I{cbuild.CSRC}"]
    needed = {"ofi": "rdma/providers/fi_prov.h", "verbs": "infiniband/verbs.h"}
    sources = [
        source
        for source in sorted(cbuild.CSRC.glob("*/**/*.c"))
        if cbuild.has_header(needed.get(source.parent.name, "stdint.h"))
    ]
    assert cbuild.CSRC / "core" / "send.c" in sources
    version = subprocess.check_output(["clang", "--version"])
    texts = [version, *(path.read_bytes() for path in sources)]
    passed = cbuild.BUILD / "clang" / cbuild._key(check, cbuild._headers_digest(), *texts)
    if passed.exists():  # an earlier run has compiled the same
        return
    done = subprocess.run([*check, *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    passed.parent.mkdir(parents=True, exist_ok=True)
    passed.touch()


# ---- cost ----------------------------------------------------------------------------------------


def by_name(result: dict[str, Any]) -> dict[tuple[str, int, int], float]:
    return {
        (row["operation"], row["qps"], row["evs"]): row["instructions"] for row in result["rows"]
    }


def compiler() -> str:
    version = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True)
    return version.stdout.splitlines()[0]


def test_instructions__have_not_grown(tmp_path: Path) -> None:
    if not shutil.which("valgrind") or not cbuild.has_header("valgrind/callgrind.h"):
        pytest.skip("valgrind is not installed: apt-get install valgrind")
    baseline = json.loads((BENCH / "core-baseline.json").read_text())
    if baseline["compiler"] != compiler():
        pytest.skip(f"the stored count was measured with {baseline['compiler']}")
    output = tmp_path / "now.json"
    command = [sys.executable, str(BENCH / "core"), "--instructions", "--json", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    now = by_name(json.loads(output.read_text()))
    stored = by_name(baseline)
    assert now.keys() == stored.keys()
    grown = [
        f"{operation} with {qps} QPs, {evs} EVs: {stored[row]} -> {now[row]} instructions"
        for row in stored
        for operation, qps, evs in [row]
        if now[row] > GROWTH * stored[row]
    ]
    assert not grown, "explain it, and store the new count (bench/core --store): " + "; ".join(
        grown
    )


# ---- mutations -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mutate__a_sample_is_noticed_and_a_second_run_goes_on(tmp_path: Path) -> None:
    """Mutates lines that many tests run; the second run reuses the results of the first."""
    command = [sys.executable, str(TOOL), "csrc/core/windows.c", "--count", "4", "--json"]
    command += ["--work", str(tmp_path / "work")]
    before = (cbuild.CSRC / "core" / "windows.c").read_text()
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr + first.stdout
    document = json.loads(first.stdout)
    assert (document["count"], document["noticed"]) == (4, 4)
    assert all(record["by"].startswith("tests/") for record in document["records"])
    assert (cbuild.CSRC / "core" / "windows.c").read_text() == before
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(again.stdout) == document
    assert "compiling" not in again.stderr
