# SPDX-License-Identifier: Apache-2.0
"""The TCP connection to a peer: opened, and opened again while a QP runs.

The side that has connected opens it again if it is lost, if its address has gone, or if no plane
reaches one of its interfaces any more. It leads to where the first one led, or to another address
that the peer has proved. This side proves itself anew. A token of the listener's hello names the
QP; without TLS it is as secret as all else of the exchange. Until then the QP goes on: it only
cannot tell its peer of new ports, nor that it ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from mrc.connect.failures import unconnected
from mrc.connect.oob import Channel
from mrc.connect.tls import Guard, QuestionError
from mrc.errors import ConnectError, MrcError
from mrc.fabric.hostconfig import HostConfig, IpAddress
from mrc.linux.namespace import OWN, NetworkNamespace, numeric
from mrc.tasks import cancelled, within

if TYPE_CHECKING:
    from mrc.aio.qp import QP

logger = logging.getLogger("mrc.connect")

REJOIN = "rejoin"
"""the first message on the new connection, and its answer"""
_TOKEN_BYTES = 16
_FIRST_PAUSE_SECONDS = 0.1  # between two tries; doubles
_LONGEST_PAUSE_SECONDS = 4.0
_TRY_SECONDS = 5.0
_HEAD_START_SECONDS = 0.25  # of each address of a peer over the next one


# ---- Opened ---------------------------------------------------------------------------------


async def dial(
    config: HostConfig | None,
    host: str,
    port: int,
    source: IpAddress | None = None,
    others: Collection[IpAddress] = (),
    namespace: NetworkNamespace = OWN,
) -> Channel:
    """Connects to the address of `host` that answers first. Raises ResolveError or ConnectError.

    `host` is a configured peer, a name or an address. `source`: the address of this host to connect
    from, if that leads there. `others`: further addresses of that host. `namespace`: of this host.
    """
    name = host
    if config is not None:
        name = config.peers[host].oob if host in config.peers else host
        name = "localhost" if host == config.host else name
    found: list[str] = []
    try:
        found = await resolve(namespace, name, port)
    except (socket.gaierror, UnicodeError) as error:
        if not others:
            raise unconnected(host, port, error) from error
    known = (str(each) for each in others if not each.is_link_local)  # which has no zone
    addresses = list(dict.fromkeys([*found, *known]))
    sources = [None] if source is None else [(str(source), 0), None]
    ways = [(address, each) for address in addresses for each in sources]
    try:
        return Channel(*await _first(ways, port, namespace), called=host)
    except OSError as error:
        raise unconnected(host, port, error) from error


async def resolve(namespace: NetworkNamespace, name: str, port: int) -> list[str]:
    """The addresses of a name, each with its zone if it has one. Raises socket.gaierror or
    UnicodeError.
    """
    loop = asyncio.get_running_loop()
    if namespace != OWN:
        return await loop.run_in_executor(None, namespace.addresses, name)
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [numeric(address) for *_, address in found]


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_TcpSource = tuple[str, int] | None


async def open_connection(
    namespace: NetworkNamespace, address: str, port: int, source: _TcpSource = None
) -> _Streams:
    """As `asyncio.open_connection` to a numeric address; `source`: its `local_addr`."""
    if namespace == OWN:
        return await asyncio.open_connection(address, port, local_addr=source)
    opened = namespace.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
    )
    try:
        opened.setblocking(False)
        if source is not None:
            opened.bind(source)
        await asyncio.get_running_loop().sock_connect(opened, (address, port))
        return await asyncio.open_connection(sock=opened)
    except BaseException:
        opened.close()
        raise


async def _first(
    ways: Iterable[tuple[str, _TcpSource]], port: int, namespace: NetworkNamespace = OWN
) -> _Streams:
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
                opening = open_connection(namespace, address, port, source)
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
        await cancelled(*attempts)
        for task in attempts:  # a connection may have come at the same time
            if not task.cancelled() and task.exception() is None:
                task.result()[1].close()


# ---- Opened again ---------------------------------------------------------------------------


class Rejoins:
    """The QPs of a listener by their tokens."""

    def __init__(self) -> None:
        self._qps: WeakValueDictionary[str, QP] = WeakValueDictionary()

    def add(self, token: str, qp: QP) -> None:
        """From now on the peer of the QP may come again."""
        self._qps[token] = qp

    async def take(self, channel: Channel) -> None:
        """Gives a new connection to its QP; raises ConnectError if none may have it."""
        message = await channel.expect(REJOIN)
        qp = self._qps.get(str(message.get("token")))
        if qp is None or qp.closed or channel.peer_identity != qp.peer.identity:
            raise ConnectError("this host has no such QP")
        await channel.send(REJOIN)
        qp._take_channel(channel)


def new_token() -> str:
    """Names a QP, and nobody can guess it."""
    return secrets.token_hex(_TOKEN_BYTES)


Dial = Callable[[], Awaitable[Channel]]
"""opens a TCP connection to the peer"""


async def rejoined(dial: Dial, guard: Guard | None, token: str, rng: random.Random) -> Channel:
    """A new connection to the QP of this token at the peer; tries until it is cancelled. Raises
    MrcError when the peer has no such QP any more.
    """
    pause = _FIRST_PAUSE_SECONDS
    while True:
        channel: Channel | None = None
        try:
            async with within(_TRY_SECONDS):
                channel = await dial()
                if guard is not None:
                    await guard.connect(channel)
                await channel.send(REJOIN, token=token)
                await channel.expect(REJOIN)
                return channel
        except (MrcError, OSError, TimeoutError, QuestionError) as error:
            logger.debug("the connection is not open again: %s", error)
            if channel is not None:
                channel.abort()
        except asyncio.CancelledError:
            if channel is not None:
                channel.abort()
            raise
        await asyncio.sleep(rng.uniform(pause / 2, pause))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


Rejoin = Callable[[], Awaitable[Channel]]
"""`rejoined` of one QP"""
