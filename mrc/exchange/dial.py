# SPDX-License-Identifier: Apache-2.0
"""Resolves a peer's name and opens the TCP connection of the exchange."""

from __future__ import annotations

import asyncio
import socket

from mrc.errors import ConnectError, ResolveError
from mrc.exchange.oob import Channel
from mrc.fabric.hostconfig import HostConfig


async def dial(config: HostConfig | None, host: str, port: int) -> Channel:
    """Connects to the first address of `host` that answers. Raises ResolveError or ConnectError.

    `host` is a configured peer, a name or an address.
    """
    name = host
    if config is not None:
        name = config.peers[host].oob if host in config.peers else host
        name = "localhost" if host == config.host else name
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ResolveError(f"{host}: no such host") from error
    failure: OSError | None = None
    for address in dict.fromkeys(info[4][0] for info in found):
        try:
            return Channel(*await asyncio.open_connection(str(address), port), called=host)
        except OSError as error:
            failure = error
    if isinstance(failure, ConnectionRefusedError):
        raise ConnectError(f"{host}: no program listens on TCP port {port}") from failure
    cause = failure.strerror if failure is not None else "no address"
    raise ConnectError(f"{host}: TCP port {port}: {cause}") from failure
