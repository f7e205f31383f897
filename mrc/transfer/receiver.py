# SPDX-License-Identifier: Apache-2.0
"""The receiving end: checks offers, receives files through the window, and verifies them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from mrc.errors import ProtocolError
from mrc.exchange.budget import BudgetError
from mrc.messaging.mailbox import MailboxClosedError
from mrc.transfer.batch import Batch
from mrc.transfer.messages import CHUNK_BYTES, Accept, Begin, Bye, Offer, Pack, Refuse, Stored
from mrc.transfer.names import FileError
from mrc.transfer.patience import IdleError, patience, until_idle
from mrc.transfer.quota import DEFAULTS, Limits, Quota
from mrc.transfer.session import Session, VerificationError
from mrc.transfer.sinks import FileSink, Output, PackSink, StreamSink, Tree
from mrc.transfer.threads import in_thread
from mrc.transfer.window import Storing, Window, open_window

BEGIN_SECONDS = 3600.0  # for a sender that reads what was kept, at most
Told = Callable[[str, int], None]  # the name of a file, and bytes
AnySink = FileSink | StreamSink | PackSink
_MESSAGE_BYTES = 1 << 20  # mailbox messages, which count as received payload beside the file


async def receive_files(
    session: Session,
    output: Output,
    *,
    limits: Limits = DEFAULTS,
    on_data: Callable[[], None] = lambda: None,
    on_resumed: Told = lambda name, size: None,
    on_kept: Told = lambda name, size: None,
    keep_names: bool = True,
) -> AsyncIterator[Batch]:
    """Yields each file or pack when it is stored and verified; ends after the sender's last one.

    With `keep_names` the batch of a pack has its files.
    Calls `on_data` before it stores each chunk, and before each file gets its final name, and
    `on_resumed` for a file of which it had so many bytes already, `on_kept` for one of which so
    many are kept because the transfer was interrupted.
    Raises FileError when it cannot store a file, TransferError when the sender stops the transfer
    or makes no progress.
    """
    quota = Quota(limits)
    tree = output.tree(lambda: quota.take("a folder", files=1))
    # Closed after the QP, because a helper thread may still use it.
    session.held.callback(tree.close)
    try:
        window = await _open_window(session, limits.window_bytes)
        while (offer := await _hear_offer(session, limits)) is not None:
            with _closed(_sink_of(offer, tree, quota, keep_names=keep_names), on_kept) as sink:
                begin = await _accept(session, window, offer, sink, limits)
                if begin:
                    on_resumed(sink.name, min(begin * offer.chunk_bytes, offer.bytes or 0))
                storing = Storing(
                    session, window, offer.chunk_bytes, sink, on_data, tree.stop, begin
                )
                batch = await _receive(session, offer, sink, storing, limits, on_data)
            yield batch
        await in_thread(tree.finish)
    except IdleError as error:
        await session.say_last(Refuse("stopped", str(error)))
        raise
    except (FileError, BudgetError) as error:
        await session.say_last(Refuse("file", str(error)))
        raise
    except VerificationError as error:
        await session.say_last(Refuse("verification", str(error)))
        raise
    except asyncio.CancelledError:
        await session.say_last(Refuse("stopped", "the receiver was stopped"))
        raise


@contextmanager
def _closed(sink: AnySink, on_kept: Told) -> Iterator[AnySink]:
    try:
        yield sink
    except FileError:
        sink.discard()  # this disk is full or broken: what is kept would only fill it
        raise
    finally:
        if kept := sink.close():
            on_kept(sink.name, kept)


async def _open_window(session: Session, most_bytes: int) -> Window:
    """The window of a session: a quarter of the memory left for this peer, up to `most_bytes`."""
    memory, address = session.ctx.peer_memory, session.qp.peer_address
    share = memory.left(address) // 4
    length = max(min(most_bytes, share - share % CHUNK_BYTES), min(most_bytes, CHUNK_BYTES))
    # Released only after the QP: on failure the peer may still be writing.
    session.held.enter_context(memory.taken(address, length))
    return await session.held.enter_async_context(open_window(session.ctx, length))


async def _hear_offer(session: Session, limits: Limits) -> Offer | Pack | None:
    """The next offer of a file or pack; None when there are no more files."""
    try:
        async with patience(session, limits.idle_seconds):
            message = await session.hear()
    except MailboxClosedError:
        return None  # between two files this means the same as a bye
    if isinstance(message, Bye):
        return None
    if not isinstance(message, (Offer, Pack)):
        raise ProtocolError(f"{session.qp.peer_host} sent data that it has not offered")
    return message


def _sink_of(offer: Offer | Pack, tree: Tree, quota: Quota, *, keep_names: bool) -> AnySink:
    """The sink for an offer; raises FileError to refuse the offer before data flows."""
    if isinstance(offer, Pack):
        quota.check(f"{offer.files} files", offer.files, offer.bytes)
        tree.check_room(offer.bytes)
        return PackSink(tree, quota, keep_names=keep_names, resume=offer.resume)
    if offer.bytes is None:
        return StreamSink(tree, offer, quota)
    return FileSink(tree, offer, quota)


async def _accept(
    session: Session,
    window: Window,
    offer: Offer | Pack,
    sink: AnySink,
    limits: Limits,
) -> int:
    """Accepts the offer; returns the first chunk that the sender will write."""
    if offer.chunk_bytes > len(window.memory):
        raise ProtocolError(f"{session.qp.peer_host} offered chunks larger than the window")
    file = sink if isinstance(sink, FileSink) and offer.resume else None
    kept, digest = await in_thread(file.kept) if file is not None else (0, "")
    async with patience(session, limits.idle_seconds):
        await session.say(Accept(window.mr.remote, session.joined.token, kept, digest))
    begin = 0
    if kept:
        message = await _hear_begin(session, limits)
        if message.chunk not in (0, kept):
            raise ProtocolError(f"{session.qp.peer_host} goes on with a chunk that is not here")
        begin = message.chunk
    if file is not None:
        file.begin(begin)
    return begin


async def _hear_begin(session: Session, limits: Limits) -> Begin:
    """The sender may have to read all of its file that was kept, so this may take long."""
    async with patience(session, limits.idle_seconds + BEGIN_SECONDS):
        message = await session.hear()
    if not isinstance(message, Begin):
        raise ProtocolError(f"{session.qp.peer_host} sent an unexpected message before a file")
    return message


async def _receive(
    session: Session,
    offer: Offer | Pack,
    sink: AnySink,
    storing: Storing,
    limits: Limits,
    on_data: Callable[[], None],
) -> Batch:
    most_bytes = limits.bytes if offer.bytes is None else offer.bytes
    most_bytes += _MESSAGE_BYTES
    idle = until_idle(session, limits.idle_seconds, storing.progress, most_bytes)
    done = await storing.run(idle)
    on_data()
    batch = sink.finish(done)
    async with patience(session, limits.idle_seconds):
        await session.say(Stored())
    return batch
