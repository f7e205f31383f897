# SPDX-License-Identifier: Apache-2.0
"""`mrc recv --fsync`: what is on the disk when, and disks that cannot sync.

`tests/virtual` takes the power away.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from transfer_ends import both, make, names, receiving, sending, sessions

from mrc.transfer import files
from mrc.transfer.files import OutputDirectory, sync_file_system
from mrc.transfer.folders import Meta
from mrc.transfer.limits import FinalError, is_mark, mark_name
from mrc.transfer.results import FailedFile
from mrc.transfer.session import TransferError

META = Meta(0o751, 1_000_000_007)


@pytest.fixture
def synced(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced: a file with its bytes and mode, a folder with its mode and what it holds."""
    seen: list[str] = []

    def fsync(fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            path = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), inbox)
            held = ["mark" if is_mark(name) else name for name in sorted(os.listdir(fd))]
            seen.append(" ".join([f"{path}, {stat.S_IMODE(status.st_mode):o}:", *held]))
        else:
            data = os.pread(fd, status.st_size, 0).decode()
            seen.append(f"{data}, {stat.S_IMODE(status.st_mode):o}, {int(status.st_mtime)}")
            assert all(name.startswith(".") for _, _, files in os.walk(inbox) for name in files)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(files, "sync_file_system", lambda fd: seen.append("all"))
    return seen


def fails(monkeypatch: pytest.MonkeyPatch, error: int, *, folders: bool) -> None:
    """fsync fails, of files or of folders."""

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) == folders:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fsync)


def test_target__synced_before_it_has_its_name_and_its_folders_after(
    inbox: Path, synced: list[str]
) -> None:
    inbox.chmod(0o755)
    with OutputDirectory(str(inbox), fsync=True) as directory:
        tree = directory.tree()
        target = tree.create("d/a", 5)
        target.write(0, memoryview(b"hello"))
        target.commit(META)
        target.close()
        assert synced == ["hello, 751, 1"]
        tree.sync()
        assert synced[1:] == ["all", "., 755: mark d", "d, 700: a"]
        tree.finish_folder("d", META)
        assert synced[4:] == ["d, 751: a"]
        tree.finish()
        tree.close()
    assert names(inbox) == ["d"]


def test_finish_folder__its_mark_stays_until_it_is_synced(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OutputDirectory(str(inbox), fsync=True) as directory:
        tree = directory.tree()
        tree.create("d/a", 0).close()
        fails(monkeypatch, errno.EIO, folders=True)
        with pytest.raises(FinalError, match="inbox/d: cannot be synced: input/output error"):
            tree.finish_folder("d", META)
        tree.close()
    assert mark_name("d") in names(inbox)


def test_link__its_folder_is_synced(inbox: Path, synced: list[str]) -> None:
    inbox.chmod(0o755)
    with OutputDirectory(str(inbox), fsync=True) as directory:
        tree = directory.tree()
        tree.sync()
        tree.make_link("a", "b")
        tree.sync()
        tree.close()
    assert synced == ["all", "., 755:", "., 755: a"]


def test_same__also_what_was_there(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (inbox / "d").mkdir()
    (inbox / "d" / "a").write_bytes(b"hello")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(files, "sync_file_system", lambda fd: None)
    with OutputDirectory(str(inbox), fsync=True) as directory:
        tree = directory.tree()
        same = tree.same("d/a", 5)
        assert same is not None
        same.commit(META)
        same.close()
        tree.sync()
        tree.close()
    assert synced == [f"{inbox}/d/a", f"{inbox}", f"{inbox}/d"]


def test_has__also_what_is_left_out(inbox: Path, synced: list[str]) -> None:
    (inbox / "a").write_bytes(b"hello")
    os.utime(inbox / "a", ns=(0, 1_000_000_007))
    with OutputDirectory(str(inbox), fsync=True) as directory:
        tree = directory.tree()
        assert not tree.has("a", 6, 1_000_000_007)
        for _ in range(2):
            tree.sync()
            assert synced.count("all") == 1, "once, for what earlier receivers have left"
        assert tree.has("a", 5, 1_000_000_007)
        tree.sync()
        assert synced.count("all") == 2
        tree.sync()
        assert synced.count("all") == 2
        tree.close()


def test_receive__syncs_nothing_by_default(tmp_path: Path, inbox: Path, synced: list[str]) -> None:
    with OutputDirectory(str(inbox)) as directory:
        tree = directory.tree()
        target = tree.create("d/a", 5)
        target.write(0, memoryview(b"hello"))
        target.commit(META)
        target.close()
        tree.finish_folder("d", META)
        tree.sync()
        tree.finish()
        tree.close()
    assert synced == []


async def test_receive__a_file_that_cannot_be_synced(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, errno.EIO, folders=False)
    failed: list[FailedFile] = []
    async with sessions() as ends:
        await both(
            sending(ends.sender, [make(tmp_path, "a", b"hello")], failed=failed),
            receiving(ends.receiver, inbox, fsync=True),
        )
    assert [each.error for each in failed] == [
        f"{inbox}/a: cannot be completed: input/output error"
    ]
    assert names(inbox) == []


async def test_receive__a_folder_that_cannot_be_synced(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, errno.EIO, folders=True)
    async with sessions() as ends:
        sent, received = await both(
            sending(ends.sender, [make(tmp_path, "a", b"hello")]),
            receiving(ends.receiver, inbox, fsync=True),
        )
    assert isinstance(sent, TransferError), "the sender is not told that the file is stored"
    assert "inbox: cannot be synced: input/output error" in str(sent)
    assert isinstance(received, FinalError)


async def test_receive__a_file_system_without_fsync_for_folders(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, errno.EINVAL, folders=True)
    async with sessions() as ends:
        sent, _ = await both(
            sending(ends.sender, [make(tmp_path, "a", b"hello")]),
            receiving(ends.receiver, inbox, fsync=True),
        )
    assert [file.name for file in sent] == names(inbox) == ["a"]


def test_sync_all__fails(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "sync_file_system", broken)
    with OutputDirectory(str(inbox), fsync=True) as directory:
        tree = directory.tree()
        for _ in range(2):
            with pytest.raises(FinalError, match="inbox: cannot be synced: input/output error"):
                tree.sync()
        tree.close()


def test_sync_file_system(inbox: Path) -> None:
    fd = os.open(inbox, os.O_RDONLY)
    sync_file_system(fd)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_file_system(fd)
