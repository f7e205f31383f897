# SPDX-License-Identifier: Apache-2.0
"""Sends files and folders to a receiver: `send`."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from msgspec import Struct

import mrc
from mrc import versions
from mrc.aio.context import Context
from mrc.config import ContextConfig
from mrc.connect.retry import Retry
from mrc.enums import EvState
from mrc.errors import ArgumentError, MrcError
from mrc.transfer.account import Account, OnProgress
from mrc.transfer.limits import FileError, check_path, checked_number
from mrc.transfer.plan import STDIN, Exclude, FileEntry, SendPlan, excluding, plan_of
from mrc.transfer.progress import Grew, Resumable, Resumed, TransferPlanned, Unchanged
from mrc.transfer.results import Transfer
from mrc.transfer.sender import SendOptions, send_plan
from mrc.transfer.session import TOKEN_BYTES, TransferSession, VerificationError, connect_session
from mrc.transfer.threads import in_thread

TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 60.0
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class SendArguments(Struct, frozen=True):
    """The arguments of `send` that say what is sent, where and how; checked when it is created."""

    paths: Paths
    host: str
    port: int = versions.TCP_PORT
    name: str = ""
    follow: bool = False
    links: bool = False
    exclude: Sequence[str] = ()
    update: bool = False
    no_meta: bool = False
    no_resume: bool = False
    rate: float = 0.0
    timeout: float = TIMEOUT_SECONDS
    retry: float = RETRY_SECONDS
    wait: float = 0.0

    def __post_init__(self) -> None:
        names = self.names()
        if not names:
            raise ArgumentError("paths: names nothing to send")
        if self.name and len(names) != 1:
            raise ArgumentError("name: requires exactly one FILE")
        if self.update and self.no_meta:
            raise ArgumentError("update: not with no_meta")
        if names.count(STDIN) > 1:
            raise ArgumentError("paths: -: names standard input twice")
        if self.links and self.follow:
            raise ArgumentError("links: not with follow")
        try:
            self._excluding()
        except ValueError as error:
            raise ArgumentError(f"exclude: {error}") from None
        try:
            if self.name:
                check_path(self.name)
        except FileError as error:
            raise ArgumentError(f"name: {error}") from None
        checked_number("port", self.port, 1, 65535)
        for each in ("rate", "timeout", "retry", "wait"):
            checked_number(each, getattr(self, each), 0, math.inf)

    def names(self) -> tuple[str, ...]:
        """The paths. Raises ArgumentError."""
        paths = self.paths
        try:
            return tuple(
                map(os.fsdecode, [paths] if isinstance(paths, str | os.PathLike) else paths)
            )
        except TypeError as error:
            raise ArgumentError(f"paths: {error}") from None

    def _excluding(self) -> Exclude:
        """Raises ValueError."""
        patterns = (self.exclude,) if isinstance(self.exclude, str) else self.exclude
        return excluding(patterns) if patterns else lambda path: False

    def plan(self) -> SendPlan:
        """Looks at the files, so it may wait for a disk. Raises FileError."""
        return plan_of(
            self.names(),
            name=self.name,
            follow=self.follow,
            links=self.links,
            exclude=self._excluding(),
        )


async def send(
    paths: Paths,
    host: str,
    *,
    port: int = versions.TCP_PORT,
    name: str = "",
    follow: bool = False,
    links: bool = False,
    exclude: Sequence[str] = (),
    update: bool = False,
    no_meta: bool = False,
    no_resume: bool = False,
    rate: float = 0.0,
    timeout: float = TIMEOUT_SECONDS,
    retry: float = RETRY_SECONDS,
    wait: float = 0.0,
    context: Context | None = None,
    config: ContextConfig | None = None,
    list_files: bool = True,
    on_progress: OnProgress | None = None,
) -> Transfer:
    """Sends files and folders to the receiver that listens at `host`: `receive`, or `mrc recv`.

    Returns when the receiver has stored and verified all of them. Those that one end could not read
    or store are in `failed` of the result, and the others are copied. Cancel it to stop: what the
    receiver has of a large file stays there, and the same call goes on from there.

    `paths`: a path or several; of a folder all below it; of FOLDER/. only what it contains; "-" is
    standard input. `name`: the name of the only one at the receiver. `follow`, `links`: below
    folders, send what symbolic links lead to, or keep those that lead to a place in the same
    folder. `exclude`: patterns of what is left out below folders, as in .gitignore. `update`: leave
    out files that the receiver has with the same size and date. `no_meta`: leave modes and times to
    the receiver. `no_resume`: send everything again. `rate`: bits per second at most; 0: no limit.

    `timeout`: seconds for connecting. `retry`: seconds in which a lost connection is tried again;
    0, with standard input, a one-time code or `no_resume`: not at all. `wait`: seconds to wait for
    a program that listens there. `context`: the Context to use; None: one is opened for each
    connection, with `config`. Its default is plain, as everywhere in the library. `list_files`:
    whether the result names the files. `on_progress` is called several times a second and for each
    event, in the event loop; it must not block, and an exception of it ends the transfer.

    Raises ArgumentError; FileError if nothing can be read; ConnectError or ResolveError if the
    receiver cannot be reached; PathError when all paths are lost; VerificationError if the received
    bytes differ; TransferError if the receiver refuses or stops. All are MrcErrors.
    """
    arguments = SendArguments(
        paths, host, port, name, follow, links, exclude, update, no_meta, no_resume, rate, timeout,
        retry, wait,
    )  # fmt: skip
    account = Account("sender", host, on_progress, list_files=list_files)
    return await _Sending(arguments, account, context, config).run()


class _Sending:
    """One transfer, over one connection or several, one after the other."""

    def __init__(
        self,
        arguments: SendArguments,
        account: Account,
        context: Context | None,
        config: ContextConfig | None,
    ) -> None:
        if context is not None and config is not None:
            raise ArgumentError("config: not with context, which has its own")
        self._arguments = arguments
        self._context, self._config = context, config or ContextConfig()
        self._account = account
        self._token = ""
        self._how = SendOptions(
            keep_meta=not arguments.no_meta,
            update=arguments.update,
            rate=arguments.rate,
            resume=not arguments.no_resume,
            on_resumed=self._on_resumed,
            on_grew=lambda path: account.tell(Grew(path)),
            on_failed=account.left_out,
            on_file=account.begin_file,
            waiting=account.waiting,
        )

    def _on_resumed(self, file: FileEntry, there: int) -> None:
        self._account.resumed(there)
        self._account.tell(Resumed(file.name, there, file.bytes))

    async def run(self) -> Transfer:
        how, account, arguments = self._how, self._account, self._arguments
        self._plan = plan = await in_thread(arguments.plan)
        account.tell(TransferPlanned(plan.excluded, tuple(plan.skipped)))
        for failed in plan.failed:
            account.left_out(failed)
        # Standard input cannot be read twice, and a code lets one peer in once.
        config = self._config if self._context is None else self._context.config
        with_code = config.security is not None and bool(config.security.code)
        from_stdin = STDIN in arguments.names()
        once = from_stdin or with_code or not how.resume
        retry = 0.0 if once else arguments.retry
        self._token = secrets.token_hex(TOKEN_BYTES) if retry else ""
        try:
            with Retry(retry, account.tell, first=arguments.wait) as trying:
                while True:
                    connected, before = False, plan.sent
                    try:
                        async with self._connected(trying) as session:
                            connected = True
                            return await self._send(session, trying.count)
                    except MrcError as error:
                        progress = plan.sent > before or how.stored_chunks > how.kept_chunks
                        await trying.wait(error, connected=connected, progress=progress)
        except VerificationError:
            raise  # nothing is kept
        except (Exception, asyncio.CancelledError):
            if how.stored_chunks and how.resume and not from_stdin:
                account.tell(Resumable())
            raise

    @asynccontextmanager
    async def _connected(self, trying: Retry) -> AsyncIterator[TransferSession]:
        plan = self._plan
        plan.connected()
        async with (
            mrc.open(self._config) if self._context is None else nullcontext(self._context) as ctx,
            connect_session(
                ctx,
                self._arguments.host,
                self._arguments.port,
                announced=plan.announced(),
                transfer=self._token,
                timeout=self._arguments.timeout,
            ) as session,
        ):
            trying.connected()
            carrying = {ev.plane for ev in await session.evs() if ev.state is EvState.GOOD}
            async with self._account.connection(session, plan.bytes, lambda: plan.there, carrying):
                yield session

    async def _send(self, session: TransferSession, retries: int) -> Transfer:
        """Sends what is left."""
        plan, account = self._plan, self._account
        await account.store(send_plan(session, plan, self._how))
        if plan.unchanged:
            account.tell(Unchanged(plan.unchanged))
        return await account.result(
            session,
            self._arguments.port,
            skipped=len(plan.skipped),
            excluded=plan.excluded,
            unchanged=plan.unchanged,
            retries=retries,
        )
