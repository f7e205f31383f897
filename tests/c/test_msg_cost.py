# SPDX-License-Identifier: Apache-2.0
"""The instructions of an operation do not depend on how many others wait, of this peer or of
another."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import cbuild
import pytest
import walls

pytestmark = walls.needs("programs")
FEW, MANY = 128, 4096
GROWTH = 1.5


def instructions(tmp_path: Path, what: str, waiting: int) -> int:
    program = cbuild.program(Path(__file__).with_name("msg_cost.c"), cbuild.FAST)
    out = tmp_path / "profile"
    command = ["valgrind", "-q", "--tool=callgrind", "--toggle-collect=measured"]
    command += [f"--callgrind-out-file={out}", str(program), what, str(waiting)]
    subprocess.run(command, capture_output=True, check=True)
    total = re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)
    assert total is not None
    assert int(total[1]) > 0
    return int(total[1])


@pytest.mark.parametrize(
    "what",
    [
        "cancels", "receives", "match-messages",
        *(pytest.param(what, marks=pytest.mark.slow) for what in (
            "CANCEL", "WITHDRAW", "RTS", "match-receives", "match-CTSs", "match-sends", "exact",
        )),
    ],
)  # fmt: skip
def test_instructions__do_not_grow(tmp_path: Path, what: str) -> None:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed: apt-get install valgrind")
    few, many = (instructions(tmp_path, what, waiting) for waiting in (FEW, MANY))
    assert many < GROWTH * few
