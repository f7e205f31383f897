# SPDX-License-Identifier: Apache-2.0
"""The listening side of the exchange: a TCP server that returns QPs ready to use.

A connecting peer holds a place (mrc.connect.admission). Until its hello, each of its messages has
to come within `Timeouts.hello` seconds, and the whole exchange within `Timeouts.exchange` seconds;
both limits grow with the peer's round trip (mrc.connect.oob). The listener creates no QP
before it has checked the hello.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Self

import mrc
from mrc.connect.admission import ConnectionPlace
from mrc.connect.connect import Local, Terms
from mrc.connect.dial import REJOIN
from mrc.connect.oob import (
    EXCHANGE_TRIPS,
    FRAME_BYTES,
    HELLO_BYTES,
    MESSAGE_TRIPS,
    Channel,
    CutOffError,
    Peer,
    patience,
)
from mrc.connect.tls import TLS
from mrc.engine import native
from mrc.errors import (
    BusyError,
    ConfigError,
    ConnectError,
    ConnectRefusedError,
    InUseError,
    Kind,
    MrcError,
    PeerGoneError,
    ResolveError,
    StateError,
    reason_of,
)
from mrc.linux.namespace import OWN, NetworkNamespace
from mrc.tasks import Opening, cancelled, took_cancellation, within
from mrc.units import digits

if TYPE_CHECKING:
    from mrc.connect.remote_view import RemoteView

logger = logging.getLogger("mrc.listener")

_BACKLOG = 1024  # large, so that one peer cannot fill it while the event loop is busy
_WAITED_FOR = 16  # refused peers that may read the reason at the same time; others are cut off
_LOG_SECONDS = 10.0
_LOG_LINES = 5  # logged refusals in _LOG_SECONDS


class Listener:
    """Accepts peers. An async context manager, and an async iterator over their QPs."""

    def __init__(
        self,
        local: Local,
        terms: Terms,
        adopt: Callable[[mrc.QP], mrc.QP],
        viewers: RemoteView,
        choose: Callable[[], AbstractContextManager[Local]] | None = None,
    ) -> None:
        """`choose`: the engine of a QP that connects inside; None: all are of `local`."""
        self._local = local
        self._choose = choose or (lambda: nullcontext(local))
        self._viewers = viewers
        self._large_hello = asyncio.Lock()
        self._turned_away = 0
        self._log_since = 0.0
        self._logged = 0
        self._terms = terms
        self._adopt = adopt
        self._server: asyncio.Server | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        self._ready: deque[tuple[mrc.QP, Callable[[], None]]] = deque()
        self._changed = asyncio.Condition()
        self._port = 0

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        return self._port

    async def _open(self, host: str | None, port: int) -> None:
        """Starts to listen on one address, or on all (None); port 0 selects a free port."""
        if self._local.guard is not None:
            self._local.guard.prepare()
            native.aead_name()
        tcp = _listening_socket(host, port, self._local.config.namespace)
        self._port = tcp.getsockname()[1]
        self._server = await asyncio.start_server(
            self._on_peer, sock=tcp, limit=FRAME_BYTES, backlog=_BACKLOG
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def accept(self, *, timeout: float | None = None) -> Opening[mrc.QP]:
        """The next peer's QP: `async with listener.accept() as qp`.

        Raises TimeoutError when no peer connects within `timeout` seconds, StateError when the
        listener is closed.
        """
        return Opening(self._accept(timeout))

    async def _accept(self, timeout: float | None) -> mrc.QP:
        self._local.dispatcher.check_open()
        async with within(timeout), self._changed:
            await self._changed.wait_for(lambda: self._ready or self._server is None)
            if not self._ready:
                raise StateError("the listener is closed")
            qp, accept = self._ready.popleft()
            accept()
            return qp

    def __aiter__(self) -> AsyncIterator[mrc.QP]:
        """The QPs of all peers, until the listener is closed."""
        return _Accepted(self)

    async def close(self) -> None:
        """Stops listening, cancels running exchanges, and closes QPs that were not accepted."""
        if self._local.dispatcher.gone:
            return  # in a child of fork the parent closes it; otherwise the event loop has ended
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        await cancelled(*self._exchanges)
        async with self._changed:
            self._changed.notify_all()
        await self._viewers.close()
        while self._ready:
            await self._ready.popleft()[0].close()

    def _is_open(self) -> bool:
        return self._server is not None

    async def _on_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            channel = Channel(reader, writer)
        except OSError as error:
            logger.debug("a peer went away at once: %s", error)
            writer.transport.abort()
            return
        if not self._is_open():
            channel.abort()  # the peer connected while the listener was closing
            return

        def drop() -> None:
            task.cancel()

        self._exchanges.add(task)
        try:
            try:
                place = self._local.admission.enter(
                    channel.remote, channel.descriptor, drop, now=_now()
                )
            except ConnectError as error:
                await self._turn_away(channel, error)
            else:
                channel.at_end(place.leave)
                channel.watchers.append(lambda: place.hear(_now()))
                await self._admit(channel, place)
        except asyncio.CancelledError:
            # Admission gave this place to another peer, or the listener closes. The task ends
            # normally because asyncio would report a cancelled task as an error.
            took_cancellation()
            if self._is_open():
                channel.abort()
            else:
                try:
                    await channel.refuse("it stops listening")
                except asyncio.CancelledError:  # the event loop ends, too
                    took_cancellation()
                    channel.abort()
        except Exception as error:
            # A bug in the exchange with one peer must not end the exchanges with other peers.
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{where.filename}:{where.lineno}"
            logger.error("bug in an exchange: %s: %s (%s)", type(error).__name__, error, at)
            with suppress(RuntimeError):  # the event loop has ended
                await channel.refuse("mrc has failed there: its log says how")
        finally:
            self._exchanges.discard(task)

    async def _admit(self, channel: Channel, place: ConnectionPlace) -> None:
        config = self._local.config
        seconds = min(config.timeouts.hello, config.timeouts.exchange)
        channel.limit_silence(on=True)
        try:
            async with patience(channel, config.timeouts.exchange, EXCHANGE_TRIPS):
                async with patience(channel, seconds, MESSAGE_TRIPS, anew=True):
                    kind = await channel.peek(HELLO_BYTES, self._large_hello)
                    if kind == TLS:
                        kind = await self._let_prove(channel, place)
                await self._check_plain(channel)
                seconds = config.timeouts.exchange
                if kind == self._viewers.TOP:
                    channel.limit_silence(on=False)
                    await self._viewers.admit(channel)
                    place.accept()
                    return
                if kind == REJOIN:
                    await self._local.rejoins.take(channel)
                    channel.limit_silence(on=False)
                    place.accept()
                    return
                end = await self._answer(channel)
                channel.limit_silence(on=False)
        except TimeoutError:
            # Busy: a peer that was stopped meanwhile connects again.
            late = BusyError(f"the exchange did not finish within {digits(seconds)} s")
            await self._refuse(channel, late)
        except (PeerGoneError, CutOffError) as error:
            logger.debug("%s: %s", channel.remote, error)
            channel.abort()
        except ConnectRefusedError as error:
            self._log(f"{channel.remote} refused this host: {error.reason}")
            await channel.close()
        except (MrcError, OSError) as error:
            await self._refuse(channel, error)
        else:
            if end is not None:
                place.connect(_now())
                await self._deliver(end, place.accept)

    async def _answer(self, channel: Channel) -> mrc.QP | None:
        """This side's part of the exchange, from the peer's hello on, which is peeked. None: the
        peer wanted no QP, and has its answer.
        """
        name, private = map(channel.peeked.get, ("host", "private"))
        try:
            with self._choose() as local:
                return await local.establish(channel, self._terms, first=False)
        except (PeerGoneError, BusyError, CutOffError):
            raise  # the peer may try again
        except MrcError as error:
            if self._terms.failed is not None and isinstance(private, dict):
                self._terms.failed(Peer._at(channel, str(name), private), error)
            raise

    async def _deliver(self, end: mrc.QP, accept: Callable[[], None]) -> None:
        """Gives a connected QP to the caller; `accept` is to be called when he has it."""
        qp = self._adopt(end)
        async with self._changed:
            self._ready.append((qp, accept))
            self._changed.notify()

    async def _let_prove(self, channel: Channel, place: ConnectionPlace) -> str:
        """Encrypts the exchange and has the peer prove itself. The type of its next message."""
        guard = self._local.guard
        if guard is None:
            await channel.receive()
            raise ConnectError(
                "this host runs with --insecure: use it on both hosts, or on neither"
            )
        place.attempt(_now())
        await guard.accept(channel)
        if not guard.security.allow_any:  # otherwise any key is right
            place.prove(_now())
        return await channel.peek(HELLO_BYTES, self._large_hello)

    async def _check_plain(self, channel: Channel) -> None:
        """Raises ConnectError for a plain exchange that is not allowed."""
        guard = self._local.guard
        if guard is None or channel.secured:
            return
        if not (await guard.allows_plain(channel)):
            raise ConnectError(
                "this host accepts encrypted exchanges only: connect without --insecure, and on the"
                " same host also with --peer, --secret, --ca or --code"
            )

    async def _turn_away(self, channel: Channel, error: ConnectError) -> None:
        """Refuses a peer that gets no place. In a flood, only a few peers may read the reason."""
        self._log(f"refused {channel.remote}: {error}")
        self._turned_away += 1
        try:
            few = self._turned_away <= _WAITED_FOR
            await channel.refuse(str(error), error.kind, unread=few)
        finally:
            self._turned_away -= 1

    async def _refuse(self, channel: Channel, error: MrcError | OSError) -> None:
        self._log(f"refused {channel.remote}: {error}")
        await channel.refuse(reason_of(error), Kind.of(error))

    def _log(self, refusal: str) -> None:
        """Logs the first _LOG_LINES refusals of each period, so strangers cannot fill the log."""
        now = _now()
        if now - self._log_since > _LOG_SECONDS:
            if self._logged > _LOG_LINES:
                logger.warning("refused %d more connections", self._logged - _LOG_LINES)
            self._log_since, self._logged = now, 0
        self._logged += 1
        if self._logged <= _LOG_LINES:
            logger.warning("%s", refusal)


class _Accepted(AsyncIterator["mrc.QP"]):
    # Not a generator: a generator ends for good when one wait for a peer is cancelled.
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def __anext__(self) -> mrc.QP:
        if not self._listener._is_open():
            raise StopAsyncIteration
        try:
            return await self._listener.accept()
        except StateError:
            raise StopAsyncIteration from None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _listening_socket(
    host: str | None, port: int, namespace: NetworkNamespace = OWN
) -> socket.socket:
    """A socket on `host`; None: on every address of all IP versions that this host supports."""
    try:
        if host is not None:
            address = namespace.addresses(host, socket.AI_PASSIVE)[0]
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return _listening_at(namespace, family, (address, port), only_its_version=True)
        # `socket.has_dualstack_ipv6` is no help: it takes any error, such as too many open files,
        # for a host without IPv6.
        try:
            return _listening_at(namespace, socket.AF_INET6, ("", port), only_its_version=False)
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
        return _listening_at(namespace, socket.AF_INET, ("", port), only_its_version=True)
    except socket.gaierror as error:
        raise ResolveError(f"cannot listen on {host}: it does not resolve to an address") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InUseError(f"TCP port {port} is in use: choose another") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"cannot listen on {host}: it is not an address of this host"
            ) from error
        raise


def _listening_at(
    namespace: NetworkNamespace, family: int, address: tuple[str, int], *, only_its_version: bool
) -> socket.socket:
    opened = namespace.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_its_version)
        opened.bind(address)
        opened.listen(_BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened
