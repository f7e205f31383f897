# SPDX-License-Identifier: Apache-2.0
"""One offer of a sender: what it says about it, and the receiver's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from mrc.errors import ProtocolError
from mrc.events import Immediate
from mrc.exchange.foreign import printable, shown
from mrc.results.transfer import FailedFile
from mrc.transfer.batch import Batch
from mrc.transfer.feed import Feed
from mrc.transfer.holes import Holes
from mrc.transfer.messages import (
    Accept,
    Asking,
    Done,
    Failed,
    Offer,
    Pack,
    Reading,
    Refuse,
    Stored,
    TransferMessage,
    failed_of,
)
from mrc.transfer.names import local_name, wire_name
from mrc.transfer.pace import Pace, lower
from mrc.transfer.plan import File
from mrc.transfer.session import Session, TransferError, VerificationError
from mrc.transfer.writing import READING_SECONDS, Writing

T = TypeVar("T")
NO_HOLES = Holes()


class RefusedError(TransferError):
    """The receiver cannot store this file; the session goes on."""


class How(Struct):
    """How to send.

    `on_resumed` is called for a file of which the receiver has so many bytes, `on_grew` for the
    path of one that was copied as it was at its begin, `on_failed` for each file or folder that is
    not copied. `waiting` surrounds the time in which the receiver asks its user about this sender.
    """

    keep_meta: bool = True
    resume: bool = True
    on_resumed: Callable[[File, int], None] = lambda file, size: None
    on_grew: Callable[[str], None] = lambda path: None
    on_failed: Callable[[FailedFile], None] = lambda failed: None
    update: bool = False  # leave out files that the receiver has with the same size and date
    rate: float = 0.0  # bits per second at most; 0: no limit
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    stored_chunks: int = 0  # of the last file, as far as the receiver has said; 0 if it keeps none
    kept_chunks: int = 0  # of these, those of an earlier transfer
    part: tuple[int, Batch] | None = None  # the first entries of a pack that failed, all stored

    def begin(self) -> None:
        """Another offer begins."""
        self.stored_chunks, self.kept_chunks, self.part = 0, 0, None


class Offering:
    """A file or a pack, from its offer to the receiver's answer. A pack has no `path`, but the
    names of its `entries`.
    """

    def __init__(
        self,
        session: Session,
        how: How,
        name: str = "",
        path: str = "",
        entries: Collection[str] = (),
    ) -> None:
        self._session = session
        self._entries = frozenset(entries)
        self._how = how
        self._name = name
        self._path = path
        self._accepted = self._takes_reading = False
        self._chunks = 0
        self.refused: set[str] = set()
        """names of files of the pack that the receiver cannot store"""

    async def offer(self, offer: Offer | Pack) -> Accept:
        await self._session.say(offer)
        reply = await self.reply(Accept)
        self._accepted = True
        return reply

    async def reply(self, kind: type[T]) -> T:
        """The answer of this kind, perhaps after the receiver has asked its user."""
        reply = await self._hear()
        if isinstance(reply, Asking):
            with self._how.waiting():
                reply = await self._hear()
        if not isinstance(reply, kind):
            peer = self._session.qp.peer_host
            raise ProtocolError(f"{peer} answered an offer with an unexpected message")
        return reply

    async def write(
        self, accept: Accept, feed: Feed | None, begin: int = 0, holes: Holes = NO_HOLES
    ) -> None:
        """Writes the chunks from `begin` on. An empty file has no feed."""
        self._takes_reading = accept.reading
        if feed is None:
            return
        pace = Pace(lower(self._how.rate, accept.rate))
        writing = Writing(self._session, accept, feed, begin, holes, pace, self._answer)
        try:
            await writing.run()
        finally:
            self._chunks, self._how.stored_chunks = writing.chunks, writing.stored
            self._how.kept_chunks = begin
        if writing.answer is not None:
            error = self._refusal(writing.answer)
            if isinstance(error, RefusedError):
                await self._session.say(Done("", self._chunks, "the receiver refused it"))
            raise error

    async def reading(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which reads from a disk: the receiver hears of it."""
        watchers = [self._tell_reading()] if self._takes_reading else []
        return await self._session.watched(work, *watchers)

    async def _tell_reading(self) -> NoReturn:
        while True:
            await asyncio.sleep(READING_SECONDS)
            await self._session.say(Reading())

    async def finish(self, digest: str) -> None:
        """All chunks are written: returns when the receiver has stored all of it."""
        await self._session.say(Done(digest, self._chunks))
        with self._session.waiting.on("storing"):
            answer = await self._hear()
        if not isinstance(answer, Stored):
            peer = self._session.qp.peer_host
            raise ProtocolError(f"{peer} did not confirm that it stored the file")

    async def give_up(self, error: str) -> None:
        """The file cannot be read, or not to its end."""
        self._how.on_failed(FailedFile(self._name, error, "sender"))
        if not self._accepted:
            await tell_failed(self._session, [(self._name, error)])
            return
        await self._session.say(Done("", self._chunks, error))
        try:
            await self._hear()
        except RefusedError:
            pass  # the receiver cannot store it either

    async def _hear(self) -> TransferMessage:
        """The receiver's next message; raises TransferError if it refuses."""
        while True:
            message = await self._session.hear()
            if isinstance(message, Immediate):
                continue  # credit after the last chunk
            answer = self._answer(message)
            if isinstance(answer, Refuse):
                raise self._refusal(answer)
            if answer is not None:
                return answer

    def _answer(self, message: TransferMessage) -> TransferMessage | None:
        """Takes the failed files of a pack; returns any other message."""
        if not isinstance(message, Failed):
            return message
        for each in message.files:
            name = local_name(each.name)
            if name not in self._entries:
                peer = self._session.qp.peer_host
                raise ProtocolError(f"{peer} cannot store a file that it was not sent")
            self.refused.add(name)
            self._how.on_failed(FailedFile(name, each.error, "receiver"))
        return None

    def _refusal(self, message: TransferMessage) -> TransferError | ProtocolError:
        """The error for an answer that ends the file before its end."""
        host = self._session.qp.peer_host
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
                return RefusedError(cause)
        self._how.stored_chunks = self._how.kept_chunks = 0
        return TransferError(f"{host} refused {'the file' if self._path else 'the files'}: {cause}")


async def tell_failed(session: Session, failed: list[tuple[str, str]]) -> None:
    """Names files that are not offered, each with its error."""
    for message in failed_of((wire_name(name), error) for name, error in failed):
        await session.say(message)
