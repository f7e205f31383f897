# SPDX-License-Identifier: Apache-2.0
"""tools/systems and what it runs in a root: layers, ends, logs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_log
import roots
from debian import DebianError
from project_text import ROOT, tool
from slowness import PATIENCE

from mrc.linux import netns

systems = tool("systems")


def test_steps__of_an_ordinary_user_need_root_only_for_packages() -> None:
    first, *others = systems.steps_of_checkout(systems.USER, "python3", "-x")
    assert first.user == "root"
    assert {step.user for step in others} == {systems.USER}
    assert others[-1].command.endswith("tools/test -x")


def test_steps__the_tests_of_the_quick_form_exist() -> None:
    assert all((ROOT / path).exists() for path in systems.SOME_TESTS.split())


def test_outcome__of_a_quiet_run_that_failed() -> None:
    text = "FAILED tests/a.py::test_b - assert 1\n===== 1 failed, 3 passed in 1.00s =====\n"
    found = pytest_log.outcome(text)
    assert found == pytest_log.Outcome("1 failed, 3 passed in 1.00s", ["tests/a.py::test_b"], [])


def test_outcome__of_other_output_is_empty() -> None:
    assert pytest_log.outcome("set-up: done\n") == pytest_log.Outcome("", [], [])


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A folder for layers. The folder for temporary files may be on overlayfs, which cannot be a
    layer of itself.
    """
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"overlayfs requires a tmpfs: {mounted.stderr.splitlines()[0]}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.skipif(netns.lacks() != "", reason="overlayfs and pivot_root require root")
class TestLayer:
    """The root file system of these tests is this machine's own."""

    def test_start__keeps_what_is_written_out_of_the_root(self, work: Path) -> None:
        mark = Path(f"/var/tmp/mrc-{os.getpid()}-mark")
        with roots.layer(Path("/"), work) as layer, (work / "log").open("wb") as log:
            process = layer.start(f"echo $HOME > {mark}", log, binds={}, environ={})
            assert process.wait(PATIENCE) == 0, (work / "log").read_text()
            assert layer.path(str(mark)).read_text() == "/root\n"
            assert not mark.exists()
        assert [path.name for path in work.iterdir()] == ["log"]

    def test_start__allows_user_namespaces_to_an_ordinary_user(self, work: Path) -> None:
        with roots.layer(Path("/"), work) as layer, (work / "log").open("wb") as log:
            process = layer.start("unshare --user --map-root-user id -u", log, user="nobody",
                                  binds={}, environ={})  # fmt: skip
            code = process.wait(PATIENCE)
        assert (code, (work / "log").read_text().split()[-1]) == (0, "0")

    def test_start__what_it_leaves_behind_ends_with_it(self, work: Path) -> None:
        with roots.layer(Path("/"), work) as layer, (work / "log").open("wb") as log:
            process = layer.start("sleep 1000 & echo ready; wait", log, binds={}, environ={})
            while "ready" not in (work / "log").read_text():
                assert process.poll() is None, (work / "log").read_text()
            children = subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(process.pid)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            process.kill()
            process.wait()
            assert children
            for pid in children:
                while Path(f"/proc/{pid}").exists():
                    pass


def test_need_debootstrap__an_ordinary_user_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DebianError, match="requires root"):
        roots.need_debootstrap()
