# SPDX-License-Identifier: Apache-2.0
"""All exceptions of mrc.

Each carries one line that names the cause and, if there is one, the remedy. An error of the
operating system stays an OSError unless the caller can fix it by means of mrc.
"""

from __future__ import annotations

from copy import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mrc.enums import WcStatus


class Kind(StrEnum):
    """What a program decides by when a host refuses another one, or ends a connection. The reason
    beside it is for people.
    """

    OTHER = ""
    BUSY = "busy"  # a later try may succeed
    NO_ANSWER = "no answer"  # to the probes of the paths
    PATHS_LOST = "paths lost"
    WRONG_CODE = "wrong code"
    ENDED = "ended"  # the program, without a reason of its own

    @staticmethod
    def of(error: BaseException) -> Kind:
        """The kind of an error that ends a connection."""
        if isinstance(error, MrcError):
            return error.kind
        cause = error.args[0] if error.args else None  # of a cancellation: mrc.tasks.cancelled
        return cause.kind if isinstance(cause, MrcError) else Kind.OTHER


class MrcError(Exception):
    """Base class of all errors of mrc."""

    kind = Kind.OTHER

    @property
    def told(self) -> str:
        """Its text for the peer."""
        return str(self)

    @property
    def may_pass(self) -> bool:
        """Whether a later try to connect may succeed: nobody has refused."""
        from ssl import SSLError  # slow

        if isinstance(
            self, PathError | ConnectTimeoutError | BusyError | ResolveError | PeerGoneError
        ):
            return True
        cause: BaseException | None = self
        while isinstance(cause, ConnectError):  # each layer of the code adds its words
            cause = cause.__cause__
        network = isinstance(cause, OSError) and not isinstance(cause, (MrcError, SSLError))
        return isinstance(self, ConnectError) and network

    def anew(self) -> Self:
        """The same error to be raised once more: one object would collect the frames of all who got
        it, and keep their variables alive.
        """
        return copy(self).with_traceback(None)


class ArgumentError(MrcError, ValueError):
    """The caller passed an invalid value; the message names the argument."""


class ConfigError(MrcError):
    """The host configuration or a ContextConfig is wrong; the message names file and key."""


class WrongValueError(ConfigError, ArgumentError):
    """A field of a configuration, or an argument, has a wrong type or value."""


class BadFileError(ConfigError):
    """A file that says what to do is missing, or wrong; the message names the file."""


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
    """The peer refused the connection; `reason` is in its words."""

    def __init__(self, message: str, reason: str = "", kind: Kind = Kind.OTHER) -> None:
        super().__init__(message)
        self.reason = reason
        self.kind = kind


class BusyError(ConnectError):
    """The peer has no free place for this connection at the moment: try again."""

    kind = Kind.BUSY


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
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self._what), self.__dict__


def reason_of(error: BaseException | None) -> str:
    """The text for the peer of an error that ends a connection; empty without an error."""
    from asyncio import CancelledError  # slow: those who catch errors of tasks have loaded it

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case None:
            return ""
        case MrcError():
            return error.told
        case MemoryError():
            return "out of memory"
        case TimeoutError():
            return "a time limit has passed"
        case OSError():
            return error.strerror or str(error)
        case CancelledError() | KeyboardInterrupt():
            return str(error) or "it was interrupted, or a time limit has passed"
    return f"its program failed ({type(error).__name__})"
