# SPDX-License-Identifier: Apache-2.0
"""The stored state of test beds, in the test's own folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from mrc.errors import ConfigError
from mrc.fabric.faults import LinkChange
from mrc.testbed import state
from mrc.testbed.faults import Fault, Mode
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Shape
from mrc.testbed.state import BedState

SHAPE = Shape(
    hosts=3, planes=2, t1=1, host_rate_bps=None, mtu=1500, links=(LinkChange("t1:1.0", 10**6),)
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def test_load__gives_back_what_was_saved() -> None:
    faults = {"plane:2": Fault(Mode.DOWN), "t1:1.0": Fault(Mode.SILENT, 0.25)}
    for each in (
        BedState(SHAPE),
        BedState(Shape(), up=True),
        BedState(SHAPE, up=True, faults=faults),
    ):
        state.save("x", each)
        assert state.load("x") == each


def test_load__none_when_there_is_none() -> None:
    assert state.load("x") is None
    assert state.names() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 2, "up": true, "shape": {}, "faults": {}}',
        '{"schema": 1, "up": true, "shape": {"hosts": 0}, "faults": {}}',
        '{"schema": 1, "up": true, "shape": {"colour": 1}, "faults": {}}',
    ],
)
def test_load__names_the_file_it_cannot_read(folder: Path, text: str) -> None:
    state.save("x", BedState(SHAPE))
    (folder / "x" / "testbed.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"x/testbed\.json: cannot read: .* down --name x removes it"
    ):
        state.load("x")


def test_with_fault__and_without_leave_the_rest() -> None:
    first = BedState(SHAPE, up=True).with_faults({"plane:1": Fault(), "plane:2": Fault()})
    assert list(first.faults) == ["plane:1", "plane:2"]
    assert list(first.without("plane:1", "t1:1.0").faults) == ["plane:2"]
    assert first.without("plane:1").up


def test_names__are_those_that_were_begun(folder: Path) -> None:
    for name in ("b", "a"):
        state.save(name, BedState(SHAPE))
    (folder / "c").mkdir()
    assert state.names() == ["a", "b"]


def test_write_files__may_be_read_by_everyone(folder: Path) -> None:
    """Goal: the hosts' commands run as ordinary users, even if root keeps its files to itself."""
    plan = make_plan("x", SHAPE)
    before = os.umask(0o077)
    try:
        state.save("x", BedState(SHAPE))
        state.write_files(plan)
    finally:
        os.umask(before)
    assert state.config_path("x", "h1") == folder / "x" / "h1.toml"
    configs = {state.config_path("x", host): text for host, text in plan.configs.items()}
    for path, text in {**configs, state.hosts_path("x"): plan.hosts_file}.items():
        assert path.read_text() == text
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    state.forget("x")
    assert not folder.joinpath("x").exists()


def test_forget__removes_one_only() -> None:
    state.save("x", BedState(SHAPE))
    state.save("y", BedState(SHAPE))
    state.forget("x")
    state.forget("x")
    assert state.names() == ["y"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.EACCES, "permission denied; test beds require root"),
        (errno.EPERM, "operation not permitted; test beds require root"),
        (errno.ENOSPC, "no space left on device"),
        (errno.EROFS, "read-only file system"),
    ],
)
def test_lock__says_who_may(error: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setenv("MRC_RUN_DIR", "/proc/mrc")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError) as raised, state.lock():
        pass
    assert str(raised.value) == f"cannot write /proc/mrc: {said}"


def test_lock__is_free_again_after_an_error() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError), state.lock():
            raise RuntimeError


def test_forget__says_what_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.forget("x")  # there is none
    state.save("x", BedState(SHAPE))

    def rmtree(path: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="too many open files"):
        patch.setattr(shutil, "rmtree", rmtree)
        state.forget("x")
    state.forget("x")
    assert not (folder / "x").exists()
