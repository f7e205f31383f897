# SPDX-License-Identifier: Apache-2.0
"""Snapshots for viewers on other hosts, over the TCP port of the exchange.

This port has no authentication, and a snapshot names peers, paths and how much is moved. So it is
shown only where the owner said so (`ContextConfig.remote_view`), to a few at a time, and without
numbers of QPs, EVs and ports: they are what protects a QP against forged packets.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from mrc.errors import MrcError, ProtocolError
from mrc.exchange.oob import SNAPSHOT_BYTES, TOP, Channel
from mrc.observe.snapshot import public
from mrc.results.plain import plain
from mrc.results.snapshot import Snapshot
from mrc.tasks import cancelled

logger = logging.getLogger("mrc.observe")

VERSION = 1
MAX_VIEWERS = 4
PAUSE_SECONDS = 0.1  # at least, between two answers
PATIENCE_SECONDS = 60.0  # with a viewer that does not ask


class RemoteView:
    """Answers viewers that came to one listener; without `show`, refuses them."""

    def __init__(self, show: Callable[[], Awaitable[Snapshot]] | None) -> None:
        self._show = show
        self._key = secrets.token_bytes(16)
        self._visits: set[asyncio.Task[None]] = set()

    async def admit(self, channel: Channel) -> None:
        """Takes a connection over whose first message is of type TOP."""
        if self._show is None:
            await channel.refuse("it shows itself to nobody: start it with --top")
        elif len(self._visits) >= MAX_VIEWERS:
            await channel.refuse("too many are looking already")
        else:
            visit = asyncio.create_task(self._answer(channel, self._show))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)

    async def _answer(self, channel: Channel, show: Callable[[], Awaitable[Snapshot]]) -> None:
        try:
            while True:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    message = await channel.expect(TOP)
                if message.get("version") != VERSION:
                    await channel.refuse(f"snapshots of version {VERSION} only")
                    return
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await channel.send(TOP, snapshot=plain(public(await show(), self._key)))
                await asyncio.sleep(PAUSE_SECONDS)
        except (MrcError, OSError) as error:  # TimeoutError is an OSError
            logger.debug("a viewer went: %s", error)
        finally:
            channel.abort()

    async def close(self) -> None:
        """Ends every visit."""
        await cancelled(*self._visits)


async def look(channel: Channel) -> dict[str, Any]:
    """A snapshot of the peer; raises ConnectError when it refuses, and what `Channel` raises."""
    await channel.send(TOP, version=VERSION)
    found = (await channel.expect(TOP, SNAPSHOT_BYTES)).get("snapshot")
    if not isinstance(found, dict):
        raise ProtocolError("the peer sent no snapshot")
    return found
