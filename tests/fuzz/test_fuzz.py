# SPDX-License-Identifier: Apache-2.0
"""Builds every fuzz target and replays its corpus, with mutations, under gcc's sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cbuild
import pytest
from slowness import PATIENCE
from wire.golden import GOLDEN

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
TOOL = HERE.parents[1] / "tools" / "fuzz"
CANARY = HERE / "fuzz_canary.c"
TARGETS = sorted(set(HERE.glob("fuzz_*.c")) - {CANARY})


def replay(target: Path, mutations: int = 100) -> subprocess.CompletedProcess[str]:
    program = cbuild.program(target, cbuild.ASAN, extra=[HERE / "replay.c"])
    seeds = sorted((CORPUS / target.stem.removeprefix("fuzz_")).iterdir())
    command = [str(program), str(mutations), *map(str, seeds)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.mark.parametrize("mutations", [100, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.stem)
def test_target__holds_its_invariant(target: Path, mutations: int) -> None:
    """Each file of the corpus, and so many mutations of it."""
    done = replay(target, mutations)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("replayed ")


def test_canary__must_fail() -> None:
    done = replay(CANARY, 2000)
    assert done.returncode != 0
    assert "assertion failed" in done.stderr
    assert "failed on an input made from" in done.stderr
    assert "\nca80" in done.stderr


def run_tool(work: Path, path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "canary", "--seconds", "60", "--work", str(work)]
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_tool__finds_and_reduces_the_canary(tmp_path: Path) -> None:
    try:
        cbuild.libfuzzer()
    except cbuild.BuildError as error:
        pytest.skip(str(error).splitlines()[0])
    done = run_tool(tmp_path, os.environ["PATH"])
    assert done.returncode == 1, done.stderr
    assert "assertion failed" in done.stdout
    assert "\nca80\n" in done.stdout
    assert list((tmp_path / "canary" / "found").glob("reduced-*"))


def test_tool__without_clang_says_what_to_install(tmp_path: Path) -> None:
    done = run_tool(tmp_path, str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == ("fuzz: clang is not installed: apt-get install clang libclang-rt-dev\n")


@pytest.mark.parametrize("target", [*TARGETS, CANARY], ids=lambda target: target.stem)
def test_target__states_its_invariant_first(target: Path) -> None:
    comment = target.read_text().split("*/")[1]
    assert comment.lstrip("\n/* ").startswith("Invariant")


def test_corpus__of_wire_is_the_golden_packets() -> None:
    """To update the corpus, write each golden packet's bytes to corpus/wire/<name>."""
    seeds = {path.name: path.read_bytes() for path in (CORPUS / "wire").iterdir()}
    assert seeds == {golden.name: golden.packet for golden in GOLDEN}
