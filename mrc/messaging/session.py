# SPDX-License-Identifier: Apache-2.0
"""A session: one QP with a mailbox, and errors when the peer fails. File transfer and perf use it.

The listening side sends the name of its service as private data, so a peer that connected to the
wrong port sees it. The connecting side sends service and version; the accepting side checks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.binding.verbs import RemoteMemory
from mrc.enums import WcStatus
from mrc.errors import (
    CompletionError,
    MrcError,
    PathError,
    PeerGoneError,
    ProtocolError,
    reason_of,
)
from mrc.events import Immediate
from mrc.exchange.foreign import shown
from mrc.messaging.mailbox import MAILBOX_BYTES, MAX_MESSAGE_BYTES, Mailbox, Message, mailbox_memory
from mrc.observe.visits import Visits
from mrc.tasks import cancelled

LOST_TIMEOUTS = 3  # local timeouts in a row; they are fewer while at least one path works
VISIT_SECONDS = 10.0  # longest visit of a peer that only looks at paths (`mrc paths`)
MAX_VISITS = 16  # most visits at one time in this process
CAUSE_SECONDS = 0.5  # wait for the error of the QP, which follows the first failed work request

T = TypeVar("T")


class SessionError(MrcError):
    """The session failed; the message names the end that failed and the cause."""


class Service(Struct, frozen=True):
    """A service that a session provides."""

    name: str  # for programs
    title: str  # for people
    version: int
    answer_bytes: int = MAX_MESSAGE_BYTES  # limit on a message to the connecting peer


class Session(Struct, frozen=True):
    """One connected QP with its mailbox."""

    ctx: Context
    qp: QP
    mailbox: Mailbox
    held: AsyncExitStack  # released after the QP, which may use this memory until its end

    async def watched(
        self, work: Coroutine[Any, Any, T], *more: Coroutine[Any, Any, NoReturn]
    ) -> T:
        """The result of `work`; raises when the QP ends or one of `more` raises first."""
        async with self._explaining():
            return await race(work, self.mailbox.failed(), *more)

    async def receive(self) -> Message | Immediate:
        """The next item of the mailbox; raises when the QP ends. If cancelled, it takes no item.

        This does not use `watched`: a failed mailbox raises by itself, and two tasks for each item
        would cost more than the rest of its processing.
        """
        async with self._explaining():
            return await self.mailbox.receive()

    @asynccontextmanager
    async def _explaining(self) -> AsyncIterator[None]:
        """Converts errors of the QP into errors of the session."""
        try:
            yield
        except CompletionError as error:
            raise await self._explain(error) from error
        except PeerGoneError as error:
            # The peer may have found all paths lost before we did, and so have closed its QP.
            if (await self.qp.query()).timeouts >= LOST_TIMEOUTS:
                raise paths_lost(self.qp.peer_host) from error
            raise

    async def _explain(self, error: CompletionError) -> MrcError:
        """The error of the session for a failed work request."""
        try:
            # The error of the QP itself says more than the flush error of a work request.
            async with asyncio.timeout(CAUSE_SECONDS):
                await self.mailbox.failed()
        except TimeoutError:
            return explain(error, self.qp.peer_host)
        except CompletionError as cause:
            return explain(cause, self.qp.peer_host)
        except MrcError as cause:
            return cause


def paths_lost(host: str) -> PathError:
    return PathError(
        f"all paths to {host} are lost: it acknowledges no packets; `mrc paths {host}` shows"
        " which paths answer"
    )


def explain(error: CompletionError, host: str) -> MrcError:
    if error.status is WcStatus.RETRY_EXC_ERR:
        return paths_lost(host)
    return SessionError(f"the connection to {host} failed: {error}")


async def race(work: Coroutine[Any, Any, T], *watchers: Coroutine[Any, Any, NoReturn]) -> T:
    """The result of `work`; raises the first error of `watchers` if one raises before the end."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in (work, *watchers)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        result: T = next(task for task in tasks if task.done()).result()
        return result
    finally:
        await cancelled(*tasks)


@asynccontextmanager
async def connect_session(
    ctx: Context,
    host: str,
    port: int,
    service: Service,
    *,
    private: dict[str, Any] | None = None,
    timeout: float,
) -> AsyncIterator[Session]:
    """A session with the peer that serves `service` at `host`; the peer also gets `private`."""
    async with AsyncExitStack() as held:
        memory = await held.enter_async_context(mailbox_memory(ctx))
        about = {
            **(private or {}),
            "service": service.name,
            "version": service.version,
            "inbox": memory.inbox_mr.remote.to_dict(),
        }
        async with await ctx.connect(host, port, private=about, timeout=timeout) as qp:
            _check_service(qp, service, f"{host}: TCP port {port}")
            mailbox = Mailbox(qp, memory, most_bytes=service.answer_bytes)
            async with _opened(mailbox, qp.peer_host):
                yield Session(ctx, qp, mailbox, held)


@asynccontextmanager
async def accept_session(ctx: Context, qp: QP, service: Service) -> AsyncIterator[Session]:
    """A session with the peer of an accepted `qp`; closes the QP at the end."""
    async with AsyncExitStack() as held:
        try:
            held.enter_context(ctx._peer_memory.taken(qp.peer_address, MAILBOX_BYTES))
            memory = await held.enter_async_context(mailbox_memory(ctx))
        except BaseException as error:
            await qp.abort(reason_of(error))
            raise
        async with qp:
            mailbox = Mailbox(qp, memory, peer=_inbox_of(qp, service))
            async with _opened(mailbox, qp.peer_host):
                yield Session(ctx, qp, mailbox, held)


def _check_service(qp: QP, service: Service, where: str) -> None:
    served = qp.private.get("service")
    if served != service.name:
        raise SessionError(
            f"{where} serves '{shown(served, 40)}', not {service.name!r}: is it the wrong port?"
        )


def _inbox_of(qp: QP, service: Service) -> RemoteMemory:
    """The peer's inbox; raises ProtocolError if the peer has another version of the service."""
    version = qp.private.get("version")
    if version != service.version:
        raise ProtocolError(
            f"{qp.peer_host} speaks version {shown(version, 20)} of the {service.title}, this host"
            f" version {service.version}; install the same mrc on both hosts"
        )
    return RemoteMemory.from_dict(qp.private.get("inbox"))


@asynccontextmanager
async def _opened(mailbox: Mailbox, host: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(mailbox)
        except CompletionError as error:
            raise explain(error, host) from error
        yield


_visits = Visits(MAX_VISITS)


async def let_look(qp: QP) -> None:
    """Keeps a QP open for a peer that only looks at its paths, then closes the QP. It closes
    earlier when all places are taken and a peer of another source has fewer of them.
    """
    async with qp:
        visit = _visits.admit(qp.peer_address)
        if visit is None:
            return
        visit.ask()  # it has connected
        looking = asyncio.create_task(qp.until_peer_gone())
        _visits.start(visit, looking)
        try:
            await asyncio.wait((looking,), timeout=VISIT_SECONDS)
        finally:
            await cancelled(looking)
