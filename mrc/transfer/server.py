# SPDX-License-Identifier: Apache-2.0
"""The server of transfers: serves any number of senders at the same time.

Sessions are independent: the error of one ends no other. A transfer may have several sessions, one
after the other: a sender that has lost its connection connects again, names the same transfer, and
goes on. With `once` the server serves one sender: the first whose data arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

from mrc.aio.context import Context
from mrc.aio.listener import Listener
from mrc.aio.qp import QP
from mrc.errors import PathError, PeerGoneError, ProtocolError
from mrc.mailbox import let_look, until_guessed
from mrc.tasks import cancelled
from mrc.transfer.limits import SenderLimits
from mrc.transfer.messages import Announced, ConsentQuestion, Refuse
from mrc.transfer.session import (
    JOIN,
    SERVICE,
    TAKES_ASKING,
    TOKEN_BYTES,
    TRANSFER,
    Joins,
    TransferError,
    TransferSession,
    accept_session,
    patience,
)

T = TypeVar("T")
MAX_LOST = 64  # transfers whose account is kept after a loss: their senders may come back
_TAKEN = "this mrc recv --once already serves another sender"


class TransferAccount(Protocol):
    """What has become of a transfer, over all its connections."""

    @property
    def failed_count(self) -> int:
        """Files that were not copied."""

    async def receive(self, session: TransferSession, on_data: Callable[[], None]) -> int:
        """Receives the files of a session; returns the exit code. Calls `on_data` when data of a
        file arrives.
        """


class TransferUser(Protocol):
    """Who runs a server: has the accounts, and hears what happens."""

    def account(self, host: str) -> TransferAccount:
        """A new account for a transfer from this host."""

    def failed(self, host: str, error: Exception) -> int:
        """A session has failed; returns the exit code."""

    def may_return(self, host: str) -> None:
        """With `once`: this sender has lost its connection, and the server waits for it."""


@asynccontextmanager
async def listen(
    ctx: Context,
    user: TransferUser,
    limits: SenderLimits,
    address: str | None,
    port: int,
    *,
    once: bool = False,
) -> AsyncIterator[TransferServer]:
    """A server that listens at a TCP port; raises InUseError, ResolveError."""
    private, joins = {"service": SERVICE.name}, Joins()
    async with await ctx.listen(address, port, private=private, admit=joins.admit) as listener:
        yield TransferServer(ctx, listener, joins, user, limits, once=once)


class TransferServer:
    """Serves connected QPs as sessions."""

    def __init__(
        self,
        ctx: Context,
        listener: Listener,
        joins: Joins,
        user: TransferUser,
        limits: SenderLimits,
        *,
        once: bool,
    ) -> None:
        self._ctx = ctx
        self._listener = listener
        self.port = listener.port
        self._joins = joins
        self._user = user
        self._limits = limits
        self._once = once
        self._tasks: set[asyncio.Task[None]] = set()
        self.senders: set[asyncio.Task[None]] = set()
        """the sessions that run"""
        self._chosen: asyncio.Task[None] | None = None  # with `once`: of the first data
        self._accounts: dict[str, TransferAccount] = {}  # of transfers that run, or may go on
        self._last: int | None = None  # exit code of the sender that ended last
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(self) -> int:
        """Serves until it is cancelled; with `once` until the chosen sender has been served, with a
        one-time code until the one peer has been. Returns the exit code.
        """
        accepting = asyncio.create_task(self._accept())
        guessing = asyncio.create_task(until_guessed(self._ctx))
        try:
            ends = (accepting, guessing, self._code)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if guessing.done() and guessing.exception() is not None:
                raise guessing.exception() or AssertionError
        finally:
            await cancelled(accepting, guessing, *self._tasks)
        return self._code.result() if self._code.done() else 0

    async def _accept(self) -> None:
        async for qp in self._listener:
            task = asyncio.create_task(self._serve(qp))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, qp: QP) -> None:
        """Serves the service that the peer requested. Raises nothing: sessions are independent."""
        task = asyncio.current_task()
        assert task is not None
        service = qp.private.get("service")
        code, transfer, returns = 0, "", False
        try:
            if service == SERVICE.name:
                self.senders.add(task)
                transfer = await self._take_over(qp, task)
                account = self._account(transfer, qp.peer_host)
                async with accept_session(self._ctx, qp, self._joins) as session:
                    code = await account.receive(session, partial(self._on_data, task))
                self._accounts.pop(transfer, None)
            elif service == JOIN:
                await self._joins.take(qp)
            else:
                await let_look(qp)
        except Exception as error:
            code = self._user.failed(qp.peer_host, error)
            returns = isinstance(error, PathError) and transfer != ""
            if not isinstance(error, (PathError, PeerGoneError)):
                self._accounts.pop(transfer, None)
        finally:
            self.senders.discard(task)
        if self._chosen is task and returns:
            self._user.may_return(qp.peer_host)
            await asyncio.sleep(self._limits.idle_seconds)
        self._last = code if service == SERVICE.name else self._last
        if self._chosen is task or (self._tasks == {task} and self._ctx._is_closed):
            self._end(code if self._chosen is task else self._last)

    async def _take_over(self, qp: QP, task: asyncio.Task[None]) -> str:
        """The name of the sender's transfer. Ends an earlier session of this transfer, which may
        not know yet that its paths are lost.
        """
        transfer = qp.private.get(TRANSFER)
        if not isinstance(transfer, str) or not 0 < len(transfer) <= 2 * TOKEN_BYTES:
            return ""
        transfers = self._joins.transfers
        before = transfers.get(transfer)
        transfers[transfer] = task
        task.add_done_callback(partial(self._joins.forget, transfer))
        if before is not None:
            if before is self._chosen:
                self._chosen = task
            await cancelled(before)
        return transfer

    def _account(self, transfer: str, host: str) -> TransferAccount:
        """The account of this transfer. Those of others are kept for a while after a loss."""
        if transfer in self._accounts:
            return self._accounts[transfer]
        lost = {
            name: account.failed_count
            for name, account in self._accounts.items()
            if name not in self._joins.transfers
        }
        while len(lost) >= MAX_LOST or sum(lost.values()) > self._limits.files:
            one = next(iter(lost)) if len(lost) >= MAX_LOST else max(lost, key=lost.__getitem__)
            del self._accounts[one], lost[one]
        account = self._user.account(host)
        if transfer:
            self._accounts[transfer] = account
        return account

    def _on_data(self, sender: asyncio.Task[None]) -> None:
        """Called when data of a sender's file arrives. With `once` the first caller is chosen."""
        if not self._once or self._chosen is sender:
            return
        if self._chosen is not None:
            raise TransferError(_TAKEN)
        self._chosen, self._joins.refusal = sender, _TAKEN
        for other in self.senders - {sender}:
            other.cancel()

    def _end(self, code: int | None) -> None:
        """Ends the server with an exit code. None: the one peer of --code was no sender."""
        if self._code.done():
            return
        if code is None:
            used = (
                "the one peer of the one-time code sent nothing: mrc recv --code prints a new one"
            )
            self._code.set_exception(TransferError(used))
        else:
            self._code.set_result(code)


async def agreement(
    session: TransferSession,
    ask: Callable[[TransferSession, Announced], Coroutine[Any, Any, T | None]],
    idle_seconds: float,
) -> T:
    """What the receiver's user answers about all that a sender announces. The sender hears that he
    is asked; if he does not agree, `ask` returns None, and this raises TransferError.
    """
    try:
        announced = Announced.read(session.qp.private)
    except ValueError as error:
        raise ProtocolError(f"the sender announces no proper transfer: {error}") from None
    if session.qp.private.get(TAKES_ASKING) is True:
        async with patience(session, idle_seconds):
            await session.say(ConsentQuestion())
    answer = asyncio.create_task(ask(session, announced))
    gone = asyncio.create_task(session.qp.until_peer_gone())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise TransferError("the sender did not wait for an answer")
        agreed = answer.result()
    except asyncio.CancelledError:  # the sender need not try again
        await session.say_last(Refuse("stopped", "the receiver was stopped"))
        raise
    finally:
        await cancelled(answer, gone)
    if agreed is None:
        await refuse(session, "the user did not accept the files", "the files were not accepted")
    return agreed


async def refuse(session: TransferSession, why: str, error: str) -> NoReturn:
    """Ends a session before its first offer: the sender hears why. Raises TransferError."""
    await session.say_last(Refuse("stopped", why))
    raise TransferError(error)
