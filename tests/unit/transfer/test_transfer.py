# SPDX-License-Identifier: Apache-2.0
"""Sender and receiver over two fake QPs: contents, refusals, and both ends giving up."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash
from slowness import PATIENCE
from transfer_ends import both, chunks, make, names, qp_pair, receiving, sending, sessions, until

from mrc.enums import Access, WcStatus
from mrc.errors import CompletionError, MrcError, PathError, ProtocolError
from mrc.events import Immediate
from mrc.mailbox import SessionError
from mrc.transfer.limits import CHUNK_BYTES, FileError, FinalError
from mrc.transfer.messages import (
    FRAME,
    Accept,
    Bye,
    DiskWait,
    Offer,
    OfferDone,
    Refuse,
    Stored,
    TransferMessage,
    chunk_imm,
    seal,
)
from mrc.transfer.plan import SourceFile, plan_of
from mrc.transfer.results import FailedFile
from mrc.transfer.sender import CHUNKS_IN_FLIGHT, SendOptions
from mrc.transfer.session import (
    Joins,
    TransferError,
    TransferSession,
    VerificationError,
    accept_session,
)

SIZES = [0, 1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 11 * CHUNK_BYTES + 13]


async def test_send_files__every_size_at_once(tmp_path: Path, inbox: Path) -> None:
    data = {f"file{n}": os.urandom(size) for n, size in enumerate(SIZES)}
    paths = [make(tmp_path, name, content) for name, content in data.items()]
    async with sessions() as ends:
        sent, received = await both(sending(ends.sender, paths), receiving(ends.receiver, inbox))
    assert [file.name for file in sent] == list(data)
    assert names(inbox) == sorted(data)
    assert all((inbox / name).read_bytes() == content for name, content in data.items())
    for mine, theirs in zip(sent, received, strict=True):
        content = data[mine.name]
        assert mine.bytes == theirs.bytes == len(content)
        assert mine.digest == theirs.digest == xxhash.xxh3_128_hexdigest(content)
        assert (mine.path, theirs.path) == (str(tmp_path / mine.name), str(inbox / mine.name))


async def test_send_files__chunks_in_flight_are_bounded(tmp_path: Path, inbox: Path) -> None:
    path = make(tmp_path, "a", bytes(20 * CHUNK_BYTES))
    async with sessions() as ends:
        both_ends = asyncio.create_task(
            both(sending(ends.sender, [path]), receiving(ends.receiver, inbox))
        )
        await until(lambda: 0 in ends.out.posted)
        ends.out.held = True
        await until(lambda: ends.out.waiting == CHUNKS_IN_FLIGHT)
        assert chunks(ends.out) == list(range(len(chunks(ends.out))))
        ends.out.held = False
        ends.out.release()
        sent, _ = await both_ends
        assert sent[0].bytes == 20 * CHUNK_BYTES


@pytest.mark.parametrize(
    ("name", "size", "cause"),
    [
        ("taken", 100, "exists in"),
        (".x.mrc-01234567", 100, "temporary files"),
        ("../a", 100, "not a file name"),
        ("huge", 1 << 43, "no room"),
        (".profile", 100, "any-name"),
    ],
)
async def test_receive_files__refused_before_data_flows(
    inbox: Path, name: str, size: int, cause: str
) -> None:
    (inbox / "taken").write_bytes(b"old")
    async with sessions() as ends:
        await ends.sender.say(Offer(name, size, 1 << 20))
        task = asyncio.create_task(receiving(ends.receiver, inbox))
        answer = await ends.sender.hear()
        ends.out.close()
        ends.back.close()
        (received,) = await both(task)
    assert isinstance(answer, Refuse) and re.search(cause, answer.error)
    assert received == [] if answer.code == "file" else isinstance(received, FinalError)
    assert (answer.code == "file") is (name != "huge")
    assert names(inbox) == ["taken"]
    assert (inbox / "taken").read_bytes() == b"old"


async def test_receive_files__existing_file_with_overwrite(tmp_path: Path, inbox: Path) -> None:
    path = make(tmp_path, "a", b"new")
    (inbox / "a").write_bytes(b"older")
    async with sessions() as ends:
        await both(sending(ends.sender, [path]), receiving(ends.receiver, inbox, overwrite=True))
    assert (inbox / "a").read_bytes() == b"new"


async def test_send_files__refusal_names_the_peer_and_the_cause(
    tmp_path: Path, inbox: Path
) -> None:
    path = make(tmp_path, "a", b"new")
    (inbox / "a").write_bytes(b"old")
    async with sessions() as ends:
        failed: list[FailedFile] = []
        sent, received = await both(
            sending(ends.sender, [path], failed=failed), receiving(ends.receiver, inbox)
        )
    assert sent == received == []
    assert [(each.name, each.end) for each in failed] == [("a", "receiver")]
    assert "a: exists" in failed[0].error
    assert (inbox / "a").read_bytes() == b"old"


async def test_receive_files__corrupted_on_the_way(tmp_path: Path, inbox: Path) -> None:
    async with sessions() as ends:
        task = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.sender.say(Offer("a", 1000, 4096))
        accept = await ends.sender.hear()
        assert isinstance(accept, Accept) and accept.window.length
        async with ends.out.ctx.register(bytes(1000), Access.LOCAL_READ) as mr:
            await ends.out.write_imm(mr, accept.window, imm=0)  # not the bytes of the digest
        await ends.sender.say(OfferDone(xxhash.xxh3_128_hexdigest(b"x" * 1000), 1))
        answer = await ends.sender.hear()
        ends.back.close()
        (failed,) = await both(task)
    assert isinstance(answer, Refuse) and answer.code == "verification"
    assert isinstance(failed, VerificationError)
    assert names(inbox) == []


async def test_send_files__receiver_found_a_difference(tmp_path: Path, inbox: Path) -> None:
    path = make(tmp_path, "a", bytes(10000))
    async with sessions() as ends:
        ends.back.corrupt = True
        sent, got = await both(sending(ends.sender, [path]), receiving(ends.receiver, inbox))
    assert isinstance(sent, VerificationError)
    assert isinstance(got, VerificationError)
    assert names(inbox) == []


def rewrite(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(b"x")


def grow(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


async def test_send_files__source_grows_on_the_way(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again, which may take long: the receiver hears that its sender lives."""
    monkeypatch.setattr("mrc.transfer.sender.READING_SECONDS", 0)
    told = threading.Event()
    say, again = TransferSession.say, SourceFile.grew

    async def noted(self: TransferSession, message: TransferMessage) -> None:
        if isinstance(message, DiskWait):
            told.set()
        await say(self, message)

    def slow(self: SourceFile, digest: bytes) -> bool:
        assert told.wait(PATIENCE)
        return again(self, digest)

    monkeypatch.setattr(TransferSession, "say", noted)
    monkeypatch.setattr(SourceFile, "grew", slow)
    data = os.urandom(12 * CHUNK_BYTES)
    path, grown = make(tmp_path, "a", data), list[str]()
    async with sessions() as ends:
        how = SendOptions(on_grew=grown.append)
        task = asyncio.create_task(
            both(sending(ends.sender, [path], how=how), receiving(ends.receiver, inbox))
        )
        await until(lambda: 0 in ends.out.posted)
        grow(path)
        await task
    assert (inbox / "a").read_bytes() == data and grown == [path]


async def test_send_files__source_changes_on_the_way(tmp_path: Path, inbox: Path) -> None:
    """tests/netns covers a source that shrinks: the fake has no guard against SIGBUS."""
    path, other = make(tmp_path, "a", bytes(12 * CHUNK_BYTES)), make(tmp_path, "b", b"b")
    os.utime(path, ns=(0, 0))
    failed: list[FailedFile] = []
    async with sessions() as ends:
        task = asyncio.create_task(
            both(
                sending(ends.sender, [path, other], failed=failed),
                receiving(ends.receiver, inbox, failed=failed),
            )
        )
        await until(lambda: 0 in ends.out.posted)
        rewrite(path)
        sent, received = await task
    assert [file.name for file in sent] == [file.name for file in received] == ["b"]
    assert [(each.name, each.end) for each in failed] == [("a", "sender")] * 2
    assert all("changed while it was sent" in each.error for each in failed)
    assert "a" not in names(inbox) and "b" in names(inbox)


async def test_send_files__stopped_tells_the_receiver(tmp_path: Path, inbox: Path) -> None:
    path = make(tmp_path, "a", bytes(3 * CHUNK_BYTES))
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        sent = asyncio.create_task(sending(ends.sender, [path]))
        ends.back.held = True  # the acceptance does not leave
        await until(lambda: os.listdir(inbox))
        sent.cancel()
        ends.back.held = False
        ends.back.release()
        outcomes = await both(sent, received)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert "h0 stopped the transfer: the sender was stopped" in str(outcomes[1])
    assert names(inbox) == []


async def test_receive_files__stopped_tells_the_sender(tmp_path: Path, inbox: Path) -> None:
    path = make(tmp_path, "a", bytes(3 * CHUNK_BYTES))
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        sent = asyncio.create_task(sending(ends.sender, [path]))
        await until(lambda: 0 in ends.out.posted)
        received.cancel()
        outcomes = await both(sent, received)
    assert "h1 stopped the transfer: the receiver was stopped" in str(outcomes[0])
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert names(inbox) == []


@pytest.mark.parametrize("turns", range(10))
async def test_hear__cancelled_takes_nothing(turns: int) -> None:
    """Whenever the cancellation comes, the next hear returns the messages that have arrived."""
    async with sessions() as ends:
        hearing = asyncio.create_task(ends.receiver.hear())
        await asyncio.sleep(0)
        ends.back.inject(7)
        for _ in range(turns):
            await asyncio.sleep(0)
        hearing.cancel()
        (heard,) = await both(hearing)
        if isinstance(heard, asyncio.CancelledError):
            (heard,) = await both(ends.receiver.hear())
    assert isinstance(heard, Immediate) and heard.imm == 7


async def test_send_files__refusal_together_with_the_last_chunk(tmp_path: Path) -> None:
    path = make(tmp_path, "a", bytes(CHUNK_BYTES))
    memory = bytearray(CHUNK_BYTES)
    async with sessions() as ends:
        sent = asyncio.create_task(sending(ends.sender, [path]))
        offer = await ends.receiver.hear()
        assert isinstance(offer, Offer) and offer.bytes == CHUNK_BYTES
        async with ends.back.ctx.register(memory, Access.REMOTE_WRITE) as mr:
            await ends.receiver.say(Accept(mr.remote, ""))
            ends.out.held = True
            await until(lambda: ends.out.waiting)
            ends.back.held = True
            refusal = asyncio.create_task(ends.receiver.say(Refuse("stopped", "enough")))
            await until(lambda: ends.back.waiting)
            ends.out.held = ends.back.held = False
            ends.out.release()
            ends.back.release()
            (outcome, _) = await both(sent, refusal)
    assert isinstance(outcome, TransferError)
    assert "h1 stopped the transfer: enough" in str(outcome)


async def test_transfer__all_paths_lost(tmp_path: Path, inbox: Path) -> None:
    path = make(tmp_path, "a", bytes(3 * CHUNK_BYTES))
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        sent = asyncio.create_task(sending(ends.sender, [path]))
        await until(lambda: 0 in ends.out.posted)
        ends.out.held = True
        ends.out.fail(WcStatus.RETRY_EXC_ERR)
        ends.back.fail(WcStatus.RETRY_EXC_ERR)
        outcomes = await both(sent, received)
    for outcome, peer in zip(outcomes, ("h1", "h0"), strict=True):
        assert isinstance(outcome, PathError)
        assert f"all paths to {peer} are lost" in str(outcome)
    gc.collect()
    assert not complaints, "tasks with errors that were never retrieved"
    assert names(inbox) == []


async def test_send_files__a_write_that_fails_is_the_reason(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this write: such as one of a mapped file on a disk that fails."""
    path = make(tmp_path, "a", bytes(3 * CHUNK_BYTES))
    async with sessions() as ends:
        write = ends.out.write_imm

        async def fails(*args: Any, imm: int, **options: Any) -> None:
            if imm == chunk_imm(1, 1):
                raise CompletionError(WcStatus.LOC_PROT_ERR, "write_imm")
            await write(*args, imm=imm, **options)

        monkeypatch.setattr(ends.out, "write_imm", fails)
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(MrcError, match="LOC_PROT_ERR"):
                await sending(ends.sender, [path])
        received.cancel()
        await both(received)


async def test_transfer__peer_breaks_the_qp(tmp_path: Path, inbox: Path) -> None:
    path = make(tmp_path, "a", bytes(3 * CHUNK_BYTES))
    async with sessions() as ends:
        sent = asyncio.create_task(sending(ends.sender, [path]))
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await until(lambda: 0 in ends.out.posted)
        ends.out.fail(WcStatus.REM_ACCESS_ERR)
        ends.back.close()
        outcomes = await both(sent, received)
    assert isinstance(outcomes[0], SessionError)
    assert "the peer has no writable memory region" in str(outcomes[0])
    assert isinstance(outcomes[1], MrcError)
    assert names(inbox) == []


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"type": "done", "digest": "", "chunks": 0}, "has not offered"),
        ({"type": "hello"}, "unknown type 'hello'"),
        ({"type": ["x"]}, "unknown type '(list)'"),
        ({"type": "x\x1b[2J"}, r"unknown type 'x\x1b[2J'"),
        ({"type": "offer", "name": "a", "bytes": 10**400, "chunk_bytes": 4096}, "not JSON"),
        ({}, "unknown type 'None'"),
        ({"type": "offer"}, "bad message 'offer': name: is missing"),
        (
            {"type": "offer", "name": "a", "bytes": -1, "chunk_bytes": 4096},
            "'offer': bytes: must be a whole number from 0",
        ),
        (
            {"type": "offer", "name": "a", "bytes": 1 << 63, "chunk_bytes": 4096},
            "'offer': bytes: must be a whole number from 0",
        ),
        (
            {"type": "offer", "name": "a", "bytes": True, "chunk_bytes": 4096},
            "'offer': bytes: must be a whole number from 0",
        ),
        (
            {"type": "offer", "name": "a", "bytes": 1, "chunk_bytes": 0},
            "'offer': chunk_bytes: must be a whole number from 4096",
        ),
        ({"type": "offer", "name": 5, "bytes": 1, "chunk_bytes": 4096}, "name: must be a string"),
        ({"type": "accept", "window": {}}, "bad message 'accept': window.address: is missing"),
        ({"type": "accept", "window": {"address": 0, "rkey": 1, "length": 1}}, "token: is missing"),
        (
            {"type": "refuse", "code": "x", "error": ""},
            """code: must be "all" or "file" or "stopped" or "verification", not 'x'""",
        ),
        ({"type": "abort", "error": "x" * 5000}, "error: must be a string of 0 to 4096"),
    ],
)
async def test_receive_files__peer_talks_nonsense(
    inbox: Path, message: dict[str, Any], complaint: str
) -> None:
    async with sessions() as ends:
        await ends.sender.mailbox.send(message)
        (outcome,) = await both(receiving(ends.receiver, inbox))
    assert isinstance(outcome, ProtocolError)
    assert complaint in str(outcome)


@pytest.mark.parametrize(
    ("imms", "complaint"),
    [
        ([chunk_imm(3, 0)], "not offered"),
        ([0x7FFFFFFF], "not offered"),
        ([chunk_imm(2, 5), chunk_imm(2, 6)], "without credit"),  # the same chunk again
        ([chunk_imm(2, 5), chunk_imm(1, 5)], "without credit"),  # over another chunk
        ([chunk_imm(0, 0), chunk_imm(0, 1)], "not offered"),  # far behind
        ([chunk_imm(0, 64)], "without credit"),
    ],
)
async def test_receive_files__chunks_that_cannot_be(
    inbox: Path, imms: list[int], complaint: str
) -> None:
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.sender.say(Offer("a", 9 << 20, 4 << 20))
        accept = await ends.sender.hear()
        assert isinstance(accept, Accept)
        async with ends.out.ctx.register(bytes(4 << 20), Access.LOCAL_READ) as mr:
            for imm in imms:
                await ends.out.write_imm(mr, accept.window, imm=imm)
            (outcome,) = await both(received)
    assert isinstance(outcome, ProtocolError) and complaint in str(outcome)
    assert names(inbox) == []


@pytest.mark.parametrize("sent", [0, 1, 1000])
@pytest.mark.parametrize("size", [4096 * 100, None])
async def test_receive_files__chunks_count_with_the_bytes_that_came(
    inbox: Path, sent: int, size: int | None
) -> None:
    """An immediate alone would make the receiver store the slot's old bytes once more."""
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.sender.say(Offer("a", size, 4096))
        accept = await ends.sender.hear()
        assert isinstance(accept, Accept)
        first = bytearray(4096)
        seal(memoryview(first), 4096 - FRAME.size)
        async with ends.out.ctx.register(bytes(first), Access.LOCAL_READ) as mr:
            for index in range(100):
                if received.done():
                    break
                imm, length = chunk_imm(index, 0), 4096 if index == 0 else sent
                await ends.out.write_imm(mr, accept.window, imm=imm, length=length)
                await until(lambda: received.done() or index + 1 in ends.back.posted)  # noqa: B023
            (outcome,) = await both(received)
    assert isinstance(outcome, ProtocolError) and "fewer bytes than its chunks" in str(outcome)
    assert index < 20  # the messages of the session are some hundred bytes, which count too
    assert names(inbox) == []


async def test_receive_files__chunks_in_any_order(inbox: Path) -> None:
    """Chunks are stored in file order, and no credit is sent before the first one arrives."""
    data = os.urandom(3 * 4096 - 1)
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.sender.say(Offer("a", len(data), 4096))
        accept = await ends.sender.hear()
        assert isinstance(accept, Accept)
        async with ends.out.ctx.register(data, Access.LOCAL_READ) as mr:
            for index, slot in ((2, 9), (1, 0), (0, 200)):
                assert not [imm for imm in ends.back.posted if imm < 1 << 31]
                part = {"local_offset": index * 4096, "remote_offset": slot * 4096}
                length = min(4096, len(data) - index * 4096)
                imm = chunk_imm(index, slot)
                await ends.out.write_imm(mr, accept.window, imm=imm, length=length, **part)
        await ends.sender.say(OfferDone(xxhash.xxh3_128_hexdigest(data), 3))
        while isinstance(answer := await ends.sender.hear(), Immediate):
            assert answer.imm in (1, 2)
        assert isinstance(answer, Stored)
        await ends.sender.say(Bye())
        await both(received)
    assert (inbox / "a").read_bytes() == data


async def test_receive_files__ends_when_the_sender_closes_between_files(inbox: Path) -> None:
    async with sessions() as ends:
        ends.back.close()
        assert await receiving(ends.receiver, inbox) == []


async def test_receive_files__nothing_after_bye(inbox: Path) -> None:
    async with sessions() as ends:
        await ends.sender.say(Bye())
        assert await receiving(ends.receiver, inbox) == []


async def test_accept_session__another_version() -> None:
    _, back = qp_pair()
    back.private = {"service": "files", "version": 99}
    with pytest.raises(ProtocolError, match="version 99"):
        async with accept_session(back.ctx, back, Joins()):
            pass


def test_plan_of__two_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [make(tmp_path, "a", b"12"), make(tmp_path, "b", b"345")]
    assert plan_of(paths).bytes == 5
    with pytest.raises(FileError, match="would both be stored as a"):
        plan_of([*paths, make(tmp_path / "other", "a", b"")])
