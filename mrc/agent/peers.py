# SPDX-License-Identifier: Apache-2.0
"""How an endpoint for messages asks another one for a QP: by a knock, from agent to agent. Pure.

An endpoint has an address but no QP: each pair of endpoints gets one when it is first needed. The
answer to a knock is the number of the other side's QP. Then both sides move their QPs to RTR, as
verbs programs do. Endpoints that knock at each other at one time name the same two QPs.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from mrc.agent.steering import struct_bytes
from mrc.engine.native import CData
from mrc.errors import ProtocolError
from mrc.exchange.foreign import shown
from mrc.fabric.hostconfig import IpAddress, pack_address, read_address, unpack_address
from mrc.typed import take

KNOCK = "knock"  # message: an endpoint asks for a QP; the answer has the same type
Qpn = Annotated[int, Meta(ge=3, le=0xFFFFFF)]


class Point(Struct, frozen=True):
    """The address of an endpoint."""

    gid: IpAddress
    token: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    """who knows it may connect"""
    number: Qpn
    """names the endpoint at its host"""


class Knock(Struct, frozen=True):
    """One endpoint asks another one."""

    to: Point
    by: Point
    qpn: Qpn
    """the QP at `by`"""

    @property
    def message(self) -> dict[str, Any]:
        """For the peer's agent."""
        found: dict[str, Any] = to_builtins(self, enc_hook=str)
        return found

    @property
    def body(self) -> bytes:
        """As a `struct mrc_agent_knock`."""
        fields = {"to": _fields(self.to), "from": _fields(self.by), "qpn": self.qpn}
        return struct_bytes("mrc_agent_knock", fields)


class Admitted(Struct, frozen=True):
    """The answer."""

    qpn: Qpn
    """the other side's QP for the one that asked"""


def knock_of(fields: CData) -> Knock:
    """A `struct mrc_agent_knock` of a program; raises ProtocolError."""
    return knock_in(
        {"to": _point(fields.to), "by": _point(getattr(fields, "from")), "qpn": fields.qpn}
    )


def knock_in(message: dict[str, Any]) -> Knock:
    """The knock of a peer's agent; raises ProtocolError."""
    try:
        return take(message, Knock, read=read_address)
    except ValueError as error:
        raise ProtocolError(f"a wrong knock: {shown(str(error))}") from None


def admitted_in(message: dict[str, Any]) -> int:
    """The QPN in the answer of a peer's agent; raises ProtocolError."""
    try:
        return take(message, Admitted).qpn
    except ValueError as error:
        raise ProtocolError(f"a wrong answer to a knock: {shown(str(error))}") from None


def _fields(point: Point) -> dict[str, Any]:
    return {
        "gid": pack_address(point.gid),
        "token": bytes.fromhex(point.token),
        "number": point.number,
    }


def _point(fields: CData) -> dict[str, Any]:
    return {
        "gid": str(unpack_address(bytes(fields.gid))),
        "token": bytes(fields.token).hex(),
        "number": fields.number,
    }
