# SPDX-License-Identifier: Apache-2.0
"""Holes of sparse files are neither read nor sent, and are holes again at the receiver."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import BinaryIO

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from transfer_ends import both, chunks, names, receiving, sending, sessions

from mrc.errors import ProtocolError
from mrc.transfer.cli.report import sent_bytes
from mrc.transfer.files import OutputDirectory
from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.messages import Holes, Offer
from mrc.transfer.plan import FileEntry, holes_of, plan_of
from mrc.transfer.receiver import receive_files
from mrc.transfer.results import StoredBatch
from mrc.transfer.sender import send_plan

SIZE = 20 * CHUNK_BYTES + 5


def put(file: BinaryIO, chunk: int, data: bytes) -> None:
    file.seek(chunk * CHUNK_BYTES)
    file.write(data)


@pytest.mark.more
@pytest.mark.parametrize("data", [(), (20,), (3, 4, 11, 19)])
async def test_send_plan__only_chunks_with_data(
    tmp_path: Path, inbox: Path, data: tuple[int, ...]
) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(SIZE)
        for chunk in data:
            put(file, chunk, b"data!")
    async with sessions() as ends:
        sent, got = await both(sending(ends.sender, [str(path)]), receiving(ends.receiver, inbox))
        assert chunks(ends.out) == list(data)
    assert not isinstance(sent, BaseException) and not isinstance(got, BaseException), (sent, got)
    content = path.read_bytes()
    assert sent[0].digest == got[0].digest == xxhash.xxh3_128_hexdigest(content)
    assert (inbox / "a").read_bytes() == content and names(inbox) == ["a"]
    assert (inbox / "a").stat().st_blocks <= path.stat().st_blocks + 16 * 128 * len(data)


async def test_send_plan__a_hole_has_no_rate(tmp_path: Path, inbox: Path) -> None:
    """Both ends know how much of a file does not travel, and so does who shows the progress."""
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(SIZE)
        put(file, 3, b"data!")
    plan = plan_of([str(path)])
    async with sessions() as ends:
        receiver = receive_files(ends.receiver, OutputDirectory(str(inbox)))

        async def got() -> list[StoredBatch]:
            return [batch async for batch in receiver]

        async def sent() -> list[StoredBatch]:
            return [batch async for batch in send_plan(ends.sender, plan)]

        found = await both(sent(), got())
    for batches in found:
        assert [(each.bytes, sent_bytes(each)) for each in batches] == [(SIZE, CHUNK_BYTES)]
    assert plan.there == SIZE - CHUNK_BYTES


def test_plan__what_need_not_travel(tmp_path: Path) -> None:
    """What the receiver has by --update, and on a later connection what the earlier ones sent."""
    for name, size in (("a", 1), ("b", 20), ("c", 300)):
        (tmp_path / name).write_bytes(bytes(size))
    plan = plan_of([str(tmp_path / name) for name in "abc"])
    plan.connected()
    plan.leave_out([entry for entry in plan.entries[:1] if isinstance(entry, FileEntry)])
    assert (plan.there, plan.bytes) == (1, 320)
    plan.sent = 1
    plan.connected()
    assert (plan.there, plan.bytes) == (20, 320)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=8))
def test_holes__each_chunk(runs: list[tuple[bool, int]]) -> None:
    model: list[bool] = []
    ranges = []
    for hole, count in runs:
        if hole and not (model and model[-1]):
            ranges.append((len(model), count))
        elif hole:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + count)
        model += [hole] * count
    holes = Holes(ranges)
    for chunk in range(len(model) + 2):
        rest = model[chunk:]
        assert holes.left(chunk) == (rest.index(False) if False in rest else len(rest))
        assert holes.bytes_from(chunk, 10, 10 * len(model)) == 10 * sum(rest)
    assert holes.are_within(len(model))


def test_holes_of__parts_of_chunks_are_data(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as file:
        file.truncate(10 * 8192)
        for offset in (8192 + 4096, 5 * 8192):
            file.seek(offset)
            file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
        assert holes_of(file.fileno(), 10 * 8192, 8192).ranges == ((0, 1), (2, 3), (6, 4))


def test_holes_of__a_file_that_became_empty(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as file:
        assert holes_of(file.fileno(), 8192, 4096).ranges == ()


@pytest.mark.parametrize("holes", [((0, 0),), ((2, 1),), ((0, 1), (0, 1)), ((1, 2),)])
async def test_receive_files__holes_that_cannot_be(
    inbox: Path, holes: tuple[tuple[int, int], ...]
) -> None:
    async with sessions() as ends:
        task = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.sender.say(Offer("a", 2 * 4096, 4096, holes=holes))
        (error,) = await both(task)
    assert isinstance(error, ProtocolError) and "holes" in str(error)
