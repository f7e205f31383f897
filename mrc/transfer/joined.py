# SPDX-License-Identifier: Apache-2.0
"""The QPs of a session beside its first one: they carry chunks and nothing else.

The receiver makes up a token for each session. The sender names it as private data when it connects
a further QP, which the receiver's listener lets in only then.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Self

from mrc.aio.qp import QP
from mrc.errors import ConnectError, MrcError, ProtocolError
from mrc.tasks import cancelled

JOIN = "files-join"  # the service that such a QP asks for
MAX_QPS = 16  # of a session, the first one included
_TOKEN_BYTES = 16

Connect = Callable[[dict[str, Any]], Awaitable[QP]]


class JoinedQps:
    """The further QPs of one session. An async context manager that closes them.

    The receiver has a `token`, the sender a way to `connect` to it with private data.
    """

    def __init__(self, token: str = "", connect: Connect | None = None) -> None:
        self.token = token
        self._connect = connect
        self.qps: list[QP] = []
        self.on_chunk: Callable[[int], None] | None = None  # while a file is being received
        self._readers: list[asyncio.Task[None]] = []
        self._error: MrcError | None = None
        self._failed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await cancelled(*self._readers)
        await asyncio.gather(*(qp.close() if kind is None else qp.abort() for qp in self.qps))

    async def join(self, token: str) -> None:
        """Connects one to the session that the receiver knows by `token`."""
        assert self._connect is not None, "only a sender connects"
        self.add(await self._connect({"service": JOIN, "token": token}))

    def add(self, qp: QP) -> None:
        """Takes a QP, and closes it at the end."""
        self.qps.append(qp)
        self._readers.append(asyncio.create_task(self._read(qp)))

    async def failed(self) -> NoReturn:
        """Waits until one of them fails, and raises why."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    async def _read(self, qp: QP) -> None:
        try:
            async for immediate in qp.immediates():
                if self.on_chunk is None:
                    raise ProtocolError(f"{qp.peer_host} writes what nobody waits for")
                self.on_chunk(immediate.imm)
        except MrcError as error:
            if self._error is None:
                self._error = error
                self._failed.set()


class Joins:
    """The sessions of one listener that further QPs may join."""

    def __init__(self) -> None:
        self.refusal = ""  # why no new session may begin; empty: it may
        self._sessions: dict[str, JoinedQps] = {}

    @asynccontextmanager
    async def session(self) -> AsyncIterator[JoinedQps]:
        """A session that may be joined until this ends, with the QPs that did."""
        async with JoinedQps(secrets.token_hex(_TOKEN_BYTES)) as joined:
            self._sessions[joined.token] = joined
            try:
                yield joined
            finally:
                del self._sessions[joined.token]

    def admit(self, private: dict[str, Any]) -> None:
        """For the listener: raises ConnectError for a peer that is to be refused."""
        if private.get("service") == JOIN:
            joined = self._named(private)
            if joined is None:
                raise ConnectError("no session of that token is open here")
            if len(joined.qps) >= MAX_QPS - 1:
                raise ConnectError(f"a session has {MAX_QPS} QPs at most")
        elif self.refusal:
            raise ConnectError(self.refusal)

    async def take(self, qp: QP) -> None:
        """Gives a QP to the session that it names. One that ended meanwhile has no use for it."""
        joined = self._named(qp.private)
        if joined is None:
            await qp.abort()
        else:
            joined.add(qp)

    def _named(self, private: dict[str, Any]) -> JoinedQps | None:
        token = private.get("token")
        return self._sessions.get(token) if isinstance(token, str) else None
