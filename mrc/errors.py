# SPDX-License-Identifier: Apache-2.0
"""Every exception that mrc raises on purpose, sorted by whose fault it is.

Each carries one line that names the cause and, where there is one, the remedy. What the operating
system refuses stays an OSError unless the caller can do something about it in terms of mrc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrc.enums import WcStatus


class MrcError(Exception):
    """Root of all errors of mrc."""


class ArgumentError(MrcError, ValueError):
    """The caller passed a value that cannot be right; the message names the argument."""


class ConfigError(MrcError):
    """The host configuration or a ContextConfig is wrong; the message names file and key."""


class StateError(MrcError):
    """The call does not fit the state of the object, which may be closed."""


class InUseError(StateError):
    """A number or a port is taken."""


class QueueFullError(MrcError):
    """A bounded queue is full: try again after a completion."""


class ResolveError(MrcError):
    """A name is neither a configured peer nor known to DNS."""


class ConnectError(MrcError, ConnectionError):
    """The peer cannot be reached, refused, or did not answer in time."""


class ConnectTimeoutError(ConnectError, TimeoutError):
    """The peer did not answer in time."""


class BusyError(ConnectError):
    """The peer has no place for another one now; trying again helps."""


class PeerGoneError(ConnectError):
    """The peer's process ended, or dropped the QP without closing it."""


class PathError(MrcError):
    """No path to the peer answers."""


class ProtocolError(MrcError):
    """The peer sent something that the exchange does not allow."""


class NetlinkError(MrcError):
    """The kernel refused a change of routes, addresses or links; code: its errno, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class CompletionError(MrcError):
    """A work request ended without success, or its QP went to ERROR."""

    def __init__(self, status: WcStatus, what: str) -> None:
        super().__init__(f"{what}: {status.explanation} ({status.name})")
        self.status = status
