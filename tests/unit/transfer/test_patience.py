# SPDX-License-Identifier: Apache-2.0
"""A receiver with a sender that sends too much, or nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slowness import PATIENCE
from transfer_ends import Ends, FakeQp, both, make, names, receiving, sending, sessions, until

from mrc.connect.admission import Budget, BudgetError
from mrc.enums import Access
from mrc.events import QpInfo
from mrc.transfer import sender
from mrc.transfer.limits import CHUNK_BYTES, FinalError
from mrc.transfer.messages import Accept, Bye, Digest, Offer, OfferDone, Refuse, Stored, chunk_imm
from mrc.transfer.plan import Packer
from mrc.transfer.session import IdleError, TransferError, until_idle

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
    async with sessions() as ends:
        sent, received = await both(
            sending(ends.sender, paths), receiving(ends.receiver, inbox, **limits)
        )
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


async def _offers(ends: Ends) -> None:
    await ends.sender.say(Offer("a", 10 * 4096, 4096))


async def _starts(ends: Ends) -> None:
    """Sends the second of ten chunks, so that no chunk can be stored."""
    await _offers(ends)
    accept = await ends.sender.hear()
    assert isinstance(accept, Accept)
    async with ends.out.ctx.register(bytes(4096), Access.LOCAL_READ) as mr:
        await ends.out.write_imm(mr, accept.window, imm=chunk_imm(1, 0), length=4096)


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
    async with sessions() as ends:
        idle = 1.0
        received = asyncio.create_task(receiving(ends.receiver, inbox, idle_seconds=idle))
        await _offers(ends)
        accept = await ends.sender.hear()
        assert isinstance(accept, Accept)
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with ends.out.ctx.register(bytes(4096), Access.LOCAL_READ) as mr:
            for index in range(9, 0, -1):
                await ends.out.write_imm(
                    mr, accept.window, imm=chunk_imm(index, index), length=4096
                )
                await asyncio.sleep(idle / 8)
        assert loop.time() - start > idle and not received.done()
        await ends.sender.say(Bye())
        await both(received)


async def test_receive_files__the_input_of_a_sender_may_pause(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program behind the sender's pipe may be slow. The QP shows that the sender lives."""
    looks: list[FakeQp] = []
    query = FakeQp.query

    async def counted(qp: FakeQp) -> QpInfo:
        looks.append(qp)
        return await query(qp)

    monkeypatch.setattr(FakeQp, "query", counted)
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox, idle_seconds=1.0))
        await ends.sender.say(Offer("a", None, CHUNK_BYTES))
        assert isinstance(await ends.sender.hear(), Accept)
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
    goes_on = threading.Event()
    fill, prepare, looks = Packer.fill, sender._prepare, list[FakeQp]()
    query = FakeQp.query

    def stalled(*args: Any) -> Any:
        goes_on.wait(PATIENCE)
        return prepare(*args)

    def stalled_fill(packing: Packer, payload: memoryview) -> int:
        goes_on.wait(PATIENCE)
        return fill(packing, payload)

    async def counted(qp: FakeQp) -> QpInfo:
        looks.append(qp)
        return await query(qp)

    monkeypatch.setattr(Packer, "fill", stalled_fill)
    monkeypatch.setattr(sender, "_prepare", stalled)
    monkeypatch.setattr(FakeQp, "query", counted)
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
        info = await made.out.query()
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
        assert isinstance(accept, Accept)
        assert accept.window.length == window << 20
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
