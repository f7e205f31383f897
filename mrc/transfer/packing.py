# SPDX-License-Identifier: Apache-2.0
"""Fills the chunks of a pack with small files and folders. Runs in a helper thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from mrc.exchange.foreign import printable, shortened
from mrc.results.transfer import FailedFile, TransferredFile
from mrc.transfer.folders import Meta
from mrc.transfer.messages import MAX_ERROR, Digest
from mrc.transfer.names import FileError, StoppedError
from mrc.transfer.pack import (
    DIGEST_BYTES,
    RECORD_BYTES,
    PackedFailed,
    PackedFile,
    PackedFolder,
    PackedLink,
    put_header,
)
from mrc.transfer.plan import Entry, File, FolderEnd, Link
from mrc.transfer.source import Source

_LEAST_PART = 4096  # bytes of a file that are worth a record at the end of a chunk


class Packing:
    """The records of one pack. `close` closes the file that it reads; after `stop`, which any
    thread may call, `fill` raises StoppedError.
    """

    def __init__(self, entries: Sequence[Entry], *, keep_meta: bool) -> None:
        self._entries = entries
        self._keep_meta = keep_meta
        self._stopped = False
        self._next = 0
        self._source: Source | None = None  # of the entry before `_next`, while it is read
        self._offset = self._bytes = 0  # of the entry before `_next`
        self._digest = Digest()
        self._left = sum(entry.bytes for entry in entries if isinstance(entry, File))
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
            except FileError as error:
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
        if isinstance(entry, Link):
            target = os.fsencode(entry.target)
            return put_header(payload, at, PackedLink(name=os.fsencode(entry.name), target=target))
        assert isinstance(entry, File), "a pack holds files and folders"
        self._offset = 0
        self._bytes = entry.bytes
        self._digest = Digest()
        self._source = Source(entry.path, follow=entry.follow)
        self._left += self._source.bytes - entry.bytes  # it may have changed since it was listed
        self._bytes = self._source.bytes
        return at

    def _put_failed(self, payload: memoryview, at: int, error: FileError) -> int:
        """Says that a file is not sent, or not to its end."""
        self._left -= self._bytes - self._offset
        self.close()
        self.failed.append(FailedFile(self._name, str(error), "sender"))
        record = PackedFailed(
            name=os.fsencode(self._name), error=shortened(printable(str(error)), MAX_ERROR)
        )
        return put_header(payload, at, record)

    def _put_part(self, payload: memoryview, at: int, source: Source) -> int:
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
