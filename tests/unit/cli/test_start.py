# SPDX-License-Identifier: Apache-2.0
"""Modules loaded at the start of `mrc`: they are counted, since times depend on the machine."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from processes import loaded
from project_text import ROOT

SLOW = {"asyncio", "cffi", "msgspec", "mrc._core", "numpy", "prometheus_client", "pyroute2", "rich"}


def test_version__loads_next_to_nothing() -> None:
    code = "from mrc.cli.main import main\ntry:\n    main(['--version'])\nexcept SystemExit: pass"
    modules = loaded(code)
    assert not SLOW & modules
    assert len(modules) < 200


@pytest.mark.parametrize("command", ["send", "recv", "perf", "paths", "top"])
def test_subcommands__between_hosts_need_no_pyroute2(command: str) -> None:
    modules = loaded(f"from mrc.cli.main import build_parser\nbuild_parser(['{command}'])")
    assert not {"pyroute2", "numpy", "prometheus_client", "mrc._sim", "mrc._emu"} & modules
    assert not {"mrc.testbed.bed", "mrc.testbed.build", "mrc.sim.run"} & modules


@pytest.mark.parametrize(
    "order", [("mrc.linux.netlink", "pyroute2"), ("pyroute2", "mrc.linux.netlink")]
)
def test_pyroute2__is_whole_for_the_programs_of_others(order: tuple[str, str]) -> None:
    names = "[pyroute2.IPRoute, pyroute2.netlink.nla, mrc.linux.netlink.nla]"
    check = "from pyroute2 import NDB, config\nimport pyroute2.netns\nassert a[1] is a[2]"
    modules = loaded(f"import {order[0]}, {order[1]}\na = {names}\n{check}")
    assert "pyroute2.ndb.main" in modules


def test_import_mrc__loads_nothing_of_it() -> None:
    assert {name for name in loaded("import mrc") if name.startswith("mrc")} == {"mrc"}


def test_start__of_processes_imports_nothing_from_the_current_folder() -> None:
    """A user's http.py there is not Python's: each `python -m` has -P."""
    sources = [path.read_text() for path in (ROOT / "mrc").rglob("*.py")]
    assert not [text for text in sources if 'sys.executable, "-m"' in text]


@pytest.mark.more
@pytest.mark.parametrize("limit", [12, 63])
def test_start__with_too_few_open_files(limit: int) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    for words in (["send", __file__, "127.0.0.1:1"], ["recv", "--insecure", "--output", "."]):
        done = subprocess.run(
            [sys.executable, "-m", "mrc", *words], preexec_fn=few, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = f"mrc {words[0]}: at most {limit} open files (ulimit -Hn): mrc needs 64\n"
        assert (done.returncode, done.stderr) == (1, said)


def test_start__with_most_descriptors_left_open() -> None:
    """Those of whoever started mrc: libuv aborts where it lacks one."""

    def leave_open() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        for fd in range(3, 110):
            os.dup2(0, fd)

    done = subprocess.run(
        [sys.executable, "-m", "mrc", "send", __file__, "127.0.0.1:1"], preexec_fn=leave_open,
        close_fds=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = "mrc send: too many open files: mrc needs 32 more to begin (ulimit -n)\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_start__with_just_enough_open_files() -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    command = [sys.executable, "-m", "mrc", "send", "--insecure", __file__, "127.0.0.1:1"]
    done = subprocess.run(command, preexec_fn=few, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "no program listens" in done.stderr
