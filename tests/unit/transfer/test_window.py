# SPDX-License-Identifier: Apache-2.0
"""Files through the receiver's window: slots, credit, and disks that are slow or full."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from endpoints import loopback_config
from slowness import PATIENCE
from transfer_ends import both, chunks, make, names, receiving, sending, sessions, turns, until

from mrc import Context
from mrc.enums import Access
from mrc.errors import ProtocolError
from mrc.transfer.files import PartFile
from mrc.transfer.limits import CHUNK_BYTES, WINDOW_BYTES, FinalError
from mrc.transfer.memory import open_window
from mrc.transfer.messages import Accept, Offer, chunk_imm
from mrc.transfer.sender import CHUNKS_IN_FLIGHT, SendOptions
from mrc.transfer.session import TransferError


class SlowDisk:
    """Targets may write only while it is open; writes fail from `full_at` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full_at: int = 1 << 62) -> None:
        self.open = threading.Event()
        write = PartFile.write

        def slow(target: PartFile, offset: int, chunk: memoryview) -> None:
            assert self.open.wait(PATIENCE)
            if offset >= full_at:
                raise FinalError(f"{target.name}: no room")
            write(target, offset, chunk)

        monkeypatch.setattr(PartFile, "write", slow)


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
    async with sessions() as ends:
        sent, received = await both(
            sending(ends.sender, [path], how=how), receiving(ends.receiver, inbox)
        )
    assert isinstance(sent, TransferError) and "h1 refused the file: a: no room" in str(sent)
    assert isinstance(received, FinalError)
    assert names(inbox) == []
    assert how.stored_chunks == 0, "nothing goes on"


async def test_receive_files__chunks_without_credit(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    async with sessions() as ends:
        task = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.sender.say(Offer("a", 3 << 20, 1 << 20))
        assert isinstance(await ends.sender.hear(), Accept)
        for index in range(3):
            await ends.out.write_imm(imm=chunk_imm(index, index % 2))
        await turns(100)  # it receives all three before it waits for its disk
        disk.open.set()
        (failed,) = await both(task)
    assert isinstance(failed, ProtocolError) and "without credit" in str(failed)


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
        async with ends.back.ctx.register(memory, Access.REMOTE_WRITE) as mr:
            await ends.receiver.say(Accept(mr.remote, ""))
            if credit is not None:
                await until(lambda: 0 in ends.out.posted and not ends.out.waiting)
                await ends.back.write_imm(imm=credit)
            (outcome,) = await both(sent)
    assert isinstance(outcome, ProtocolError) and cause in str(outcome)


async def test_open_window__is_left_before_the_engine_has_let_go_of_it() -> None:
    """As when it is interrupted once more while it waits for the engine."""
    kept: list[memoryview] = []

    class Engine:
        @asynccontextmanager
        async def register(self, memory: Any, access: Access) -> AsyncIterator[None]:
            kept.append(memoryview(memory))
            yield

    engine: Any = Engine()
    with pytest.raises(asyncio.CancelledError):
        async with open_window(engine, 4096):
            raise asyncio.CancelledError
    kept[0][4095] = 1


async def test_open_window__its_memory_ends_with_it() -> None:
    """Whatever refers to it: an error that the user looks at keeps the frames of its session."""
    async with Context(loopback_config()) as ctx:
        async with open_window(ctx, 4096) as window:
            assert not window.memory.closed
        assert window.memory.closed
