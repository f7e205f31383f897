# SPDX-License-Identifier: Apache-2.0
"""The sending end: offers files, hashes and writes them, and handles the receiver's replies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

from msgspec import Struct, field

from mrc.binding.verbs import MR
from mrc.enums import Access
from mrc.errors import MrcError, ProtocolError
from mrc.results.transfer import FailedFile, TransferredFile
from mrc.transfer.batch import Batch
from mrc.transfer.feed import UNKNOWN, Filled, Mapped
from mrc.transfer.folders import SECOND_NS, Meta
from mrc.transfer.holes import Holes, holes_of
from mrc.transfer.messages import (
    CHUNK_BYTES,
    Abort,
    Begin,
    Bye,
    Digest,
    Looks,
    Mine,
    Offer,
    Pack,
    Unchanged,
    compare_of,
)  # fmt: skip
from mrc.transfer.names import FileError, wire_name
from mrc.transfer.offering import How, Offering, RefusedError, tell_failed
from mrc.transfer.packing import Packing
from mrc.transfer.pipes import PipeReader
from mrc.transfer.plan import Entry, File, FolderEnd, Link, Plan, Stdin
from mrc.transfer.populate import STEP_BYTES, Ahead, populate_for_reads
from mrc.transfer.session import Session
from mrc.transfer.source import Source
from mrc.transfer.threads import in_thread

_ZEROS = memoryview(bytes(CHUNK_BYTES))
AHEAD_BYTES = 256 << 20  # hashed ahead of the writes; occupies page cache, not process memory


class _Digests(Struct):
    """The digest of a file as far as it was read, and after each chunk."""

    whole: Digest = field(default_factory=Digest)
    after: list[bytes] = field(default_factory=list)


assert STEP_BYTES == CHUNK_BYTES, "a digest after each chunk"


async def send_plan(session: Session, plan: Plan, how: How | None = None) -> AsyncIterator[Batch]:
    """Sends files in order and yields each when the receiver has stored and verified it.

    A file that one end cannot read or store is reported and left out. `plan` notes what is sent, so
    that another session can go on. Raises TransferError when the receiver stops.
    """
    how = how or How()
    await tell_failed(session, [(each.name, each.error) for each in plan.failed])
    if how.update:
        await _leave_out_unchanged(session, plan, how)
    for run in plan.runs():
        how.begin()
        release = AsyncExitStack()
        # On failure the engine may still read the memory, so it is kept until the QP has ended.
        session.held.push_async_callback(release.aclose)
        try:
            sent = await _send_run(session, plan, run, release, how)
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
        await release.aclose()  # after the yield, because unmapping takes a while
    try:
        await session.say(Bye())
    except MrcError:
        pass  # all files are stored, so the transfer succeeded; our close replaces the bye


async def _leave_out_unchanged(session: Session, plan: Plan, how: How) -> None:
    files = [entry for entry in plan.entries[plan.sent :] if isinstance(entry, File)]
    looks = (
        Looks(wire_name(file.name), file.bytes, divmod(file.mtime_ns, SECOND_NS)) for file in files
    )
    unchanged: set[File] = set()
    begin = 0
    for message in compare_of(looks):
        await session.say(message)
        reply = await Offering(session, how).reply(Unchanged)
        asked = files[begin : begin + len(message.files)]
        unchanged.update(asked[at] for at in reply.positions if at < len(asked))
        begin += len(asked)
    plan.leave_out(unchanged)


async def _send_run(
    session: Session, plan: Plan, run: list[Entry], release: AsyncExitStack, how: How
) -> Batch | None:
    """None: the file could not be copied."""
    match run:
        case [File() | Stdin() as entry]:
            path = entry.path if isinstance(entry, File) else "standard input"
            offering = Offering(session, how, entry.name, path)
        case _:
            offering = Offering(session, how, entries=[each.name for each in run])
            return await _send_pack(session, offering, run, release, how)
    try:
        if isinstance(entry, File):
            return await _send_file(session, plan, offering, entry, release, how)
        return await _send_stdin(session, offering, entry, release)
    except RefusedError as error:
        how.on_failed(FailedFile(entry.name, str(error), "receiver"))
    except FileError as error:
        await offering.give_up(str(error))
    return None


async def _send_file(
    session: Session,
    plan: Plan,
    offering: Offering,
    file: File,
    release: AsyncExitStack,
    how: How,
) -> Batch:
    """Sends a file from its mapping, without a copy."""
    source = release.enter_context(Source(file.path, follow=file.follow))
    mr = None
    if source.bytes:
        registered = session.ctx.register(source.map, access=Access.LOCAL_READ)
        mr = await release.enter_async_context(registered)
    digests = _Digests()
    meta = Meta(source.mode, source.mtime_ns) if how.keep_meta else Meta()
    name, size = wire_name(file.name), source.bytes
    sparse = source.sparse
    holes = holes_of(source.fd, size, CHUNK_BYTES) if sparse else Holes()
    offer = Offer(name, size, CHUNK_BYTES, sparse, meta.mode, meta.mtime, how.resume, holes.ranges)
    # Hashing starts before the offer, so it runs while the receiver prepares.
    async with Ahead(size, partial(_prepare, source, mr, digests, holes), AHEAD_BYTES) as ahead:
        accept = await offering.offer(offer)
        feed = None if mr is None else Mapped(mr, ahead, holes)
        begin = 0
        if accept.kept and mr is not None:
            kept = Mapped(mr, ahead, holes)
            begin = await _begin(session, offering, accept.kept, kept, digests)
        resumed_bytes = min(begin * CHUNK_BYTES, size)
        if feed is not None and begin:
            await feed.skip(begin)
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
    return Batch.of(TransferredFile(file.name, size, digest, file.path), resumed_bytes, hole_bytes)


async def _begin(
    session: Session, offering: Offering, kept: int, feed: Mapped, digests: _Digests
) -> int:
    """Where the chunks begin: behind those that the receiver has kept, if they are ours."""
    if kept > -(-feed.left_bytes() // CHUNK_BYTES):
        raise ProtocolError(f"{session.qp.peer_host} has kept more chunks than there are")
    await session.watched(feed.skip(kept))
    await session.say(Mine(digests.after[kept - 1].hex()))
    begin = (await offering.reply(Begin)).chunk
    if begin not in (0, kept):
        raise ProtocolError(f"{session.qp.peer_host} goes on with a chunk that it has not kept")
    return begin


async def _send_stdin(
    session: Session, offering: Offering, stdin: Stdin, release: AsyncExitStack
) -> Batch:
    pipe = release.enter_context(PipeReader(sys.stdin.fileno()))
    filled = Filled(pipe.fill, lambda: UNKNOWN, pipe.stop)
    offer = Offer(wire_name(stdin.name), None, CHUNK_BYTES)
    async with await filled.open(session.ctx, release) as feed:
        accept = await offering.offer(offer)
        await offering.write(accept, feed)
    digest = pipe.digest.hexdigest()
    await offering.finish(digest)
    return Batch.of(TransferredFile(stdin.name, pipe.bytes, digest, "-"))


async def _send_pack(
    session: Session, offering: Offering, entries: list[Entry], release: AsyncExitStack, how: How
) -> Batch:
    packing = Packing(entries, keep_meta=how.keep_meta)
    release.callback(packing.close)
    filled = Filled(packing.fill, packing.left_bytes, packing.stop)
    # Before a thread fills the first chunk.
    offer = Pack(len(entries), packing.left_bytes(), CHUNK_BYTES, how.resume)
    try:
        async with await filled.open(session.ctx, release) as feed:
            accept = await offering.offer(offer)
            await offering.write(accept, feed)
        await offering.finish("")
    except MrcError:
        if count := packing.complete(how.stored_chunks):
            how.part = count, _packed(packing, offering, entries[:count], how)
        raise
    return _packed(packing, offering, entries, how)


def _packed(packing: Packing, offering: Offering, entries: list[Entry], how: How) -> Batch:
    """The first entries of a pack, as far as both ends could copy them; tells of the others."""
    names = {entry.name for entry in entries}
    for failed in (each for each in packing.failed if each.name in names):
        how.on_failed(failed)
    names -= offering.refused
    for name in names & packing.grown.keys():
        how.on_grew(packing.grown[name])
    files = tuple(file for file in packing.files if file.name in names)
    folders = sum(isinstance(entry, FolderEnd) and entry.name in names for entry in entries)
    links = sum(isinstance(entry, Link) and entry.name in names for entry in entries)
    size = sum(file.bytes for file in files)
    return Batch(files, len(files), folders, size, packed=True, links=links)


def _prepare(
    source: Source, mr: MR | None, digests: _Digests, holes: Holes, offset: int, length: int
) -> None:
    """Populates and hashes a part of the mapping.

    The mapping is registered, so a truncated part reads as zeros and does not raise SIGBUS.
    """
    assert mr is not None, "an empty file needs no preparation"
    if holes.left(offset // CHUNK_BYTES):
        digests.whole.update(_ZEROS[:length])
    else:
        populate_for_reads(mr.address + offset, length)
        with memoryview(source.map) as whole:
            digests.whole.update(whole[offset : offset + length])
    digests.after.append(digests.whole.digest())
