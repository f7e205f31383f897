# SPDX-License-Identifier: Apache-2.0
"""Writes: as the caller asks for them, and as C reads them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mrc.binding import native
from mrc.binding.native import CData
from mrc.binding.verbs import MR, RemoteMemory
from mrc.enums import CommandOp, WrOpcode
from mrc.errors import ArgumentError

MAX_MESSAGE_BYTES = 0xFFFFFFFF
_PIECE_BYTES = 1 << 30  # of a write beyond MAX_MESSAGE_BYTES
_POST, _WRITE, _WRITE_IMM = map(int, (CommandOp.QP_POST_MANY, WrOpcode.WRITE, WrOpcode.WRITE_IMM))
# struct mrc_wr: wr_id, local, va, lkey, rkey, bytes, imm, opcode, unsignaled
_WR = struct.Struct("=QQQIIIIBB6x")
_WORDS, _LOCAL, _VA = _WR.size // 8, 1, 2  # words of 64 bits, and the indices of two of them
_UNSIGNALED = -7  # index in the last work request


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


def size_of(write: Write) -> int:
    """Its bytes."""
    if write.length is not None or write.mr is None:
        return write.length or 0
    return write.mr.length - write.local_offset


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

    __slots__ = ("_wrs", "count", "mrs", "qpn", "size", "wr_id")

    def __init__(self, qpn: int, wr_id: int, packed: bytearray, size: int, mrs: Sequence[MR]):
        self.qpn = qpn
        self.wr_id = wr_id
        self.size = size
        """Sum of the bytes of all."""
        self.mrs = mrs
        """The memory that they read; some perhaps several times."""
        self.count = len(packed) // _WR.size
        if self.count:
            packed[_UNSIGNALED] = 0
        self._wrs = native.view_of(packed)

    def fill(self, commands: CData, index: int) -> None:
        """Writes a QP_POST_MANY command with cookie `wr_id`. C reads only these fields."""
        command = commands[index]
        command.op, command.qpn, command.cookie = _POST, self.qpn, self.wr_id
        command.pointer, command.value = self._wrs, self.count

    @classmethod
    def of(cls, qpn: int, wr_id: int, asked: Iterable[Write]) -> Writes:
        """Packs any writes; raises ArgumentError for a wrong one."""
        packed, size = bytearray(), 0
        mrs: list[MR] = []
        for write in asked:
            mr, remote, imm = write.mr, write.remote, write.imm
            length = size_of(write)
            local, lkey, va, rkey = 0, 0, 0, 0
            if mr is not None and remote is not None:
                local, lkey = mr.range(write.local_offset, length), mr.key
                va, rkey = remote.range(write.remote_offset, length), remote.rkey
                mrs.append(mr)
            elif mr is not None or remote is not None or length or imm is None:
                raise ArgumentError("mr, remote: pass both, or neither for an imm without bytes")
            _check(length, imm)
            opcode = _WRITE if imm is None else _WRITE_IMM
            try:
                packed += _WR.pack(wr_id, local, va, lkey, rkey, length, imm or 0, opcode, 1)
            except struct.error as error:
                raise _not_memory(remote) from error
            size += length
        return cls(qpn, wr_id, packed, size, mrs)

    @classmethod
    def scattered(
        cls,
        qpn: int,
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
            request = _WR.pack(wr_id, 0, 0, mr.key, remote.rkey, length, 0, _WRITE, 1)
            packed = bytearray(request * count)
            # No Python code runs for a single write, except to add its offsets.
            with memoryview(packed) as view, view.cast("Q") as words:
                words[_LOCAL::_WORDS] = _added(mr.address, local_offsets)
                words[_VA::_WORDS] = _added(remote.address, remote_offsets)
        except (struct.error, OverflowError) as error:
            raise _not_memory(remote) from error
        return cls(qpn, wr_id, packed, length * count, [mr])


def _check(length: int, imm: int | None) -> None:
    if not 0 <= length <= MAX_MESSAGE_BYTES:
        raise ArgumentError(f"length: {length} is not within 0..{MAX_MESSAGE_BYTES}")
    if imm is None:
        if length == 0:
            raise ArgumentError("length: a write of no bytes needs an imm")
    elif not 0 <= imm <= 0xFFFFFFFF:
        raise ArgumentError(f"imm: {imm} does not fit 32 bits")


def _not_memory(remote: RemoteMemory | None) -> ArgumentError:
    return ArgumentError(f"remote: {remote} is no memory of a host: an address has 64 bits")


def _added(base: int, offsets: Sequence[int]) -> memoryview:
    return memoryview(array("Q", [base + offset for offset in offsets]))
