# SPDX-License-Identifier: Apache-2.0
"""Runs the sweep of random scenarios (sweep.c): a few hundred seeds, and thousands when slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cbuild
import pytest

SWEEP = Path(__file__).with_name("sweep.c")


def run(flavour: cbuild.Flavour, first: int, count: int) -> None:
    try:
        program = cbuild.program(SWEEP, flavour)
    except cbuild.BuildError as error:
        pytest.fail(str(error), pytrace=False)
    command = [str(program), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        pytest.fail(text, pytrace=False)
    assert done.stdout == f"{count} seeds passed\n"


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_sweep__every_write_arrives(first: int) -> None:
    run(cbuild.FAST, first, 50)


def test_sweep__under_the_sanitizers() -> None:
    run(cbuild.ASAN, 1000, 20)


def test_tool__sweeps_what_it_is_told_to() -> None:
    tool = Path(__file__).parents[2] / "tools" / "sweep"
    command = [sys.executable, str(tool), "--seeds", "21", "--first", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "21 seeds passed\n", "")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(10000, 13000, 250))
def test_sweep__thousands(first: int) -> None:
    run(cbuild.FAST, first, 250)
