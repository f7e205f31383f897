# SPDX-License-Identifier: Apache-2.0
"""A queue pair of the engine, and the commands that are legal in its state.

All of it is synchronous: the objects check arguments and states and build what
`mrc.engine.engine.Engine` queues. The writes are in `mrc.engine.send_queue`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrc import limits
from mrc.config import Queues
from mrc.engine import native
from mrc.engine.native import Command
from mrc.engine.paths import SEAL_OVERHEAD, TRANSPORT, EvAttr, PeerSource
from mrc.engine.send_queue import SendQueue
from mrc.enums import CommandOp, EvState, Integrity, QpState, Seal
from mrc.errors import ArgumentError, StateError
from mrc.fabric.hostconfig import pack_address
from mrc.linux.secret import Secret

_RESERVED_QPNS = 3  # 0..2: management QPs and the destination of endpoint requests


# ---- The queue pair -------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class QueuePair:
    """A QP: its number, its state, and the commands that are legal in that state."""

    sq_depth: int
    mpr: int
    max_wimm: int
    qpn: int = field(default_factory=lambda: QueuePair.random_qpn())
    state: QpState = QpState.RESET
    dynamic_mpr: bool = False  # agreed with the peer
    seal: Seal = Seal.NONE
    sends: SendQueue = field(init=False)
    """Its writes, from posting to completion."""

    def __post_init__(self) -> None:
        self.sends = SendQueue(self.qpn, self.sq_depth)

    @staticmethod
    def random_qpn() -> int:
        """An unpredictable 24-bit QP number."""
        return _RESERVED_QPNS + secrets.randbelow((1 << 24) - _RESERVED_QPNS)

    @classmethod
    def sized(cls, sizes: Queues, **more: Any) -> QueuePair:
        """One of these sizes. `more`: its number, if that is not a random one."""
        return cls(sizes.sq_depth, sizes.mpr or limits.MAX_MPR, sizes.max_wimm, **more)

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

    def to_rtr(
        self,
        *,
        dest_qpn: int,
        rq_psn: int,
        integrity: Integrity,
        dynamic_mpr: bool = False,
        sack_times: bool = False,
        service_times: bool = False,
    ) -> Command:
        """INIT to RTR, after `set_evs` and `set_peer`: from now on it receives."""
        self.dynamic_mpr = dynamic_mpr
        attr = native.new_struct(
            "mrc_qp_rtr_attr", dest_qpn=dest_qpn, rq_psn=rq_psn, integrity=integrity,
            dynamic_mpr=dynamic_mpr, sack_times=sack_times, service_times=service_times,
        )  # fmt: skip
        return self._move(QpState.INIT, QpState.RTR, pointer=attr)

    def to_rts(self, **fields: Any) -> Command:
        """RTR to RTS: from now on it sends. `fields` are those of `struct mrc_qp_rts_attr`."""
        attr = native.new_struct("mrc_qp_rts_attr", **fields)
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
        """Sets the EV array (in INIT), or adds to it EVs that are UNPROVEN."""
        array = native.new_array(
            "mrc_ev_attr",
            [
                {
                    "src": pack_address(ev.source),
                    "dst": pack_address(ev.destination),
                    "ev": ev.ev,
                    "dport": ev.dport,
                    "port": ev.port,
                    "plane": ev.plane,
                    "peer_port": ev.peer_port,
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
            [
                {"address": pack_address(s.address), "sport": s.sport, "is_nat": s.is_nat}
                for s in sources
            ],
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

    def probe_ev(self, index: int, *, payload: int, timeout_ns: int) -> Command:
        """Sends one EV probe, as large as a packet with so much payload (0: not padded)."""
        size = payload and payload + TRANSPORT + (SEAL_OVERHEAD if self.seal else 0)
        return self._command(CommandOp.QP_PROBE_EV, value=index, bytes=size, timeout_ns=timeout_ns)

    def set_ev_state(self, index: int, state: EvState) -> Command:
        """Sets the state of an EV: DENIED, GOOD, ASSUMED_BAD or UNPROVEN."""
        return self._command(CommandOp.QP_SET_EV_STATE, value=index, key=int(state))

    def set_weight(self, plane: int, weight: int) -> Command:
        """Limits what a plane carries, in per cent of the one that carries most; 0: a backup."""
        return self._command(CommandOp.QP_SET_WEIGHT, value=plane, key=weight)

    def set_yielding(self, planes: Collection[int]) -> Command:
        """Names the planes that carry only what others leave of their links."""
        mask = sum(1 << plane - 1 for plane in planes)
        return self._command(CommandOp.QP_SET_YIELDING, value=mask)

    def set_mpr(self, mpr: int) -> Command:
        """Changes the window that this side grants the peer."""
        if not self.dynamic_mpr:
            raise StateError(f"QP {self.qpn:#x}: no dynamic MPR: both sides must set dynamic_mpr")
        if not 0 < mpr <= self.mpr or mpr % limits.MPR_UNIT:
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
