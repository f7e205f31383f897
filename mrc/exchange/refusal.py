# SPDX-License-Identifier: Apache-2.0
"""What a host says when it refuses a peer, or ends a connection. Pure.

The `kind` is for programs and the `reason` for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrc.errors import BusyError, ConnectRefusedError, Kind
from mrc.exchange.foreign import shown

REFUSE = "refuse"  # message: the exchange ends
GONE = "gone"  # message: this end of a QP is no more, without a bye
_MAX_REASON = 300
_FLAGS = {"busy": Kind.BUSY, "paths_lost": Kind.PATHS_LOST}  # of a former mrc, in place of a kind


def fields(reason: str, kind: Kind) -> dict[str, Any]:
    """The fields of a refusal or an end."""
    busy = kind is Kind.BUSY  # mrc 0.2 reads no kind
    return {"reason": reason[:_MAX_REASON], "kind": kind, "busy": busy}


def kind_in(message: Mapping[str, Any]) -> Kind:
    """The kind of a refusal or an end; a later mrc may have others."""
    for flag, kind in _FLAGS.items():
        if message.get(flag) is True:
            return kind
    return next((kind for kind in Kind if kind == message.get("kind")), Kind.OTHER)


def accepted(message: dict[str, Any]) -> dict[str, Any]:
    """The message, unless it is a refusal: raises ConnectRefusedError or BusyError."""
    if message["type"] != REFUSE:
        return message
    reason, kind = shown(message.get("reason", "no reason")), kind_in(message)
    if kind is Kind.BUSY:
        raise BusyError(f"the peer refused: {reason}")
    raise ConnectRefusedError(f"the peer refused: {reason}", reason, kind)
