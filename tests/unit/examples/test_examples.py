# SPDX-License-Identifier: Apache-2.0
"""The examples run and print the documented output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from slowness import PATIENCE

import mrc.examples

FOLDER = Path(mrc.examples.__file__).parent
SHOWN = {
    "blocking_write": "hello without asyncio",
    "controller": "paths in use: 4\npaths in use: 4",
    "hello": "hello over MRC",
    "many_writes": "equal: True, ",
    "numpy_write": "equal: True, ",
    "sealed_write": "hello, sealed (AEAD)",
    "watch_paths": "state=<EvState.DENIED: 3>",
}


def run(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_examples__are_all_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SHOWN, "__init__"}


@pytest.mark.parametrize("name", SHOWN)
def test_examples__run(name: str) -> None:
    assert SHOWN[name] in run("-m", f"mrc.examples.{name}")
    assert f"python -m mrc.examples.{name}" in (FOLDER / f"{name}.py").read_text()


def test_numpy_write__without_numpy() -> None:
    code = (
        "import runpy, sys; sys.modules['numpy'] = None;"
        "runpy.run_module('mrc.examples.numpy_write', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "numpy is not installed: pip install numpy\n")


def test_readme__shows_hello() -> None:
    hello = {line.strip() for line in (FOLDER / "hello.py").read_text().splitlines()}
    shown = (FOLDER / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert {line.strip() for line in shown.splitlines()} <= hello
