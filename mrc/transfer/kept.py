# SPDX-License-Identifier: Apache-2.0
"""What is kept of a file whose transfer was interrupted: its part, and a record beside it.

The record holds the digest of the file's bytes up to the end of each stored chunk. A receiver that
goes on reads the part again and keeps what agrees with the record, so it trusts neither file after
a power failure. While a transfer runs, the disk has a chunk before the record names it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from mrc.transfer.messages import Digest

KEPT_SECONDS = 7 * 24 * 3600  # how long the sweep leaves a part alone
SYNC_SECONDS = 1.0  # between two writes of the record
_HEADER = struct.Struct("<8sQ")  # magic, bytes of a chunk
_MAGIC = b"mrckept1"
_DIGEST_BYTES = 16
_READ_BYTES = 1 << 20


class Record:
    """The record of a part, and the part itself, by their descriptors. Runs in a helper thread."""

    def __init__(self, part: int, record: int, chunk_bytes: int) -> None:
        self._part = part
        self._record = record
        self._chunk_bytes = chunk_bytes
        self._written = 0  # digests in the record
        self._new: list[bytes] = []
        self._saved = time.monotonic()
        self._pool: ThreadPoolExecutor | None = None
        self._saving: Future[None] | None = None

    def verify(self, most: int, check: Callable[[], None] = lambda: None) -> tuple[int, Digest]:
        """Chunks of the part that agree with the record, up to `most`, and their digest. `check`
        raises an error to end this.
        """
        kept, digest = 0, Digest()
        for expected in self._digests()[:most]:
            check()
            trial = digest.copy()
            if not self._hash(trial, kept * self._chunk_bytes) or trial.digest() != expected:
                break
            kept, digest = kept + 1, trial
        return kept, digest

    def begin(self, kept: int) -> None:
        """Goes on after `kept` chunks; forgets all others. Raises OSError."""
        os.ftruncate(self._part, kept * self._chunk_bytes)
        os.ftruncate(self._record, _HEADER.size + kept * _DIGEST_BYTES)
        os.pwrite(self._record, _HEADER.pack(_MAGIC, self._chunk_bytes), 0)
        self._written = kept

    def add(self, digest: bytes) -> None:
        """The next chunk is in the part; `digest` is that of all bytes so far."""
        self._new.append(digest)
        busy = self._saving is not None and not self._saving.done()
        if busy or time.monotonic() - self._saved < SYNC_SECONDS:
            return
        # In another thread: the disk may be much slower than the page cache.
        self._pool = self._pool or ThreadPoolExecutor(max_workers=1)
        self._saved = time.monotonic()
        self._saving = self._pool.submit(self._sync_and_save, len(self._new))

    @property
    def kept_bytes(self) -> int:
        """Bytes of whole chunks in the part; the last chunk of a file may be shorter."""
        chunks = self._written + len(self._new)
        return min(chunks * self._chunk_bytes, os.fstat(self._part).st_size)

    def close(self, *, save: bool) -> None:
        """Ends its thread. With `save` the record names all chunks."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if save:
            with suppress(OSError):  # then it names fewer
                self._save(len(self._new))

    def _sync_and_save(self, count: int) -> None:
        with suppress(OSError):
            os.fdatasync(self._part)
            self._save(count)

    def _save(self, count: int) -> None:
        digests = b"".join(self._new[:count])
        os.pwrite(self._record, digests, _HEADER.size + self._written * _DIGEST_BYTES)
        self._written += count
        del self._new[:count]

    def _digests(self) -> list[bytes]:
        """The digests in the record; none if it is not of these chunks."""
        size = os.fstat(self._record).st_size
        whole = os.pread(self._record, size, 0)
        if len(whole) < _HEADER.size or _HEADER.unpack_from(whole) != (_MAGIC, self._chunk_bytes):
            return []
        return [
            whole[at : at + _DIGEST_BYTES]
            for at in range(_HEADER.size, len(whole) - _DIGEST_BYTES + 1, _DIGEST_BYTES)
        ]

    def _hash(self, digest: Digest, start: int) -> bool:
        """Adds the chunk at `start`; False if the part ends before."""
        return hash_range(self._part, digest, start, self._chunk_bytes) == self._chunk_bytes


def hash_range(
    fd: int, digest: Digest, start: int, length: int, check: Callable[[], None] = lambda: None
) -> int:
    """Adds up to `length` bytes of a file to `digest`; returns how many there were. `check` raises
    an error to end this.
    """
    done = 0
    while done < length:
        check()
        piece = os.pread(fd, min(_READ_BYTES, length - done), start + done)
        if not piece:
            break
        digest.update(piece)
        done += len(piece)
    return done
