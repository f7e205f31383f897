# SPDX-License-Identifier: Apache-2.0
"""What the agents of two ids of rdma_cm say to each other, and structs of libmrc-cm. Pure.

    connecting side           listening side
    cm (Request)    ------>
                    <------   cm (Answer): accepted, or rejected with a reason
    cm (Answer)     ------>   the QP that connects is in RTS; or the program does not want it

Later, over a connection of its own, either side says `cm_end` with the other side's token.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins

from mrc.agent.peers import Qpn
from mrc.engine.native import CData
from mrc.enums import CmEvent
from mrc.errors import ProtocolError
from mrc.exchange.foreign import shown
from mrc.fabric.hostconfig import IpAddress, pack_address, read_address, unpack_address
from mrc.limits import AGENT_CM_PRIVATE
from mrc.typed import take

CM = "cm"
CM_END = "cm_end"
T = TypeVar("T")
PortNumber = Annotated[int, Meta(ge=1, le=0xFFFF)]
_Byte = Annotated[int, Meta(ge=0, le=0xFF)]
_Retries = Annotated[int, Meta(ge=0, le=7)]
_Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Private = Annotated[str, Meta(pattern=f"^([0-9a-f]{{2}}){{0,{AGENT_CM_PRIVATE}}}$")]
_ANY = bytes(16)


class Reason(IntEnum):
    """Why a request is rejected: numbers of the InfiniBand specification, which programs know."""

    NO_RESOURCES = 3
    NO_LISTENER = 8
    CONSUMER = 28


class Params(Struct, frozen=True):
    """What the program at one end tells the other one about its QP."""

    responder_resources: _Byte = 0
    initiator_depth: _Byte = 0
    flow_control: bool = False
    retry_count: _Retries = 0
    rnr_retry_count: _Retries = 0
    srq: bool = False
    private: _Private = ""


NOTHING = Params()


def because(reason: str) -> Params:
    """Why an id will not be connected, for the user of its program."""
    return Params(private=reason.encode()[:AGENT_CM_PRIVATE].hex())


class CmAddress(Struct, frozen=True):
    """One end of a connection."""

    gid: IpAddress
    port: PortNumber
    qpn: Qpn
    token: _Token
    """names this end to the other side's agent, and nobody else knows it"""


class Request(Struct, frozen=True):
    """An id asks for a connection with the id that listens."""

    to: IpAddress
    port: PortNumber
    by: CmAddress
    params: Params


class Answer(Struct, frozen=True):
    """Of the other side's program."""

    by: CmAddress | None = None
    """None: it rejects the connection, or accepts that of its request"""
    reason: Annotated[int, Meta(ge=0, le=0xFFFF)] = 0
    """not 0: rejected"""
    params: Params = NOTHING


class Ended(Struct, frozen=True):
    """One end has disconnected."""

    token: _Token


def message_of(said: Request | Answer | Ended) -> dict[str, Any]:
    """For the peer's agent."""
    found: dict[str, Any] = to_builtins(said, enc_hook=str)
    return found


def read(message: dict[str, Any], kind: type[T]) -> T:
    """What a peer's agent has said; raises ProtocolError."""
    try:
        return take(message, kind, read=read_address)
    except ValueError as error:
        raise ProtocolError(f"wrong words about rdma_cm: {shown(str(error))}") from None


# ---- Structs of libmrc-cm -------------------------------------------------------------------


def gid_of(packed: bytes) -> IpAddress | None:
    """An address; None: any."""
    return None if packed == _ANY else unpack_address(packed)


def end_of(fields: CData) -> CmAddress:
    """The `struct mrc_agent_cm_end` of an id with a QP; raises ProtocolError."""
    found = {
        "gid": str(unpack_address(bytes(fields.gid))),
        "port": fields.port,
        "qpn": fields.qpn,
        "token": bytes(fields.token).hex(),
    }
    return read(found, CmAddress)


def params_of(fields: CData) -> Params:
    """What a program tells the other end; raises ProtocolError."""
    if fields.private_bytes > AGENT_CM_PRIVATE:
        raise ProtocolError(f"{fields.private_bytes} bytes of private data")
    return Params(
        responder_resources=fields.responder_resources,
        initiator_depth=fields.initiator_depth,
        flow_control=bool(fields.flow_control),
        retry_count=min(fields.retry_count, 7),
        rnr_retry_count=min(fields.rnr_retry_count, 7),
        srq=bool(fields.srq),
        private=bytes(fields.private_data[0 : fields.private_bytes]).hex(),
    )


def _end_fields(end: CmAddress | None) -> dict[str, Any]:
    if end is None:
        return {}
    return {
        "gid": pack_address(end.gid),
        "port": end.port,
        "qpn": end.qpn,
        "token": bytes.fromhex(end.token),
    }


def event_fields(
    number: int,
    event: CmEvent,
    *,
    status: int = 0,
    child: int = 0,
    peer: CmAddress | None = None,
    own: dict[str, Any] | None = None,
    params: Params = NOTHING,
) -> dict[str, Any]:
    """The fields of a `struct mrc_agent_cm`. Each side sees the other's resources as the limit of
    its own requests, so these two change places.
    """
    private = bytes.fromhex(params.private)
    return {
        "id": number,
        "event": event,
        "status": status,
        "child": child,
        "own": own or {},
        "peer": _end_fields(peer),
        "responder_resources": params.initiator_depth,
        "initiator_depth": params.responder_resources,
        "flow_control": params.flow_control,
        "retry_count": params.retry_count,
        "rnr_retry_count": params.rnr_retry_count,
        "srq": params.srq,
        "private_bytes": len(private),
        "private_data": private,
    }
