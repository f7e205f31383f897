# SPDX-License-Identifier: Apache-2.0
"""Writes as C reads them, and what is refused before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from mrc.engine import queue_pair
from mrc.engine.memory import MR, RemoteMemory
from mrc.engine.native import Command, ffi
from mrc.engine.queue_pair import QueuePair, Write, Writes, pieces, size_of
from mrc.enums import Access, CommandOp, WrOpcode
from mrc.errors import ArgumentError

QUEUE = QueuePair(sq_depth=8, mpr=1024, max_wimm=128, qpn=77)
HUGE = RemoteMemory(1 << 20, 9, 1 << 40)


@pytest.fixture
def mr() -> Iterator[MR]:
    region = MR.over(bytearray(100), Access.LOCAL_READ)
    yield region
    region._held.release()


def filled(asked: Writes) -> Any:
    """The command that posts, as C gets it, in a reused slot."""
    commands = ffi.new("struct mrc_command[]", 2)
    Command({"op": CommandOp.QP_MODIFY, "qpn": 9, "value": 5}).fill(commands, 1)
    asked.fill(commands, 1)
    assert commands[0].op == 0
    return commands[1]


def requests(asked: Writes) -> list[tuple[int, ...]]:
    """wr_id, local, lkey, va, rkey, bytes, imm, opcode, unsignaled of each work request."""
    command = filled(asked)
    array = ffi.cast("struct mrc_wr *", command.pointer)
    wrs = [array[i] for i in range(command.value)]
    return [
        (wr.wr_id, wr.local, wr.lkey, wr.va, wr.rkey, wr.bytes, wr.imm, wr.opcode, wr.unsignaled)
        for wr in wrs
    ]


def test_layout__is_that_of_the_c_struct() -> None:
    assert ffi.sizeof("struct mrc_wr") == queue_pair._WR.size
    fields = ("wr_id", "local", "va", "lkey", "rkey", "bytes", "imm", "opcode", "unsignaled")
    packed = queue_pair._WR.pack(*range(1, 10))
    wr = ffi.cast("struct mrc_wr *", ffi.from_buffer(packed))
    assert [getattr(wr, field) for field in fields] == list(range(1, 10))
    for index, field in ((queue_pair._LOCAL, "local"), (queue_pair._VA, "va")):
        assert ffi.offsetof("struct mrc_wr", field) == 8 * index
    end = ffi.sizeof("struct mrc_wr") + queue_pair._UNSIGNALED
    assert ffi.offsetof("struct mrc_wr", "unsignaled") == end


def test_fill__a_write(mr: MR) -> None:
    asked = Writes.of(QUEUE, 3, [Write(mr, HUGE, None, 10, 5, 7)])
    command = filled(asked)
    assert (command.op, command.qpn, command.cookie) == (CommandOp.QP_POST_MANY, 77, 3)
    assert requests(asked) == [
        (3, mr.address + 5, mr.key, HUGE.address + 7, HUGE.rkey, 10, 0, WrOpcode.WRITE, 0)
    ]
    assert (asked.count, asked.size, asked.mrs) == (1, 10, [mr])


def test_fill__an_immediate_of_zero_is_one() -> None:
    asked = Writes.of(QUEUE, 3, [Write(imm=0)])
    assert requests(asked) == [(3, 0, 0, 0, 0, 0, 0, WrOpcode.WRITE_IMM, 0)]
    assert asked.mrs == []


def test_fill__only_the_last_of_many_is_signaled(mr: MR) -> None:
    asked = Writes.of(QUEUE, 3, [Write(mr, HUGE, imm=8), Write(mr, HUGE, length=4), Write(imm=9)])
    found = requests(asked)
    assert [request[-1] for request in found] == [1, 1, 0]
    assert [request[5:7] for request in found] == [(100, 8), (4, 0), (0, 9)]
    assert (asked.count, asked.size, asked.mrs) == (3, 104, [mr, mr])


def test_fill__scattered(mr: MR) -> None:
    asked = Writes.scattered(QUEUE, 3, mr, HUGE, 10, [90, 0], [5, 6])
    write = (10, 0, WrOpcode.WRITE)
    assert requests(asked) == [
        (3, mr.address + 90, mr.key, HUGE.address + 5, HUGE.rkey, *write, 1),
        (3, mr.address, mr.key, HUGE.address + 6, HUGE.rkey, *write, 0),
    ]
    assert (asked.count, asked.size, asked.mrs) == (2, 20, [mr])


def test_fill__a_command_after_writes() -> None:
    commands = ffi.new("struct mrc_command[]", 1)
    Writes.of(QUEUE, 3, [Write(imm=7)]).fill(commands, 0)
    Command({"op": CommandOp.QP_QUERY, "qpn": 5, "cookie": 6}).fill(commands, 0)
    command = commands[0]
    assert (command.op, command.qpn, command.cookie) == (CommandOp.QP_QUERY, 5, 6)
    assert (command.pointer, command.value) == (ffi.NULL, 0)


@pytest.mark.parametrize(
    ("asked", "argument"),
    [
        ({"length": -1}, "local_offset"),
        ({"length": 101}, "local_offset"),
        ({"remote": RemoteMemory(0, 1, 99)}, "remote_offset"),
        ({"length": 0}, "length: a write of no bytes needs an imm"),
        ({"imm": 1 << 32}, "imm"),
        ({"imm": -1}, "imm"),
        ({"mr": None}, "mr, remote"),
        ({"remote": None, "imm": 1}, "mr, remote"),
        ({"mr": None, "remote": None}, "mr, remote"),
        ({"mr": None, "remote": None, "imm": 1, "length": 5}, "mr, remote"),
    ],
)
def test_of__what_is_refused(mr: MR, asked: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentError, match=argument):
        Writes.of(QUEUE, 1, [Write(imm=1), Write(mr, HUGE)._replace(**asked)])


def test_of__more_than_a_message_carries(mr: MR) -> None:
    class Large:
        """A region of more memory than a test should take."""

        key, length, address = 1, 1 << 33, 0
        range = RemoteMemory(0, 1, 1 << 33).range

    large: Any = Large()
    for length in (0xFFFFFFFF, 1 << 32):
        whole = Write(large, HUGE, length=length)
        if length < 1 << 32:
            assert Writes.of(QUEUE, 1, [whole]).size == length
        else:
            with pytest.raises(ArgumentError, match=r"length: .* is not within 0\.\."):
                Writes.of(QUEUE, 1, [whole])


def test_pieces__cover_the_write_and_only_the_last_has_the_immediate(mr: MR) -> None:
    whole = Write(mr, HUGE, 7, (5 << 30) + 3, 10, 20)
    found = list(pieces(whole))
    assert [piece.imm for piece in found] == [None] * 5 + [7]
    assert sum(map(size_of, found)) == size_of(whole)
    for before, piece in itertools.pairwise(found):
        assert piece.local_offset == before.local_offset + size_of(before)
        assert piece.remote_offset == before.remote_offset + size_of(before)
    assert (found[0].local_offset, found[0].remote_offset) == (10, 20)
