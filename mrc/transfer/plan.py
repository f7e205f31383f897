# SPDX-License-Identifier: Apache-2.0
"""What a sender sends: its arguments, the files and folders below them, each file while it is open,
packs of small files, standard input.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Self

from msgspec import Struct, field

from mrc.connect.parse import printable
from mrc.transfer.folders import Meta
from mrc.transfer.limits import (
    MAX_DEPTH,
    CopyError,
    FileError,
    StoppedError,
    about,
    cause_of,
    check_length,
    check_link,
    check_name,
    check_path,
)
from mrc.transfer.messages import (
    DIGEST_BYTES,
    MAX_ERROR,
    MAX_HOLES,
    RECORD_BYTES,
    Announced,
    Digest,
    Holes,
    PackedFailed,
    PackedFile,
    PackedFolder,
    PackedLink,
    hash_range,
    put_header,
    shortened,
)
from mrc.transfer.results import FailedFile, TransferredFile
from mrc.transfer.threads import WaitingPipe

STDIN = "-"
_BLOCK_BYTES = 512  # the unit of st_blocks
PACKED_BYTES = 16 << 20  # smaller files travel in packs: an offer of their own takes 4 round trips


class FileEntry(Struct, frozen=True):
    """A regular file. `follow`: it may be a symbolic link."""

    path: str
    name: str  # at the receiver
    bytes: int
    mtime_ns: int
    follow: bool


class FolderEnd(Struct, frozen=True):
    """A folder, after all that it contains."""

    path: str
    name: str
    meta: Meta


class Stdin(Struct, frozen=True):
    """The bytes of standard input."""

    name: str


class LinkEntry(Struct, frozen=True):
    """A symbolic link that is sent as a link."""

    path: str
    name: str
    target: str


Entry = FileEntry | FolderEnd | Stdin | LinkEntry
Exclude = Callable[[str], bool]


class SendPlan(Struct):
    """All entries in the order of sending. A folder follows its contents."""

    follow: bool = False  # symbolic links below folders
    links: bool = False  # send links as links
    exclude: Exclude = lambda path: False  # paths below the folders that are named
    excluded: int = 0  # files, and folders with all below them
    entries: list[Entry] = field(default_factory=list)
    bytes: int | None = 0  # of all files; None: unknown
    skipped: list[str] = field(default_factory=list)  # links and special files below folders
    failed: list[FailedFile] = field(
        default_factory=list
    )  # cannot be listed; each receiver is told
    unchanged: int = 0  # files that the receiver has with the same size and date
    sent: int = 0  # entries of which both ends know the outcome
    there: int = 0  # bytes that need not travel over this connection, beside those kept of a part

    def announced(self) -> Announced:
        """What the receiver's user is told."""
        folder = (f"{entry.name}/" for entry in self.entries if isinstance(entry, FolderEnd))
        other = (entry.name for entry in self.entries if not isinstance(entry, FolderEnd))
        return Announced.of_names(
            chain(other, folder),
            bytes=self.bytes,
            files=sum(isinstance(entry, FileEntry | Stdin) for entry in self.entries),
            links=sum(isinstance(entry, LinkEntry) for entry in self.entries),
        )

    def runs(self) -> Iterator[list[Entry]]:
        """The entries of each offer that is left: one large file, or a pack of small files and
        folders.
        """
        for packed, entries in groupby(self.entries[self.sent :], _is_packed):
            if packed:
                yield list(entries)
            else:
                yield from ([entry] for entry in entries)

    def leave_out(self, files: Collection[FileEntry]) -> None:
        """The receiver has these files."""
        self.entries = [entry for entry in self.entries if entry not in files]
        self.unchanged += len(files)
        size = sum(file.bytes for file in files)
        self.there += size
        if self.bytes is not None:
            self.bytes -= size

    def connected(self) -> None:
        """A connection begins, perhaps not the first one."""
        sent = (entry for entry in self.entries[: self.sent] if isinstance(entry, FileEntry))
        self.there = sum(file.bytes for file in sent)

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, Stdin):
            self.bytes = None
        elif isinstance(entry, FileEntry) and self.bytes is not None:
            self.bytes += entry.bytes

    def add_argument(self, path: str, name: str) -> None:
        """Adds a file, a folder or standard input; an empty `name`: only what the folder holds."""
        if path == STDIN:
            self._add(Stdin(name))
        elif os.path.isdir(path):
            self._add_folder(path, name, (), "")
        else:
            with SourceFile(path) as source:
                self._add(FileEntry(path, name, source.bytes, source.mtime_ns, follow=True))

    def _add_folder(
        self, path: str, name: str, above: tuple[tuple[int, int], ...], inside: str
    ) -> None:
        """Adds a folder and all below it; `above`: device and inode of the folders around it, and
        `inside` their names.
        """
        try:
            status = os.stat(path)
            with os.scandir(path) as listed:
                found = sorted(listed, key=lambda entry: entry.name)
        except OSError as error:
            raise FileError(f"{printable(path)}: {cause_of(error)}") from error
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise FileError(f"{printable(path)}: the symbolic link leads back to a folder above it")
        if len(above) == MAX_DEPTH:
            raise FileError(f"{printable(path)}: is deeper than {MAX_DEPTH} folders")
        for entry in found:
            inner = f"{name}/{entry.name}" if name else entry.name
            slash = "/" if entry.is_dir(follow_symlinks=self.follow) else ""
            below = f"{inside}{entry.name}{slash}"
            if self.exclude(below):
                self.excluded += 1
                continue
            try:
                self._add_found(entry, inner, (*above, here), below)
            except FileError as error:
                self.failed.append(FailedFile(inner, str(error), "sender"))
        if name:
            meta = Meta(stat.S_IMODE(status.st_mode), status.st_mtime_ns)
            self._add(FolderEnd(path, name, meta))

    def _add_found(
        self, entry: os.DirEntry[str], name: str, above: tuple[tuple[int, int], ...], inside: str
    ) -> None:
        with about(entry.path):
            check_name(entry.name)
            check_length(name)
        try:
            status = entry.stat(follow_symlinks=self.follow)
        except OSError as error:
            if not entry.is_symlink():
                raise FileError(f"{printable(entry.path)}: {cause_of(error)}") from error
            status = entry.stat(follow_symlinks=False)  # a link that leads nowhere
        if stat.S_ISREG(status.st_mode):
            self._add(FileEntry(entry.path, name, status.st_size, status.st_mtime_ns, self.follow))
        elif stat.S_ISDIR(status.st_mode):
            self._add_folder(entry.path, name, above, inside)
        elif stat.S_ISLNK(status.st_mode) and self.links:
            target = os.readlink(entry.path)
            with about(entry.path):
                check_link(target, inside.count("/"))
            self._add(LinkEntry(entry.path, name, target))
        else:
            kind = what_is(status.st_mode).partition(",")[0]
            self.skipped.append(f"{printable(entry.path)} {kind}")


def _is_packed(entry: Entry) -> bool:
    return isinstance(entry, (FolderEnd, LinkEntry)) or (
        isinstance(entry, FileEntry) and entry.bytes < PACKED_BYTES
    )


def excluding(patterns: Sequence[str]) -> Exclude:
    """Whether patterns in the syntax of .gitignore match a path; that of a folder ends with `/`.

    Raises ValueError for a pattern that is not valid.
    """
    from pathspec import GitIgnoreSpec  # slow import

    return GitIgnoreSpec.from_lines(patterns).match_file


def plan_of(
    paths: Sequence[str],
    *,
    name: str = "",
    follow: bool = False,
    links: bool = False,
    exclude: Exclude = lambda path: False,
) -> SendPlan:
    """The plan for these arguments; raises FileError if none of them can be sent.

    `name` replaces the name of the only argument. A trailing `/` of a folder makes no difference;
    of `.` and of a path that ends with `/.`, only the contents are sent.
    """
    plan = SendPlan(follow, links, exclude)
    if name:
        check_path(name)
        assert len(paths) == 1, "a name for one argument"
    by_name: dict[str, str] = {}
    errors: list[FileError] = []
    for path in paths:
        first = len(plan.entries)
        own = name
        try:
            if not own:
                base = "stdin" if path == STDIN else os.path.basename(path.rstrip("/"))
                own = "" if base in ("", ".", "..") else check_name(base)
            plan.add_argument(path, own)
        except FileError as error:
            errors.append(error)
            plan.failed.append(FailedFile(own or path, str(error), "sender"))
        tops = [own] if own else sorted({e.name.partition("/")[0] for e in plan.entries[first:]})
        for top in tops:
            if top in by_name:
                raise FileError(
                    f"{printable(by_name[top])} and {printable(path)} would both be stored as"
                    f" {printable(top)}: rename one of them"
                )
            by_name[top] = path
    if len(errors) == len(paths):
        more = f", nor can the other {len(paths) - 1} be sent" if len(paths) > 1 else ""
        raise FileError(f"{errors[0]}{more}")
    return plan


class SourceFile:
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
        with suppress(OSError):
            if not self.bytes and os.pread(self.fd, 1, 0):
                raise self.unsized()

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
        """Fills `view` with the bytes from `offset` on; raises FileError if some lack."""
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
        FileError when its first bytes are others, StoppedError after `stop`.
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

    def _changed(self, how: str) -> FileError:
        return FileError(
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


def holes_of(fd: int, size: int, chunk_bytes: int) -> Holes:
    """The holes of a file; the largest if there are very many."""
    found = [each for each in _ranges(fd, size, chunk_bytes) if each[1] > 0]
    largest = sorted(found, key=lambda each: each[1], reverse=True)[:MAX_HOLES]
    return Holes(sorted(largest))


def _ranges(fd: int, size: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    data = 0
    while data < size:
        try:
            hole = os.lseek(fd, data, os.SEEK_HOLE)
        except OSError:  # the file became shorter, or the file system does not tell
            return
        try:
            data = min(os.lseek(fd, hole, os.SEEK_DATA), size)
        except OSError:  # no data follow
            data = size
        first = -(-hole // chunk_bytes)
        end = -(-size // chunk_bytes) if data == size else data // chunk_bytes
        yield first, end - first


# ---- Packs ---------------------------------------------------------------------------------------


_LEAST_PART = 4096  # bytes of a file that are worth a record at the end of a chunk


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


# ---- Standard input ------------------------------------------------------------------------------


_FLUSH_MS = 100  # a chunk waits at most this long for more input


class PipeReader(WaitingPipe):
    """Standard input as a file of unknown size."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, select.POLLIN)
        self.bytes = 0
        self.digest = Digest()
        self._ended = False

    def fill(self, payload: memoryview) -> int:
        """Reads until the memory is full, the input ends or pauses; returns 0 at the end."""
        done = 0
        try:
            while done < len(payload) and not self._ended:
                if not self.wait(_FLUSH_MS if done else None):
                    break
                count = os.readv(self.fd, [payload[done:]])
                self._ended = count == 0
                done += count
        except OSError as error:
            raise FileError(f"standard input: {cause_of(error)}") from error
        self.digest.update(payload[:done])
        self.bytes += done
        return done
