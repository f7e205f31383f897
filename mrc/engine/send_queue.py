# SPDX-License-Identifier: Apache-2.0
"""The send queue of a QP: writes, the work requests that carry them, and their futures.

The stages of a write are those of the functions:

1. The arguments are checked and packed into work requests, one for most writes. Only the last one
   of a posting has a completion, that of all.
2. The posting takes the next places of a ring, or waits for them, first come, first served.
3. What a turn of the event loop has put into the ring goes to C in one command.
4. Completions come in the order of posting; each ends a future and gives the places back.

All of it is synchronous. `mrc.engine.dispatch` brings the commands to the engine, and completions
back.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from operator import index
from typing import Any, NamedTuple, Protocol

from mrc import limits
from mrc.engine import native
from mrc.engine.memory import Part, Region, RemoteMemory
from mrc.engine.native import CData
from mrc.enums import CommandOp
from mrc.errors import ArgumentError, MrcError, StateError


class WrOpcode(IntEnum):
    """Operation of a work request."""

    WRITE = 0
    WRITE_IMM = 1


MAX_MESSAGE_BYTES = 0xFFFFFFFF
_PIECE_BYTES = 1 << 30  # of a write beyond MAX_MESSAGE_BYTES
_POST, _WRITE, _WRITE_IMM = map(int, (CommandOp.QP_POST_MANY, WrOpcode.WRITE, WrOpcode.WRITE_IMM))
# struct mrc_wr: wr_id, local, va, lkey, rkey, bytes, imm, opcode, unsignaled, redundant
_WR = struct.Struct("=QQQIIIIBBB5x")
_SIZE = _WR.size
_WORDS, _LOCAL, _VA = _SIZE // 8, 1, 2  # words of 64 bits, and the indices of two of them
_END = 1 << 64  # of the addresses
_UNSIGNALED = -7  # index in the last work request
_WR_ID = struct.Struct("=Q")
_PLACE = 0xFFFFFFFF  # in the cookie of a place, below the number of its QP


# ---- Waiters ------------------------------------------------------------------------------------


class Waiters:
    """Tasks that wait for the next item or event, first come, first served."""

    def __init__(self) -> None:
        self.futures: deque[asyncio.Future[None]] = deque()

    def wake(self) -> bool:
        """Wakes the first waiter; returns False when there is none."""
        while self.futures:
            future = self.futures.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False

    def wake_all(self) -> None:
        while self.wake():
            pass

    async def wait(self, pass_on: Callable[[], object]) -> None:
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                pass_on()  # this waiter was woken and cancelled: the wake-up goes to the next one
            raise


# ---- What a program asks for --------------------------------------------------------------------


class Write(NamedTuple):
    """One write for `QP.post_many`, with the arguments of `QP.post`."""

    src: Region | Part | None = None
    """Memory to read from; None: no bytes, only the immediate."""
    dst: RemoteMemory | None = None
    """The peer's memory to write to, from its begin; at least as long as `src`."""
    imm: int | None = None
    """A 32-bit immediate for the peer; None: none."""
    redundant: bool = False
    """Whether each packet leaves on two planes at once; up to 64 KiB."""


class Posting(NamedTuple):
    """Packed work requests with one completion, which the future waits for."""

    packed: bytes | bytearray
    size: int
    """Sum of the bytes of all: the result."""
    regions: tuple[Region, ...]
    """The memory that they read; some perhaps several times."""
    done: asyncio.Future[int]

    def let_go(self) -> None:
        """C reads its memory no more."""
        for region in self.regions:
            region._outstanding -= 1
            if not region._outstanding and region._waiting:
                region._wake()


class Holder(Protocol):
    """What brings commands to the engine: see `mrc.engine.dispatch.Dispatcher`."""

    loop: asyncio.AbstractEventLoop
    closed: bool

    def check_open(self) -> None:
        """Raises a StateError with the reason if it is closed."""

    def holds(self, region: Region) -> bool:
        """Whether the engine has registered the region."""

    def send(self, each: native.Submission) -> None:
        """Queues a command for the engine."""


class Turn:
    """Postings that go to C in one command: what one turn of the event loop has put into the ring,
    or a posting of several work requests. What is posted after C has seen it begins another one.
    """

    __slots__ = ("count", "first", "memory", "postings", "queue", "seen")

    def __init__(self, queue: SendQueue, first: int, memory: CData, count: int) -> None:
        """From this place on: so many work requests in memory, of one posting."""
        self.queue = queue
        self.first = first
        self.memory = memory
        self.count = count
        self.postings = 1
        self.seen = False

    def fill(self, commands: CData, index: int) -> None:
        """Writes a QP_POST_MANY command with the cookie of its first place. C reads only these
        fields.
        """
        queue, command = self.queue, commands[index]
        command.op, command.qpn, command.cookie = _POST, queue.qpn, queue.cookie | self.first
        command.pointer, command.value = self.memory, self.count
        self.seen = True


class SendQueue:
    """The places of a QP, given out in the order of posting, and the writes that wait for one."""

    def __init__(self, qpn: int, count: int) -> None:
        self.qpn = qpn
        self.cookie = 1 << 63 | qpn << 32
        """That of the first place; `mrc.engine.dispatch` gives others no such number."""
        self.count = count
        self.taken = 0
        """Places that are in use."""
        self.refuses: Callable[[], MrcError] | None = None
        """Why it takes no writes at present, as an error to be raised."""
        self._holder: Holder
        self._ring: bytearray | None = None
        self._memory: CData = None
        self._next = 0  # place
        self._turn: Turn | None = None
        self._turns: dict[int, Turn] = {}  # by their first place
        self._posted: dict[int, Posting] = {}  # by their place
        self._waiting: deque[Posting] = deque()
        self._idle = Waiters()

    def attach(self, holder: Holder) -> None:
        """From now on it may post."""
        self._holder = holder

    # ---- 1. Arguments are packed ----------------------------------------------------------

    def post(
        self, src: Region | Part | None, dst: RemoteMemory | None, imm: int | None, redundant: bool
    ) -> asyncio.Future[int]:
        """Posts one write; raises ArgumentError, TypeError or StateError."""
        self._check_open()
        packed, size, region = self._packed(src, dst, imm, redundant)
        regions = () if region is None else (region,)
        if isinstance(packed, bytearray):  # in pieces
            return self._post_all(packed, size, regions)
        return self._post(Posting(packed, size, regions, self._holder.loop.create_future()))

    def post_many(self, writes: Iterable[Write]) -> asyncio.Future[int]:
        """Posts any number of writes, whose completion is that of the last one; none if one of them
        is wrong.
        """
        self._check_open()
        packed, total = bytearray(), 0
        regions: list[Region] = []
        for write in writes:
            if type(write) is not Write:
                raise TypeError(f"writes: needs items of type Write, not {write!r:.60}")
            one, size, region = self._packed(*write)
            packed += one
            total += size
            if region is not None:
                regions.append(region)
        return self._post_all(packed, total, tuple(regions))

    def post_scattered(
        self,
        src: Region | Part,
        dst: RemoteMemory,
        length: int,
        src_offsets: Sequence[int],
        dst_offsets: Sequence[int],
    ) -> asyncio.Future[int]:
        """Posts a write of `length` bytes for each pair of offsets."""
        self._check_open()
        count = len(src_offsets)
        if len(dst_offsets) != count:
            raise ArgumentError(f"dst_offsets: has {len(dst_offsets)} items, src_offsets {count}")
        if not 0 < _whole("length", length) <= MAX_MESSAGE_BYTES:
            raise ArgumentError(f"length: {length} is not within 1..{MAX_MESSAGE_BYTES}")
        part = _part(src)
        if type(dst) is not RemoteMemory or not self._holder.holds(part.region):
            raise _wrong_memory(part.region, dst)
        for offsets, memory in ((src_offsets, part), (dst_offsets, dst)):
            if count and (min(offsets) < 0 or max(offsets) + length > memory.length):
                name = "src_offsets" if offsets is src_offsets else "dst_offsets"
                raise ArgumentError(
                    f"{name}: {length} bytes from there are not inside the {memory.length} bytes"
                )
        try:
            request = _WR.pack(0, 0, 0, part.region._key, dst.rkey, length, 0, _WRITE, 1, False)
            packed = bytearray(request * count)
            # No Python code runs for a single write, except to add its offsets.
            with memoryview(packed) as view, view.cast("Q") as words:
                words[_LOCAL::_WORDS] = _added(part.address, src_offsets)
                words[_VA::_WORDS] = _added(dst.address, dst_offsets)
        except (struct.error, OverflowError) as error:
            raise _not_memory(dst) from error
        return self._post_all(packed, length * count, (part.region,))

    def _check_open(self) -> None:
        if self.refuses is not None:
            raise self.refuses()
        holder = self._holder
        if holder.closed or holder.loop.is_closed():
            holder.check_open()

    def _packed(
        self, src: Region | Part | None, dst: RemoteMemory | None, imm: object, redundant: bool
    ) -> tuple[bytes | bytearray, int, Region | None]:
        """The work requests of a write without the number of their place, its bytes, its memory."""
        opcode, number = _WRITE, 0
        if imm is not None:
            opcode, number = _WRITE_IMM, _checked_imm(imm)
        if src is None:
            if dst is not None or imm is None:
                raise ArgumentError("src, dst: pass both, or only an imm for a write of no bytes")
            if redundant is not False:
                _check_redundant(redundant, 0)
            return _WR.pack(0, 0, 0, 0, 0, 0, number, opcode, 0, redundant), 0, None
        part = src if type(src) is Part else _part(src)
        length, region = part.length, part.region
        if type(dst) is not RemoteMemory or not self._holder.holds(region):
            raise _wrong_memory(region, dst)
        if dst.length < length:
            raise ArgumentError(f"dst: {length} bytes do not fit into the {dst.length} bytes of it")
        if length == 0 and imm is None:
            raise ArgumentError("src: a write of no bytes needs an imm")
        if redundant is not False:
            _check_redundant(redundant, length)
        if not (0 <= dst.address <= _END - length and 0 <= dst.rkey <= 0xFFFFFFFF):
            raise _not_memory(dst)
        if length > MAX_MESSAGE_BYTES:
            return _in_pieces(part, dst, opcode, number), length, region
        return _WR.pack(
            0, part.address, dst.address, region._key, dst.rkey, length, number, opcode, 0,
            redundant,
        ), length, region  # fmt: skip

    # ---- 2. A posting takes its places ----------------------------------------------------

    def _post_all(
        self, packed: bytearray, size: int, regions: tuple[Region, ...]
    ) -> asyncio.Future[int]:
        """As one posting, or several that wait for each other if the queue is too small."""
        done = self._holder.loop.create_future()
        if not packed:
            done.set_result(0)
            return done
        most = self.count * _SIZE
        for at in range(0, len(packed), most):
            part = packed[at : at + most]
            part[_UNSIGNALED::-_SIZE] = bytes(1) + bytes([1]) * (len(part) // _SIZE - 1)
            if at + most >= len(packed):
                self._post(Posting(part, size, regions, done))
            else:
                each = self._holder.loop.create_future()
                each.add_done_callback(partial(_pass_error, done))
                done.add_done_callback(partial(_pass_cancellation, each))
                self._post(Posting(part, 0, regions, each))
        return done

    def _post(self, posting: Posting) -> asyncio.Future[int]:
        for region in posting.regions:
            region._outstanding += 1
        if self._waiting or self.taken + len(posting.packed) // _SIZE > self.count:
            self._waiting.append(posting)
        else:
            self._put(posting)
        return posting.done

    def _put(self, posting: Posting) -> None:
        """There is room: it gets its place, and goes to C in this turn."""
        place, packed = self._next, posting.packed
        while place in self._posted:  # by an earlier one than what was refused
            place = place + 1 if place + 1 < self.count else 0
        self._next = place + 1 if place + 1 < self.count else 0
        self._posted[place] = posting
        turn = self._turn
        if len(packed) > _SIZE:
            count = len(packed) // _SIZE
            _WR_ID.pack_into(packed, len(packed) - _SIZE, self.cookie | place)
            self._send(Turn(self, place, native.ffi.from_buffer(packed), count))
            self._turn = None
            self.taken += count
            return
        if self._ring is None:
            self._ring = bytearray(self.count * _SIZE)
            self._memory = native.ffi.from_buffer(self._ring)  # C reads it there
        at = place * _SIZE
        self._ring[at : at + _SIZE] = packed
        _WR_ID.pack_into(self._ring, at, self.cookie | place)
        self.taken += 1
        if turn is None or turn.seen or place != turn.first + turn.postings:
            self._turn = Turn(self, place, self._memory + at, 1)
            self._send(self._turn)
        else:
            turn.count += 1
            turn.postings += 1

    def _put_waiting(self) -> None:
        """Postings that waited have their turn, as far as there is room."""
        waiting = self._waiting
        while waiting and self.taken + len(waiting[0].packed) // _SIZE <= self.count:
            posting = waiting.popleft()
            if posting.done.done():  # cancelled
                posting.let_go()
            else:
                self._put(posting)

    # ---- 3. A turn goes to C --------------------------------------------------------------

    def _send(self, turn: Turn) -> None:
        self._turns[turn.first] = turn
        self._holder.send(turn)

    # ---- 4. Completions -------------------------------------------------------------------

    def complete(self, cookie: int, error: MrcError | OSError | None = None) -> None:
        """A posting has ended."""
        posting = self._posted[cookie & _PLACE]
        packed, size, _, done = posting
        if not done.done():  # first, because it may lack memory: then this is called again
            if error is None:
                done.set_result(size)
            else:
                done.set_exception(error)
        del self._posted[cookie & _PLACE]
        self.taken -= len(packed) // _SIZE
        posting.let_go()
        if self._waiting:
            self._put_waiting()
        if not self.taken and self._idle.futures:
            self._idle.wake_all()

    def refuse(self, cookie: int, error: MrcError | OSError) -> None:
        """C has taken none of the postings of a command."""
        turn = self._turns[cookie & _PLACE]
        for place in range(turn.first, turn.first + turn.postings):
            self.complete(place, error)

    def fail(self, error: MrcError) -> None:
        """No completion will come in time: who waits for one gets the error now. C flushes what it
        has taken later.
        """
        for posting in self._posted.values():
            if not posting.done.done():
                posting.done.set_exception(error.anew())

    def stop(self, refuses: Callable[[], MrcError]) -> None:
        """From now on it takes no writes; those that wait for a place fail. The function makes the
        error.
        """
        self.refuses = refuses
        while self._waiting:
            posting = self._waiting.popleft()
            posting.let_go()
            if not posting.done.done():
                posting.done.set_exception(refuses())

    def uses(self, region: Region) -> bool:
        """Whether a write that has not ended reads it."""
        postings = (*self._posted.values(), *self._waiting)
        return any(used is region for posting in postings for used in posting.regions)

    async def until_idle(self) -> None:
        """Returns when nothing is posted or waits."""
        while self.taken or self._waiting:
            await self._idle.wait(lambda: None)


# ---- Arguments ----------------------------------------------------------------------------------


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, bool):
        with suppress(TypeError):
            return index(value)
    raise TypeError(f"{name}: needs a whole number, not {value!r:.60}")


def _checked_imm(imm: object) -> int:
    number = _whole("imm", imm)
    if not 0 <= number <= 0xFFFFFFFF:
        raise ArgumentError(f"imm: {number} does not fit 32 bits")
    return number


def _wrong_memory(region: Region, dst: object) -> TypeError | StateError:
    """Why a write cannot use this memory: the kind of `dst`, or else the region."""
    if type(dst) is RemoteMemory:
        return StateError(f"src: {region!r} is closed, or another Context's")
    wanted = "a RemoteMemory or a slice of one: the peer's Region.handle"
    return TypeError(f"dst: needs {wanted}, not {dst!r:.60}")


def _part(src: Any) -> Part:
    part = src[:] if hasattr(type(src), "handle") else src  # a Region, or that of mrc.blocking
    if type(part) is not Part:
        wanted = "a Region or a slice of one: register the buffer first"
        raise TypeError(f"src: needs {wanted}, not {src!r:.60}")
    return part


def _check_redundant(redundant: object, length: int) -> None:
    if redundant is not True:
        raise TypeError(f"redundant: needs True or False, not {redundant!r:.60}")
    if length > limits.MAX_REDUNDANT:
        raise ArgumentError(f"redundant: {length} bytes are above 64 KiB")


def _in_pieces(part: Part, dst: RemoteMemory, opcode: int, imm: int) -> bytearray:
    """The work requests of a write above MAX_MESSAGE_BYTES. Only the last of them has the
    immediate: the peer gets it after all other pieces.
    """
    packed = bytearray()
    key, rkey = part.region._key, dst.rkey
    for start in range(0, part.length, _PIECE_BYTES):
        length = min(_PIECE_BYTES, part.length - start)
        last = start + length == part.length
        packed += _WR.pack(
            0, part.address + start, dst.address + start, key, rkey, length,
            imm if last else 0, opcode if last else _WRITE, not last, 0,
        )  # fmt: skip
    return packed


def _not_memory(dst: RemoteMemory) -> ArgumentError:
    return ArgumentError(f"dst: {dst!r} is no memory of a host: an address has 64 bits")


def _added(base: int, offsets: Sequence[int]) -> memoryview:
    return memoryview(array("Q", [base + offset for offset in offsets]))


def _pass_cancellation(to: asyncio.Future[int], ended: asyncio.Future[int]) -> None:
    if ended.cancelled():
        to.cancel()


def _pass_error(to: asyncio.Future[int], ended: asyncio.Future[int]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None and not to.done():
        to.set_exception(error)
