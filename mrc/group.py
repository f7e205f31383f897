# SPDX-License-Identifier: Apache-2.0
"""A group of processes: one session between each two of them, made when first needed.

Each process has an address, which the processes exchange by means of their own (a store, a file).
The address contains a random token: only a process that knows it can connect.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.errors import ArgumentError, ConnectError, MrcError, ProtocolError
from mrc.exchange.foreign import shown
from mrc.messaging.session import Service, Session, accept_session, connect_session
from mrc.tasks import cancelled

logger = logging.getLogger("mrc.group")

TOKEN_BYTES = 16
_HEAD = struct.Struct(f"<{TOKEN_BYTES}sHB")
MAX_HOST_BYTES = 128
ADDRESS_BYTES = _HEAD.size + MAX_HOST_BYTES


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process of the group listens."""

    token: bytes
    """Random bytes that name the process. Peers must know them."""
    host: str
    """A configured peer, a name or an IP address."""
    port: int
    """TCP port of its exchange."""

    def pack(self) -> bytes:
        """ADDRESS_BYTES bytes; raises ArgumentError for a long host name."""
        host = self.host.encode()
        if len(host) > MAX_HOST_BYTES:
            raise ArgumentError(f"host: {self.host!r:.60} exceeds {MAX_HOST_BYTES} bytes")
        return (_HEAD.pack(self.token, self.port, len(host)) + host).ljust(ADDRESS_BYTES, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Address:
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
        return cls(token, host, port)


class Group:
    """The sessions of this process with the others. An async context manager."""

    def __init__(self, ctx: Context, service: Service, host: str, *, timeout: float = 30.0) -> None:
        self._ctx = ctx
        self._service = service
        self._host = host
        self._timeout = timeout
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._sessions: dict[bytes, asyncio.Future[Session]] = {}  # by token
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Self:
        private = {"service": self._service.name, "version": self._service.version}
        self._listener = await self._held.enter_async_context(
            self._ctx.listen(None, 0, private=private, admit=self._admit)
        )
        self.address = Address(self._token, self._host, self._listener.port)
        self._start(self._accept())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Closes all sessions in order: their peers get an answer to each packet."""
        self._ending.set()
        holders = [task for task in self._tasks if task.get_name() == "session"]
        await asyncio.gather(*holders, return_exceptions=True)
        await cancelled(*self._tasks)
        await self._held.aclose()

    async def session(self, peer: Address) -> Session:
        """The session with the process at this address. Of two processes, the one with the smaller
        token connects and the other waits for it. Raises the errors of `Context.connect`.
        """
        if peer.token == self._token:
            raise ArgumentError("peer: is the address of this process")
        found = self._future(peer.token)
        if self._token < peer.token and not found.done():
            self._start(self._connect(peer, found), "session")
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(found)
        except TimeoutError:
            raise ConnectError(
                f"{peer.host} did not connect to this process within {self._timeout:g} s"
            ) from None

    def _future(self, token: bytes) -> asyncio.Future[Session]:
        found = self._sessions.get(token)
        if found is None or found.cancelled() or (found.done() and found.exception() is not None):
            found = self._sessions[token] = asyncio.get_running_loop().create_future()
        return found

    def _start(self, work: Any, name: str = "") -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _admit(self, private: dict[str, Any]) -> None:
        if not secrets.compare_digest(str(private.get("to")), self._token.hex()):
            raise ConnectError("this process belongs to another group")

    async def _connect(self, peer: Address, found: asyncio.Future[Session]) -> None:
        private = {"to": peer.token.hex(), "from": self._token.hex()}
        try:
            async with connect_session(
                self._ctx,
                peer.host,
                peer.port,
                self._service,
                private=private,
                timeout=self._timeout,
            ) as session:
                await self._hold(peer.token, session, found)
        except (MrcError, OSError) as error:
            if not found.done():
                found.set_exception(error)
                found.exception()  # whoever waits has it; otherwise asyncio would log it

    async def _accept(self) -> None:
        async for qp in self._listener:
            self._start(self._serve(qp), "session")

    async def _serve(self, qp: QP) -> None:
        try:
            token = bytes.fromhex(str(qp.private.get("from")))
        except ValueError:
            token = b""
        if len(token) != TOKEN_BYTES:
            await qp.abort()
            return
        try:
            async with accept_session(self._ctx, qp, self._service) as session:
                await self._hold(token, session, self._future(token))
        except (MrcError, OSError) as error:
            logger.warning("a process of the group could not connect: %s", error)

    async def _hold(self, token: bytes, session: Session, found: asyncio.Future[Session]) -> None:
        """Keeps the session until the group ends, or the session fails or is closed."""
        if found.done():
            raise ProtocolError("the peer is connected already")
        found.set_result(session)
        gone = asyncio.create_task(session.qp.peer_gone.wait())
        failed = asyncio.create_task(_failure(session))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait((gone, failed, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(gone, failed, ending)
            if self._sessions.get(token) is found and not self._ending.is_set():
                del self._sessions[token]  # the next use connects again


async def _failure(session: Session) -> None:
    try:
        await session.mailbox.failed()
    except MrcError:
        pass
