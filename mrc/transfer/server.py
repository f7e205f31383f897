# SPDX-License-Identifier: Apache-2.0
"""Receives files and folders from any number of senders at the same time: `receive`.

Sessions are independent: the error of one ends no other. A transfer may have several sessions, one
after the other: a sender that has lost its connection connects again, names the same transfer, and
goes on. With `once` the receiver serves one sender: the first whose data arrives.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import deque
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

import mrc
from mrc import limits as bounds
from mrc import mailbox, versions
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.aio.recording import Recorder
from mrc.config import ContextConfig
from mrc.connect.listener import Listener
from mrc.errors import ArgumentError, MrcError, PathError, PeerGoneError
from mrc.tasks import Opening, cancelled
from mrc.transfer.account import Account, OnProgress
from mrc.transfer.files import OutputDirectory
from mrc.transfer.limits import CHUNK_BYTES, DEFAULTS, SenderLimits, checked_number
from mrc.transfer.progress import Kept, Resumed
from mrc.transfer.receiver import ReceiveEvents, receive_files
from mrc.transfer.results import Transfer
from mrc.transfer.session import (
    JOIN,
    SERVICE,
    TOKEN_BYTES,
    TRANSFER,
    Accept,
    Joins,
    TransferError,
    TransferSession,
    accept_session,
    agreement,
)
from mrc.transfer.sinks import PipeWriter
from mrc.transfer.threads import in_thread

WINDOWS = 8  # all senders together have memory for 8 full windows; more senders get smaller ones
MAX_LOST = 64  # transfers whose account is kept after a loss: their senders may come back
MAX_UNREAD = 256  # sessions that have ended, for the user to take
_TAKEN = "this mrc recv --once already serves another sender"
_USED = "the one peer of the one-time code sent nothing: mrc recv --code prints a new one"
logger = logging.getLogger("mrc.transfer.server")


class Received(Struct, frozen=True):
    """How the session with a sender has ended."""

    host: str
    """The sender."""
    transfer: Transfer | None
    """What was received; None after an error."""
    error: Exception | None
    """Why the session failed; None: it has not."""
    awaited: bool = False
    """Whether a receiver with `once` waits `idle` seconds for this sender to come back."""

    def result(self) -> Transfer:
        """What was received; raises the error."""
        if self.error is not None:
            raise self.error
        assert self.transfer is not None
        return self.transfer


class ReceiveArguments(Struct, frozen=True):
    """The arguments of `receive` that say where and how; checked when it is created."""

    folder: str | os.PathLike[str] | int
    port: int = versions.TCP_PORT
    bind: str | None = None
    once: bool = False
    overwrite: bool = False
    any_name: bool = False
    no_meta: bool = False
    no_resume: bool = False
    fsync: bool = False
    max_bytes: int = DEFAULTS.bytes
    max_files: int = DEFAULTS.files
    rate: float = 0.0
    idle: float = DEFAULTS.idle_seconds
    memory: int = DEFAULTS.window_bytes
    bins: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike | int):
            raise ArgumentError(f"folder: {self.folder!r} is neither a path nor an open file")
        checked_number("port", self.port, 0, 65535)
        for each in ("max_bytes", "max_files"):
            checked_number(each, getattr(self, each), 1, math.inf)
        for each in ("rate", "bins"):
            checked_number(each, getattr(self, each), 0, math.inf)
        checked_number("idle", self.idle, 1e-3, math.inf)
        checked_number("memory", self.memory, CHUNK_BYTES, 1 << 40)
        if self.bins and (not self.serves_one or self.bins < bounds.MIN_BIN_NS):
            raise ArgumentError(f"bins: requires once, and at least {bounds.MIN_BIN_NS} ns")

    @property
    def serves_one(self) -> bool:
        """Whether it serves one sender."""
        return self.once or isinstance(self.folder, int)

    def limits(self) -> SenderLimits:
        return SenderLimits(self.max_bytes, self.max_files, self.memory, self.idle)

    def config(self, config: ContextConfig) -> ContextConfig:
        """That of a Context of a receiver."""
        return replace(
            config,
            limits=replace(config.limits, max_peer_bytes=WINDOWS * self.memory),
            queues=replace(config.queues, max_unread=mailbox.MAX_UNREAD),
        )

    def place(self) -> OutputDirectory | PipeWriter:
        """Where the files go; may wait for a disk."""
        if isinstance(self.folder, int):
            return PipeWriter(self.folder)
        path = Path(self.folder)
        if not path.exists() and not path.is_symlink():
            path.mkdir(parents=True)
        return OutputDirectory(
            os.fspath(self.folder),
            overwrite=self.overwrite,
            any_name=self.any_name,
            keep_meta=not self.no_meta,
            resume=not self.no_resume,
            fsync=self.fsync,
        )


def receive(
    folder: str | os.PathLike[str] | int,
    *,
    port: int = versions.TCP_PORT,
    bind: str | None = None,
    once: bool = False,
    overwrite: bool = False,
    any_name: bool = False,
    no_meta: bool = False,
    no_resume: bool = False,
    fsync: bool = False,
    max_bytes: int = DEFAULTS.bytes,
    max_files: int = DEFAULTS.files,
    rate: float = 0.0,
    idle: float = DEFAULTS.idle_seconds,
    memory: int = DEFAULTS.window_bytes,
    bins: int = 0,
    context: Context | None = None,
    config: ContextConfig | None = None,
    accept: Accept | None = None,
    list_files: bool = True,
    on_progress: OnProgress | None = None,
) -> Opening[Receiver]:
    """Receives files from any number of senders: `async with receive("inbox") as receiver`.

    A sender is `send`, or `mrc send`. The end of `async with` stops the transfers that run; what
    came of large files is kept for seven days, and the same `send` goes on from there.

    `folder`: where the files go, made if it is missing; the number of an open file: the bytes of
    one sender's files are written there, one after the other. `port`: TCP port; 0: a free one.
    `bind`: listen on this address only. `once`: serve one sender, the first whose data arrives.
    `overwrite`: replace existing files. `any_name`: accept names that begin with "." or "-" or
    contain control characters. `no_meta`: do not take modes and times from the sender. `no_resume`:
    keep no file of a transfer that is interrupted. `fsync`: a file is on the disk before it counts
    as stored.

    Limits, because anybody who can reach the port and is let in can send: `max_bytes`, `max_files`:
    of one sender. `rate`: bits per second of all senders together; 0: no limit. `idle`: seconds
    without progress after which a sender is disconnected. `memory`: bytes for one sender's data
    until they are stored; all senders get eight times as many. `bins`: with `once`, records the
    payload in bins of so many nanoseconds; 0: does not.

    `context`: the Context to use; None: one is opened, with `config`. Its default lets everybody
    in, as everywhere in the library. `accept`: called for each transfer before its first byte. True
    and False accept it, as it is announced, or refuse it; None leaves it to the limits. An
    awaitable is awaited, and the sender hears that it has to wait. `list_files`: whether the
    results name the files, up to `max_files`. `on_progress` is called several times a second for
    each transfer and for each event, in the event loop; it must not block, and an exception of it
    ends that transfer.

    Raises ArgumentError at once; when it opens FileError, InUseError, ResolveError or an OSError.
    """
    arguments = ReceiveArguments(
        folder, port, bind, once, overwrite, any_name, no_meta, no_resume, fsync, max_bytes,
        max_files, rate, idle, memory, bins,
    )  # fmt: skip
    if context is not None and config is not None:
        raise ArgumentError("config: not with context, which has its own")
    receiver = Receiver(arguments, accept, on_progress, list_files=list_files)
    return Opening(receiver._open(context, config or ContextConfig()))


class Receiver:
    """Receives files; `receive` makes it. Iterating gives a `Received` for each session that ends:
    forever, or with `once` until the one sender has been served. A failed transfer is one with an
    error, and ends no other. Only the last 256 that nobody has taken are kept.
    """

    port: int
    """The TCP port."""
    context: Context
    removed: tuple[str, ...] = ()
    """Names of files of which the parts of interrupted transfers were too old, and are gone."""

    def __init__(
        self,
        arguments: ReceiveArguments,
        accept: Accept | None,
        on_progress: OnProgress | None,
        *,
        list_files: bool,
    ) -> None:
        self._arguments = arguments
        self._limits = arguments.limits()
        self._once = arguments.serves_one
        self._accept = accept
        self._list_files = list_files
        self._on_progress = on_progress
        self._place: OutputDirectory | PipeWriter
        self._stack = AsyncExitStack()
        self._joins = Joins()
        self._tasks: set[asyncio.Task[None]] = set()
        self._senders: set[asyncio.Task[None]] = set()
        self._chosen: asyncio.Task[None] | None = None  # with `once`: of the first data
        self._accounts: dict[str, Account] = {}  # of transfers that run, or may go on
        self._numbers = count(1)
        self._served = False  # whether a session of a sender has ended
        self._over: asyncio.Future[None]  # nobody else is served
        self._server: asyncio.Task[None] | None = None
        self._recorder: Recorder | None = None
        self._ended: deque[Received] = deque(maxlen=MAX_UNREAD)
        self._changed = asyncio.Event()

    # ---- Its life ---------------------------------------------------------------------------

    async def _open(self, context: Context | None, config: ContextConfig) -> Receiver:
        arguments = self._arguments
        self._over = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            made: OutputDirectory | PipeWriter = await in_thread(arguments.place)
            stack.enter_context(made)
            self._place = made
            if isinstance(made, OutputDirectory):
                self.removed = tuple(await in_thread(made.sweep))
            opening = nullcontext(context) if context else mrc.open(arguments.config(config))
            self.context = await stack.enter_async_context(opening)
            private, admit = {"service": SERVICE.name}, self._joins.admit
            listening = self.context.listen(
                arguments.bind, arguments.port, private=private, admit=admit
            )
            listener = await stack.enter_async_context(listening)
            self.port = listener.port
            self._server = asyncio.create_task(self._serve(listener))
            self._server.add_done_callback(lambda _: self._changed.set())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            await cancelled(self._server)
        await self._stack.__aexit__(kind, error, traceback)

    async def close(self) -> None:
        """Stops the transfers that run, as the end of `async with` does; safe to call twice."""
        await self.__aexit__(None, None, None)

    async def until_idle(self) -> None:
        """Returns when no transfer runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        """Raises MrcError when the one-time code is used up without success."""
        server = self._server
        while not self._ended:
            if server is None or server.cancelled():
                raise StopAsyncIteration
            if server.done():
                server.result()
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._ended.popleft()

    # ---- Its sessions -----------------------------------------------------------------------

    async def _serve(self, listener: Listener) -> None:
        """Serves until it is cancelled; with `once` until the chosen sender has been served, with a
        one-time code until the one peer has been.
        """
        accepting = asyncio.create_task(self._take_peers(listener))
        guessing = asyncio.create_task(SERVICE.until_guessed(self.context))
        try:
            ends: list[asyncio.Future[Any]] = [accepting, guessing, self._over]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if guessing.done():
                guessing.result()
            if self._over.done() and not self._served:
                raise TransferError(_USED)
        finally:
            await cancelled(accepting, guessing, *self._tasks)

    async def _take_peers(self, listener: Listener) -> None:
        async for qp in listener:
            task = asyncio.create_task(self._serve_peer(qp))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve_peer(self, qp: QP) -> None:
        """Serves the service that the peer requested. Raises nothing: sessions are independent."""
        task = asyncio.current_task()
        assert task is not None
        service, host = qp.peer.private.get("service"), qp.peer.host
        transfer, received = "", None
        try:
            if service == SERVICE.name:
                self._senders.add(task)
                transfer = await self._take_over(qp, task)
                account = self._account(transfer, host)
                async with accept_session(self.context, qp, self._joins) as session:
                    result = await self._receive(session, account, partial(self._on_data, task))
                self._accounts.pop(transfer, None)
                received = Received(host, result, None)
            elif service == JOIN:
                await self._joins.take(qp)
            else:
                await SERVICE.let_look(qp)
        except Exception as error:
            returns = isinstance(error, PathError) and transfer != "" and self._chosen is task
            received = Received(host, None, error, awaited=returns)
            if not isinstance(error, (PathError, PeerGoneError)):
                self._accounts.pop(transfer, None)
            if not isinstance(error, (MrcError, OSError, MemoryError)):
                logger.debug("a session has failed", exc_info=error)
        finally:
            self._senders.discard(task)
        if self._over.done():
            return
        if received is not None:
            self._ended.append(received)
            self._changed.set()
            if received.awaited:
                await asyncio.sleep(self._limits.idle_seconds)
        self._served = self._served or service == SERVICE.name
        over = self._chosen is task or (self._tasks == {task} and self.context._is_closed)
        if over and not self._over.done():
            self._over.set_result(None)

    async def _take_over(self, qp: QP, task: asyncio.Task[None]) -> str:
        """The name of the sender's transfer. Ends an earlier session of this transfer, which may
        not know yet that its paths are lost.
        """
        transfer = qp.peer.private.get(TRANSFER)
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

    def _account(self, transfer: str, host: str) -> Account:
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
        account = Account(
            "receiver",
            host,
            self._on_progress,
            number=next(self._numbers),
            limit=self._limits.files,
            list_files=self._list_files,
        )
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
        for other in self._senders - {sender}:
            other.cancel()

    async def _receive(
        self, session: TransferSession, account: Account, on_data: partial[None]
    ) -> Transfer:
        """Receives the files of a session."""
        agreed = None
        if self._accept is not None:
            idle_seconds = self._limits.idle_seconds
            agreed, seconds = await agreement(session, self._accept, idle_seconds)
            account.waited_seconds = seconds
        if self._arguments.bins and self._recorder is None:  # of all QPs: a sender may open more
            opening = self.context.record(width_ns=self._arguments.bins)
            self._recorder = await self._stack.enter_async_context(opening)

        def on_resumed(name: str, there_bytes: int, size: int) -> None:
            account.resumed(there_bytes)
            account.tell(Resumed(name, there_bytes, size))

        async with account.connection(session, session.announced_bytes):
            batches = receive_files(
                session,
                self._place,
                limits=self._limits,
                events=ReceiveEvents(
                    on_data=on_data,
                    on_resumed=on_resumed,
                    on_kept=lambda name, size: account.tell(Kept(name, size)),
                    on_failed=account.left_out,
                    on_file=account.begin_file,
                    rate=lambda: self._arguments.rate / max(len(self._senders), 1),
                ),
                keep_names=self._list_files,
                agreed=agreed,
            )
            await account.store(batches)
            recording = await self._recorder.stop() if self._recorder is not None else None
            return await account.result(session, self.port, recording=recording)
