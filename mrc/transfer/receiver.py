# SPDX-License-Identifier: Apache-2.0
"""The receiving end: checks offers, receives files through the window, and verifies them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

from msgspec import Struct

from mrc.errors import MrcError, ProtocolError, reason_of
from mrc.exchange.budget import BudgetError
from mrc.mailbox import MailboxClosedError
from mrc.results.transfer import FailedFile, Role
from mrc.transfer.announced import Announced
from mrc.transfer.batch import Batch
from mrc.transfer.folders import Meta
from mrc.transfer.holes import Holes
from mrc.transfer.messages import (
    CHUNK_BYTES,
    Accept,
    Begin,
    Bye,
    Compare,
    Done,
    Failed,
    Mine,
    Offer,
    Pack,
    Refuse,
    Stored,
    Unchanged,
)
from mrc.transfer.names import FileError, FinalError, local_name, of_system
from mrc.transfer.pace import Due
from mrc.transfer.patience import IdleError, patience, until_idle
from mrc.transfer.quota import DEFAULTS, Limits, Quota
from mrc.transfer.session import Session, VerificationError
from mrc.transfer.sinks import FileSink, Output, PackSink, StreamSink, Tree
from mrc.transfer.threads import StuckError, in_thread
from mrc.transfer.window import Storing, Told, Window, open_window
from mrc.units import counted

BEGIN_SECONDS = 3600.0  # for a sender that reads what was kept, at most
Heard = Offer | Pack | Failed | Compare
AnySink = FileSink | StreamSink | PackSink
NOBODY = Told()
_MESSAGE_BYTES = 1 << 20  # mailbox messages, which count as received payload beside the file


async def receive_files(
    session: Session,
    output: Output,
    *,
    limits: Limits = DEFAULTS,
    told: Told = NOBODY,
    keep_names: bool = True,
    agreed: Announced | None = None,
) -> AsyncIterator[Batch]:
    """Yields each file or pack when it is stored and verified; ends after the sender's last one. Of
    a pack that is interrupted, it yields what is stored.

    With `keep_names` the batch of a pack has its files. A file that one end cannot read or store is
    reported to `told` and left out.
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
        receiving = _Receiving(session, window, tree, quota, limits, told, keep_names, Due())
        first = True
        while (offer := await _hear_offer(session, limits)) is not None:
            if first and isinstance(offer, (Offer, Pack)):
                _check_announced(session, quota)
            first = first and isinstance(offer, Failed)  # --update leaves out what is there
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
    except (FileError, BudgetError) as error:
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


def _check_announced(session: Session, quota: Quota) -> None:
    """Raises FinalError if the sender has more files or bytes than it may send."""
    with suppress(ValueError):  # a sender need not announce them
        quota.check_announced(Announced.read(session.qp.private))


async def _open_window(session: Session, most_bytes: int) -> Window:
    """The window of a session: a quarter of the memory left for this peer, up to `most_bytes`."""
    memory, address = session.ctx._peer_memory, session.qp.peer_address
    share = memory.left(address) // 4
    length = max(min(most_bytes, share - share % CHUNK_BYTES), min(most_bytes, CHUNK_BYTES))
    # Released only after the QP: on failure the peer may still be writing.
    session.held.enter_context(memory.taken(address, length))
    return await session.held.enter_async_context(open_window(session.ctx, length))


async def _hear_offer(session: Session, limits: Limits) -> Heard | None:
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
    if not isinstance(message, (Offer, Pack, Failed, Compare)):
        raise ProtocolError(f"{session.qp.peer_host} sent data that it has not offered")
    return message


class _Receiving(Struct):
    """Receives the files of one session, one offer after the other."""

    session: Session
    window: Window
    tree: Tree
    quota: Quota
    limits: Limits
    told: Told
    keep_names: bool
    due: Due
    pack: PackSink | None = None
    """the one that is being received; nobody was told of what it has stored"""

    async def take(self, offer: Heard) -> Batch | None:
        """The stored file or pack; None if nothing was stored."""
        if isinstance(offer, Compare):
            positions = await in_thread(self._unchanged, offer, stop=self.tree.stop)
            async with patience(self.session, self.limits.idle_seconds):
                await self.session.say(Unchanged(positions))
            return None
        if isinstance(offer, Failed):
            self.quota.take("the failed files", files=len(offer.files))
            for each in offer.files:
                self._failed(local_name(each.name), each.error, "sender")
            return None
        name = "the pack" if isinstance(offer, Pack) else offer.name
        try:
            sink = self._sink_of(offer)
        except FinalError:
            raise
        except FileError as error:
            await self._refuse(name, error)
            return None
        async with self._closed(sink):
            try:
                begin, failure = await self._accept(offer, sink)
            except FinalError:
                raise
            except FileError as error:
                await self._refuse(name, error)
                return None
            self.pack = sink if isinstance(sink, PackSink) else None
            batch = await self._store(offer, sink, begin, failure)
        self.pack = None
        return batch

    def _unchanged(self, compare: Compare) -> tuple[int, ...]:
        positions = []
        for position, each in enumerate(compare.files):
            mtime_ns = Meta.received(None, each.mtime).mtime_ns or 0
            try:
                if self.tree.has(local_name(each.name), each.bytes, mtime_ns):
                    positions.append(position)
            except FinalError:
                raise
            except FileError:
                pass  # the name is refused when the file is offered
        self.tree.sync()
        return tuple(positions)

    def _failed(self, name: str, error: str, end: Role) -> None:
        self.told.on_failed(FailedFile(name, error, end))

    async def _refuse(self, name: str, error: FileError) -> None:
        self._failed(name, str(error), "receiver")
        if of_system(error):
            self.tree.lacks(name)
        async with patience(self.session, self.limits.idle_seconds):
            await self.session.say(Refuse("file", str(error)))

    @asynccontextmanager
    async def _closed(self, sink: AnySink) -> AsyncIterator[None]:
        """Closes the sink, in a thread: the disk may have to write what is kept."""
        try:
            yield
        except StuckError as error:
            error.when_ended(sink.close)
            raise
        except BaseException as error:
            if isinstance(error, FileError):
                sink.discard()  # this disk is full or broken: what is kept would only fill it
            await self._close(sink)
            raise
        await self._close(sink)

    async def _close(self, sink: AnySink) -> None:
        if kept := await in_thread(sink.close):
            self.told.on_kept(sink.name, kept)

    def _sink_of(self, offer: Offer | Pack) -> AnySink:
        """The sink for an offer; raises FileError to refuse the offer before data flows."""
        if isinstance(offer, Pack):
            self.quota.check(counted(offer.files, "file"), offer.files, offer.bytes)
            names = self.keep_names
            return PackSink(self.tree, self.quota, keep_names=names, resume=offer.resume)
        if offer.bytes is None and offer.holes:
            raise ProtocolError(f"{self.session.qp.peer_host} offered holes of a stream")
        if offer.bytes is None:
            return StreamSink(self.tree, offer, self.quota)
        if not Holes(offer.holes).are_within(-(-offer.bytes // offer.chunk_bytes)):
            raise ProtocolError(f"{self.session.qp.peer_host} offered holes outside of the file")
        return FileSink(self.tree, offer, self.quota)

    async def _accept(self, offer: Offer | Pack, sink: AnySink) -> tuple[int, str]:
        """Accepts the offer. Returns the first chunk that the sender will write, and why the file
        cannot be stored after all.
        """
        session, window, seconds = self.session, self.window, self.limits.idle_seconds
        if offer.chunk_bytes > len(window.memory):
            raise ProtocolError(f"{session.qp.peer_host} offered chunks larger than the window")
        file = sink if isinstance(sink, FileSink) and offer.resume else None
        kept, digest = 0, ""
        if file is not None:
            kept, digest = await in_thread(file.kept, stop=self.tree.stop)
        await session.watched(self.due.wait(session.arrived.used))
        async with patience(session, seconds):
            rate = int(self.told.rate())
            self.due.begin(rate)
            remote, token = window.mr.remote, session.joined.token
            await session.say(Accept(remote, token, kept, rate, reading=True))
        begin = await self._begin(kept, digest) if kept else 0
        try:
            if file is not None:
                file.begin(begin)
        except FinalError:
            raise
        except FileError as error:
            return begin, str(error)
        if begin:
            size = offer.bytes or 0
            self.told.on_resumed(sink.name, min(begin * offer.chunk_bytes, size), size)
        return begin, ""

    async def _begin(self, kept: int, digest: str) -> int:
        """The sender may have to read all of its file that was kept, so this may take long."""
        session = self.session
        async with patience(session, self.limits.idle_seconds + BEGIN_SECONDS):
            message = await session.hear()
        if not isinstance(message, Mine):
            raise ProtocolError(f"{session.qp.peer_host} sent an unexpected message before a file")
        begin = kept if message.digest == digest else 0
        async with patience(session, self.limits.idle_seconds):
            await session.say(Begin(begin))
        return begin

    def _finish(self, sink: AnySink, done: Done) -> Batch:
        """Waits for the disk with --fsync, perhaps for minutes."""
        batch = sink.finish(done)
        self.tree.sync()
        return batch

    async def _store(
        self, offer: Offer | Pack, sink: AnySink, begin: int, failure: str
    ) -> Batch | None:
        session, tree = self.session, self.tree
        most_bytes = self.limits.bytes if offer.bytes is None else offer.bytes
        most_bytes += _MESSAGE_BYTES
        storing = Storing(
            session, self.window, offer.chunk_bytes, sink, self.told, self.due, tree.stop, begin,
            failure, Holes(offer.holes if isinstance(offer, Offer) else ()),
        )  # fmt: skip
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
        self.told.on_data()
        batch = None
        try:
            if done.error:
                self._failed(sink.name, done.error, "sender")
            else:
                with session.waiting.on("storing"):
                    batch = await in_thread(self._finish, sink, done, stop=tree.stop)
        except FinalError:
            raise
        except FileError as error:
            sink.discard()
            await self._refuse(sink.name, error)
            return None
        async with patience(session, seconds):
            await session.say(Stored())
        return batch
