# SPDX-License-Identifier: Apache-2.0
"""What a simulation costs: instructions per packet do not depend on the size of the fabric; the
memory of a host bounds large fabrics.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cbuild
import pytest

from mrc.sim.trials import available_bytes

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


# ---- Memory --------------------------------------------------------------------------------------


HOSTS = 1024
BUDGET_KIB = 112  # 102 with 64 EVs a QP, measured


def resident_kib(hosts: int, evs: int) -> int:
    """The most that was resident."""
    program = cbuild.program(Path(__file__).with_name("cost.c"), cbuild.FAST)
    command = [str(program), *map(str, (hosts, 1, evs, KIB))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[2])


def test_host__keeps_its_budget() -> None:
    few = 32
    grown = resident_kib(HOSTS, 64) - resident_kib(few, 64)
    assert grown / (HOSTS - few) < BUDGET_KIB


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(available_bytes() < 20e9, reason="needs 20 GB of memory")
def test_fabric__of_102400_hosts() -> None:
    """8 planes, 256 EVs a QP, 1 MiB from each: at most 20 GB, and 15 minutes on two processors."""
    command = [sys.executable, "-m", "mrc", "sim", "paper-permutation", "--set", "variants=[]"]
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, "its checks are met"
    assert used.ru_maxrss * 1024 < 20e9
    assert used.ru_utime + used.ru_stime < 2 * 900
