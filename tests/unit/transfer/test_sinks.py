# SPDX-License-Identifier: Apache-2.0
"""What a sink takes of the limits of its sender and of the disk, and what it reports."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slowness import PATIENCE
from transfer_ends import both, make, names, receiving, sending, sessions

from mrc.transfer.files import OutputDirectory, PartFile, SessionTree
from mrc.transfer.folders import Folder, Meta
from mrc.transfer.limits import (
    CHUNK_BYTES,
    MAX_DEPTH,
    FinalError,
    Quota,
    SenderLimits,
    StoppedError,
)
from mrc.transfer.messages import (
    DIGEST_BYTES,
    FRAME,
    Digest,
    Offer,
    PackedFile,
    PackedFolder,
    Record,
    put_header,
    seal,
)
from mrc.transfer.receiver import receive_files
from mrc.transfer.results import Total
from mrc.transfer.sinks import FileSink, PackSink, StreamSink
from mrc.transfer.threads import StuckError


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[SessionTree]:
    with OutputDirectory(str(tmp_path)) as directory:
        tree = directory.tree()
        yield tree
        tree.close()


@pytest.mark.parametrize(
    ("kind", "size", "limits", "cause"),
    [
        (FileSink, 10, SenderLimits(files=2), "the limit of 2 files"),
        (FileSink, 10, SenderLimits(bytes=29), "the limit of 29 bytes"),
        (StreamSink, None, SenderLimits(files=2), "the limit of 2 files"),
    ],
)
def test_sinks__together_no_more_than_the_limits(
    tree: SessionTree,
    kind: Callable[[SessionTree, Offer, Quota], FileSink | StreamSink],
    size: int | None,
    limits: SenderLimits,
    cause: str,
) -> None:
    quota = Quota(limits)
    for name in "ab":
        kind(tree, Offer(name, size, 4096), quota).close()
    with pytest.raises(FinalError, match=cause):
        kind(tree, Offer("c", size, 4096), quota)


def pack_of(*records: Record) -> memoryview:
    """A chunk with these records; files are empty."""
    chunk = memoryview(bytearray(CHUNK_BYTES))
    end = 0
    for record in records:
        end = put_header(chunk[FRAME.size :], end, record)
        if isinstance(record, PackedFile):
            chunk[FRAME.size + end :][:DIGEST_BYTES] = Digest().digest()
            end += DIGEST_BYTES
    return chunk[: seal(chunk, end)]


def packed(name: str) -> PackedFile:
    return PackedFile(
        name=name.encode(), size=0, offset=0, length=0, sparse=False, mode=None, mtime=None
    )


def pack_sink(tree: SessionTree, quota: Quota | None = None) -> PackSink:
    return PackSink(tree, quota or Quota(SenderLimits()), keep_names=True, resume=False)


def test_pack__told_to_stop_stores_no_further_record(
    tree: SessionTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = PartFile.commit

    def last(self: PartFile, *meta: Meta) -> None:
        commit(self, *meta)
        tree.stop()

    monkeypatch.setattr(PartFile, "commit", last)
    with pytest.raises(StoppedError):
        pack_sink(tree).store(0, pack_of(*map(packed, "abc")))
    assert os.listdir(tmp_path) == ["a"]


def test_pack__told_to_stop_opens_no_further_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = Folder.enter

    def last(self: Folder, *rest: Any) -> Folder:
        opened.stop()
        return enter(self, *rest)

    monkeypatch.setattr(Folder, "enter", last)
    with OutputDirectory(str(tmp_path)) as directory:
        opened = directory.tree()
        with pytest.raises(StoppedError):
            pack_sink(opened).store(0, pack_of(packed("a/b/c")))
        opened.close()
    assert not (tmp_path / "a" / "b").exists()


async def test_receive_files__ends_in_the_middle_of_a_pack(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on SIGTERM, or when the sender is gone: the chunk under way is not stored to its end."""
    first, go_on = asyncio.Event(), threading.Event()
    loop, commit = asyncio.get_running_loop(), PartFile.commit

    def slow(self: PartFile, *meta: Meta) -> None:
        commit(self, *meta)
        loop.call_soon_threadsafe(first.set)
        assert go_on.wait(PATIENCE)

    monkeypatch.setattr(PartFile, "commit", slow)
    (tmp_path / "top").mkdir()
    paths = [make(tmp_path / "top", name, b"") for name in "abc"]
    async with sessions() as ends:
        sender = asyncio.create_task(sending(ends.sender, paths))
        receiver = asyncio.create_task(receiving(ends.receiver, inbox))
        async with asyncio.timeout(PATIENCE):
            await first.wait()
        receiver.cancel()
        loop.call_later(0.01, go_on.set)
        await both(sender, receiver)
    assert os.listdir(inbox) == ["a"]


async def test_receive_files__the_disk_does_not_answer(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends without it. The file is closed when the disk does answer."""
    monkeypatch.setattr("mrc.transfer.threads.END_SECONDS", 0.01)
    begun, closed, go_on = asyncio.Event(), asyncio.Event(), threading.Event()
    loop, write, close = asyncio.get_running_loop(), PartFile.write, SessionTree.close

    def stuck(self: PartFile, offset: int, chunk: memoryview) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE)
        write(self, offset, chunk)

    def told(self: SessionTree) -> None:
        close(self)
        closed.set()

    monkeypatch.setattr(PartFile, "write", stuck)
    monkeypatch.setattr(SessionTree, "close", told)
    async with sessions() as ends:
        sender = asyncio.create_task(sending(ends.sender, [make(tmp_path, "a", b"1")]))
        receiver = asyncio.create_task(receiving(ends.receiver, inbox))
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        sender.cancel()
        receiver.cancel()
        outcome, _ = await both(receiver, sender)
    assert isinstance(outcome, StuckError)
    assert not closed.is_set()
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        await closed.wait()
    assert not (inbox / "a").exists()


@pytest.mark.parametrize("there", [False, True])
def test_pack__opens_only_so_many_folders(tmp_path: Path, there: bool) -> None:
    """A record of few bytes names many folders, and the next one as many others."""
    below = "/".join("x" * (MAX_DEPTH - 1))
    if there:
        for top in "ab":
            (tmp_path / top / below).mkdir(parents=True)
    records = [
        PackedFolder(name=f"{'ab'[n % 2]}/{below}".encode(), mode=None, mtime=None)
        for n in range(200)
    ]
    quota = Quota(SenderLimits(files=1000))
    openings = 0

    def operate() -> None:
        nonlocal openings
        openings += 1
        quota.operate()

    with OutputDirectory(str(tmp_path)) as directory:
        tree = directory.tree(lambda: quota.take("a folder", files=1), operate)
        with pytest.raises(FinalError, match="limit of 1000 files"):
            for _ in range(100):
                pack_sink(tree, quota).store(0, pack_of(*records))
        tree.close()
    assert openings <= 16_001


async def test_pack__its_files_folders_links_and_bytes_are_counted(tmp_path: Path) -> None:
    top, inbox = tmp_path / "from", tmp_path / "inbox"
    (top / "folder").mkdir(parents=True)
    inbox.mkdir()
    for name, size in (("a", 5), ("folder/b", 10_000), ("folder/c", 0)):
        (top / name).write_bytes(bytes(size))
    (top / "link").symlink_to("a")
    total = Total()

    async def receive() -> None:
        with OutputDirectory(str(inbox)) as directory:
            async for batch in receive_files(ends.receiver, directory):
                total.add(batch, listed=True)

    async with sessions() as ends:
        assert await both(sending(ends.sender, [str(top)], links=True), receive())
    assert (total.count, total.folders, total.links, total.bytes) == (3, 2, 1, 10_005)
    assert len(total.files) == 3


async def test_receive_files__of_an_interrupted_pack_it_yields_what_is_stored(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "top").mkdir()
    for name in "abc":
        make(tmp_path / "top", name, bytes(CHUNK_BYTES))
    store, got = PackSink.store, Total()

    def stops(self: PackSink, index: int, chunk: memoryview) -> None:
        store(self, index, chunk)
        if index == 1:
            receiver.get_loop().call_soon_threadsafe(receiver.cancel)

    async def receive() -> None:
        with OutputDirectory(str(inbox)) as directory:
            async for batch in receive_files(ends.receiver, directory):
                got.add(batch, listed=True)

    monkeypatch.setattr(PackSink, "store", stops)
    async with sessions() as ends:
        receiver = asyncio.create_task(receive())
        await both(sending(ends.sender, [f"{tmp_path}/top"]), receiver)
    assert list(got.files) == [f"top/{name}" for name in names(inbox / "top") if name in "abc"]
    assert got.count >= 1


async def test_send_plan__folder_that_is_there_needs_no_room(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full by the first transfer is no reason to refuse the same one again."""
    (tmp_path / "tree").mkdir()
    for name in "ab":
        make(tmp_path / "tree", name, name.encode())
    for free_bytes in (1 << 60, 0):
        monkeypatch.setattr(Folder, "free_bytes", lambda _, free_bytes=free_bytes: free_bytes)
        async with sessions() as ends:
            ways = sending(ends.sender, [str(tmp_path / "tree")]), receiving(ends.receiver, inbox)
            sent, got = await both(*ways)
        assert [file.digest for file in sent] == [file.digest for file in got], (sent, got)


async def test_send_plan__packed_holes_need_no_room(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 0)
    os.truncate(make(tmp_path, "hole", b""), 1 << 20)
    async with sessions() as ends:
        ways = sending(ends.sender, [str(tmp_path / "hole")]), receiving(ends.receiver, inbox)
        _, got = await both(*ways)
    assert [(file.name, file.bytes) for file in got] == [("hole", 1 << 20)]
