# SPDX-License-Identifier: Apache-2.0
"""Sender and receiver over two fake QPs: contents, refusals, and both ends giving up. A file that
one end cannot read or store does not stop the others; both ends name it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import xxhash
from slowness import PATIENCE
from transfer_ends import (
    Ends,
    accepted,
    blocked_until,
    both,
    call_before,
    chunks,
    copied,
    make,
    names,
    qp_pair,
    receiving,
    sending,
    sessions,
    turns,
    until,
)

from mrc.enums import WcStatus
from mrc.errors import CompletionError, MrcError, PathError, ProtocolError
from mrc.events import Immediate
from mrc.mailbox import SessionError
from mrc.transfer import plan, sender
from mrc.transfer.files import PartFile
from mrc.transfer.limits import CHUNK_BYTES, FileError, FinalError, mark_name
from mrc.transfer.messages import (
    FRAME,
    MAX_LIST_BYTES,
    Abort,
    Accept,
    Bye,
    DiskWait,
    FailedFiles,
    FailedName,
    Offer,
    OfferDone,
    Pack,
    Refuse,
    Stored,
    TransferMessage,
    chunk_imm,
    failed_of,
    from_dict,
    seal,
    to_dict,
)
from mrc.transfer.plan import SendPlan, SourceFile, plan_of
from mrc.transfer.results import FailedFile
from mrc.transfer.sender import CHUNKS_IN_FLIGHT, SendOptions
from mrc.transfer.session import (
    Joins,
    TransferError,
    TransferSession,
    VerificationError,
    accept_session,
)
from mrc.transfer.sinks import PackSink

SIZES = [0, 1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 11 * CHUNK_BYTES + 13]


async def test_send_files__every_size_at_once(tmp_path: Path, inbox: Path) -> None:
    data = {f"file{n}": os.urandom(size) for n, size in enumerate(SIZES)}
    paths = [make(tmp_path, name, content) for name, content in data.items()]
    sent, received = await copied(paths, inbox)
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
        ("taken", 100, "exists in .*--overwrite"),
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

    def noted(_: TransferSession, message: TransferMessage) -> None:
        if isinstance(message, DiskWait):
            told.set()

    call_before(monkeypatch, TransferSession, "say", noted)
    call_before(monkeypatch, SourceFile, "grew", blocked_until(told))
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
    """test_send__a_source_that_shrinks is of the command: the fake has no guard against SIGBUS."""
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


@asynccontextmanager
async def copying(
    tmp_path: Path, inbox: Path
) -> AsyncIterator[tuple[Ends, asyncio.Task[Any], asyncio.Task[Any]]]:
    """A file of three chunks on its way: both ends, and what each of them does."""
    path = make(tmp_path, "a", bytes(3 * CHUNK_BYTES))
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        sent = asyncio.create_task(sending(ends.sender, [path]))
        yield ends, sent, received


async def test_send_files__stopped_tells_the_receiver(tmp_path: Path, inbox: Path) -> None:
    async with copying(tmp_path, inbox) as (ends, sent, received):
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
    async with copying(tmp_path, inbox) as (ends, sent, received):
        await until(lambda: 0 in ends.out.posted)
        received.cancel()
        outcomes = await both(sent, received)
    assert "h1 stopped the transfer: the receiver was stopped" in str(outcomes[0])
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert names(inbox) == []


async def test_receive_files__stopped_while_its_file_cannot_be_removed(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That ends the session, too: the file is not merely refused."""
    close = PartFile.close

    def fails(self: PartFile) -> int:
        close(self)
        raise FileError("a: cannot be removed")

    monkeypatch.setattr(PartFile, "close", fails)
    async with copying(tmp_path, inbox) as (ends, sent, received):
        await until(lambda: 0 in ends.out.posted)
        received.cancel()
        outcomes = await both(sent, received)
    assert "a: cannot be removed" in str(outcomes[0])
    assert isinstance(outcomes[1], FileError)


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
        async with ends.back.ctx.register(memory, writable=True) as region:
            await ends.receiver.say(Accept(region.handle, ""))
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
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    async with copying(tmp_path, inbox) as (ends, sent, received):
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

        def fails(*_: object, imm: int | None) -> None:
            if imm == chunk_imm(1, 1):
                raise CompletionError(WcStatus.LOC_PROT_ERR, "write")

        call_before(monkeypatch, ends.out, "write", fails)
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(MrcError, match="LOC_PROT_ERR"):
                await sending(ends.sender, [path])
        received.cancel()
        await both(received)


async def test_transfer__peer_breaks_the_qp(tmp_path: Path, inbox: Path) -> None:
    async with copying(tmp_path, inbox) as (ends, sent, received):
        await until(lambda: 0 in ends.out.posted)
        ends.out.fail(WcStatus.REM_ACCESS_ERR)
        ends.back.close()
        outcomes = await both(sent, received)
    assert isinstance(outcomes[0], SessionError)
    assert "the peer has no writable memory region" in str(outcomes[0])
    assert isinstance(outcomes[1], MrcError)
    assert names(inbox) == []


OFFER = {"type": "offer", "name": "a", "bytes": 1, "chunk_bytes": 4096}


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"type": "done", "digest": "", "chunks": 0}, "has not offered"),
        ({"type": "hello"}, "unknown type 'hello'"),
        ({"type": ["x"]}, "unknown type '(list)'"),
        ({"type": "x\x1b[2J"}, r"unknown type 'x\x1b[2J'"),
        ({}, "unknown type 'None'"),
        ({"type": "offer"}, "bad message 'offer': name: is missing"),
        (OFFER | {"bytes": -1}, "'offer': bytes: must be a whole number from 0"),
        (OFFER | {"bytes": 1 << 63}, "'offer': bytes: must be a whole number from 0"),
        (OFFER | {"bytes": True}, "'offer': bytes: must be a whole number from 0"),
        (OFFER | {"bytes": 10**400}, "not JSON"),
        (OFFER | {"chunk_bytes": 0}, "'offer': chunk_bytes: must be a whole number from 4096"),
        (OFFER | {"name": 5}, "name: must be a string"),
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
    async with (
        accepted(inbox, Offer("a", 9 << 20, 4 << 20)) as (ends, received, accept),
        ends.out.ctx.register(bytes(4 << 20)) as region,
    ):
        for imm in imms:
            await ends.out.write(region, accept.window, imm=imm)
        (outcome,) = await both(received)
    assert isinstance(outcome, ProtocolError) and complaint in str(outcome)
    assert names(inbox) == []


@pytest.mark.parametrize("sent", [0, 1, 1000])
@pytest.mark.parametrize("size", [4096 * 100, None])
async def test_receive_files__chunks_count_with_the_bytes_that_came(
    inbox: Path, sent: int, size: int | None
) -> None:
    """An immediate alone would make the receiver store the slot's old bytes once more."""
    async with accepted(inbox, Offer("a", size, 4096)) as (ends, received, accept):
        first = bytearray(4096)
        seal(memoryview(first), 4096 - FRAME.size)
        async with ends.out.ctx.register(bytes(first)) as region:
            for index in range(100):
                if received.done():
                    break
                part = region[: 4096 if index == 0 else sent]
                await ends.out.write(part, accept.window, imm=chunk_imm(index, 0))
                await until(lambda: received.done() or index + 1 in ends.back.posted)  # noqa: B023
            (outcome,) = await both(received)
    assert isinstance(outcome, ProtocolError) and "fewer bytes than its chunks" in str(outcome)
    assert index < 20  # the messages of the session are some hundred bytes, which count too
    assert names(inbox) == []


async def test_receive_files__chunks_in_any_order(inbox: Path) -> None:
    """Chunks are stored in file order, and no credit is sent before the first one arrives."""
    data = os.urandom(3 * 4096 - 1)
    async with accepted(inbox, Offer("a", len(data), 4096)) as (ends, received, accept):
        async with ends.out.ctx.register(data) as region:
            for index, slot in ((2, 9), (1, 0), (0, 200)):
                assert not [imm for imm in ends.back.posted if imm < 1 << 31]
                part = region[index * 4096 : min((index + 1) * 4096, len(data))]
                window = accept.window[slot * 4096 :]
                await ends.out.write(part, window, imm=chunk_imm(index, slot))
        await ends.sender.say(OfferDone(xxhash.xxh3_128_hexdigest(data), 3))
        while isinstance(answer := await ends.sender.hear(), Immediate):
            assert answer.imm in (1, 2)
        assert isinstance(answer, Stored)
        await ends.sender.say(Bye())
        await both(received)
    assert (inbox / "a").read_bytes() == data


@pytest.mark.parametrize("bye", [False, True])
async def test_receive_files__ends_when_the_sender_closes_between_files(
    inbox: Path, bye: bool
) -> None:
    async with sessions() as ends:
        if bye:
            await ends.sender.say(Bye())
        else:
            ends.back.close()
        assert await receiving(ends.receiver, inbox) == []


async def test_accept_session__another_version() -> None:
    _, back = qp_pair()
    back.tell({"service": "files", "version": 99})
    with pytest.raises(ProtocolError, match="version 99"):
        async with accept_session(back.ctx, back, Joins()):
            pass


# ---- Files that one end cannot read or store -----------------------------------------------------


LARGE = 6 * CHUNK_BYTES  # has an offer of its own
DATA = os.urandom(LARGE + 2)
NAMES = ("top/a", "top/b", "top/c")
Copy = Callable[[], Awaitable[tuple[list[FailedFile], list[FailedFile]]]]


@pytest.fixture(params=[5, 3 * CHUNK_BYTES, LARGE], ids=["small", "of parts", "large"])
def top(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Three files of one size; `b` is the bad one."""
    path = tmp_path / "top"
    path.mkdir()
    for begin, name in enumerate("abc"):
        make(path, name, DATA[begin : begin + request.param])
    return path


@pytest.fixture
def copy(top: Path, inbox: Path) -> Copy:
    """Copies the folder, and checks that all but `b` arrives. Returns what each end leaves out."""
    return partial(all_but_b, top, inbox)


async def all_but_b(top: Path, inbox: Path) -> tuple[list[FailedFile], list[FailedFile]]:
    ours: list[FailedFile] = []
    theirs: list[FailedFile] = []
    async with sessions() as ends:
        sent, got = await both(
            sending(ends.sender, [str(top)], failed=ours),
            receiving(ends.receiver, inbox, failed=theirs),
        )
    assert [file.name for file in sent] == [file.name for file in got] == ["top/a", "top/c"]
    for name in "ac":
        assert (inbox / "top" / name).read_bytes() == (top / name).read_bytes()
    assert os.stat(inbox / "top").st_mtime_ns == os.stat(top).st_mtime_ns, "it is complete"
    assert [each.name for each in ours] == [each.name for each in theirs] == ["top/b"]
    assert [each.end for each in ours] == [each.end for each in theirs]
    return ours, theirs


def opens_not(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[SourceFile], None], module: object
) -> None:
    """The sender's `b` fails."""

    class Bad(SourceFile):
        def __init__(self, path: str, *, follow: bool = True) -> None:
            super().__init__(path, follow=follow)
            if path.endswith("b"):
                what(self)

    monkeypatch.setattr(module, "SourceFile", Bad)


def vanish(source: SourceFile) -> None:
    source.close()
    raise FileError(f"{source.path}: no such file")


def shrink(source: SourceFile) -> None:
    os.truncate(source.path, source.bytes - 1)


@pytest.mark.more
@pytest.mark.parametrize(
    ("what", "cause"),
    [(vanish, "no such file"), (shrink, "it shrank")],
)
async def test_send_plan__file_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, copy: Copy, what: Callable[[SourceFile], None], cause: str
) -> None:
    for module in (plan, sender):
        opens_not(monkeypatch, what, module)
    ours, theirs = await copy()
    assert cause in ours[0].error and cause in theirs[0].error
    assert ours[0].end == "sender"


async def test_send_plan__a_file_that_grows(
    monkeypatch: pytest.MonkeyPatch, top: Path, inbox: Path
) -> None:
    """It is copied as it was when it was opened, and its date is that of then."""

    def grow(source: SourceFile) -> None:
        with open(source.path, "ab") as file:
            file.write(b"x")

    before = (top / "b").read_bytes(), (top / "b").stat().st_mtime_ns
    for module in (plan, sender):
        opens_not(monkeypatch, grow, module)
    grown: list[str] = []
    sent, got = await copied([str(top)], inbox, how=SendOptions(on_grew=grown.append))
    assert [file.name for file in sent] == [file.name for file in got] == list(NAMES)
    copy = inbox / "top" / "b"
    assert (copy.read_bytes(), copy.stat().st_mtime_ns) == before
    assert grown == [str(top / "b")]


async def test_send_plan__file_that_cannot_be_created(
    monkeypatch: pytest.MonkeyPatch, copy: Copy
) -> None:

    def fails(_: PartFile, directory: object, folder: object, name: str, *__: object, **___: object
              ) -> None:  # fmt: skip
        if name == "top/b":
            raise FileError(f"{name}: is odd")

    call_before(monkeypatch, PartFile, "__init__", fails)
    ours, _ = await copy()
    assert (ours[0].error, ours[0].end) == ("top/b: is odd", "receiver")


@pytest.mark.more
@pytest.mark.parametrize("at", [0, 2 * CHUNK_BYTES])
async def test_send_plan__write_that_fails(
    monkeypatch: pytest.MonkeyPatch, copy: Copy, top: Path, inbox: Path, at: int
) -> None:
    """Nothing of the file is left, and the sender has stopped sending it. The folder has a mark."""
    if (top / "b").stat().st_size <= at:
        at = 0

    def fails(self: PartFile, offset: int, chunk: memoryview) -> None:
        if self.name == "top/b" and offset >= at:
            raise OSError(errno.EIO, "broken sector")

    call_before(monkeypatch, PartFile, "_write", fails)
    ours, _ = await copy()
    assert "cannot write: broken sector" in ours[0].error
    assert sorted(os.listdir(inbox)) == [mark_name("top"), "top"]
    assert not (inbox / "top/b").exists()


@pytest.mark.more
async def test_send_plan__commit_that_fails(
    monkeypatch: pytest.MonkeyPatch, copy: Copy, inbox: Path
) -> None:

    def fails(self: PartFile, *_: object) -> None:
        if self.name == "top/b":
            make(inbox / "top", "b", b"from another program")

    call_before(monkeypatch, PartFile, "commit", fails)
    ours, _ = await copy()
    assert "exists in" in ours[0].error and ours[0].end == "receiver"


async def test_send_plan__folder_that_is_a_file_there(tmp_path: Path, inbox: Path) -> None:
    """All below it fails, and the folder too."""
    (tmp_path / "top/in").mkdir(parents=True)
    for path in ("top/a", "top/in/x", "top/in/y", "top/z"):
        make(tmp_path, path, path.encode())
    (inbox / "top").mkdir()
    make(inbox / "top", "in", b"a file")
    failed: list[FailedFile] = []
    sent, _ = await copied([f"{tmp_path}/top"], inbox, failed=failed)
    assert [file.name for file in sent] == ["top/a", "top/z"]
    assert [each.name for each in failed] == ["top/in/x", "top/in/y", "top/in"]


def test_plan_of__what_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "secret", "z"):
        (tmp_path / "top" / name).mkdir(parents=True)
    make(tmp_path / "top", ".x.mrc-01234567", b"reserved")

    def refuses(path: str) -> None:
        if path.endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied")

    call_before(monkeypatch, os, "scandir", refuses)
    plan = plan_of([f"{tmp_path}/top", f"{tmp_path}/nothing"])
    assert [entry.name for entry in plan.entries] == ["top/a", "top/z", "top"]
    assert [each.name for each in plan.failed] == ["top/.x.mrc-01234567", "top/secret", "nothing"]


def test_plan_of__an_error_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "top" / "in").mkdir(parents=True)
    for name, target in (("absolute", "/etc/passwd"), ("out", "../../x"), (".x.mrc-01234567", "a")):
        (tmp_path / "top" / "in" / name).symlink_to(target)
    plan = plan_of([f"{tmp_path}/top"], links=True)
    assert [each.error for each in plan.failed] == [
        f"{tmp_path}/top/in/.x.mrc-01234567: '.x.mrc-01234567' is reserved for temporary files of"
        " mrc: rename the file",
        f"{tmp_path}/top/in/absolute: the link is not relative",
        f"{tmp_path}/top/in/out: the link may lead out of the folder that is sent",
    ]


def test_plan_of__nothing_can_be_sent() -> None:
    with pytest.raises(FileError, match=r"^/nowhere: no such file$"):
        plan_of(["/nowhere"])
    with pytest.raises(FileError, match=r"^/nowhere: no such file, nor can the other 1 be sent$"):
        plan_of(["/nowhere", "/nor/here"])


def test_failed_of__no_message_is_too_long() -> None:
    many = [(f"\udc80{n}" * 300, "é" * 4000) for n in range(500)]
    messages = list(failed_of(many))
    assert [each.name for message in messages for each in message.files] == [n for n, _ in many]
    assert max(len(json.dumps(to_dict(message))) for message in messages) <= MAX_LIST_BYTES


@pytest.mark.parametrize(
    "message",
    [
        FailedFiles((FailedName("d/" * 3000, f"{'d/' * 3000}: no such file"),)),
        Refuse("all", f"{'d/' * 3000}: no such file"),
        OfferDone("", 0, f"{'d/' * 3000}: no such file"),
        Abort(f"{'d/' * 3000}: no such file"),
    ],
)
def test_to_dict__a_path_of_any_length_fits(message: TransferMessage) -> None:
    """It ended the session: the other end refused the message."""
    heard = from_dict(to_dict(message))
    last = heard.files[0] if isinstance(heard, FailedFiles) else heard
    assert isinstance(last, (FailedName, Refuse, OfferDone, Abort))
    assert last.error.endswith(": no such file")


def test_plan_of__a_path_that_no_receiver_takes(tmp_path: Path) -> None:
    """Such a folder can be made step by step, and listed by its descriptor."""
    top, name = tmp_path / "top", "x" * 250
    top.mkdir()
    plan, above = SendPlan(), "/".join([name] * 16)  # 4015 bytes
    for base in ("ok", "y" * 100):
        make(top, base, b"1")
    plan._add_folder(str(top), above, (), "")
    assert [entry.name for entry in plan.entries] == [f"{above}/ok", above]
    (failed,) = plan.failed
    assert "is longer than 4095 bytes" in failed.error


async def test_send_plan__a_receiver_that_fails_what_it_was_not_sent(tmp_path: Path) -> None:
    """It could fill the memory of its sender with names."""
    (tmp_path / "top").mkdir()
    make(tmp_path / "top", "a", b"1")
    async with sessions() as ends:
        sent = asyncio.create_task(sending(ends.sender, [f"{tmp_path}/top"]))
        assert isinstance(await ends.receiver.hear(), Pack)
        await ends.receiver.say(FailedFiles((FailedName("top/b", "odd"),)))
        (outcome,) = await both(sent)
    assert isinstance(outcome, ProtocolError) and "was not sent" in str(outcome)


async def test_send_plan__a_system_that_lets_nothing_be_removed(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender connected again and again: it heard of no cause."""

    def refuses(_: object, **options: object) -> None:
        if "dir_fd" in options:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    call_before(monkeypatch, os, "unlink", refuses)
    monkeypatch.setattr(PartFile, "commit", Mock(side_effect=FileError("b: is odd")))
    (tmp_path / "top").mkdir()
    make(tmp_path / "top", "b", b"1")
    sent, received = await copied([f"{tmp_path}/top"], inbox)
    assert isinstance(received, FinalError) and "disk quota exceeded" in str(received)
    assert isinstance(sent, TransferError) and "disk quota exceeded" in str(sent)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
async def test_receive_files__an_error_of_its_system_is_told(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(PackSink, "store", Mock(side_effect=error))
    (tmp_path / "top").mkdir()
    sent, received = await copied([f"{tmp_path}/top"], inbox)
    assert isinstance(received, type(error))
    assert isinstance(sent, TransferError) and "refused the files" in str(sent)


async def test_receive_files__both_ends_hear_of_a_chunk_before_the_next_one(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk may fail a hundred thousand files; their names are kept until they are told."""
    (tmp_path / "top").mkdir()
    for n in range(8):
        make(tmp_path / "top", f".{n}", bytes(2 * CHUNK_BYTES))
    untold: list[int] = []
    call_before(monkeypatch, PackSink, "store", lambda self, *_: untold.append(len(self.failed)))
    failed: list[FailedFile] = []
    async with sessions() as ends:
        await both(
            sending(ends.sender, [f"{tmp_path}/top"]),
            receiving(ends.receiver, inbox, failed=failed),
        )
    assert len(failed) == 8 and set(untold) == {0}


async def test_send_plan__a_refused_file_is_not_sent_to_its_end(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [make(tmp_path, "b", bytes(40 * CHUNK_BYTES)), make(tmp_path, "c", bytes(LARGE))]

    def fails(self: PartFile, *_: object) -> None:
        if self.name == "b":
            raise OSError(errno.EIO, "broken sector")

    call_before(monkeypatch, PartFile, "_write", fails)
    failed: list[FailedFile] = []
    async with sessions() as ends:
        sent, _ = await both(
            sending(ends.sender, paths, failed=failed), receiving(ends.receiver, inbox)
        )
        assert len(chunks(ends.out)) < 36
    assert [each.name for each in failed] == ["b"] and [file.name for file in sent] == ["c"]
    assert os.listdir(inbox) == ["c"]


async def test_receive_files__the_output_folder_was_removed(tmp_path: Path, inbox: Path) -> None:
    """No file can be stored any more, so there is one error with the remedy."""
    paths = [make(tmp_path, name, b"1") for name in "ab"]
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await turns(1)  # it has opened the folder
        os.rmdir(inbox)
        sent, refused = await both(sending(ends.sender, paths), received)
    removed = f"{inbox}: the folder was removed; start mrc recv again"
    assert str(refused) == removed and str(sent) == f"h1 refused the files: {removed}"
