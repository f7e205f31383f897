# SPDX-License-Identifier: Apache-2.0
"""Files that a sender opens: those it refuses, and those that change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mrc.transfer.limits import FileError, StoppedError
from mrc.transfer.messages import Digest
from mrc.transfer.plan import FileChangedError, SourceFile


def test_source__is_mapped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with SourceFile(str(tmp_path / "a")) as source:
        assert (source.bytes, source.map[:]) == (10, b"0123456789")
        assert not source.grew(b"not read again")


def test_source__empty_file_has_no_mapping(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with SourceFile(str(tmp_path / "a")) as source:
        assert source.bytes == 0
        assert not source.grew(b"not read again")


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
            SourceFile(str(path))
        assert os.listdir("/proc/self/fd") == before, "nothing stays open"


def test_close__twice_closes_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    source = SourceFile(str(tmp_path / "a"))
    source.close()
    with (tmp_path / "a").open() as other:  # gets the same descriptor
        source.close()
        assert other.read() == "1"


BYTES = b"0123456789"


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[tuple[SourceFile, Path]]:
    path = tmp_path / "a"
    path.write_bytes(BYTES)
    os.utime(path, ns=(0, 0))
    with SourceFile(str(path)) as source:
        yield source, path


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda path: os.truncate(path, 5), "it shrank"),
        (lambda path: path.write_bytes(b"9876543210"), "it was written to"),
        (lambda path: path.write_bytes(b"9876543210 and more"), "it was written to"),
    ],
    ids=["shrinks", "rewritten", "rewritten and grows"],
)
def test_grew__its_first_bytes_are_others(
    changing: tuple[SourceFile, Path], change: Callable[[Path], object], how: str
) -> None:
    source, path = changing
    change(path)
    with pytest.raises(FileChangedError, match=how):
        source.grew(Digest(BYTES).digest())


@pytest.mark.parametrize(("more", "grew"), [(b"", False), (b"and more", True)])
def test_grew__its_first_bytes_are_the_same(
    changing: tuple[SourceFile, Path], more: bytes, grew: bool
) -> None:
    """`touch`, and a program that appends to a log."""
    source, path = changing
    path.write_bytes(BYTES + more)
    assert source.grew(Digest(BYTES).digest()) == grew


def test_grew__told_to_stop(changing: tuple[SourceFile, Path]) -> None:
    source, path = changing
    path.touch()
    source.stop()
    with pytest.raises(StoppedError):
        source.grew(Digest(BYTES).digest())
