# SPDX-License-Identifier: Apache-2.0
"""Some seeds of each kind of scenario; `tools/sweep --over KIND` runs thousands.

Each runs in a process of its own: the simulated kernel takes the place of the compiled engine.
"""

from __future__ import annotations

import os
import subprocess
import sys

import cbuild
import pytest


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        pytest.param("agent", 35, 1, marks=pytest.mark.slow),
        pytest.param(
            "agent", 11300, 1, marks=pytest.mark.slow
        ),  # a smaller MTU under a program's QP
        pytest.param(
            "connect", 2534, 1, marks=pytest.mark.slow
        ),  # the peer is stopped during the proof
        ("connect", 37, 1),  # the plane of the TCP connection goes down
        ("connect", 21, 5),
        ("copy", 1, 2),
        ("copy", 8, 1),  # the receiver loses its power: a file that was not synced lacks bytes
        pytest.param(
            "copy", 26, 1, marks=pytest.mark.slow
        ),  # the same with --fsync, in the middle of a transfer
        pytest.param(
            "copy", 5010, 1, marks=pytest.mark.slow
        ),  # the receiver sleeps during the connect
        ("end", 4, 2),
        ("group", 2, 1),
        ("perf", 1, 1),
        pytest.param("perf", 59, 1, marks=pytest.mark.slow),  # no plane when the test ends
        pytest.param("strangers", 1, 15, marks=pytest.mark.slow),
    ],
)
def test_seeds(kind: str, first: int, count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "virtual.sweep", kind, str(first), str(count)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(cbuild.TESTS), str(cbuild.ROOT)])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}: seeds {first} to {first + count - 1}: 0 failed" in done.stdout
