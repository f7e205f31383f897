# SPDX-License-Identifier: Apache-2.0
"""One QP with a mailbox, and the watch over the peer's life: what two programs that talk over mrc
share, whatever they do.

Whoever listens gives the name of its service as private data, so that who connects by mistake
learns it; whoever connects names service and version, and whoever accepts checks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.binding.verbs import RemoteMemory
from mrc.enums import WcStatus
from mrc.errors import CompletionError, MrcError, PathError, PeerGoneError, ProtocolError
from mrc.exchange.foreign import shown
from mrc.messaging.mailbox import MAILBOX_BYTES, MAX_MESSAGE_BYTES, Mailbox, Message, mailbox_memory
from mrc.tasks import cancelled

LOST_TIMEOUTS = 3  # local timeouts in a row that no living path lets happen
VISIT_SECONDS = 10.0  # a peer that only looks at paths is let in for so long
MAX_VISITS = 16  # of such peers at a time, in this process
CAUSE_SECONDS = 0.5  # a QP's end follows its first failed work request at once

T = TypeVar("T")


class SessionError(MrcError):
    """The work with the peer failed; the message says at which end and why."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the peer that connects wants: a name for programs, another for people, a version."""

    name: str
    title: str
    version: int
    answer_bytes: int = MAX_MESSAGE_BYTES  # of a message to the peer that connects, at most


@dataclass(frozen=True, slots=True)
class Session:
    """One connected QP with its mailbox."""

    ctx: Context
    qp: QP
    mailbox: Mailbox
    held: AsyncExitStack  # released only after the QP, which may read or write there until its end

    async def watched(
        self, work: Coroutine[Any, Any, T], *more: Coroutine[Any, Any, NoReturn]
    ) -> T:
        """The result of `work`, unless the QP ends or one of `more` raises before."""
        async with self._explaining():
            return await race(work, self.mailbox.failed(), *more)

    async def receive(self) -> Message | int:
        """The next item of the mailbox, unless the QP ends. Cancelled, it has taken none.

        Not by `watched`: a mailbox that has failed says so itself, and two tasks for each item
        would cost more than all else that is done for it.
        """
        async with self._explaining():
            return await self.mailbox.receive()

    @asynccontextmanager
    async def _explaining(self) -> AsyncIterator[None]:
        """Says what errors mean for the session."""
        try:
            yield
        except CompletionError as error:
            raise await self._explain(error) from error
        except PeerGoneError as error:
            # A peer that found all paths lost before we did has given up for the same reason.
            if (await self.qp.query()).timeouts >= LOST_TIMEOUTS:
                raise paths_lost(self.qp.peer_host) from error
            raise

    async def _explain(self, error: CompletionError) -> MrcError:
        """What a failed work request means for the session."""
        try:
            # What the QP itself died of says more than that its work requests were flushed.
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
        f"all paths to {host} are lost: nothing sent there is acknowledged any more; `mrc paths"
        f" {host}` shows which answer"
    )


def explain(error: CompletionError, host: str) -> MrcError:
    if error.status is WcStatus.RETRY_EXC_ERR:
        return paths_lost(host)
    return SessionError(f"the connection with {host} broke: {error}")


async def race(work: Coroutine[Any, Any, T], *watchers: Coroutine[Any, Any, NoReturn]) -> T:
    """The result of `work`, or the error of the first of `watchers` to raise one before."""
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
    """A session with whoever serves `service` at `host`, which learns `private` too."""
    async with AsyncExitStack() as held:
        memory = await held.enter_async_context(mailbox_memory(ctx))
        about = {
            **(private or {}),
            "service": service.name,
            "version": service.version,
            "inbox": memory.inbox_mr.remote.to_json(),
        }
        async with await ctx.connect(host, port, private=about, timeout=timeout) as qp:
            _check_service(qp, service, f"{host}: TCP port {port}")
            mailbox = Mailbox(qp, memory, most_bytes=service.answer_bytes)
            async with _opened(mailbox, qp.peer_host):
                yield Session(ctx, qp, mailbox, held)


@asynccontextmanager
async def accept_session(ctx: Context, qp: QP, service: Service) -> AsyncIterator[Session]:
    """A session with the peer that connected `qp`, which this closes at the end."""
    async with AsyncExitStack() as held:
        try:
            held.enter_context(ctx.peer_memory.taken(qp.peer_address, MAILBOX_BYTES))
            memory = await held.enter_async_context(mailbox_memory(ctx))
        except BaseException:
            await qp.abort()
            raise
        async with qp:
            mailbox = Mailbox(qp, memory, peer=_inbox_of(qp, service))
            async with _opened(mailbox, qp.peer_host):
                yield Session(ctx, qp, mailbox, held)


def _check_service(qp: QP, service: Service, where: str) -> None:
    served = qp.private.get("service")
    if served != service.name:
        raise SessionError(
            f"{where} serves '{shown(served, 40)}', not {service.name!r}: the wrong port?"
        )


def _inbox_of(qp: QP, service: Service) -> RemoteMemory:
    """The peer's inbox, if it speaks our version of the service."""
    version = qp.private.get("version")
    if version != service.version:
        raise ProtocolError(
            f"{qp.peer_host} speaks version {shown(version, 20)} of the {service.title}, this is"
            f" version {service.version}; install the same mrc at both ends"
        )
    return RemoteMemory.from_json(qp.private.get("inbox"))


@asynccontextmanager
async def _opened(mailbox: Mailbox, host: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(mailbox)
        except CompletionError as error:
            raise explain(error, host) from error
        yield


_visits: set[asyncio.Event] = set()


async def let_look(qp: QP) -> None:
    """Keeps a QP open for a peer that wants to see its paths and nothing else, then closes it."""
    async with qp:
        if len(_visits) >= MAX_VISITS:
            return
        _visits.add(qp.peer_gone)
        try:
            async with asyncio.timeout(VISIT_SECONDS):
                await qp.peer_gone.wait()
        except TimeoutError:
            pass
        finally:
            _visits.discard(qp.peer_gone)
