# SPDX-License-Identifier: Apache-2.0
"""What an interrupted transfer leaves in the output folder for the next one, and the sweep that
removes what is too old.

Of a file it keeps its part, and a record beside it. The record holds the digest of the file's bytes
up to the end of each stored chunk. A receiver that goes on reads the part again and keeps what
agrees with the record, so it trusts neither file after a power failure. While a transfer runs, the
disk has a chunk before the record names it.

A folder that was made and not completed has a mark, a file beside the parts: the next receiver of
the folder finds the mark and completes the folder. The mark names the folder by device and inode,
so a folder that somebody else has made there keeps what it has.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from mrc.transfer.messages import Digest
from mrc.transfer.names import is_mark, is_record, is_temporary, mark_name, record_name, shown_name

KEPT_SECONDS = 7 * 24 * 3600  # how long the sweep leaves a part alone
SYNC_SECONDS = 1.0  # between two writes of the record
_HEADER = struct.Struct("<8sQ")  # magic, bytes of a chunk
_MAGIC = b"mrckept1"
_DIGEST_BYTES = 16
_READ_BYTES = 1 << 20
_FORM = struct.Struct("<QQ")  # device and inode of the folder
_NEW_MODE = 0o700  # of a folder that is not complete
_MARK_MODE = 0o600


class PartRecord:
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
            size = hash_range(self._part, trial, kept * self._chunk_bytes, self._chunk_bytes)
            if size != self._chunk_bytes or trial.digest() != expected:
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


class Mark:
    """The mark of one folder, open and locked. `root` is the descriptor of the output folder."""

    def __init__(self, root: int, name: str, fd: int) -> None:
        self._root = root
        self._name = name
        self._fd = fd

    @classmethod
    def make(cls, root: int, path: str) -> Self | None:
        """The mark for a folder that is about to be made; None if another receiver has it."""
        return cls._open(root, mark_name(path), os.O_CREAT)

    @classmethod
    def of(cls, root: int, path: str, folder: int) -> Self | None:
        """The mark that an interrupted transfer has left for this folder."""
        mark = cls._open(root, mark_name(path), 0)
        if mark is None or mark._names(folder):
            return mark
        mark.remove()
        return None

    @classmethod
    def _open(cls, root: int, name: str, flags: int) -> Self | None:
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(name, flags, _MARK_MODE, dir_fd=root)
        except OSError:
            return None
        mark = cls(root, name, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink:
                return mark
        except OSError:
            pass  # another receiver has it
        mark.close()
        return None

    def put(self, folder: int) -> None:
        """The folder has been made."""
        status = os.fstat(folder)
        with suppress(OSError):  # on a full disk it stays empty
            os.pwrite(self._fd, _FORM.pack(status.st_dev, status.st_ino), 0)

    def keep(self, folder: int) -> None:
        """The folder has its mode, which the mark takes: it may lack an entry, or a sync.

        A disk that refuses to write may still change a mode, as it did for the folder.
        """
        with suppress(OSError):
            os.fchmod(self._fd, stat.S_IMODE(os.fstat(folder).st_mode) | _MARK_MODE)

    def _names(self, folder: int) -> bool:
        """Whether this folder is the marked one, and nobody has changed its mode since. A receiver
        that was killed between the two steps, or lost power, has left a mark without a name.
        """
        status, data = os.fstat(folder), os.pread(self._fd, _FORM.size, 0)
        same = not any(data) or data == _FORM.pack(status.st_dev, status.st_ino)
        ours = status.st_uid == os.geteuid()
        mode, kept = stat.S_IMODE(status.st_mode), stat.S_IMODE(os.fstat(self._fd).st_mode)
        return same and ours and (mode == _NEW_MODE or mode | _MARK_MODE == kept)

    def remove(self) -> None:
        """The folder is complete."""
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._root)
        self.close()

    def close(self) -> None:
        """Leaves the mark for the next receiver."""
        os.close(self._fd)


def sweep(root: int, *, resume: bool) -> list[str]:
    """Removes temporary files from the output folder that no live process has locked, but with
    `resume` no part that can be continued. Returns the names of the files that they were for. Marks
    of folders stay: they hold no bytes, and without them a folder would keep the mode of one that
    is not complete.
    """
    found = [name for name in sorted(os.listdir(root)) if is_temporary(name)]
    swept = []
    for name in found:
        if is_record(name):
            continue
        if is_mark(name):
            if not _is_recent(root, name):
                _remove_unlocked(root, name)
            continue
        record = record_name(name)
        if resume and record in found and _is_recent(root, record):
            continue
        if _remove_unlocked(root, name):
            swept.append(shown_name(name))
            with suppress(FileNotFoundError):
                os.unlink(record, dir_fd=root)
    for record in found:
        if is_record(record) and record.removesuffix("-kept") not in found:
            _remove_unlocked(root, record)
    return swept


def _is_recent(root: int, record: str) -> bool:
    """Whether this mark, or the part of this record, is to be kept."""
    try:
        status = os.stat(record, dir_fd=root, follow_symlinks=False)
    except OSError:
        return False
    return time.time() - status.st_mtime < KEPT_SECONDS


def _remove_unlocked(root: int, name: str) -> bool:
    """Removes a regular file that no live process has locked."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=root)
    except OSError:
        return False  # already removed, a symbolic link, or no permission
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=root)
    except OSError:
        return False  # a live receiver has locked it, or no permission
    finally:
        os.close(fd)
    return True
