# SPDX-License-Identifier: Apache-2.0
"""Folders and packs over two fake QPs: contents, modes, times, links and names that lead out; holes
of sparse files; folders whose transfer was interrupted.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from processes import USER, needs_root
from transfer_ends import (
    accepted,
    both,
    chunks,
    copied,
    make,
    names,
    receiving,
    sending,
    sessions,
    tree_in,
)

from mrc.errors import MrcError, ProtocolError
from mrc.events import Immediate
from mrc.transfer.files import OutputDirectory
from mrc.transfer.folders import Folder, Mark, Meta
from mrc.transfer.limits import CHUNK_BYTES, FileError, mark_name
from mrc.transfer.messages import (
    FRAME,
    Bye,
    Digest,
    FailedFiles,
    Holes,
    Offer,
    OfferDone,
    Pack,
    PackedFile,
    PackedFolder,
    Refuse,
    Stored,
    chunk_imm,
    put_header,
    seal,
)
from mrc.transfer.plan import FileEntry, excluding, holes_of, plan_of
from mrc.transfer.receiver import receive_files
from mrc.transfer.results import FailedFile, StoredBatch, sent_bytes
from mrc.transfer.sender import send_plan
from mrc.transfer.session import TransferSession


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "empty").mkdir(parents=True)
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "a").write_bytes(b"12")
    (top / "nothing").touch()
    (top / "sub" / "deep" / "b").write_bytes(os.urandom(3 * CHUNK_BYTES))  # several chunks
    (top / "sub" / "big").write_bytes(os.urandom(5 * CHUNK_BYTES))  # an offer of its own
    (top / "a").chmod(0o4751)
    (top / "sub").chmod(0o750)
    for path in (top / "a", top / "empty", top / "sub"):
        os.utime(path, ns=(0, 1_000_000_007))
    return top


def found(top: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Mode, time and bytes of each file and folder."""
    out = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else None
        out[str(path.relative_to(top))] = (status.st_mode, status.st_mtime_ns, data)
    return out


async def test_send_plan__folder(tree: Path, inbox: Path) -> None:
    sent, got = await copied([str(tree)], inbox)
    expected = found(tree)
    mode, mtime, data = expected["a"]
    expected["a"] = (mode & ~stat.S_ISUID, mtime, data)
    assert found(inbox / "tree") == expected
    assert [file.name for file in sent] == [file.name for file in got]
    assert [file.digest for file in sent] == [file.digest for file in got]
    assert "tree/sub/deep/b" in [file.name for file in sent]


async def test_send_plan__modes_without_what_the_receivers_umask_takes(
    tmp_path: Path, inbox: Path
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    os.chmod(make(top, "small", b"1"), 0o777)
    os.chmod(make(top, "large", bytes(5 * CHUNK_BYTES)), 0o666)
    os.chmod(top, 0o777)
    before = os.umask(0o027)
    try:
        await copied([str(top)], inbox)
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE(mode) for name, (mode, *_) in found(inbox).items()}
    assert modes == {"top": 0o750, "top/small": 0o750, "top/large": 0o640}


@pytest.mark.parametrize("year", [1903, 2300])
async def test_send_plan__dates_beyond_64_bits_of_nanoseconds(
    tmp_path: Path, inbox: Path, year: int
) -> None:
    """A large file has its date in an offer, a small one and a folder in a pack."""
    seconds = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    top = tmp_path / "top"
    top.mkdir()
    files = [make(top, "small", b"1"), make(top, "large", bytes(5 * CHUNK_BYTES))]
    for path in (*files, str(top)):
        os.utime(path, ns=(0, seconds * 10**9 + 7))
    await copied([str(top)], inbox)
    assert found(inbox / "top") == found(top)
    assert (inbox / "top").stat().st_mtime_ns == top.stat().st_mtime_ns == seconds * 10**9 + 7


@pytest.mark.parametrize(("suffix", "inside"), [("", "tree/"), ("/", "tree/"), ("/.", "")])
async def test_send_plan__slash_and_dot(tree: Path, inbox: Path, suffix: str, inside: str) -> None:
    plan = plan_of([f"{tree}{suffix}"])
    assert {entry.name for entry in plan.entries} >= {f"{inside}a", f"{inside}empty"}


async def test_send_plan__many_files_take_few_messages(tmp_path: Path, inbox: Path) -> None:
    top = tmp_path / "many"
    top.mkdir()
    for n in range(300):
        make(top, f"f{n}", b"%d" % n)
    async with sessions() as ends:
        sent, _ = await both(sending(ends.sender, [str(top)]), receiving(ends.receiver, inbox))
        assert len(ends.out.posted) < 20
    assert len(sent) == 300
    assert all((inbox / "many" / f"f{n}").read_bytes() == b"%d" % n for n in range(300))


async def test_receive_files__folder_into_an_existing_one(tree: Path, inbox: Path) -> None:
    (inbox / "tree").mkdir(mode=0o711)
    (inbox / "tree" / "mine").write_bytes(b"kept")
    await copied([str(tree)], inbox)
    assert (inbox / "tree" / "mine").read_bytes() == b"kept"
    assert (inbox / "tree" / "a").read_bytes() == b"12"
    assert stat.S_IMODE((inbox / "tree").stat().st_mode) == 0o711, "an existing folder keeps it"


def test_plan_of__links_and_special_files(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    outside = make(tmp_path, "outside", b"123")
    (top / "link").symlink_to(outside)
    (top / "lost").symlink_to("nowhere")
    os.mkfifo(top / "fifo")
    plan = plan_of([str(top)])
    assert [entry.name for entry in plan.entries] == ["top/sub", "top"]
    assert [line.rpartition("/")[2] for line in plan.skipped] == [
        "fifo is a FIFO",
        "link is a symbolic link",
        "lost is a symbolic link",
    ]
    followed = plan_of([str(top)], follow=True)
    assert [entry.name for entry in followed.entries] == ["top/link", "top/sub", "top"]
    assert followed.bytes == 3 and len(followed.skipped) == 2
    (top / "sub" / "up").symlink_to(top)
    followed = plan_of([str(top)], follow=True)
    assert followed.bytes == 3
    assert [each.name for each in followed.failed] == ["top/sub/up"]
    assert "leads back" in followed.failed[0].error


def test_plan_of__without_what_is_excluded(tmp_path: Path) -> None:
    """Patterns count from each folder that is named; an excluded folder is not read."""
    for path in ("a.o", "keep.o", "src/b.o", "src/b.c", "src/build/x", "build", "top/y", "src/top"):
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).touch()
    rules = excluding(["*.o", "!keep.o", "build/", "/top"])
    plan = plan_of([f"{tmp_path}/tree", make(tmp_path, "named.o", b"")], exclude=rules)
    files = [entry.name for entry in plan.entries if isinstance(entry, FileEntry)]
    assert files == ["tree/build", "tree/keep.o", "tree/src/b.c", "tree/src/top", "named.o"]
    assert plan.excluded == 4
    with pytest.raises(ValueError, match="!"):
        excluding(["!"])


@pytest.mark.parametrize("paths", [("x/a", "y/a"), ("x/.", "y/.")])
def test_plan_of__two_of_one_name(tmp_path: Path, paths: tuple[str, str]) -> None:
    """Files, or the contents of folders."""
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder, "a", b"12")
    assert plan_of([f"{tmp_path}/{paths[0]}"]).bytes == 2
    with pytest.raises(FileError, match="would both be stored as a"):
        plan_of([f"{tmp_path}/{path}" for path in paths])


async def test_send_plan__sparse_file_arrives_sparse(tmp_path: Path, inbox: Path) -> None:
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(30 << 20)
        file.seek(8 << 20)
        file.write(b"data")
    await copied([str(path)], inbox)
    assert (inbox / "holes").read_bytes() == path.read_bytes()
    assert (inbox / "holes").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("name", ["out/x", "out"])
def test_tree__symbolic_link_leads_nowhere(tmp_path: Path, inbox: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    (inbox / "out").symlink_to(outside)
    with tree_in(inbox, overwrite=True) as tree:
        with pytest.raises(FileError, match="follows no symbolic links"):
            tree.create("out/x", 0)
        with pytest.raises(FileError, match="follows no symbolic links"):
            tree.finish_folder(name, Meta(0o777, 0))
    assert os.listdir(outside) == [] and stat.S_IMODE(outside.stat().st_mode) == 0o711


def test_tree__folder_replaced_by_a_link_meanwhile(tmp_path: Path, inbox: Path) -> None:
    """The receiver holds the folder itself, so the file goes there and not where the link leads."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with tree_in(inbox) as tree:
        target = tree.create("a/x", 0)
        (inbox / "a").rename(inbox / "moved")
        (inbox / "a").symlink_to(outside)
        target.commit()
        target.close()
    assert os.listdir(outside) == [] and os.listdir(inbox / "moved") == ["x"]


# ---- A hostile sender -----------------------------------------------------------------------


def packed(name: bytes = b"a", data: bytes = b"", **changes: Any) -> tuple[PackedFile, bytes]:
    about = {
        "name": name, "size": len(data), "offset": 0, "length": len(data), "sparse": False,
        "mode": None, "mtime": None, **changes,
    }  # fmt: skip
    end = Digest(data).digest() if about["offset"] + about["length"] == about["size"] else b""
    return PackedFile(**about), data + end


def chunk_with(*records: tuple[PackedFile | PackedFolder, bytes]) -> bytes:
    chunk = bytearray(1 << 16)
    view = memoryview(chunk)
    payload, at = view[FRAME.size :], 0
    for record, data in records:
        at = put_header(payload, at, record)
        payload[at : at + len(data)] = data
        at += len(data)
    return bytes(chunk[: seal(view, at)])


async def say_done(session: TransferSession) -> str:
    """What the receiver says about the files that it cannot store."""
    await session.say(OfferDone("", 1))
    while not isinstance(answer := await session.hear(), (FailedFiles, Refuse)):
        assert isinstance(answer, Immediate)
    if isinstance(answer, Refuse):
        return answer.error
    assert isinstance(await session.hear(), Stored)
    await session.say(Bye())
    return " ".join(each.error for each in answer.files)


async def deliver(inbox: Path, chunk: bytes, **limits: Any) -> tuple[str, list[str]]:
    """The complaint of a receiver that gets this chunk of a pack, and the names in its folder."""
    async with (
        accepted(inbox, Pack(1, 1, CHUNK_BYTES), **limits) as (ends, task, accept),
        ends.out.ctx.register(chunk) as region,
    ):
        await ends.out.write(region, accept.window, imm=chunk_imm(0, 0))
        saying = asyncio.create_task(say_done(ends.sender))
        (error,) = await both(task)
        ends.out.close()
        (told,) = await both(saying)
    return f"{error}" if isinstance(error, MrcError) else told, names(inbox)


def damaged(chunk: bytes) -> bytes:
    return chunk[:-1] + bytes([chunk[-1] ^ 1])


FOLDER = PackedFolder(name=b"d", mode=None, mtime=None)
HALF = packed(data=b"12", size=4)
HOSTILE = [
    (chunk_with(packed(b"../x")), "'..' is not a file name"),
    (chunk_with(packed(b"/etc/x")), "absolute path"),
    (chunk_with(packed(b"a/../../x")), "'..' is not a file name"),
    (chunk_with(packed(b"a/.ssh")), "any-name"),
    (chunk_with(packed(b"-rf/x")), "any-name"),
    (chunk_with(packed(b"a\x1b[2J/x")), "any-name"),
    (chunk_with((PackedFolder(name=b"..", mode=0o777, mtime=(0, 0)), b"")), "not a file name"),
    (chunk_with((PackedFolder(name=b"", mode=0o777, mtime=(0, 0)), b"")), "not a file name"),
    (chunk_with(packed(b"/".join([b"a"] * 65))), "deeper than 64"),
    (chunk_with(packed(data=b"12", offset=2, size=4)), "out of order"),
    (chunk_with(HALF, packed(data=b"34", offset=1, size=4)), "out of order"),
    (chunk_with(HALF, packed(b"b", b"34", offset=2, size=4)), "out of order"),
    (chunk_with(HALF, (FOLDER, b"")), "in the middle of a file"),
    (chunk_with(HALF), "in the middle of a file"),
    (chunk_with(packed(size=4)), "out of order"),
    (chunk_with((packed(data=b"12", length=9, size=9)[0], b"12")), "beyond the end"),
    (chunk_with((packed(data=b"12")[0], b"12" + bytes(16))), "differs from the sent data"),
    (damaged(chunk_with(packed())), "differs from the sent data"),
    (FRAME.pack(0, bytes(16)), "0 bytes of payload"),
    (FRAME.pack(CHUNK_BYTES, bytes(16)), "bytes of payload"),
    (FRAME.pack(3, Digest(b"\x01\x00x").digest()) + b"\x01\x00x", "bad record"),
    (chunk_with(packed(mode=0o10000)), "bad record"),
    (chunk_with(packed(mtime=(1 << 63, 0))), "bad record"),
    (chunk_with(packed(size=-1, length=-1)), "bad record"),
]


@pytest.mark.parametrize(("chunk", "cause"), HOSTILE)
async def test_receive_files__pack_that_cannot_be(inbox: Path, chunk: bytes, cause: str) -> None:
    error, left = await deliver(inbox, chunk)
    assert cause in error
    assert [name for name in left if name != "a"] == []


async def test_receive_files__more_folders_than_the_limit(inbox: Path) -> None:
    """The pack announces one file; its name makes four folders. The file counts, too."""
    error, _ = await deliver(inbox, chunk_with(packed(b"a/b/c/d/x")), files=3)
    assert "--max-files" in error
    assert sum(len(folders) for _, folders, _ in os.walk(inbox)) == 2


async def test_receive_files__more_bytes_than_the_limit(inbox: Path) -> None:
    error, left = await deliver(inbox, chunk_with(packed(data=b"1234")), bytes=3)
    assert "--max-bytes" in error and left == []


async def test_receive_files__wrong_number_of_chunks(inbox: Path) -> None:
    async with accepted(inbox, Pack(1, 1, CHUNK_BYTES)) as (ends, task, _):
        await ends.out.write(imm=chunk_imm(2, 0))
        await ends.sender.say(OfferDone("", 2))
        (error,) = await both(task)
    assert isinstance(error, ProtocolError) and "another number of chunks" in str(error)


async def test_receive_files__packed_file_larger_than_the_disk(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the transfer before the first byte of the file is written."""
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 1)
    error, left = await deliver(inbox, chunk_with(packed(data=b"12")))
    assert "a: no room for 2 bytes" in error and left == []


async def test_send_plan__existing_file_in_a_folder(tree: Path, inbox: Path) -> None:
    (inbox / "tree").mkdir()
    (inbox / "tree" / "a").write_bytes(b"old")
    failed: list[FailedFile] = []
    sent, got = await copied([str(tree)], inbox, failed=failed)
    assert [(each.name, each.end) for each in failed] == [("tree/a", "receiver")]
    assert "tree/a: exists in" in failed[0].error
    assert sent == [replace(file, path=mine.path) for file, mine in zip(got, sent, strict=True)]
    assert len(sent) == 3 and (inbox / "tree/sub/big").exists()
    assert (inbox / "tree" / "a").read_bytes() == b"old"


@pytest.mark.more
@pytest.mark.parametrize("at", [0, CHUNK_BYTES + 9, 3 * CHUNK_BYTES - 1])
async def test_send_plan__overwrites_a_file_of_equal_size(tree: Path, inbox: Path, at: int) -> None:
    """The bytes decide, not the size; those before the difference are already compared."""
    theirs, ours = tree / "sub/deep/b", inbox / "tree/sub/deep/b"
    ours.parent.mkdir(parents=True)
    data = bytearray(theirs.read_bytes())
    data[at] ^= 1
    ours.write_bytes(data)
    sent, _ = await copied([str(tree)], inbox, overwrite=True)
    assert not isinstance(sent, BaseException), sent
    assert ours.read_bytes() == theirs.read_bytes()
    assert names(inbox) == ["tree"]


@pytest.mark.more
@pytest.mark.parametrize("overwrite", [False, True])
async def test_send_plan__same_bytes_get_the_new_date_only_to_overwrite(
    tree: Path, inbox: Path, overwrite: bool
) -> None:
    (inbox / "tree").mkdir()
    make(inbox / "tree", "a", b"12")
    before = (inbox / "tree/a").stat().st_ino
    await copied([str(tree)], inbox, overwrite=overwrite)
    after = (inbox / "tree/a").stat()
    assert after.st_ino == before
    assert (after.st_mtime_ns == 1_000_000_007) is overwrite


async def test_send_plan__update_leaves_out_what_is_there(tree: Path, inbox: Path) -> None:
    """Size and date decide; a name behind a symbolic link is not there."""
    await copied([str(tree)], inbox)
    os.utime(tree / "a", ns=(0, 5))
    (tree / "sub/new").touch()
    deep = inbox / "tree/sub/deep"
    deep.rename(inbox / "deep")
    deep.symlink_to(inbox / "deep")
    failed: list[FailedFile] = []
    sent, _ = await copied([str(tree)], inbox, update=True, failed=failed, overwrite=True)
    assert [file.name for file in sent] == ["tree/a", "tree/sub/new"]
    assert [each.name for each in failed] == ["tree/sub/deep/b", "tree/sub/deep"]
    assert (inbox / "tree/a").stat().st_mtime_ns == 5


def test_leave_out__is_counted(tree: Path) -> None:
    plan = plan_of([str(tree)])
    files, size = [each for each in plan.entries if isinstance(each, FileEntry)], plan.bytes
    assert size is not None and files[0].bytes > 0
    plan.leave_out(files[:1])
    assert plan.unchanged == 1 and plan.bytes == size - files[0].bytes
    assert files[0] not in plan.entries and files[1] in plan.entries


async def test_send_plan__links_as_links(tmp_path: Path, inbox: Path) -> None:
    top = tmp_path / "top"
    (top / "in").mkdir(parents=True)
    make(top, "a", b"1")
    inside = {"top/in/up": "../a", "top/in/here": "x", "top/link": "./in/up", "top/dead": "none"}
    outside = {"top/abs": "/etc/passwd", "top/out": "../x", "top/in/out": "../../x",
               "top/trick": "in/../../x"}  # fmt: skip
    for name, target in (inside | outside).items():
        (tmp_path / name).symlink_to(target)
    for overwrite in (False, False, True):  # the same links may be there
        failed: list[FailedFile] = []
        await copied([str(top)], inbox, links=True, failed=failed, overwrite=overwrite)
        assert sorted(each.name for each in failed) == sorted(outside)
        found = {f"top/{p.relative_to(inbox / 'top')}" for p in (inbox / "top").rglob("*")}
        assert found == {*inside, "top/a", "top/in"}
        assert {name: os.readlink(inbox / name) for name in inside} == inside
    assert names(inbox) == ["top"]


@pytest.mark.parametrize("target", ["/etc", "../x", "a/../../x", "a/..", "", "a\0b"])
def test_make_link__that_leads_out(inbox: Path, target: str) -> None:
    with tree_in(inbox, overwrite=True) as tree, pytest.raises(FileError, match="link"):
        tree.make_link("x", target)
    assert os.listdir(inbox) == []


def test_make_link__name_in_use(inbox: Path) -> None:
    make(inbox, "a", b"1")
    (inbox / "l").symlink_to("other")
    with tree_in(inbox) as tree:
        for name in ("a", "l"):
            with pytest.raises(FileError, match="exists in"):
                tree.make_link(name, "target")
    assert names(inbox) == ["a", "l"] and os.readlink(inbox / "l") == "other"


# ---- Holes: neither read nor sent, and holes again at the receiver -------------------------------


SIZE = 20 * CHUNK_BYTES + 5


def put(file: BinaryIO, chunk: int, data: bytes) -> None:
    file.seek(chunk * CHUNK_BYTES)
    file.write(data)


@pytest.mark.more
@pytest.mark.parametrize("data", [(), (20,), (3, 4, 11, 19)])
async def test_send_plan__only_chunks_with_data(
    tmp_path: Path, inbox: Path, data: tuple[int, ...]
) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(SIZE)
        for chunk in data:
            put(file, chunk, b"data!")
    async with sessions() as ends:
        sent, got = await both(sending(ends.sender, [str(path)]), receiving(ends.receiver, inbox))
        assert chunks(ends.out) == list(data)
    assert not isinstance(sent, BaseException) and not isinstance(got, BaseException), (sent, got)
    content = path.read_bytes()
    assert sent[0].digest == got[0].digest == xxhash.xxh3_128_hexdigest(content)
    assert (inbox / "a").read_bytes() == content and names(inbox) == ["a"]
    assert (inbox / "a").stat().st_blocks <= path.stat().st_blocks + 16 * 128 * len(data)


async def test_send_plan__a_hole_has_no_rate(tmp_path: Path, inbox: Path) -> None:
    """Both ends know how much of a file does not travel, and so does who shows the progress."""
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(SIZE)
        put(file, 3, b"data!")
    plan = plan_of([str(path)])
    async with sessions() as ends:
        receiver = receive_files(ends.receiver, OutputDirectory(str(inbox)))

        async def got() -> list[StoredBatch]:
            return [batch async for batch in receiver]

        async def sent() -> list[StoredBatch]:
            return [batch async for batch in send_plan(ends.sender, plan)]

        found = await both(sent(), got())
    for batches in found:
        assert [(each.bytes, sent_bytes(each)) for each in batches] == [(SIZE, CHUNK_BYTES)]
    assert plan.there == SIZE - CHUNK_BYTES


def test_plan__what_need_not_travel(tmp_path: Path) -> None:
    """What the receiver has by --update, and on a later connection what the earlier ones sent."""
    for name, size in (("a", 1), ("b", 20), ("c", 300)):
        (tmp_path / name).write_bytes(bytes(size))
    plan = plan_of([str(tmp_path / name) for name in "abc"])
    plan.connected()
    plan.leave_out([entry for entry in plan.entries[:1] if isinstance(entry, FileEntry)])
    assert (plan.there, plan.bytes) == (1, 320)
    plan.sent = 1
    plan.connected()
    assert (plan.there, plan.bytes) == (20, 320)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=8))
def test_holes__each_chunk(runs: list[tuple[bool, int]]) -> None:
    model: list[bool] = []
    ranges = []
    for hole, count in runs:
        if hole and not (model and model[-1]):
            ranges.append((len(model), count))
        elif hole:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + count)
        model += [hole] * count
    holes = Holes(ranges)
    for chunk in range(len(model) + 2):
        rest = model[chunk:]
        assert holes.left(chunk) == (rest.index(False) if False in rest else len(rest))
        assert holes.bytes_from(chunk, 10, 10 * len(model)) == 10 * sum(rest)
    assert holes.are_within(len(model))


def test_holes_of__parts_of_chunks_are_data(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as file:
        file.truncate(10 * 8192)
        for offset in (8192 + 4096, 5 * 8192):
            file.seek(offset)
            file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
        assert holes_of(file.fileno(), 10 * 8192, 8192).ranges == ((0, 1), (2, 3), (6, 4))


def test_holes_of__a_file_that_became_empty(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as file:
        assert holes_of(file.fileno(), 8192, 4096).ranges == ()


@pytest.mark.parametrize("holes", [((0, 0),), ((2, 1),), ((0, 1), (0, 1)), ((1, 2),)])
async def test_receive_files__holes_that_cannot_be(
    inbox: Path, holes: tuple[tuple[int, int], ...]
) -> None:
    async with sessions() as ends:
        task = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.sender.say(Offer("a", 2 * 4096, 4096, holes=holes))
        (error,) = await both(task)
    assert isinstance(error, ProtocolError) and "holes" in str(error)


# ---- Folders whose transfer was interrupted and went on later ------------------------------------


Make = Callable[[Path, pytest.MonkeyPatch], object]
META = Meta(0o751, 1_000_000_007)


def made(inbox: Path, *, until: str, **options: bool) -> None:
    """A session that makes a/b and a file in it; `until` is the last thing that it does."""
    with tree_in(inbox, **options) as tree:
        target = tree.create("a/b/x", 0)
        if until != "file":
            target.commit()
        target.close()
        for folder in ("a/b", "a"):
            if until == "all":
                tree.finish_folder(folder, META)
        if until == "bye":
            tree.finish()


def looks(path: Path) -> tuple[int, int]:
    status = path.stat()
    return stat.S_IMODE(status.st_mode), status.st_mtime_ns


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
    before = {*os.listdir("/proc/self/fd")}
    assert Mark.of(root, "a", folder) is None
    assert {*os.listdir("/proc/self/fd")} <= before
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
    ("first", "then", "times"),
    [
        ({}, {}, 1),
        ({}, {}, 3),
        ({"resume": False}, {"resume": False}, 1),
        ({"resume": False}, {}, 1),
        ({"overwrite": True}, {"overwrite": True}, 1),
        ({"resume": False, "overwrite": True}, {"overwrite": True}, 1),
        ({}, {"overwrite": True}, 1),
    ],
)
def test_finish_folder__after_interruptions(
    inbox: Path, first: dict[str, bool], then: dict[str, bool], times: int
) -> None:
    """mrc recv --no-resume keeps no bytes, --overwrite (and --update of a sender) replaces files; a
    folder that it has made is complete only later.
    """
    for _ in range(times):
        made(inbox, until="file", **first)
        assert looks(inbox / "a/b")[0] == 0o700
        with OutputDirectory(str(inbox), **then) as directory:
            assert directory.sweep() == []  # each new receiver sweeps
    made(inbox, until="all", **then)
    assert looks(inbox / "a") == looks(inbox / "a/b") == (META.mode, META.mtime_ns)
    assert os.listdir(inbox) == ["a"]
