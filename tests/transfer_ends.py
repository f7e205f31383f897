# SPDX-License-Identifier: Apache-2.0
"""Sender and receiver of files, joined by two fake QPs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fake_qp import FakeContext, FakeQp, qp_pair
from slowness import PATIENCE

from mrc.transfer.files import OutputDirectory
from mrc.transfer.limits import SenderLimits
from mrc.transfer.messages import Announced, chunk_of
from mrc.transfer.plan import plan_of
from mrc.transfer.receiver import ReceiveEvents, receive_files
from mrc.transfer.results import FailedFile, TransferredFile
from mrc.transfer.sender import SendOptions, send_plan
from mrc.transfer.session import Joins, TransferSession, accept_session, connect_session


class ConnectingContext(FakeContext):
    """`connect` returns one end of a pair and gives `private` to the other end."""

    def __init__(self, qp: FakeQp) -> None:
        super().__init__()
        self.regions = qp.ctx.regions
        self._qp = qp

    async def connect(self, host: str, port: int, *, private: Any, timeout: float) -> FakeQp:
        self._qp.peer.private = private
        self._qp.private = {"service": "files"}
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
        await until(lambda: back.private)
        receiver = await stack.enter_async_context(accept_session(back.ctx, back, Joins()))
        yield Ends(await opening, receiver, out, back)


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
