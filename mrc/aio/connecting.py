# SPDX-License-Identifier: Apache-2.0
"""The connecting side of the exchange: from the name of a host to this end of a QP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mrc.aio.engines import Local, Terms
from mrc.aio.establish import establish
from mrc.aio.qp import QP
from mrc.connect.dial import dial
from mrc.connect.oob import EXCHANGE_TRIPS, Channel, CutOffError, extended
from mrc.connect.proof import NoAnswerError
from mrc.connect.tls import QuestionError
from mrc.errors import (
    BusyError,
    ConnectRefusedError,
    ConnectTimeoutError,
    MrcError,
    PeerGoneError,
    ProtocolError,
    kind_of,
    reason_of,
    reworded,
)
from mrc.running import Limit
from mrc.units import digits

logger = logging.getLogger("mrc.connect")

_FIRST_PAUSE_SECONDS = 0.05  # doubles after each refusal by a busy peer
_LONGEST_PAUSE_SECONDS = 0.4
_DROPS = 8  # a connection that the peer drops counts as busy up to this many times


async def connect(local: Local, terms: Terms, host: str, port: int, *, timeout: float) -> QP:
    """As `Context.connect`; retries while the peer is busy.

    A user who is asked about the peer, or for its code, has all the time he wants: nobody waits
    meanwhile.
    """
    try:
        return await _connect(local, terms, host, port, timeout)
    except QuestionError as question:
        assert local.guard is not None  # which has raised it
        await local.guard.ask(question)
    return await _connect(local, terms, host, port, timeout)


async def _connect(local: Local, terms: Terms, host: str, port: int, timeout: float) -> QP:
    attempt = _Attempt(local, terms, host, port)
    with about(host, port):
        try:
            async with Limit(timeout) as limit:
                return await attempt.run(limit)
        except TimeoutError as error:
            heard = attempt.channel is not None and attempt.channel.received_bytes > 0
            if attempt.busy is not None and not heard:
                raise attempt.busy from error
            await attempt.refuse(error)
            raise timed_out(host, port, timeout, attempt.channel) from error
        except (Exception, asyncio.CancelledError) as error:
            await attempt.refuse(error)
            raise


class _Attempt:
    def __init__(self, local: Local, terms: Terms, host: str, port: int) -> None:
        self._local = local
        self._terms = terms
        self._host = host
        self._port = port
        self.channel: Channel | None = None
        self.busy: MrcError | None = None
        """The last refusal by a busy peer."""

    async def run(self, limit: Limit) -> QP:
        """Connects; the round trip to the peer extends the limit."""
        seconds = limit.seconds
        srv6 = self._local.srv6
        expected = self._host if srv6 and self._host in srv6.peers else ""
        pause, drops = _FIRST_PAUSE_SECONDS, 0
        while True:
            self.channel = await dial(self._local.host, self._host, self._port, self._local.source)
            self.channel.limit_silence(on=True)
            try:
                with extended(limit, self.channel, seconds, EXCHANGE_TRIPS):
                    if self._local.guard is not None:
                        await self._local.guard.connect(self.channel)
                    end = await establish(
                        self._local, self.channel, self._terms, first=True, expected=expected
                    )
                    self.channel.limit_silence(on=False)
                    return end
            except CutOffError as error:  # `dial` finds another way if there is one
                logger.info("%s: %s", self._host, error)
                self.busy = None
            except PeerGoneError as error:
                # A peer under a flood of connections drops some of them without a message.
                drops += 1
                if drops > _DROPS:
                    raise
                self.busy = error
            except BusyError as error:
                self.busy = error
            self.channel.abort()
            self.channel = None
            await asyncio.sleep(self._local.rng.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def refuse(self, error: BaseException) -> None:
        if self.channel is not None:
            await self.channel.refuse(reason_of(error), kind_of(error))


def timed_out(host: str, port: int, after: float, channel: Channel | None) -> ConnectTimeoutError:
    """No answer `after` these seconds. `channel`: to the peer, if its TCP port has answered."""
    step = "connection" if channel is None else "completed exchange"
    late = f"{host}: no {step} on TCP port {port} in {digits(after)} s"
    if channel is None:
        return ConnectTimeoutError(f"{late}: check that it is up, and the firewalls of both hosts")
    if channel.silent:
        late = f"{late}: it answers nothing any more: is it stopped, or cut off?"
    return ConnectTimeoutError(late)


@contextmanager
def about(host: str, port: int) -> Iterator[None]:
    """Adds host and port to an error of the exchange, which says "the peer", and what to do to one
    that no path answers, although the exchange has worked over TCP.
    """
    try:
        yield
    except NoAnswerError as error:
        remedy = (
            f"TCP port {port} of {host} answers: open both ports in the firewalls of both hosts;"
            " NAT (a masquerade) between them requires a VPN"
        )
        raise reworded(error, f"{error} {remedy}") from error
    except (BusyError, ConnectRefusedError, PeerGoneError, ProtocolError) as error:
        raise reworded(error, f"{host}: TCP port {port}: {error}") from error
