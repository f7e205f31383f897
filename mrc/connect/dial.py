# SPDX-License-Identifier: Apache-2.0
"""Resolves a peer's name and opens the TCP connection of the exchange."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from mrc.connect.oob import Channel
from mrc.errors import (
    BusyError,
    ConnectError,
    ConnectTimeoutError,
    MrcError,
    PathError,
    PeerGoneError,
    ResolveError,
)
from mrc.fabric.hostconfig import HostConfig, IpAddress
from mrc.tasks import cancelled

_HEAD_START_SECONDS = 0.25


async def dial(
    config: HostConfig | None, host: str, port: int, source: IpAddress | None = None
) -> Channel:
    """Connects to the address of `host` that answers first. Raises ResolveError or ConnectError.

    `host` is a configured peer, a name or an address. `source`: the address of this host to connect
    from, if that leads there.
    """
    name = host
    if config is not None:
        name = config.peers[host].oob if host in config.peers else host
        name = "localhost" if host == config.host else name
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise unconnected(host, port, error) from error
    addresses = list(dict.fromkeys(numeric(info[4]) for info in found))
    sources = [None] if source is None else [(str(source), 0), None]
    ways = [(address, each) for address in addresses for each in sources]
    try:
        return Channel(*await _first(ways, port), called=host)
    except OSError as error:
        raise unconnected(host, port, error) from error


def unconnected(
    host: str,
    port: int,
    error: OSError | UnicodeError,
    start: str = "start mrc recv, mrc perf --server or mrc agent there",
) -> ResolveError | ConnectError:
    """Why there is no TCP connection, and the remedy. `start`: what to do if no program listens."""
    if isinstance(error, UnicodeError):  # an empty or too long part
        return ResolveError(f"{host}: is not a host name")
    why = (error.strerror or str(error)).lower()
    if isinstance(error, socket.gaierror):
        check = "check the name, or give its address"
        return ResolveError(f"{host}: no such host: {why}: {check}")
    if isinstance(error, ConnectionRefusedError):
        return ConnectError(f"{host}: no program listens on TCP port {port}: {start}")
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        why = f"{why}: check its address, and the links and routes of both hosts"
    return ConnectError(f"{host}: TCP port {port}: {why}")


def may_pass(error: MrcError) -> bool:
    """Whether a later try to connect may succeed: nobody has refused."""
    if isinstance(error, (PathError, ConnectTimeoutError, BusyError, ResolveError, PeerGoneError)):
        return True
    cause: BaseException | None = error
    while isinstance(cause, ConnectError):  # each layer of the code adds its words
        cause = cause.__cause__
    network = isinstance(cause, OSError) and not isinstance(cause, (MrcError, ssl.SSLError))
    return isinstance(error, ConnectError) and network


def numeric(found: Sequence[str | int | bytes]) -> str:
    """The address of a result of getaddrinfo, with its zone if it has one."""
    zone = found[3] if len(found) > 3 else 0
    return f"{found[0]!s}%{zone!s}" if zone else str(found[0])


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Source = tuple[str, int] | None


async def _first(ways: Iterable[tuple[str, _Source]], port: int) -> _Streams:
    """The first connection to any of the addresses; raises the error of the last one.

    A host with several links has several addresses, and some may not answer. Each way gets a head
    start over the next one.
    """
    attempts: list[asyncio.Task[_Streams]] = []
    left, failure = deque(ways), OSError("no address")
    try:
        while left or not all(task.done() for task in attempts):
            if left:
                address, source = left.popleft()
                opening = asyncio.open_connection(address, port, local_addr=source)
                attempts.append(asyncio.create_task(opening))
            done, _ = await asyncio.wait(
                [task for task in attempts if not task.done()],
                timeout=_HEAD_START_SECONDS if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                try:
                    streams = task.result()
                except OSError as error:
                    failure = error
                else:
                    attempts.remove(task)
                    return streams
        raise failure
    finally:
        await _abandon(attempts)


async def _abandon(tasks: Collection[asyncio.Task[_Streams]]) -> None:
    """Ends attempts that are too late; closes connections that came at the same time."""
    await cancelled(*tasks)
    for task in tasks:
        if not task.cancelled() and task.exception() is None:
            task.result()[1].close()
