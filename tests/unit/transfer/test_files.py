# SPDX-License-Identifier: Apache-2.0
"""Names from a peer, and temporary files left by a receiver."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from mrc.transfer.files import OutputDirectory
from mrc.transfer.folders import Folder
from mrc.transfer.limits import (
    CopyError,
    FileError,
    FinalError,
    check_harmless,
    check_path,
    local_name,
    shown_name,
    temporary_name,
    wire_name,
)

SAFE = [
    "a",
    "a.bin",
    "a..",
    " ",
    "a\\b",
    "~",
    "%2e%2e",
    "ä" * 127,
    "x" * 255,
    os.fsdecode(b"\xff\xfe"),
    "a.mrc-01234567",
    "(1)~#;$x",
]

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
    [(10, "may not write files of 20 bytes, but of 10.*ulimit -f"), (-1, "file system of")],
)
def test_write__of_a_file_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, cause: str
) -> None:
    def too_large(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(os, "pwrite", too_large)
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
    with OutputDirectory(str(tmp_path)) as directory:
        tree = directory.tree()
        assert tree.has("a", 5, told) is same
        assert not tree.has("a", 6, there) and not tree.has("b", 5, there)
        folder = (tmp_path / "folder").stat()
        assert not tree.has("folder", folder.st_size, folder.st_mtime_ns)
        tree.close()


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


def test_target__longest_name_still_has_a_temporary_one(tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("ä" * 127, 1)
        target.commit()
    assert os.listdir(tmp_path) == ["ä" * 127]


def test_temporary_name__has_whole_characters() -> None:
    """Some file systems take only names in UTF-8. A byte that is no character stays one."""
    for name in ("ä" * 127, "x" + "写" * 84, "写" * 85):
        made = temporary_name(name)
        assert len(made.encode()) <= 255
        assert shown_name(made) == name[: len(shown_name(made))] != ""
    odd = os.fsdecode(b"\xff" * 255)
    assert shown_name(temporary_name(odd)).strip("\udcff") == ""


def test_check_room__no_room(tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path)) as directory:
        directory.tree().create("b", 1).check_room()
        target = directory.tree().create("a", 1 << 60)
        with pytest.raises(
            FinalError, match=r"a: no room for 1152921504606846976 bytes in .* free"
        ):
            target.check_room()
        target.close()


def test_check_room__what_is_on_the_disk_needs_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 4096)
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 1 << 20)
        with pytest.raises(FinalError, match="a: no room"):
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


def test_write__no_room_for_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _at: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 10)
        with pytest.raises(FinalError, match="a: no room for 10 bytes"):
            target.write(0, memoryview(b"01234"))
        target.close()


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
    ("error", "cause"),
    [(errno.ENOSPC, "no room for 10 bytes"), (errno.EIO, "cannot write: input/output error")],
)
def test_write__fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, cause: str
) -> None:
    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(error, os.strerror(error))

    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 10)
        with monkeypatch.context() as patched, pytest.raises(CopyError, match=cause):
            patched.setattr(os, "pwrite", pwrite)
            target.write(0, memoryview(b"0123456789"))
        target.close()
    assert os.listdir(tmp_path) == []


def test_create__existing_file_is_kept_without_overwrite(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with (
        OutputDirectory(str(tmp_path)) as directory,
        pytest.raises(FileError, match=r"exists in .*--overwrite"),
    ):
        directory.tree().create("a", 0)
    assert (tmp_path / "a").read_bytes() == b"old"


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


def test_create__its_temporary_is_locked(tmp_path: Path) -> None:
    with OutputDirectory(str(tmp_path)) as directory:
        target = directory.tree().create("a", 1)
        with (tmp_path / os.listdir(tmp_path)[0]).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        target.close()


def test_create__a_disk_without_inodes(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be room for bytes."""

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    room = os.statvfs_result((1, 1, 1, 1, 1, 40, 0, 0, 0, 255))
    with OutputDirectory(str(inbox)) as directory:
        monkeypatch.setattr(os, "open", full)
        monkeypatch.setattr(os, "fstatvfs", lambda fd: room)
        with pytest.raises(FinalError, match=r"a: cannot be created in .*: .* no inodes left"):
            directory.tree().create("a", 1)
        monkeypatch.undo()
