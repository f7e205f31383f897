# SPDX-License-Identifier: Apache-2.0
"""The further QPs of a session, beside its first QP. They carry only chunks.

The receiver creates a random token for each session. The sender sends the token as private data
when it connects a further QP. The receiver's listener refuses a QP without a valid token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Self

from mrc.aio.qp import QP
from mrc.errors import ConnectError, MrcError, ProtocolError, reason_of
from mrc.events import Immediate
from mrc.tasks import cancelled

TRANSFER = "transfer"
"""private data of a sender: a random text that names its transfer"""
JOIN = "files-join"  # the service name of a further QP
MAX_QPS = 16  # of a session, including the first QP
_TOKEN_BYTES = 16

Connect = Callable[[dict[str, Any]], Awaitable[QP]]


class JoinedQps:
    """The further QPs of one session. An async context manager that closes them.

    The receiver passes `token`. The sender passes `connect`, which connects a QP with private data.
    """

    def __init__(self, token: str = "", connect: Connect | None = None) -> None:
        self.token = token
        self._connect = connect
        self.qps: list[QP] = []
        self.on_chunk: Callable[[Immediate], None] | None = None  # while a file is being received
        self._readers: list[asyncio.Task[None]] = []
        self._error: MrcError | None = None
        self._failed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        await cancelled(*self._readers)
        why = reason_of(error)
        await asyncio.gather(*(qp.close() if kind is None else qp.abort(why) for qp in self.qps))

    async def join(self, token: str) -> None:
        """Connects a further QP to the receiver's session with this token."""
        assert self._connect is not None, "only a sender connects"
        self.add(await self._connect({"service": JOIN, "token": token}))

    def add(self, qp: QP) -> None:
        """Adds a QP; the end of this object closes it."""
        self.qps.append(qp)
        self._readers.append(asyncio.create_task(self._read(qp)))

    async def failed(self) -> NoReturn:
        """Waits until one of the QPs fails, and raises its error."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    async def _read(self, qp: QP) -> None:
        try:
            async for immediate in qp.immediates():
                if self.on_chunk is None:
                    raise ProtocolError(f"{qp.peer_host} sent a chunk outside a file")
                self.on_chunk(immediate)
        except MrcError as error:
            if self._error is None:
                self._error = error
                self._failed.set()


class Joins:
    """The sessions of one listener that further QPs may join."""

    def __init__(self) -> None:
        self.refusal = ""  # the reason to refuse new sessions; empty: accept them
        self.transfers: dict[str, asyncio.Task[None]] = {}
        """the session of each transfer, which a later session may replace"""
        self._sessions: dict[str, JoinedQps] = {}

    @asynccontextmanager
    async def session(self) -> AsyncIterator[JoinedQps]:
        """A session that QPs may join until this context ends; yields its further QPs."""
        async with JoinedQps(secrets.token_hex(_TOKEN_BYTES)) as joined:
            self._sessions[joined.token] = joined
            try:
                yield joined
            finally:
                del self._sessions[joined.token]

    def admit(self, private: dict[str, Any]) -> None:
        """For the listener: raises ConnectError to refuse a peer."""
        if private.get("service") == JOIN:
            joined = self._named(private)
            if joined is None:
                raise ConnectError("no open session has this token")
            if len(joined.qps) >= MAX_QPS - 1:
                raise ConnectError(f"the session already has {MAX_QPS} QPs, the limit")
        elif self.refusal and private.get(TRANSFER) not in self.transfers:
            raise ConnectError(self.refusal)

    def forget(self, transfer: str, task: asyncio.Task[None]) -> None:
        """This session of the transfer has ended."""
        if self.transfers.get(transfer) is task:
            del self.transfers[transfer]

    async def take(self, qp: QP) -> None:
        """Adds a QP to the session with its token; aborts the QP if the session has ended."""
        joined = self._named(qp.private)
        if joined is None:
            await qp.abort("the session has ended")
        else:
            joined.add(qp)

    def _named(self, private: dict[str, Any]) -> JoinedQps | None:
        token = private.get("token")
        return self._sessions.get(token) if isinstance(token, str) else None
