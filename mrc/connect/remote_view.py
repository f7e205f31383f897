# SPDX-License-Identifier: Apache-2.0
"""Snapshots for viewers on other hosts, over the TCP port of the exchange: what answers them, and
the viewer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mrc.connect.admission import PATIENCE_SECONDS, Visits
from mrc.connect.dial import dial
from mrc.connect.failures import about, timed_out
from mrc.connect.oob import SNAPSHOT_BYTES, Channel
from mrc.connect.security import Security
from mrc.connect.tls import Guard, QuestionError
from mrc.errors import Kind, MrcError, ProtocolError, reason_of
from mrc.fabric.hostconfig import HostConfig
from mrc.tasks import Limit, within
from mrc.units import digits

logger = logging.getLogger("mrc.observe")

T = TypeVar("T")
VIEW_VERSION = 1
MAX_REMOTE_VIEWERS = 4
PAUSE_SECONDS = 0.1  # minimum time between two answers


class RemoteView:
    """Answers the viewers of one listener; without `show`, rejects them.

    This port has no authentication, and a snapshot reveals peers, paths and amounts of data. So
    remote viewing is off unless `ContextConfig.remote_view` is set, the number of viewers is
    limited, and the snapshots omit QPNs, EVs and UDP ports, because these protect QPs against
    forged packets.
    """

    TOP = "top"
    """type of all messages between a viewer and a host"""

    def __init__(self, show: Callable[[bytes], Awaitable[dict[str, Any]]] | None) -> None:
        """`show` returns a snapshot for other hosts; its argument is a secret key for the names of
        QPs in it.
        """
        self._show = show
        self._key = secrets.token_bytes(16)
        self._visits = Visits(MAX_REMOTE_VIEWERS)

    async def admit(self, channel: Channel) -> None:
        """Takes over a connection whose first message is of type TOP."""
        if self._show is None:
            await channel.refuse("remote viewing is off: restart the program with --top")
        elif (visit := self._visits.admit(channel.remote)) is None:
            await channel.refuse(f"{MAX_REMOTE_VIEWERS} viewers are connected, which is the limit")
        else:
            task = asyncio.create_task(self._answer(channel, self._show, visit.ask))
            task.add_done_callback(lambda _: channel.abort())  # also if it never began
            self._visits.start(visit, task)

    async def _answer(
        self,
        channel: Channel,
        show: Callable[[bytes], Awaitable[dict[str, Any]]],
        ask: Callable[[], None],
    ) -> None:
        try:
            while True:
                async with within(PATIENCE_SECONDS):
                    message = await channel.expect(RemoteView.TOP)
                ask()
                if message.get("version") != VIEW_VERSION:
                    await channel.refuse(f"only version {VIEW_VERSION} of snapshots is supported")
                    return
                async with within(PATIENCE_SECONDS):
                    await channel.send(RemoteView.TOP, snapshot=await show(self._key))
                await asyncio.sleep(PAUSE_SECONDS)
        except (MrcError, OSError) as error:  # TimeoutError is an OSError
            logger.debug("a viewer disconnected: %s", error)

    async def close(self) -> None:
        """Ends every visit."""
        await self._visits.close(None)


# ---- The viewer ----------------------------------------------------------------------------------


_AGAIN_SECONDS = 0.5  # between two attempts to connect


async def look_at_peer(channel: Channel) -> dict[str, Any]:
    """A snapshot of the peer. Raises ConnectError if the peer refuses, and errors of `Channel`."""
    await channel.send(RemoteView.TOP, version=VIEW_VERSION)
    found = (await channel.expect(RemoteView.TOP, SNAPSHOT_BYTES)).get("snapshot")
    if not isinstance(found, dict):
        raise ProtocolError("the peer sent no snapshot")
    return found


class RemoteEndpoint:
    """The endpoint of another host, for a viewer. `timeout`, in seconds, limits each connect and
    each answer.
    """

    def __init__(
        self, host: str, port: int, security: Security | None, *, timeout: float, again: bool
    ) -> None:
        """`again`: looks connect again when the connection is lost."""
        self._host, self._port = host, port
        self._guard = None if security is None else Guard(security)
        self._timeout = timeout
        self._again = again
        self._channel: Channel | None = None
        self._pause = 0.0

    async def connect(self) -> None:
        """Asks the user about the host if that is necessary. If a later look may connect, this does
        not fail.
        """
        try:
            await self._dial()
        except QuestionError as question:
            assert self._guard is not None  # which has raised it
            await self._guard.ask(question)
            await self._dial()
        except MrcError as error:
            if not (self._again and error.may_pass):
                raise

    async def look(self, check: Callable[[dict[str, Any]], T]) -> T:
        """A snapshot, as `check` returns it."""
        if self._channel is None:
            await asyncio.sleep(self._pause)
            await self._dial()
        assert self._channel is not None
        try:
            with about(self._host, self._port):
                async with Limit(self._timeout):
                    return check(await look_at_peer(self._channel))
        except BaseException as error:
            if self._again:  # a late answer must not pass for the next one
                self.close()
            if isinstance(error, TimeoutError):
                late = f"{self._host}: no answer in {digits(self._timeout)} s"
                raise MrcError(late) from error
            raise

    async def _dial(self) -> None:
        """A connection to a host that has proved itself."""
        self._pause = _AGAIN_SECONDS
        host, port, channel = self._host, self._port, None
        with about(host, port):
            try:
                async with Limit(self._timeout):
                    channel = await dial(HostConfig.load(os.environ), host, port)
                    if self._guard is not None:
                        await self._guard.connect(channel)
            except TimeoutError as error:
                if channel is not None:
                    channel.abort()
                raise timed_out(host, port, self._timeout, channel) from error
            except MrcError as error:
                if channel is not None:
                    await channel.refuse(reason_of(error), Kind.of(error))
                raise
        self._channel, self._pause = channel, 0.0

    def close(self) -> None:
        if self._channel is not None:
            self._channel.abort()
            self._channel = None
