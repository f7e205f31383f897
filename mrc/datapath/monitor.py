# SPDX-License-Identifier: Apache-2.0
"""Reads the interfaces of this host when the kernel announces a change of links or addresses.

So mrc notices at once when a link of this host goes down. The engine itself detects failures
further away in a plane.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence

from mrc.errors import NetlinkError
from mrc.fabric.ports import Interface
from mrc.linux.interfaces import interfaces

logger = logging.getLogger("mrc.monitor")

# RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of linux/rtnetlink.h
_GROUPS = 0x1 | 0x10 | 0x100
_DATAGRAM_BYTES = 1 << 16

# After each update, a pause of this many times its CPU time: a flapping link costs at most a tenth
# of a core.
_PAUSE_FACTOR = 9
_PAUSE_SECONDS = (0.01, 0.5)
_RETRY_SECONDS = 2.0


async def link_snapshots(
    impatient: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Sequence[Interface]]:
    """Yields the interfaces now, and again after every change of a link or an address.

    This needs no privilege. A kernel message only triggers a new listing, so several messages can
    share one listing, and a lost message does no harm. While `impatient()` is true, this also
    yields every 2 s.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as events:
        events.setblocking(False)
        events.bind((0, _GROUPS))
        while True:
            started = time.thread_time()
            try:
                yield interfaces()
            except NetlinkError as error:
                logger.debug("interfaces: %s", error)  # they changed while they were listed
            shortest, longest = _PAUSE_SECONDS
            pause = _PAUSE_FACTOR * (time.thread_time() - started)
            await asyncio.sleep(min(max(pause, shortest), longest))
            try:
                async with asyncio.timeout(_RETRY_SECONDS if impatient() else None):
                    await _until_readable(loop, events)
            except TimeoutError:
                pass


async def _until_readable(loop: asyncio.AbstractEventLoop, events: socket.socket) -> None:
    """Waits for a message, then discards all queued messages."""
    arrived = asyncio.Event()
    loop.add_reader(events, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(events)
    try:
        while events.recv(_DATAGRAM_BYTES):
            pass
    except BlockingIOError:
        pass
    except OSError as error:
        logger.debug("link events were lost: %s", error)  # ENOBUFS: too many messages
