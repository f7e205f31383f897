# SPDX-License-Identifier: Apache-2.0
"""The common part of the programs of bench/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_program__its_ends_start_as_an_installed_mrc_does() -> None:
    """Python may keep the compiled modules, whatever the environment says."""
    code = "import os, program; print(os.environ.get('PYTHONDONTWRITEBYTECODE'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(BENCH), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "None\n"
