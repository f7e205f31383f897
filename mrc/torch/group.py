# SPDX-License-Identifier: Apache-2.0
"""A group of processes: one QP between each two of them, made when first needed.

Each process has an address, which the processes exchange by means of their own (a store, a file).
The address contains a random token: only a process that knows it can connect. The QPs carry
messages (mrc.mailbox). Each process sends an empty message to each other process once a second:
a process that has nothing to send also notices when all paths are lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from mrc import mailbox
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.oob import Peer
from mrc.connect.parse import shown
from mrc.errors import (
    ArgumentError,
    CompletionError,
    ConnectError,
    ConnectRefusedError,
    MrcError,
    PeerGoneError,
    ProtocolError,
    StateError,
    reason_of,
)
from mrc.tasks import Limit, cancelled
from mrc.units import digits

logger = logging.getLogger("mrc.group")

TOKEN_BYTES = 16
_HEAD = struct.Struct(f"<{TOKEN_BYTES}sHB")
MAX_HOST_BYTES = 128
_SECRET_AT = _HEAD.size + MAX_HOST_BYTES
_SECRET_BYTES = 8
ADDRESS_BYTES = _SECRET_AT + _SECRET_BYTES
BEAT_SPACE = 0xFFFFFFFF  # of the empty messages
BEAT_SECONDS = 1.0
NOTE_BYTES = 1024  # longest note
_NOTE_TAG = 1  # of notes, in the space of the empty messages
_HOLDER = "holder"  # name of the tasks that keep a QP


class MemberAddress(Struct, frozen=True):
    """Where a process of the group listens."""

    token: bytes
    """Random bytes that name the process. Peers must know them."""
    host: str
    """A configured peer, a name or an IP address."""
    port: int
    """TCP port of its exchange."""
    secret: bytes = bytes(_SECRET_BYTES)
    """Names its secret without telling it; zeros: it has none."""

    def pack(self) -> bytes:
        """ADDRESS_BYTES bytes; raises ArgumentError for a long host name."""
        host = self.host.encode()
        if len(host) > MAX_HOST_BYTES:
            raise ArgumentError(f"host: {self.host!r:.60} exceeds {MAX_HOST_BYTES} bytes")
        head = _HEAD.pack(self.token, self.port, len(host)) + host
        return head.ljust(_SECRET_AT, b"\0") + self.secret

    @classmethod
    def unpack(cls, data: bytes) -> MemberAddress:
        """The inverse of `pack`; raises ProtocolError."""
        if len(data) < ADDRESS_BYTES:
            raise ProtocolError(f"the address of a peer has {len(data)} bytes, not {ADDRESS_BYTES}")
        token, port, length = _HEAD.unpack_from(data)
        name = data[_HEAD.size : _HEAD.size + length]
        try:
            host = name.decode()
        except UnicodeDecodeError:
            host = ""
        if not host.isprintable() or not host or not port or length > MAX_HOST_BYTES:
            raise ProtocolError(f"the address of a peer is wrong: host {shown(host)}, port {port}")
        return cls(token, host, port, data[_SECRET_AT:ADDRESS_BYTES])


class MemberEnd(Struct, frozen=True):
    """How a member has ended."""

    error: MrcError
    """Says why, with the name of its host."""
    died: bool
    """False: it closed the QP in order."""


class Member(Struct, frozen=True):
    """Another process, connected."""

    qp: QP
    ended: asyncio.Future[MemberEnd]
    """Done when the QP is closed or fails."""

    async def lost(self) -> MrcError | None:
        """The error that the QP is about to fail with, if it has got no answers for a while.

        The peer may have found all paths lost before this process, and so have ended.
        """
        if self.qp.closed or (await self.qp.info()).timeouts < mailbox.LOST_TIMEOUTS:
            return None
        return mailbox.paths_lost(self.qp.peer.host)


class Group:
    """The QPs of this process to the others. An async context manager."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        host: str,
        *,
        version: int,
        timeout: float = 30.0,
        beat_seconds: float = BEAT_SECONDS,
        remedy: str = "give all processes the same secret, or none",
        on_note: Callable[[Member, bytes], None] = lambda member, note: None,
    ) -> None:
        """`remedy` tells users what to do when secrets differ. `on_note` gets what other processes
        `tell`.
        """
        self._ctx = ctx
        self._private = {"group": name, "version": version}
        self._host = host
        self._timeout = timeout
        self._beat_seconds = beat_seconds
        self._remedy = remedy
        self._on_note = on_note
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._members: dict[bytes, asyncio.Future[Member]] = {}  # by token
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._beats = await self._held.enter_async_context(self._ctx.messages(BEAT_SPACE))
        self._listener = await self._held.enter_async_context(
            self._ctx.listen(
                None, 0, private=self._private, admit=self._admit, failed=self._on_failed,
                messages=True,
            )
        )  # fmt: skip
        self.address = MemberAddress(self._token, self._host, self._listener.port)
        security = self._ctx.config.security
        if security is not None and security.shared:
            secret = bytes.fromhex(security.secret_id)
            self.address = replace(self.address, secret=secret)
        self._start(self._accept())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Closes all QPs in order: their peers get what was sent."""
        self._ending.set()
        holders = [task for task in self._tasks if task.get_name() == _HOLDER]
        await asyncio.gather(*holders, return_exceptions=True)
        await cancelled(*self._tasks)
        await self._held.aclose()

    async def member(self, peer: MemberAddress) -> Member:
        """The process at this address. Of two processes, the one with the smaller token connects
        and the other waits for it. Raises the errors of `Context.connect`.
        """
        if peer.token == self._token:
            raise ArgumentError("peer: is the address of this process")
        self._check_secret(peer)
        new = peer.token not in self._members
        found = self._future(peer.token)
        if new and self._token < peer.token:
            self._start(self._connect(peer, found), _HOLDER)
        try:
            async with Limit(self._timeout):
                return await asyncio.shield(found)
        except TimeoutError:
            raise ConnectError(
                f"{peer.host} did not connect to this process within {digits(self._timeout)} s"
            ) from None

    def tell(self, member: Member, note: bytes) -> None:
        """Sends a note of at most NOTE_BYTES, which arrives unless the QP fails before."""

        async def send() -> None:
            with suppress(PeerGoneError, StateError):
                await self._beats.send(member.qp, note, tag=_NOTE_TAG)

        self._start(send())

    def _check_secret(self, peer: MemberAddress) -> None:
        """Both processes can tell from their addresses, so neither waits for the other."""
        if peer.secret == self.address.secret:
            return
        what = "has another secret than this process"
        if not any(self.address.secret):
            what = "has a secret and this process has none"
        elif not any(peer.secret):
            what = "has no secret and this process has one"
        raise ConnectError(f"{peer.host} {what}: {self._remedy}")

    def _future(self, token: bytes) -> asyncio.Future[Member]:
        if token not in self._members:
            self._members[token] = asyncio.get_running_loop().create_future()
        return self._members[token]

    def _start(self, work: Any, name: str = "") -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _knows(self, private: dict[str, Any]) -> bool:
        return secrets.compare_digest(str(private.get("to")).encode(), self._token.hex().encode())

    def _on_failed(self, peer: Peer, error: MrcError) -> None:
        """Another process cannot connect: this one does not wait for it any longer."""
        private = peer.private
        token = _token_in(private)
        found = self._members.get(token)
        if not self._knows(private) or found is None or found.done():
            return
        reason = error.reason if isinstance(error, ConnectRefusedError) else str(error)
        del self._members[token]  # the next use tries again
        found.set_exception(ConnectError(f"it could not connect to this process: {reason}"))
        found.exception()  # whoever waits has it; otherwise asyncio would log it

    def _admit(self, peer: Peer) -> bool:
        private = peer.private
        if not self._knows(private):
            raise ConnectError("this process belongs to another group")
        if private.get("version") != self._private["version"]:
            raise ConnectError("this process has another version: install the same mrc everywhere")
        return True

    async def _connect(self, peer: MemberAddress, found: asyncio.Future[Member]) -> None:
        private = {**self._private, "to": peer.token.hex(), "from": self._token.hex()}
        try:
            opening = self._ctx.connect(
                peer.host, peer.port, private=private, timeout=self._timeout, messages=True
            )
            async with opening as qp:
                await self._hold(peer.token, qp, found)
        except (MrcError, OSError) as error:
            self._members.pop(peer.token, None)  # the next use tries again
            if not found.done():
                found.set_exception(error)
                found.exception()  # whoever waits has it; otherwise asyncio would log it

    async def _accept(self) -> None:
        async for qp in self._listener:
            self._start(self._serve(qp), _HOLDER)

    async def _serve(self, qp: QP) -> None:
        token = _token_in(qp.peer.private)
        if len(token) != TOKEN_BYTES or self._future(token).done():
            logger.warning("%s sent a wrong token, or connected twice", qp.peer.host)
            await qp.abort("a wrong token, or a second connection")
            return
        async with qp:
            await self._hold(token, qp, self._future(token))

    async def _hold(self, token: bytes, qp: QP, found: asyncio.Future[Member]) -> None:
        """Keeps the QP until the group ends, or the QP fails. A peer that closed it in order does
        not come back, but what it delivered may be received later.
        """
        ended = asyncio.get_running_loop().create_future()
        member = Member(qp, ended)
        found.set_result(member)
        taking = (
            asyncio.create_task(self._take(member, 0, bytearray())),
            asyncio.create_task(self._take(member, _NOTE_TAG, bytearray(NOTE_BYTES))),
        )
        beating = asyncio.create_task(self._send_beats(qp))
        following = asyncio.create_task(_end_of(member, taking))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait((following, ending), return_when=asyncio.FIRST_COMPLETED)
            if following.done() and not self._ending.is_set():
                end = following.result()
                ended.set_result(end)
                if end.died:
                    del self._members[token]  # the next use connects again
                    await qp.abort(reason_of(end.error))
                else:
                    await ending
        finally:
            await cancelled(following, ending, beating, *taking)

    async def _send_beats(self, qp: QP) -> None:
        """If no path is left, a beat makes the QP fail as any other message would."""
        with suppress(PeerGoneError, StateError):
            while True:
                await self._beats.send(qp, b"")
                await asyncio.sleep(self._beat_seconds)

    async def _take(self, member: Member, tag: int, room: bytearray) -> None:
        """Receives beats, or notes."""
        with suppress(PeerGoneError, StateError):
            while True:
                note = await self._beats.recv(room, member.qp, tag=tag)
                if tag == _NOTE_TAG:
                    self._on_note(member, bytes(room[: note.bytes]))


def _token_in(private: dict[str, Any]) -> bytes:
    """The token of the process that connects; empty if it sends none."""
    try:
        return bytes.fromhex(str(private.get("from")))
    except ValueError:
        return b""


async def _end_of(member: Member, taking: Iterable[asyncio.Task[None]]) -> MemberEnd:
    """Waits until the QP is closed or fails. `taking` receives messages meanwhile."""
    host = member.qp.peer.host
    try:
        async for _ in member.qp.immediates():
            pass
    except CompletionError as error:
        # First what the peer has sent that messages do not allow: then they have failed, too.
        failed = await asyncio.gather(*taking, return_exceptions=True)
        violation = next((each for each in failed if isinstance(each, MrcError)), None)
        return MemberEnd(violation or mailbox.explain(error, host), died=True)
    except PeerGoneError as error:
        return MemberEnd(await member.lost() or error, died=True)
    except MrcError as error:
        return MemberEnd(error, died=True)
    closed = PeerGoneError(f"{host} closed the connection")
    return MemberEnd(await member.lost() or closed, died=False)
