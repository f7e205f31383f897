# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine, unmodified: it READs by default, which `mrc run --rc` emulates."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from slowness import PATIENCE

from mrc.agent.cli import run

from .conftest import Agent

END = Path(__file__).with_name("mooncake_end.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("mooncake") is None,
        reason="needs Mooncake: pip install mooncake-transfer-engine-non-cuda",
    ),
]


def test_mooncake__reads_and_writes(agent: Agent) -> None:
    environment = agent.environment | run.environment(rc=True)
    command = [sys.executable, str(END)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as target:  # fmt: skip
        try:
            assert target.stdout is not None
            port_and_address = target.stdout.readline().split()
            done = subprocess.run(
                [*command, *port_and_address], env=environment, capture_output=True, text=True,
                timeout=PATIENCE,
            )  # fmt: skip
            out, err = target.communicate("\n", timeout=PATIENCE)
        finally:
            target.kill()
    assert done.returncode == 0, (done.stderr, err)
    assert (target.returncode, out) == (0, "back\n"), err
