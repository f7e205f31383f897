# SPDX-License-Identifier: Apache-2.0
"""The engine's instructions per operation, against the stored count (bench/core-baseline.json)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cbuild
import pytest

BENCH = Path(__file__).parents[2] / "bench"
GROWTH = 1.1


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
