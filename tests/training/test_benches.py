# SPDX-License-Identifier: Apache-2.0
"""Short runs of the benchmarks that need torch: they measure every contender, and clean up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slowness import limit

from mrc.linux import netns

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, name: str, *options: str) -> dict[str, Any]:
    """Runs a benchmark; returns its JSON."""
    before = set(netns.names())
    file = tmp_path / "run.json"
    command = [sys.executable, str(ROOT / "bench" / name), *options, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(110), check=False)
    assert done.returncode == 0, done.stderr
    assert not [left for left in set(netns.names()) - before if left.startswith(name)]
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def test_allreduce__quick(tmp_path: Path) -> None:
    """The ranks check their sums. One path has a quarter of the planes, MPTCP has more."""
    result = run(tmp_path, "allreduce", "--quick", "--only", "500mbit", "--ranks", "2",
                 "--size", "4096", "--size", "16777216")  # fmt: skip
    (bed,) = result["beds"]
    large = {row["contender"]: row["metrics"]["bus_bits_per_second"]["median"]
             for row in bed["rows"] if row["bytes"] == 16 << 20}  # fmt: skip
    capacity = bed["payload_capacity_bits_per_second"]
    assert large["TCP"] < 0.3 * capacity < large["MPTCP"] < 1.1 * capacity
    assert 0.3 * capacity < large["mrc"] < 1.1 * capacity
    assert len(result["checks"]) == 2


def test_allreduce__pinned_and_unpinned(tmp_path: Path) -> None:
    """Both are measured in one run; the checks are about the pinned ranks."""
    result = run(tmp_path, "allreduce", "--quick", "--only", "500mbit", "--ranks", "2",
                 "--contender", "mrc", "--unpinned", "--size", "4194304")  # fmt: skip
    assert list(result["contenders"]) == ["mrc", "mrc, unpinned"]
    (bed,) = result["beds"]
    assert [row["contender"] for row in bed["rows"]] == ["mrc", "mrc, unpinned"]
    assert len(result["checks"]) == 1


def test_training__quick(tmp_path: Path) -> None:
    """TCP takes no step while its plane is silent; mrc goes on, and both compute the same."""
    result = run(tmp_path, "training", "--quick", "--only", "mrc", "--only", "TCP",
                 "--picture", str(tmp_path / "steps"))  # fmt: skip
    ours, theirs = result["runs"]
    assert result["same_losses"]
    assert [part["planes"] for part in ours["chapters"]] == [4, 3, 4]
    assert ours["chapters"][1]["steps"] > 5
    assert theirs["chapters"][1]["longest_seconds"] > 3.5
    assert {path.name for path in tmp_path.glob("*.svg")} == {"steps.svg"}
