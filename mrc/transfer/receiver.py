# SPDX-License-Identifier: Apache-2.0
"""The receiving end of a transfer. The functions stand in the order of the stages:

1. `receive_files` opens the window, memory into which the sender writes, and hears its offers.
2. `_OfferReceiver`: an offer gets a sink, which is a file, a stream or a pack. The receiver accepts
   it, with the window and what it has kept of the file, and hears from which chunk on the sender
   writes. In the end the file is verified, gets its final name, and is stored.
3. `ChunkStore`: a chunk arrives in a slot of the window; its immediate names index and slot.
4. It waits for earlier chunks, and until all of its bytes have come: an immediate alone proves
   nothing.
5. A thread hashes it and stores it in the sink.
6. Its slot is free, and the sender gets credit for it, at the rate that it may have (`Due`).
7. The sender says done: no further chunk comes.

The window is large enough for long round trips. The kernel backs only the pages that were written,
and a sender uses few slots until it adds QPs, so a small window stays in the CPU caches. Writing
into a mapped file would avoid the copy. But the kernel must then allocate, zero and map each page
first, which costs more, and a slow or full disk would block or end the datapath.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from msgspec import Struct

from mrc.connect.admission import BudgetError
from mrc.errors import MrcError, ProtocolError, reason_of
from mrc.events import Immediate
from mrc.mailbox import MailboxClosedError
from mrc.transfer.files import OutputDirectory
from mrc.transfer.folders import Meta
from mrc.transfer.limits import (
    CHUNK_BYTES,
    DEFAULTS,
    CopyError,
    FileError,
    FinalError,
    Quota,
    SenderLimits,
    local_name,
    of_system,
    wire_name,
)
from mrc.transfer.memory import ReceiveWindow, open_window
from mrc.transfer.messages import (
    MAX_SLOTS,
    Accept,
    Announced,
    Begin,
    Bye,
    Compare,
    DiskWait,
    FailedFiles,
    Holes,
    Mine,
    Offer,
    OfferDone,
    Pack,
    Refuse,
    Stored,
    Unchanged,
    chunk_of,
    failed_of,
)
from mrc.transfer.results import FailedFile, Role, StoredBatch
from mrc.transfer.session import IdleError, TransferSession, VerificationError, patience, until_idle
from mrc.transfer.sinks import AnySink, AnyTree, FileSink, PackSink, PipeWriter, StreamSink
from mrc.transfer.threads import StuckError, WorkerThread, in_thread
from mrc.typed import take
from mrc.units import counted

BEGIN_SECONDS = 3600.0  # for a sender that reads what was kept, at most
_NO_SLOT = -1  # of chunks in holes
_MESSAGE_BYTES = 1 << 20  # mailbox messages, which count as received payload beside the file
OfferMessage = Offer | Pack | FailedFiles | Compare


class ReceiveEvents(Struct, frozen=True):
    """What the user of a receiver hears of.

    `on_data` is called before each chunk is stored, and before each file gets its final name.
    `on_resumed`: so many bytes of a file of this size were there already. `on_kept`: so many are
    kept, because the transfer was interrupted. `on_failed`: a file or folder is not copied.
    `on_file`: this file is accepted; "": a pack. `rate` says how many bits per second the sender of
    the next file may send; 0: as many as it can.
    """

    on_data: Callable[[], None] = lambda: None
    on_resumed: Callable[[str, int, int], None] = lambda name, there, size: None
    on_kept: Callable[[str, int], None] = lambda name, size: None
    on_failed: Callable[[FailedFile], None] = lambda failed: None
    on_file: Callable[[str], None] = lambda name: None
    rate: Callable[[], float] = lambda: 0.0


NOBODY = ReceiveEvents()


async def receive_files(
    session: TransferSession,
    output: OutputDirectory | PipeWriter,
    *,
    limits: SenderLimits = DEFAULTS,
    events: ReceiveEvents = NOBODY,
    keep_names: bool = True,
    agreed: Announced | None = None,
) -> AsyncIterator[StoredBatch]:
    """Yields each file or pack when it is stored and verified; ends after the sender's last one. Of
    a pack that is interrupted, it yields what is stored.

    With `keep_names` the batch of a pack has its files. A file that one end cannot read or store is
    reported to `events` and left out.
    `agreed`: what the user has accepted, where he was asked. Nothing else is stored.
    Raises FinalError when it can store no further file, TransferError when the sender stops the
    transfer or makes no progress.
    """
    quota = Quota(limits, agreed)
    tree = output.tree(lambda: quota.take("a folder", files=1), quota.operate)
    # Closed after the QP, because a helper thread may still use it.
    held = session.held.enter_context(ExitStack())
    held.callback(tree.close)
    try:
        window = await _open_window(session, limits.window_bytes)
        receiving = _OfferReceiver(session, window, tree, quota, limits, events, keep_names, Due())
        first = True
        while (offer := await _hear_offer(session, limits)) is not None:
            if first and isinstance(offer, (Offer, Pack)):
                with suppress(ValueError):  # a sender need not announce what it has
                    quota.check_announced(take(session.qp.peer.private, Announced))
            first = first and isinstance(offer, FailedFiles)  # --update leaves out what is there
            try:
                batch = await receiving.take(offer)
            except BaseException:
                if receiving.pack is not None:
                    yield receiving.pack.stored()
                raise
            if batch is not None:
                yield batch
        await in_thread(tree.finish, stop=tree.stop)
    except StuckError as error:
        error.when_ended(held.pop_all().close)
        raise
    except IdleError as error:
        await session.say_last(Refuse("stopped", str(error)))
        raise
    except (CopyError, BudgetError) as error:
        await session.say_last(Refuse("all", str(error)))
        raise
    except VerificationError as error:
        await session.say_last(Refuse("verification", str(error)))
        raise
    except asyncio.CancelledError:
        await session.say_last(Refuse("stopped", "the receiver was stopped"))
        raise
    except MrcError:
        raise  # of the peer, or of the way to it
    except Exception as error:
        # Of the system, or of mrc itself: it would be the same after another connect.
        await session.say_last(Refuse("all", reason_of(error)))
        raise


async def _open_window(session: TransferSession, most_bytes: int) -> ReceiveWindow:
    """The window of a session: a quarter of the memory left for this peer, up to `most_bytes`."""
    memory, address = session.ctx._peer_memory, session.qp.peer.address
    share = memory.left(address) // 4
    length = max(min(most_bytes, share - share % CHUNK_BYTES), min(most_bytes, CHUNK_BYTES))
    # Released only after the QP: on failure the peer may still be writing.
    session.held.enter_context(memory.taken(address, length))
    return await session.held.enter_async_context(open_window(session.ctx, length))


async def _hear_offer(session: TransferSession, limits: SenderLimits) -> OfferMessage | None:
    """The next offer, files that the sender cannot read, or a question about files. None when there
    are no more files.
    """
    try:
        async with patience(session, limits.idle_seconds):
            message = await session.hear()
    except MailboxClosedError:
        return None  # between two files this means the same as a bye
    if isinstance(message, Bye):
        return None
    if not isinstance(message, (Offer, Pack, FailedFiles, Compare)):
        raise ProtocolError(f"{session.qp.peer.host} sent data that it has not offered")
    return message


class _OfferReceiver(Struct):
    """Receives the files of one session, one offer after the other."""

    session: TransferSession
    window: ReceiveWindow
    tree: AnyTree
    quota: Quota
    limits: SenderLimits
    events: ReceiveEvents
    keep_names: bool
    due: Due
    pack: PackSink | None = None
    """the one that is being received; nobody was told of what it has stored"""

    async def take(self, offer: OfferMessage) -> StoredBatch | None:
        """The stored file or pack; None if nothing was stored."""
        if isinstance(offer, Compare):
            positions = await in_thread(self._unchanged, offer, stop=self.tree.stop)
            async with patience(self.session, self.limits.idle_seconds):
                await self.session.say(Unchanged(positions))
            return None
        if isinstance(offer, FailedFiles):
            self.quota.take("the failed files", files=len(offer.files))
            for each in offer.files:
                self._failed(local_name(each.name), each.error, "sender")
            return None
        try:
            sink = self._sink_of(offer)
        except FileError as error:
            await self._refuse("the pack" if isinstance(offer, Pack) else offer.name, error)
            return None
        batch = None
        async with self._closed(sink):  # a file that cannot be closed ends the session
            try:
                begin, failure = await self._accept(offer, sink)
                self.pack = sink if isinstance(sink, PackSink) else None
                batch = await self._store(offer, sink, begin, failure)
            except FileError as error:
                await self._refuse(sink.name, error)
        self.pack = None
        return batch

    def _unchanged(self, compare: Compare) -> tuple[int, ...]:
        positions = []
        for position, each in enumerate(compare.files):
            mtime_ns = Meta.received(None, each.mtime).mtime_ns or 0
            try:
                if self.tree.has(local_name(each.name), each.bytes, mtime_ns):
                    positions.append(position)
            except FileError:
                pass  # the name is refused when the file is offered
        self.tree.sync()
        return tuple(positions)

    def _failed(self, name: str, error: str, end: Role) -> None:
        self.events.on_failed(FailedFile(name, error, end))

    async def _refuse(self, name: str, error: FileError) -> None:
        self._failed(name, str(error), "receiver")
        if of_system(error):
            self.tree.lacks(name)
        async with patience(self.session, self.limits.idle_seconds):
            await self.session.say(Refuse("file", str(error)))

    @asynccontextmanager
    async def _closed(self, sink: AnySink) -> AsyncIterator[None]:
        """Closes the sink, in a thread: the disk may have to write what is kept."""
        stuck = False
        try:
            yield
        except StuckError as error:
            error.when_ended(sink.close)
            stuck = True
            raise
        except FinalError:
            sink.discard()  # this disk is full or broken: what is kept would only fill it
            raise
        finally:
            if not stuck and (kept := await in_thread(sink.close)):
                self.events.on_kept(sink.name, kept)

    def _sink_of(self, offer: Offer | Pack) -> AnySink:
        """The sink for an offer; raises FileError to refuse the offer before data flows."""
        if isinstance(offer, Pack):
            self.quota.check(counted(offer.files, "file"), offer.files, offer.bytes)
            names = self.keep_names
            return PackSink(self.tree, self.quota, keep_names=names, resume=offer.resume)
        if offer.bytes is None and offer.holes:
            raise ProtocolError(f"{self.session.qp.peer.host} offered holes of a stream")
        if offer.bytes is None:
            return StreamSink(self.tree, offer, self.quota)
        if not Holes(offer.holes).are_within(-(-offer.bytes // offer.chunk_bytes)):
            raise ProtocolError(f"{self.session.qp.peer.host} offered holes outside of the file")
        return FileSink(self.tree, offer, self.quota)

    async def _accept(self, offer: Offer | Pack, sink: AnySink) -> tuple[int, str]:
        """Accepts the offer. Returns the first chunk that the sender will write, and why the file
        cannot be stored after all.
        """
        session, window, seconds = self.session, self.window, self.limits.idle_seconds
        if offer.chunk_bytes > len(window.memory):
            raise ProtocolError(f"{session.qp.peer.host} offered chunks larger than the window")
        file = sink if isinstance(sink, FileSink) and offer.resume else None
        self.events.on_file("" if isinstance(offer, Pack) else sink.name)
        kept, digest = 0, ""
        if file is not None:
            kept, digest = await in_thread(file.kept, stop=self.tree.stop)
        await session.watched(self.due.wait(session.arrived.used))
        async with patience(session, seconds):
            rate = int(self.events.rate())
            self.due.begin(rate)
            remote, token = window.region.handle, session.joined.token
            await session.say(Accept(remote, token, kept, rate, reading=True))
        begin = await self._begin(kept, digest) if kept else 0
        try:
            if file is not None:
                file.begin(begin)
        except FileError as error:
            return begin, str(error)
        if begin:
            size = offer.bytes or 0
            self.events.on_resumed(sink.name, min(begin * offer.chunk_bytes, size), size)
        return begin, ""

    async def _begin(self, kept: int, digest: str) -> int:
        """The sender may have to read all of its file that was kept, so this may take long."""
        session = self.session
        async with patience(session, self.limits.idle_seconds + BEGIN_SECONDS):
            message = await session.hear()
        if not isinstance(message, Mine):
            raise ProtocolError(f"{session.qp.peer.host} sent an unexpected message before a file")
        begin = kept if message.digest == digest else 0
        async with patience(session, self.limits.idle_seconds):
            await session.say(Begin(begin))
        return begin

    async def _store(
        self, offer: Offer | Pack, sink: AnySink, begin: int, failure: str
    ) -> StoredBatch | None:
        session, tree = self.session, self.tree
        most_bytes = self.limits.bytes if offer.bytes is None else offer.bytes
        most_bytes += _MESSAGE_BYTES
        storing = ChunkStore(self, offer, sink, begin, failure)
        seconds = self.limits.idle_seconds
        # A stream may pause as long as its sender lives: the program behind its pipe may be slow.
        progress = object if offer.bytes is None else storing.progress
        idle = until_idle(session, seconds, progress, most_bytes)
        with session.waiting.otherwise_on("network"):
            done = await storing.run(idle)
        if storing.failure:
            sink.discard()
            self._failed(sink.name, storing.failure, "receiver")
            tree.lacks(sink.name)
            return None
        self.events.on_data()
        batch = None

        def finish() -> StoredBatch:  # waits for the disk with --fsync, perhaps for minutes
            stored = sink.finish(done)
            tree.sync()
            return stored

        if done.error:
            self._failed(sink.name, done.error, "sender")
        else:
            try:
                with session.waiting.on("storing"):
                    batch = await in_thread(finish, stop=tree.stop)
            except FileError:
                sink.discard()
                raise
        async with patience(session, seconds):
            await session.say(Stored())
        return batch


class ChunkStore:
    """Stores the chunks of one offer through the window.

    A file with a `failure` cannot be stored: it refuses the file, and takes its chunks without
    storing them until the sender stops.
    """

    def __init__(
        self, receiver: _OfferReceiver, offer: Offer | Pack, sink: AnySink, begin: int, failure: str
    ) -> None:
        self._session = receiver.session
        self._came = receiver.session.arrived
        self._short = asyncio.Event()  # more is claimed than is known to have come
        self._events = receiver.events
        self._due = receiver.due
        self._holding = False  # the sender is faster than it may be
        self.failure = failure
        self._refused = False
        self._speaking = False
        self._silent = asyncio.Event()  # nothing is left to say
        self._window = receiver.window
        self._sink = sink
        self._chunk_bytes = offer.chunk_bytes
        self._chunks = sink.chunks
        self._slots = min(len(receiver.window.memory) // offer.chunk_bytes, MAX_SLOTS)
        self._full: set[int] = set()  # slots with a chunk that is not stored yet
        self._arrived: dict[int, int] = {}  # chunks that wait for an earlier one: index to slot
        self._next = begin  # index of the next chunk to store
        self._stored = begin
        self._holes = Holes(offer.holes if isinstance(offer, Offer) else ())
        self._line = WorkerThread(receiver.tree.stop)
        self._error: BaseException | None = None
        self._progress = asyncio.Event()
        self._progress.set()
        self._all_stored = asyncio.Event()

    async def run(self, idle: Coroutine[Any, Any, NoReturn]) -> OfferDone:
        """Returns the sender's done message when all chunks are stored.

        `idle` raises when the sender makes no progress for too long.
        """
        session = self._session
        session.joined.on_chunk = self._on_chunk
        try:
            async with self._line:
                self._store_next()
                return await session.watched(
                    self._hear(),
                    self._give_credit(),
                    self._count(),
                    session.joined.failed(),
                    idle,
                )
        finally:
            session.joined.on_chunk = None

    def _on_chunk(self, immediate: Immediate) -> None:
        """A chunk is in its slot: stores it if it is next, and the chunks that waited for it."""
        index, slot = chunk_of(immediate.imm, self._next)
        if self._chunks is not None and index >= self._chunks:
            raise ProtocolError(
                f"{self._session.qp.peer.host} wrote a chunk that it has not offered"
            )
        if slot >= self._slots or slot in self._full or index in self._arrived:
            raise ProtocolError(f"{self._session.qp.peer.host} wrote a chunk without credit for it")
        self._events.on_data()
        self._came.with_immediates += immediate.bytes
        self._full.add(slot)
        self._arrived[index] = slot
        self._store_next()

    def _store_next(self) -> None:
        """Stores the chunks that are next: arrived ones and those of holes."""
        while True:
            if count := self._holes.left(self._next):
                told = partial(self._on_stored, _NO_SLOT, count)
                self._line.put_and_tell(told, self._store_hole, self._next, count)
                self._next += count
            elif self._next in self._arrived:
                if self._sink.one_by_one and (self._next > self._stored or self._sink.failed):
                    return
                size = self._next_bytes()
                if not self._came.has(size):
                    self._short.set()
                    return
                self._came.used += size
                ready = self._arrived.pop(self._next)
                told = partial(self._on_stored, ready, 1)
                self._line.put_and_tell(told, self._store, self._next, ready)
                self._next += 1
            else:
                return

    def _next_bytes(self) -> int:
        with self._slot(self._arrived[self._next]) as chunk:
            return self._sink.bytes_of(self._next, chunk)

    async def _count(self) -> NoReturn:
        """Asks the engine what has come, where the immediates do not tell: a slow sender writes
        chunks in parts.
        """
        while True:
            await self._short.wait()
            self._short.clear()
            self._came.counted = (await self._session.query()).received_bytes
            if self._next in self._arrived and not self._came.has(self._next_bytes()):
                peer = self._session.qp.peer.host
                raise ProtocolError(f"{peer} wrote fewer bytes than its chunks have")
            self._store_next()

    @contextmanager
    def _slot(self, slot: int) -> Iterator[memoryview]:
        start = slot * self._chunk_bytes
        with (
            memoryview(self._window.memory) as whole,
            whole[start : start + self._chunk_bytes] as chunk,
        ):
            yield chunk

    def _store(self, index: int, slot: int) -> None:
        with self._slot(slot) as chunk:
            self._put(index, chunk)

    def _store_hole(self, first: int, count: int) -> None:
        zeros = memoryview(bytes(self._chunk_bytes))
        for index in range(first, first + count):
            self._put(index, zeros)

    def _put(self, index: int, chunk: memoryview) -> None:
        if self.failure:
            return
        try:
            with self._session.waiting.on("storing"):
                self._sink.store(index, chunk)
        except FileError as error:
            self.failure = str(error)

    def _on_stored(self, slot: int, count: int, error: BaseException | None) -> None:
        if error is None:
            self._full.discard(slot)
            self._stored += count
            if self._stored == self._chunks:
                self._all_stored.set()
        elif self._error is None:
            self._error = error
        self._progress.set()

    async def _give_credit(self) -> NoReturn:
        """Sends the number of stored chunks to the sender, except after the last chunk, and not
        before its rate allows that.
        """
        said = self._stored
        while True:
            await self._progress.wait()
            self._progress.clear()
            if self._error is not None:
                raise self._error
            await self._speak()
            self._store_next()
            if said < self._stored != self._chunks:
                said = self._stored
                self._holding = True
                await self._due.wait(self._came.used)
                self._holding = False
                await self._session.qp.write(imm=said)

    async def _speak(self) -> None:
        """Tells both ends what cannot be stored. The sender knows the files that it has named."""
        self._speaking = True
        if self.failure and not self._refused:
            self._refused = True
            await self._session.say(Refuse("file", self.failure))
        failed = [self._sink.failed.popleft() for _ in range(len(self._sink.failed))]
        for each in failed:
            self._events.on_failed(each)
        ours = [(wire_name(each.name), each.error) for each in failed if each.end == "receiver"]
        for message in failed_of(ours):
            await self._session.say(message)
        self._speaking = False
        self._silent.set()

    async def _hear(self) -> OfferDone:
        # That the sender is reading counts as progress: every message is received payload.
        while isinstance(item := await self._session.hear(), (Immediate, DiskWait)):
            if isinstance(item, Immediate):
                self._on_chunk(item)
        if not isinstance(item, OfferDone):
            peer = self._session.qp.peer.host
            raise ProtocolError(f"{peer} sent an unexpected message during a file")
        self._end(item)
        await self._all_stored.wait()
        while self._sink.failed or (self.failure and not self._refused) or self._speaking:
            self._silent.clear()
            await self._silent.wait()
        return item

    def _end(self, done: OfferDone) -> None:
        """The sender has written all chunks, or the first ones of a file that is not complete. The
        last ones may still arrive on further QPs.
        """
        chunks = done.chunks
        wrong = max(self._arrived, default=self._next - 1) >= chunks
        if self._chunks is not None:
            wrong = wrong or chunks > self._chunks or (chunks < self._chunks and not done.error)
        if wrong:
            peer = self._session.qp.peer.host
            raise ProtocolError(f"{peer} wrote another number of chunks than it says")
        self._chunks = chunks
        if self._stored == chunks:
            self._all_stored.set()

    def progress(self) -> object:
        """A value that changes with each new chunk, and with each call while a chunk is stored."""
        if self._next > self._stored:
            return object()  # we wait for the disk, not for the sender
        if self._holding:
            return object()
        return self._next, len(self._arrived)


class Due:
    """When a sender may get more credit, by its rate and by all that has come in its session."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._due = 0.0
        self._counted = 0

    def begin(self, rate: float) -> None:
        """The sender may now send so many bits per second; 0: no limit."""
        self._rate = rate
        self._due = max(self._due, asyncio.get_running_loop().time())

    async def wait(self, bytes_come: int) -> None:
        """Waits as long as the rate requires for all that has come."""
        now = asyncio.get_running_loop().time()
        more, self._counted = bytes_come - self._counted, bytes_come
        if self._rate:
            self._due = max(self._due + more * 8 / self._rate, now)
            await asyncio.sleep(self._due - now)
