# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mrc.linux.files import check_writable, write_whole


def test_write_whole__replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"after", mode=0o600)
    assert (tmp_path / "file").read_bytes() == b"after"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_write_whole__a_new_file_is_not_replaced(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"first", new=True)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", b"second", new=True)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("new", [False, True])
def test_write_whole__a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, new: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "elsewhere")

    monkeypatch.setattr("os.link" if new else "os.replace", full)
    before = b"" if new else b"before"
    if not new:
        (tmp_path / "file").write_bytes(before)
    with pytest.raises(OSError, match="No space") as raised:
        write_whole(tmp_path / "file", b"after", new=new)
    assert raised.value.filename == str(tmp_path / "file")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [before] * (not new)


def test_write_whole__into_a_device() -> None:
    write_whole(Path(os.devnull), b"text")
    assert Path(os.devnull).is_char_device()


def test_check_writable__leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    check_writable(None, tmp_path / "file", str(tmp_path / "new"), os.devnull)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"before")]


@pytest.mark.parametrize(("name", "error"), [("a/b", FileNotFoundError), ("", IsADirectoryError)])
def test_check_writable__raises_as_write_whole(
    tmp_path: Path, name: str, error: type[OSError]
) -> None:
    for write in (check_writable, lambda path: write_whole(path, b"")):
        with pytest.raises(error) as raised:
            write(tmp_path / name)
        assert raised.value.filename == str(tmp_path / name)
