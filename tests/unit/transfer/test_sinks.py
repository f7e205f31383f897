# SPDX-License-Identifier: Apache-2.0
"""What a sink takes of the limits of its sender and of the disk, and what it reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transfer_ends import both, make, receiving, sending, sessions

from mrc.transfer.batch import Total
from mrc.transfer.files import OutputDirectory
from mrc.transfer.folders import Folder
from mrc.transfer.messages import Offer
from mrc.transfer.names import FinalError
from mrc.transfer.quota import Limits, Quota
from mrc.transfer.receiver import receive_files
from mrc.transfer.sinks import FileSink, StreamSink, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with OutputDirectory(str(tmp_path)) as directory:
        tree = directory.tree()
        yield tree
        tree.close()


@pytest.mark.parametrize(
    ("kind", "size", "limits", "cause"),
    [
        (FileSink, 10, Limits(files=2), "the limit of 2 files"),
        (FileSink, 10, Limits(bytes=29), "the limit of 29 bytes"),
        (StreamSink, None, Limits(files=2), "the limit of 2 files"),
    ],
)
def test_sinks__together_no_more_than_the_limits(
    tree: Tree,
    kind: Callable[[Tree, Offer, Quota], FileSink | StreamSink],
    size: int | None,
    limits: Limits,
    cause: str,
) -> None:
    quota = Quota(limits)
    for name in "ab":
        kind(tree, Offer(name, size, 4096), quota).close()
    with pytest.raises(FinalError, match=cause):
        kind(tree, Offer("c", size, 4096), quota)


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
