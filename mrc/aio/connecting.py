# SPDX-License-Identifier: Apache-2.0
"""The connecting side of the exchange: from the name of a host to this end of a QP."""

from __future__ import annotations

import asyncio
import logging

from mrc.aio.end import End
from mrc.aio.establish import establish
from mrc.aio.local import Local, Terms
from mrc.errors import (
    BusyError,
    ConnectTimeoutError,
    MrcError,
    PathError,
    PeerGoneError,
    reason_of,
)
from mrc.exchange import findings
from mrc.exchange.dial import dial
from mrc.exchange.keepalive import CutOffError
from mrc.exchange.oob import Channel
from mrc.exchange.patience import EXCHANGE_TRIPS, extended
from mrc.exchange.upgrade import QuestionError
from mrc.running import Limit

logger = logging.getLogger("mrc.connect")

_FIRST_PAUSE_SECONDS = 0.05  # doubles after each refusal by a busy peer
_LONGEST_PAUSE_SECONDS = 0.4
_DROPS = 8  # a connection that the peer drops counts as busy up to this many times


async def connect(local: Local, terms: Terms, host: str, port: int, *, timeout: float) -> End:
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


async def _connect(local: Local, terms: Terms, host: str, port: int, timeout: float) -> End:
    attempt = _Attempt(local, terms, host, port)
    try:
        async with Limit(timeout) as limit:
            return await attempt.run(limit)
    except TimeoutError as error:
        heard = attempt.channel is not None and attempt.channel.received_bytes > 0
        if attempt.busy is not None and not heard:
            raise about(host, port, attempt.busy) from error
        await attempt.refuse("no answer in time")
        raise timed_out(host, port, timeout, attempt.channel) from error
    except MrcError as error:
        await attempt.refuse(reason(error))
        told = about(host, port, error)
        if told is error:
            raise
        raise told from error
    except (Exception, asyncio.CancelledError) as error:
        await attempt.refuse(reason_of(error))
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

    async def run(self, limit: Limit) -> End:
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

    async def refuse(self, reason: str) -> None:
        if self.channel is not None:
            await self.channel.refuse(reason)


def timed_out(host: str, port: int, after: float, channel: Channel | None) -> ConnectTimeoutError:
    """No answer `after` these seconds. `channel`: to the peer, if its TCP port has answered."""
    step = "connection" if channel is None else "completed exchange"
    late = f"{host}: no {step} on TCP port {port} in {after:g} s"
    if channel is None:
        return ConnectTimeoutError(f"{late}: check that it is up, and the firewalls of both hosts")
    if channel.silent:
        late = f"{late}: it answers nothing any more: is it stopped, or cut off?"
    return ConnectTimeoutError(late)


def reason(error: MrcError) -> str:
    """Why this side ends the exchange, for the peer."""
    return error.told if isinstance(error, QuestionError) else str(error)


def about(host: str, port: int, error: MrcError) -> MrcError:
    """Adds host and port to an error whose message begins with "the peer", and what to do to one
    that no path answers, although the exchange has worked over TCP.
    """
    if findings.is_no_answer(str(error)):
        return PathError(
            f"{error} TCP port {port} of {host} answers: open both ports in the firewalls of both"
            " hosts; NAT (a masquerade) between them requires a VPN"
        )
    if not str(error).startswith("the peer "):
        return error
    return type(error)(f"{host}: TCP port {port}: {error}")
