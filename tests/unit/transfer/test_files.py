# SPDX-License-Identifier: Apache-2.0
"""Files at the receiver: names from a peer, temporary files, what --fsync syncs when, and what
--update asks for.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from transfer_ends import both, call_before, copied, make, names, receiving, sessions, tree_in

from mrc.transfer import files
from mrc.transfer.files import OutputDirectory, sync_file_system
from mrc.transfer.folders import SECOND_NS, Folder, Meta
from mrc.transfer.limits import (
    CopyError,
    FileError,
    FinalError,
    check_harmless,
    check_path,
    is_mark,
    local_name,
    mark_name,
    shown_name,
    temporary_name,
    wire_name,
)
from mrc.transfer.plan import plan_of
from mrc.transfer.results import FailedFile
from mrc.transfer.sender import SendOptions, send_plan
from mrc.transfer.session import TransferError

SAFE = [
    "a", "a.bin", "a..", " ", "a\\b", "~", "%2e%2e", "ä" * 127, "x" * 255, os.fsdecode(b"\xff\xfe"),
    "a.mrc-01234567", "(1)~#;$x",
]  # fmt: skip

ODD = [
    (".hidden", "begins with '.'"),
    ("...", "begins with '.'"),
    ("..a", "begins with '.'"),
    (".a.mrc-0123", "begins with '.'"),
    ("-rf", "begins with '-'"),
    ("a\nb", "control characters"),
    ("a\x1b[2J", "control characters"),
    ("a\u202etxt.exe", "control characters"),
    ("a\u200b", "control characters"),
]

UNSAFE = [
    ("", "not a file name"),
    (".", "not a file name"),
    ("..", "not a file name"),
    ("/", "absolute path"),
    ("/etc/passwd", "absolute path"),
    ("../a", "'..' is not a file name"),
    ("a/", "'' is not a file name"),
    ("a//b", "'' is not a file name"),
    ("./a", "'.' is not a file name"),
    ("a/../../b", "'..' is not a file name"),
    ("/".join("a" * 65), "deeper than 64"),
    ("/".join(["x" * 255] * 17), "longer than 4095 bytes"),
    ("a/.a.mrc-01234567", "temporary files"),
    ("a\0b", "or NUL"),
    ("\0", "or NUL"),
    ("x" * 256, "longer than 255 bytes"),
    ("ä" * 128, "longer than 255 bytes"),
    ("\ud800", "cannot be encoded"),
    (".a.mrc-01234567", "temporary files"),
    ("..mrc-00000000", "temporary files"),
]


@pytest.mark.parametrize("name", SAFE)
def test_create__safe_name(name: str, tmp_path: Path) -> None:
    assert check_path(name) == [name]
    with OutputDirectory(str(tmp_path)) as directory:
        directory.tree().create(name, 0).commit()
    assert os.listdir(tmp_path) == [name]


def test_check_path__counts_a_byte_as_one() -> None:
    """A byte that is no UTF-8 was counted as three."""
    path = os.fsdecode(b"/".join([b"\xff" * 200] * 7))
    assert len(check_path(path)) == 7
    with pytest.raises(FileError, match="longer than 4095 bytes"):
        check_path(os.fsdecode(b"/".join([b"\xff" * 200] * 21)))


@pytest.mark.parametrize(
    ("limit", "cause"),
    [
        (10, "may not write files of 20 bytes, but of 10.*ulimit -f"),
        (resource.RLIM_INFINITY, "file system of"),
    ],
)
def test_write__of_a_file_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, cause: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.EFBIG, "File too large")))
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 20)
        with pytest.raises(FileError, match=cause):
            target.write(0, memoryview(bytes(20)))
        target.close()


def test_check_harmless__one_error_for_a_folder() -> None:
    """It names the folder, in the same words for all that is below it."""
    for name in ("a/.git", "a/.git/b", "a/.git/c/-d"):
        with pytest.raises(FileError, match=r"^'a/\.git': begins with '\.'; mrc recv accepts"):
            check_harmless(name.split("/"))


@pytest.mark.parametrize(("name", "cause"), UNSAFE)
def test_create__refused_name(name: str, cause: str, tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path)) as directory, pytest.raises(FileError, match=cause):
        directory.tree().create(name, 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "cause"), ODD)
def test_create__odd_name_only_when_any_is_taken(name: str, cause: str, tmp_path: Path) -> None:
    with (
        OutputDirectory(str(tmp_path)) as directory,
        pytest.raises(FileError, match=f"{cause}; .*--any-name") as caught,
    ):
        directory.tree().create(name, 0)
    assert str(caught.value).isprintable()
    with OutputDirectory(str(tmp_path), any_name=True) as directory:
        directory.tree().create(name, 0).commit()
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["ä".encode(), "ä".encode("latin-1"), b"\xff\xfe", b"a"])
def test_names__are_bytes_in_every_locale(monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    in_utf_8, in_message = os.fsdecode(name), wire_name(os.fsdecode(name))
    assert local_name(in_message) == in_utf_8
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1"))
    monkeypatch.setattr(os, "fsdecode", lambda data: data.decode("latin-1"))
    assert wire_name(name.decode("latin-1")) == in_message
    assert local_name(in_message) == name.decode("latin-1")


def test_local_name__surrogate_that_is_no_byte() -> None:
    with pytest.raises(FileError, match="cannot be encoded"):
        local_name("\ud800")


@pytest.mark.parametrize(
    ("there", "told", "same"),
    [
        (7_000_000_009, 7_000_000_009, True),
        (7_000_000_000, 7_000_000_009, True),  # on a file system that keeps seconds
        (7_000_000_009, 7_000_000_000, False),
        (8_000_000_000, 7_000_000_009, False),
    ],
)
def test_has__a_file_of_this_date(tmp_path: Path, there: int, told: int, *, same: bool) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    os.utime(tmp_path / "a", ns=(0, there))
    (tmp_path / "folder").mkdir()
    with tree_in(tmp_path) as tree:
        assert tree.has("a", 5, told) is same
        assert not tree.has("a", 6, there) and not tree.has("b", 5, there)
        folder = (tmp_path / "folder").stat()
        assert not tree.has("folder", folder.st_size, folder.st_mtime_ns)


def test_target__final_name_only_after_commit(tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 5)
        (temporary,) = os.listdir(tmp_path)
        assert temporary.startswith(".a.mrc-")
        assert stat.S_IMODE(os.stat(tmp_path / temporary).st_mode) == 0o600
        target.write(0, memoryview(b"hello"))
        target.commit()
        assert os.listdir(tmp_path) == ["a"]
        assert (tmp_path / "a").read_bytes() == b"hello"
        assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o666 & ~directory.umask


def test_target__close_without_commit_leaves_nothing(tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 5)
        target.close()
        target.close()
        assert os.listdir(tmp_path) == []
        directory.tree().create("a", 0).close()


def test_temporary_name__has_whole_characters() -> None:
    """Some file systems take only names in UTF-8. A byte that is no character stays one."""
    for name in ("ä" * 127, "x" + "写" * 84, "写" * 85):
        made = temporary_name(name)
        assert len(made.encode()) <= 255
        assert shown_name(made) == name[: len(shown_name(made))] != ""
    odd = os.fsdecode(b"\xff" * 255)
    assert shown_name(temporary_name(odd)).strip("\udcff") == ""


def test_check_room__what_is_on_the_disk_needs_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 4096)
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 1 << 20)
        with pytest.raises(FinalError, match=r"a: no room for 1048576 bytes in .* \(4096 free\)"):
            target.check_room()
        target.write(0, memoryview(bytes(range(256)) * (1 << 12)))
        target.check_room()
        target.close()


def test_check_room__file_system_that_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: told)
    with OutputDirectory(str(tmp_path)) as directory:
        directory.tree().create("a", 1 << 60).check_room()


def test_write__takes_room_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserves nothing for an offer, then as much again as was written, up to a limit."""
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda _, at, size: taken.append((at, size)))
    monkeypatch.setattr("mrc.transfer.files.MAX_AHEAD_BYTES", 16)
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 100)
        target.check_room()
        assert taken == []
        for offset in range(0, 100, 4):
            target.write(offset, memoryview(b"abcd"))
        target.close()
    assert taken == [(0, 4), (4, 4), (8, 8), (16, 16), (32, 20), (52, 20), (72, 20), (92, 8)]


def test_write__in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an interrupted pwrite does, and any pwrite above 2 GiB."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 10)
        target.write(0, memoryview(b"0123456789"))
        target.commit()
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    ("call", "error", "cause"),
    [
        ("posix_fallocate", errno.ENOSPC, "a: no room for 10 bytes"),
        ("pwrite", errno.ENOSPC, "a: no room for 10 bytes"),
        ("pwrite", errno.EIO, "cannot write: input/output error"),
    ],
)
def test_write__fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int, cause: str
) -> None:
    broken = OSError(error, os.strerror(error))
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 10)
        with monkeypatch.context() as patched, pytest.raises(CopyError, match=cause) as raised:
            patched.setattr(os, call, Mock(side_effect=broken))
            target.write(0, memoryview(b"01234"))
        assert isinstance(raised.value, FinalError) is (error == errno.ENOSPC)
        target.close()
    assert os.listdir(tmp_path) == []


def test_create__existing_file_is_replaced_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with OutputDirectory(str(tmp_path), overwrite=True) as directory:
        target = directory.tree().create("a", 3)
        target.write(0, memoryview(b"new"))
        assert (tmp_path / "a").read_bytes() == b"old", "until it is complete"
        target.commit()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_create__directory_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (
        OutputDirectory(str(tmp_path), overwrite=True) as directory,
        pytest.raises(FileError, match="is a directory"),
    ):
        directory.tree().create("a", 0)


def test_create__same_name_from_two_senders(tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path), overwrite=True) as directory:
        first = directory.tree().create("a", 0)
        with pytest.raises(FileError, match="another sender"):
            directory.tree().create("a", 0)
        first.commit()
        directory.tree().create("a", 0).commit()


def test_create__symbolic_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a").symlink_to(outside)
    (inbox / "dangling").symlink_to(tmp_path / "nowhere")
    with OutputDirectory(str(inbox)) as directory:
        for name in ("a", "dangling"):
            with pytest.raises(FileError, match="exists"):
                directory.tree().create(name, 0)
    with OutputDirectory(str(inbox), overwrite=True) as directory:
        for name in ("a", "dangling"):
            directory.tree().create(name, 0).commit()
            assert not (inbox / name).is_symlink(), "the link is replaced, not its target"
    assert outside.read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()


def test_commit__name_taken_meanwhile(tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 0)
        (tmp_path / "a").write_bytes(b"theirs")
        with pytest.raises(FileError, match="exists"):
            target.commit()
        target.close()
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"theirs"


def test_output_directory__refusals(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, cause in ((tmp_path / "none", "create it"), (tmp_path / "file", "not a directory")):
        with pytest.raises(FileError, match=cause):
            OutputDirectory(str(path))


def test_sweep__removes_only_what_nobody_holds(tmp_path: Path) -> None:
    stale, other = ".b.mrc-00000001", ".b.mrc-xyz"
    for name in (stale, other, "c"):
        (tmp_path / name).touch()
    (tmp_path / ".d.mrc-00000002").symlink_to(tmp_path / "c")
    (tmp_path / ".e.mrc-00000003").mkdir()
    with OutputDirectory(str(tmp_path)) as receiver, OutputDirectory(str(tmp_path)) as directory:
        alive = receiver.tree().create("a", 1)
        before = set(os.listdir(tmp_path))
        assert directory.sweep() == ["b"]
        assert set(os.listdir(tmp_path)) == before - {stale}
        alive.write(0, memoryview(b"x"))
        alive.commit()
    assert (tmp_path / "a").read_bytes() == b"x"


def test_create__a_disk_without_inodes(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be room for bytes."""

    full = OSError(errno.ENOSPC, "No space left on device")
    room = os.statvfs_result((1, 1, 1, 1, 1, 40, 0, 0, 0, 255))
    with OutputDirectory(str(inbox)) as directory:
        monkeypatch.setattr(os, "open", Mock(side_effect=full))
        monkeypatch.setattr(os, "fstatvfs", lambda fd: room)
        with pytest.raises(FinalError, match=r"a: cannot be created in .*: .* no inodes left"):
            directory.tree().create("a", 1)
        monkeypatch.undo()


# ---- mrc recv --fsync; tests/virtual takes the power away ----------------------------------------


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
    with tree_in(inbox, fsync=True) as tree:
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
    assert names(inbox) == ["d"]


def test_finish_folder__its_mark_stays_until_it_is_synced(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tree_in(inbox, fsync=True) as tree:
        tree.create("d/a", 0).close()
        fails(monkeypatch, errno.EIO, folders=True)
        with pytest.raises(FinalError, match="inbox/d: cannot be synced: input/output error"):
            tree.finish_folder("d", META)
    assert mark_name("d") in names(inbox)


def test_link__its_folder_is_synced(inbox: Path, synced: list[str]) -> None:
    inbox.chmod(0o755)
    with tree_in(inbox, fsync=True) as tree:
        tree.sync()
        tree.make_link("a", "b")
        tree.sync()
    assert synced == ["all", "., 755:", "., 755: a"]


def test_same__also_what_was_there(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (inbox / "d").mkdir()
    (inbox / "d" / "a").write_bytes(b"hello")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(files, "sync_file_system", lambda fd: None)
    with tree_in(inbox, fsync=True) as tree:
        same = tree.same("d/a", 5)
        assert same is not None
        same.commit(META)
        same.close()
        tree.sync()
    assert synced == [f"{inbox}/d/a", f"{inbox}", f"{inbox}/d"]


def test_has__also_what_is_left_out(inbox: Path, synced: list[str]) -> None:
    (inbox / "a").write_bytes(b"hello")
    os.utime(inbox / "a", ns=(0, 1_000_000_007))
    with tree_in(inbox, fsync=True) as tree:
        assert not tree.has("a", 6, 1_000_000_007)
        for _ in range(2):
            tree.sync()
            assert synced.count("all") == 1, "once, for what earlier receivers have left"
        assert tree.has("a", 5, 1_000_000_007)
        tree.sync()
        assert synced.count("all") == 2
        tree.sync()
        assert synced.count("all") == 2


def test_receive__syncs_nothing_by_default(tmp_path: Path, inbox: Path, synced: list[str]) -> None:
    with tree_in(inbox) as tree:
        target = tree.create("d/a", 5)
        target.write(0, memoryview(b"hello"))
        target.commit(META)
        target.close()
        tree.finish_folder("d", META)
        tree.sync()
        tree.finish()
    assert synced == []


async def test_receive__a_file_that_cannot_be_synced(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, errno.EIO, folders=False)
    failed: list[FailedFile] = []
    await copied([make(tmp_path, "a", b"hello")], inbox, failed=failed, fsync=True)
    (error,) = [each.error for each in failed]
    assert error == f"{inbox}/a: cannot be completed: input/output error"
    assert names(inbox) == []


async def test_receive__a_folder_that_cannot_be_synced(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, errno.EIO, folders=True)
    sent, received = await copied([make(tmp_path, "a", b"hello")], inbox, fsync=True)
    assert isinstance(sent, TransferError), "the sender is not told that the file is stored"
    assert "inbox: cannot be synced: input/output error" in str(sent)
    assert isinstance(received, FinalError)


async def test_receive__a_file_system_without_fsync_for_folders(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, errno.EINVAL, folders=True)
    sent, _ = await copied([make(tmp_path, "a", b"hello")], inbox, fsync=True)
    assert [file.name for file in sent] == names(inbox) == ["a"]


def test_sync_all__fails(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(files, "sync_file_system", Mock(side_effect=broken))
    with tree_in(inbox, fsync=True) as tree:
        for _ in range(2):
            with pytest.raises(FinalError, match="inbox: cannot be synced: input/output error"):
                tree.sync()


def test_sync_file_system(inbox: Path) -> None:
    fd = os.open(inbox, os.O_RDONLY)
    sync_file_system(fd)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_file_system(fd)


# ---- --update asks about files by what the sender has listed -------------------------------------


async def test_send_plan__update_reads_nothing_again(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may answer slowly about many files, while the receiver waits for an offer."""
    paths = [make(tmp_path, name, name.encode()) for name in ("a", "b")]
    old = make(inbox, "b", b"b")
    os.utime(old, ns=(0, os.stat(paths[1]).st_mtime_ns))
    plan = plan_of(paths)

    def found_once(path: object, **_: object) -> None:
        assert path not in paths, "it is in the plan"

    async def sending() -> list[str]:
        call_before(monkeypatch, os, "stat", found_once)
        found = send_plan(ends.sender, plan, SendOptions(update=True))
        return [file.name async for batch in found for file in batch.files]

    async with sessions() as ends:
        sent, _ = await both(sending(), receiving(ends.receiver, inbox))
    assert sent == ["a"] and plan.unchanged == 1 and names(inbox) == ["a", "b"]


@pytest.mark.parametrize(
    "keeps",
    [lambda ns: max(ns, -(1 << 31) * SECOND_NS), lambda ns: ns // (2 * SECOND_NS) * 2 * SECOND_NS],
    ids=["since 1901", "every second second"],
)
def test_has__a_date_that_the_file_system_does_not_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: Callable[[int], int]
) -> None:
    """It was sent again each time."""
    utime, date = os.utime, -(1 << 31) * SECOND_NS - 5_000_000_007
    monkeypatch.setattr(
        os, "utime", lambda file, *, ns: utime(file, ns=(keeps(ns[0]), keeps(ns[1])))
    )
    os.utime(make(tmp_path, "a", b"1"), ns=(date, date))
    with tree_in(tmp_path) as tree:
        assert tree.has("a", 1, date)
        assert not tree.has("a", 1, 0)
    assert names(tmp_path) == ["a"]
