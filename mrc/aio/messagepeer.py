# SPDX-License-Identifier: Apache-2.0
"""The peer of a QP that carries messages: opened with the QP, ended with it."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import Self

from mrc.binding import messages
from mrc.binding.messages import MessageOpening
from mrc.binding.native import Command
from mrc.binding.verbs import QueuePair
from mrc.datapath.dispatch import Dispatcher
from mrc.errors import MrcError
from mrc.exchange.oob import Hello, Inbox

_LOOK_SECONDS = 0.001  # between two looks at what is still on its way, the first time
_LONGEST_LOOK_SECONDS = 0.02


class MessagePeer:
    """A peer for messages, by its number in the datapath."""

    def __init__(
        self, dispatcher: Dispatcher, number: int, inbox: Inbox, *, kept: bool = False
    ) -> None:
        """`kept`: it is its program's, which also forgets it."""
        self._dispatcher = dispatcher
        self.number = number
        self.inbox = inbox
        """for the other side"""
        self._kept = kept
        self._ended = False

    @classmethod
    async def open(cls, dispatcher: Dispatcher, queue: QueuePair, max_wimm: int) -> Self:
        """Gives the completions of the QP to messages; raises MrcError."""
        opening = MessageOpening(queue.qpn, queue.sq_depth, max_wimm)
        number = await dispatcher.call(opening.command, f"QP {queue.qpn:#x}: messages")
        return cls(dispatcher, number, Inbox(*opening.inbox))

    async def connect(self, peer: Hello) -> None:
        """The QP is in RTS: messages may go."""
        inbox = peer.attributes.inbox
        assert inbox is not None
        limit = peer.attributes.max_wimm
        command = messages.connect(self.number, inbox.address, inbox.rkey, limit)
        await self._dispatcher.call(command, "messages")

    async def until_idle(self) -> None:
        """Returns when all that was sent has arrived at the peer."""
        pause = _LOOK_SECONDS
        while not self._ended and not await self._dispatcher.call(
            messages.idle(self.number), "messages"
        ):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)

    def fail(self) -> None:
        """Ends all operations with this peer."""
        self._tell(messages.fail(self.number, errno.ECONNRESET))

    def forget(self) -> None:
        """The QP is destroyed."""
        self._ended = True
        if not self._kept:
            self._tell(messages.close(self.number))

    def _tell(self, command: Command) -> None:
        with suppress(MrcError):  # the Context is closed, and the datapath with it
            reply = self._dispatcher.call(command, "messages")
            reply.add_done_callback(lambda done: done.cancelled() or done.exception())
