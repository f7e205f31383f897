# SPDX-License-Identifier: Apache-2.0
"""The device node of `mrc agent --node`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrc.agent.device import device_file
from mrc.errors import ConfigError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


@needs_root
def test_node__is_there_while_the_agent_runs(tmp_path: Path) -> None:
    path = tmp_path / "infiniband" / "mrc0"
    with device_file(path):
        assert path.is_char_device() and path.stat().st_mode & 0o777 == 0o666
    assert not path.parent.exists()


@needs_root
def test_node__of_a_killed_agent_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "infiniband" / "mrc0"
    path.parent.mkdir()
    (path.parent / "other").touch()
    os.mknod(path, 0o020666, os.makedev(1, 3))
    with device_file(path):
        assert path.is_char_device()
    assert not path.exists() and path.parent.exists()  # another's file is there


@needs_root
def test_node__something_else_is_there(tmp_path: Path) -> None:
    path = tmp_path / "infiniband" / "mrc0"
    path.parent.mkdir()
    path.write_text("a NIC's")
    with pytest.raises(ConfigError, match="File exists"), device_file(path):
        pass
    assert path.read_text() == "a NIC's"


def test_node__not_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mknod(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", mknod)
    with (
        pytest.raises(ConfigError, match="only root can make it"),
        device_file(tmp_path / "d" / "mrc0"),
    ):
        pass
