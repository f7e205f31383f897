# SPDX-License-Identifier: Apache-2.0
"""The files of a receiver: `OutputDirectory`, `SessionTree` and `PartFile`.

An `OutputDirectory` accepts names from an untrusted peer. All operations are relative to
descriptors of its folders, so no name leads out of the directory. It refuses names that programs
could take for options or settings. A `SessionTree` is the directory as one session uses it. A
`PartFile` is a file with a temporary name until it is complete.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import stat
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Self

from mrc.connect.parse import printable, shown
from mrc.transfer.folders import RECEIVERS, SECOND_NS, Folder, Mark, Meta
from mrc.transfer.limits import (
    CopyError,
    FileError,
    FinalError,
    StoppedError,
    about,
    cannot,
    cause_of,
    check_harmless,
    check_link,
    check_path,
    is_mark,
    is_record,
    is_temporary,
    part_name,
    record_name,
    shown_name,
)
from mrc.transfer.messages import Digest, hash_range

MAX_AHEAD_BYTES = 256 << 20  # most disk space that a file allocates ahead of its writes
_COPY_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_ZEROS = bytes(64 << 10)  # a hole is at least as large


class PartFile:
    """A file that is being received. It has a temporary name until `commit`, and a lock.

    `size` is None for a file whose size the sender does not know yet. With `chunk_bytes` it is a
    part: without `commit` it is kept, with a record of its chunks. `check` raises StoppedError.
    """

    def __init__(
        self,
        directory: OutputDirectory,
        folder: Folder,
        name: str,
        size: int | None,
        *,
        sparse: bool = False,
        chunk_bytes: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.bytes = size or 0
        self._check = check
        self.path = os.path.join(directory.path, name)
        self._directory = directory
        self._folder = folder
        self._base = os.path.basename(name)
        self._grows = size is None
        self._sparse = sparse
        self._allocated = 0  # bytes
        # All temporary files are in the output folder itself, where a later receiver looks.
        self._record_fd = -1
        self._record: PartRecord | None = None
        self._wanted = True
        if not chunk_bytes:
            self._temporary, self._fd = directory.root.create_temporary(self._base)
            return
        self._temporary = part_name(name)
        self._fd, self._record_fd = directory.root.open_part(self._temporary, name)
        self._record = PartRecord(self._fd, self._record_fd, chunk_bytes)

    def kept(self, chunk_bytes: int) -> tuple[int, Digest]:
        """Chunks of an earlier transfer, and their digest. Reads them: call it in a thread."""
        if self._record is None:
            return 0, Digest()
        return self._record.verify(self.bytes // chunk_bytes, self._check)

    def begin(self, chunks: int, start: int) -> None:
        """Goes on after `chunks` chunks with `start` bytes; raises CopyError."""
        try:
            if self._record is not None:
                self._record.begin(chunks)
        except OSError as error:
            raise self._cannot(error, "write") from error
        self._allocated = start

    def add_chunk(self, digest: bytes) -> None:
        """The next chunk has been written; `digest` is that of the file so far."""
        if self._record is not None:
            self._record.add(digest)

    def check_room(self) -> None:
        """Raises FileError when the file system lacks space for the file now. Allocates none."""
        missing = self.bytes - os.fstat(self._fd).st_blocks * 512
        if missing > self._directory.root.free_bytes() and not self._sparse:
            raise self._no_room()

    def write(self, offset: int, chunk: memoryview) -> None:
        """Writes `chunk` at `offset`; raises CopyError. May wait for the disk: call it in a thread.

        Allocates disk space ahead of the data in steps: a peer occupies at most twice the space of
        the data it has sent, and at most MAX_AHEAD_BYTES more than this data. A sparse file and one
        that grows allocate nothing ahead.
        """
        end = offset + len(chunk)
        if self._grows:
            self.bytes = max(self.bytes, end)
        try:
            if self._sparse:
                for start in range(0, len(chunk), len(_ZEROS)):
                    part = chunk[start : start + len(_ZEROS)]
                    if part[0] or bytes(part) != _ZEROS[: len(part)]:  # others become holes
                        self._write(offset + start, part)
                return
            whole = offset == 0 and end >= self.bytes  # one write allocates it as well
            if end > self._allocated and not whole and not self._grows:
                ahead = min(max(end, 2 * self._allocated), end + MAX_AHEAD_BYTES, self.bytes)
                os.posix_fallocate(self._fd, self._allocated, ahead - self._allocated)
                self._allocated = ahead
            self._write(offset, chunk)
        except OSError as error:
            raise self._cannot(error, "write") from error

    def _write(self, offset: int, chunk: memoryview) -> None:
        done = 0
        while done < len(chunk):
            done += os.pwrite(self._fd, chunk[done:], offset + done)

    def _cannot(self, error: OSError, what: str) -> CopyError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._no_room()
        if error.errno == errno.EFBIG:
            most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            if most != resource.RLIM_INFINITY and most < self.bytes:
                return FileError(
                    f"{printable(self.name)}: this mrc recv may not write files of {self.bytes}"
                    f" bytes, but of {most}: raise its limit (ulimit -f)"
                )
            return FileError(
                f"{printable(self.name)}: the file system of {self._directory.path} does not"
                f" support files of {self.bytes} bytes"
            )
        return cannot(error, f"{self.path}: cannot {what}")

    def _no_room(self) -> FinalError:
        path, free = self._directory.path, self._directory.root.free_bytes()
        return FinalError(
            f"{shown(self.name)}: no room for {self.bytes} bytes in {path} ({free} free): free some"
            " space or choose another --output"
        )

    def commit(self, meta: Meta = RECEIVERS) -> None:
        """Gives the complete file its mode, time and final name; raises CopyError. With `fsync` the
        disk has the file before it gets its name.
        """
        try:
            if self._sparse or self._record is not None:
                os.ftruncate(self._fd, self.bytes)  # it may end with a hole, or was longer before
            self._directory.set_meta(self._fd, meta, 0o666)
            self._directory.sync(self._fd)
        except OSError as error:
            raise self._cannot(error, "be completed") from error
        try:
            overwrite = self._directory.overwrite
            self._directory.root.move(
                self._temporary, self._folder, self._base, overwrite=overwrite
            )
        except FileExistsError:
            raise self._directory.exists_error(self.name) from None
        except OSError as error:
            raise cannot(error, f"{self.path}: cannot be renamed into place") from error
        self._temporary = ""
        self._directory.names.discard(self.name)

    def discard(self) -> None:
        """Keeps nothing of it."""
        self._wanted = False

    def close(self) -> int:
        """Removes the temporary file unless it was committed or is a part with chunks. Returns the
        bytes that are kept.
        """
        kept, temporary, self._temporary = 0, self._temporary, ""
        try:
            if self._record is not None:
                kept = self._record.kept_bytes if temporary and self._wanted else 0
                self._record.close(save=kept > 0)
                if kept:
                    os.ftruncate(self._fd, kept)  # gives back what was allocated ahead
                if not kept:
                    self._directory.root.remove(record_name(part_name(self.name)))
            if temporary and not kept:
                self._directory.root.remove(temporary)
        except OSError as error:
            raise cannot(error, f"{self.path}: cannot be removed") from error
        finally:
            if self._record is not None:
                os.close(self._record_fd)
                self._record = None
            if temporary:
                self._directory.names.discard(self.name)
            if self._fd >= 0:
                os.close(self._fd)  # this also releases the lock
                self._fd = -1
        return kept


class ExistingFile:
    """A file that exists already and has the size of the file that arrives.

    It is not written to while the bytes that arrive are its own. At the first difference `replace`
    makes a target for the new bytes, which raises FileError without --overwrite. `check` raises
    StoppedError. The functions are those of a PartFile.
    """

    def __init__(
        self,
        directory: OutputDirectory,
        name: str,
        fd: int,
        size: int,
        replace: Callable[[], PartFile],
        check: Callable[[], None],
    ) -> None:
        self.name = name
        self.path = os.path.join(directory.path, name)
        self.bytes = size
        self._directory = directory
        self._fd = fd
        self._replace = replace
        self._check = check
        self._target: PartFile | None = None
        self._digest = Digest()  # of the bytes that were the same

    def check_room(self) -> None:
        """It takes none."""

    def write(self, offset: int, chunk: memoryview) -> None:
        """Compares, and writes from the first difference on; raises CopyError."""
        if self._target is None and os.pread(self._fd, len(chunk), offset) == chunk:
            self._digest.update(chunk)
            return
        if self._target is None:
            self._target = self._replace()
            self._copy(self._target, offset)
        self._target.write(offset, chunk)

    def _copy(self, target: PartFile, length: int) -> None:
        """Copies the bytes that were the same."""
        digest = Digest()
        for start in range(0, length, _COPY_BYTES):
            self._check()
            piece = os.pread(self._fd, min(_COPY_BYTES, length - start), start)
            digest.update(piece)
            target.write(start, memoryview(piece))
        if digest.digest() != self._digest.digest():
            raise FileError(f"{printable(self.name)}: changed while it was received: send it again")

    def kept(self, chunk_bytes: int) -> tuple[int, Digest]:
        """All its chunks, and the digest of its bytes. Reads it: call it in a thread."""
        digest = Digest()
        hash_range(self._fd, digest, 0, self.bytes, self._check)
        return -(-self.bytes // chunk_bytes), digest

    def begin(self, chunks: int, start: int) -> None:
        """The sender goes on after `chunks` chunks: after all, because its bytes are the same, or
        after none. Then this makes the replacement; raises FileError without --overwrite,
        FinalError without room. A file without bytes is always the same.
        """
        if self.bytes and not chunks:
            self._target = self._replace()
            self._target.check_room()
            self._target.begin(chunks, start)

    def add_chunk(self, digest: bytes) -> None:
        """The next chunk was the same or has been written; `digest` is that of the file so far."""
        if self._target is not None:
            self._target.add_chunk(digest)

    def commit(self, meta: Meta = RECEIVERS) -> None:
        """It is complete. With --overwrite it also gets mode and time of the file that arrived."""
        if self._target is not None:
            self._target.commit(meta)
            return
        try:
            if self._directory.overwrite:
                self._directory.set_meta(self._fd, meta, 0o666)
            self._directory.sync(self._fd)
        except OSError as error:
            raise cannot(error, f"{self.path}: cannot be completed") from error

    def discard(self) -> None:
        """Keeps nothing of a replacement; the file itself stays."""
        if self._target is not None:
            self._target.discard()

    def close(self) -> int:
        """Closes it, and a replacement as a PartFile does. Returns the bytes that are kept of the
        replacement.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        target, self._target = self._target, None
        return target.close() if target is not None else 0


class SessionTree:
    """An output directory as one session uses it, and the open folders from there down to the one
    in use.

    A sender walks its folders depth first, so each folder is opened once, and one descriptor is
    held for each part of a name. A folder that is not complete has a mark, and those that earlier
    transfers have left count. With `fsync`, the disk has a folder when the sender has left it.

    Calls `on_make` before it makes a folder, and `on_open` before it opens one or looks for a file.
    """

    def __init__(
        self, directory: OutputDirectory, on_make: Callable[[], None], on_open: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._on_make = on_make
        self._on_open = on_open
        self._stopped = False
        self._folders = [directory.root]
        self._lacking: set[str] = set()  # paths of folders of which an entry was not stored
        self._found = False  # a file that the disk may lack

    def same(
        self, name: str, size: int, *, sparse: bool = False, chunk_bytes: int = 0
    ) -> ExistingFile | None:
        """The file of this name and size if it exists already."""
        parts = self._directory.check(name)
        folder = self._enter(parts[:-1])
        fd = folder.open_same(parts[-1], size) if self._directory.resume else None
        if fd is None:
            return None
        replace = partial(self.create, name, size, sparse=sparse, chunk_bytes=chunk_bytes)
        return ExistingFile(self._directory, name, fd, size, replace, self.check_stop)

    def create(
        self, name: str, size: int | None, *, sparse: bool = False, chunk_bytes: int = 0
    ) -> PartFile:
        """Opens a target for `size` bytes; raises FileError when the name is not allowed or in use.

        With `chunk_bytes` it goes on with what was kept of this file. The caller closes it before
        it creates another.
        """
        parts = self._directory.check(name)
        folder = self._enter(parts[:-1])
        self._directory.check_free(folder, name)
        chunk_bytes = chunk_bytes if self._directory.resume else 0
        target = PartFile(
            self._directory, folder, name, size,
            sparse=sparse, chunk_bytes=chunk_bytes, check=self.check_stop,
        )  # fmt: skip
        self._directory.names.add(name)
        return target

    def has(self, name: str, size: int, mtime_ns: int) -> bool:
        """Whether a file of this size and date is there, as far as the file system keeps dates."""
        self._before_opening()
        status = self._directory.root.status_below(self._directory.check(name))
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        found = status.st_mtime_ns in (mtime_ns, mtime_ns // SECOND_NS * SECOND_NS)
        found = found or status.st_mtime_ns == self._directory.kept_date(mtime_ns)
        self._found = self._found or found
        return found

    def make_link(self, name: str, target: str) -> None:
        """Makes a symbolic link that leads to a place in the directory; raises CopyError."""
        directory = self._directory
        parts = directory.check(name)
        with about(name):
            check_link(target, len(parts) - 1)
        folder = self._enter(parts[:-1])
        directory.check_free(folder, name, link=True)
        try:
            folder.make_link(parts[-1], target, directory.root, overwrite=directory.overwrite)
        except FileExistsError:
            raise directory.exists_error(name) from None
        except OSError as error:
            raise cannot(error, f"{printable(name)}: cannot be made") from error

    def lacks(self, name: str) -> None:
        """This file or folder cannot be stored. The folder around it keeps its mark: a later
        transfer that stores the entry renews the folder's date, and so has to set it again.
        """
        self._lacking.add(name.rpartition("/")[0])

    def finish_folder(self, name: str, meta: Meta) -> bool:
        """All files of this folder have been received: sets its mode and time.

        False for a folder that no receiver has made; that one keeps its own.
        """
        folder = self._enter(self._directory.check(name))
        made = folder.made
        self._complete(folder, meta)
        self._settle()
        return made

    def _enter(self, parts: list[str]) -> Folder:
        """The folder with this path below the root; makes folders that are missing. Raises
        FinalError without a root.
        """
        root, same = self._folders[0], 0
        if not os.fstat(root.fd).st_nlink:
            raise FinalError(f"{root.path}: the folder was removed; start mrc recv again")
        for folder, part in zip(self._folders[1:], parts, strict=False):
            if folder.name != part:
                break
            same += 1
        self._leave(same)
        for end in range(same, len(parts)):
            self._before_opening()
            self._folders.append(self._open(parts[: end + 1]))
        return self._folders[-1]

    def _open(self, parts: list[str]) -> Folder:
        """The last folder of this path; the others are open."""
        root, path = self._folders[0].fd, "/".join(parts)
        mark: Mark | None = None

        def on_make() -> None:
            nonlocal mark
            self._on_make()
            mark = Mark.make(root, path)

        made = False
        try:
            folder = self._folders[-1].enter(parts[-1], on_make)
            made = folder.made
        finally:
            if mark is not None and not made:  # perhaps another session was faster
                mark.remove()
        if not made:
            folder.mark = Mark.of(root, path, folder.fd)
            folder.made = folder.mark is not None
        elif mark is not None:
            mark.put(folder.fd)
            folder.mark = mark
        return folder

    def _complete(self, folder: Folder, meta: Meta) -> None:
        if folder.made:
            try:
                self._directory.set_meta(folder.fd, meta, 0o777)
            except OSError as error:
                text = f"{printable(folder.path)}: cannot get its mode and time"
                raise cannot(error, text) from error
            if folder.mark is not None:
                folder.mark.keep(folder.fd)
            folder.made, folder.unsynced = False, True

    def _settle(self) -> None:
        """The last folder changes no more. The disk has its mode before its mark goes."""
        folder = self._folders[-1]
        if self._directory.fsync and folder.unsynced:
            folder.sync()
        lacks = "/".join(each.name for each in self._folders[1:]) in self._lacking
        if folder.mark is not None and not folder.made and not lacks:
            folder.mark.remove()
            folder.mark = None

    def _leave(self, depth: int) -> None:
        """Closes all folders but the root and `depth` folders below it. Their sender has left them,
        so they are complete.
        """
        while len(self._folders) > depth + 1:
            with suppress(CopyError):  # it keeps the mode of a new folder
                self._complete(self._folders[-1], RECEIVERS)
            self._settle()
            self._folders.pop().close()

    def _before_opening(self) -> None:
        self.check_stop()
        self._on_open()

    def stop(self) -> None:
        """A call of the system ends by itself; no other follows."""
        self._stopped = True

    def check_stop(self) -> None:
        """Raises StoppedError after `stop`."""
        if self._stopped:
            raise StoppedError

    def sync(self) -> None:
        """With `fsync`: returns when the disk has all files that the session has stored or found,
        and their names; raises FinalError. The root is first, because the marks are there; other
        sessions use it too.
        """
        if self._directory.fsync:
            self._directory.sync_all(again=self._found)
            for folder in self._folders:
                if folder is self._folders[0] or folder.unsynced:
                    folder.sync()
        self._found = False

    def finish(self) -> None:
        """The sender has no more files: completes the folders whose end it has not sent."""
        self._leave(0)

    def close(self) -> None:
        """Closes all folders; those that are not complete keep their marks for a later transfer."""
        while len(self._folders) > 1:
            self._folders.pop().close()


class OutputDirectory:
    """The one directory that a receiver writes to. A context manager.

    With `fsync` the disk has what is reported as stored, also what earlier receivers have left.
    """

    def __init__(
        self,
        path: str,
        *,
        overwrite: bool = False,
        any_name: bool = False,
        keep_meta: bool = True,
        resume: bool = True,
        fsync: bool = False,
    ) -> None:
        self._keep_meta = keep_meta
        self.fsync = fsync
        self._trying = Lock()
        self._trial = -1  # a file without a name, for dates
        self._syncing = Lock()
        self._synced = False  # once: what was there before, or the directory itself
        self.resume = resume  # keep parts of interrupted transfers, and go on with them
        self._any_name = any_name
        self.path = os.path.abspath(path)  # peers see it in errors, where "." would mean nothing
        self.overwrite = overwrite
        self.names: set[str] = set()  # final names of the open targets
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            raise FileError(f"{path}: no such directory; create it first") from None
        except NotADirectoryError:
            raise FileError(f"{path}: is not a directory") from None
        except PermissionError:
            raise FileError(f"{path}: this user may not open it") from None
        if not os.access(path, os.W_OK | os.X_OK):
            os.close(fd)
            raise FileError(f"{path}: this user may not write there; choose another --output")
        self.root = Folder(fd, self.path)
        self.umask = os.umask(0o077)
        os.umask(self.umask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._trial >= 0:
            os.close(self._trial)
        self.root.close()

    def tree(
        self,
        on_make: Callable[[], None] = lambda: None,
        on_open: Callable[[], None] = lambda: None,
    ) -> SessionTree:
        """The directory for one session, which closes it."""
        return SessionTree(self, on_make, on_open)

    def sweep(self) -> list[str]:
        """Removes temporary files that no live process has locked, but with `resume` no part that
        can be continued. Returns the names of the files that they were for. Marks of folders stay:
        they hold no bytes, and without them a folder would keep the mode of one that is not
        complete.
        """
        root = self.root.fd
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
            if self.resume and record in found and _is_recent(root, record):
                continue
            if _remove_unlocked(root, name):
                swept.append(shown_name(name))
                with suppress(FileNotFoundError):
                    os.unlink(record, dir_fd=root)
        for record in found:
            if is_record(record) and record.removesuffix("-kept") not in found:
                _remove_unlocked(root, record)
        return swept

    def kept_date(self, mtime_ns: int) -> int | None:
        """What the file system makes of a date: it may keep whole seconds, or no date before 1901.
        None if it lets nobody try.
        """
        with self._trying:
            try:
                if self._trial < 0:
                    name, self._trial = self.root.create_temporary("date")
                    self.root.remove(name)
                os.utime(self._trial, ns=(mtime_ns, mtime_ns))
                return os.fstat(self._trial).st_mtime_ns
            except (CopyError, OSError, OverflowError):
                return None

    def sync(self, fd: int) -> None:
        """With `fsync`: returns when the disk has an open file or folder; raises OSError."""
        if self.fsync:
            os.fsync(fd)

    def sync_all(self, *, again: bool) -> None:
        """Returns when the disk has all that is in the directory; raises FinalError.

        Unless `again`, once is enough.
        """
        with self._syncing:
            if self._synced and not again:
                return
            try:
                sync_file_system(self.root.fd)
            except OSError as error:
                raise FinalError(f"{self.path}: cannot be synced: {cause_of(error)}") from error
            self._synced = True

    def check(self, name: str) -> list[str]:
        """The parts of a name; raises FileError when it is not allowed."""
        parts = check_path(name)
        if not self._any_name:
            check_harmless(parts)
        return parts

    def set_meta(self, fd: int, meta: Meta, default_mode: int) -> None:
        """Sets mode and time of an open file or folder; raises OSError."""
        (meta if self._keep_meta else RECEIVERS).apply(fd, default_mode, self.umask)

    def check_free(self, folder: Folder, name: str, *, link: bool = False) -> None:
        """Raises FileError when the file `name`, in `folder`, exists and may not be replaced."""
        if name in self.names:
            raise FileError(
                f"{printable(name)}: is being received from another sender: try again later"
            )
        mode = folder.mode_of(os.path.basename(name))
        same = link and mode is not None and stat.S_ISLNK(mode)  # perhaps with the same target
        if mode is not None and not self.overwrite and not same:
            raise self.exists_error(name)
        if mode is not None and stat.S_ISDIR(mode):
            raise FileError(f"{printable(name)}: is a directory in {self.path}")

    def exists_error(self, name: str) -> FileError:
        return FileError(
            f"{printable(name)}: exists in {self.path}; start mrc recv with --overwrite to replace"
            " files"
        )


def sync_file_system(fd: int) -> None:
    """Returns when the disk has all of the file system of this file or folder; raises OSError. The
    os module lacks this call.
    """
    if _LIBC.syncfs(fd) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


# ---- What is kept of an interrupted transfer -----------------------------------------------------
#
# Of a file it keeps its part, and a record beside it. The record holds the digest of the file's
# bytes up to the end of each stored chunk. A receiver that goes on reads the part again and keeps
# what agrees with the record, so it trusts neither file after a power failure. While a transfer
# runs, the disk has a chunk before the record names it.


KEPT_SECONDS = 7 * 24 * 3600  # how long the sweep leaves a part alone
SYNC_SECONDS = 1.0  # between two writes of the record
_HEADER = struct.Struct("<8sQ")  # magic, bytes of a chunk
_MAGIC = b"mrckept1"
_DIGEST_BYTES = 16


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
