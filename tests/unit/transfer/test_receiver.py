# SPDX-License-Identifier: Apache-2.0
"""The receiver: its window, senders that send too much or nothing, what it limits, its sinks.

Consent: what a user agreed to is all that is stored, whatever the sender does then.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from endpoints import loopback_config
from msgspec import to_builtins
from msgspec.structs import replace
from slowness import PATIENCE
from transfer_ends import (
    Ends,
    FakeQp,
    accepted,
    blocked_until,
    both,
    call_before,
    chunks,
    copied,
    make,
    names,
    receiving,
    sending,
    sessions,
    tree_in,
    turns,
    until,
)

import mrc
from mrc.connect.admission import Budget, BudgetError
from mrc.errors import ProtocolError
from mrc.events import QpInfo
from mrc.transfer import sender
from mrc.transfer.files import OutputDirectory, PartFile, SessionTree
from mrc.transfer.folders import Folder
from mrc.transfer.limits import (
    CHUNK_BYTES,
    MAX_DEPTH,
    WINDOW_BYTES,
    FinalError,
    Quota,
    SenderLimits,
    StoppedError,
)
from mrc.transfer.memory import open_window
from mrc.transfer.messages import (
    DIGEST_BYTES,
    FRAME,
    MAX_NAMES,
    Accept,
    Announced,
    Bye,
    Digest,
    Offer,
    OfferDone,
    PackedFile,
    PackedFolder,
    Record,
    Refuse,
    Stored,
    chunk_imm,
    put_header,
    seal,
)
from mrc.transfer.plan import Packer, plan_of
from mrc.transfer.receiver import receive_files
from mrc.transfer.results import Total
from mrc.transfer.sender import CHUNKS_IN_FLIGHT, SendOptions
from mrc.transfer.session import IdleError, TransferError, until_idle
from mrc.transfer.sinks import FileSink, PackSink, StreamSink
from mrc.transfer.threads import StuckError
from mrc.typed import take


class SlowDisk:
    """Targets may write only while it is open; writes fail from `full_at` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full_at: int = 1 << 62) -> None:
        self.open = threading.Event()

        def slow(target: PartFile, offset: int, chunk: memoryview) -> None:
            assert self.open.wait(PATIENCE)
            if offset >= full_at:
                raise FinalError(f"{target.name}: no room")

        call_before(monkeypatch, PartFile, "write", slow)


@pytest.mark.more
async def test_send_files__waits_for_a_slow_disk(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender fills the window with chunks; it writes no more until one is stored."""
    disk = SlowDisk(monkeypatch)
    slots = CHUNKS_IN_FLIGHT
    data = os.urandom(2 * slots * CHUNK_BYTES + 1)
    path = make(tmp_path, "a", data)
    async with sessions() as ends:
        transfer = asyncio.create_task(
            both(sending(ends.sender, [path]), receiving(ends.receiver, inbox))
        )
        await until(lambda: slots - 1 in chunks(ends.out) and not ends.out.waiting)
        await turns(100)
        assert chunks(ends.out) == list(range(slots))
        disk.open.set()
        sent, _ = await transfer
    assert sent[0].bytes == len(data)
    assert (inbox / "a").read_bytes() == data


async def test_receive_files__in_little_memory(tmp_path: Path, inbox: Path) -> None:
    data = os.urandom(7 * CHUNK_BYTES + 1)
    path = make(tmp_path, "a", data)
    async with sessions() as ends:
        receiver = receiving(ends.receiver, inbox, window_bytes=2 * CHUNK_BYTES + 1)
        await both(sending(ends.sender, [path]), receiver)
        assert {imm >> 23 for imm in ends.out.posted if imm < 1 << 31} == {0, 1}
    assert (inbox / "a").read_bytes() == data


async def test_receive_files__disk_full_in_the_middle(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowDisk(monkeypatch, full_at=5 * CHUNK_BYTES).open.set()
    path, how = make(tmp_path, "a", bytes(20 * CHUNK_BYTES)), SendOptions()
    sent, received = await copied([path], inbox, how=how)
    assert isinstance(sent, TransferError) and "h1 refused the file: a: no room" in str(sent)
    assert isinstance(received, FinalError)
    assert names(inbox) == []
    assert how.stored_chunks == 0, "nothing goes on"


async def test_receive_files__chunks_larger_than_the_window(inbox: Path) -> None:
    async with sessions() as ends:
        await ends.sender.say(Offer("a", 1, WINDOW_BYTES + 1))
        (failed,) = await both(receiving(ends.receiver, inbox))
    assert isinstance(failed, ProtocolError) and "larger than the window" in str(failed)


@pytest.mark.parametrize(
    ("window_bytes", "credit", "cause"),
    [
        (CHUNK_BYTES - 1, None, "smaller than a chunk"),
        (CHUNK_BYTES, 0, "never written"),
        (CHUNK_BYTES, 2, "never written"),
    ],
)
async def test_send_files__receiver_breaks_the_rules(
    tmp_path: Path, window_bytes: int, credit: int | None, cause: str
) -> None:
    path = make(tmp_path, "a", bytes(3 * CHUNK_BYTES))
    async with sessions() as ends:
        sent = asyncio.create_task(sending(ends.sender, [path]))
        assert isinstance(await ends.receiver.hear(), Offer)
        memory = bytearray(window_bytes)
        async with ends.back.ctx.register(memory, writable=True) as region:
            await ends.receiver.say(Accept(region.handle, ""))
            if credit is not None:
                await until(lambda: 0 in ends.out.posted and not ends.out.waiting)
                await ends.back.write(imm=credit)
            (outcome,) = await both(sent)
    assert isinstance(outcome, ProtocolError) and cause in str(outcome)


async def test_open_window__is_left_before_the_engine_has_let_go_of_it() -> None:
    """As when it is interrupted once more while it waits for the engine."""
    kept: list[memoryview] = []

    class Engine:
        @asynccontextmanager
        async def register(self, memory: Any, *, writable: bool) -> AsyncIterator[None]:
            kept.append(memoryview(memory))
            yield

    engine: Any = Engine()
    with pytest.raises(asyncio.CancelledError):
        async with open_window(engine, 4096):
            raise asyncio.CancelledError
    kept[0][4095] = 1


async def test_open_window__its_memory_ends_with_it() -> None:
    """Whatever refers to it: an error that the user looks at keeps the frames of its session."""
    async with mrc.open(loopback_config()) as ctx:
        async with open_window(ctx, 4096) as window:
            assert not window.memory.closed
        assert window.memory.closed


# ---- Senders that send too much, or nothing ------------------------------------------------------


IDLE = 0.2


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        ({"files": 2}, "3 files: exceeds the limit of 2 files and folders of one sender"),
        ({"bytes": 30}, "3 files: 40 bytes exceed the limit of 30 bytes of one sender"),
        ({"bytes": 40, "files": 3}, ""),
    ],
)
async def test_limits__of_a_session(
    tmp_path: Path, inbox: Path, limits: dict[str, Any], cause: str
) -> None:
    sizes = {"a": 10, "b": 10, "c": 20}
    paths = [make(tmp_path, name, bytes(size)) for name, size in sizes.items()]
    sent, received = await copied(paths, inbox, **limits)
    if cause:
        assert names(inbox) == []
        with pytest.raises(TransferError, match=f"h1 refused the files: {cause}"):
            raise sent
        assert isinstance(received, FinalError)
    else:
        assert [file.name for file in received] == names(inbox) == list(sizes)


async def _refusal(ends: Ends) -> Refuse:
    while not isinstance(answer := await ends.sender.hear(), Refuse):
        pass
    return answer


async def _silent(_: Ends) -> None:
    """Connects and sends nothing."""


OFFER = Offer("a", 10 * 4096, 4096)


async def _offers(ends: Ends) -> None:
    await ends.sender.say(OFFER)


async def _starts(ends: Ends) -> None:
    """Sends the second of ten chunks, so that no chunk can be stored."""
    await _offers(ends)
    accept = await ends.sender.hear()
    assert isinstance(accept, Accept)
    async with ends.out.ctx.register(bytes(4096)) as region:
        await ends.out.write(region, accept.window, imm=chunk_imm(1, 0))


@pytest.mark.parametrize("sender", [_silent, _offers, _starts])
async def test_receive_files__a_sender_that_stays_is_let_go(inbox: Path, sender: object) -> None:
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox, idle_seconds=IDLE))
        await sender(ends)  # type: ignore[operator]
        refusal = await _refusal(ends)
        (outcome,) = await both(received)
    assert isinstance(outcome, IdleError)
    assert refusal.code == "stopped" and "no progress for 0.2 s" in refusal.error
    assert names(inbox) == []


async def test_receive_files__nobody_reads_the_acceptance(inbox: Path) -> None:
    """The sender receives no message and grants no credit."""
    async with sessions() as ends:
        await ends.sender.say(Offer("a", 1, 4096))
        ends.back.held = True
        (outcome,) = await both(receiving(ends.receiver, inbox, idle_seconds=IDLE))
        ends.back.held = False
        ends.back.release()
    assert isinstance(outcome, IdleError)


async def test_receive_files__a_slow_sender_is_no_silent_one(inbox: Path) -> None:
    loop, idle = asyncio.get_running_loop(), 1.0
    async with accepted(inbox, OFFER, idle_seconds=idle) as (ends, received, accept):
        start = loop.time()
        async with ends.out.ctx.register(bytes(4096)) as region:
            for index in range(9, 0, -1):
                await ends.out.write(region, accept.window, imm=chunk_imm(index, index))
                await asyncio.sleep(idle / 8)
        assert loop.time() - start > idle and not received.done()
        await ends.sender.say(Bye())
        await both(received)


async def test_receive_files__the_input_of_a_sender_may_pause(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program behind the sender's pipe may be slow. The QP shows that the sender lives."""
    looks: list[FakeQp] = []
    call_before(monkeypatch, FakeQp, "info", looks.append)
    offer = Offer("a", None, CHUNK_BYTES)
    async with accepted(inbox, offer, idle_seconds=1.0) as (ends, received, _):
        await until(lambda: received.done() or len(looks) > 2)
        await ends.sender.say(OfferDone(Digest().hexdigest(), 0))
        assert isinstance(await ends.sender.hear(), Stored)
        await ends.sender.say(Bye())
        (files,) = await both(received)
    assert [(file.name, file.bytes) for file in files] == [("a", 0)]


@pytest.mark.parametrize("size", [CHUNK_BYTES, 5 * CHUNK_BYTES], ids=["pack", "file"])
async def test_receive_files__the_disk_of_a_sender_may_stall(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The sender says that it still reads."""
    goes_on, looks = threading.Event(), list[FakeQp]()
    for owner, name in ((Packer, "fill"), (sender, "_prepare")):
        call_before(monkeypatch, owner, name, blocked_until(goes_on))
    call_before(monkeypatch, FakeQp, "info", looks.append)
    monkeypatch.setattr("mrc.transfer.sender.READING_SECONDS", IDLE / 10)
    path = make(tmp_path, "a", bytes(size))
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox, idle_seconds=IDLE))
        sent = asyncio.create_task(sending(ends.sender, [path]))
        await until(lambda: received.done() or len(looks) > 30)
        goes_on.set()
        outcomes = await both(sent, received)
    assert [[file.bytes for file in files] for files in outcomes] == [[size], [size]]


class Payload:
    """A session whose QP reports scripted received bytes."""

    def __init__(self, received: Iterator[int], info: QpInfo) -> None:
        self._received = received
        self._info = info
        self.qp = FakeQp(None, "h0")  # type: ignore[arg-type]
        self.looks = 0

    async def query(self) -> QpInfo:
        self.looks += 1
        return replace(self._info, received_bytes=next(self._received))


@pytest.mark.parametrize(
    ("step", "busy", "ends"), [(0, False, True), (100, False, True), (0, True, False)],
    ids=["nothing", "beyond-the-file", "the-disk-is-slow"],
)  # fmt: skip
async def test_until_idle__what_counts(step: int, busy: bool, ends: bool) -> None:
    """Each look finds `step` more bytes of a file of 300; bytes beyond 300 are no progress."""
    async with sessions() as made:
        info = await made.out.info()
    session = Payload(iter(range(0, 10**9, step) if step else iter(lambda: 5, 6)), info)
    progress = object if busy else (lambda: 0)
    watching = until_idle(session, IDLE / 10, progress, 300)  # type: ignore[arg-type]
    watch = asyncio.create_task(watching)
    await until(lambda: watch.done() or session.looks > 40)
    assert watch.done() is ends
    if ends:
        assert session.looks > (4 if step else 1)
        with pytest.raises(IdleError, match=r"no progress for 0\.02 s"):
            await watch
    watch.cancel()


@pytest.mark.parametrize(
    ("budget", "window"), [(64, 8), (20, 4), (1024, 128), (1 << 20, 256)], ids=str
)
async def test_window__smaller_the_less_memory_is_left(
    inbox: Path, budget: int, window: int
) -> None:
    """In MiB: a quarter of the memory left for this host, which may use half of all."""
    async with sessions() as ends:
        ends.back.ctx._peer_memory = Budget(budget << 20)
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await _offers(ends)
        accept = await ends.sender.hear()
        assert isinstance(accept, Accept) and accept.window.length == window << 20
        assert ends.back.ctx._peer_memory.left("10.0.0.1") == (budget // 2 - window) << 20
        received.cancel()
        await both(received)


async def test_window__no_memory_is_a_refusal(tmp_path: Path, inbox: Path) -> None:
    async with sessions() as ends:
        ends.back.ctx._peer_memory = Budget(6 << 20)
        paths = [make(tmp_path, "a", b"x")]
        sent, received = await both(sending(ends.sender, paths), receiving(ends.receiver, inbox))
    assert isinstance(received, BudgetError)
    with pytest.raises(TransferError, match="h1 refused the file: no memory: 4194304 bytes are"):
        raise sent


# ---- What a user agreed to is all that is stored -------------------------------------------------


def source_tree(top: Path) -> Path:
    (top / "tree/inner").mkdir(parents=True)
    (top / "tree/inner/file").write_bytes(b"12345")
    (top / "tree/link").symlink_to("inner")
    (top / "plain").write_bytes(b"1")
    return top


def test_announced__of_a_plan(tmp_path: Path) -> None:
    top = source_tree(tmp_path)
    plan = plan_of([str(top / "tree"), str(top / "plain")], links=True)
    told = Announced(bytes=6, files=2, folders=3, names=("tree", "plain"))
    assert plan.announced() == told == take(to_builtins(told), Announced)
    named = plan_of([str(top / "plain")], name="x/y/z").announced()
    assert named == Announced(bytes=1, files=1, folders=2, names=("x",))
    inside = plan_of([f"{top}/tree/."], links=True).announced()
    assert inside == Announced(bytes=5, files=1, folders=2, names=("inner", "link"))
    many = (f"n{index}" for index in range(MAX_NAMES + 3))
    assert Announced.of_names(many, bytes=None, files=0, links=0).more == 3


@pytest.mark.parametrize(("agreed", "why"), [
    (Announced(bytes=6, files=1, folders=3), "the 4 files and folders that the receiver's user"),
    (Announced(bytes=6, files=2, folders=2), "the 4 files and folders that the receiver's user"),
    (Announced(bytes=5, files=9), "exceed the 5 bytes that the receiver's user accepted"),
    (Announced(files=9, names=("tree", "plain2")), "plain: the receiver's user accepted other"),
    (Announced(files=9, names=("plain",)), "accepted other names"),
])  # fmt: skip
async def test_receive__no_more_than_agreed(
    tmp_path: Path, inbox: Path, agreed: Announced, why: str
) -> None:
    top = source_tree(tmp_path / "from")
    paths = [str(top / "tree"), str(top / "plain")]
    _, refused = await copied(paths, inbox, links=True, agreed=agreed)
    assert isinstance(refused, FinalError) and why in str(refused)
    stored = [name for _, _, files in os.walk(inbox) for name in files if name[0] != "."]
    assert len(stored) < 2


def test_quota__other_limits_still_hold() -> None:
    quota = Quota(SenderLimits(bytes=10, files=1), Announced(bytes=99, files=99))
    with pytest.raises(FinalError, match="--max-bytes"):
        quota.take("a", size=11)
    with pytest.raises(FinalError, match="--max-files"):
        quota.take("a", files=2)
    quota.take("a", size=5)
    with pytest.raises(FinalError, match="6 bytes exceed the 5 bytes left of the limit of 10 byte"):
        quota.take("b", size=6)


def test_quota__names_beyond_the_announced_ones() -> None:
    Quota(SenderLimits(), Announced(names=("a",), more=1)).check_name("b")
    Quota(SenderLimits()).check_name("b")
    with pytest.raises(FinalError):
        Quota(SenderLimits(), Announced(names=("a",))).check_name("b")


@pytest.mark.parametrize(
    ("told", "limits", "cause"),
    [
        (Announced(bytes=9, files=3, folders=2), {"files": 4}, "5 files and folders: exceeds the"),
        (Announced(bytes=9, files=3), {"bytes": 8}, "9 bytes exceed the limit of 8 bytes"),
        (Announced(bytes=9), {"bytes": 8}, "the announced files: 9 bytes exceed"),
    ],
)
async def test_receive_files__all_that_is_announced_is_more_than_the_limit(
    tmp_path: Path, inbox: Path, told: Announced, limits: dict[str, Any], cause: str
) -> None:
    """Nothing is stored. With --update some of it may be there."""
    paths = [make(tmp_path, name, b"1") for name in "abc"]
    for update in (False, True):
        async with sessions(told) as ends:
            sent, refused = await both(
                sending(ends.sender, paths, update=update),
                receiving(ends.receiver, inbox, **limits),
            )
        if not update:
            assert cause in str(sent) and cause in str(refused) and names(inbox) == []
    assert names(inbox) == ["a", "b", "c"]


# ---- Sinks: limits, the disk, and what they report -----------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[SessionTree]:
    with tree_in(tmp_path) as tree:
        yield tree


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
    call_before(monkeypatch, PartFile, "commit", lambda *_: tree.stop())
    with pytest.raises(StoppedError):
        pack_sink(tree).store(0, pack_of(*map(packed, "abc")))
    assert os.listdir(tmp_path) == ["a"]


def test_pack__told_to_stop_opens_no_further_folder(
    tree: SessionTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_before(monkeypatch, Folder, "enter", lambda *_: tree.stop())
    with pytest.raises(StoppedError):
        pack_sink(tree).store(0, pack_of(packed("a/b/c")))
    assert not (tmp_path / "a" / "b").exists()


async def test_receive_files__ends_in_the_middle_of_a_pack(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on SIGTERM, or when the sender is gone: the chunk under way is not stored to its end."""
    first, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def slow(*_: object) -> None:
        loop.call_soon_threadsafe(first.set)
        assert go_on.wait(PATIENCE)

    call_before(monkeypatch, PartFile, "commit", slow)
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
    loop, close = asyncio.get_running_loop(), SessionTree.close

    def stuck(*_: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE)

    def told(self: SessionTree) -> None:
        close(self)
        closed.set()

    call_before(monkeypatch, PartFile, "write", stuck)
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


async def counted(ends: Ends, inbox: Path, total: Total) -> None:
    """Receives files, and counts them."""
    with OutputDirectory(str(inbox)) as directory:
        async for batch in receive_files(ends.receiver, directory):
            total.add(batch, listed=True)


async def test_pack__its_files_folders_links_and_bytes_are_counted(
    tmp_path: Path, inbox: Path
) -> None:
    top = tmp_path / "from"
    (top / "folder").mkdir(parents=True)
    for name, size in (("a", 5), ("folder/b", 10_000), ("folder/c", 0)):
        (top / name).write_bytes(bytes(size))
    (top / "link").symlink_to("a")
    total = Total()
    async with sessions() as ends:
        counting = counted(ends, inbox, total)
        assert await both(sending(ends.sender, [str(top)], links=True), counting)
    assert (total.count, total.folders, total.links, total.bytes) == (3, 2, 1, 10_005)
    assert len(total.files) == 3


async def test_receive_files__of_an_interrupted_pack_it_yields_what_is_stored(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "top").mkdir()
    for name in "abc":
        make(tmp_path / "top", name, bytes(CHUNK_BYTES))
    got = Total()

    def stops(_: PackSink, index: int, chunk: memoryview) -> None:
        if index == 2:
            receiver.get_loop().call_soon_threadsafe(receiver.cancel)

    call_before(monkeypatch, PackSink, "store", stops)
    async with sessions() as ends:
        receiver = asyncio.create_task(counted(ends, inbox, got))
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
        sent, got = await copied([str(tmp_path / "tree")], inbox)
        assert [file.digest for file in sent] == [file.digest for file in got], (sent, got)


async def test_send_plan__packed_holes_need_no_room(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 0)
    os.truncate(make(tmp_path, "hole", b""), 1 << 20)
    _, got = await copied([str(tmp_path / "hole")], inbox)
    assert [(file.name, file.bytes) for file in got] == [("hole", 1 << 20)]
