# SPDX-License-Identifier: Apache-2.0
"""What is kept of an interrupted transfer, how the next one goes on, and what counts once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slowness import PATIENCE
from transfer_ends import accepted, both, call_before, make, names, sending, sessions, until

from mrc.enums import WcStatus
from mrc.transfer.files import KEPT_SECONDS, OutputDirectory, PartFile, PartRecord
from mrc.transfer.limits import CHUNK_BYTES, part_name, record_name
from mrc.transfer.messages import (
    Begin,
    Bye,
    Digest,
    Mine,
    Offer,
    OfferDone,
    Refuse,
    to_dict,
)
from mrc.transfer.receiver import ReceiveEvents, receive_files
from mrc.transfer.results import FailedFile, StoredBatch, Total, TransferredFile
from mrc.transfer.sender import SendOptions
from mrc.transfer.session import TransferError, TransferSession

CHUNK = 4096
Stop = Callable[..., Awaitable[int]]
DATA = os.urandom(6 * CHUNK_BYTES + 5)


def record_of(folder: Path, data: bytes) -> tuple[PartRecord, int, int]:
    part, record = (os.open(folder / n, os.O_RDWR | os.O_CREAT) for n in ("part", "record"))
    kept = PartRecord(part, record, CHUNK)
    kept.begin(0)
    os.write(part, data)
    digest = Digest()
    for start in range(0, len(data), CHUNK):
        digest.update(data[start : start + CHUNK])
        kept.add(digest.digest())
    kept.close(save=True)
    return kept, part, record


@given(part_bytes=st.integers(0, 5 * CHUNK), record_bytes=st.integers(0, 16 + 5 * 16))
def test_record__cut_anywhere_gives_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, part_bytes: int, record_bytes: int
) -> None:
    data = os.urandom(5 * CHUNK)
    kept, part, record = record_of(tmp_path_factory.mktemp("kept"), data)
    os.truncate(part, part_bytes)
    os.truncate(record, record_bytes)
    chunks, digest = kept.verify(99)
    assert chunks == min(part_bytes // CHUNK, max(record_bytes - 16, 0) // 16)
    assert digest.digest() == Digest(data[: chunks * CHUNK]).digest()
    os.close(part)
    os.close(record)


@pytest.mark.parametrize("wrong", ["part", "record"])
def test_record__a_flipped_bit_ends_the_prefix(tmp_path: Path, wrong: str) -> None:
    kept, part, record = record_of(tmp_path, os.urandom(5 * CHUNK))
    fd, at = (part, 2 * CHUNK + 7) if wrong == "part" else (record, 16 + 2 * 16)
    byte = os.pread(fd, 1, at)[0]
    os.pwrite(fd, bytes([byte ^ 1]), at)
    assert kept.verify(99)[0] == 2


def test_record__names_a_chunk_after_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    write = os.pwrite
    part, record = (os.open(tmp_path / n, os.O_RDWR | os.O_CREAT) for n in ("part", "record"))
    kept = PartRecord(part, record, CHUNK)
    kept.begin(0)

    def named(fd: int, data: bytes, at: int) -> int:
        done.append(f"{len(data) // 16} named at {(at - 16) // 16}")
        return write(fd, data, at)

    monkeypatch.setattr("mrc.transfer.files.SYNC_SECONDS", 0)
    monkeypatch.setattr(os, "fdatasync", lambda fd: done.append("synced" if fd == part else ""))
    monkeypatch.setattr(os, "pwrite", named)
    for chunk in range(2):
        os.write(part, bytes(CHUNK))
        kept.add(bytes(16))
        assert kept._saving is not None
        kept._saving.result()
        assert kept.kept_bytes == (chunk + 1) * CHUNK
    assert done == ["synced", "1 named at 0", "synced", "1 named at 1"]
    kept.close(save=False)


async def interrupted(
    monkeypatch: pytest.MonkeyPatch, folder: Path, path: str, *, resume: bool = True
) -> int:
    """Stops the receiver when it has a few chunks; returns the bytes that it keeps."""
    goes_on = threading.Event()

    def slow(_: PartFile, offset: int, chunk: memoryview) -> None:
        if offset >= 4 * CHUNK_BYTES:
            goes_on.wait(PATIENCE)
        if offset >= 5 * CHUNK_BYTES:  # the thread was quicker than the cancellation
            raise OSError("stopped")

    with monkeypatch.context() as patched:
        call_before(patched, PartFile, "write", slow)
        return await stopped_receiver(folder, path, goes_on, resume=resume)


async def stopped_receiver(
    folder: Path, path: str, goes_on: threading.Event, *, resume: bool
) -> int:
    kept: list[int] = []
    async with sessions() as ends:
        with OutputDirectory(str(folder), resume=resume) as directory:
            events = ReceiveEvents(on_kept=lambda _, n: kept.append(n))
            received = asyncio.create_task(all_received(ends.receiver, directory, events))
            sent = asyncio.create_task(sending(ends.sender, [path]))
            await until(lambda: any(3 <= imm < 1 << 31 for imm in ends.back.posted))  # credit
            received.cancel()
            await asyncio.sleep(0)  # the cancellation arrives before the rest is written
            goes_on.set()
            stopped, _ = await both(sent, received)
    assert isinstance(stopped, TransferError)
    return kept[0] if kept else 0


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    return partial(interrupted, monkeypatch)


async def all_received(
    session: TransferSession, directory: OutputDirectory, events: ReceiveEvents | None = None
) -> list[StoredBatch]:
    received = receive_files(session, directory, events=events or ReceiveEvents())
    return [batch async for batch in received]


async def again(folder: Path, path: str, **options: bool) -> tuple[int, int]:
    """The same transfer; returns the bytes that were resumed, and the size of the file."""
    async with sessions() as ends:
        with OutputDirectory(str(folder), **options) as directory:
            sent, got = await both(
                sending(ends.sender, [path]), all_received(ends.receiver, directory)
            )
    assert not isinstance(sent, BaseException) and not isinstance(got, BaseException), (sent, got)
    return got[-1].resumed_bytes, got[-1].bytes


@pytest.fixture
def source(tmp_path: Path) -> str:
    return make(tmp_path, "a", DATA)


async def test_transfer__goes_on_where_it_was(stop: Stop, source: str, inbox: Path) -> None:
    kept = await stop(inbox, source)
    assert kept >= 2 * CHUNK_BYTES and kept % CHUNK_BYTES == 0
    assert names(inbox) == sorted([part_name("a"), record_name(part_name("a"))])
    assert await again(inbox, source) == (kept, len(DATA))
    assert names(inbox) == ["a"] and (inbox / "a").read_bytes() == DATA


async def test_transfer__what_was_kept_is_no_progress(
    stop: Stop, source: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is lost before a further chunk is stored has moved nothing."""
    kept, how = await stop(inbox, source), SendOptions()

    monkeypatch.setattr(PartFile, "write", Mock(side_effect=AssertionError("no chunk is stored")))
    async with sessions() as ends:
        with OutputDirectory(str(inbox)) as directory:
            sent = sending(ends.sender, [source], how=how)
            work = asyncio.create_task(both(sent, all_received(ends.receiver, directory)))
            await until(lambda: ends.sender.waiting.seconds().reading_seconds)  # it writes
            ends.out.fail(WcStatus.RETRY_EXC_ERR)
            ends.back.fail(WcStatus.RETRY_EXC_ERR)
            await work
    assert how.stored_chunks == how.kept_chunks == kept // CHUNK_BYTES


async def test_transfer__a_damaged_part_is_sent_again(stop: Stop, source: str, inbox: Path) -> None:
    await stop(inbox, source)
    part = inbox / part_name("a")
    content = bytearray(part.read_bytes())
    content[CHUNK_BYTES + 3] ^= 1
    part.write_bytes(content)
    assert (await again(inbox, source))[0] == CHUNK_BYTES
    assert (inbox / "a").read_bytes() == DATA


@pytest.mark.parametrize("change", ["rewritten", "grown", "shrunk"])
async def test_transfer__of_a_source_that_has_changed(
    stop: Stop, source: str, inbox: Path, change: str
) -> None:
    """One that has grown goes on, and one that has been rewritten begins anew."""
    kept = await stop(inbox, source)
    data = {"rewritten": b"x" + DATA[1:], "grown": DATA + DATA, "shrunk": DATA[: CHUNK_BYTES + 1]}
    make(Path(source).parent, "a", data[change])
    resumed, _ = await again(inbox, source)
    if change != "shrunk":
        assert resumed == (kept // CHUNK_BYTES * CHUNK_BYTES if change == "grown" else 0)
    assert (inbox / "a").read_bytes() == data[change]


async def test_transfer__without_resume_keeps_nothing(stop: Stop, source: str, inbox: Path) -> None:
    assert await stop(inbox, source, resume=False) == 0
    assert names(inbox) == []


async def test_transfer__a_complete_file_is_not_sent_again(source: str, inbox: Path) -> None:
    await again(inbox, source)
    before = (inbox / "a").stat()
    assert await again(inbox, source) == (len(DATA), len(DATA))
    assert (inbox / "a").stat().st_ino == before.st_ino


async def test_receive__tells_nothing_of_a_file_that_the_sender_does_not_have(inbox: Path) -> None:
    """A size is all that an offer needs; with a digest, a PIN could be found in any other way."""
    (inbox / "pin").write_bytes(b"4711")
    offer = Offer("pin", 4, CHUNK_BYTES, resume=True)
    async with accepted(inbox, offer) as (ends, received, accept):
        assert accept.kept == 1
        assert set(to_dict(accept)) == {"type", "window", "token", "kept", "rate", "reading"}
        await ends.sender.say(Mine(Digest(b"1234").hexdigest()))
        assert await ends.sender.hear() == Begin(0)
        answer = await ends.sender.hear()
        assert isinstance(answer, Refuse) and "exists" in answer.error
        await ends.sender.say(OfferDone("", 0, "the receiver refused it"))
        await ends.sender.say(Bye())
        await both(received)
    assert (inbox / "pin").read_bytes() == b"4711"


async def test_transfer__of_an_empty_file_again(tmp_path: Path, inbox: Path) -> None:
    """As of any file that is there already: it is no error."""
    path = make(tmp_path, "a", b"")
    assert await again(inbox, path) == await again(inbox, path) == (0, 0)


async def test_transfer__of_a_folder_goes_on(tmp_path: Path, inbox: Path) -> None:
    """Small files that are there already are compared, and the others stored."""
    tree = tmp_path / "tree"
    tree.mkdir()
    make(tree, "a", b"first")
    await again(inbox, str(tree))
    make(tree, "b", b"second")
    await again(inbox, str(tree))
    assert (inbox / "tree" / "b").read_bytes() == b"second"
    make(tree, "a", b"other")
    async with sessions() as ends:
        with OutputDirectory(str(inbox)) as directory:
            failed: list[FailedFile] = []
            await both(
                sending(ends.sender, [str(tree)], failed=failed),
                all_received(ends.receiver, directory),
            )
    assert [each.name for each in failed] == ["tree/a"] and "exists in" in failed[0].error
    assert (inbox / "tree" / "a").read_bytes() == b"first"


async def test_sweep__leaves_what_can_go_on_for_a_week(
    stop: Stop, source: str, inbox: Path
) -> None:
    await stop(inbox, source)
    part, record = (inbox / name for name in (part_name("a"), record_name(part_name("a"))))
    with OutputDirectory(str(inbox)) as directory:
        assert directory.sweep() == []
        old = time.time() - KEPT_SECONDS - 60
        os.utime(record, (old, old))
        assert directory.sweep() == ["a"]
    assert not part.exists() and not record.exists()


async def test_sweep__without_resume_removes_all(stop: Stop, source: str, inbox: Path) -> None:
    await stop(inbox, source)
    with OutputDirectory(str(inbox), resume=False) as directory:
        assert directory.sweep() == ["a"]
    assert names(inbox) == []


# ---- What both ends report -----------------------------------------------------------------------


FILE = TransferredFile("a", 7, "0" * 32, "/a")


def test_add__counts_what_all_batches_have() -> None:
    total = Total()
    pack = StoredBatch((FILE,), 3, 2, 70, packed=True, resumed_bytes=5, hole_bytes=9, links=4)
    total.add(pack, listed=True)
    total.add(StoredBatch((FILE,), 1, 0, 7, packed=False, resumed_bytes=1, links=1), listed=False)
    assert total == Total(
        {"a": FILE}, count=4, folders=2, bytes=77, resumed_bytes=6, hole_bytes=9, links=5
    )


def test_add__what_came_again_after_a_loss_counts_once() -> None:
    """A file may have changed meanwhile."""
    b, changed = TransferredFile("b", 1, "1" * 32, "/b"), TransferredFile("a", 9, "2" * 32, "/a")
    total = Total()
    total.add(StoredBatch((FILE,), 1, 1, 7, packed=True, links=1, others=("l", "in/")), listed=True)
    others = ("l", "in/", "top/")
    total.add(StoredBatch((changed, b), 2, 2, 10, packed=True, links=1, others=others), listed=True)
    total.add(StoredBatch.of(b, resumed_bytes=1), listed=True)
    assert list(total.files.values()) == [changed, b]
    counts = total.count, total.folders, total.links, total.bytes, total.resumed_bytes
    assert counts == (2, 2, 1, 10, 0)
