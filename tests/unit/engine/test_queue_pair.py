# SPDX-License-Identifier: Apache-2.0
"""Commands that QPs and memory regions build, writes as C reads them, memory of tensors, error
codes and pinned buffers.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import itertools
import mmap
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import walls
from endpoints import connected_pair
from models.library import library

from mrc import limits
from mrc.engine import engine, queue_pair
from mrc.engine.memory import MR, HeldBuffer, RemoteMemory, random_key
from mrc.engine.native import CData, Command, StructQueue, check, ffi, names_of
from mrc.engine.queue_pair import (
    QueuePair,
    Write,
    Writes,
    WrOpcode,
    pieces,
    size_of,
)
from mrc.enums import Access, CcKind, CommandOp, Integrity, QpState
from mrc.errors import ArgumentError, InUseError, ProtocolError, QueueFullError, StateError

RTR: dict[str, Any] = {"dest_qpn": 9, "rq_psn": 8, "integrity": Integrity.UDP}
RTS: dict[str, Any] = {
    "sq_psn": 5, "path_mtu": 1024, "peer_mpr": 1024, "peer_max_wimm": 128, "timeout": 14,
    "retry_linear": 7, "retry_exp": 8, "cc": CcKind.NULL, "cc_profile": {"base_rtt_ns": 7},
}  # fmt: skip
MOVES: dict[tuple[QpState, QpState], Callable[[QueuePair], Command]] = {
    (QpState.RESET, QpState.INIT): QueuePair.to_init,
    (QpState.INIT, QpState.RTR): lambda queue: queue.to_rtr(**RTR),
    (QpState.RTR, QpState.RTS): lambda queue: queue.to_rts(**RTS),
}


def made(state: QpState = QpState.RTS, sq_depth: int = 2) -> QueuePair:
    return QueuePair(sq_depth=sq_depth, mpr=1024, max_wimm=128, qpn=77, state=state)


@pytest.mark.parametrize(("before", "target"), MOVES)
@pytest.mark.parametrize("state", QpState)
def test_move__only_from_the_state_before(state: QpState, before: QpState, target: QpState) -> None:
    queue = made(state)
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
    queue = made(QpState.INIT)
    attr = queue.to_rtr(**RTR).fields["pointer"]
    assert (attr.dest_qpn, attr.rq_psn, attr.dynamic_mpr) == (9, 8, False)
    assert attr.integrity == Integrity.UDP
    attr = queue.to_rts(**RTS).fields["pointer"]
    assert (attr.sq_psn, attr.path_mtu, attr.cc) == (5, 1024, CcKind.NULL)
    assert attr.cc_profile.base_rtt_ns == 7


def test_set_mpr__when_it_was_agreed() -> None:
    queue = made(QpState.INIT)
    with pytest.raises(StateError, match="no dynamic MPR"):
        queue.set_mpr(128)
    queue.to_rtr(**RTR, dynamic_mpr=True)
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
    qpns = [QueuePair.random_qpn() for _ in range(1000)]
    assert all(2 < qpn < 1 << 24 for qpn in qpns)
    assert all(0 < random_key() < 1 << 32 for _ in range(1000))
    assert len(set(qpns)) > 990


# ---- Writes as C reads them, and what is refused before -----------------------------------------


QUEUE = QueuePair(sq_depth=8, mpr=1024, max_wimm=128, qpn=77)
HUGE = RemoteMemory(1 << 20, 9, 1 << 40)


@pytest.fixture
def mr() -> Iterator[MR]:
    region = MR.over(bytearray(100), Access.LOCAL_READ)
    yield region
    region._held.release()


def filled(asked: Writes) -> Any:
    """The command that posts, as C gets it, in a reused slot."""
    commands = ffi.new("struct mrc_command[]", 2)
    Command({"op": CommandOp.QP_MODIFY, "qpn": 9, "value": 5}).fill(commands, 1)
    asked.fill(commands, 1)
    assert commands[0].op == 0
    return commands[1]


def requests(asked: Writes) -> list[tuple[int, ...]]:
    """wr_id, local, lkey, va, rkey, bytes, imm, opcode, unsignaled of each work request."""
    command = filled(asked)
    array = ffi.cast("struct mrc_wr *", command.pointer)
    wrs = [array[i] for i in range(command.value)]
    return [
        (wr.wr_id, wr.local, wr.lkey, wr.va, wr.rkey, wr.bytes, wr.imm, wr.opcode, wr.unsignaled)
        for wr in wrs
    ]


def test_layout__is_that_of_the_c_struct() -> None:
    assert ffi.sizeof("struct mrc_wr") == queue_pair._WR.size
    fields = ["wr_id", "local", "va", "lkey", "rkey", "bytes", "imm", "opcode"]
    fields += ["unsignaled", "redundant"]
    packed = queue_pair._WR.pack(*range(1, 11))
    wr = ffi.cast("struct mrc_wr *", ffi.from_buffer(packed))
    assert [getattr(wr, field) for field in fields] == list(range(1, 11))
    for index, field in ((queue_pair._LOCAL, "local"), (queue_pair._VA, "va")):
        assert ffi.offsetof("struct mrc_wr", field) == 8 * index
    end = ffi.sizeof("struct mrc_wr") + queue_pair._UNSIGNALED
    assert ffi.offsetof("struct mrc_wr", "unsignaled") == end


def test_fill__a_write(mr: MR) -> None:
    asked = Writes.of(QUEUE, 3, [Write(mr, HUGE, None, 10, 5, 7)])
    command = filled(asked)
    assert (command.op, command.qpn, command.cookie) == (CommandOp.QP_POST_MANY, 77, 3)
    assert requests(asked) == [
        (3, mr.address + 5, mr.key, HUGE.address + 7, HUGE.rkey, 10, 0, WrOpcode.WRITE, 0)
    ]
    assert (asked.count, asked.size, asked.mrs) == (1, 10, [mr])


def test_fill__an_immediate_of_zero_is_one() -> None:
    asked = Writes.of(QUEUE, 3, [Write(imm=0)])
    assert requests(asked) == [(3, 0, 0, 0, 0, 0, 0, WrOpcode.WRITE_IMM, 0)]
    assert asked.mrs == []


def test_fill__only_the_last_of_many_is_signaled(mr: MR) -> None:
    asked = Writes.of(QUEUE, 3, [Write(mr, HUGE, imm=8), Write(mr, HUGE, length=4), Write(imm=9)])
    found = requests(asked)
    assert [request[-1] for request in found] == [1, 1, 0]
    assert [request[5:7] for request in found] == [(100, 8), (4, 0), (0, 9)]
    assert (asked.count, asked.size, asked.mrs) == (3, 104, [mr, mr])


def test_fill__a_redundant_write(mr: MR) -> None:
    writes = [Write(mr, HUGE, redundant=True), Write(mr, HUGE, imm=1)]
    command = filled(Writes.of(QUEUE, 3, writes))
    array = ffi.cast("struct mrc_wr *", command.pointer)
    assert [array[i].redundant for i in range(2)] == [1, 0]


def test_fill__scattered(mr: MR) -> None:
    asked = Writes.scattered(QUEUE, 3, mr, HUGE, 10, [90, 0], [5, 6])
    write = (10, 0, WrOpcode.WRITE)
    assert requests(asked) == [
        (3, mr.address + 90, mr.key, HUGE.address + 5, HUGE.rkey, *write, 1),
        (3, mr.address, mr.key, HUGE.address + 6, HUGE.rkey, *write, 0),
    ]
    assert (asked.count, asked.size, asked.mrs) == (2, 20, [mr])


def test_fill__a_command_after_writes() -> None:
    commands = ffi.new("struct mrc_command[]", 1)
    Writes.of(QUEUE, 3, [Write(imm=7)]).fill(commands, 0)
    Command({"op": CommandOp.QP_QUERY, "qpn": 5, "cookie": 6}).fill(commands, 0)
    command = commands[0]
    assert (command.op, command.qpn, command.cookie) == (CommandOp.QP_QUERY, 5, 6)
    assert (command.pointer, command.value) == (ffi.NULL, 0)


@pytest.mark.parametrize(
    ("asked", "argument"),
    [
        ({"length": -1}, "local_offset"),
        ({"length": 101}, "local_offset"),
        ({"remote": RemoteMemory(0, 1, 99)}, "remote_offset"),
        ({"length": 0}, "length: a write of no bytes needs an imm"),
        ({"imm": 1 << 32}, "imm"),
        ({"imm": -1}, "imm"),
        ({"mr": None}, "mr, remote"),
        ({"remote": None, "imm": 1}, "mr, remote"),
        ({"mr": None, "remote": None}, "mr, remote"),
        ({"mr": None, "remote": None, "imm": 1, "length": 5}, "mr, remote"),
    ],
)
def test_of__what_is_refused(mr: MR, asked: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentError, match=argument):
        Writes.of(QUEUE, 1, [Write(imm=1), Write(mr, HUGE)._replace(**asked)])


def test_of__more_than_a_redundant_write_carries() -> None:
    held: Any = SimpleNamespace(key=1, range=RemoteMemory(0, 1, 1 << 20).range)
    for length in (limits.MAX_REDUNDANT, limits.MAX_REDUNDANT + 1):
        write = Write(held, HUGE, length=length, redundant=True)
        if length == limits.MAX_REDUNDANT:
            assert Writes.of(QUEUE, 1, [write]).size == length
        else:
            with pytest.raises(ArgumentError, match="length: 65537 of a redundant write"):
                Writes.of(QUEUE, 1, [write])


def test_of__more_than_a_message_carries(mr: MR) -> None:
    class Large:
        """A region of more memory than a test should take."""

        key, length, address = 1, 1 << 33, 0
        range = RemoteMemory(0, 1, 1 << 33).range

    large: Any = Large()
    for length in (0xFFFFFFFF, 1 << 32):
        whole = Write(large, HUGE, length=length)
        if length < 1 << 32:
            assert Writes.of(QUEUE, 1, [whole]).size == length
        else:
            with pytest.raises(ArgumentError, match=r"length: .* is not within 0\.\."):
                Writes.of(QUEUE, 1, [whole])


def test_pieces__cover_the_write_and_only_the_last_has_the_immediate(mr: MR) -> None:
    whole = Write(mr, HUGE, 7, (5 << 30) + 3, 10, 20)
    found = list(pieces(whole))
    assert [piece.imm for piece in found] == [None] * 5 + [7]
    assert sum(map(size_of, found)) == size_of(whole)
    for before, piece in itertools.pairwise(found):
        assert piece.local_offset == before.local_offset + size_of(before)
        assert piece.remote_offset == before.remote_offset + size_of(before)
    assert (found[0].local_offset, found[0].remote_offset) == (10, 20)


# ---- Memory of tensors without the buffer protocol -----------------------------------------------


numpy = pytest.importorskip("numpy", reason="pip install numpy")


class Tensor:
    """Like a torch tensor: no buffer protocol, but DLPack, of version 1 or before."""

    def __init__(self, array: Any, *, versioned: bool = True, device: int = 1) -> None:
        self.array = array
        self._versioned = versioned
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **wanted: Any) -> Any:
        if wanted and not self._versioned:
            raise TypeError("an unexpected keyword argument")
        return self.array.__dlpack__(**wanted)


@pytest.mark.parametrize("versioned", [True, False])
def test_hold__the_memory_of_a_tensor(versioned: bool) -> None:
    array = numpy.arange(12, dtype=numpy.int16).reshape(3, 4)
    held = HeldBuffer.hold(Tensor(array[1:], versioned=versioned), writable=True)
    assert (held.address, held.length) == (array.ctypes.data + 8, 16)
    held.release()
    held.release()  # like any buffer, it may be released twice


def test_hold__keeps_the_memory_until_released() -> None:
    array = numpy.zeros(1000)
    alive = weakref.ref(array)
    held = HeldBuffer.hold(Tensor(array), writable=False)
    del array
    gc.collect()
    assert alive() is not None
    held.release()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("tensor", "writable", "cause"),
    [
        (Tensor(numpy.zeros((4, 4)).T[:, 1:]), False, "not contiguous"),
        (Tensor(numpy.zeros(4), device=2), False, "not in CPU memory"),
        (Tensor(numpy.broadcast_to(numpy.zeros(4), (4,))), True, "read-only"),
        (Tensor(numpy.broadcast_to(numpy.zeros(4), (4,)), versioned=False), True, "."),
    ],
)
def test_hold__refuses(tensor: Tensor, writable: bool, cause: str) -> None:
    with pytest.raises(ArgumentError, match=rf"buffer: needs a .*{cause}"):
        HeldBuffer.hold(tensor, writable=writable)


async def test_write__from_tensor_to_array() -> None:
    source, target = numpy.arange(5000, dtype=numpy.float32), numpy.zeros(5000, numpy.float32)
    async with (
        connected_pair() as pair,
        pair.near_context.register(Tensor(source)) as mr,
        pair.far_context.register(target, access=Access.REMOTE_WRITE) as there,
    ):
        await pair.near.write(mr, there.remote)
    assert (source == target).all()


# ---- Error codes and pinned buffers --------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 4096])
def test_check__success_is_passed_on(code: int) -> None:
    assert check(code, "post") == code


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-errno.EINVAL, ArgumentError),
        (-errno.EACCES, ArgumentError),
        (-errno.ENOENT, StateError),
        (-errno.EPERM, StateError),
        (-errno.EBUSY, StateError),
        (-errno.EEXIST, InUseError),
        (-errno.EADDRINUSE, InUseError),
        (-errno.ENOBUFS, QueueFullError),
        (-errno.EAGAIN, QueueFullError),
        (-errno.ENOSPC, QueueFullError),
    ],
)
def test_check__refusals_name_the_attempt(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^QP 0x7: post: "):
        check(code, "QP 0x7: post")


def test_check__what_the_system_refuses_stays_an_oserror() -> None:
    with pytest.raises(OSError, match="create QP") as caught:
        check(-errno.ENOMEM, "create QP")
    assert caught.value.errno == errno.ENOMEM


def test_hold__a_bytearray_cannot_be_resized_until_released() -> None:
    data = bytearray(b"abc")
    held = HeldBuffer.hold(data, writable=True)
    assert held.length == 3
    with pytest.raises(BufferError):
        data.append(0)
    held.release()
    data.append(0)


def test_hold__a_map_cannot_be_closed_until_released() -> None:
    with mmap.mmap(-1, 4096) as memory:
        held = HeldBuffer.hold(memory, writable=True)
        with pytest.raises(BufferError):
            memory.close()
        held.release()


@pytest.mark.parametrize("buffer", [b"abc", memoryview(b"abc")])
def test_hold__read_only_memory_is_refused_for_writing(buffer: object) -> None:
    with pytest.raises(ArgumentError, match="writable"):
        HeldBuffer.hold(buffer, writable=True)


@pytest.mark.parametrize("buffer", [7, "text", None, memoryview(b"abcd")[::2]])
def test_hold__not_a_contiguous_buffer(buffer: object) -> None:
    with pytest.raises(ArgumentError, match="buffer"):
        HeldBuffer.hold(buffer, writable=False)


@pytest.mark.parametrize(
    "kind", [ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)]
)
def test_hold__objects_and_pointers_are_no_data(kind: Any) -> None:
    """A peer that wrote there would crash this process."""
    with pytest.raises(ArgumentError, match="objects or pointers"):
        HeldBuffer.hold((kind * 4)(), writable=True)


class Opaque(ctypes.Structure):
    _fields_ = (("POX", ctypes.c_uint8), ("z", ctypes.c_double * 3))


@pytest.mark.parametrize("buffer", [array("d", [1]), (ctypes.c_wchar * 3)(), (Opaque * 2)()])
def test_hold__numbers_and_structs_of_them(buffer: object) -> None:
    """Whatever their fields are called."""
    HeldBuffer.hold(buffer, writable=True).release()


@pytest.mark.parametrize("kind", ["counter", "drop", "trace"])
def test_names_of__every_name_once(kind: str) -> None:
    names = names_of(kind)
    assert names
    assert len(set(names)) == len(names)


@walls.needs("programs")
def test_batch__loses_no_struct_when_memory_was_short() -> None:
    """What C had handed over was lost with the list it was put into."""
    handed = [1, 2, 3, 4, 5]
    batch = StructQueue("mrc_msg_inbox", 4)
    objects: deque[int] = deque()
    short = [3]

    def poll(structs: CData, room: int) -> int:
        n = min(room, len(handed))
        for i in range(n):
            structs[i].address = handed.pop(0)
        return n

    def decode(struct: CData) -> int:
        if struct.address in short:
            short.remove(struct.address)
            raise MemoryError
        return int(struct.address)

    with pytest.raises(MemoryError):
        batch.take(poll, decode, objects)
    assert (list(objects), batch.is_empty) == ([1, 2], False)
    assert batch.take(poll, decode, objects) == 4, "there may be more"
    assert (list(objects), batch.is_empty) == ([1, 2, 3, 4], True)
    assert batch.take(poll, decode, objects) == 1
    assert list(objects) == [1, 2, 3, 4, 5]
