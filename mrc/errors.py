# SPDX-License-Identifier: Apache-2.0
"""All exceptions of mrc.

Each carries one line that names the cause and, if there is one, the remedy. An error of the
operating system stays an OSError unless the caller can fix it by means of mrc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrc.enums import WcStatus


class MrcError(Exception):
    """Base class of all errors of mrc."""


class ArgumentError(MrcError, ValueError):
    """The caller passed an invalid value; the message names the argument."""


class ConfigError(MrcError):
    """The host configuration or a ContextConfig is wrong; the message names file and key."""


class StateError(MrcError):
    """The object does not allow this call in its current state; it may be closed."""


class InUseError(StateError):
    """A number, name or port is already in use."""


class QueueFullError(MrcError):
    """A bounded queue is full: try again after a completion."""


class ResolveError(MrcError):
    """A host name is not a configured peer, and DNS does not resolve it."""


class ConnectError(MrcError, ConnectionError):
    """The peer is unreachable, refused the connection, or did not answer in time."""


class ConnectTimeoutError(ConnectError, TimeoutError):
    """The peer did not answer in time."""


class ConnectRefusedError(ConnectError):
    """The peer refused the connection; `reason` is what the peer said about it."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class BusyError(ConnectError):
    """The peer has no free place for this connection at the moment: try again."""


class PeerGoneError(ConnectError):
    """The peer's process ended, or an error ended its side, which the message then names."""


class PathError(MrcError):
    """No path to the peer answers."""


class PathMtuError(PathError):
    """A link on the way got a smaller MTU while the QP ran: a new connection finds the new one."""


class ProtocolError(MrcError):
    """The peer sent something that the exchange does not allow."""


class NetlinkError(MrcError):
    """The kernel refused to change routes, addresses or links; `code` is its errno, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class CompletionError(MrcError):
    """A work request ended without success, or its QP went to ERROR."""

    def __init__(self, status: WcStatus, what: str) -> None:
        super().__init__(f"{what}: {status.explanation} ({status.name})")
        self.status = status


def reason_of(error: BaseException | None) -> str:
    """What the peer is told of an error that ends a connection; empty without an error."""
    from asyncio import CancelledError  # slow: those who catch errors of tasks have loaded it

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case None:
            return ""
        case MrcError():
            return str(error)
        case MemoryError():
            return "out of memory"
        case TimeoutError():
            return "a time limit has passed"
        case OSError():
            return error.strerror or str(error)
        case CancelledError() | KeyboardInterrupt():
            return str(error) or "it was interrupted, or a time limit has passed"
    return f"its program failed ({type(error).__name__})"
