# SPDX-License-Identifier: Apache-2.0
"""The soak: a short run finds no failure, and an interrupted run leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slowness import PATIENCE

from mrc.linux import netns

TOOL = Path(__file__).parents[2] / "tools" / "maintainers" / "soak"


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(TOOL), "--seed", "1", "--work", str(folder), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def beds(process: subprocess.Popen[str]) -> list[str]:
    """Namespaces of this soak; others may run beside it."""
    return [name for name in netns.names() if name.startswith(f"mrc-soak{process.pid}-")]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_soak__a_minute_finds_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "--minutes", "1", "--json")
    output, complaints = process.communicate(timeout=390)
    document = json.loads(output)
    assert document["findings"] == [], complaints
    assert document["verified_bytes"] > 0
    assert {"send", "perf", "connects", "fault"} <= document["done"].keys()
    assert beds(process) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_soak__odd_transfers_find_nothing(tmp_path: Path) -> None:
    """The seed draws each kind."""
    kinds = ["odd pack", "signal", "reconnect", "changing", "odd interface"]
    only = [word for kind in kinds for word in ("--only", kind)]
    process = start(tmp_path, "--rounds", "12", *only, "--json")
    output, complaints = process.communicate(timeout=390)
    document = json.loads(output)
    assert document["findings"] == [], complaints
    assert document["rounds"] == 12 and set(kinds) <= document["done"].keys()
    assert beds(process) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_soak__interrupted_it_cleans_up(tmp_path: Path) -> None:
    process = start(tmp_path, "--minutes", "5")
    assert process.stderr is not None
    log = Path(process.stderr.readline().split("log: ")[1].strip())
    while not log.exists():  # it is written when the first client starts
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    complaints = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130, complaints
    assert beds(process) == []
    assert list(tmp_path.iterdir()) == []
