# SPDX-License-Identifier: Apache-2.0
"""The end of a QP whose engine is in a program of this host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from msgspec import to_builtins

from mrc.agent.parameters import Wanted, emulated_in
from mrc.agent.resume import note_of, read_note
from mrc.aio.end import End
from mrc.aio.local import Local, Terms
from mrc.enums import QpState
from mrc.errors import Kind, MrcError, PeerGoneError
from mrc.exchange.oob import Channel
from mrc.running import Limit

_LOOK_SECONDS = 0.002  # between two looks at outstanding work requests, the first time
_LONGEST_LOOK_SECONDS = 0.05


class ProgramEnd(End):
    """One end of a QP. The TCP connection joins two agents, not two programs: a QP outlives it."""

    def __init__(self, wanted: Wanted, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.wanted = wanted
        self._tell: Callable[[str], None] | None = None
        self._peer_reason = ""
        self.on_hangup: Callable[[], None] = lambda: None
        """called when the connection to the peer's agent is lost"""
        self.on_failure: Callable[[str], None] = lambda reason: None
        """called with the reason when the agent has found out that the QP cannot go on"""
        self._joined = asyncio.Event()  # the two agents are connected
        if not isinstance(self.channel, LostChannel):
            self._joined.set()

    def on_peer_gone(self, tell: Callable[[str], None]) -> None:
        """`tell` is called when the peer has closed the QP, or its program has ended, with the
        reason if the peer has named one.

        That may have been before the program here was told that the QP is ready.
        """
        self._tell = tell
        if self.peer_gone.is_set():
            tell(self._peer_reason)
            self._fail_messages()

    @property
    def may_wait(self) -> bool:
        """Work requests are the program's own: its engine knows them."""
        return True

    def fail(self, error: MrcError) -> None:
        """As that of a Context's QP; the program gets the reason before its QP ends."""
        if not self.closed:
            self.on_failure(str(error))
        super().fail(error)

    def ready(self) -> bytes:
        """What the program is told when both ends are in RTS: a struct mrc_agent_ready, a note."""
        fields = {
            "qpn": self.queue.qpn,
            "path_mtu": self.path_mtu,
            "mpr": self.window,
            "max_wimm": min(self.queue.max_wimm, self.peer.attributes.max_wimm),
        }
        if (emulated := emulated_in(self.peer.private)) is not None:
            fields |= to_builtins(emulated)
        channel = self.channel
        note = note_of(
            channel.called, channel.remote, self.path_mtu, self.window, self.evs, self.peer
        )
        return struct_bytes("mrc_agent_ready", fields) + note

    async def _on_hangup(self, error: MrcError) -> None:
        if isinstance(error, PeerGoneError):
            self._look_again()
        else:
            self._joined.clear()
            await super()._on_hangup(error)

    def _on_lost(self, error: OSError) -> None:
        super()._on_lost(error)
        self._look_again()

    def _look_again(self) -> None:
        self._joined.clear()
        if not self.peer_gone.is_set():
            self.on_hangup()

    def _on_gone(self, error: MrcError | None) -> None:
        if not (self._peer_reason or error is None or isinstance(error, PeerGoneError)):
            self._peer_reason = str(error)
        if not self.peer_gone.is_set() and self._tell is not None:
            # Before its messages fail, so that their errors name the reason.
            self._tell(self._peer_reason)
        super()._on_gone(error)

    def _fail_messages(self) -> None:
        if self._tell is not None:  # else later: first the program hears why
            super()._fail_messages()

    def _without_bye(self, reason: str = "") -> PeerGoneError:
        self._peer_reason = reason
        return super()._without_bye(reason)

    async def _until_idle(self) -> None:
        pause = _LOOK_SECONDS
        while self.queue.state is QpState.RTS and (await self.query()).outstanding:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)

    @property
    def joined(self) -> bool:
        """Whether the two agents are connected."""
        return self._joined.is_set()

    def on_qp_gone(self) -> None:
        """The QP at the peer, or its program, has ended."""
        if not self.peer_gone.is_set():
            self._on_gone(self._without_bye())

    def rejoin(self, channel: Channel) -> None:
        """The two agents are connected again."""
        if self._watcher is not None:
            self._watcher.cancel()
        self.channel.abort()
        self.channel = channel
        self._bye_ok.clear()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        self._joined.set()

    async def _say_bye(self) -> bool:
        if not self.peer_gone.is_set():
            with suppress(TimeoutError):  # then the peer finds out by its own timeouts
                async with Limit(self._config.timeouts.linger):
                    await self._joined.wait()
        return await super()._say_bye()

    async def tell_gone(self, reason: str) -> None:
        """Tells the peer's agent that the program here has ended; `reason`: why, if it is known.

        A program may end because its QP has failed: then this is the reason.
        """
        await self._send_gone(reason or self.fault)  # False: nobody is there to be told


class ProgramEndedError(MrcError):
    """What ends the connects of a program that has ended without giving a reason."""

    kind = Kind.ENDED


class LostChannel(Channel):
    """In place of the connection to an agent that has to be found again."""

    def __init__(self, called: str, remote: str) -> None:
        self.called = called
        self.remote = remote
        self.secured = False
        self.peer_identity = ""
        self._at_end = []

    async def send(self, kind: str, /, **fields: Any) -> NoReturn:
        """Raises PeerGoneError."""
        raise PeerGoneError("the peer's agent is not connected")

    async def receive(self, limit: int = 0) -> NoReturn:
        """Raises PeerGoneError."""
        raise PeerGoneError("the peer's agent is not connected")

    async def close(self) -> None:
        """Nothing is open."""
        self._end()

    def abort(self) -> None:
        """Nothing is open."""
        self._end()


async def taken_up(wanted: Wanted, local: Local, terms: Terms, note: bytes) -> ProgramEnd:
    """The end of a QP that was connected under a former agent, by its note; raises MrcError."""
    former = await asyncio.to_thread(read_note, note)  # a long one stops nobody else
    terms.ev_profile._take()
    terms.cc_profile._take()
    queue = wanted.queue(local.config)
    queue.state = QpState.RTS
    end = ProgramEnd(
        wanted, local.dispatcher, queue, former.evs, LostChannel(former.called, former.remote),
        former.hello, local.config, terms.ev_profile, terms.cc_profile,
        terms.peer(local.dispatcher) if terms.peer else None,
    )  # fmt: skip
    await end.controller.start()
    end.start(former.path_mtu, former.window)  # finds that its channel is lost
    return end
