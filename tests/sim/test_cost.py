# SPDX-License-Identifier: Apache-2.0
"""The instructions per simulated packet do not depend on the size of the fabric."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import cbuild
import pytest

KIB = 256
"""Sent by each host."""

GROWTH = 1.15


def instructions(tmp_path: Path, hosts: int, qps: int, evs: int) -> float:
    """Instructions per packet, counted by callgrind."""
    program = cbuild.program(Path(__file__).with_name("cost.c"), cbuild.FAST)
    out = tmp_path / "profile"
    callgrind = ["valgrind", "-q", "--tool=callgrind", "--toggle-collect=run"]
    callgrind.append(f"--callgrind-out-file={out}")
    command = [*callgrind, str(program), *map(str, (hosts, qps, evs, KIB))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    total = re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)
    assert total is not None
    return int(total[1]) / int(done.stdout.split()[0])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_instructions__grow_with_nothing(tmp_path: Path) -> None:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed: apt-get install valgrind")
    few = instructions(tmp_path, hosts=64, qps=1, evs=8)
    for hosts, qps, evs in [(1024, 1, 8), (64, 8, 8), (64, 1, 64)]:
        many = instructions(tmp_path, hosts, qps, evs)
        assert many < GROWTH * few, f"{hosts} hosts, {qps} QPs, {evs} EVs: {many} against {few}"
