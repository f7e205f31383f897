# SPDX-License-Identifier: Apache-2.0
"""Where a receiver puts the chunks of an offer: a file, a file of unknown size, or a pack."""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import EPIPE
from typing import TypeVarTuple

from mrc.connect.parse import printable, shown
from mrc.errors import ProtocolError
from mrc.transfer.files import ExistingFile, PartFile, SessionTree
from mrc.transfer.folders import Meta
from mrc.transfer.limits import (
    MAX_PATH_BYTES,
    FileError,
    FinalError,
    Quota,
    cannot,
    cause_of,
    local_name,
    of_system,
)
from mrc.transfer.messages import (
    Digest,
    Holes,
    Offer,
    OfferDone,
    PackedFailed,
    PackedFile,
    PackedFolder,
    PackedLink,
    framed_bytes,
    records,
    unseal,
)
from mrc.transfer.results import MAX_LISTED, FailedFile, Role, StoredBatch, TransferredFile
from mrc.transfer.session import VerificationError
from mrc.transfer.threads import WaitingPipe

Ts = TypeVarTuple("Ts")
_STEP_BYTES = 256 << 10  # hashed, then written while it is still in the CPU cache


# ---- Standard output -----------------------------------------------------------------------------


_PIECE_BYTES = 4096  # PIPE_BUF: a pipe that is ready takes as many without blocking


class PipeWriter(WaitingPipe):
    """Standard output as the place of all files of one sender, one after the other."""

    def __init__(self, fd: int) -> None:
        self._own = -1
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            # A descriptor of our own may be non-blocking: other programs share the given one.
            try:
                self._own = fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                pass  # without /proc it writes in small pieces
        super().__init__(fd, select.POLLOUT)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        if self._own >= 0:
            os.close(self._own)

    def write(self, data: memoryview) -> None:
        """Writes all of `data`; raises FileError when the reader is gone."""
        done = 0
        try:
            while done < len(data):
                self.wait()
                most = len(data) if self._own >= 0 else done + _PIECE_BYTES
                with suppress(BlockingIOError):
                    done += os.write(self.fd, data[done:most])
        except OSError as error:
            ended = " (the program that reads it has ended)" if error.errno == EPIPE else ""
            raise FinalError(f"standard output: {cause_of(error)}{ended}") from error

    def tree(self, *_: object) -> StdoutTree:
        """The place for the files of one session."""
        return StdoutTree(self)


class StdoutTree:
    """Takes the files of one sender. Names, folders, links, modes and times do not matter."""

    def __init__(self, pipe: PipeWriter) -> None:
        self._pipe = pipe
        self.stop = pipe.stop

    def create(self, name: str, *_: object, **__: object) -> StdoutTarget:
        return StdoutTarget(self._pipe, name)

    def same(self, *_: object, **__: object) -> None:
        """Nothing is there before, and nothing is left to do."""

    make_link = lacks = check_stop = sync = finish = close = same

    def has(self, *_: object) -> bool:
        return False

    finish_folder = has


class StdoutTarget:
    """A file that goes to standard output, chunk by chunk."""

    def __init__(self, pipe: PipeWriter, name: str) -> None:
        self.name = name
        self.path = f"stdout:{printable(name)}"
        self.bytes = 0
        self._pipe = pipe

    def write(self, offset: int, chunk: memoryview) -> None:
        assert offset == self.bytes, "chunks are stored in order"
        self._pipe.write(chunk)
        self.bytes += len(chunk)

    def kept(self, chunk_bytes: int) -> tuple[int, Digest]:
        return 0, Digest()

    def check_room(self, *_: object) -> None:
        """The program behind the pipe decides."""

    begin = add_chunk = commit = discard = check_room

    def close(self) -> int:
        return 0


# ---- Sinks ------------------------------------------------------------------------------------


AnyFile = PartFile | ExistingFile | StdoutTarget
AnyTree = SessionTree | StdoutTree


class FileSink:
    """A file with the size of its offer."""

    def __init__(self, tree: AnyTree, offer: Offer, quota: Quota) -> None:
        assert offer.bytes is not None
        self.name = local_name(offer.name)
        quota.check_name(self.name)
        quota.take(offer.name, files=1, size=offer.bytes)
        self._tree = tree
        self._offer = offer
        self._bytes = offer.bytes
        self.chunks: int | None = -(-offer.bytes // offer.chunk_bytes)
        self.one_by_one = False
        self.failed: deque[FailedFile] = deque()
        self._digest = Digest()
        self._resumed_bytes = self._hole_bytes = 0
        size, sparse = offer.bytes, offer.sparse
        chunk_bytes = offer.chunk_bytes if offer.resume else 0
        same: ExistingFile | None = None
        if offer.resume:
            same = tree.same(self.name, size, sparse=sparse, chunk_bytes=chunk_bytes)
        self._target: AnyFile = same or tree.create(
            self.name, size, sparse=sparse, chunk_bytes=chunk_bytes
        )
        try:
            self._target.check_room()
        except BaseException:
            self._target.close()
            raise

    def kept(self) -> tuple[int, str]:
        """Chunks that need not be sent, and the digest of their bytes. Reads them all."""
        try:
            kept, self._digest = self._target.kept(self._offer.chunk_bytes)
        except OSError as error:
            raise cannot(error, f"{printable(self.name)}: cannot be read") from error
        return kept, self._digest.hexdigest()

    def begin(self, chunk: int) -> None:
        """The sender writes from this chunk on: behind all that was kept, or everything."""
        if chunk == 0:
            self._digest = Digest()
        chunk_bytes = self._offer.chunk_bytes
        self._resumed_bytes = min(chunk * chunk_bytes, self._bytes)
        self._hole_bytes = Holes(self._offer.holes).bytes_from(chunk, chunk_bytes, self._bytes)
        self._target.begin(chunk, self._resumed_bytes)

    def store(self, index: int, chunk: memoryview) -> None:
        self._tree.check_stop()
        start = index * self._offer.chunk_bytes
        _put(self._target, self._digest, start, chunk[: self._bytes - start])
        self._target.add_chunk(self._digest.digest())

    def bytes_of(self, index: int, chunk: memoryview) -> int:
        return min(self._offer.chunk_bytes, self._bytes - index * self._offer.chunk_bytes)

    def finish(self, done: OfferDone) -> StoredBatch:
        try:
            file = _complete(self._target, self._digest, done, self._offer)
        except VerificationError:
            self.discard()
            raise
        return StoredBatch.of(file, self._resumed_bytes, self._hole_bytes)

    def discard(self) -> None:
        """Keeps nothing of the file."""
        self._target.discard()

    def close(self) -> int:
        return self._target.close()


class StreamSink:
    """A file whose size is known at its end. Its chunks are framed."""

    def __init__(self, tree: AnyTree, offer: Offer, quota: Quota) -> None:
        self.name = local_name(offer.name)
        quota.check_name(self.name)
        quota.take(offer.name, files=1)
        self._offer = offer
        self._quota = quota
        self.chunks: int | None = None
        self.one_by_one = False
        self.failed: deque[FailedFile] = deque()
        self._digest = Digest()
        self._target = tree.create(self.name, None, sparse=offer.sparse)
        self._stored = 0

    def bytes_of(self, index: int, chunk: memoryview) -> int:
        return framed_bytes(chunk)

    def store(self, index: int, chunk: memoryview) -> None:
        payload = _payload(chunk, self._offer.name)
        self._quota.take(self._offer.name, size=len(payload))
        _put(self._target, self._digest, self._stored, payload)
        self._stored += len(payload)

    def finish(self, done: OfferDone) -> StoredBatch:
        return StoredBatch.of(_complete(self._target, self._digest, done, self._offer))

    def discard(self) -> None:
        """Nothing would be kept."""

    def close(self) -> int:
        return self._target.close()


class PackSink:
    """The files and folders of a pack. With `keep_names` its batch has all files."""

    def __init__(self, tree: AnyTree, quota: Quota, *, keep_names: bool, resume: bool) -> None:
        self.name = "the pack"
        self._tree = tree
        self._resume = resume
        self._quota = quota
        self._keep_names = keep_names
        self.chunks: int | None = None
        self.one_by_one = True
        self.failed: deque[FailedFile] = deque()
        self._record: PackedFile | None = None  # the last part of a file that misses later parts
        self._target: AnyFile | None = None  # of this file; None: it cannot be stored
        self._digest = Digest()
        self._files: list[TransferredFile] = []
        self._others: list[str] = []  # folders and links, as in a Batch
        self._count = self._folders = self._bytes = self._links = 0

    def bytes_of(self, index: int, chunk: memoryview) -> int:
        return framed_bytes(chunk)

    def store(self, index: int, chunk: memoryview) -> None:
        for record, data, digest in records(_payload(chunk, self.name)):
            self._tree.check_stop()
            match record:
                case PackedFile():
                    self._check_order(record)
                    self._record = None if digest else record
                    self._keeping_on(record.name, self._store_part, record, data, digest)
                case PackedFolder():
                    if self._record is not None:
                        raise ProtocolError("the peer sent a folder in the middle of a file")
                    self._keeping_on(record.name, self._finish_folder, record)
                case PackedLink():
                    if self._record is not None:
                        raise ProtocolError("the peer sent a link in the middle of a file")
                    self._keeping_on(record.name, self._make_link, record)
                case PackedFailed():
                    self._drop(record)

    def _keeping_on(self, name: bytes, do: Callable[[*Ts], None], *args: *Ts) -> None:
        """Does it; a file or folder that cannot be stored does not stop the others."""
        try:
            do(*args)
        except FileError as error:
            self.close()
            self._left_out(name, str(error), "receiver")
            if of_system(error):
                self._tree.lacks(os.fsdecode(name))

    def _drop(self, record: PackedFailed) -> None:
        """The sender cannot read the file, or not to its end."""
        if self._record is not None and self._record.name != record.name:
            raise ProtocolError("the peer sent another file in the middle of a file")
        if self._record is None:
            self._quota.take("a file", files=1)
        self._record = None
        self.close()
        self._left_out(record.name, record.error, "sender")

    def _left_out(self, name: bytes, error: str, end: Role) -> None:
        self.failed.append(FailedFile(os.fsdecode(name[:MAX_PATH_BYTES]), error, end))

    def _finish_folder(self, record: PackedFolder) -> None:
        name = os.fsdecode(record.name)
        self._quota.check_name(name)
        if not self._tree.finish_folder(name, Meta.received(record.mode, record.mtime)):
            self._quota.take(name, files=1)
        self._folders += 1
        if self._keep_names:
            self._others.append(f"{name}/")

    def _make_link(self, record: PackedLink) -> None:
        name = os.fsdecode(record.name)
        self._quota.check_name(name)
        self._quota.take(name, files=1)
        self._tree.make_link(name, os.fsdecode(record.target))
        self._links += 1
        if self._keep_names:
            self._others.append(name)

    def _check_order(self, record: PackedFile) -> None:
        before = self._record
        expected = record.offset == 0
        if before is not None:
            end = before.offset + before.length
            same = (record.name, record.size) == (before.name, before.size)
            expected = same and record.offset == end
        if not expected or (not record.length and record.size):
            raise ProtocolError("the peer sent the parts of a file out of order")

    def _store_part(self, record: PackedFile, data: memoryview, digest: memoryview) -> None:
        if record.offset == 0:
            self._open(os.fsdecode(record.name), record)
        if self._target is None:
            return
        _put(self._target, self._digest, record.offset, data)
        if digest:
            self._finish_file(self._target, record, bytes(digest))

    def _open(self, name: str, record: PackedFile) -> None:
        self._quota.check_name(name)
        self._quota.take(name, files=1, size=record.size)
        size, sparse = record.size, record.sparse
        existing = self._tree.same(name, size, sparse=sparse) if self._resume else None
        self._target = existing or self._tree.create(name, size, sparse=sparse)
        self._target.check_room()
        self._digest = Digest()

    def _finish_file(self, target: AnyFile, record: PackedFile, digest: bytes) -> None:
        if self._digest.digest() != digest:
            raise _differs(target.name)
        target.commit(Meta.received(record.mode, record.mtime))
        self.close()
        self._count += 1
        self._bytes += record.size
        if self._keep_names or self._count <= MAX_LISTED:
            self._files.append(TransferredFile(target.name, record.size, digest.hex(), target.path))

    def finish(self, done: OfferDone) -> StoredBatch:
        if self._record is not None:
            raise ProtocolError("the peer ended a pack in the middle of a file")
        return self.stored()

    def stored(self) -> StoredBatch:
        """What is stored so far."""
        listed = self._keep_names or self._count <= MAX_LISTED
        files = tuple(self._files) if listed else ()
        counts = (self._count, self._folders, self._bytes)
        others = tuple(self._others)
        return StoredBatch(files, *counts, packed=True, links=self._links, others=others)

    def discard(self) -> None:
        """Nothing would be kept."""

    def close(self) -> int:
        if self._target is not None:
            self._target.close()
            self._target = None
        return 0


def _put(target: AnyFile, digest: Digest, offset: int, data: memoryview) -> None:
    for start in range(0, len(data), _STEP_BYTES):
        with data[start : start + _STEP_BYTES] as step:
            digest.update(step)
            target.write(offset + start, step)


def _payload(chunk: memoryview, name: str) -> memoryview:
    payload = unseal(chunk)
    if payload is None:
        raise _differs(name)
    return payload


def _complete(target: AnyFile, digest: Digest, done: OfferDone, offer: Offer) -> TransferredFile:
    received = digest.hexdigest()
    if done.digest != received:
        raise VerificationError(
            f"{printable(target.name)}: the received data (digest {received}) differs from the sent"
            f" data ({shown(done.digest, 40)}); the file was not stored: send it again"
        )
    target.commit(Meta.received(offer.mode, offer.mtime))
    return TransferredFile(target.name, target.bytes, received, target.path)


def _differs(name: str) -> VerificationError:
    return VerificationError(
        f"{shown(name)}: the received data differs from the sent data; it was not stored: send it"
        " again"
    )


AnySink = FileSink | StreamSink | PackSink
