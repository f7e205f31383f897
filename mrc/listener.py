# SPDX-License-Identifier: Apache-2.0
"""The listening side of the exchange: a TCP server that gives out QPs ready to use.

A stranger can hold no more than a place among `max_pending` for `exchange_timeout` seconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

from mrc.errors import InUseError, MrcError, PeerGoneError, ResolveError, StateError
from mrc.establish import Local, Terms, establish
from mrc.observe.remote import TOP, RemoteView
from mrc.oob import Channel
from mrc.qp import QP

logger = logging.getLogger("mrc.listener")

_BACKLOG = 128


class Listener:
    """Accepts peers. An async context manager, and an async iterator over their QPs."""

    def __init__(
        self,
        local: Local,
        terms: Terms,
        adopt: Callable[[QP], None],
        viewers: RemoteView,
    ) -> None:
        self._local = local
        self._viewers = viewers
        self._terms = terms
        self._adopt = adopt
        self._server: asyncio.Server | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        self._ready: deque[QP] = deque()
        self._changed = asyncio.Condition()
        self.port = 0

    async def open(self, host: str | None, port: int) -> None:
        """Starts to listen on one address, or on all; port 0 takes a free one."""
        tcp = _listening_socket(host, port)
        self.port = tcp.getsockname()[1]
        self._server = await asyncio.start_server(self._on_peer, sock=tcp)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def accept(self) -> QP:
        """Returns the next QP, ready to use; the caller closes it."""
        self._local.dispatcher.check_open()
        async with self._changed:
            await self._changed.wait_for(lambda: self._ready or self._server is None)
            if not self._ready:
                raise StateError("the listener is closed")
            return self._ready.popleft()

    async def __aiter__(self) -> AsyncIterator[QP]:
        """The QPs of all peers, until the listener is closed."""
        while self._server is not None:
            try:
                qp = await self.accept()
            except StateError:
                return
            yield qp

    async def close(self) -> None:
        """Stops listening, and ends exchanges under way and QPs that nobody accepted."""
        if self._local.dispatcher.gone:
            return  # the parent of a child of fork closes it, or nobody serves it any more
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        exchanges = list(self._exchanges)
        for task in exchanges:
            task.cancel()
        await asyncio.gather(*exchanges, return_exceptions=True)
        async with self._changed:
            self._changed.notify_all()
        await self._viewers.close()
        while self._ready:
            await self._ready.popleft().close()

    async def _on_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._exchanges.add(task)
        try:
            await self._admit(Channel(reader, writer))
        except OSError as error:
            logger.debug("a peer went away before its hello: %s", error)
            writer.transport.abort()
        finally:
            self._exchanges.discard(task)

    async def _admit(self, channel: Channel) -> None:
        config = self._local.config
        if self._server is None or len(self._exchanges) + len(self._ready) > config.max_pending:
            await channel.refuse("too many peers are connecting: try again later")
            return
        try:
            async with asyncio.timeout(config.exchange_timeout):
                if await channel.peek() == TOP:
                    await self._viewers.admit(channel)
                    return
                qp = await establish(self._local, channel, self._terms, first=False)
        except TimeoutError:
            await self._refuse(channel, f"not done within {config.exchange_timeout:g} s")
        except PeerGoneError as error:
            logger.debug("%s: %s", channel.remote, error)
            channel.abort()
        except (MrcError, OSError) as error:
            await self._refuse(channel, str(error))
        except asyncio.CancelledError:
            channel.abort()
            raise
        else:
            self._adopt(qp)
            async with self._changed:
                self._ready.append(qp)
                self._changed.notify()

    async def _refuse(self, channel: Channel, reason: str) -> None:
        logger.warning("refused %s: %s", channel.remote, reason)
        await channel.refuse(reason)


def _listening_socket(host: str | None, port: int) -> socket.socket:
    """A socket on `host`, or on every address of both IP versions where the host has both."""
    try:
        if host is not None:
            family, *_, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        return socket.create_server(("", port), backlog=_BACKLOG)
    except socket.gaierror as error:
        raise ResolveError(f"cannot listen on {host}: no such address here") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InUseError(f"TCP port {port} is taken: choose another") from error
        raise
