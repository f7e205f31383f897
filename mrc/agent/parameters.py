# SPDX-License-Identifier: Apache-2.0
"""A QP that a program has moved to RTR: what it asks of the agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from mrc.agent.device import dials
from mrc.aio.local import queue_pair
from mrc.config import ContextConfig
from mrc.engine.dispatch import Dispatcher
from mrc.engine.native import CData
from mrc.engine.queue_pair import QueuePair
from mrc.errors import ConnectError, ProtocolError
from mrc.exchange import mpr
from mrc.exchange.oob import Inbox
from mrc.fabric.hostconfig import IpAddress, unpack_address
from mrc.limits import MAX_MTU, MIN_MTU, MPR_UNIT
from mrc.messages.messages import MessagePeer
from mrc.typed import take

_TIMEOUTS = range(14, 25)  # below 16 ms, software on a busy host is late rather than dead
_RETRIES = range(1, 26)
_EMULATED = "rc"  # in the private data of a hello


class Emulated(Struct, frozen=True):
    """One end of a QP with emulated RC (csrc/rc)."""

    address: Annotated[int, Meta(ge=1, le=0x7FFFFFFFFFFFFFFF)]
    rkey: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
    shared: bool
    """its receives are those of an SRQ"""


def emulated_in(private: dict[str, Any]) -> Emulated | None:
    """What the other end says of its emulated RC; None: it has none. Raises ProtocolError."""
    found = private.get(_EMULATED)
    return None if found is None else _emulated(found)


def _emulated(found: object) -> Emulated:
    try:
        return take(found, Emulated)
    except ValueError as error:
        raise ProtocolError(f"emulated RC: {error}") from None


class Wanted(Struct, frozen=True):
    """The attributes of a QP, checked; 0: the agent's default."""

    qpn: int
    dest_qpn: int
    gid: IpAddress
    dest_gid: IpAddress
    sq_depth: int
    max_wimm: int
    mpr: int
    path_mtu: int
    ev_profile: int
    cc_profile: int
    timeout: int
    retry_exp: int
    messages: tuple[int, Inbox] | None = None
    """number and inbox of the peer, if the QP carries messages"""
    emulated: Emulated | None = None

    @property
    def dials(self) -> bool:
        """Whether this host connects to the peer's agent."""
        return dials(self.qpn, self.gid, self.dest_qpn, self.dest_gid)

    @property
    def private(self) -> dict[str, Any]:
        """What the hello carries besides, so that the peer's agent finds its program."""
        ends = {"from": self.qpn, "to": self.dest_qpn}
        return ends | ({} if self.emulated is None else {_EMULATED: to_builtins(self.emulated)})

    def admit(self, private: dict[str, Any]) -> None:
        """Raises ConnectError for the hello of another QP."""
        if private.get("from") != self.dest_qpn or private.get("to") != self.qpn:
            raise ConnectError(f"QP {self.qpn:#x} belongs to QP {self.dest_qpn:#x}")
        if (emulated_in(private) is None) != (self.emulated is None):
            raise ConnectError(
                f"QP {self.qpn:#x} and QP {self.dest_qpn:#x}: one program has emulated RC and the"
                " other has not: start both with mrc run --rc, or neither"
            )

    def queue(self, config: ContextConfig) -> QueuePair:
        """The QP with its number."""
        return queue_pair(config.queues, qpn=self.qpn)

    def peer(self, dispatcher: Dispatcher) -> MessagePeer:
        """The peer for messages, which the program has opened."""
        assert self.messages is not None
        number, inbox = self.messages
        return MessagePeer(dispatcher, number, inbox, kept=True)

    def config(self, config: ContextConfig) -> ContextConfig:
        """The configuration for this QP."""
        return replace(
            config,
            queues=replace(
                config.queues,
                sq_depth=self.sq_depth or config.queues.sq_depth,
                max_wimm=self.max_wimm or config.queues.max_wimm,
                mpr=self.mpr or config.queues.mpr,
            ),
            spraying=replace(config.spraying, mtu_limit=self.path_mtu or config.spraying.mtu_limit),
            retries=replace(
                config.retries,
                ack_timeout_exponent=self.timeout or config.retries.ack_timeout_exponent,
                exponential=self.retry_exp or config.retries.exponential,
            ),
        )


def wanted_of(connect: CData) -> Wanted:
    """A `struct mrc_agent_connect` of a program; raises ProtocolError.

    Values beyond what the engine can do become the nearest that it can.
    """
    if not (3 <= connect.qpn <= 0xFFFFFF and 3 <= connect.dest_qpn <= 0xFFFFFF):
        raise ProtocolError(f"QP {connect.qpn:#x} to {connect.dest_qpn:#x}: not a QPN")
    return Wanted(
        qpn=connect.qpn,
        dest_qpn=connect.dest_qpn,
        gid=unpack_address(bytes(connect.sgid)),
        dest_gid=unpack_address(bytes(connect.dgid)),
        sq_depth=min(connect.sq_depth, 65536),
        max_wimm=min(connect.max_wimm, 1024),
        mpr=min(-(-connect.mpr // MPR_UNIT) * MPR_UNIT, mpr.MOST),
        path_mtu=_within(connect.path_mtu & ~3, range(MIN_MTU, MAX_MTU + 1)),
        ev_profile=connect.ev_profile,
        cc_profile=connect.cc_profile,
        timeout=_within(connect.timeout, _TIMEOUTS),
        retry_exp=_within(connect.retry_exp, _RETRIES),
        messages=_messages_of(connect) if connect.messages else None,
        emulated=_emulated_of(connect) if connect.emulated else None,
    )


def _messages_of(connect: CData) -> tuple[int, Inbox]:
    if not connect.address or not connect.rkey:
        raise ProtocolError(f"QP {connect.qpn:#x} carries messages and has no inbox")
    return connect.peer, Inbox(connect.address, connect.rkey)


def _emulated_of(connect: CData) -> Emulated:
    fields = {"address": connect.address, "rkey": connect.rkey, "shared": bool(connect.shared)}
    return _emulated(fields)


def _within(value: int, allowed: range) -> int:
    """The nearest allowed value; 0 stays 0."""
    return min(max(value, allowed[0]), allowed[-1]) if value else 0
