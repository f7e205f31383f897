# SPDX-License-Identifier: Apache-2.0
"""A connected QP: awaitable writes, immediates and events as streams, orderly close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from mrc.aio.end import End
from mrc.aio.queries import ev_info
from mrc.connect.profiles import CcProfile, EvProfile
from mrc.engine.dispatch import Dispatcher
from mrc.engine.memory import MR, RemoteMemory
from mrc.engine.queue_pair import Write, Writes, pieces, size_of
from mrc.engine.streams import timed, within
from mrc.enums import EvState, Seal
from mrc.errors import StateError, reason_of
from mrc.events import Completion, EvInfo, Immediate, ProbeResult, QpEvent, QpInfo


class QP:
    """One QP, ready to send and receive. An async context manager that closes it.

    Any number of writes may be outstanding; writes beyond the depth of the send queue wait for a
    free place. If a write is cancelled or times out after the engine has taken it, the engine still
    carries it out.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        end.face = self

    def __repr__(self) -> str:
        return f"<{self._end}, {self._end.queue.state.name}>"

    # ---- Properties -----------------------------------------------------------------------

    @property
    def qpn(self) -> int:
        """The local QP number."""
        return self._end.queue.qpn

    @property
    def peer_host(self) -> str:
        """The peer, for a line of text: what `connect` was called with; at a listener `peer_name`,
        quoted if it cannot be the name of a host.
        """
        return self._end.peer_host

    @property
    def peer_identity(self) -> str:
        """What the peer has proved: a fingerprint, a SPIFFE name, or how ("code", "secret").

        Empty: nothing, because `ContextConfig.security` is None.
        """
        return self._end.channel.peer_identity

    @property
    def message_peer(self) -> int:
        """The number of the peer for messages; raises StateError without `messages=True`."""
        if self._end.messages is None:
            raise StateError(f"{self._end} carries no messages: connect it with messages=True")
        return self._end.messages.number

    @property
    def _engine(self) -> Dispatcher:
        return self._end.dispatcher

    def _carries_messages_of(self, number: int) -> bool:
        messages = self._end.messages
        return messages is not None and messages.number == number and not self.closed

    @property
    def seal(self) -> Seal:
        """How the packets of this QP are sealed."""
        return self._end.queue.seal

    @property
    def peer_name(self) -> str:
        """The name of the peer's host, as the peer sent it."""
        return self._end.peer.host

    @property
    def peer_address(self) -> str:
        """The address of the peer on the TCP connection of the exchange."""
        return self._end.channel.remote

    @property
    def private(self) -> dict[str, Any]:
        """The private data that the peer passed to its `connect` or `listen`."""
        return self._end.peer.private

    @property
    def path_mtu(self) -> int:
        """The largest payload of a packet on this QP, in bytes."""
        return self._end.path_mtu

    @property
    def mpr(self) -> int:
        """The window of this end: the most PSNs in flight."""
        return self._end.window

    @property
    def planes(self) -> tuple[int, ...]:
        """The planes that the EVs of this QP use, in order."""
        return self._end.planes

    @property
    def ev_profile(self) -> EvProfile:
        """The EV profile of this QP."""
        return self._end.ev_profile

    @property
    def cc_profile(self) -> CcProfile:
        """The CC profile of this QP."""
        return self._end.cc_profile

    @property
    def peer_has_gone(self) -> bool:
        """True once the peer has closed the QP, or its process has ended."""
        return self._end.peer_gone.is_set()

    async def until_peer_gone(self) -> None:
        """Returns when the peer has closed the QP, or its process has ended. Raises StateError when
        this side closes first.
        """
        await self._end.until_peer_gone()

    @property
    def closed(self) -> bool:
        """True once this end has begun to close the QP."""
        return self._end.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end.close(orderly=error is None, reason=reason_of(error))

    # ---- Writes ---------------------------------------------------------------------------

    async def write(
        self,
        mr: MR,
        remote: RemoteMemory,
        *,
        length: int | None = None,
        local_offset: int = 0,
        remote_offset: int = 0,
        timeout: float | None = None,
    ) -> Completion:
        """Writes a range of `mr` into the peer's memory; returns when the peer has all of it.

        `length` is in bytes and defaults to the rest of `mr`. A range above 4 GiB - 1 byte is sent
        as several messages. Raises CompletionError when the write fails, PeerGoneError when the
        peer ends before it has answered, TimeoutError after `timeout` seconds.
        """
        return await self._write(
            Write(mr, remote, None, length, local_offset, remote_offset), timeout
        )

    async def write_imm(
        self,
        mr: MR | None = None,
        remote: RemoteMemory | None = None,
        *,
        imm: int,
        length: int | None = None,
        local_offset: int = 0,
        remote_offset: int = 0,
        timeout: float | None = None,
    ) -> Completion:
        """As `write`; then the peer gets the 32-bit `imm`, in order. Without `mr`: no bytes."""
        return await self._write(
            Write(mr, remote, imm, length, local_offset, remote_offset), timeout
        )

    def post(
        self,
        mr: MR | None = None,
        remote: RemoteMemory | None = None,
        *,
        imm: int | None = None,
        length: int | None = None,
        local_offset: int = 0,
        remote_offset: int = 0,
    ) -> asyncio.Future[Completion]:
        """Starts a `write`, or with `imm` a `write_imm`, and returns the future of its completion.

        A polled Context sends at once, without another turn of the event loop. Raises
        QueueFullError when the send queue is full (`write` waits instead), and ArgumentError for
        more than 4 GiB - 1 byte.
        """
        write = Write(mr, remote, imm, length, local_offset, remote_offset)
        return self._end.post(self._writes((write,)))

    def post_many(self, writes: Iterable[Write]) -> asyncio.Future[Completion]:
        """Starts a batch of writes and returns the future of their common completion.

        Its `bytes` is the sum of all writes. Raises QueueFullError when the send queue has too few
        free places, and ArgumentError when a write is wrong; then it starts none of them. The
        future raises the error of the first write that fails.
        """
        return self._end.post(self._writes(writes))

    def post_scattered(
        self,
        mr: MR,
        remote: RemoteMemory,
        *,
        length: int,
        local_offsets: Sequence[int],
        remote_offsets: Sequence[int],
    ) -> asyncio.Future[Completion]:
        """As `post_many`, for a write of `length` bytes at each pair of offsets.

        It costs a tenth of the time, because Python makes no object for a write.
        """
        wr_id = self._end.dispatcher.next_id()
        return self._end.post(
            Writes.scattered(self.qpn, wr_id, mr, remote, length, local_offsets, remote_offsets)
        )

    async def _write(self, write: Write, timeout: float | None) -> Completion:
        if timeout is not None:
            async with within(timeout):
                return await self._write(write, None)
        parts = [self._writes((each,)) for each in pieces(write)]
        if len(parts) == 1:
            return await self._end.post_in_turn(parts[0])
        done = await asyncio.gather(*map(self._end.post_in_turn, parts))
        return done[-1]._replace(bytes=size_of(write))

    def _writes(self, asked: Iterable[Write]) -> Writes:
        return Writes.of(self.qpn, self._end.dispatcher.next_id(), asked)

    # ---- Streams --------------------------------------------------------------------------

    def immediates(self, *, timeout: float | None = None) -> AsyncIterator[Immediate]:
        """The peer's immediates, in the order in which the peer posted them: a queue.

        An immediate goes to one reader, once. A new iterator goes on where the others stopped.
        Ends when either side closes the QP. Raises CompletionError when the QP fails, PeerGoneError
        when the peer's process ends, or its side by an error, which is named; PathError when the
        peer has lost all paths, or the path MTU became smaller; ProtocolError when the peer breaks
        the exchange, QueueFullError when `Queues.max_unread` were unread, and
        TimeoutError when none arrives within `timeout` seconds.
        """
        return timed(self._end.immediates, timeout)

    def events(self, *, timeout: float | None = None) -> AsyncIterator[QpEvent]:
        """Events of the QP's EVs, planes and ports, and its failure, in order: a log.

        Every iterator starts with the first event of the QP and gets all, whatever others read; so
        call this once, and `anext` of the same iterator for each event. It ends when the QP fails
        or is closed. The QP keeps the newest 4096 events; an iterator that falls
        behind gets an EventsLost with the number of missed events. Raises TimeoutError when no
        event comes within `timeout` seconds.
        """
        return timed(self._end.events.reader(), timeout)

    # ---- State ----------------------------------------------------------------------------

    async def query(self) -> QpInfo:
        """A snapshot of the QP and its planes."""
        return await self._end.query()

    async def evs(self) -> tuple[EvInfo, ...]:
        """A snapshot of every EV and its path."""
        command, infos = self._end.queue.query_evs(len(self._end.evs))
        count = await self._end.dispatcher.call(command, f"QP {self.qpn:#x}: query EVs")
        assert count == len(self._end.evs)
        return tuple(ev_info(i, ev, infos[i]) for i, ev in enumerate(self._end.evs))

    async def probe_ev(self, ev: int, *, payload: int = 0, timeout: float = 0.25) -> ProbeResult:
        """Sends one EV probe, as large as a data packet of `payload` bytes (0: small).

        `timeout` is in seconds. Raises ArgumentError when there is no such EV or payload.
        """
        return await self._end.controller.probe(ev, payload, timeout)

    async def probe_evs(
        self,
        evs: Iterable[int | str] | None = None,
        *,
        payload: int = 0,
        timeout: float = 0.25,
        concurrency: int = 32,
    ) -> tuple[ProbeResult, ...]:
        """Sends a batch of EV probes, `concurrency` at a time, and returns one result for each.

        `evs` are indices, names of paths or patterns; None probes all. Each EV is probed once, in
        the given order. `payload` is in bytes (0: small probes), `timeout` in seconds per probe.
        """
        indices = self._end.controller.named(*evs) if evs is not None else range(len(self._end.evs))
        return await self._end.controller.probe_all(indices, payload, timeout, concurrency)

    async def deny(self, *evs: int | str) -> tuple[int, ...]:
        """Denies EVs, by index, name of the path or pattern, until `allow`; returns their indices.

        The QP sends no more packets on a DENIED EV; packets in flight may still be acknowledged.
        A QP whose EVs are all DENIED fails as if it had lost all its paths. Raises ArgumentError
        when a name matches no EV.
        """
        return await self._end.controller.deny(*evs)

    async def allow(self, *evs: int | str) -> tuple[int, ...]:
        """Ends `deny`: DENIED EVs become GOOD; other EVs keep their state. Returns their indices.

        Raises StateError when the EV profile denies one of them.
        """
        return await self._end.controller.allow(*evs)

    async def set_ev_state(self, ev: int, state: EvState) -> None:
        """Sets an EV to DENIED, GOOD (ends DENIED) or ASSUMED_BAD (declares it lost)."""
        await self._end.controller.set_state(ev, state)

    async def set_mpr(self, mpr: int) -> None:
        """Narrows or widens the window, in PSNs, that this end grants the peer from now on.

        `mpr` is a multiple of 128, at most `Queues.mpr`, or at most 4096 if that is 0. Both
        sides must have set `dynamic_mpr`.
        """
        await self._end.dispatcher.call(self._end.queue.set_mpr(mpr), f"QP {self.qpn:#x}: set MPR")

    # ---- Close ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends the QP in order; outstanding writes fail with WR_FLUSH_ERR.

        The engine answers the peer's packets until the peer needs no more answers, for at most the
        configured `linger`. The peer needs this to complete its last writes.
        """
        await self._end.close(orderly=True)

    async def abort(self, reason: str = "") -> None:
        """Ends the QP at once and tells the peer the reason; without one, the peer sees the same as
        if this process had died. An exception that leaves `async with` is such a reason.
        """
        await self._end.close(orderly=False, reason=reason)
