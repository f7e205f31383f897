# SPDX-License-Identifier: Apache-2.0
"""Framed chunks, and the records of a pack. Pure.

The chunks of a pack and of a file of unknown size are framed: a header holds the length and the
digest of the payload behind it. So a chunk may be short, and the receiver verifies it before it
uses it.

A pack carries many files and folders. Its payload is a sequence of records, and no record goes
beyond its chunk. A record has a length (2 bytes), a header (msgpack) and, for a file, a part of the
file's bytes. After the last part follows the digest of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from mrc.errors import ProtocolError
from mrc.transfer.messages import MAX_ERROR, Digest, Mode, Time
from mrc.transfer.names import MAX_PATH_BYTES
from mrc.typed import Whole

FRAME = struct.Struct("<I12x16s")  # payload length, digest of the payload
DIGEST_BYTES = 16
_LENGTH = struct.Struct("<H")
MAX_HEADER_BYTES = 8400  # the longest name and target, and the numbers
RECORD_BYTES = _LENGTH.size + MAX_HEADER_BYTES + DIGEST_BYTES  # of a record, beside its data


class PackedFile(msgspec.Struct, tag="file", frozen=True, kw_only=True):
    """A part of a file: `length` of its bytes, from `offset` on."""

    name: bytes
    size: Whole
    offset: Whole
    length: Whole
    sparse: bool
    mode: Mode | None
    mtime: Time | None


class PackedFolder(msgspec.Struct, tag="folder", frozen=True, kw_only=True):
    """A folder, after all that it contains."""

    name: bytes
    mode: Mode | None
    mtime: Time | None


class PackedFailed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """A file or folder that the sender cannot read. Parts of the file may precede it."""

    name: bytes
    error: Annotated[str, Meta(max_length=MAX_ERROR)]


class PackedLink(msgspec.Struct, tag="link", frozen=True, kw_only=True):
    """A symbolic link that leads to a place in the same folder."""

    name: bytes
    target: Annotated[bytes, Meta(max_length=MAX_PATH_BYTES)]


Record = PackedFile | PackedFolder | PackedFailed | PackedLink
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def seal(chunk: memoryview, length: int) -> int:
    """Writes the frame of a chunk whose payload has `length` bytes; returns its whole length."""
    payload = chunk[FRAME.size : FRAME.size + length]
    FRAME.pack_into(chunk, 0, length, Digest(payload).digest())
    return FRAME.size + length


def unseal(chunk: memoryview) -> memoryview | None:
    """The payload of a framed chunk; None if it differs from what was sent.

    Raises ProtocolError for a frame that no sender writes.
    """
    length, digest = FRAME.unpack_from(chunk)
    if not 0 < length <= len(chunk) - FRAME.size:
        raise ProtocolError(f"the peer sent a chunk with {length} bytes of payload")
    payload = chunk[FRAME.size : FRAME.size + length]
    return payload if Digest(payload).digest() == digest else None


def framed_bytes(chunk: memoryview) -> int:
    """Bytes of a framed chunk with its frame, as the sender says; 0 if it says too many."""
    length: int = FRAME.unpack_from(chunk)[0]
    return FRAME.size + length if FRAME.size + length <= len(chunk) else 0


def put_header(payload: memoryview, at: int, record: Record) -> int:
    """Writes length and header of a record at `at`; returns the position behind them."""
    header = _encode(record)
    assert len(header) <= MAX_HEADER_BYTES, "names are bounded"
    _LENGTH.pack_into(payload, at, len(header))
    begin = at + _LENGTH.size
    payload[begin : begin + len(header)] = header
    return begin + len(header)


def records(
    payload: memoryview,
) -> Iterator[tuple[Record, memoryview, memoryview]]:
    """Each record of a chunk, with its data and its digest. Raises ProtocolError."""
    at = 0
    while at < len(payload):
        size, at = _cut(payload, at, _LENGTH.size)
        header, at = _cut(payload, at, _LENGTH.unpack(size)[0])
        try:
            record = _decode(header)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"the peer sent a bad record of a pack: {error}") from None
        data = digest = payload[:0]
        if isinstance(record, PackedFile):
            data, at = _cut(payload, at, record.length)
            if record.offset + record.length == record.size:
                digest, at = _cut(payload, at, DIGEST_BYTES)
        yield record, data, digest


def _cut(payload: memoryview, at: int, length: int) -> tuple[memoryview, int]:
    """`length` bytes from `at` on, and the position behind them."""
    if length > len(payload) - at:
        raise ProtocolError("the peer sent a record of a pack beyond the end of its chunk")
    return payload[at : at + length], at + length
