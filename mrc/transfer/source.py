# SPDX-License-Identifier: Apache-2.0
"""The files of a sender: open, checked for changes, mapped or read."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from typing import Self

from mrc.exchange.foreign import printable
from mrc.transfer.kept import hash_range
from mrc.transfer.messages import Digest
from mrc.transfer.names import FileError, StoppedError, cause_of

_BLOCK_BYTES = 512  # the unit of st_blocks


class FileChangedError(FileError):
    """The source file changed after its offer."""


class Source:
    """A regular file to send, open. A context manager.

    With `follow` false it refuses a symbolic link: a name below a folder may have become one.
    """

    def __init__(self, path: str, *, follow: bool = True) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._stopped = False
        # O_NONBLOCK: opening a FIFO must not wait for its writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
        try:
            self.fd = os.open(path, flags)
        except FileNotFoundError:
            raise FileError(f"{printable(path)}: no such file") from None
        except PermissionError:
            raise FileError(f"{printable(path)}: this user may not read it") from None
        except (OSError, ValueError) as error:
            cause = cause_of(error) if isinstance(error, OSError) else str(error)
            raise FileError(f"{printable(path)}: {cause}") from error
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{printable(self.path)}: {what_is(status.st_mode)}")
        self.bytes = status.st_size
        self.mode = stat.S_IMODE(status.st_mode)
        self.mtime_ns = status.st_mtime_ns
        self.sparse = status.st_blocks * _BLOCK_BYTES < status.st_size
        if not self.bytes and self._reads_more():
            raise self.unsized()

    def _reads_more(self) -> bool:
        try:
            return bool(os.pread(self.fd, 1, self.bytes))
        except OSError:
            return False

    def unsized(self) -> FileError:
        """The error for a file whose size the kernel does not tell, such as those of /proc."""
        return FileError(
            f"{printable(self.path)}: its size is unknown, as of the files in /proc and /sys: send"
            " it through a pipe: cat FILE | mrc send - HOST --name NAME"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. It stays mapped while a memory region uses it."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def map(self) -> mmap.mmap:
        """The whole file, read only. A file of 0 bytes has none."""
        assert self.bytes and self.fd >= 0, "an empty or closed source has no mapping"
        if self._map is None:
            try:
                self._map = mmap.mmap(self.fd, self.bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            except ValueError as error:  # the file is shorter than the mapping
                raise self._changed("it shrank") from error
            except OSError as error:
                if error.errno == errno.ENODEV:
                    raise self.unsized() from error
                raise FileError(f"{printable(self.path)}: cannot be mapped: {error}") from error
        return self._map

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fills `view` with the bytes from `offset` on; raises FileChangedError if some lack."""
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self.fd, [view[done:]], offset + done)
            except OSError as error:
                raise FileError(f"{printable(self.path)}: {cause_of(error)}") from error
            if count == 0 and os.fstat(self.fd).st_size == self.bytes:
                raise self.unsized()
            if count == 0:
                raise self._changed("it shrank")
            done += count

    def grew(self, digest: bytes) -> bool:
        """Whether it has more bytes than it had. `digest` is that of the bytes that were read.

        If size or date have changed, it reads the file again: call it in a thread. Raises
        FileChangedError when its first bytes are others, StoppedError after `stop`.
        """
        status = os.fstat(self.fd)
        if status.st_size < self.bytes:
            raise self._changed("it shrank")
        if status.st_size == self.bytes and status.st_mtime_ns == self.mtime_ns:
            return False
        now = Digest()
        try:
            hash_range(self.fd, now, 0, self.bytes, self._check_stop)
        except OSError as error:
            raise FileError(f"{printable(self.path)}: {cause_of(error)}") from error
        if now.digest() != digest:
            raise self._changed("it was written to")
        return status.st_size > self.bytes

    def stop(self) -> None:
        """Ends a look for changes, from any thread."""
        self._stopped = True

    def _check_stop(self) -> None:
        if self._stopped:
            raise StoppedError

    def _changed(self, how: str) -> FileChangedError:
        return FileChangedError(
            f"{printable(self.path)}: changed while it was sent ({how}): send it again when no"
            " program writes to it"
        )


def what_is(mode: int) -> str:
    """The words for a file that is not a regular one."""
    if stat.S_ISFIFO(mode):
        return "is a FIFO, not a regular file: send its bytes with: mrc send - HOST < FIFO"
    kinds = (
        (stat.S_ISDIR, "directory"),
        (stat.S_ISLNK, "symbolic link"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    )
    kind = next((word for test, word in kinds if test(mode)), "special file")
    return f"is a {kind}, not a regular file"
