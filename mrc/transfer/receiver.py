# SPDX-License-Identifier: Apache-2.0
"""The receiving end: checks offers, receives files through the window, and verifies them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing

from mrc.errors import ProtocolError
from mrc.exchange.budget import BudgetError
from mrc.messaging.mailbox import MailboxClosedError
from mrc.transfer.batch import Batch
from mrc.transfer.messages import CHUNK_BYTES, Accept, Bye, Offer, Pack, Refuse, Stored
from mrc.transfer.names import FileError
from mrc.transfer.patience import IdleError, patience, until_idle
from mrc.transfer.quota import DEFAULTS, Limits, Quota
from mrc.transfer.session import Session, VerificationError
from mrc.transfer.sinks import FileSink, Output, PackSink, StreamSink, Tree
from mrc.transfer.window import Storing, Window, open_window

_MESSAGE_BYTES = 1 << 20  # mailbox messages, which count as received payload beside the file


async def receive_files(
    session: Session,
    output: Output,
    *,
    limits: Limits = DEFAULTS,
    on_data: Callable[[], None] = lambda: None,
    keep_names: bool = True,
) -> AsyncIterator[Batch]:
    """Yields each file or pack when it is stored and verified; ends after the sender's last one.

    With `keep_names` the batch of a pack has its files.
    Calls `on_data` before it stores each chunk, and before each file gets its final name.
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
            with closing(_sink_of(offer, tree, quota, keep_names=keep_names)) as sink:
                storing = Storing(session, window, offer.chunk_bytes, sink, on_data, tree.stop)
                batch = await _receive(session, window, offer, sink, storing, limits, on_data)
            yield batch
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


def _sink_of(
    offer: Offer | Pack, tree: Tree, quota: Quota, *, keep_names: bool
) -> FileSink | StreamSink | PackSink:
    """The sink for an offer; raises FileError to refuse the offer before data flows."""
    if isinstance(offer, Pack):
        quota.check(f"{offer.files} files", offer.files, offer.bytes)
        tree.check_room(offer.bytes)
        return PackSink(tree, quota, keep_names=keep_names)
    if offer.bytes is None:
        return StreamSink(tree, offer, quota)
    return FileSink(tree, offer, quota)


async def _receive(
    session: Session,
    window: Window,
    offer: Offer | Pack,
    sink: FileSink | StreamSink | PackSink,
    storing: Storing,
    limits: Limits,
    on_data: Callable[[], None],
) -> Batch:
    if offer.chunk_bytes > len(window.memory):
        raise ProtocolError(f"{session.qp.peer_host} offered chunks larger than the window")
    async with patience(session, limits.idle_seconds):
        await session.say(Accept(window.mr.remote, session.joined.token))
    most_bytes = limits.bytes if offer.bytes is None else offer.bytes
    most_bytes += _MESSAGE_BYTES
    idle = until_idle(session, limits.idle_seconds, storing.progress, most_bytes)
    done = await storing.run(idle)
    on_data()
    batch = sink.finish(done)
    async with patience(session, limits.idle_seconds):
        await session.say(Stored())
    return batch
