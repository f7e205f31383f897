# SPDX-License-Identifier: Apache-2.0
"""These tests detect a sample of small changes of the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cbuild
import pytest

TOOL = cbuild.ROOT / "tools" / "maintainers" / "mutate"


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
