# SPDX-License-Identifier: Apache-2.0
"""Sender and receiver of files, joined by two QPs in memory. These do what mrc.aio.context
specifies: order, one copy, completions.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from slowness import PATIENCE

from mrc.config import ContextConfig
from mrc.connect.admission import Budget
from mrc.connect.oob import Peer
from mrc.engine.memory import Part, Region, RemoteMemory
from mrc.enums import Access, QpState, WcStatus
from mrc.errors import CompletionError
from mrc.events import Ended, Immediate, QpInfo
from mrc.tasks import Opening
from mrc.transfer.files import OutputDirectory, SessionTree
from mrc.transfer.limits import SenderLimits
from mrc.transfer.messages import Accept, Announced, Offer, Pack, chunk_of
from mrc.transfer.plan import plan_of
from mrc.transfer.receiver import ReceiveEvents, receive_files
from mrc.transfer.results import FailedFile, TransferredFile
from mrc.transfer.sender import SendOptions, send_plan
from mrc.transfer.session import Joins, TransferSession, accept_session, connect_session


class FakeContext:
    """Holds the registered memory."""

    def __init__(self) -> None:
        self.config = ContextConfig()
        self.regions: dict[int, Region] = {}
        """by their keys"""
        self._peer_memory = Budget(1 << 31)

    def register(self, buffer: Any, *, writable: bool = False) -> Opening[Region]:
        access = Access.REMOTE_WRITE if writable else Access.LOCAL_READ
        return Opening(self._register(Region._over(buffer, access, self._close)))

    async def _register(self, region: Region) -> Region:
        self.regions[region._key] = region
        return region

    async def _close(self, region: Region, _: BaseException | None) -> None:
        del self.regions[region._key]
        region._held.release()


class FakeWrite(NamedTuple):
    """A write on its way."""

    src: Part | None
    dst: RemoteMemory | None
    imm: int | None


class FakeQp:
    """One end. While `held`, writes wait until `release`."""

    path_mtu, mpr = 8844, 1024

    def __init__(self, ctx: FakeContext, host: str) -> None:
        self.ctx: Any = ctx
        self.peer = Peer(host=host, name=host, address="10.0.0.1", identity="", private={})
        self.other: FakeQp
        """the peer's end"""
        self._gone = asyncio.Event()
        self.held = False
        self.corrupt = False  # damages the data that arrive here
        self.posted: list[int] = []
        self._waiting: deque[tuple[asyncio.Future[int], FakeWrite]] = deque()
        self._arrived: asyncio.Queue[Immediate | None] = asyncio.Queue()
        self._status: WcStatus | None = None
        self._index = 0
        self._received_bytes = 0

    async def __aenter__(self) -> FakeQp:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.other.close()

    def tell(self, private: dict[str, Any]) -> None:
        """The private data of the peer."""
        self.peer = replace(self.peer, private=private)

    async def write(
        self,
        src: Region | Part | None = None,
        dst: RemoteMemory | None = None,
        *,
        imm: int | None = None,
    ) -> int:
        """Without an immediate at once: the test holds only writes that have one."""
        if self._status is not None:
            raise CompletionError(self._status, "write")
        write = FakeWrite(None if src is None else src[:], dst, imm)
        if imm is None:
            return self.other._store(write)
        self.posted.append(imm)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((done, write))
        if not self.held:
            asyncio.get_running_loop().call_soon(self.release, 1)
        return await done

    @property
    def waiting(self) -> int:
        """The number of writes posted but not arrived."""
        return len(self._waiting)

    def release(self, count: int = 1 << 30) -> None:
        """Delivers and completes up to `count` writes in order."""
        while self._waiting and count:
            done, write = self._waiting.popleft()
            size = self.other._arrive(write)
            if not done.done():
                done.set_result(size)
            count -= 1

    def _store(self, write: FakeWrite) -> int:
        if write.src is None or write.dst is None:
            assert write.src is None and write.dst is None
            return 0
        source, target, region = write.src, write.dst, self.ctx.regions[write.dst.rkey]
        assert region.writable and source.length <= target.length
        assert 0 <= target.address - region.address <= region.length - target.length
        ctypes.memmove(target.address, source.address, source.length)
        data = write.imm is not None and write.imm < 1 << 31  # not frames of the mailbox
        if self.corrupt and data and source.length:
            ctypes.c_ubyte.from_address(target.address).value ^= 1
        self._received_bytes += source.length
        return source.length

    def _arrive(self, write: FakeWrite) -> int:
        assert write.imm is not None
        size = self._store(write)
        self._arrived.put_nowait(Immediate(write.imm, size, self._index))
        self._index += 1
        return size

    def inject(self, imm: int, size: int = 0) -> None:
        """Delivers an immediate that the peer's mailbox did not send."""
        self._arrived.put_nowait(Immediate(imm, size, self._index))

    def fail(self, status: WcStatus) -> None:
        """Moves the QP to ERROR."""
        if self._status is None:
            self._status = status
            for done, _ in self._waiting:
                if not done.done():
                    done.set_exception(CompletionError(status, "write"))
            self._waiting.clear()
            self._arrived.put_nowait(None)

    def close(self) -> None:
        """Ends the QP as after an orderly close by the peer."""
        self._gone.set()
        self._arrived.put_nowait(None)

    async def until_closed(self) -> Ended:
        await self._gone.wait()
        return Ended(True, None)

    async def info(self) -> QpInfo:
        """Reports a short path with nothing in flight."""
        return QpInfo(
            qpn=7, state=QpState.RTS, status=WcStatus.SUCCESS, outstanding=self.waiting,
            sent_packets=0, retransmitted_packets=0, spurious_packets=0, first_sent_bytes=0,
            acknowledged_bytes=0, received_bytes=self._received_bytes, cwnd_bytes=0,
            inflight_bytes=0, rtt_ns=None,
            path_mtu=self.path_mtu, timeouts=0, peer_mpr=self.mpr, planes=(),
        )  # fmt: skip

    async def immediates(self) -> AsyncIterator[Immediate]:
        while (immediate := await self._arrived.get()) is not None:
            yield immediate
        if self._status is not None:
            raise CompletionError(self._status, "QP")


def qp_pair() -> tuple[Any, Any]:
    """h0's QP to h1, and h1's QP to h0: each a FakeQp, where a QP is expected too."""
    left, right = FakeQp(FakeContext(), "h1"), FakeQp(FakeContext(), "h0")
    left.other, right.other = right, left
    return left, right


# ---- ends of a transfer --------------------------------------------------------------------------


class ConnectingContext(FakeContext):
    """`connect` returns one end of a pair and gives `private` to the other end."""

    def __init__(self, qp: FakeQp) -> None:
        super().__init__()
        self.regions = qp.ctx.regions
        self._qp = qp

    async def connect(self, host: str, port: int, *, private: Any, timeout: float) -> FakeQp:
        self._qp.other.tell(private)
        self._qp.tell({"service": "files"})
        return self._qp


@dataclass
class Ends:
    sender: TransferSession
    receiver: TransferSession
    out: Any  # each is a FakeQp
    back: Any


@asynccontextmanager
async def sessions(announced: Announced | None = None) -> AsyncIterator[Ends]:
    out, back = qp_pair()
    async with AsyncExitStack() as stack:
        # The fakes do not hang up, so wait for that only briefly.
        stack.enter_context(patch("mrc.transfer.session.LAST_WORDS_SECONDS", 0.1))
        out.ctx = ConnectingContext(out)
        told = announced or Announced()
        connecting = connect_session(out.ctx, "h1", 4791, announced=told, timeout=PATIENCE)
        opening = asyncio.create_task(stack.enter_async_context(connecting))
        await until(lambda: back.peer.private)
        receiver = await stack.enter_async_context(accept_session(back.ctx, back, Joins()))
        yield Ends(await opening, receiver, out, back)


def call_before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Callable[..., object]
) -> None:
    """Each call of a function or a method first calls `do` with the same arguments."""
    function = getattr(owner, name)

    def called(*args: Any, **options: Any) -> Any:
        do(*args, **options)
        return function(*args, **options)

    monkeypatch.setattr(owner, name, called)


def blocked_until(event: threading.Event) -> Callable[..., None]:
    """For `call_before`: the call waits until the test sets the event."""

    def wait(*_: object) -> None:
        assert event.wait(PATIENCE)

    return wait


def make(tmp_path: Path, name: str, data: bytes) -> str:
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


async def sending(
    session: TransferSession,
    paths: list[str],
    *,
    failed: list[FailedFile] | None = None,
    update: bool = False,
    rate: float = 0.0,
    how: SendOptions | None = None,
    **options: Any,
) -> list[TransferredFile]:
    """`failed` gets the files that are not copied."""
    found: list[FailedFile] = [] if failed is None else failed
    plan = plan_of(paths, **options)
    found.extend(plan.failed)
    how = how or SendOptions(on_failed=found.append, update=update, rate=rate)
    batches = send_plan(session, plan, how)
    return [file async for batch in batches for file in batch.files]


async def receiving(
    session: TransferSession,
    inbox: Path,
    *,
    overwrite: bool = False,
    failed: list[FailedFile] | None = None,
    agreed: Announced | None = None,
    rate: float = 0.0,
    fsync: bool = False,
    **limits: Any,
) -> list[TransferredFile]:
    # Left open: a failed file is removed when the session ends, after this function has returned.
    directory = OutputDirectory(str(inbox), overwrite=overwrite, fsync=fsync)
    events = ReceiveEvents(on_failed=([] if failed is None else failed).append, rate=lambda: rate)
    receiving = receive_files(
        session, directory, limits=SenderLimits(**limits), events=events, agreed=agreed
    )
    return [file async for batch in receiving for file in batch.files]


@contextmanager
def tree_in(folder: Path, **options: Any) -> Iterator[SessionTree]:
    """What a session stores in this folder."""
    with OutputDirectory(str(folder), **options) as directory:
        tree = directory.tree()
        yield tree
        tree.close()


OF_SENDER = {"failed", "how", "links", "name", "rate", "update"}


async def copied(paths: list[str], inbox: Path, **options: Any) -> list[Any]:
    """Results or exceptions of both ends of a transfer; the options are those of `sending`, all
    others those of `receiving`.
    """
    ours = {name: options.pop(name) for name in OF_SENDER & options.keys()}
    async with sessions() as ends:
        sent = sending(ends.sender, paths, **ours)
        return await both(sent, receiving(ends.receiver, inbox, **options))


@asynccontextmanager
async def accepted(
    inbox: Path, offer: Offer | Pack, **limits: Any
) -> AsyncIterator[tuple[Ends, asyncio.Task[list[TransferredFile]], Accept]]:
    """A receiver that has accepted this offer: the test is its sender."""
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox, **limits))
        await ends.sender.say(offer)
        accept = await ends.sender.hear()
        assert isinstance(accept, Accept)
        yield ends, received, accept


def chunks(qp: FakeQp) -> list[int]:
    """The indices of the chunks written on the QP, in the order of posting."""
    return [chunk_of(imm, 0)[0] for imm in qp.posted if imm < 1 << 31]


def names(inbox: Path) -> list[str]:
    return sorted(os.listdir(inbox))


async def both(*ends: Awaitable[Any]) -> list[Any]:
    """Results or exceptions of both ends, in bounded time."""
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*ends, return_exceptions=True)


async def turns(count: int) -> None:
    """Runs `count` turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0)
