# SPDX-License-Identifier: Apache-2.0
"""What ends a connect, in words for people: what happened, where, and what to do."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Literal

from mrc.connect.oob import Channel
from mrc.connect.proof import NoAnswerError
from mrc.engine import native
from mrc.enums import Seal
from mrc.errors import (
    BusyError,
    ConnectError,
    ConnectRefusedError,
    ConnectTimeoutError,
    MrcError,
    PeerGoneError,
    ProtocolError,
    ResolveError,
)
from mrc.units import digits


def unconnected(
    host: str,
    port: int,
    error: OSError | UnicodeError,
    start: str = "start its program there, such as mrc recv or mrc perf --server",
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


def timed_out(host: str, port: int, after: float, channel: Channel | None) -> ConnectTimeoutError:
    """No answer `after` these seconds. `channel`: to the peer, if its TCP port has answered."""
    step = "connection" if channel is None else "completed exchange"
    late = f"{host}: no {step} on TCP port {port} in {digits(after)} s"
    if channel is None:
        return ConnectTimeoutError(f"{late}: check that it is up, and the firewalls of both hosts")
    if channel.silent:
        late = f"{late}: it answers nothing any more: is it stopped, or cut off?"
    return ConnectTimeoutError(late)


def _reworded(error: MrcError, text: str) -> MrcError:
    """The same error with another text."""
    found = copy(error)
    found.args = (text,)
    return found


@contextmanager
def about(host: str, port: int) -> Iterator[None]:
    """Adds host and port to an error of the exchange, which says "the peer", and what to do to one
    that no path answers, although the exchange has worked over TCP.
    """
    try:
        yield
    except NoAnswerError as error:
        remedy = "answers: open both ports in the firewalls of both hosts"
        raise _reworded(error, f"{error} TCP port {port} of {host} {remedy}") from error
    except (BusyError, ConnectRefusedError, PeerGoneError, ProtocolError) as error:
        raise _reworded(error, f"{host}: TCP port {port}: {error}") from error


SEALS: tuple[Literal["none", "auth", "aead"], ...] = ("none", "auth", "aead")
"""The words in a hello, by Seal."""


def wanted_seal(seal: Seal | None, channel: Channel) -> Seal:
    """The seal that this side requires; raises ConnectError if that cannot be had."""
    if not channel.secured:
        if seal:
            raise ConnectError(
                f"sealed packets ({SEALS[seal]}) to {channel.called or channel.remote} require an"
                " encrypted exchange"
            )
        return Seal.NONE
    if native.aead_name() is None and seal is not Seal.NONE:
        raise ConnectError(
            "this host has no library to seal packets with: install OpenSSL (libcrypto), or"
            " choose --seal none on both sides"
        )
    return Seal.AEAD if seal is None else seal
