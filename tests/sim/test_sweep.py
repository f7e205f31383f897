# SPDX-License-Identifier: Apache-2.0
"""Runs the sweeps of random scenarios over a pair of hosts (sweep.c), over fabrics (sweep_fabric.c)
and of messages (sweep_messages.c): fifty seeds; slow tests run thousands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cbuild
import pytest
import walls

PAIR = Path(__file__).with_name("sweep.c")
FABRIC = Path(__file__).with_name("sweep_fabric.c")
MESSAGES = Path(__file__).with_name("sweep_messages.c")


def run(sweep: Path, flavour: cbuild.Flavour, first: int, count: int) -> None:
    try:
        program = cbuild.program(sweep, flavour)
    except cbuild.BuildError as error:
        pytest.fail(str(error), pytrace=False)
    command = [str(program), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        pytest.fail(text, pytrace=False)
    assert done.stdout == f"{count} seeds passed\n"


@pytest.mark.parametrize(
    "sweep",
    [
        PAIR,
        pytest.param(FABRIC, marks=walls.needs("beds")),
        pytest.param(MESSAGES, marks=walls.needs("programs")),
    ],
    ids=["pair", "fabric", "messages"],
)
def test_sweep(sweep: Path) -> None:
    run(sweep, cbuild.FAST, 0, 25)


@pytest.mark.parametrize(
    "sweep",
    [
        PAIR,
        pytest.param(FABRIC, marks=pytest.mark.slow),
        pytest.param(MESSAGES, marks=pytest.mark.slow),
    ],
    ids=["pair", "fabric", "messages"],
)
def test_sweep__under_the_sanitizers(sweep: Path) -> None:
    run(sweep, cbuild.ASAN, 1000, 8)


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).parents[2] / "tools" / "sweep"
    command = [sys.executable, str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.more
def test_tool__sweeps_what_it_is_told_to() -> None:
    done = tool("--seeds", "21", "--first", "500")
    assert (done.returncode, done.stdout, done.stderr) == (0, "21 seeds passed\n", "")
    done = tool("--seeds", "1", "--first", "500", "--over", "fabric", "-v")
    assert "Gbit/s" in done.stdout and "  flow 0: " in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(10000, 13000, 250))
@pytest.mark.parametrize("sweep", [PAIR, FABRIC, MESSAGES], ids=["pairs", "fabrics", "messages"])
def test_sweep__thousands(sweep: Path, first: int) -> None:
    run(sweep, cbuild.FAST, first, 250)
