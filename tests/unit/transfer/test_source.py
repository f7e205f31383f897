# SPDX-License-Identifier: Apache-2.0
"""Files that a sender opens: those it refuses, and those that change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrc.transfer.names import FileError
from mrc.transfer.source import FileChangedError, Source


def test_source__is_mapped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with Source(str(tmp_path / "a")) as source:
        assert (source.bytes, source.map[:]) == (10, b"0123456789")
        source.check_unchanged()


def test_source__empty_file_has_no_mapping(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with Source(str(tmp_path / "a")) as source:
        assert source.bytes == 0
        source.check_unchanged()


def test_source__refusals(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, cause in (
        (tmp_path / "missing", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / "fifo", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("/proc/self/status", "its size is unknown"),
        (tmp_path / "a\0b", "embedded null"),
    ):
        before = os.listdir("/proc/self/fd")
        with pytest.raises(FileError, match=cause):
            Source(str(path))
        assert os.listdir("/proc/self/fd") == before, "nothing stays open"


def test_close__twice_closes_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    source = Source(str(tmp_path / "a"))
    source.close()
    with (tmp_path / "a").open() as other:  # gets the same descriptor
        source.close()
        assert other.read() == "1"


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda path: os.truncate(path, 5), "it shrank"),
        (lambda path: os.truncate(path, 15), "it grew"),
        (lambda path: path.write_bytes(b"9876543210"), "it was written to"),
    ],
    ids=["shrinks", "grows", "rewritten"],
)
def test_check_unchanged__after_a_change(tmp_path: Path, change: object, how: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(0, 0))
    with Source(str(path)) as source:
        change(path)  # type: ignore[operator]
        with pytest.raises(FileChangedError, match=how):
            source.check_unchanged()
