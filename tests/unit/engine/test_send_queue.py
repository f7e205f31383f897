# SPDX-License-Identifier: Apache-2.0
"""Writes as C reads them, what is refused before, and the places of a send queue: their order, and
the ends of those that have one or wait for one.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mrc import limits
from mrc.engine import send_queue
from mrc.engine.memory import HeldBuffer, Part, Region, RemoteMemory
from mrc.engine.native import Command, Submission, ffi
from mrc.engine.send_queue import SendQueue, Turn, Waiters, Write, WrOpcode
from mrc.enums import Access, CommandOp
from mrc.errors import ArgumentError, MrcError, PeerGoneError, QueueFullError, StateError

HUGE = RemoteMemory(1 << 20, 9, 1 << 40)
ENDED = StateError("it has ended")


async def never(region: Region, error: BaseException | None) -> None:
    raise AssertionError("nobody closes it")


def large(length: int) -> Region:
    """Of more memory than a test should take."""
    return Region(HeldBuffer(1 << 20, length, None), Access.LOCAL_READ, never)


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region._over(bytearray(100), Access.LOCAL_READ, never)
    yield made
    made._held.release()


class Ends:
    """A send queue whose commands stay here; C is this test."""

    def __init__(self, count: int = 8) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.closed_regions: list[Region] = []
        self.turns: list[Turn] = []
        self.cookies: dict[int, int] = {}
        """of a work request with a completion, by its immediate"""
        self.commands: dict[int, int] = {}
        """cookie of the command, by the same"""
        self.queue = SendQueue(77, count)
        self.queue.attach(self)

    def holds(self, region: Region) -> bool:
        return region not in self.closed_regions

    def check_open(self) -> None:
        if self.closed:
            raise StateError("the Context is closed")

    def send(self, each: Submission) -> None:
        assert isinstance(each, Turn)
        self.turns.append(each)

    def post(self, imm: int = 0) -> asyncio.Future[int]:
        return self.queue.post(None, None, imm, False)

    def take(self) -> list[list[tuple[int, ...]]]:
        """The work requests of each command, which C has taken now."""
        turns, self.turns = self.turns, []
        taken = [requests(turn) for turn in turns]
        for turn, each in zip(turns, taken, strict=True):
            for request in each:
                if not request[-1]:
                    assert request[0] not in self.cookies.values(), "of one that is under way"
                    self.cookies[request[6]] = request[0]
                    self.commands[request[6]] = self.queue.cookie | turn.first
        return taken

    def imms(self) -> list[list[int]]:
        """The same, of each work request its immediate."""
        return [[request[6] for request in each] for each in self.take()]

    def complete(self, *imms: int, error: MrcError | OSError | None = None) -> None:
        """Those with these immediates have ended."""
        for imm in imms:
            self.queue.complete(self.cookies.pop(imm), error)

    def refuse(self, *imms: int, error: MrcError | OSError) -> None:
        """C refuses the command that has posted these."""
        (cookie,) = {self.commands[imm] for imm in imms}
        for imm in imms:
            del self.cookies[imm]
        self.queue.refuse(cookie, error)


def filled(turn: Turn) -> Any:
    """The command that posts, as C gets it, in a reused slot."""
    commands = ffi.new("struct mrc_command[]", 2)
    Command({"op": CommandOp.QP_MODIFY, "qpn": 9, "value": 5}).fill(commands, 1)
    turn.fill(commands, 1)
    assert commands[0].op == 0
    return commands[1]


def requests(turn: Turn) -> list[tuple[int, ...]]:
    """wr_id, local, lkey, va, rkey, bytes, imm, opcode, unsignaled of each work request."""
    command = filled(turn)
    array = ffi.cast("struct mrc_wr *", command.pointer)
    wrs = [array[i] for i in range(command.value)]
    return [
        (wr.wr_id, wr.local, wr.lkey, wr.va, wr.rkey, wr.bytes, wr.imm, wr.opcode, wr.unsignaled)
        for wr in wrs
    ]


async def ended(*futures: asyncio.Future[int]) -> list[object]:
    """The result or error of each; None: it has not ended."""
    await asyncio.sleep(0)
    done = [future for future in futures if future.done()]
    results = dict(zip(done, await asyncio.gather(*done, return_exceptions=True), strict=True))
    return [results.get(future) for future in futures]


# ---- Writes as C reads them ----------------------------------------------------------------------


def test_layout__is_that_of_the_c_struct() -> None:
    assert ffi.sizeof("struct mrc_wr") == send_queue._WR.size
    fields = ["wr_id", "local", "va", "lkey", "rkey", "bytes", "imm", "opcode"]
    fields += ["unsignaled", "redundant"]
    packed = send_queue._WR.pack(*range(1, 11))
    wr = ffi.cast("struct mrc_wr *", ffi.from_buffer(packed))
    assert [getattr(wr, field) for field in fields] == list(range(1, 11))
    for index, field in ((send_queue._LOCAL, "local"), (send_queue._VA, "va")):
        assert ffi.offsetof("struct mrc_wr", field) == 8 * index
    assert ffi.offsetof("struct mrc_wr", "wr_id") == 0
    assert send_queue._WR_ID.size == 8
    end = ffi.sizeof("struct mrc_wr") + send_queue._UNSIGNALED
    assert ffi.offsetof("struct mrc_wr", "unsignaled") == end


async def test_fill__a_write(region: Region) -> None:
    ends = Ends()
    ends.queue.post(region[5:15], HUGE[7:], None, False)
    command = filled(ends.turns[0])
    cookie = ends.queue.cookie
    assert (command.op, command.qpn, command.cookie) == (CommandOp.QP_POST_MANY, 77, cookie)
    assert ends.take() == [[
        (cookie, region.address + 5, region._key, HUGE.address + 7, HUGE.rkey, 10, 0,
         WrOpcode.WRITE, 0)
    ]]  # fmt: skip
    assert (ends.queue.taken, region._outstanding) == (1, 1)


async def test_fill__of_a_region_all_of_it(region: Region) -> None:
    ends = Ends()
    for source in (region, region[:], region[3:][-0:97][:]):
        ends.queue.post(source, HUGE, None, False)
    found = [request[1:6] for request in ends.take()[0]]
    assert found[0] == found[1] == (region.address, region._key, HUGE.address, HUGE.rkey, 100)
    assert found[2] == (region.address + 3, region._key, HUGE.address, HUGE.rkey, 97)


async def test_fill__an_immediate_of_zero_is_one() -> None:
    ends = Ends()
    ends.post(0)
    ends.post(0xFFFFFFFF)
    cookie = ends.queue.cookie
    assert ends.take() == [[
        (cookie, 0, 0, 0, 0, 0, 0, WrOpcode.WRITE_IMM, 0),
        (cookie + 1, 0, 0, 0, 0, 0, 0xFFFFFFFF, WrOpcode.WRITE_IMM, 0),
    ]]  # fmt: skip


async def test_fill__no_bytes_of_a_region_with_an_immediate(region: Region) -> None:
    ends = Ends()
    ends.queue.post(region[50:50], HUGE, 3, False)
    ((request,),) = ends.take()
    assert request[5:8] == (0, 3, WrOpcode.WRITE_IMM)


async def test_fill__only_the_last_of_many_is_signaled(region: Region) -> None:
    ends = Ends()
    writes = [Write(region, HUGE, imm=8), Write(region[:4], HUGE), Write(imm=9)]
    done = ends.queue.post_many(writes)
    (found,) = ends.take()
    assert [request[-1] for request in found] == [1, 1, 0]
    assert [request[5:7] for request in found] == [(100, 8), (4, 0), (0, 9)]
    assert found[-1][0] == ends.queue.cookie
    assert (ends.queue.taken, region._outstanding) == (3, 2)
    ends.complete(9)
    assert await done == 104
    assert (ends.queue.taken, region._outstanding) == (0, 0)


async def test_fill__a_redundant_write(region: Region) -> None:
    ends = Ends()
    ends.queue.post_many([Write(region, HUGE, redundant=True), Write(region, HUGE, imm=1)])
    ends.queue.post(region, HUGE, None, True)
    for turn, redundant in zip(ends.turns, ([1, 0], [1]), strict=True):
        command = filled(turn)
        array = ffi.cast("struct mrc_wr *", command.pointer)
        assert [array[i].redundant for i in range(command.value)] == redundant


@pytest.mark.parametrize("sliced", [False, True])
async def test_fill__scattered(region: Region, sliced: bool) -> None:
    ends = Ends()
    source, target = (region[5:], HUGE[3:]) if sliced else (region, HUGE)
    first = 5 if sliced else 0, 3 if sliced else 0
    done = ends.queue.post_scattered(source, target, 10, [90 - first[0], 0], [5, 6])
    write = (10, 0, WrOpcode.WRITE)
    assert [request[1:] for request in ends.take()[0]] == [
        (region.address + 90, region._key, HUGE.address + first[1] + 5, HUGE.rkey, *write, 1),
        (region.address + first[0], region._key, HUGE.address + first[1] + 6, HUGE.rkey, *write, 0),
    ]
    assert (ends.queue.taken, region._outstanding) == (2, 1)
    ends.complete(0)  # they have no immediates
    assert await done == 20


async def test_fill__a_command_after_writes() -> None:
    ends = Ends()
    ends.post(7)
    commands = ffi.new("struct mrc_command[]", 1)
    ends.turns[0].fill(commands, 0)
    Command({"op": CommandOp.QP_QUERY, "qpn": 5, "cookie": 6}).fill(commands, 0)
    command = commands[0]
    assert (command.op, command.qpn, command.cookie) == (CommandOp.QP_QUERY, 5, 6)
    assert (command.pointer, command.value) == (ffi.NULL, 0)


@pytest.mark.parametrize("length", [0xFFFFFFFF, 1 << 32, (5 << 30) + 3])
async def test_fill__a_write_that_is_too_large_for_one(length: int) -> None:
    """Only the last piece has the immediate, and a completion."""
    ends, whole = Ends(), large(1 << 33)
    done = ends.queue.post(whole[10 : 10 + length], HUGE[20:], 7, False)
    (found,) = ends.take()
    assert len(found) == (1 if length < 1 << 32 else -(-length >> 30))
    at = 0
    for request in found:
        assert (request[1], request[3]) == (whole.address + 10 + at, HUGE.address + 20 + at)
        assert (request[2], request[4]) == (whole._key, HUGE.rkey)
        at += request[5]
    assert at == length
    last = len(found) - 1
    assert [request[6:] for request in found] == [
        *[(0, WrOpcode.WRITE, 1)] * last, (7, WrOpcode.WRITE_IMM, 0)
    ]  # fmt: skip
    ends.complete(7)
    assert await done == length


# ---- What is refused before ----------------------------------------------------------------------


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"dst": RemoteMemory(0, 1, 99)}, r"^dst: 100 bytes do not fit into the 99 bytes of it$"),
    ({"src": "empty"}, r"^src: a write of no bytes needs an imm$"),
    ({"imm": 1 << 32}, r"^imm: 4294967296 does not fit 32 bits$"),
    ({"imm": -1}, r"^imm: -1 does not fit 32 bits$"),
    ({"src": None}, r"^src, dst: pass both, or only an imm for a write of no bytes$"),
    ({"src": None, "imm": 1}, r"^src, dst: pass both, or only an imm"),
    ({"src": None, "dst": None}, r"^src, dst: pass both, or only an imm"),
    ({"dst": RemoteMemory(1 << 64, 1, 100)}, r"^dst: .* an address has 64 bits$"),
    ({"dst": RemoteMemory(0, 1 << 32, 100)}, r"^dst: .* is no memory of a host"),
    ({"dst": RemoteMemory(-1, 1, 100)}, r"^dst: .* is no memory of a host"),
]
WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"src": b"abc"}, r"^src: needs a Region or a slice of one: register the buffer first, not b'"),
    ({"src": HUGE}, r"^src: needs a Region or a slice of one"),
    ({"dst": None}, r"^dst: needs a RemoteMemory or a slice of one: the peer's Region.handle, not"),
    ({"dst": (1, 2, 3)}, r"^dst: needs a RemoteMemory"),
    ({"dst": "region"}, r"^dst: needs a RemoteMemory"),
    ({"imm": "7"}, r"^imm: needs a whole number, not '7'$"),
    ({"imm": 1.0}, r"^imm: needs a whole number, not 1.0$"),
    ({"redundant": 1}, r"^redundant: needs True or False, not 1$"),
    ({"redundant": None}, r"^redundant: needs True or False, not None$"),
]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("wrong", "kind", "cause"),
    [
        *[(wrong, ArgumentError, cause) for wrong, cause in WRONG_VALUES],
        *[(wrong, TypeError, cause) for wrong, cause in WRONG_TYPES],
    ],
)
async def test_post__what_is_refused(
    region: Region, wrong: dict[str, Any], kind: type[Exception], cause: str, many: bool
) -> None:
    ends = Ends()
    special = {"empty": region[3:3], "region": region}
    asked = {name: special.get(value, value) if isinstance(value, str) else value
             for name, value in wrong.items()}  # fmt: skip
    write: Any = Write(region, HUGE)
    write = write._replace(**asked)
    with pytest.raises(kind, match=cause):
        if many:
            ends.queue.post_many([Write(imm=1), Write(region, HUGE), write])
        else:
            ends.queue.post(*write)
    assert (ends.turns, ends.queue.taken, region._outstanding) == ([], 0, 0)


@pytest.mark.parametrize(
    ("length", "src", "dst", "cause"),
    [
        (0, [0], [0], r"^length: 0 is not within 1\.\.4294967295$"),
        (1 << 32, [0], [0], r"^length: 4294967296 is not within"),
        (1, [0], [0, 1], r"^dst_offsets: has 2 items, src_offsets 1$"),
        (50, [0, 51], [0, 0], r"^src_offsets: 50 bytes from there are not inside the 100 bytes$"),
        (50, [-1, 0], [0, 0], r"^src_offsets: 50 bytes from there are not inside"),
        (50, [0, 0], [-1, 0], r"^dst_offsets: 50 bytes from there are not inside"),
        (50, [0, 0], [0, (1 << 40) - 49], r"^dst_offsets: 50 bytes from there are not inside"),
    ],
)
async def test_post_scattered__what_is_refused(
    region: Region, length: int, src: Sequence[int], dst: Sequence[int], cause: str
) -> None:
    ends = Ends()
    with pytest.raises(ArgumentError, match=cause):
        ends.queue.post_scattered(region, HUGE, length, src, dst)
    assert (ends.turns, ends.queue.taken, region._outstanding) == ([], 0, 0)


async def test_post_scattered__an_address_that_no_host_has(region: Region) -> None:
    for remote in (RemoteMemory((1 << 64) - 10, 9, 100), RemoteMemory(0, 1 << 32, 100)):
        with pytest.raises(ArgumentError, match=r"^dst: .* an address has 64 bits$"):
            Ends().queue.post_scattered(region, remote, 1, [0, 0], [0, 99])


async def test_post_scattered__wrong_types(region: Region) -> None:
    post: Any = Ends().queue.post_scattered
    with pytest.raises(TypeError, match=r"^src: needs a Region"):
        post(b"abc", HUGE, 1, [0], [0])
    with pytest.raises(TypeError, match=r"^dst: needs a RemoteMemory"):
        post(region, region, 1, [0], [0])
    for length, offset in ((1.0, 0), (1, 0.0), (1, "0")):
        with pytest.raises(TypeError):
            post(region, HUGE, length, [offset], [offset])


async def test_post__a_closed_region_or_that_of_another_context(region: Region) -> None:
    ends = Ends()
    part = region[3:4]
    ends.closed_regions.append(region)
    refused = pytest.raises(StateError, match=r"^src: .* is closed, or another Context's$")
    for source in (region, part):
        with refused:
            ends.queue.post(source, HUGE, None, False)
        with refused:
            ends.queue.post_many([Write(imm=1), Write(source, HUGE)])
        with refused:
            ends.queue.post_scattered(source, HUGE, 1, [0], [0])
    assert (ends.turns, ends.queue.taken, region._outstanding) == ([], 0, 0)


async def test_post__more_than_a_redundant_write_carries() -> None:
    ends, whole = Ends(), large(1 << 20)
    ends.queue.post(whole[: limits.MAX_REDUNDANT], HUGE, None, True)
    with pytest.raises(ArgumentError, match="redundant: 65537 bytes are above 64 KiB"):
        ends.queue.post(whole[: limits.MAX_REDUNDANT + 1], HUGE, None, True)


async def test_post_many__nothing_is_done_at_once(region: Region) -> None:
    ends = Ends()
    for done in (ends.queue.post_many([]), ends.queue.post_scattered(region, HUGE, 1, [], [])):
        assert done.result() == 0
    assert (ends.turns, ends.queue.taken) == ([], 0)


# ---- Turns: commands of several postings ---------------------------------------------------------


async def test_turn__all_that_is_posted_before_c_looks_is_one_command() -> None:
    ends = Ends(8)
    for imm in range(3):
        ends.post(imm)
    assert ends.imms() == [[0, 1, 2]]
    ends.post(3)
    ends.post(4)
    assert ends.imms() == [[3, 4]]
    assert ends.imms() == []


async def test_turn__the_ring_begins_again() -> None:
    ends = Ends(4)
    for imm in range(3):
        ends.post(imm)
    assert ends.imms() == [[0, 1, 2]]
    ends.complete(0, 1, 2)
    for imm in range(3, 6):
        ends.post(imm)
    assert ends.imms() == [[3], [4, 5]], "C reads one piece of memory"
    ends.complete(3, 4, 5)
    assert ends.queue.taken == 0


async def test_turn__a_posting_of_several_has_its_own_and_the_order_stays() -> None:
    ends = Ends(8)
    ends.post(0)
    ends.queue.post_many([Write(imm=1), Write(imm=2)])
    ends.post(3)
    ends.post(4)
    assert ends.imms() == [[0], [1, 2], [3, 4]]
    ends.complete(0, 2, 3, 4)
    assert ends.queue.taken == 0


# ---- Places --------------------------------------------------------------------------------------


async def test_places__beyond_the_depth_in_the_order_of_asking(region: Region) -> None:
    ends = Ends(2)
    done = [ends.queue.post(region[:imm], HUGE, imm, False) for imm in range(5)]
    assert (ends.imms(), ends.queue.taken, region._outstanding) == ([[0, 1]], 2, 5)
    ends.complete(0)
    assert (ends.imms(), await ended(*done)) == ([[2]], [0, None, None, None, None])
    late = ends.post(5)  # behind those that wait
    ends.complete(1)
    assert ends.imms() == [[3]]
    ends.complete(2, 3)
    assert ends.imms() == [[4, 5]]
    ends.complete(4, 5)
    assert await ended(*done, late) == [0, 1, 2, 3, 4, 0]
    assert (ends.queue.taken, region._outstanding) == (0, 0)


async def test_places__a_large_posting_is_not_overtaken() -> None:
    ends = Ends(4)
    ends.post(0)
    ends.post(1)
    several = ends.queue.post_many([Write(imm=imm) for imm in (2, 3, 4)])
    one = ends.post(5)
    assert ends.imms() == [[0, 1]]
    ends.complete(0)
    assert ends.imms() == [[2, 3, 4]]
    ends.complete(1)
    assert ends.imms() == [[5]]
    ends.complete(4)
    assert await ended(several, one) == [0, None]
    ends.complete(5)
    assert (await one, ends.queue.taken) == (0, 0)


async def test_places__more_than_there_are_in_pieces() -> None:
    ends = Ends(4)
    done = ends.queue.post_many(Write(imm=imm) for imm in range(10))
    behind = ends.post(10)
    for imms in ([0, 1, 2, 3], [4, 5, 6, 7]):
        assert (ends.imms(), ends.queue.taken) == ([imms], 4)
        ends.complete(imms[-1])
    assert ends.imms() == [[8, 9], [10]]
    assert await ended(done, behind) == [None, None]
    ends.complete(9, 10)
    assert await ended(done, behind) == [0, 0]


async def test_places__the_sum_of_all_pieces(region: Region) -> None:
    ends = Ends(2)
    done = ends.queue.post_many([Write(region, HUGE)] * 5)
    scattered = ends.queue.post_scattered(region, HUGE, 10, [0, 1, 2], [0, 1, 2])
    while ends.turns:
        for turn in ends.take():
            ends.complete(turn[-1][6])
    assert await ended(done, scattered) == [500, 30]
    assert (ends.queue.taken, region._outstanding) == (0, 0)


async def test_places__an_error_of_a_piece_is_that_of_all(region: Region) -> None:
    """The first one counts. What waits goes on: the QP, which has failed, ends it."""
    ends = Ends(2)
    done = ends.queue.post_many([Write(region, HUGE, imm=imm) for imm in range(6)])
    assert ends.imms() == [[0, 1]]
    ends.complete(1)
    assert ends.imms() == [[2, 3]]
    ends.complete(3, error=StateError("of the second piece"))
    with pytest.raises(StateError, match="of the second piece"):
        await done
    ends.take()
    ends.complete(5, error=ENDED)
    assert (ends.queue.taken, region._outstanding) == (0, 0)


async def test_places__pieces_that_wait_end_with_the_queue(region: Region) -> None:
    ends = Ends(2)
    done = ends.queue.post_many([Write(region, HUGE, imm=imm) for imm in range(6)])
    ends.take()
    ends.queue.stop(ENDED.anew)
    with pytest.raises(StateError, match="it has ended"):
        await done
    ends.complete(1)
    assert (ends.turns, ends.queue.taken, region._outstanding) == ([], 0, 0)


async def test_places__one_that_waits_and_is_cancelled_is_never_posted(region: Region) -> None:
    ends = Ends(1)
    done = [ends.queue.post(region, HUGE, imm, False) for imm in range(4)]
    assert ends.imms() == [[0]]
    done[1].cancel()
    done[2].cancel()
    ends.complete(0)
    assert ends.imms() == [[3]]
    ends.complete(3)
    assert await done[3] == 100
    assert (ends.queue.taken, region._outstanding) == (0, 0)


async def test_places__one_that_c_has_taken_keeps_its_place_when_cancelled(region: Region) -> None:
    ends = Ends(1)
    first = ends.queue.post(region, HUGE, 1, False)
    second = ends.post(2)
    ends.take()
    first.cancel()
    assert (ends.imms(), ends.queue.taken, region._outstanding) == ([], 1, 1)
    ends.complete(1)
    assert (ends.imms(), ends.queue.taken, region._outstanding) == ([[2]], 1, 0)
    ends.complete(2, error=ENDED)
    assert [type(each) for each in await ended(second)] == [StateError]


async def test_region__whoever_waits_for_its_last_use_is_woken(region: Region) -> None:
    ends = Ends(4)
    ends.queue.post(region, HUGE, 0, False)
    ends.queue.post_many([Write(region, HUGE), Write(region, HUGE, imm=1)])
    ends.take()
    waits = [ends.loop.create_future() for _ in range(2)]
    waits[0].cancel()
    region._waiting += waits
    ends.complete(0)
    assert not waits[1].done()
    ends.complete(1)
    await waits[1]
    assert (region._waiting, region._outstanding) == ([], 0)


async def test_uses__those_that_are_posted_and_those_that_wait(region: Region) -> None:
    ends, other, unused = Ends(1), large(5), large(5)
    ends.queue.post(region, HUGE, 0, False)
    ends.queue.post(other, HUGE, 1, False)
    assert [ends.queue.uses(each) for each in (region, other, unused)] == [True, True, False]
    ends.take()
    ends.complete(0)
    assert [ends.queue.uses(each) for each in (region, other, unused)] == [False, True, False]


# ---- Ends ----------------------------------------------------------------------------------------


async def test_refuse__exactly_the_postings_of_the_command() -> None:
    """C takes all or nothing of a command."""
    ends = Ends(8)
    first = [ends.post(imm) for imm in range(2)]
    ends.take()
    second = [ends.post(imm) for imm in range(2, 4)]
    several = ends.queue.post_many([Write(imm=4), Write(imm=5)])
    ends.take()
    ends.refuse(2, 3, error=QueueFullError("no room"))
    assert [type(each) for each in await ended(*second)] == [QueueFullError] * 2
    assert await ended(*first, several) == [None] * 3
    ends.refuse(5, error=OSError(errno.ENOMEM, "none"))
    assert [type(each) for each in await ended(several)] == [OSError]
    ends.complete(0, 1)
    assert (await ended(*first), ends.queue.taken) == ([0, 0], 0)


async def test_refuse__what_waited_takes_the_places() -> None:
    """Also those that the same refusal has just given back."""
    ends = Ends(3)
    refused = [ends.post(imm) for imm in range(3)]
    waited = [ends.post(imm) for imm in range(3, 6)]
    ends.take()
    ends.refuse(0, 1, 2, error=ENDED)
    assert [imm for each in ends.imms() for imm in each] == [3, 4, 5]
    ends.complete(3, 4, 5)
    found = await ended(*refused, *waited)
    assert [type(each) for each in found] == [StateError] * 3 + [int] * 3


async def test_refuse__while_earlier_ones_are_under_way() -> None:
    """C refuses at once, and completes later: the places of the earlier ones are still in use."""
    ends = Ends(4)
    first = [ends.post(imm) for imm in range(2)]
    ends.take()
    refused = [ends.post(imm) for imm in range(2, 4)]
    waited = [ends.post(imm) for imm in range(4, 6)]
    ends.take()
    ends.refuse(2, 3, error=ENDED)
    posted = ends.imms()
    ends.complete(0, 1)
    posted += ends.imms()
    assert [imm for each in posted for imm in each] == [4, 5]
    assert await ended(*first, *waited) == [0, 0, None, None]
    ends.complete(4, 5)
    assert await ended(*waited) == [0, 0]
    assert [type(each) for each in await ended(*refused)] == [StateError] * 2
    assert ends.queue.taken == 0


async def test_stop__fails_those_that_wait_and_refuses_others(region: Region) -> None:
    ends = Ends(1)
    taken = ends.queue.post(region, HUGE, 0, False)
    waiting = [ends.queue.post(region, HUGE, None, False) for _ in range(3)]
    many = ends.queue.post_many([Write(imm=1), Write(imm=2)])
    ends.take()
    waiting[1].cancel()
    ends.queue.stop(ENDED.anew)
    found = await ended(waiting[0], waiting[2], many)
    assert [str(each) for each in found] == ["it has ended"] * 3
    assert len({id(each) for each in found}) == 3, "each has its own, with its own traceback"
    assert (await ended(taken), ends.queue.taken, region._outstanding) == ([None], 1, 1)
    refused = pytest.raises(StateError, match="it has ended")
    with refused:
        ends.post()
    with refused:
        ends.queue.post_many([])
    with refused:
        ends.queue.post_scattered(region, HUGE, 1, [], [])
    ends.complete(0)
    assert (await taken, ends.queue.taken, region._outstanding) == (100, 0, 0)


async def test_stop__before_the_arguments_are_looked_at() -> None:
    ends = Ends()
    ends.queue.stop(lambda: PeerGoneError("h1 closed the connection"))
    post: Any = ends.queue.post
    with pytest.raises(PeerGoneError, match="h1 closed"):
        post("wrong", None, None, False)


async def test_fail__ends_the_waits_and_their_places_stay_until_c_is_done(region: Region) -> None:
    ends = Ends(2)
    done = [ends.queue.post(region, HUGE, imm, False) for imm in range(2)]
    ends.take()
    ends.queue.fail(PeerGoneError("gone"))
    ends.queue.fail(PeerGoneError("again"))
    found = await ended(*done)
    assert [str(each) for each in found] == ["gone", "gone"] and found[0] is not found[1]
    assert (ends.queue.taken, region._outstanding) == (2, 2)
    ends.complete(0, 1, error=ENDED)
    assert (ends.queue.taken, region._outstanding) == (0, 0)


async def test_until_idle__when_the_last_has_ended_and_nothing_waits() -> None:
    ends = Ends(1)
    await ends.queue.until_idle()
    ends.post(0)
    ends.post(1)
    idle = [asyncio.create_task(ends.queue.until_idle()) for _ in range(2)]
    await asyncio.sleep(0)
    ends.take()
    ends.complete(0)
    await asyncio.sleep(0)
    assert (ends.queue.taken, [task.done() for task in idle]) == (1, [False, False])
    ends.take()
    ends.complete(1)
    await asyncio.gather(*idle)


async def test_until_idle__a_cancelled_one_that_waits_is_none() -> None:
    ends = Ends(1)
    ends.post(0)
    ends.post(1).cancel()
    idle = asyncio.create_task(ends.queue.until_idle())
    await asyncio.sleep(0)
    ends.take()
    ends.complete(0)
    await idle


# ---- Waiters -------------------------------------------------------------------------------------


async def test_waiters__a_wake_up_is_not_lost_with_a_cancelled_one() -> None:
    waiters = Waiters()
    passed: list[bool] = []
    first, second = (
        asyncio.create_task(waiters.wait(lambda: passed.append(waiters.wake()))) for _ in range(2)
    )
    await asyncio.sleep(0)
    assert waiters.wake()
    first.cancel()
    await second
    assert (first.cancelled(), passed, waiters.wake()) == (True, [True], False)


async def test_waiters__a_cancelled_one_has_no_turn() -> None:
    waiters = Waiters()
    first, second = (asyncio.create_task(waiters.wait(lambda: None)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    waiters.wake_all()
    await second
    assert not waiters.wake()


def test_part__tells_what_it_is(region: Region) -> None:
    assert isinstance(region[10:20], Part)
    assert repr(region[10:20]) == "<<Region of 100 bytes>[10:20]>"
    assert repr(region[10:20][5:]) == "<<Region of 100 bytes>[15:20]>"
