# SPDX-License-Identifier: Apache-2.0
"""What `mrc recv` reports of a transfer that took several connections."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from file_commands import receiving
from printed import printed
from slowness import PATIENCE
from transfer_ends import make, until

import mrc
from mrc.cli.output import Exit
from mrc.tasks import cancelled
from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.messages import Announced
from mrc.transfer.plan import PACKED_BYTES, Packer, plan_of
from mrc.transfer.sender import send_plan
from mrc.transfer.session import TransferSession, connect_session


def connected(ctx: mrc.Context, where: str) -> AbstractAsyncContextManager[TransferSession]:
    """A session of always the same transfer."""
    host, _, port = where.rpartition(":")
    return connect_session(
        ctx, host, int(port), announced=Announced(), transfer="of this test", timeout=PATIENCE
    )


async def test_recv__its_account_of_a_transfer_that_came_back(tmp_path: Path) -> None:
    """The first connection leaves out a file and stores another. The second one knows neither."""
    inbox = tmp_path / "inbox"
    large, small = make(tmp_path, "large", bytes(PACKED_BYTES)), make(tmp_path, "small", b"1")
    with receiving("--output", inbox, "--json") as (receiver, where):
        async with mrc.Context() as first, connected(first, where) as session:
            plan = plan_of([str(tmp_path / "missing"), large, small])
            sent = await anext(send_plan(session, plan))
            assert [file.name for file in sent.files] == ["large"]
            async with mrc.Context() as second, connected(second, where) as again:
                async for _ in send_plan(again, plan_of([small])):
                    pass
        out, _ = receiver.communicate(timeout=PATIENCE)
    result = printed("recv", out.decode())
    assert [each["name"] for each in result["files"]] == ["large", "small"]
    assert [each["name"] for each in result["failed"]] == ["missing"]
    assert result["failed_count"] == 1
    assert receiver.returncode == Exit.NOT_ALL_COPIED


async def test_recv__its_account_of_a_pack_that_came_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender has not heard what is stored of the pack, so it sends all of it again."""
    inbox, top = tmp_path / "inbox", tmp_path / "top"
    (top / "in").mkdir(parents=True)
    (top / "in" / "link").symlink_to("a")
    for name in ("in/a", "x", "y", "z"):
        make(top, name, bytes(CHUNK_BYTES - 1))  # two chunks for each

    async def copy(session: TransferSession, without: tuple[str, ...] = ()) -> None:
        plan = plan_of([str(top)], links=True, exclude=lambda path: path in without)
        async for _ in send_plan(session, plan):
            pass

    fill, more, filled = Packer.fill, threading.Event(), 0

    def waits(self: Packer, payload: memoryview) -> int:
        nonlocal filled
        filled += 1
        if filled == 4:
            assert more.wait(PATIENCE)
        return fill(self, payload)

    monkeypatch.setattr(Packer, "fill", waits)
    with receiving("--output", inbox, "--json") as (receiver, where):
        async with mrc.Context() as first, connected(first, where) as session:
            lost = asyncio.create_task(copy(session))
            await until((inbox / "top" / "x").exists)
            async with mrc.Context() as second, connected(second, where) as again:
                await copy(again, ("in/", "x"))
            more.set()
            await cancelled(lost)
        out, _ = receiver.communicate(timeout=PATIENCE)
    result = printed("recv", out.decode())
    assert sorted(each["name"] for each in result["files"]) == [
        f"top/{n}" for n in ("in/a", *"xyz")
    ]
    assert result["bytes"] == 4 * (CHUNK_BYTES - 1)
    assert (result["folders"], result["links"]) == (2, 1)
