# SPDX-License-Identifier: Apache-2.0
"""The examples run as their docstrings say, and show what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from slowness import limit

import mrc.examples

FOLDER = Path(mrc.examples.__file__).parent
SHOWN = {
    "blocking_write": "hello without asyncio",
    "hello": "hello over MRC",
    "many_writes": "equal: True, ",
    "numpy_write": "equal: True, ",
    "watch_paths": "state=<EvState.DENIED: 3>",
}


def test_examples__are_all_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SHOWN, "__init__"}


@pytest.mark.parametrize("name", SHOWN)
def test_examples__run(name: str) -> None:
    command = [sys.executable, "-W", "error", "-m", f"mrc.examples.{name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(60), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert SHOWN[name] in done.stdout
    assert f"python -m mrc.examples.{name}" in (FOLDER / f"{name}.py").read_text()
