# SPDX-License-Identifier: Apache-2.0
"""How much of a pack is left to send, also after a lost connection."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from transfer_ends import both, make, names, receiving, sessions, turns, until

from mrc.enums import WcStatus
from mrc.errors import PathError
from mrc.transfer.limits import CHUNK_BYTES, StoppedError
from mrc.transfer.plan import FileEntry, Packer, SourceFile, plan_of
from mrc.transfer.results import StoredBatch
from mrc.transfer.sender import send_plan
from mrc.transfer.session import TransferSession

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
        await turns(50)  # the sender hears it
        ends.out.held = True
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
    packing = Packer(
        [FileEntry(path, path[-1], 0, 0, follow=True) for path in paths], keep_meta=True
    )
    with pytest.raises(StoppedError):
        packing.fill(memoryview(bytearray(CHUNK_BYTES)))
    assert opened == paths[:1]
