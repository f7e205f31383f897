# SPDX-License-Identifier: Apache-2.0
"""Jobs in a separate thread: their order, the effect of a failure, and the end. Standard input and
output, which a thread waits for.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slowness import PATIENCE
from transfer_ends import both, copied, make, names, receiving, sending, sessions, until

from mrc.transfer import threads
from mrc.transfer.limits import CHUNK_BYTES, FinalError, StoppedError
from mrc.transfer.memory import STEP_BYTES, Mapped
from mrc.transfer.messages import Holes
from mrc.transfer.plan import PipeReader
from mrc.transfer.receiver import receive_files
from mrc.transfer.session import TransferError, TransferSession
from mrc.transfer.sinks import PipeWriter
from mrc.transfer.threads import StuckError, WorkerThread, in_thread


async def test_line__one_after_another() -> None:
    done: list[int] = []
    async with WorkerThread() as line:
        for number in range(100):
            line.put(done.append, number)
        assert await asyncio.wrap_future(line.put(len, done)) == 100
    assert done == list(range(100))


async def test_line__after_a_failure_all_fail_alike() -> None:
    done: list[int] = []
    async with WorkerThread() as line:
        line.put(int, "x")
        with pytest.raises(ValueError, match="'x'"):
            await asyncio.wrap_future(line.put(done.append, 1))
    assert done == []


async def test_line__ends_the_job_under_way_and_begins_no_other() -> None:
    running, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def slow() -> None:
        running.set()
        go_on.wait(PATIENCE)
        done.append(1)

    async with WorkerThread() as line:
        line.put(slow)
        line.put(done.append, 2)
        await asyncio.to_thread(running.wait, 10)
        asyncio.get_running_loop().call_later(0.01, go_on.set)
    assert done == [1]


def mapped(
    prepare: Callable[[int, int], None], length: int, ahead_bytes: int, holes: Holes
) -> Mapped:
    region: Any = SimpleNamespace(length=length)
    return Mapped(region, holes, prepare, ahead_bytes)


async def test_mapped__goes_no_further_than_wanted() -> None:
    prepared: list[tuple[int, int]] = []
    length = 5 * STEP_BYTES + 1

    def prepare(offset: int, size: int) -> None:
        prepared.append((offset, size))

    async with mapped(prepare, length, 2 * STEP_BYTES, Holes(((1, 2),))) as feed:
        assert await feed.next() == (0, STEP_BYTES)
        await until(lambda: len(prepared) == 2)
        assert prepared == [(0, STEP_BYTES), (STEP_BYTES, STEP_BYTES)]
        assert await feed.next() == (3 * STEP_BYTES, STEP_BYTES), "behind the hole"
        await feed.skip(6)
        assert await feed.next() is None
        feed.begin_anew()
        assert await feed.next() == (0, STEP_BYTES)
    assert prepared[-1] == (5 * STEP_BYTES, 1)
    assert sum(size for _, size in prepared) == length


async def test_mapped__tells_what_went_wrong() -> None:
    def prepare(offset: int, size: int) -> None:
        raise OSError(28, "no room")

    async with mapped(prepare, STEP_BYTES, STEP_BYTES, Holes()) as feed:
        with pytest.raises(OSError, match="no room"):
            await feed.next()


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_no_thread_can_start__it_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without memory has no threads either: that ended in a traceback."""
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(MemoryError, match="new thread"):
            await in_thread(len, "abc")
        async with WorkerThread() as line:
            with pytest.raises(MemoryError):
                line.put(len, "abc")


async def test_line__its_end_takes_no_thread_of_others() -> None:
    """Sessions that wait for their disks held all of them, and new senders waited behind."""
    go_on = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))

    def wait(begun: asyncio.Event) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE)

    async def waits(begun: asyncio.Event) -> None:
        async with WorkerThread() as line:
            line.put(wait, begun)
            await begun.wait()

    ending = []
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):
            begun = asyncio.Event()
            ending.append(asyncio.create_task(waits(begun)))
            await begun.wait()
        assert await in_thread(len, "abc") == 3
    assert not any(task.done() for task in ending)
    go_on.set()
    await asyncio.gather(*ending)


async def test_line__cancelled_while_it_ends() -> None:
    go_on = threading.Event()
    done: list[int] = []

    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE)

    async def ends() -> None:
        async with WorkerThread() as line:
            line.put(wait)
            line.put(done.append, 1)
            await begun.wait()

    ending = asyncio.create_task(ends())
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    for _ in range(3):
        ending.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert done == []


async def test_in_thread__cancelled_asks_for_an_end() -> None:
    stopped = threading.Event()
    work = asyncio.create_task(in_thread(stopped.wait, PATIENCE, stop=stopped.set))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


@pytest.mark.parametrize("waits", ["line", "in_thread"])
async def test_line__a_disk_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """Nobody waits for its thread, which keeps its data until it ends after all."""
    monkeypatch.setattr(threads, "END_SECONDS", 0.01)
    go_on, begun, closed = threading.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stuck() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE)

    async def wait() -> None:
        if waits == "in_thread":
            await in_thread(stuck)
        async with WorkerThread() as line:
            await asyncio.wrap_future(line.put(stuck))

    waiting = asyncio.create_task(wait())
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    waiting.cancel()
    with pytest.raises(StuckError, match="a disk has not answered") as raised:
        await waiting
    raised.value.when_ended(closed.set)
    assert not closed.is_set()
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        await closed.wait()


def test_process__ends_without_a_thread_that_waits_for_a_disk() -> None:
    program = """
import asyncio, os, threading
from mrc.transfer import threads

async def stuck():
    threads.END_SECONDS = 0.01
    async with threads.WorkerThread() as line:
        begun = threading.Event()
        line.put(lambda: begun.set() or threading.Event().wait())
        begun.wait()
        raise ValueError

try:
    asyncio.run(stuck())
except threads.StuckError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=-1, timeout=PATIENCE, check=True)
    assert b"ended without it" in done.stdout


# ---- Standard input and output -------------------------------------------------------------------


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            with suppress(OSError):  # the test closed it
                os.close(fd)


def feed(fd: int, data: bytes) -> threading.Thread:
    """Writes `data` in a thread and closes the pipe."""

    def write() -> None:
        with os.fdopen(fd, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def drain(fd: int) -> tuple[threading.Thread, bytearray]:
    """Reads to the end of the pipe in a thread."""
    data = bytearray()

    def read() -> None:
        while part := os.read(fd, 1 << 20):
            data.extend(part)

    thread = threading.Thread(target=read)
    thread.start()
    return thread, data


def test_fill__returns_what_there_is_when_the_input_pauses() -> None:
    with pipe() as (reads, writes), PipeReader(reads) as reader:
        os.write(writes, b"hello")
        memory = memoryview(bytearray(100))
        assert reader.fill(memory) == 5 and bytes(memory[:5]) == b"hello"
        os.close(writes)
        assert reader.fill(memory) == 0 and reader.bytes == 5


def test_fill__stopped_while_it_waits() -> None:
    with pipe() as (reads, _), PipeReader(reads) as reader:
        threading.Timer(0.05, reader.stop).start()
        with pytest.raises(StoppedError):
            reader.fill(memoryview(bytearray(1)))


def test_write__stopped_while_nobody_reads() -> None:
    with pipe() as (_, writes), PipeWriter(writes) as writer:
        threading.Timer(0.05, writer.stop).start()
        with pytest.raises(StoppedError):
            writer.write(memoryview(bytes(8 << 20)))
        assert os.get_blocking(writes), "other programs share this descriptor"


def test_write__reader_is_gone() -> None:
    with pipe() as (reads, writes), PipeWriter(writes) as writer:
        os.close(reads)
        with pytest.raises(FinalError, match=r"standard output: broken pipe .*has ended"):
            writer.write(memoryview(b"x"))


def test_write__full_disk() -> None:
    no_room = pytest.raises(FinalError, match=r"^standard output: no space left on device$")
    with open("/dev/full", "wb") as full, PipeWriter(full.fileno()) as writer, no_room:
        writer.write(memoryview(b"x"))


async def to_stdout(session: TransferSession, writer: PipeWriter) -> None:
    async for _ in receive_files(session, writer):
        pass


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The writing end of standard input."""
    with pipe() as (reads, writes), os.fdopen(os.dup(reads)) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield writes


@pytest.mark.parametrize("size", [0, 5, 3 * CHUNK_BYTES + 7])
async def test_transfer__stdin(tmp_path: Path, stdin: int, size: int) -> None:
    data = os.urandom(size)
    writer = feed(stdin, data)
    outcomes = await copied(["-"], tmp_path, name="sub/x")
    writer.join()
    assert [[(each.name, each.bytes) for each in end] for end in outcomes] == [
        [("sub/x", size)]
    ] * 2
    assert (tmp_path / "sub" / "x").read_bytes() == data


async def test_transfer__stdin_beyond_the_limit_of_the_receiver(tmp_path: Path, stdin: int) -> None:
    """The limit holds while the size is not known; the sender's input has no end."""
    os.write(stdin, b"12345")
    sent, got = await copied(["-"], tmp_path, bytes=4)
    assert isinstance(sent, TransferError) and "5 bytes exceed the limit of 4" in str(sent)
    assert isinstance(got, FinalError)
    assert names(tmp_path) == []


async def test_transfer__stopped_while_stdin_is_silent(tmp_path: Path, stdin: int) -> None:
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, tmp_path))
        sent = asyncio.create_task(sending(ends.sender, ["-"]))
        await until(lambda: bool(names(tmp_path)))
        sent.cancel()
        stopped, got = await both(sent, received)
    assert isinstance(stopped, asyncio.CancelledError)
    assert "the sender was stopped" in str(got)
    assert names(tmp_path) == []


async def test_transfer__to_stdout(tmp_path: Path) -> None:
    data = [os.urandom(size) for size in (3, 5 * CHUNK_BYTES, 0, 4)]
    (tmp_path / "tree").mkdir()
    for n, content in enumerate(data):
        make(tmp_path / "tree", f"f{n}", content)
    with pipe() as (reads, writes):
        thread, out = drain(reads)
        async with sessions() as ends:
            with PipeWriter(writes) as writer:
                sent = sending(ends.sender, [str(tmp_path / "tree")])
                await both(sent, to_stdout(ends.receiver, writer))
        os.close(writes)
        thread.join()
    assert bytes(out) == b"".join(data)


async def test_transfer__receiver_stopped_while_nobody_reads_stdout(tmp_path: Path) -> None:
    path = make(tmp_path, "a", bytes(8 * CHUNK_BYTES))
    with pipe() as (_, writes):
        async with sessions() as ends:
            with PipeWriter(writes) as writer:
                received = asyncio.create_task(to_stdout(ends.receiver, writer))
                sent = asyncio.create_task(sending(ends.sender, [path]))
                await until(lambda: 0 in ends.out.posted)
                received.cancel()
                stopped, got = await both(sent, received)
    assert "the receiver was stopped" in str(stopped)
    assert isinstance(got, asyncio.CancelledError)
