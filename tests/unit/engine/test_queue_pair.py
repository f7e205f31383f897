# SPDX-License-Identifier: Apache-2.0
"""Commands that QPs and memory regions build, and their refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from models.library import library
from msgspec.structs import replace

from mrc.engine import engine
from mrc.engine.memory import MR, RemoteMemory, random_key
from mrc.engine.native import Command
from mrc.engine.queue_pair import QueuePair, RtrAttributes, RtsAttributes, random_psn, random_qpn
from mrc.enums import Access, CcKind, CommandOp, Integrity, QpState
from mrc.errors import ArgumentError, ProtocolError, StateError

RTR = RtrAttributes(dest_qpn=9, rq_psn=8, integrity=Integrity.UDP)
RTS = RtsAttributes(
    sq_psn=5,
    path_mtu=1024,
    peer_mpr=1024,
    peer_max_wimm=128,
    timeout=14,
    retry_linear=7,
    retry_exp=8,
    cc=CcKind.NULL,
    cc_profile={"base_rtt_ns": 7},
)
MOVES: dict[tuple[QpState, QpState], Callable[[QueuePair], Command]] = {
    (QpState.RESET, QpState.INIT): QueuePair.to_init,
    (QpState.INIT, QpState.RTR): lambda queue: queue.to_rtr(RTR),
    (QpState.RTR, QpState.RTS): lambda queue: queue.to_rts(RTS),
}


def queue_pair(state: QpState = QpState.RTS, sq_depth: int = 2) -> QueuePair:
    return QueuePair(sq_depth=sq_depth, mpr=1024, max_wimm=128, qpn=77, state=state)


@pytest.mark.parametrize(("before", "target"), MOVES)
@pytest.mark.parametrize("state", QpState)
def test_move__only_from_the_state_before(state: QpState, before: QpState, target: QpState) -> None:
    queue = queue_pair(state)
    if state is before:
        assert library().shim_qp_may_move(before, target)
        command = MOVES[before, target](queue)
        assert (command.fields["op"], command.fields["value"]) == (CommandOp.QP_MODIFY, target)
        assert queue.state is target
    else:
        with pytest.raises(StateError, match=f"no move from {state.name} to {target.name}"):
            MOVES[before, target](queue)
        assert queue.state is state


def test_move__attributes_travel() -> None:
    queue = queue_pair(QpState.INIT)
    attr = queue.to_rtr(RTR).fields["pointer"]
    assert (attr.dest_qpn, attr.rq_psn, attr.dynamic_mpr) == (9, 8, False)
    assert attr.integrity == Integrity.UDP
    attr = queue.to_rts(RTS).fields["pointer"]
    assert (attr.sq_psn, attr.path_mtu, attr.cc) == (5, 1024, CcKind.NULL)
    assert attr.cc_profile.base_rtt_ns == 7


def test_set_mpr__when_it_was_agreed() -> None:
    queue = queue_pair(QpState.INIT)
    with pytest.raises(StateError, match="no dynamic MPR"):
        queue.set_mpr(128)
    queue.to_rtr(replace(RTR, dynamic_mpr=True))
    fields = queue.set_mpr(512).fields
    assert (fields["op"], fields["qpn"], fields["value"]) == (CommandOp.QP_SET_MPR, 77, 512)
    for mpr in (-128, 0, 100, 1152):
        with pytest.raises(ArgumentError, match="mpr"):
            queue.set_mpr(mpr)


def test_mr__ranges_and_rights() -> None:
    buffer = bytearray(100)
    mr = MR.over(buffer, Access.LOCAL_READ | Access.REMOTE_WRITE)
    assert mr.range(0, 100) == mr.address
    assert mr.range(100, 0) == mr.address + 100
    assert mr.remote == RemoteMemory(mr.address, mr.key, 100)
    fields = engine.mr_register(mr).fields
    assert (fields["address"], fields["bytes"], fields["key"]) == (mr.address, 100, mr.rkey)
    for offset, length in ((0, 101), (101, 0), (-1, 1), (1, -1)):
        with pytest.raises(ArgumentError, match="local_offset"):
            mr.range(offset, length)
    mr._held.release()


def test_remote_memory__round_trip() -> None:
    remote = RemoteMemory((1 << 64) - 1, (1 << 32) - 1, 12)
    assert RemoteMemory.from_dict(remote.to_dict()) == remote


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"address": 1, "rkey": 2},
        {"address": -1, "rkey": 2, "length": 3},
        {"address": 1 << 64, "rkey": 2, "length": 3},
        {"address": 1, "rkey": 1 << 32, "length": 3},
        {"address": 1, "rkey": 2, "length": 3.5},
        {"address": True, "rkey": 2, "length": 3},
    ],
)
def test_remote_memory__what_a_peer_may_get_wrong(value: object) -> None:
    with pytest.raises(ProtocolError, match="wrong memory description"):
        RemoteMemory.from_dict(value)


def test_random_numbers__are_in_range_and_spread() -> None:
    qpns = [random_qpn() for _ in range(1000)]
    assert all(2 < qpn < 1 << 24 for qpn in qpns)
    assert all(0 <= random_psn() < 1 << 24 for _ in range(1000))
    assert all(0 < random_key() < 1 << 32 for _ in range(1000))
    assert len(set(qpns)) > 990
