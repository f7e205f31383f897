# SPDX-License-Identifier: Apache-2.0
"""Writes of one QP that C posts in one call and that share one completion."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence

from mrc.binding import native
from mrc.binding.native import CData
from mrc.binding.verbs import MAX_MESSAGE_BYTES, MR, RemoteMemory, WorkRequest
from mrc.enums import CommandOp
from mrc.errors import ArgumentError

_POST_MANY = int(CommandOp.QP_POST_MANY)
# struct mrc_wr: wr_id, local, va, lkey, rkey, bytes, imm, opcode, unsignaled
_WR = struct.Struct("=QQQIIIIBB6x")
_WORDS, _LOCAL, _VA = _WR.size // 8, 1, 2  # words of 64 bits, and the indices of two of them
_UNSIGNALED = -7  # index in the last work request


class WriteList:
    """Packed work requests. Only the last one has a completion, which is that of the list."""

    def __init__(self, qpn: int, wr_id: int, packed: bytearray, bytes: int) -> None:
        self.qpn = qpn
        self.wr_id = wr_id
        self.bytes = bytes
        """Sum of all writes."""
        self.count = len(packed) // _WR.size
        if self.count:
            packed[_UNSIGNALED] = 0
        self._wrs = native.view_of(packed)

    def fill(self, commands: CData, index: int) -> None:
        """Writes a QP_POST_MANY command with cookie `wr_id`."""
        command = commands[index]
        command.op, command.qpn, command.cookie = _POST_MANY, self.qpn, self.wr_id
        command.pointer, command.value = self._wrs, self.count

    @classmethod
    def of(cls, qpn: int, wr_id: int, requests: Iterable[WorkRequest]) -> WriteList:
        """Packs work requests that were checked."""
        packed, total = bytearray(), 0
        for _, _, length, local, lkey, remote, rkey, imm in requests:
            has_imm = imm is not None
            packed += _WR.pack(wr_id, local, remote, lkey, rkey, length, imm or 0, has_imm, 1)
            total += length
        return cls(qpn, wr_id, packed, total)

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
    ) -> WriteList:
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
        request = _WR.pack(wr_id, 0, 0, mr.key, remote.rkey, length, 0, 0, 1)
        packed = bytearray(request * count)
        # No Python code runs for a single write, except to add its offsets.
        with memoryview(packed) as view, view.cast("Q") as words:
            words[_LOCAL::_WORDS] = _added(mr.address, local_offsets)
            words[_VA::_WORDS] = _added(remote.address, remote_offsets)
        return cls(qpn, wr_id, packed, length * count)


def _added(base: int, offsets: Sequence[int]) -> memoryview:
    return memoryview(array("Q", [base + offset for offset in offsets]))
