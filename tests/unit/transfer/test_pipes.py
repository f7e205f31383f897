# SPDX-License-Identifier: Apache-2.0
"""Standard input and output as ends of a transfer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transfer_ends import both, make, names, sending, sessions, until

from mrc.transfer.files import OutputDirectory
from mrc.transfer.limits import CHUNK_BYTES, FinalError, SenderLimits, StoppedError
from mrc.transfer.plan import PipeReader
from mrc.transfer.receiver import receive_files
from mrc.transfer.session import TransferError
from mrc.transfer.sinks import PipeWriter


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            try:
                os.close(fd)
            except OSError:
                pass  # the test closed it


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


async def receiving(session: Any, output: Any, **limits: Any) -> list[str]:
    received = receive_files(session, output, limits=SenderLimits(**limits))
    return [file.name async for batch in received for file in batch.files]


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
    async with sessions() as ends:
        with OutputDirectory(str(tmp_path)) as directory:
            sent, got = await both(
                sending(ends.sender, ["-"], name="sub/x"), receiving(ends.receiver, directory)
            )
    writer.join()
    assert got == ["sub/x"] and (sent[0].name, sent[0].bytes) == ("sub/x", size)
    assert (tmp_path / "sub" / "x").read_bytes() == data


async def test_transfer__stdin_beyond_the_limit_of_the_receiver(tmp_path: Path, stdin: int) -> None:
    """The limit holds while the size is not known; the sender's input has no end."""
    os.write(stdin, b"12345")
    async with sessions() as ends:
        with OutputDirectory(str(tmp_path)) as directory:
            sent, got = await both(
                sending(ends.sender, ["-"]), receiving(ends.receiver, directory, bytes=4)
            )
    assert isinstance(sent, TransferError) and "5 bytes exceed the limit of 4" in str(sent)
    assert isinstance(got, FinalError)
    assert names(tmp_path) == []


async def test_transfer__stopped_while_stdin_is_silent(tmp_path: Path, stdin: int) -> None:
    async with sessions() as ends:
        with OutputDirectory(str(tmp_path)) as directory:
            received = asyncio.create_task(receiving(ends.receiver, directory))
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
                await both(
                    sending(ends.sender, [str(tmp_path / "tree")]),
                    receiving(ends.receiver, writer),
                )
        os.close(writes)
        thread.join()
    assert bytes(out) == b"".join(data)


async def test_transfer__receiver_stopped_while_nobody_reads_stdout(tmp_path: Path) -> None:
    path = make(tmp_path, "a", bytes(8 * CHUNK_BYTES))
    with pipe() as (_, writes):
        async with sessions() as ends:
            with PipeWriter(writes) as writer:
                received = asyncio.create_task(receiving(ends.receiver, writer))
                sent = asyncio.create_task(sending(ends.sender, [path]))
                await until(lambda: 0 in ends.out.posted)
                received.cancel()
                stopped, got = await both(sent, received)
    assert "the receiver was stopped" in str(stopped)
    assert isinstance(got, asyncio.CancelledError)
