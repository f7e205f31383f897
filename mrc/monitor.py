# SPDX-License-Identifier: Apache-2.0
"""Tells the engine which ports have a link, as the kernel announces it.

A link that goes down is known at once this way; a plane that falls silent further away is found by
the engine itself.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from mrc import netlink
from mrc.paths import Interface, LocalPort

logger = logging.getLogger("mrc.monitor")

_GROUP_LINK = 1  # RTMGRP_LINK of linux/rtnetlink.h
_DATAGRAM_BYTES = 1 << 16


async def link_snapshots() -> AsyncIterator[Sequence[Interface]]:
    """The interfaces now, and again after every change of a link. Needs no privilege.

    A change is only a reason to look: so a message that the kernel could not deliver costs nothing.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as events:
        events.setblocking(False)
        events.bind((0, _GROUP_LINK))
        while True:
            yield netlink.interfaces()
            await _until_readable(loop, events)


async def _until_readable(loop: asyncio.AbstractEventLoop, events: socket.socket) -> None:
    """Waits for a message, and takes all there are."""
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
        logger.debug("link events were lost: %s", error)  # ENOBUFS: there were too many


def links_up(ports: Iterable[LocalPort], interfaces: Sequence[Interface]) -> dict[int, bool]:
    """Which planes have a link: an interface that is gone has none. Untied ports always do."""
    up = {interface.name for interface in interfaces if interface.up}
    return {port.plane: port.ifname in up for port in ports if port.ifname}


async def watch_links(
    ports: Sequence[LocalPort],
    snapshots: AsyncIterator[Sequence[Interface]],
    port_up: Callable[[int, bool], None],
) -> None:
    """Calls `port_up` for every port whose link changes; all are taken to be up at first."""
    known = {port.plane: True for port in ports}
    async for interfaces in snapshots:
        for plane, up in links_up(ports, interfaces).items():
            if up != known[plane]:
                known[plane] = up
                logger.info("plane %d: link is %s", plane, "up" if up else "down")
                port_up(plane, up)
