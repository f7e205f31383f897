# SPDX-License-Identifier: Apache-2.0
"""The mark of a folder that a receiver has made and not completed.

It is a file in the output folder, beside the parts of files, so it outlives an interrupted
transfer: the next receiver of the folder finds the mark and completes the folder. The mark names
the folder by device and inode, so a folder that somebody else has made there keeps what it has.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from contextlib import suppress
from typing import Self

from mrc.transfer.names import mark_name

_FORM = struct.Struct("<QQ")  # device and inode of the folder
_NEW_MODE = 0o700  # of a folder that is not complete
_MARK_MODE = 0o600


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
