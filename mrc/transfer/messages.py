# SPDX-License-Identifier: Apache-2.0
"""The messages between the two ends of a transfer, and their checks.

For each file: sender: offer -> receiver: accept | refuse. A receiver that asks its user first says
so with asking. If the receiver has kept chunks of an earlier transfer, the sender says with begin
whether it goes on behind them: it does if their digest is that of its own file. Then the sender
writes the chunks; the immediate of each chunk holds its index and slot. Then sender: done ->
receiver: stored | refuse. After the last file the sender sends bye. A sender that cannot continue
sends abort. Only one file is in transfer at a time.

A file that cannot be copied does not stop the others. The sender says failed in place of an offer,
or done with an error. The receiver refuses the file, also while its chunks arrive: it then takes
the rest and stores none of it, until the sender says done. Each accepted offer has one done, and
one stored or refuse. The receiver lists the files of a pack that it cannot store in failed.

Many small files and folders travel as one pack: the sender sends pack in place of offer, and the
rest is the same. The chunks of a pack, and those of a file whose size is not known when it is
offered, are framed (`pack.py`).

A sender whose disk gives nothing for a second says reading, until it does. So the receiver hears
that it lives.

The receiver's window has slots of the size of a chunk. The sender chooses a slot for each chunk and
may use several QPs. The receiver stores the chunks in order. Its credit is an immediate with the
number of chunks stored so far; the slots of these chunks are free.
"""

from __future__ import annotations

import os
import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
import xxhash
from msgspec import Meta, Struct, to_builtins

from mrc import versions
from mrc.connect.parse import printable, shown
from mrc.engine.memory import RemoteMemory
from mrc.errors import ProtocolError
from mrc.transfer.limits import (
    MAX_PATH_BYTES,
    FileError,
    local_name,
    wire_name,
)
from mrc.typed import Whole, take

T = TypeVar("T")
VERSION = versions.TRANSFER
Digest = xxhash.xxh3_128  # fast; detects accidental corruption, but does not resist attacks
MAX_HOLES = 4096  # of one file; the others are sent as zeros
MAX_NAMES = 16  # that are announced
MIN_CHUNK_BYTES = 1 << 12
MAX_FILE_BYTES = sys.maxsize
MAX_SLOTS = 256
MAX_ERROR = 500  # characters about one file
MAX_WORDS = 4096  # characters of any other text
MAX_LIST_BYTES = 1 << 17  # of a message about many files
_READ_BYTES = 1 << 20
_ESCAPED = 6  # bytes of a character in JSON
_FIELDS = 32  # bytes around the texts, and of a number
_SLOT_SHIFT = 23
_INDEX_MASK = (1 << _SLOT_SHIFT) - 1
Words = Annotated[str, Meta(max_length=MAX_WORDS)]
ChunkBytes = Annotated[int, Meta(ge=MIN_CHUNK_BYTES, le=0xFFFFFFFF)]
Names = Annotated[tuple[Annotated[str, Meta(max_length=255)], ...], Meta(max_length=MAX_NAMES)]
HoleRanges = Annotated[tuple[tuple[Whole, Whole], ...], Meta(max_length=MAX_HOLES)]
Mode = Annotated[int, Meta(ge=0, le=0o7777)]
Seconds = Annotated[int, Meta(ge=-MAX_FILE_BYTES, le=MAX_FILE_BYTES)]
Nanoseconds = Annotated[int, Meta(ge=0, lt=1_000_000_000)]
Time = tuple[Seconds, Nanoseconds]  # since 1970; 64 bits of nanoseconds would end in 2262


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


def shortened(text: str, limit: int) -> str:
    """Words with at most `limit` characters: the middle is left out, because an error begins with
    what it is about and ends with the cause.
    """
    if len(text) <= limit:
        return text
    end = (limit - 3) // 2
    return f"{text[: limit - 3 - end]}...{text[-end:]}"


class Holes:
    """The holes of a sparse file, in whole chunks: neither read nor sent. Each range has its first
    chunk and its length.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = tuple(ranges)
        self._firsts = [first for first, _ in self.ranges]

    def left(self, chunk: int) -> int:
        """Chunks of the hole from this chunk on; 0 if it has data."""
        at = bisect_right(self._firsts, chunk) - 1
        return max(0, sum(self.ranges[at]) - chunk) if at >= 0 else 0

    def bytes_from(self, chunk: int, chunk_bytes: int, size: int) -> int:
        """Bytes of the holes from this chunk on, in a file of `size` bytes."""
        ends = ((max(first, chunk), first + count) for first, count in self.ranges)
        return sum(
            max(0, min(end * chunk_bytes, size) - begin * chunk_bytes) for begin, end in ends
        )

    def are_within(self, chunks: int) -> bool:
        """Whether they are in order, apart, and within a file of so many chunks."""
        end = 0
        for first, count in self.ranges:
            if first < end or count < 1:
                return False
            end = first + count
        return end <= chunks


class Announced(Struct, frozen=True, kw_only=True):
    """What a sender announces of a transfer before any file, as private data: numbers and names;
    None: not known. The consent of the receiver's user covers it, no more.
    """

    bytes: Whole | None = None
    files: Whole | None = None
    folders: Whole = 0
    """folders and links"""
    names: Names = ()
    """of the files and folders at the top, as in messages"""
    more: Whole = 0
    """further ones at the top, without their names"""

    @classmethod
    def of_names(
        cls, names: Iterable[str], *, bytes: int | None, files: int, links: int
    ) -> Announced:
        """From the names of all entries at the receiver; those of folders end with a slash."""
        folders: set[str] = set()
        tops: dict[str, None] = {}
        for name in names:
            above = name
            while above := above.rpartition("/")[0]:
                folders.add(above)
            tops[name.partition("/")[0]] = None
        shown = [wire_name(top) for top in tops]
        fitting = tuple(name for name in shown if len(name) <= 255)[:MAX_NAMES]
        return cls(
            bytes=bytes,
            files=files,
            folders=len(folders) + links,
            names=fitting,
            more=len(shown) - len(fitting),
        )

    @property
    def entries(self) -> int | None:
        """Files, folders and links together."""
        return None if self.files is None else self.files + self.folders

    def covers(self, name: str) -> bool:
        """Whether a file or folder of this name, in the form of this host, was announced."""
        if self.more or not self.names:
            return True
        try:
            return name.partition("/")[0] in map(local_name, self.names)
        except FileError:
            return False


class Offer(Struct, frozen=True, tag="offer"):
    """Offers a file of the sender, with the size of its chunks. `name`: see `names.wire_name`.

    `bytes` is null when the size is not known. `sparse`: the file has holes. `holes`: first chunk
    and number of chunks of holes that are not written. `resume`: the receiver may go on with what
    it has kept of this file.
    """

    name: Words
    bytes: Whole | None
    chunk_bytes: ChunkBytes
    sparse: bool = False
    mode: Mode | None = None
    mtime: Time | None = None
    resume: bool = False
    holes: HoleRanges = ()


class Pack(Struct, frozen=True, tag="pack"):
    """Offers a pack of `files` files and folders, which have `bytes` bytes together.

    `resume`: files that exist already, with the same bytes, count as stored.
    """

    files: Whole
    bytes: Whole
    chunk_bytes: ChunkBytes
    resume: bool = False


class Looks(Struct, frozen=True):
    """Size and date of a file of the sender; `name`: see `names.wire_name`."""

    name: Words
    bytes: Whole
    mtime: Time


class Compare(Struct, frozen=True, tag="compare"):
    """Before the first offer: which of these files does the receiver have?"""

    files: tuple[Looks, ...]


class Unchanged(Struct, frozen=True, tag="unchanged"):
    """Answers compare: the positions of files that have the same size and date."""

    positions: tuple[Whole, ...]


class ConsentQuestion(Struct, frozen=True, tag="asking"):
    """The receiver asks its user about the sender: the answer to the offer may take long.

    Only for a sender that has said that it takes this message.
    """


class Accept(Struct, frozen=True, tag="accept"):
    """Accepts the offered file, with the window to write it to.

    QPs with `token` may join the session; empty: no QP may join. The receiver has the first `kept`
    chunks of such a file already. The sender keeps to `rate` bits per second, if that is not 0.
    `reading`: the receiver takes that message.
    """

    window: RemoteMemory
    token: Words
    kept: Whole = 0
    rate: Whole = 0
    reading: bool = False


class DiskWait(Struct, frozen=True, tag="reading"):
    """Between chunks: the sender still waits for its disk. Came after version 6."""


class Mine(Struct, frozen=True, tag="mine"):
    """Answers an accept with kept chunks: the digest of the sender's bytes of these chunks.

    The sender shows it first: whoever may send learns nothing of a file that he does not have.
    """

    digest: Words


class Begin(Struct, frozen=True, tag="begin"):
    """Answers that: the sender writes from this chunk on, 0 if the bytes differ."""

    chunk: Whole


class Refuse(Struct, frozen=True, tag="refuse"):
    """The receiver refuses the file, or could not store it. `file`: the sender goes on."""

    code: Literal["file", "all", "verification", "stopped"]
    error: Words


class OfferDone(Struct, frozen=True, tag="done"):
    """All chunks are written; `digest` is the sender's digest of the file, empty for a pack.

    With `error` the file is not complete, and the sender goes on with the next one.
    """

    digest: Words
    chunks: Whole
    error: Words = ""


class FailedName(Struct, frozen=True):
    """A file that one end could not read or store; `name`: see `names.wire_name`."""

    name: Words
    error: Words


class FailedFiles(Struct, frozen=True, tag="failed"):
    """Files and folders that are not copied."""

    files: tuple[FailedName, ...]


class Stored(Struct, frozen=True, tag="stored"):
    """The file is complete, verified and has its final name."""


class Abort(Struct, frozen=True, tag="abort"):
    """The sender stops the transfer."""

    error: Words


class Bye(Struct, frozen=True, tag="bye"):
    """There are no more files."""


TransferMessage = (
    Offer | Pack | Compare | Unchanged | ConsentQuestion | Accept | Mine | Begin | Refuse
    | OfferDone | FailedFiles | Stored | Abort | Bye | DiskWait
)  # fmt: skip
_KINDS: dict[str, type[TransferMessage]] = {
    kind.__struct_config__.tag: kind for kind in get_args(TransferMessage)
}


def to_dict(message: TransferMessage) -> dict[str, Any]:
    """What is said of a file is as long as a message takes: it may name a path of any length."""
    built: dict[str, Any] = to_builtins(message)
    for each in (built, *built["files"]) if isinstance(message, FailedFiles) else (built,):
        if "error" in each:
            each["error"] = shortened(printable(each["error"]), MAX_ERROR)
            each |= {"name": shortened(each["name"], MAX_WORDS)} if "name" in each else {}
    return built


def from_dict(body: dict[str, Any]) -> TransferMessage:
    """Decodes a message; raises ProtocolError if it is not valid. Ignores unknown keys."""
    named = body.get("type")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ProtocolError(f"the peer sent a message of unknown type '{shown(named, 40)}'")
    try:
        return take(body, kind)
    except ValueError as error:
        raise ProtocolError(f"the peer sent a bad message {named!r}: {error}") from None


def compare_of(files: Iterable[Looks]) -> Iterator[Compare]:
    """Messages that ask about all these files; none is too long."""
    for some in _in_lists(files, lambda each: _ESCAPED * len(each.name) + 2 * _FIELDS):
        yield Compare(some)


def failed_of(files: Iterable[tuple[str, str]]) -> Iterator[FailedFiles]:
    """Messages that name all these files, each with its error; none is too long."""

    def size(each: FailedName) -> int:
        name, error = min(len(each.name), MAX_WORDS), min(len(each.error), MAX_ERROR)
        return _ESCAPED * (name + error) + _FIELDS

    for some in _in_lists((FailedName(*each) for each in files), size):
        yield FailedFiles(some)


def _in_lists(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """The items in lists of at most MAX_LIST_BYTES in a message."""
    some: list[T] = []
    size = 0
    for each in items:
        more = size_of(each)
        if size + more > MAX_LIST_BYTES:
            yield tuple(some)
            some, size = [], 0
        some.append(each)
        size += more
    if some:
        yield tuple(some)


def chunk_imm(index: int, slot: int) -> int:
    """The immediate of a chunk."""
    return slot << _SLOT_SHIFT | index & _INDEX_MASK


def chunk_of(imm: int, after: int) -> tuple[int, int]:
    """Index and slot of a chunk; the index is the first matching one from `after` on."""
    return after + ((imm - after) & _INDEX_MASK), imm >> _SLOT_SHIFT


# ---- Packs and streams: framed chunks, and the records in them -----------------------------------
#
# The chunks of a pack and of a file of unknown size are framed: a header holds the length and the
# digest of the payload behind it. So a chunk may be short, and the receiver verifies it before it
# uses it.
#
# A pack carries many files and folders. Its payload is a sequence of records, and no record goes
# beyond its chunk. A record has a length (2 bytes), a header (msgpack) and, for a file, a part of
# the file's bytes. After the last part follows the digest of the file.


FRAME = struct.Struct("<I12x16s")  # payload length, digest of the payload
DIGEST_BYTES = 16
_LENGTH = struct.Struct("<H")
MAX_HEADER_BYTES = 8400  # the longest name and target, and the numbers
RECORD_BYTES = _LENGTH.size + MAX_HEADER_BYTES + DIGEST_BYTES  # of a record, beside its data


class PackedFile(msgspec.Struct, tag="file", frozen=True, kw_only=True):
    """A part of a file: `length` of its bytes, from `offset` on."""

    name: bytes
    size: Whole
    offset: Whole
    length: Whole
    sparse: bool
    mode: Mode | None
    mtime: Time | None


class PackedFolder(msgspec.Struct, tag="folder", frozen=True, kw_only=True):
    """A folder, after all that it contains."""

    name: bytes
    mode: Mode | None
    mtime: Time | None


class PackedFailed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """A file or folder that the sender cannot read. Parts of the file may precede it."""

    name: bytes
    error: Annotated[str, msgspec.Meta(max_length=MAX_ERROR)]


class PackedLink(msgspec.Struct, tag="link", frozen=True, kw_only=True):
    """A symbolic link that leads to a place in the same folder."""

    name: bytes
    target: Annotated[bytes, msgspec.Meta(max_length=MAX_PATH_BYTES)]


Record = PackedFile | PackedFolder | PackedFailed | PackedLink
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def seal(chunk: memoryview, length: int) -> int:
    """Writes the frame of a chunk whose payload has `length` bytes; returns its whole length."""
    payload = chunk[FRAME.size : FRAME.size + length]
    FRAME.pack_into(chunk, 0, length, Digest(payload).digest())
    return FRAME.size + length


def unseal(chunk: memoryview) -> memoryview | None:
    """The payload of a framed chunk; None if it differs from what was sent.

    Raises ProtocolError for a frame that no sender writes.
    """
    length, digest = FRAME.unpack_from(chunk)
    if not 0 < length <= len(chunk) - FRAME.size:
        raise ProtocolError(f"the peer sent a chunk with {length} bytes of payload")
    payload = chunk[FRAME.size : FRAME.size + length]
    return payload if Digest(payload).digest() == digest else None


def framed_bytes(chunk: memoryview) -> int:
    """Bytes of a framed chunk with its frame, as the sender says; 0 if it says too many."""
    length: int = FRAME.unpack_from(chunk)[0]
    return FRAME.size + length if FRAME.size + length <= len(chunk) else 0


def put_header(payload: memoryview, at: int, record: Record) -> int:
    """Writes length and header of a record at `at`; returns the position behind them."""
    header = _encode(record)
    assert len(header) <= MAX_HEADER_BYTES, "names are bounded"
    _LENGTH.pack_into(payload, at, len(header))
    begin = at + _LENGTH.size
    payload[begin : begin + len(header)] = header
    return begin + len(header)


def records(
    payload: memoryview,
) -> Iterator[tuple[Record, memoryview, memoryview]]:
    """Each record of a chunk, with its data and its digest. Raises ProtocolError."""
    at = 0
    while at < len(payload):
        size, at = _cut(payload, at, _LENGTH.size)
        header, at = _cut(payload, at, _LENGTH.unpack(size)[0])
        try:
            record = _decode(header)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"the peer sent a bad record of a pack: {error}") from None
        data = digest = payload[:0]
        if isinstance(record, PackedFile):
            data, at = _cut(payload, at, record.length)
            if record.offset + record.length == record.size:
                digest, at = _cut(payload, at, DIGEST_BYTES)
        yield record, data, digest


def _cut(payload: memoryview, at: int, length: int) -> tuple[memoryview, int]:
    """`length` bytes from `at` on, and the position behind them."""
    if length > len(payload) - at:
        raise ProtocolError("the peer sent a record of a pack beyond the end of its chunk")
    return payload[at : at + length], at + length
