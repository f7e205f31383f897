# SPDX-License-Identifier: Apache-2.0
"""A folder gets its mode and date also when its transfer was interrupted and went on later."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import USER, needs_root

from mrc.transfer.files import OutputDirectory
from mrc.transfer.folders import Mark, Meta
from mrc.transfer.limits import mark_name

Make = Callable[[Path, pytest.MonkeyPatch], object]
META = Meta(0o751, 1_000_000_007)


def made(inbox: Path, *, until: str, **options: bool) -> None:
    """A session that makes a/b and a file in it; `until` is the last thing that it does."""
    with OutputDirectory(str(inbox), **options) as directory:
        tree = directory.tree()
        target = tree.create("a/b/x", 0)
        if until != "file":
            target.commit()
        target.close()
        for folder in ("a/b", "a"):
            if until == "all":
                tree.finish_folder(folder, META)
        if until == "bye":
            tree.finish()
        tree.close()


def looks(path: Path) -> tuple[int, int]:
    status = path.stat()
    return stat.S_IMODE(status.st_mode), status.st_mtime_ns


@pytest.mark.parametrize("times", [1, 3])
def test_finish_folder__after_interruptions(inbox: Path, times: int) -> None:
    for _ in range(times):
        made(inbox, until="file")
        assert looks(inbox / "a/b")[0] == 0o700
        with OutputDirectory(str(inbox)) as directory:
            assert directory.sweep() == []  # each new receiver sweeps
    made(inbox, until="all")
    assert looks(inbox / "a") == looks(inbox / "a/b") == (META.mode, META.mtime_ns)
    assert os.listdir(inbox) == ["a"]


@pytest.mark.parametrize("lost", ["a/b/y", "a/b/c/y", "a/b"])
def test_finish_folder__that_lacks_an_entry(inbox: Path, lost: str) -> None:
    """The transfer that stores the entry renews the date of its folder, so it sets it again."""
    holder = Path(lost).parent if lost != "a/b/c/y" else Path("a/b")
    for _ in range(2):
        with OutputDirectory(str(inbox)) as directory:
            tree = directory.tree()
            tree.create("a/z", 0).close()
            if holder != Path("a"):
                tree.create("a/b/x", 0).close()
            tree.lacks(lost)
            if lost == "a/b/c/y":
                tree.lacks("a/b/c")  # it cannot be made either
            for folder in ("a/b", "a"):
                if Path(folder) == holder or folder == "a":
                    tree.finish_folder(folder, META)
            tree.close()
            assert directory.sweep() == []
        assert looks(inbox / holder) == (META.mode, META.mtime_ns)
        os.utime(inbox / holder)
    made(inbox, until="all")
    assert looks(inbox / "a") == looks(inbox / holder) == (META.mode, META.mtime_ns)
    assert os.listdir(inbox) == ["a"]


def test_finish_folder__one_that_another_program_has_made(inbox: Path) -> None:
    made(inbox, until="file")
    (inbox / "a/b").rmdir()
    (inbox / "a/b").mkdir()
    (inbox / "a/b").chmod(0o711)  # perhaps with the same inode
    made(inbox, until="all")
    assert looks(inbox / "a/b")[0] == 0o711
    assert looks(inbox / "a") == (META.mode, META.mtime_ns)
    assert os.listdir(inbox) == ["a"]


@pytest.mark.parametrize("left", [b"", bytes(16)])
def test_finish_folder__the_mark_does_not_name_its_folder(inbox: Path, left: bytes) -> None:
    """The receiver was killed before, or lost its power before that was on the disk."""
    made(inbox, until="file")
    for path in ("a", "a/b"):
        (inbox / mark_name(path)).write_bytes(left)
    made(inbox, until="all")
    assert looks(inbox / "a") == looks(inbox / "a/b") == (META.mode, META.mtime_ns)


def unlink_while_it_is_locked(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another receiver completes the folder meanwhile."""
    mark.touch()
    monkeypatch.setattr("fcntl.flock", lambda *_: mark.unlink())


def make_it_another_user_s(mark: Path, _: pytest.MonkeyPatch) -> None:
    mark.touch()
    os.chown(mark, USER, -1)


@pytest.mark.parametrize(
    "make",
    [
        lambda mark, _: os.mkfifo(mark),
        lambda mark, _: mark.symlink_to("file"),
        lambda mark, _: mark.mkdir(),
        unlink_while_it_is_locked,
        pytest.param(make_it_another_user_s, marks=needs_root),
    ],
    ids=["fifo", "link", "folder", "gone", "of another user"],
)
def test_of__what_is_no_mark_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    (tmp_path / "file").touch()
    make(tmp_path / mark_name("a"), monkeypatch)
    (tmp_path / "a").mkdir(0o700)
    root, folder = (os.open(path, os.O_RDONLY) for path in (tmp_path, tmp_path / "a"))
    before = os.listdir("/proc/self/fd")
    assert Mark.of(root, "a", folder) is None
    assert os.listdir("/proc/self/fd") == before
    os.close(root)
    os.close(folder)


def test_finish__a_folder_whose_end_is_not_sent(inbox: Path) -> None:
    """As with --name a/b/x, which makes two folders."""
    made(inbox, until="bye")
    umask = os.umask(0)
    os.umask(umask)
    assert looks(inbox / "a")[0] == looks(inbox / "a/b")[0] == 0o777 & ~umask
    assert os.listdir(inbox) == ["a"]


def test_finish_folder__two_sessions(inbox: Path) -> None:
    """Only the one that has made the folder completes it."""
    with OutputDirectory(str(inbox)) as directory:
        first, second = directory.tree(), directory.tree()
        first.create("a/x", 0).close()
        second.create("a/y", 0).close()
        second.finish_folder("a", Meta(0o777, 0))
        assert looks(inbox / "a")[0] == 0o700
        first.finish_folder("a", META)
        assert looks(inbox / "a") == (META.mode, META.mtime_ns)
        for tree in (first, second):
            tree.close()
    assert os.listdir(inbox) == ["a"]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"resume": False}, {"resume": False}),
        ({"resume": False}, {}),
        ({"overwrite": True}, {"overwrite": True}),
        ({"resume": False, "overwrite": True}, {"overwrite": True}),
        ({}, {"overwrite": True}),
    ],
)
def test_finish_folder__whatever_the_receivers_options(
    inbox: Path, first: dict[str, bool], then: dict[str, bool]
) -> None:
    """mrc recv --no-resume keeps no bytes, --overwrite (and --update of a sender) replaces files; a
    folder that it has made is complete only later.
    """
    made(inbox, until="file", **first)
    with OutputDirectory(str(inbox), **then) as directory:
        assert directory.sweep() == []
    made(inbox, until="all", **then)
    assert looks(inbox / "a") == looks(inbox / "a/b") == (META.mode, META.mtime_ns)
    assert os.listdir(inbox) == ["a"]
