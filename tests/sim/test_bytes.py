# SPDX-License-Identifier: Apache-2.0
"""What a simulated host costs in memory: large fabrics are bounded by it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cbuild

HOSTS, KIB = 1024, 256
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
