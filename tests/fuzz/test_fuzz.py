# SPDX-License-Identifier: Apache-2.0
"""Builds every fuzz target and replays its corpus, with mutations, under gcc's sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cbuild
import pytest
from wire.golden import GOLDEN

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
MUTATIONS = 500  # of each file
CANARY = HERE / "fuzz_canary.c"
TARGETS = sorted(set(HERE.glob("fuzz_*.c")) - {CANARY})


def replay(target: Path) -> subprocess.CompletedProcess[str]:
    program = cbuild.program(target, cbuild.ASAN, extra=[HERE / "replay.c"])
    seeds = sorted((CORPUS / target.stem.removeprefix("fuzz_")).iterdir())
    command = [str(program), str(MUTATIONS), *map(str, seeds)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.stem)
def test_target__holds_its_invariant(target: Path) -> None:
    done = replay(target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("replayed ")


def test_canary__must_fail() -> None:
    done = replay(CANARY)
    assert done.returncode != 0
    assert "assertion failed" in done.stderr
    assert "failed on an input made from" in done.stderr
    assert "\nca80" in done.stderr


@pytest.mark.parametrize("target", [*TARGETS, CANARY], ids=lambda target: target.stem)
def test_target__states_its_invariant_first(target: Path) -> None:
    comment = target.read_text().split("*/")[1]
    assert comment.lstrip("\n/* ").startswith("Invariant")


def test_corpus__of_wire_is_the_golden_packets() -> None:
    """To write it anew: for each golden packet, corpus/wire/<name> holds its bytes."""
    seeds = {path.name: path.read_bytes() for path in (CORPUS / "wire").iterdir()}
    assert seeds == {golden.name: golden.packet for golden in GOLDEN}
