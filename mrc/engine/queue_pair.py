# SPDX-License-Identifier: Apache-2.0
"""A queue pair of the engine: the commands that are legal in its state, and its work requests.

All of it is synchronous: the objects check arguments and states and build what
`mrc.engine.engine.Engine` queues.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from mrc import limits
from mrc.config import Queues
from mrc.engine import native
from mrc.engine.memory import MR, RemoteMemory
from mrc.engine.native import CData, Command
from mrc.engine.paths import SEAL_OVERHEAD, TRANSPORT, EvAttr, PeerSource
from mrc.enums import CommandOp, EvState, Integrity, QpState, Seal
from mrc.errors import ArgumentError, StateError
from mrc.events import Completion
from mrc.fabric.hostconfig import pack_address
from mrc.linux.secret import Secret


class WrOpcode(IntEnum):
    """Operation of a work request."""

    WRITE = 0
    WRITE_IMM = 1


MAX_MESSAGE_BYTES = 0xFFFFFFFF
_PIECE_BYTES = 1 << 30  # of a write beyond MAX_MESSAGE_BYTES
_POST, _WRITE, _WRITE_IMM = map(int, (CommandOp.QP_POST_MANY, WrOpcode.WRITE, WrOpcode.WRITE_IMM))
# struct mrc_wr: wr_id, local, va, lkey, rkey, bytes, imm, opcode, unsignaled, redundant
_WR = struct.Struct("=QQQIIIIBBB5x")
_WORDS, _LOCAL, _VA = _WR.size // 8, 1, 2  # words of 64 bits, and the indices of two of them
_UNSIGNALED = -7  # index in the last work request
_RESERVED_QPNS = 3  # 0..2: management QPs and the destination of endpoint requests


# ---- Places in the send queue ---------------------------------------------------------------


class Waiters:
    """Tasks that wait for the next item or place, first come, first served."""

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


class SendQueue:
    """`count` places, given out in the order of requests: a semaphore that also wakes who waits for
    all of them when they are free.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = count
        self._waiting = Waiters()
        self._idle = Waiters()

    @property
    def taken(self) -> int:
        """The places that are in use."""
        return self.count - self._free

    def take_free(self, count: int = 1) -> bool:
        """Takes `count` places if they are free, else none. With free places no task waits."""
        if self._free < count:
            return False
        self._free -= count
        return True

    async def take(self) -> None:
        """Takes a place; waits for its turn if none is free."""
        if not self.take_free():
            await self._waiting.wait(self.give)

    def give(self, count: int = 1) -> None:
        """Gives places back."""
        while count and self._waiting.futures and self._waiting.wake():
            count -= 1
        self._free += count
        if self._free == self.count and self._idle.futures:
            self._idle.wake_all()

    async def until_free(self) -> None:
        """Returns when no place is in use."""
        while self.taken:
            await self._idle.wait(lambda: None)


# ---- The queue pair -------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class QueuePair:
    """A QP: its number, its state, and the commands that are legal in that state."""

    sq_depth: int
    mpr: int
    max_wimm: int
    qpn: int = field(default_factory=lambda: QueuePair.random_qpn())
    state: QpState = QpState.RESET
    dynamic_mpr: bool = False  # agreed with the peer
    seal: Seal = Seal.NONE
    places: SendQueue = field(init=False)
    """Those of its send queue; each work request takes one until its completion."""

    def __post_init__(self) -> None:
        self.places = SendQueue(self.sq_depth)

    @staticmethod
    def random_qpn() -> int:
        """An unpredictable 24-bit QP number."""
        return _RESERVED_QPNS + secrets.randbelow((1 << 24) - _RESERVED_QPNS)

    @classmethod
    def sized(cls, sizes: Queues, **more: Any) -> QueuePair:
        """One of these sizes. `more`: its number, if that is not a random one."""
        return cls(sizes.sq_depth, sizes.mpr or limits.MAX_MPR, sizes.max_wimm, **more)

    def _command(self, op: CommandOp, keep: object = None, **fields: Any) -> Command:
        return Command({"op": op, "qpn": self.qpn, **fields}, keep)

    def create(self) -> Command:
        """The command that creates the QP in RESET."""
        attr = native.new_struct(
            "mrc_qp_create_attr",
            qpn=self.qpn,
            sq_depth=self.sq_depth,
            mpr=self.mpr,
            max_wimm=self.max_wimm,
        )
        return self._command(CommandOp.QP_CREATE, attr, pointer=attr)

    def _move(self, before: QpState, state: QpState, **fields: Any) -> Command:
        if self.state is not before:
            raise StateError(f"QP {self.qpn:#x}: no move from {self.state.name} to {state.name}")
        self.state = state
        keep = fields.get("pointer")
        return self._command(CommandOp.QP_MODIFY, keep, value=int(state), **fields)

    def to_init(self) -> Command:
        """RESET to INIT."""
        return self._move(QpState.RESET, QpState.INIT)

    def to_rtr(
        self,
        *,
        dest_qpn: int,
        rq_psn: int,
        integrity: Integrity,
        dynamic_mpr: bool = False,
        sack_times: bool = False,
        service_times: bool = False,
    ) -> Command:
        """INIT to RTR, after `set_evs` and `set_peer`: from now on it receives."""
        self.dynamic_mpr = dynamic_mpr
        attr = native.new_struct(
            "mrc_qp_rtr_attr", dest_qpn=dest_qpn, rq_psn=rq_psn, integrity=integrity,
            dynamic_mpr=dynamic_mpr, sack_times=sack_times, service_times=service_times,
        )  # fmt: skip
        return self._move(QpState.INIT, QpState.RTR, pointer=attr)

    def to_rts(self, **fields: Any) -> Command:
        """RTR to RTS: from now on it sends. `fields` are those of `struct mrc_qp_rts_attr`."""
        attr = native.new_struct("mrc_qp_rts_attr", **fields)
        return self._move(QpState.RTR, QpState.RTS, pointer=attr)

    def to_error(self) -> Command:
        """Any state to ERROR, which flushes outstanding work requests."""
        self.state = QpState.ERROR
        return self._command(CommandOp.QP_MODIFY, value=int(QpState.ERROR))

    def destroy(self) -> Command:
        """Destroys the QP; the engine flushes outstanding work requests first."""
        self.state = QpState.ERROR
        return self._command(CommandOp.QP_DESTROY)

    def set_evs(self, evs: Sequence[EvAttr]) -> Command:
        """Sets the EV array (in INIT), or adds to it EVs that are UNPROVEN."""
        array = native.new_array(
            "mrc_ev_attr",
            [
                {
                    "src": pack_address(ev.source),
                    "dst": pack_address(ev.destination),
                    "ev": ev.ev,
                    "dport": ev.dport,
                    "port": ev.port,
                    "plane": ev.plane,
                    "peer_port": ev.peer_port,
                    "tx_index": ev.tx_index,
                    "family": ev.destination.version,
                }
                for ev in evs
            ],
        )
        return self._command(CommandOp.QP_SET_EVS, array, pointer=array, value=len(evs))

    def set_peer(self, sources: Sequence[PeerSource]) -> Command:
        """Sets the source addresses and ports of the peer's packets (in INIT).

        The command fails with QueueFullError when the Context has too many sources already.
        """
        array = native.new_array(
            "mrc_peer_source",
            [
                {"address": pack_address(s.address), "sport": s.sport, "is_nat": s.is_nat}
                for s in sources
            ],
        )
        return self._command(CommandOp.QP_SET_PEER, array, pointer=array, value=len(sources))

    def set_seal(
        self, seal: Seal, peer_qpn: int, *, random: Secret, peer_random: Secret, first: bool
    ) -> Command:
        """Seals all packets (in INIT, before `set_peer`). The secrets follow from the 32 random
        bytes of both sides; `first`: this side connected.
        """
        attr = native.secret_struct("mrc_seal_attr", mode=int(seal), peer_qpn=peer_qpn)
        native.agree(attr, self.qpn, random.bytes, peer_random.bytes, first=first)
        self.seal = seal
        return self._command(CommandOp.QP_SET_SEAL, attr, pointer=attr)

    def probe_ev(self, index: int, *, payload: int, timeout_ns: int) -> Command:
        """Sends one EV probe, as large as a packet with so much payload (0: not padded)."""
        size = payload and payload + TRANSPORT + (SEAL_OVERHEAD if self.seal else 0)
        return self._command(CommandOp.QP_PROBE_EV, value=index, bytes=size, timeout_ns=timeout_ns)

    def set_ev_state(self, index: int, state: EvState) -> Command:
        """Sets the state of an EV: DENIED, GOOD, ASSUMED_BAD or UNPROVEN."""
        return self._command(CommandOp.QP_SET_EV_STATE, value=index, key=int(state))

    def set_weight(self, plane: int, weight: int) -> Command:
        """Limits what a plane carries, in per cent of the one that carries most; 0: a backup."""
        return self._command(CommandOp.QP_SET_WEIGHT, value=plane, key=weight)

    def set_yielding(self, planes: Collection[int]) -> Command:
        """Names the planes that carry only what others leave of their links."""
        mask = sum(1 << plane - 1 for plane in planes)
        return self._command(CommandOp.QP_SET_YIELDING, value=mask)

    def set_mpr(self, mpr: int) -> Command:
        """Changes the window that this side grants the peer."""
        if not self.dynamic_mpr:
            raise StateError(f"QP {self.qpn:#x}: no dynamic MPR: both sides must set dynamic_mpr")
        if not 0 < mpr <= self.mpr or mpr % limits.MPR_UNIT:
            raise ArgumentError(f"mpr: {mpr} is not a multiple of 128 up to {self.mpr}")
        return self._command(CommandOp.QP_SET_MPR, value=mpr)

    def query(self) -> tuple[Command, Any]:
        """The command that fills the returned `struct mrc_qp_info`."""
        info = native.new_struct("mrc_qp_info")
        return self._command(CommandOp.QP_QUERY, info, pointer=info), info

    def query_evs(self, capacity: int) -> tuple[Command, Any]:
        """The command that fills the returned array of `struct mrc_ev_info`."""
        infos = native.new_array("mrc_ev_info", capacity)
        command = self._command(CommandOp.QP_QUERY_EVS, infos, pointer=infos, value=capacity)
        return command, infos


# ---- Work requests --------------------------------------------------------------------------


class Write(NamedTuple):
    """One write for `QP.post_many`, with the arguments of `QP.post`. Lengths are in bytes."""

    mr: MR | None = None
    """Memory region to read from; None: no bytes."""
    remote: RemoteMemory | None = None
    """The peer's memory to write to."""
    imm: int | None = None
    """An immediate for the peer; None: none."""
    length: int | None = None
    """Bytes; None: the rest of `mr`."""
    local_offset: int = 0
    """Bytes from the start of `mr`."""
    remote_offset: int = 0
    """Bytes from the start of `remote`."""
    redundant: bool = False
    """Whether each packet leaves on two planes at once; up to 64 KiB."""


def size_of(write: Write) -> int:
    """Its bytes."""
    if write.length is not None or write.mr is None:
        return write.length or 0
    return write.mr._held.length - write.local_offset


def pieces(write: Write) -> Iterator[Write]:
    """The write itself, or those that carry one above MAX_MESSAGE_BYTES. Only the last of them has
    the immediate: the peer gets it after all other pieces.
    """
    size = size_of(write)
    if size <= MAX_MESSAGE_BYTES:
        yield write
        return
    for start in range(0, size, _PIECE_BYTES):
        length = min(_PIECE_BYTES, size - start)
        yield write._replace(
            imm=write.imm if start + length == size else None,
            length=length,
            local_offset=write.local_offset + start,
            remote_offset=write.remote_offset + start,
        )


class Writes:
    """Work requests of one QP that C posts in one call. Only the last one has a completion, which
    is that of all.
    """

    __slots__ = ("_wrs", "count", "done", "mrs", "queue", "size", "wr_id")

    done: asyncio.Future[Completion]
    """Gets the completion, once they are posted."""

    def __init__(
        self, queue: QueuePair, wr_id: int, packed: bytearray, size: int, mrs: Sequence[MR]
    ) -> None:
        self.queue = queue
        self.wr_id = wr_id
        self.size = size
        """Sum of the bytes of all."""
        self.mrs = mrs
        """The memory that they read; some perhaps several times."""
        self.count = len(packed) // _WR.size
        if self.count:
            packed[_UNSIGNALED] = 0
        self._wrs = native.ffi.from_buffer(packed)  # C reads them there until the completion

    def fill(self, commands: CData, index: int) -> None:
        """Writes a QP_POST_MANY command with cookie `wr_id`. C reads only these fields."""
        command = commands[index]
        command.op, command.qpn, command.cookie = _POST, self.queue.qpn, self.wr_id
        command.pointer, command.value = self._wrs, self.count

    @classmethod
    def of(cls, queue: QueuePair, wr_id: int, asked: Iterable[Write]) -> Writes:
        """Packs any writes; raises ArgumentError for a wrong one."""
        packed, size = bytearray(), 0
        mrs: list[MR] = []
        for write in asked:
            mr, remote, imm = write.mr, write.remote, write.imm
            length = write.length
            if length is None:
                length = 0 if mr is None else mr._held.length - write.local_offset
            local, lkey, va, rkey = 0, 0, 0, 0
            if mr is not None and remote is not None:
                local, lkey = mr.range(write.local_offset, length), mr.key
                va, rkey = remote.range(write.remote_offset, length), remote.rkey
                mrs.append(mr)
            elif mr is not None or remote is not None or length or imm is None:
                raise ArgumentError("mr, remote: pass both, or neither for an imm without bytes")
            if not 0 <= length <= MAX_MESSAGE_BYTES:
                raise ArgumentError(f"length: {length} is not within 0..{MAX_MESSAGE_BYTES}")
            if imm is None:
                if length == 0:
                    raise ArgumentError("length: a write of no bytes needs an imm")
            elif not 0 <= imm <= 0xFFFFFFFF:
                raise ArgumentError(f"imm: {imm} does not fit 32 bits")
            opcode, twice = _WRITE if imm is None else _WRITE_IMM, write.redundant
            if twice and length > limits.MAX_REDUNDANT:
                raise ArgumentError(f"length: {length} of a redundant write is above 64 KiB")
            try:
                packed += _WR.pack(wr_id, local, va, lkey, rkey, length, imm or 0, opcode, 1, twice)
            except struct.error as error:
                raise _not_memory(remote) from error
            size += length
        return cls(queue, wr_id, packed, size, mrs)

    @classmethod
    def in_pieces(cls, queue: QueuePair, next_id: Callable[[], int], write: Write) -> list[Writes]:
        """A write as one work request, or several if it is too large for one."""
        if size_of(write) <= MAX_MESSAGE_BYTES:
            return [cls.of(queue, next_id(), (write,))]
        return [cls.of(queue, next_id(), (piece,)) for piece in pieces(write)]

    @classmethod
    def scattered(
        cls,
        queue: QueuePair,
        wr_id: int,
        mr: MR,
        remote: RemoteMemory,
        length: int,
        local_offsets: Sequence[int],
        remote_offsets: Sequence[int],
    ) -> Writes:
        """Packs a write of `length` bytes for each pair of offsets; raises ArgumentError."""
        count = len(local_offsets)
        if len(remote_offsets) != count:
            raise ArgumentError(
                f"remote_offsets: has {len(remote_offsets)} items, local_offsets has {count}"
            )
        if not 0 < length <= MAX_MESSAGE_BYTES:
            raise ArgumentError(f"length: {length} is not within 1..{MAX_MESSAGE_BYTES}")
        if count:
            for at, memory in ((local_offsets, mr), (remote_offsets, remote)):
                memory.range(min(at), length)
                memory.range(max(at), length)
        try:
            request = _WR.pack(wr_id, 0, 0, mr.key, remote.rkey, length, 0, _WRITE, 1, False)
            packed = bytearray(request * count)
            # No Python code runs for a single write, except to add its offsets.
            with memoryview(packed) as view, view.cast("Q") as words:
                words[_LOCAL::_WORDS] = _added(mr.address, local_offsets)
                words[_VA::_WORDS] = _added(remote.address, remote_offsets)
        except (struct.error, OverflowError) as error:
            raise _not_memory(remote) from error
        return cls(queue, wr_id, packed, length * count, [mr])


def _not_memory(remote: RemoteMemory | None) -> ArgumentError:
    return ArgumentError(f"remote: {remote} is no memory of a host: an address has 64 bits")


def _added(base: int, offsets: Sequence[int]) -> memoryview:
    return memoryview(array("Q", [base + offset for offset in offsets]))
