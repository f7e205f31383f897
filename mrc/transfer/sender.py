# SPDX-License-Identifier: Apache-2.0
"""The sending end of a transfer. The functions stand in the order of the stages:

1. `send_plan` divides what is left of a plan into offers: a large file, standard input, or a pack
   of small files and folders.
2. A thread prepares chunks ahead of the writes: it populates and hashes the pages of a mapped file,
   or fills and seals memory.
3. `OpenOffer`: the receiver accepts the offer with its window, or refuses. If it has kept chunks of
   an interrupted transfer, the sender goes on behind them if the bytes are its own. After the last
   chunk the sender says done, with the digest, and hears whether all is stored.
4. `ChunkWriter`: each chunk gets a QP and the lowest free slot of the window, so the receiver needs
   memory and CPU cache only for the chunks that are in flight or wait to be stored. The immediate
   of the last part of a chunk names its index and slot.
5. The receiver's credit frees slots; its answer before the end stops the writes.
6. `Pace`: a chunk leaves at the rate that both ends allow.
7. `widen`: while the windows of PSNs limit the rate, further QPs join.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeVar

from msgspec import Struct, field

from mrc.aio.qp import QP
from mrc.connect.parse import printable, shown
from mrc.engine.memory import Region
from mrc.errors import MrcError, ProtocolError
from mrc.events import Immediate, QpInfo, known
from mrc.tasks import cancelled
from mrc.transfer.folders import SECOND_NS, Meta
from mrc.transfer.limits import CHUNK_BYTES, CopyError, local_name, wire_name
from mrc.transfer.memory import (
    STEP_BYTES,
    UNKNOWN,
    ChunkFeed,
    FeedChunk,
    Filled,
    Mapped,
    populate_for_reads,
)
from mrc.transfer.messages import (
    MAX_SLOTS,
    Abort,
    Accept,
    Begin,
    Bye,
    ConsentQuestion,
    Digest,
    DiskWait,
    FailedFiles,
    Holes,
    Looks,
    Mine,
    Offer,
    OfferDone,
    Pack,
    Refuse,
    Stored,
    TransferMessage,
    Unchanged,
    chunk_imm,
    compare_of,
    failed_of,
)
from mrc.transfer.plan import (
    Entry,
    FileEntry,
    FolderEnd,
    LinkEntry,
    Packer,
    PipeReader,
    SendPlan,
    SourceFile,
    Stdin,
    holes_of,
)
from mrc.transfer.results import FailedFile, StoredBatch, TransferredFile
from mrc.transfer.session import MAX_QPS, TransferError, TransferSession, VerificationError
from mrc.transfer.threads import in_thread

READING_SECONDS = 1.0  # after which the receiver hears that this end still waits for its disk
CHUNKS_IN_FLIGHT = 8  # at least; more if the windows of PSNs cover more
AHEAD_BYTES = 256 << 20  # hashed ahead of the writes; occupies page cache, not process memory
PIECE_SECONDS = 0.02  # of the rate: a piece leaves as one burst
MIN_PIECE_BYTES = 4096
LONG_NS = 5_000_000  # shortest base RTT at which further QPs can help
SAMPLE_SECONDS = 0.05  # time between samples; at least one round trip
SAMPLES = 3  # samples in a row with full windows before QPs are added
SETTLING = 8  # ignored samples after that, while new QPs find their rates
ENGINE_BYTES = 64 << 20  # left to send for which another engine gets a QP
WORTH = 16  # windows left to send: a new QP needs about as many round trips to be of use
NO_HOLES = Holes()
_FULL = 0.75  # of the window; the rest are packets that arrived and wait for an earlier packet
_ZEROS = memoryview(bytes(CHUNK_BYTES))
assert STEP_BYTES == CHUNK_BYTES, "a digest after each chunk"
T = TypeVar("T")
logger = logging.getLogger("mrc.transfer.sender")


class FileRefusedError(TransferError):
    """The receiver cannot store this file; the session goes on."""


class EarlyAnswerError(Exception):
    """The receiver answers before all chunks are written."""


class SendOptions(Struct):
    """How to send.

    `on_resumed` is called for a file of which the receiver has so many bytes, `on_grew` for the
    path of one that was copied as it was at its begin, `on_failed` for each file or folder that is
    not copied, `on_file` with the name of a file that is offered, "" for a pack. `waiting`
    surrounds the time in which the receiver asks its user about this sender.
    """

    keep_meta: bool = True
    resume: bool = True
    on_resumed: Callable[[FileEntry, int], None] = lambda file, size: None
    on_grew: Callable[[str], None] = lambda path: None
    on_failed: Callable[[FailedFile], None] = lambda failed: None
    on_file: Callable[[str], None] = lambda name: None
    update: bool = False  # leave out files that the receiver has with the same size and date
    rate: float = 0.0  # bits per second at most; 0: no limit
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    stored_chunks: int = 0  # of the last file, as far as the receiver has said; 0 if it keeps none
    kept_chunks: int = 0  # of these, those of an earlier transfer
    part: tuple[int, StoredBatch] | None = None
    """the first entries of a pack that failed, all stored"""

    def begin(self) -> None:
        """Another offer begins."""
        self.stored_chunks, self.kept_chunks, self.part = 0, 0, None


async def send_plan(
    session: TransferSession, plan: SendPlan, how: SendOptions | None = None
) -> AsyncIterator[StoredBatch]:
    """Sends files in order and yields each when the receiver has stored and verified it.

    A file that one end cannot read or store is reported and left out. `plan` notes what is sent, so
    that another session can go on. Raises TransferError when the receiver stops.
    """
    how = how or SendOptions()
    await tell_failed(session, [(each.name, each.error) for each in plan.failed])
    if how.update:
        await _leave_out_unchanged(session, plan, how)
    for run in plan.runs():
        how.begin()
        offering = OpenOffer(session, how, run)
        # On failure the engine may still read the memory, so it is kept until the QP has ended.
        session.held.push_async_callback(offering.release.aclose)
        try:
            sent = await _send_run(offering, plan)
        except asyncio.CancelledError:
            await session.say_last(Abort("the sender was stopped"))
            raise
        except MrcError:
            if how.part is not None:
                count, stored = how.part
                plan.sent += count
                yield stored
            raise
        plan.sent += len(run)
        if sent is not None:
            yield sent
        await offering.release.aclose()  # after the yield, because unmapping takes a while
    try:
        await session.say(Bye())
    except MrcError:
        pass  # all files are stored, so the transfer succeeded; our close replaces the bye


async def _leave_out_unchanged(session: TransferSession, plan: SendPlan, how: SendOptions) -> None:
    files = [entry for entry in plan.entries[plan.sent :] if isinstance(entry, FileEntry)]
    looks = (
        Looks(wire_name(file.name), file.bytes, divmod(file.mtime_ns, SECOND_NS)) for file in files
    )
    unchanged: set[FileEntry] = set()
    begin = 0
    for message in compare_of(looks):
        await session.say(message)
        reply = await OpenOffer(session, how, []).reply(Unchanged)
        asked = files[begin : begin + len(message.files)]
        unchanged.update(asked[at] for at in reply.positions if at < len(asked))
        begin += len(asked)
    plan.leave_out(unchanged)


async def _send_run(offering: OpenOffer, plan: SendPlan) -> StoredBatch | None:
    """None: the file could not be copied."""
    only = offering.only
    if only is None:
        return await _send_pack(offering)
    try:
        if isinstance(only, Stdin):
            return await _send_stdin(offering, only)
        return await _send_file(offering, plan, only)
    except FileRefusedError as error:
        offering.how.on_failed(FailedFile(offering.name, str(error), "receiver"))
    except CopyError as error:
        await offering.give_up(str(error))
    return None


async def _send_file(offering: OpenOffer, plan: SendPlan, file: FileEntry) -> StoredBatch:
    """Sends a file from its mapping, without a copy."""
    how, release = offering.how, offering.release
    source = release.enter_context(SourceFile(file.path, follow=file.follow))
    digests = _Digests()
    meta = Meta(source.mode, source.mtime_ns) if how.keep_meta else Meta()
    name, size = wire_name(file.name), source.bytes
    sparse = source.sparse
    holes = holes_of(source.fd, size, CHUNK_BYTES) if sparse else Holes()
    offer = Offer(name, size, CHUNK_BYTES, sparse, meta.mode, meta.mtime, how.resume, holes.ranges)
    feed: Mapped | None = None
    if size:
        registered = offering.session.ctx.register(source.map)
        region = await release.enter_async_context(registered)
        feed = Mapped(region, holes, partial(_prepare, source, region, digests, holes), AHEAD_BYTES)
    # Hashing starts before the offer, so it runs while the receiver prepares.
    async with feed or nullcontext():
        accept = await offering.offer(offer)
        begin = 0
        if accept.kept and feed is not None:
            begin = await _begin(offering, accept.kept, feed, digests)
        resumed_bytes = min(begin * CHUNK_BYTES, size)
        if begin:
            how.on_resumed(file, resumed_bytes)
        hole_bytes = holes.bytes_from(begin, CHUNK_BYTES, size)
        plan.there += hole_bytes
        await offering.write(accept, feed, begin, holes)
    check = in_thread(source.grew, digests.whole.digest(), stop=source.stop)
    grew = await offering.reading(check)
    digest = digests.whole.hexdigest()
    await offering.finish(digest)
    if grew:
        how.on_grew(file.path)
    return StoredBatch.of(
        TransferredFile(file.name, size, digest, file.path), resumed_bytes, hole_bytes
    )


class _Digests(Struct):
    """The digest of a file as far as it was read, and after each chunk."""

    whole: Digest = field(default_factory=Digest)
    after: list[bytes] = field(default_factory=list)


def _prepare(
    source: SourceFile, region: Region, digests: _Digests, holes: Holes, offset: int, length: int
) -> None:
    """Populates and hashes a part of the mapping.

    The mapping is registered, so a truncated part reads as zeros and does not raise SIGBUS.
    """
    if holes.left(offset // CHUNK_BYTES):
        digests.whole.update(_ZEROS[:length])
    else:
        populate_for_reads(region.address + offset, length)
        with memoryview(source.map) as whole:
            digests.whole.update(whole[offset : offset + length])
    digests.after.append(digests.whole.digest())


async def _begin(offering: OpenOffer, kept: int, feed: Mapped, digests: _Digests) -> int:
    """Where the chunks begin: behind those that the receiver has kept, if they are ours."""
    session = offering.session
    if kept > -(-feed.left_bytes() // CHUNK_BYTES):
        raise ProtocolError(f"{session.qp.peer.host} has kept more chunks than there are")
    await session.watched(feed.skip(kept))
    await session.say(Mine(digests.after[kept - 1].hex()))
    begin = (await offering.reply(Begin)).chunk
    if begin not in (0, kept):
        raise ProtocolError(f"{session.qp.peer.host} goes on with a chunk that it has not kept")
    if not begin:
        feed.begin_anew()
    return begin


async def _send_stdin(offering: OpenOffer, stdin: Stdin) -> StoredBatch:
    pipe = offering.release.enter_context(PipeReader(sys.stdin.fileno()))
    filled = Filled(pipe.fill, lambda: UNKNOWN, pipe.stop)
    offer = Offer(wire_name(stdin.name), None, CHUNK_BYTES)
    async with await filled.open(offering.session.ctx, offering.release) as feed:
        accept = await offering.offer(offer)
        await offering.write(accept, feed)
    digest = pipe.digest.hexdigest()
    await offering.finish(digest)
    return StoredBatch.of(TransferredFile(stdin.name, pipe.bytes, digest, "-"))


async def _send_pack(offering: OpenOffer) -> StoredBatch:
    entries, how = offering.entries, offering.how
    packing = Packer(entries, keep_meta=how.keep_meta)
    offering.release.callback(packing.close)
    filled = Filled(packing.fill, packing.left_bytes, packing.stop)
    # Before a thread fills the first chunk.
    offer = Pack(len(entries), packing.left_bytes(), CHUNK_BYTES, how.resume)
    try:
        async with await filled.open(offering.session.ctx, offering.release) as feed:
            accept = await offering.offer(offer)
            await offering.write(accept, feed)
        await offering.finish("")
    except MrcError:
        if count := packing.complete(how.stored_chunks):
            how.part = count, _packed(packing, offering, entries[:count])
        raise
    return _packed(packing, offering, entries)


def _packed(packing: Packer, offering: OpenOffer, entries: list[Entry]) -> StoredBatch:
    """The first entries of a pack, as far as both ends could copy them; tells of the others."""
    how = offering.how
    names = {entry.name for entry in entries}
    for failed in (each for each in packing.failed if each.name in names):
        how.on_failed(failed)
    names -= offering.refused
    for name in names & packing.grown.keys():
        how.on_grew(packing.grown[name])
    files = tuple(file for file in packing.files if file.name in names)
    folders = sum(isinstance(entry, FolderEnd) and entry.name in names for entry in entries)
    links = sum(isinstance(entry, LinkEntry) and entry.name in names for entry in entries)
    size = sum(file.bytes for file in files)
    return StoredBatch(files, len(files), folders, size, packed=True, links=links)


class OpenOffer:
    """A file or a pack, from its offer to the receiver's answer. A pack has no name and no path,
    but those of its `entries`. Without entries nothing is offered: it hears answers to questions.
    """

    def __init__(self, session: TransferSession, how: SendOptions, entries: list[Entry]) -> None:
        self.session = session
        self.how = how
        self.entries = entries
        self.release = AsyncExitStack()
        """of the file and the memory that the engine reads from"""
        self.only: FileEntry | Stdin | None = None
        """the file or standard input; None: a pack"""
        self.name = self._path = ""
        match entries:
            case [FileEntry() | Stdin() as only]:
                self.only, self.name = only, only.name
                self._path = only.path if isinstance(only, FileEntry) else "standard input"
        how.on_file(self.name)
        self._packed = frozenset(() if self._path else (each.name for each in entries))
        self._accepted = self._takes_reading = False
        self._chunks = 0
        self.refused: set[str] = set()
        """names of files of the pack that the receiver cannot store"""

    async def offer(self, offer: Offer | Pack) -> Accept:
        await self.session.say(offer)
        reply = await self.reply(Accept)
        self._accepted = True
        return reply

    async def reply(self, kind: type[T]) -> T:
        """The answer of this kind, perhaps after the receiver has asked its user."""
        reply = await self._hear()
        if isinstance(reply, ConsentQuestion):
            with self.how.waiting():
                reply = await self._hear()
        if not isinstance(reply, kind):
            peer = self.session.qp.peer.host
            raise ProtocolError(f"{peer} answered an offer with an unexpected message")
        return reply

    async def write(
        self, accept: Accept, feed: ChunkFeed | None, begin: int = 0, holes: Holes = NO_HOLES
    ) -> None:
        """Writes the chunks from `begin` on. An empty file has no feed."""
        self._takes_reading = accept.reading
        if feed is None:
            return
        writing = ChunkWriter(self, accept, feed, begin, holes)
        try:
            await writing.run()
        finally:
            self._chunks, self.how.stored_chunks = writing.chunks, writing.stored
            self.how.kept_chunks = begin
        if writing.answer is not None:
            error = self._refusal(writing.answer)
            if isinstance(error, FileRefusedError):
                await self.session.say(OfferDone("", self._chunks, "the receiver refused it"))
            raise error

    async def reading(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which reads from a disk: the receiver hears of it."""
        watchers = [self._tell_reading()] if self._takes_reading else []
        return await self.session.watched(work, *watchers)

    async def _tell_reading(self) -> NoReturn:
        while True:
            await asyncio.sleep(READING_SECONDS)
            await self.session.say(DiskWait())

    async def finish(self, digest: str) -> None:
        """All chunks are written: returns when the receiver has stored all of it."""
        await self.session.say(OfferDone(digest, self._chunks))
        with self.session.waiting.on("storing"):
            answer = await self._hear()
        if not isinstance(answer, Stored):
            peer = self.session.qp.peer.host
            raise ProtocolError(f"{peer} did not confirm that it stored the file")

    async def give_up(self, error: str) -> None:
        """The file cannot be read, or not to its end."""
        self.how.on_failed(FailedFile(self.name, error, "sender"))
        if not self._accepted:
            await tell_failed(self.session, [(self.name, error)])
            return
        await self.session.say(OfferDone("", self._chunks, error))
        try:
            await self._hear()
        except FileRefusedError:
            pass  # the receiver cannot store it either

    async def _hear(self) -> TransferMessage:
        """The receiver's next message; raises TransferError if it refuses."""
        while True:
            message = await self.session.hear()
            if isinstance(message, Immediate):
                continue  # credit after the last chunk
            answer = self.take_answer(message)
            if isinstance(answer, Refuse):
                raise self._refusal(answer)
            if answer is not None:
                return answer

    def take_answer(self, message: TransferMessage) -> TransferMessage | None:
        """Takes the failed files of a pack; returns any other message."""
        if not isinstance(message, FailedFiles):
            return message
        for each in message.files:
            name = local_name(each.name)
            if name not in self._packed:
                peer = self.session.qp.peer.host
                raise ProtocolError(f"{peer} cannot store a file that it was not sent")
            self.refused.add(name)
            self.how.on_failed(FailedFile(name, each.error, "receiver"))
        return None

    def _refusal(self, message: TransferMessage) -> TransferError | ProtocolError:
        """The error for an answer that ends the file before its end."""
        host = self.session.qp.peer.host
        if not isinstance(message, Refuse):
            return ProtocolError(f"{host} sent an unexpected message during a file")
        cause = shown(message.error)
        match message.code:
            case "verification":
                return VerificationError(
                    f"{printable(self._path)}: {cause}" if self._path else cause
                )
            case "stopped":
                return TransferError(f"{host} stopped the transfer: {cause}")
            case "file" if self._path:
                return FileRefusedError(cause)
        self.how.stored_chunks = self.how.kept_chunks = 0
        return TransferError(f"{host} refused {'the file' if self._path else 'the files'}: {cause}")


async def tell_failed(session: TransferSession, failed: list[tuple[str, str]]) -> None:
    """Names files that are not offered, each with its error."""
    for message in failed_of((wire_name(name), error) for name, error in failed):
        await session.say(message)


class ChunkWriter:
    """The chunks of one offer."""

    def __init__(
        self, offering: OpenOffer, accept: Accept, feed: ChunkFeed, begin: int, holes: Holes
    ) -> None:
        self._session = session = offering.session
        self._waiting = session.waiting
        self._on_message = offering.take_answer
        self.answer: TransferMessage | None = None
        """what the receiver said before all chunks were written"""
        self._window = accept.window
        self._token = accept.token
        self._feed = feed
        self._takes_reading = accept.reading
        self._reading = False
        self._slots = min(accept.window.length // CHUNK_BYTES, MAX_SLOTS)
        self._free = list(range(self._slots))  # a heap
        # Chunks that are not stored, in their order: the slot of each one; of a hole how many.
        self._taken: deque[tuple[int | None, int]] = deque()
        self._holes = holes
        self._pace = Pace(lower(offering.how.rate, accept.rate))
        self._turn = asyncio.Lock()  # chunks leave one after the other
        self.chunks = begin  # started, or there already
        self.stored = begin  # at the receiver
        self._writes: set[asyncio.Task[Any]] = set()
        self._under_way: Counter[QP] = Counter()
        self._written: Counter[QP] = Counter()
        self._error: BaseException | None = None
        self._changed = asyncio.Event()  # a write ended, or credit came
        if not self._free:
            raise ProtocolError(f"{session.qp.peer.host} has a window smaller than a chunk")
        self._skip_holes()

    def _skip_holes(self) -> None:
        """The receiver stores the chunks of holes by itself, as soon as it can."""
        while count := self._holes.left(self.chunks):
            self._taken.append((None, count))
            self.chunks += count

    async def run(self) -> None:
        """Returns when the peer has acknowledged every chunk, or all that were begun until it has
        answered. Raises FileError when the chunks end, but not before the writes that were begun.
        """
        session = self._session
        watchers = [self._take_credit(), session.joined.failed()]
        if self._takes_reading:
            watchers.append(self._tell_reading())
        if self._token:
            watchers.append(widen(session, self._token, self._feed.left_bytes))
        try:
            try:
                await session.watched(self._write(), *watchers)
            except EarlyAnswerError:
                if isinstance(self.answer, Refuse) and self.answer.code == "file":
                    await session.watched(self._until_written(), session.joined.failed())
            except CopyError:
                await session.watched(self._until_written(), session.joined.failed())
                raise
        finally:
            await cancelled(*self._writes)

    async def _write(self) -> None:
        while True:
            self._reading = True
            with self._waiting.on("reading"):
                piece = await self._feed.next()
            self._reading = False
            if piece is None:
                break
            while self._next_qp() is None:
                with self._waiting.on("storing" if self._able() else "network"):
                    await self._until_changed()
            self._start(piece)
        await self._until_written()

    async def _tell_reading(self) -> NoReturn:
        """A receiver ends the session of a sender of which it hears nothing."""
        while True:
            before = self.chunks
            await asyncio.sleep(READING_SECONDS)
            if self._reading and self.chunks == before:
                await self._session.say(DiskWait())

    async def _until_written(self) -> None:
        with self._waiting.on("network"):
            while self._writes:
                await self._until_changed()
        self._check()

    def _next_qp(self) -> QP | None:
        """The QP for the next chunk: the one with the fewest chunks in flight, among equals the one
        that has written the fewest, so that no QP stays idle. None while all are busy or no slot is
        free.

        A single QP uses few slots. Several QPs may fill the window, because chunks of all QPs wait
        there for the slowest QP.
        """
        qps = self._session.qps
        most = max(2 * _covered(qps[0]), CHUNKS_IN_FLIGHT) if len(qps) == 1 else MAX_SLOTS
        if not self._free or self._slots - len(self._free) >= most:
            return None
        return min(
            self._able(), key=lambda qp: (self._under_way[qp], self._written[qp]), default=None
        )

    def _able(self) -> list[QP]:
        """The QPs that may have another chunk in flight."""
        return [qp for qp in self._session.qps if self._under_way[qp] < self._enough(qp)]

    def _enough(self, qp: QP) -> int:
        """Limit on the chunks in flight on a QP. A new QP starts with 1; each written chunk adds 1
        to its limit.
        """
        enough = max(_covered(qp), CHUNKS_IN_FLIGHT // len(self._session.qps))
        return enough if qp is self._session.qp else min(enough, 1 + self._written[qp])

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _start(self, piece: FeedChunk) -> None:
        qp = self._next_qp()
        assert qp is not None, "only this function uses slots and QPs"
        slot = heapq.heappop(self._free)
        imm = chunk_imm(self.chunks, slot)
        write = asyncio.create_task(self._write_chunk(qp, piece, imm, slot * CHUNK_BYTES))
        self.chunks += 1
        self._taken.append((slot, 1))
        self._skip_holes()
        self._under_way[qp] += 1
        self._writes.add(write)
        write.add_done_callback(partial(self._on_written, qp, piece))

    async def _write_chunk(self, qp: QP, piece: FeedChunk, imm: int, remote: int) -> None:
        """The last part has the immediate, which arrives after all earlier parts."""
        if not self._pace.limited:
            await self._write_part(qp, piece.offset, remote, piece.length, imm)
            return
        parts = []
        try:
            async with self._turn:
                for start, length in self._pace.pieces(piece.length):
                    await self._pace.until(length)
                    last = imm if start + length == piece.length else None
                    part = self._write_part(qp, piece.offset + start, remote + start, length, last)
                    parts.append(asyncio.create_task(part))
            await asyncio.gather(*parts)
        finally:
            await cancelled(*parts)

    async def _write_part(
        self, qp: QP, local: int, remote: int, length: int, imm: int | None
    ) -> None:
        source = self._feed.region[local : local + length]
        await qp.write(source, self._window[remote:], imm=imm)

    def _on_written(self, qp: QP, piece: FeedChunk, write: asyncio.Task[Any]) -> None:
        self._writes.discard(write)
        self._under_way[qp] -= 1
        self._written[qp] += 1
        if not write.cancelled():
            error = write.exception()  # read for every write: asyncio logs errors that are not read
            self._error = self._error or error
            if error is None:
                self._feed.written(piece)
        self._changed.set()

    async def _take_credit(self) -> NoReturn:
        """Frees slots on credit. Raises EarlyAnswerError for an answer."""
        while self.answer is None:
            heard = await self._session.hear()
            if not isinstance(heard, Immediate):
                self.answer = self._on_message(heard)
                continue
            stored = heard.imm
            if not self.stored < stored <= self.chunks:
                peer = self._session.qp.peer.host
                raise ProtocolError(f"{peer} sent credit for chunks that were never written")
            self._free_slots(stored - self.stored)
            self.stored = stored
            self._changed.set()
        raise EarlyAnswerError

    def _free_slots(self, stored: int) -> None:
        """So many chunks more are stored."""
        while stored:
            slot, count = self._taken.popleft()
            if slot is not None:
                heapq.heappush(self._free, slot)
            elif count > stored:
                self._taken.appendleft((None, count - stored))
            stored -= min(count, stored)


def _covered(qp: QP) -> int:
    """Chunks that keep a QP busy: those that its window covers, and one more."""
    return -(-qp.mpr * qp.path_mtu // CHUNK_BYTES) + 1


def lower(*rates: float) -> float:
    """The lowest of these rates; 0 is no limit."""
    return min((rate for rate in rates if rate), default=0.0)


class Pace:
    """Lets `rate` bits per second pass; 0: no limit. Chunks leave in pieces, at their times."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.limited = rate > 0
        self._next = 0.0  # when the next piece may leave
        self._turn = asyncio.Lock()

    def pieces(self, length: int) -> list[tuple[int, int]]:
        """Offset and length of each piece of a chunk."""
        wanted = int(self._rate / 8 * PIECE_SECONDS) if self.limited else CHUNK_BYTES
        step = max(MIN_PIECE_BYTES, wanted - wanted % MIN_PIECE_BYTES)
        return [(start, min(step, length - start)) for start in range(0, length, step)]

    async def until(self, length: int) -> None:
        """Waits until so many bytes may leave; the callers leave in their order."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            self._next = max(self._next, now)
            await asyncio.sleep(self._next - now)
            self._next += length * 8 / self._rate


async def widen(session: TransferSession, token: str, left_bytes: Callable[[], int]) -> NoReturn:
    """Adds QPs to the session with this token: at once one for each further engine if much is left
    to send, later whenever the windows limit its rate.

    On a long path the window of one QP cannot fill the links. Link rates are often unknown or
    wrong, so the sender adds QPs on evidence: when the windows of its QPs are full for several
    round trips. It then doubles the number of QPs, if enough data is left to send.
    """
    if left_bytes() >= ENGINE_BYTES:
        engines = min(session.ctx.config.sockets.engines, MAX_QPS)
        await _add(session, token, engines - len(session.qps))
    most, held, pause = MAX_QPS, 0, SAMPLE_SECONDS
    while True:
        await asyncio.sleep(pause)
        count = len(session.qps)
        if count >= most:
            continue
        info = await session.query()
        pause = max(base_rtt_ns(info) / 1e9, SAMPLE_SECONDS)
        held = held + 1 if held < 0 or held_up(info, left_bytes()) else 0
        if held == SAMPLES:
            await _add(session, token, min(count, most - count))
            held = -SETTLING
            if len(session.qps) == count:
                most = count


def base_rtt_ns(info: QpInfo) -> int:
    """The shortest round trip of all planes; 0 while no round trip is known."""
    return min(known(plane.base_rtt_ns for plane in info.planes), default=0)


def held_up(info: QpInfo, left_bytes: int) -> bool:
    """True when the round trip is long, the QPs' windows are full, and much is left to send."""
    window_bytes = info.peer_mpr * info.path_mtu
    return (
        base_rtt_ns(info) >= LONG_NS
        and info.inflight_bytes >= _FULL * window_bytes
        and left_bytes >= WORTH * window_bytes
    )


async def _add(session: TransferSession, token: str, count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(_join(session, token))


async def _join(session: TransferSession, token: str) -> None:
    try:
        await session.joined.join(token)
    except (MrcError, OSError) as error:
        logger.info("cannot connect a further QP to %s: %s", session.qp.peer.host, error)
