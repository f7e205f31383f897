# SPDX-License-Identifier: Apache-2.0
"""The folders that a receiver writes to, each by its descriptor, and the marks of those that are
not complete.

No operation follows a symbolic link, so no name of a peer leads out of the output folder, whatever
other programs do there meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from msgspec import Struct

from mrc.connect.parse import printable
from mrc.transfer.limits import (
    CopyError,
    FileError,
    FinalError,
    cannot,
    cause_of,
    mark_name,
    record_name,
    temporary_name,
)

SECOND_NS = 1_000_000_000
_PERMISSIONS = 0o777  # a peer never sets the setuid, setgid and sticky bits


class Meta(Struct, frozen=True):
    """Mode and modification time of a file or folder; None: the receiver's own."""

    mode: int | None = None
    mtime_ns: int | None = None

    @classmethod
    def received(cls, mode: int | None, mtime: tuple[int, int] | None) -> Meta:
        """From the fields of a message."""
        return cls(mode, None if mtime is None else mtime[0] * SECOND_NS + mtime[1])

    @property
    def mtime(self) -> tuple[int, int] | None:
        """The time as the field of a message: seconds and nanoseconds."""
        return None if self.mtime_ns is None else divmod(self.mtime_ns, SECOND_NS)

    def apply(self, fd: int, default_mode: int, umask: int) -> None:
        """Sets both on an open file, the mode without what `umask` takes away; raises OSError."""
        mode = default_mode if self.mode is None else self.mode & _PERMISSIONS
        os.fchmod(fd, mode & ~umask)
        if self.mtime_ns is not None:
            os.utime(fd, ns=(self.mtime_ns, self.mtime_ns))


RECEIVERS = Meta()


class Folder:
    """An open folder of the receiver. `path` is for messages."""

    def __init__(self, fd: int, path: str, name: str = "", *, made: bool = False) -> None:
        self.fd = fd
        self.path = path
        self.name = name
        self.made = made  # by a receiver that has not completed it: it lacks its mode and time
        self.mark: Mark | None = None
        self.unsynced = True  # the disk may lack entries, or mode and time, perhaps of others

    def sync(self) -> None:
        """Returns when the disk has its entries, mode and time; raises FinalError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system without fsync for folders
                text = f"{printable(self.path)}: cannot be synced: {cause_of(error)}"
                raise FinalError(text) from error
        self.unsynced = False

    def close(self) -> None:
        if self.mark is not None:
            self.mark.close()
        os.close(self.fd)

    def mode_of(self, name: str) -> int | None:
        """The mode of the file with this name; None if there is none."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None

    def enter(self, name: str, on_make: Callable[[], None]) -> Folder:
        """Opens the folder `name` in this folder. Makes it if there is none, after `on_make`."""
        path = os.path.join(self.path, name)
        self.unsynced = True  # also if another receiver has made it
        try:
            try:
                return self._open(name, path)
            except FileNotFoundError:
                on_make()
            try:
                # Others may enter it when it is complete and has its own mode.
                os.mkdir(name, 0o700, dir_fd=self.fd)
            except FileExistsError:
                return self._open(name, path)  # another session was faster
            return self._open(name, path, made=True)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise FileError(
                    f"{printable(path)}: exists and is not a folder (mrc recv follows no symbolic"
                    " links)"
                ) from None
            raise cannot(error, f"{printable(path)}: cannot be made or opened") from error

    def _open(self, name: str, path: str, *, made: bool = False) -> Folder:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        fd = os.open(name, flags, dir_fd=self.fd)
        if os.fstat(fd).st_dev != os.fstat(self.fd).st_dev:
            os.close(fd)
            raise FileError(
                f"{printable(path)}: is on another file system: start mrc recv with it as --output"
            )
        return Folder(fd, path, name, made=made)

    def status_below(self, parts: list[str]) -> os.stat_result | None:
        """The status of a file below this folder, behind no symbolic link; None: it is missing."""
        fd = os.dup(self.fd)
        try:
            for part in parts[:-1]:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
                inner = os.open(part, flags, dir_fd=fd)
                os.close(fd)
                fd = inner
            return os.stat(parts[-1], dir_fd=fd, follow_symlinks=False)
        except OSError:
            return None
        finally:
            os.close(fd)

    def create_temporary(self, name: str) -> tuple[str, int]:
        """Creates and locks a temporary file for `name`; returns its name and descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        while True:
            temporary = temporary_name(name)
            try:
                fd = os.open(temporary, flags, 0o600, dir_fd=self.fd)
            except FileExistsError:
                continue
            except OSError as error:
                raise self._uncreated(error, name) from error
            if self._lock(fd):
                return temporary, fd
            os.close(fd)

    def _uncreated(self, error: OSError, name: str) -> CopyError:
        text = f"{printable(name)}: cannot be created in {self.path}"
        room = os.fstatvfs(self.fd)
        if error.errno == errno.ENOSPC and room.f_files and not room.f_favail:
            return FinalError(f"{text}: the disk has no inodes left (df -i): remove some files")
        return cannot(error, text)

    def open_part(self, part: str, name: str) -> tuple[int, int]:
        """Opens and locks a part and its record, or creates them; returns their descriptors."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        fds: list[int] = []
        try:
            for file in (part, record_name(part)):
                fds.append(os.open(file, flags, 0o600, dir_fd=self.fd))
                status = os.fstat(fds[-1])
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    raise FileError(
                        f"{printable(file)} in {self.path}: is not a part of mrc recv: remove it"
                    )
            if not self._lock(fds[0]):
                raise FileError(f"{printable(name)}: another mrc recv receives it: try again later")
        except BaseException as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, OSError):
                raise self._uncreated(error, name) from error
            raise
        return fds[0], fds[1]

    def open_same(self, name: str, size: int) -> int | None:
        """Opens the regular file `name` of this size for reading; None if there is none."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(name, flags, dir_fd=self.fd)
        except OSError:
            return None
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_size == size:
            self.unsynced = True
            return fd
        os.close(fd)
        return None

    def _lock(self, fd: int) -> bool:
        # A sweep may remove the file between creation and lock; then the caller creates another.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return os.fstat(fd).st_nlink == 1

    def move(self, temporary: str, to: Folder, name: str, *, overwrite: bool) -> None:
        """Renames a temporary file of this folder atomically, into the folder `to`.

        Raises FileExistsError if the name is in use.
        """
        to.unsynced = True
        if overwrite:
            os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=to.fd)
            return
        try:
            # link() fails atomically if the name exists; rename() would replace the file.
            os.link(temporary, name, src_dir_fd=self.fd, dst_dir_fd=to.fd)
        except FileExistsError:
            raise
        except OSError:
            # The file system has no hard links: check and rename are two steps, not atomic.
            if to.mode_of(name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
            os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=to.fd)
            return
        self.remove(temporary)

    def make_link(self, name: str, target: str, root: Folder, *, overwrite: bool) -> None:
        """Makes a symbolic link; raises OSError, FileExistsError if the name is in use."""
        self.unsynced = True
        try:
            if os.readlink(name, dir_fd=self.fd) == target:
                return
        except OSError:
            pass  # there is none
        if not overwrite:
            os.symlink(target, name, dir_fd=self.fd)
            return
        temporary = temporary_name(name)
        os.symlink(target, temporary, dir_fd=root.fd)
        try:
            os.replace(temporary, name, src_dir_fd=root.fd, dst_dir_fd=self.fd)
        except OSError:
            root.remove(temporary)
            raise

    def remove(self, temporary: str) -> None:
        try:
            os.unlink(temporary, dir_fd=self.fd)
        except FileNotFoundError:
            pass

    def free_bytes(self) -> int:
        """Bytes that this user can still write; sys.maxsize if the file system reports none."""
        status = os.fstatvfs(self.fd)
        if status.f_blocks == 0:
            return sys.maxsize
        blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
        return blocks * status.f_frsize


# ---- Marks ---------------------------------------------------------------------------------------
#
# A folder that was made and not completed has a mark, a file beside the parts: the next receiver of
# the folder finds the mark and completes the folder. The mark names the folder by device and inode,
# so a folder that somebody else has made there keeps what it has.


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
