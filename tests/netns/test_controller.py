# SPDX-License-Identifier: Apache-2.0
"""A controller over two planes with two T1s each, one of which loses packets."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.processes import Hosts
from slowness import PATIENCE

from mrc.testbed.bed import Testbed

from .conftest import fresh_name

pytestmark = pytest.mark.slow

LOSSY = "t1:1.0"


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(fresh_name(), planes=2, t1=2) as bed:
        yield bed


def test_controller__denies_the_paths_over_a_lossy_t1(
    bed: Testbed, hosts: Hosts, healed: None, tmp_path: Path
) -> None:
    hosts.recv(tmp_path)
    bed.fail(LOSSY, loss=0.4)
    command = [sys.executable, "-m", "mrc.examples.controller", "h1"]
    argv, environment = bed.host_command("h0", command)
    denied: list[str] = []
    rounds_after = 0
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                if line.startswith("denied "):
                    denied += line.split()[1:]
                    rounds_after = 0
                elif denied:
                    rounds_after += 1
                if rounds_after > 5:
                    break  # as many rounds as count: no other path loses
        finally:
            watchdog.cancel()
            process.kill()
    assert rounds_after > 5
    assert denied == [LOSSY]


def test_controller__drains_and_keeps_the_last_path(
    bed: Testbed, hosts: Hosts, healed: None, tmp_path: Path
) -> None:
    hosts.recv(tmp_path)
    command = [sys.executable, "-m", "mrc.examples.controller", "h1"]
    argv, environment = bed.host_command("h0", [*command, "t1:2.*", "t1:1.0"])
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "drained t1:1.0 t1:2.0 t1:2.1\n"
        assert process.stdout.readline() == "paths in use: 1\n"
        process.kill()
    argv, environment = bed.host_command("h0", [*command, "*"])
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert "ValueError: *: no other path works" in done.stderr
