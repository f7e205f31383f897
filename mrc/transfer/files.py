# SPDX-License-Identifier: Apache-2.0
"""Files at both ends of a transfer: `Source`, `OutputDirectory` and `Target`.

A `Source` is a regular file, mapped and checked for changes. An `OutputDirectory` accepts names
from an untrusted peer. All its operations are relative to its own descriptor, so no name leads out
of the directory. It refuses names that programs could take for options or settings. A `Target` has
a temporary name until it is complete.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
import sys
from typing import Self

from mrc.errors import MrcError
from mrc.exchange.foreign import has_invisible, printable, shown

MAX_AHEAD_BYTES = 256 << 20  # most disk space that a file allocates ahead of its writes
MAX_NAME_BYTES = 255  # NAME_MAX of Linux file systems
_TEMPORARY = re.compile(r"\..*\.mrc-[0-9a-f]{8}", re.DOTALL)
_SUFFIX_BYTES = len("..mrc-01234567")


class FileError(MrcError):
    """A file cannot be read or stored; the message names the file and the cause."""


class FileChangedError(FileError):
    """The source file changed after its offer."""


def check_name(name: str) -> str:
    """Returns `name` if it is a valid file name without a path; raises FileError otherwise."""
    shown = printable(name)
    if name in ("", ".", ".."):
        raise FileError(f"{shown!r} is not a file name")
    if "/" in name or "\0" in name:
        raise FileError(f"{shown!r} is not a base name: it contains '/' or NUL")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        raise FileError(f"{shown!r} is not a file name: it cannot be encoded") from None
    if len(encoded) > MAX_NAME_BYTES:
        raise FileError(f"{shown!r} is longer than {MAX_NAME_BYTES} bytes")
    if _TEMPORARY.fullmatch(name):
        raise FileError(f"{shown!r} is reserved for temporary files of mrc: rename the file")
    return name


def check_harmless(name: str) -> None:
    """Raises FileError for a name that other programs could misinterpret."""
    if name[0] in ".-":
        how = f"begins with {name[0]!r}"
    elif has_invisible(name):
        how = "contains control characters"
    else:
        return
    raise FileError(f"{shown(name)!r}: {how}; mrc recv accepts such names only with --any-name")


def _temporary_name(name: str) -> str:
    # Cut by bytes, so that the temporary name of the longest legal name is legal too.
    stem = os.fsdecode(os.fsencode(name)[: MAX_NAME_BYTES - _SUFFIX_BYTES])
    return f".{stem}.mrc-{secrets.token_hex(4)}"


def _cause(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class Source:
    """A regular file to send, open and mapped. A context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        try:
            # O_NONBLOCK: opening a FIFO must not wait for its writer.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileError(f"{printable(path)}: no such file") from None
        except PermissionError:
            raise FileError(f"{printable(path)}: this user may not read it") from None
        except (OSError, ValueError) as error:
            cause = _cause(error) if isinstance(error, OSError) else str(error)
            raise FileError(f"{printable(path)}: {cause}") from error
        try:
            self._open(path)
        except BaseException:
            os.close(self._fd)
            raise

    def _open(self, path: str) -> None:
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            raise FileError(f"{printable(path)}: is a directory: send an archive of it instead")
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{printable(path)}: is not a regular file")
        self.name = check_name(os.path.basename(path))
        self.bytes = status.st_size
        self._mtime_ns = status.st_mtime_ns
        if self.bytes:
            try:
                self._map = mmap.mmap(self._fd, self.bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            except (OSError, ValueError) as error:
                raise FileError(f"{printable(path)}: cannot be mapped: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps and closes the file; no memory region may use the mapping any more."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def map(self) -> mmap.mmap:
        """The whole file, read only. A file of 0 bytes has none."""
        assert self._map is not None, "an empty or closed source has no mapping"
        return self._map

    def check_unchanged(self) -> None:
        """Raises FileChangedError when size or modification time have changed."""
        status = os.fstat(self._fd)
        if status.st_size < self.bytes:
            raise self._changed("it shrank")
        if status.st_size > self.bytes:
            raise self._changed("it grew")
        if status.st_mtime_ns != self._mtime_ns:
            raise self._changed("it was written to")

    def _changed(self, how: str) -> FileChangedError:
        return FileChangedError(
            f"{printable(self.path)}: changed while it was sent ({how}): send it again when no"
            " program writes to it"
        )


class Target:
    """A file that is being received. It has a temporary name until `commit` and a lock."""

    def __init__(self, directory: OutputDirectory, name: str, size: int, *, overwrite: bool):
        self.name = name
        self.bytes = size
        self.path = os.path.join(directory.path, name)
        self._directory = directory
        self._overwrite = overwrite
        self._allocated = 0  # bytes
        self._temporary, self._fd = directory.create_temporary(name)

    def check_room(self) -> None:
        """Raises FileError when the file system lacks space for the file now. Allocates none."""
        if self.bytes > self._directory.free_bytes():
            raise self._no_room()

    def write(self, offset: int, chunk: memoryview) -> None:
        """Writes `chunk` at `offset`; raises FileError. May wait for the disk: call it in a thread.

        Allocates disk space ahead of the data in steps: a peer occupies at most twice the space of
        the data it has sent, and at most MAX_AHEAD_BYTES more than this data.
        """
        done = 0
        try:
            if (end := offset + len(chunk)) > self._allocated:
                ahead = min(max(end, 2 * self._allocated), end + MAX_AHEAD_BYTES, self.bytes)
                os.posix_fallocate(self._fd, self._allocated, ahead - self._allocated)
                self._allocated = ahead
            while done < len(chunk):
                done += os.pwrite(self._fd, chunk[done:], offset + done)
        except OSError as error:
            raise self._cannot(error, "write") from error

    def _cannot(self, error: OSError, what: str) -> FileError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._no_room()
        if error.errno == errno.EFBIG:
            return FileError(
                f"{printable(self.name)}: the file system of {self._directory.path} does not"
                f" support files of {self.bytes} bytes"
            )
        return FileError(f"{self.path}: cannot {what}: {_cause(error)}")

    def _no_room(self) -> FileError:
        free = self._directory.free_bytes()
        return FileError(
            f"{printable(self.name)}: no room for {self.bytes} bytes in {self._directory.path}"
            f" ({free} free): free some space or choose another --output"
        )

    def commit(self) -> None:
        """Gives the complete file its final name; raises FileError when the rename fails."""
        os.fchmod(self._fd, 0o666 & ~self._directory.umask)
        try:
            self._directory.rename(self._temporary, self.name, overwrite=self._overwrite)
        except FileExistsError:
            raise self._directory.exists_error(self.name) from None
        except OSError as error:
            raise FileError(
                f"{self.path}: cannot be renamed into place: {_cause(error)}"
            ) from error
        self._temporary = ""
        self._directory.names.discard(self.name)

    def close(self) -> None:
        """Removes the temporary file unless it was committed."""
        if self._temporary:
            self._directory.remove(self._temporary)
            self._temporary = ""
            self._directory.names.discard(self.name)
        if self._fd >= 0:
            os.close(self._fd)  # this also releases the lock
            self._fd = -1


class OutputDirectory:
    """The one directory that a receiver writes to. A context manager."""

    def __init__(self, path: str, *, overwrite: bool = False, any_name: bool = False) -> None:
        self._any_name = any_name
        self.path = os.path.abspath(path)  # peers see it in errors, where "." would mean nothing
        self._overwrite = overwrite
        self.names: set[str] = set()  # final names of the open targets
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileError(f"{path}: no such directory; create it first") from None
        except NotADirectoryError:
            raise FileError(f"{path}: is not a directory") from None
        except PermissionError:
            raise FileError(f"{path}: this user may not open it") from None
        if not os.access(path, os.W_OK | os.X_OK):
            os.close(self._fd)
            raise FileError(f"{path}: this user may not write there; choose another --output")
        self.umask = os.umask(0o077)
        os.umask(self.umask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._fd)

    def sweep(self) -> list[str]:
        """Removes temporary files that no live process has locked; returns their names."""
        swept = []
        for name in sorted(os.listdir(self._fd)):
            if not _TEMPORARY.fullmatch(name):
                continue
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
            except OSError:
                continue  # already removed, a symbolic link, or no permission
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=self._fd)
                    swept.append(name)
            except OSError:
                pass  # a live receiver has locked it, or no permission
            finally:
                os.close(fd)
        return swept

    def create(self, name: str, size: int) -> Target:
        """Opens a target for `size` bytes; raises FileError when the name is not allowed or in use.

        The caller closes it.
        """
        check_name(name)
        if not self._any_name:
            check_harmless(name)
        if name in self.names:
            raise FileError(
                f"{printable(name)}: is being received from another sender: try again later"
            )
        mode = self._mode(name)
        if mode is not None and not self._overwrite:
            raise self.exists_error(name)
        if mode is not None and stat.S_ISDIR(mode):
            raise FileError(f"{printable(name)}: is a directory in {self.path}")
        target = Target(self, name, size, overwrite=self._overwrite)
        self.names.add(name)
        return target

    def exists_error(self, name: str) -> FileError:
        return FileError(
            f"{printable(name)}: exists in {self.path}; start mrc recv with --overwrite to replace"
            " files"
        )

    def _mode(self, name: str) -> int | None:
        """The mode of the file with this name; None if there is none."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None

    def create_temporary(self, name: str) -> tuple[str, int]:
        """Creates and locks a temporary file for `name`; returns its name and descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            temporary = _temporary_name(name)
            try:
                fd = os.open(temporary, flags, 0o600, dir_fd=self._fd)
            except FileExistsError:
                continue
            except OSError as error:
                raise FileError(
                    f"{printable(name)}: cannot be created in {self.path}: {_cause(error)}"
                ) from error
            if self._lock(fd):
                return temporary, fd
            os.close(fd)

    def _lock(self, fd: int) -> bool:
        # A sweep may remove the file between creation and lock; then the caller creates another.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return os.fstat(fd).st_nlink == 1

    def rename(self, temporary: str, name: str, *, overwrite: bool) -> None:
        """Renames a temporary file atomically; raises FileExistsError if the name is in use."""
        if overwrite:
            os.replace(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            return
        try:
            # link() fails atomically if the name exists; rename() would replace the file.
            os.link(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except FileExistsError:
            raise
        except OSError:
            # The file system has no hard links: check and rename are two steps, not atomic.
            if self._mode(name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
            os.replace(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            return
        self.remove(temporary)

    def remove(self, temporary: str) -> None:
        try:
            os.unlink(temporary, dir_fd=self._fd)
        except FileNotFoundError:
            pass

    def free_bytes(self) -> int:
        """Bytes that this user can still write; sys.maxsize if the file system reports none."""
        status = os.fstatvfs(self._fd)
        if status.f_blocks == 0:
            return sys.maxsize
        blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
        return blocks * status.f_frsize
