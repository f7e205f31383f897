# SPDX-License-Identifier: Apache-2.0
"""The checked layer: thin synchronous objects over the C context, without asyncio.

MR and QueuePair check arguments and states and build commands; `mrc.binding.device.Device` queues
the commands and returns their results.
"""

from __future__ import annotations

import secrets
from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from mrc.binding import native
from mrc.binding.native import Command, HeldBuffer
from mrc.enums import (
    Access,
    CcKind,
    CommandOp,
    EvState,
    Integrity,
    PlaneShares,
    QpState,
    Seal,
)
from mrc.errors import ArgumentError, ProtocolError, StateError
from mrc.fabric.addresses import pack_address
from mrc.fabric.paths import EvAttr, PeerSource
from mrc.limits import MPR_UNIT
from mrc.trust.memory import Secret
from mrc.typed import take

_RESERVED_QPNS = 3  # 0..2: management QPs and the destination of endpoint requests


def random_qpn() -> int:
    """An unpredictable 24-bit QP number."""
    return _RESERVED_QPNS + secrets.randbelow((1 << 24) - _RESERVED_QPNS)


def random_psn() -> int:
    """An unpredictable 24-bit first PSN."""
    return secrets.randbits(24)


def random_key() -> int:
    """An unpredictable, non-zero 32-bit key of a memory region."""
    return 1 + secrets.randbelow(0xFFFFFFFF)


class RtrAttributes(Struct, frozen=True):
    """Attributes for the move to RTR: a QP needs them to receive."""

    dest_qpn: int
    rq_psn: int
    integrity: Integrity
    dynamic_mpr: bool = False
    sack_times: bool = False
    service_times: bool = False


class RtsAttributes(Struct, frozen=True):
    """Attributes for the move to RTS: a QP needs them to send."""

    sq_psn: int
    path_mtu: int
    peer_mpr: int
    peer_max_wimm: int
    timeout: int
    retry_linear: int
    retry_exp: int
    cc: CcKind
    cc_profile: Mapping[str, int] = {}  # fields of struct mrc_cc_profile
    spray: int = 0
    ev_active_per_plane: int = 0
    plane_shares: PlaneShares = PlaneShares.MEASURED


class RemoteMemory(Struct, frozen=True):
    """A memory region of the peer: address, length and remote key."""

    address: Annotated[int, Meta(ge=0)]
    """Address in the peer's process."""
    rkey: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    """Remote key: permits writes to this memory."""
    length: Annotated[int, Meta(ge=0)]
    """Size in bytes."""

    def to_dict(self) -> dict[str, int]:
        """The keys and values to send to the peer, for example as private data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: object) -> RemoteMemory:
        """The inverse of `to_dict`; raises ProtocolError."""
        try:
            memory = take(value, cls)
            if (memory.address | memory.length) >> 64:
                raise ValueError("address, length: must fit 64 bits")
        except ValueError as error:
            raise ProtocolError(f"the peer sent a wrong memory description: {error}") from None
        return memory

    def range(self, offset: int, length: int) -> int:
        """Returns the address of a range; raises ArgumentError if it is not inside the memory."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ArgumentError(
                f"remote_offset: [{offset}, {offset + length}) is not inside the "
                f"{self.length} bytes of the peer's memory"
            )
        return self.address + offset


class MR(Struct):
    """A registered memory region. This side can send from it; REMOTE_WRITE lets the peer write."""

    _held: HeldBuffer
    """The pinned buffer."""
    access: Access
    """The allowed uses of the memory."""
    key: int = field(default_factory=random_key)
    """Random local and remote key."""
    outstanding: int = 0
    """Number of work requests that use the memory now."""
    waiting: list[Future[None]] = field(default_factory=list)
    """They end when `outstanding` becomes 0."""
    engines: int = 0
    """Number of engines that know the region."""

    @classmethod
    def over(cls, buffer: Any, access: Access) -> MR:
        """Pins `buffer`, which must be writable for REMOTE_WRITE."""
        writable = Access.REMOTE_WRITE in access
        held = HeldBuffer.hold(buffer, writable=writable)
        if held.length == 0:
            held.release()
            raise ArgumentError("buffer: is empty (a write of 0 bytes needs no memory region)")
        return cls(held, access | Access.LOCAL_READ)

    @property
    def address(self) -> int:
        """Address of the memory in this process."""
        return self._held.address

    @property
    def length(self) -> int:
        """Size in bytes."""
        return self._held.length

    @property
    def rkey(self) -> int:
        """Remote key. It permits the peer to write if `access` has REMOTE_WRITE."""
        return self.key

    @property
    def remote(self) -> RemoteMemory:
        """Description of this memory that the peer needs for its writes."""
        return RemoteMemory(self.address, self.rkey, self.length)

    def range(self, offset: int, length: int) -> int:
        """Returns the address of a range; raises ArgumentError if it is not inside the region."""
        if offset < 0 or length < 0 or offset + length > self._held.length:
            raise ArgumentError(
                f"local_offset: [{offset}, {offset + length}) is not inside the "
                f"{self._held.length} bytes of the memory region"
            )
        return self._held.address + offset


class QueuePair(Struct):
    """A QP: its number, its state, and the commands that are legal in that state."""

    sq_depth: int
    mpr: int
    max_wimm: int
    qpn: int = field(default_factory=random_qpn)
    state: QpState = QpState.RESET
    dynamic_mpr: bool = False  # agreed with the peer
    seal: Seal = Seal.NONE

    def _command(self, op: CommandOp, keep: object = None, **fields: Any) -> Command:
        return Command({"op": op, "qpn": self.qpn, **fields}, keep)

    def create(self) -> Command:
        """The command that creates the QP in RESET."""
        attr = native.new_struct(
            "mrc_qp_create_attr",
            qpn=self.qpn,
            sq_depth=self.sq_depth,
            mpr=self.mpr,
            max_wimm=self.max_wimm,
        )
        return self._command(CommandOp.QP_CREATE, attr, pointer=attr)

    def _move(self, before: QpState, state: QpState, **fields: Any) -> Command:
        if self.state is not before:
            raise StateError(f"QP {self.qpn:#x}: no move from {self.state.name} to {state.name}")
        self.state = state
        keep = fields.get("pointer")
        return self._command(CommandOp.QP_MODIFY, keep, value=int(state), **fields)

    def to_init(self) -> Command:
        """RESET to INIT."""
        return self._move(QpState.RESET, QpState.INIT)

    def to_rtr(self, attributes: RtrAttributes) -> Command:
        """INIT to RTR, after `set_evs` and `set_peer`."""
        self.dynamic_mpr = attributes.dynamic_mpr
        attr = native.new_struct("mrc_qp_rtr_attr", **asdict(attributes))
        return self._move(QpState.INIT, QpState.RTR, pointer=attr)

    def to_rts(self, attributes: RtsAttributes) -> Command:
        """RTR to RTS."""
        attr = native.new_struct("mrc_qp_rts_attr", **asdict(attributes))
        return self._move(QpState.RTR, QpState.RTS, pointer=attr)

    def to_error(self) -> Command:
        """Any state to ERROR, which flushes outstanding work requests."""
        self.state = QpState.ERROR
        return self._command(CommandOp.QP_MODIFY, value=int(QpState.ERROR))

    def destroy(self) -> Command:
        """Destroys the QP; the engine flushes outstanding work requests first."""
        self.state = QpState.ERROR
        return self._command(CommandOp.QP_DESTROY)

    def set_evs(self, evs: Sequence[EvAttr]) -> Command:
        """Sets the EV array (in INIT)."""
        array = native.new_array(
            "mrc_ev_attr",
            [
                {
                    "src": pack_address(ev.source),
                    "dst": pack_address(ev.destination),
                    "ev": ev.ev,
                    "dport": ev.dport,
                    "port": ev.port,
                    "tx_index": ev.tx_index,
                    "family": ev.destination.version,
                }
                for ev in evs
            ],
        )
        return self._command(CommandOp.QP_SET_EVS, array, pointer=array, value=len(evs))

    def set_peer(self, sources: Sequence[PeerSource]) -> Command:
        """Sets the source addresses and ports of the peer's packets (in INIT).

        The command fails with QueueFullError when the Context has too many sources already.
        """
        array = native.new_array(
            "mrc_peer_source",
            [{"address": pack_address(s.address), "sport": s.sport} for s in sources],
        )
        return self._command(CommandOp.QP_SET_PEER, array, pointer=array, value=len(sources))

    def set_seal(
        self, seal: Seal, peer_qpn: int, *, random: Secret, peer_random: Secret, first: bool
    ) -> Command:
        """Seals all packets (in INIT, before `set_peer`). The secrets follow from the 32 random
        bytes of both sides; `first`: this side connected.
        """
        attr = native.secret_struct("mrc_seal_attr", mode=int(seal), peer_qpn=peer_qpn)
        native.agree(attr, self.qpn, random.bytes, peer_random.bytes, first=first)
        self.seal = seal
        return self._command(CommandOp.QP_SET_SEAL, attr, pointer=attr)

    def probe_ev(self, index: int, *, bytes: int, timeout_ns: int) -> Command:
        """Sends one EV probe padded to `bytes` of UDP payload (0: not padded)."""
        return self._command(CommandOp.QP_PROBE_EV, value=index, bytes=bytes, timeout_ns=timeout_ns)

    def set_ev_state(self, index: int, state: EvState) -> Command:
        """Sets the state of an EV: DENIED, GOOD or ASSUMED_BAD."""
        return self._command(CommandOp.QP_SET_EV_STATE, value=index, key=int(state))

    def set_mpr(self, mpr: int) -> Command:
        """Changes the window that this side grants the peer."""
        if not self.dynamic_mpr:
            raise StateError(f"QP {self.qpn:#x}: no dynamic MPR: both sides must set dynamic_mpr")
        if not 0 < mpr <= self.mpr or mpr % MPR_UNIT:
            raise ArgumentError(f"mpr: {mpr} is not a multiple of 128 up to {self.mpr}")
        return self._command(CommandOp.QP_SET_MPR, value=mpr)

    def query(self) -> tuple[Command, Any]:
        """The command that fills the returned `struct mrc_qp_info`."""
        info = native.new_struct("mrc_qp_info")
        return self._command(CommandOp.QP_QUERY, info, pointer=info), info

    def query_evs(self, capacity: int) -> tuple[Command, Any]:
        """The command that fills the returned array of `struct mrc_ev_info`."""
        infos = native.new_array("mrc_ev_info", capacity)
        command = self._command(CommandOp.QP_QUERY_EVS, infos, pointer=infos, value=capacity)
        return command, infos
