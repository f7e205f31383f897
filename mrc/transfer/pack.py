# SPDX-License-Identifier: Apache-2.0
"""Packs: framed chunks, the records in them, the thread that packs small files, and what both ends
report of files and packs that are stored.

The chunks of a pack and of a file of unknown size are framed: a header holds the length and the
digest of the payload behind it. So a chunk may be short, and the receiver verifies it before it
uses it.

A pack carries many files and folders. Its payload is a sequence of records, and no record goes
beyond its chunk. A record has a length (2 bytes), a header (msgpack) and, for a file, a part of the
file's bytes. After the last part follows the digest of the file.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Struct, field

from mrc.connect.parse import printable, shortened
from mrc.errors import ProtocolError
from mrc.transfer.folders import Meta
from mrc.transfer.messages import MAX_ERROR, Digest, Mode, Time
from mrc.transfer.names import MAX_PATH_BYTES, CopyError, StoppedError
from mrc.transfer.plan import Entry, FileEntry, FolderEnd, LinkEntry, SourceFile
from mrc.transfer.results import FailedFile, TransferredFile
from mrc.typed import Whole

MAX_LISTED = 16  # files of a pack, whose names are kept in any case
_LEAST_PART = 4096  # bytes of a file that are worth a record at the end of a chunk
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
    error: Annotated[str, msgspec.Meta(max_length=MAX_ERROR)]


class PackedLink(msgspec.Struct, tag="link", frozen=True, kw_only=True):
    """A symbolic link that leads to a place in the same folder."""

    name: bytes
    target: Annotated[bytes, msgspec.Meta(max_length=MAX_PATH_BYTES)]


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


class Packer:
    """The records of one pack. `close` closes the file that it reads; after `stop`, which any
    thread may call, `fill` raises StoppedError.
    """

    def __init__(self, entries: Sequence[Entry], *, keep_meta: bool) -> None:
        self._entries = entries
        self._keep_meta = keep_meta
        self._stopped = False
        self._next = 0
        self._source: SourceFile | None = None  # of the entry before `_next`, while it is read
        self._offset = self._bytes = 0  # of the entry before `_next`
        self._digest = Digest()
        self._left = sum(entry.bytes for entry in entries if isinstance(entry, FileEntry))
        self._ends: list[int] = []  # after each chunk, how many entries are complete
        self.files: list[TransferredFile] = []
        self.grown: dict[str, str] = {}
        """the paths of files that were copied as they were at their begin, by name"""
        self.failed: deque[FailedFile] = deque()  # that nobody has been told of

    def left_bytes(self) -> int:
        return self._left

    def complete(self, chunks: int) -> int:
        """How many entries are complete in the first chunks."""
        return self._ends[chunks - 1] if chunks else 0

    def stop(self) -> None:
        """A read of one file ends by itself; no other follows."""
        self._stopped = True

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def fill(self, payload: memoryview) -> int:
        """Puts the next records into the payload of a chunk; returns its length, 0 at the end."""
        at = 0
        while len(payload) - at >= RECORD_BYTES + _LEAST_PART:
            if self._source is None and self._next == len(self._entries):
                break
            if self._stopped:
                raise StoppedError
            try:
                if self._source is not None:
                    at = self._put_part(payload, at, self._source)
                else:
                    self._next += 1
                    at = self._begin(payload, at, self._entries[self._next - 1])
            except CopyError as error:
                at = self._put_failed(payload, at, error)
        self._ends.append(self._next - (self._source is not None))
        return at

    def _begin(self, payload: memoryview, at: int, entry: Entry) -> int:
        """Puts the record of a folder, or opens a file."""
        self._name = entry.name
        if isinstance(entry, FolderEnd):
            meta = entry.meta if self._keep_meta else Meta()
            name = os.fsencode(entry.name)
            folder = PackedFolder(name=name, mode=meta.mode, mtime=meta.mtime)
            return put_header(payload, at, folder)
        if isinstance(entry, LinkEntry):
            target = os.fsencode(entry.target)
            return put_header(payload, at, PackedLink(name=os.fsencode(entry.name), target=target))
        assert isinstance(entry, FileEntry), "a pack holds files and folders"
        self._offset = 0
        self._bytes = entry.bytes
        self._digest = Digest()
        self._source = SourceFile(entry.path, follow=entry.follow)
        self._left += self._source.bytes - entry.bytes  # it may have changed since it was listed
        self._bytes = self._source.bytes
        return at

    def _put_failed(self, payload: memoryview, at: int, error: CopyError) -> int:
        """Says that a file is not sent, or not to its end."""
        self._left -= self._bytes - self._offset
        self.close()
        self.failed.append(FailedFile(self._name, str(error), "sender"))
        record = PackedFailed(
            name=os.fsencode(self._name), error=shortened(printable(str(error)), MAX_ERROR)
        )
        return put_header(payload, at, record)

    def _put_part(self, payload: memoryview, at: int, source: SourceFile) -> int:
        """Puts as much of the file as the chunk has room for."""
        length = min(source.bytes - self._offset, len(payload) - at - RECORD_BYTES)
        meta = Meta(source.mode, source.mtime_ns) if self._keep_meta else Meta()
        record = PackedFile(
            name=os.fsencode(self._name),
            size=source.bytes,
            offset=self._offset,
            length=length,
            sparse=source.sparse,
            mode=meta.mode,
            mtime=meta.mtime,
        )
        begin = put_header(payload, at, record)
        data = payload[begin : begin + length]
        source.read_into(data, self._offset)
        self._digest.update(data)
        if self._offset + length == source.bytes and source.grew(self._digest.digest()):
            self.grown[self._name] = source.path
        self._offset += length
        self._left -= length
        end = begin + length
        if self._offset < source.bytes:
            return end
        payload[end : end + DIGEST_BYTES] = self._digest.digest()
        name, digest = self._name, self._digest.hexdigest()
        self.files.append(TransferredFile(name, source.bytes, digest, source.path))
        self.close()
        return end + DIGEST_BYTES


class Total(Struct):
    """All that a transfer has copied, over all its connections. What was sent again after a loss,
    because the sender had not heard that it was stored, counts once where names are listed.
    """

    files: dict[str, TransferredFile] = field(default_factory=dict)  # by name
    others: set[str] = field(default_factory=set)  # folders and links
    count: int = 0  # of files
    folders: int = 0
    bytes: int = 0
    resumed_bytes: int = 0
    hole_bytes: int = 0
    links: int = 0
    seconds: float = 0.0

    def add(self, batch: StoredBatch, *, listed: bool) -> None:
        before: list[TransferredFile] = []
        again: set[str] = set()
        if listed:
            before = [self.files[file.name] for file in batch.files if file.name in self.files]
            again = self.others.intersection(batch.others)
            self.files.update((file.name, file) for file in batch.files)
            self.others.update(batch.others)
        folders = sum(name.endswith("/") for name in again)
        self.count += batch.count - len(before)
        self.folders += batch.folders - folders
        self.bytes += batch.bytes - sum(file.bytes for file in before)
        self.links += batch.links - (len(again) - folders)
        if not before:  # otherwise the bytes travelled when the file came first
            self.resumed_bytes += batch.resumed_bytes
            self.hole_bytes += batch.hole_bytes


class StoredBatch(Struct, frozen=True):
    """One file, or all files and folders of a pack, stored and verified; of a pack whose connection
    was lost, those that were stored before.

    `files` is empty where nobody keeps more than MAX_LISTED names: a peer may send very many.
    """

    files: tuple[TransferredFile, ...]
    count: int  # of files
    folders: int
    bytes: int
    packed: bool
    resumed_bytes: int = 0  # that the receiver had already
    hole_bytes: int = 0  # of holes, behind those
    links: int = 0  # symbolic links
    others: tuple[str, ...] = ()  # folders, with a slash, and links, where all names are kept

    @classmethod
    def of(cls, file: TransferredFile, resumed_bytes: int = 0, hole_bytes: int = 0) -> StoredBatch:
        return cls((file,), 1, 0, file.bytes, False, resumed_bytes, hole_bytes)
