# SPDX-License-Identifier: Apache-2.0
"""The sender: files that it opens, packs and chunks that it fills ahead, its rate, and what it
waits for.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slowness import PATIENCE
from transfer_ends import (
    Ends,
    both,
    call_before,
    chunks,
    make,
    names,
    receiving,
    sending,
    sessions,
    turns,
    until,
)

from mrc.enums import WcStatus
from mrc.errors import PathError
from mrc.transfer import plan, sender
from mrc.transfer.files import PartFile
from mrc.transfer.limits import CHUNK_BYTES, FileError, StoppedError
from mrc.transfer.memory import FILLED_BYTES, Filled
from mrc.transfer.messages import FRAME, Digest
from mrc.transfer.plan import FileEntry, Packer, SourceFile, plan_of
from mrc.transfer.receiver import Due
from mrc.transfer.results import StoredBatch, Waits
from mrc.transfer.sender import (
    CHUNKS_IN_FLIGHT,
    MIN_PIECE_BYTES,
    PIECE_SECONDS,
    Pace,
    lower,
    send_plan,
)
from mrc.transfer.session import TransferSession


@pytest.mark.parametrize("data", [b"0123456789", b""])
def test_source__is_mapped_unless_it_is_empty(tmp_path: Path, data: bytes) -> None:
    with SourceFile(make(tmp_path, "a", data)) as source:
        assert source.bytes == len(data)
        assert not data or source.map[:] == data
        assert not source.grew(b"not read again")


def test_source__refusals(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, cause in (
        (tmp_path / "missing", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / "fifo", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("/proc/self/status", "its size is unknown.*mrc send - HOST"),
        (tmp_path / "a\0b", "embedded null"),
    ):
        before = {*os.listdir("/proc/self/fd")}
        with pytest.raises(FileError, match=cause):
            SourceFile(str(path))
        assert {*os.listdir("/proc/self/fd")} <= before, "nothing stays open"


def test_close__twice_closes_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    source = SourceFile(str(tmp_path / "a"))
    source.close()
    with (tmp_path / "a").open() as other:  # gets the same descriptor
        source.close()
        assert other.read() == "1"


BYTES = b"0123456789"


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[tuple[SourceFile, Path]]:
    path = tmp_path / "a"
    path.write_bytes(BYTES)
    os.utime(path, ns=(0, 0))
    with SourceFile(str(path)) as source:
        yield source, path


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda path: os.truncate(path, 5), "it shrank"),
        (lambda path: path.write_bytes(b"9876543210"), "it was written to"),
        (lambda path: path.write_bytes(b"9876543210 and more"), "it was written to"),
    ],
    ids=["shrinks", "rewritten", "rewritten and grows"],
)
def test_grew__its_first_bytes_are_others(
    changing: tuple[SourceFile, Path], change: Callable[[Path], object], how: str
) -> None:
    source, path = changing
    change(path)
    with pytest.raises(FileError, match=rf"changed while it was sent \({how}\)"):
        source.grew(Digest(BYTES).digest())


@pytest.mark.parametrize(("more", "grew"), [(b"", False), (b"and more", True)])
def test_grew__its_first_bytes_are_the_same(
    changing: tuple[SourceFile, Path], more: bytes, grew: bool
) -> None:
    """`touch`, and a program that appends to a log."""
    source, path = changing
    path.write_bytes(BYTES + more)
    assert source.grew(Digest(BYTES).digest()) == grew


def test_grew__told_to_stop(changing: tuple[SourceFile, Path]) -> None:
    source, path = changing
    path.touch()
    source.stop()
    with pytest.raises(StoppedError):
        source.grew(Digest(BYTES).digest())


# ---- How much of a pack is left to send, also after a lost connection ----------------------------


SIZES = {"a": 10_000, "b": 0, "c": 3_000, "d": 20_000}


def test_left_bytes__falls_with_what_is_sent_or_fails(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    plan = plan_of([str(tmp_path / name) for name in SIZES])
    (tmp_path / "c").unlink()
    os.truncate(tmp_path / "d", 9_000)
    packing = Packer(plan.entries, keep_meta=False)
    assert packing.left_bytes() == sum(SIZES.values())
    chunk, left = bytearray(16_000), []
    while packing.fill(memoryview(chunk)):
        left.append(packing.left_bytes())
    assert left == sorted(set(left), reverse=True) and left[-1] == 0
    assert [(file.name, file.bytes) for file in packing.files] == [
        ("a", 10_000), ("b", 0), ("d", 9_000),
    ]  # fmt: skip
    assert [failed.name for failed in packing.failed] == ["c"]
    assert [packing.complete(chunks) for chunks in range(4)] == [0, 0, 3, 4]


async def test_send_plan__goes_on_behind_what_is_stored_of_a_pack(
    tmp_path: Path, inbox: Path
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    for number in range(48):
        make(top, f"{number:02}", os.urandom(CHUNK_BYTES // 4))
    plan, batches = plan_of([str(top)]), list[StoredBatch]()

    async def send(session: TransferSession) -> None:
        async for batch in send_plan(session, plan):
            batches.append(batch)

    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        sent = asyncio.create_task(send(ends.sender))
        await until(lambda: any(5 <= imm < 1 << 31 for imm in ends.back.posted))
        ends.out.held = True  # so that it does not end before it fails
        await turns(50)  # the sender hears it
        ends.out.fail(WcStatus.RETRY_EXC_ERR)
        ends.back.fail(WcStatus.RETRY_EXC_ERR)
        lost, _ = await both(sent, received)
    assert isinstance(lost, PathError) and plan.sent >= 16
    async with sessions() as ends:
        _, got = await both(send(ends.sender), receiving(ends.receiver, inbox))
    assert len(got) == 48 - batches[0].count
    assert [file.name for batch in batches for file in batch.files] == [
        f"top/{number:02}" for number in range(48)
    ]
    assert sum(batch.folders for batch in batches) == 1
    assert names(inbox / "top") == names(top)


def test_fill__told_to_stop_reads_no_further_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Last(SourceFile):
        def __init__(self, path: str, *, follow: bool = True) -> None:
            super().__init__(path, follow=follow)
            opened.append(path)
            packing.stop()

    monkeypatch.setattr("mrc.transfer.plan.SourceFile", Last)
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        Path(path).touch()
    entries = [FileEntry(path, path[-1], 0, 0, follow=True) for path in paths]
    packing = Packer(entries, keep_meta=True)
    with pytest.raises(StoppedError):
        packing.fill(memoryview(bytearray(CHUNK_BYTES)))
    assert opened == paths[:1]


# ---- Chunks that a helper thread fills ahead of the writes ---------------------------------------


async def test_next__waits_for_a_chunk_to_be_written_when_all_are_under_way() -> None:
    context: Any = SimpleNamespace(register=lambda memory: nullcontext())
    filled = Filled(lambda payload: len(payload), lambda: 0)
    async with AsyncExitStack() as held, await filled.open(context, held), filled:
        taken = [await filled.next() for _ in range(FILLED_BYTES // CHUNK_BYTES)]
        waiting = asyncio.create_task(filled.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        written = taken[5]
        assert written is not None
        filled.written(written)
        assert await asyncio.wait_for(waiting, PATIENCE) == written


async def test_next__raises_what_fill_raised_after_what_it_had_filled() -> None:
    context: Any = SimpleNamespace(register=lambda memory: nullcontext())
    lengths = iter([5])

    def fill(payload: memoryview) -> int:
        try:
            return next(lengths)
        except StopIteration:
            raise OSError("the pipe broke") from None

    filled = Filled(fill, lambda: 0)
    async with AsyncExitStack() as held, await filled.open(context, held), filled:
        first = await asyncio.wait_for(filled.next(), PATIENCE)
        assert first is not None and first.length == FRAME.size + 5
        with pytest.raises(OSError, match="the pipe broke"):
            await asyncio.wait_for(filled.next(), PATIENCE)


# ---- The rate: pieces at their times, and whole chunks -------------------------------------------


@pytest.mark.parametrize(("rates", "lowest"), [((0, 0), 0), ((0, 5), 5), ((5, 3), 3)])
def test_lower__zero_is_no_limit(rates: tuple[float, ...], lowest: float) -> None:
    assert lower(*rates) == lowest


@pytest.mark.parametrize("rate", [0, 1, 20e6, 25_300_000, 1e9, 1e12])
@pytest.mark.parametrize("length", [1, 4096, 100_000, CHUNK_BYTES])
def test_pieces__cover_the_chunk(rate: float, length: int) -> None:
    pieces = Pace(rate).pieces(length)
    assert [start for start, _ in pieces[1:]] == [sum(piece) for piece in pieces[:-1]]
    assert sum(pieces[-1]) == length
    if rate == 0:
        assert len(pieces) == 1
    else:
        whole = {size for _, size in pieces[:-1]}
        assert all(size % MIN_PIECE_BYTES == 0 for size in whole)
        assert all(size <= max(MIN_PIECE_BYTES, rate / 8 * PIECE_SECONDS) for size in whole)


class Clock:
    """The time of the running event loop, which passes only in sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waited = 100.0, list[float]()
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: self.now, raising=False)

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


async def test_until__waits_for_the_bytes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(8000)
    for _ in range(3):
        await pace.until(500)
    clock.now += 10  # nothing is saved up
    for _ in range(2):
        await pace.until(1000)
    assert clock.waited == [0.0, 0.5, 0.5, 0.0, 1.0]


async def test_send_plan__at_a_rate(tmp_path: Path, inbox: Path) -> None:
    data = os.urandom(5 * CHUNK_BYTES + 1)
    path = make(tmp_path, "a", data)
    async with sessions() as ends:
        await both(sending(ends.sender, [path], rate=1e9), receiving(ends.receiver, inbox))
        assert chunks(ends.out) == list(range(6))
    assert (inbox / "a").read_bytes() == data


async def test_wait__only_for_what_came_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    due = Due()
    await due.wait(1 << 30)  # without a rate
    due.begin(8000)
    clock.now += 0.5
    await due.wait((1 << 30) + 1000)  # half a second too soon
    clock.now += 1
    await due.wait((1 << 30) + 2000)  # in time
    clock.now += 10
    await due.wait((1 << 30) + 2500)  # late: nothing is saved up
    await due.wait((1 << 30) + 3000)
    assert clock.waited == [0.5, 0.0, 0.0, 0.5]


@pytest.mark.parametrize("count", [1, 2])
async def test_receive_files__a_sender_that_ignores_the_rate_is_held(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """In one file by its credit, in several ones by the receiver's acceptance of the next."""
    rate, window = 80e6, 2 * CHUNK_BYTES if count == 1 else 8 * CHUNK_BYTES
    each = 4 * CHUNK_BYTES // count
    paths = [make(tmp_path, f"file{n}", os.urandom(each)) for n in range(count)]
    monkeypatch.setattr(plan, "PACKED_BYTES", 0)
    monkeypatch.setattr(sender, "lower", lambda *rates: 0.0)
    now = asyncio.get_running_loop().time
    async with sessions() as ends:
        began = now()
        got = receiving(ends.receiver, inbox, rate=rate, window_bytes=window)
        sent, stored = await both(sending(ends.sender, paths), got)
        assert len(sent) == len(stored) == count
    # The last two chunks need no credit, and no file follows them.
    assert now() - began >= 2 * CHUNK_BYTES * 8 / rate


# ---- For how long an end waited, and for which part ----------------------------------------------


CHUNKS = 2 * CHUNKS_IN_FLIGHT
HELD_SECONDS = 0.2


class Gate:
    """Calls of a function wait until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.waits = threading.Event()
        self.open = threading.Event()

        def held(*_: object) -> None:
            self.waits.set()
            assert self.open.wait(PATIENCE)

        call_before(monkeypatch, owner, name, held)


async def held(
    ends: Ends, tmp_path: Path, inbox: Path, stuck: Callable[[], object], go_on: Callable[[], None]
) -> tuple[Waits, Waits, float]:
    """Copies a file that stops when `stuck`, until `go_on` some time later. Returns what the sender
    and the receiver waited for, and the time of all.
    """
    begin = time.monotonic()
    path = make(tmp_path, "a", os.urandom(CHUNKS * CHUNK_BYTES))
    copy = asyncio.create_task(both(sending(ends.sender, [path]), receiving(ends.receiver, inbox)))
    await until(stuck)
    await turns(100)
    await asyncio.sleep(HELD_SECONDS)  # the time to be measured
    go_on()
    sent, received = await copy
    assert sent[0].digest == received[0].digest
    seconds = time.monotonic() - begin
    return ends.sender.waiting.seconds(), ends.receiver.waiting.seconds(), seconds


def accepted(ends: Ends) -> bool:
    """The receiver waits for chunks."""
    return ends.receiver.joined.on_chunk is not None


def check(waits: Waits, part: str, seconds: float) -> None:
    """Mostly this part, and all of them together not longer than it took."""
    found = {name: getattr(waits, name) for name in waits.__struct_fields__}
    assert found[part] >= HELD_SECONDS, found
    assert sum(found.values()) <= seconds, found


@pytest.mark.more
@pytest.mark.parametrize(
    ("owner", "name", "sends_after", "receives_after"),
    [
        (PartFile, "write", "storing_seconds", "storing_seconds"),
        (sender, "populate_for_reads", "reading_seconds", "network_seconds"),
    ],
    ids=["its own", "the sender's"],
)
async def test_waiting__for_a_disk(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str,
    sends_after: str, receives_after: str,
) -> None:  # fmt: skip
    gate = Gate(monkeypatch, owner, name)
    async with sessions() as ends:

        def stuck() -> bool:
            if owner is sender:
                return gate.waits.is_set() and accepted(ends)
            return len(chunks(ends.out)) == CHUNKS_IN_FLIGHT and not ends.out.waiting

        sent, received, seconds = await held(ends, tmp_path, inbox, stuck, gate.open.set)
    check(sent, sends_after, seconds)
    check(received, receives_after, seconds)


@pytest.mark.more
async def test_waiting__for_the_network(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, sender, "populate_for_reads")
    async with sessions() as ends:

        def in_flight() -> bool:
            if accepted(ends) and not gate.open.is_set():
                ends.out.held = True
                gate.open.set()
            return bool(ends.out.waiting == CHUNKS_IN_FLIGHT)

        def go_on() -> None:
            ends.out.held = False
            ends.out.release()

        sent, received, seconds = await held(ends, tmp_path, inbox, in_flight, go_on)
    check(sent, "network_seconds", seconds)
    check(received, "network_seconds", seconds)
