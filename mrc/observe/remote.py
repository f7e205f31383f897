# SPDX-License-Identifier: Apache-2.0
"""Snapshots for viewers on other hosts, over the TCP port of the exchange.

This port has no authentication, and a snapshot reveals peers, paths and amounts of data. So remote
viewing is off unless `ContextConfig.remote_view` is set, the number of viewers is limited, and the
snapshots omit QPNs, EVs and UDP ports, because these protect QPs against forged packets.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from mrc.connect.oob import SNAPSHOT_BYTES, TOP, Channel
from mrc.errors import MrcError, ProtocolError
from mrc.observe.snapshot import public
from mrc.observe.visits import PATIENCE_SECONDS, Visit, Visits
from mrc.results.plain import plain
from mrc.results.snapshot import Snapshot

logger = logging.getLogger("mrc.observe")

VERSION = 1
MAX_VIEWERS = 4
PAUSE_SECONDS = 0.1  # minimum time between two answers


class RemoteView:
    """Answers the viewers of one listener; without `show`, rejects them."""

    def __init__(self, show: Callable[[], Awaitable[Snapshot]] | None) -> None:
        self._show = show
        self._key = secrets.token_bytes(16)
        self._visits = Visits(MAX_VIEWERS)

    async def admit(self, channel: Channel) -> None:
        """Takes over a connection whose first message is of type TOP."""
        if self._show is None:
            await channel.refuse("remote viewing is off: restart the program with --top")
        elif (visit := self._visits.admit(channel.remote)) is None:
            await channel.refuse(f"{MAX_VIEWERS} viewers are connected, which is the limit")
        else:
            task = asyncio.create_task(self._answer(channel, self._show, visit))
            task.add_done_callback(lambda _: channel.abort())  # also if it never began
            self._visits.start(visit, task)

    async def _answer(
        self, channel: Channel, show: Callable[[], Awaitable[Snapshot]], visit: Visit
    ) -> None:
        try:
            while True:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    message = await channel.expect(TOP)
                visit.ask()
                if message.get("version") != VERSION:
                    await channel.refuse(f"only version {VERSION} of snapshots is supported")
                    return
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await channel.send(TOP, snapshot=plain(public(await show(), self._key)))
                await asyncio.sleep(PAUSE_SECONDS)
        except (MrcError, OSError) as error:  # TimeoutError is an OSError
            logger.debug("a viewer disconnected: %s", error)

    async def close(self) -> None:
        """Ends every visit."""
        await self._visits.close(None)


async def look(channel: Channel) -> dict[str, Any]:
    """A snapshot of the peer. Raises ConnectError if the peer refuses, and errors of `Channel`."""
    await channel.send(TOP, version=VERSION)
    found = (await channel.expect(TOP, SNAPSHOT_BYTES)).get("snapshot")
    if not isinstance(found, dict):
        raise ProtocolError("the peer sent no snapshot")
    return found
