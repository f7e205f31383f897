# SPDX-License-Identifier: Apache-2.0
"""A small `mrc demo`: its report, and that it cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from printed import printed
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.linux import netns, programs
from mrc.testbed import build, state
from mrc.testbed.bed import Testbed

# Slow, so that a busy machine injects and heals the fault during the transfer, which takes 2 s.
BYTES = 16 << 20
RATE_BPS = 20e6
SMALL = ("--planes", "3", "--t1", "1", "--rate", "20mbit", "--size", "16MiB")


@pytest.fixture
def demo(bed_name: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A small running demonstration; its files go to `tmp_path`."""
    command = [sys.executable, "-m", "mrc", "demo", "--json", "--name", bed_name, *SMALL]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
    yield process
    process.kill()
    process.communicate()


def nothing_left(bed_name: str, folder: Path) -> bool:
    namespaces = [name for name in netns.names() if bed_name in name]
    return not namespaces and not os.listdir(folder) and state.load(bed_name) is None


def test_demo__reports_what_happened(
    demo: subprocess.Popen[str], bed_name: str, tmp_path: Path
) -> None:
    output, errors = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0, errors
    result = printed("demo", output)
    assert result["identical"] is True
    assert result["bytes"] == BYTES
    capacity = RATE_BPS * 8844 / (8844 + 142)
    assert result["plane_capacity_bits_per_second"] == pytest.approx(capacity)
    assert result["capacity_bits_per_second"] == pytest.approx(3 * capacity)
    assert result["surviving_capacity_bits_per_second"] == pytest.approx(2 * capacity)
    assert result["recovery_seconds"] is None or result["recovery_seconds"] >= 0
    assert 0 < result["failed_after_seconds"] < result["healed_after_seconds"] <= result["seconds"]
    assert 0 < result["goodput_before_bits_per_second"] < 3.15 * capacity
    assert 0 < result["goodput_after_bits_per_second"] < 2.15 * capacity
    assert 0 < result["processor_share"] <= 1
    moved = sum(each["bits_per_second"] for each in result["goodput"]) * result["bin_seconds"] / 8
    assert moved == pytest.approx(BYTES, rel=0.1)
    (file,) = result["receiver"]["files"]
    assert file["digest"] == result["sender"]["files"][0]["digest"]
    assert nothing_left(bed_name, tmp_path)


@pytest.mark.slow
def test_demo__interrupted(demo: subprocess.Popen[str], bed_name: str, tmp_path: Path) -> None:
    assert demo.stderr is not None
    while "is silent" not in demo.stderr.readline():
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130
    assert printed("demo", output) == {"schema": 1, "error": "interrupted", "exit_code": 130}
    assert nothing_left(bed_name, tmp_path)


def test_demo__names_what_is_missing_before_it_begins(
    bed_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", "/bin-of-nobody")
    monkeypatch.setattr(programs, "find", lambda name: None if name == "ip" else f"/bin/{name}")
    assert main(["demo", "--name", bed_name, *SMALL]) == 1
    assert capsys.readouterr().err == "mrc demo: ip is missing: apt-get install iproute2\n"
    assert nothing_left(bed_name, tmp_path)


def test_demo__leaves_a_test_bed_of_that_name_alone(bed_name: str) -> None:
    with Testbed(bed_name, planes=1, t1=1):
        command = [sys.executable, "-m", "mrc", "demo", "--quiet", "--name", bed_name, *SMALL]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 1
        assert f"test bed {bed_name} is already up" in done.stderr
        assert build.missing(Testbed.existing(bed_name).plan) == []


def test_demo__as_root_of_a_container(tmp_path: Path) -> None:
    """Root without CAP_SYS_ADMIN, where user namespaces are forbidden: it says so before it writes
    anything.
    """
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    drop = "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin"
    script = f'{forbid} && exec {drop} "$@"'
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*words, sys.executable, "-m", "mrc", "demo"], capture_output=True, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "give this root CAP_SYS_ADMIN" in done.stderr and done.stderr.count("\n") == 1
    assert "writing" not in done.stderr
