# SPDX-License-Identifier: Apache-2.0
"""Commands that QPs and memory regions build, slices of memory, memory of tensors, error codes and
pinned buffers.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import walls
from endpoints import connected_pair
from models.library import library

from mrc.engine import engine
from mrc.engine.memory import HeldBuffer, Region, RemoteMemory, random_key
from mrc.engine.native import CData, Command, StructQueue, check, names_of
from mrc.engine.queue_pair import QueuePair
from mrc.enums import Access, CcKind, CommandOp, Integrity, QpState
from mrc.errors import ArgumentError, InUseError, ProtocolError, QueueFullError, StateError

numpy = pytest.importorskip("numpy", reason="pip install numpy")

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


async def never(region: Region, error: BaseException | None) -> None:
    raise AssertionError("nobody closes it")


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region._over(bytearray(100), Access.REMOTE_WRITE, never)
    yield made
    made._held.release()


def test_region__what_the_engine_and_the_peer_get(region: Region) -> None:
    assert region._access == Access.LOCAL_READ | Access.REMOTE_WRITE
    assert (region.writable, region.length) == (True, 100)
    assert region.handle == RemoteMemory(region.address, region._key, 100)
    fields = engine.region_register(region).fields
    found = (fields["address"], fields["bytes"], fields["key"], fields["access"])
    assert found == (region.address, 100, region._key, int(region._access))
    assert engine.region_deregister(region).fields["key"] == region._key


def test_region__that_is_only_read_has_no_handle() -> None:
    region = Region._over(b"abc", Access.LOCAL_READ, never)
    with pytest.raises(StateError, match=r"takes no writes: register it with writable=True"):
        _ = region.handle
    assert (region.writable, region._access) == (False, Access.LOCAL_READ)
    region._held.release()


def test_region__an_empty_buffer() -> None:
    buffer = bytearray()
    with pytest.raises(ArgumentError, match="buffer: is empty"):
        Region._over(buffer, Access.LOCAL_READ, never)
    buffer.append(0)  # it is not pinned


def test_slices__of_all_kinds_of_memory(region: Region) -> None:
    for memory in (region, region[:], region.handle):
        for begin, end in ((0, 100), (3, 9), (100, 100), (0, 0)):
            part = memory[begin:end]
            assert (part.address, part.length) == (region.address + begin, end - begin)
        assert (memory[7:].address, memory[7:].length) == (region.address + 7, 93)
        assert (memory[:7].address, memory[:7].length) == (region.address, 7)
        assert (memory[7:][3:].address, memory[7:][3:].length) == (region.address + 10, 90)
        assert memory[numpy.int64(3) : numpy.uint8(5)].length == 2
    assert region[3:9].region is region and region[3:9][1:].region is region
    assert region.handle[3:9].rkey == region._key


@pytest.mark.parametrize(
    ("at", "cause"),
    [
        (slice(0, 101), r"\[0:101\] is not inside its 100 bytes"),
        (slice(101, None), r"\[101:100\] is not inside"),
        (slice(5, 4), r"\[5:4\] is not inside"),
        (slice(-1, None), r"\[-1:100\] is not inside .* \(a negative index counts nothing\)"),
        (slice(None, -1), r"\[0:-1\] is not inside"),
        (slice(0, 1 << 70), r"\[0:1180591620717411303424\] is not inside"),
        (slice(0, 10, 1), "a slice has no step"),
        (slice(None, None, -1), "a slice has no step"),
    ],
)
def test_slices__outside(region: Region, at: slice, cause: str) -> None:
    """A bytes object would give less; what is missing would not be written."""
    for memory, name in ((region, "region"), (region[:], "part"), (region.handle, "memory of the")):
        with pytest.raises(ArgumentError, match=f"^{name}.*: {cause}"):
            memory[at]
    with pytest.raises(ArgumentError, match=r"^part: \[0:6\] is not inside its 5 bytes"):
        region[10:15][0:6]
    with pytest.raises(ArgumentError, match=r"^memory of the peer: \[0:6\] is not inside its 5"):
        region.handle[10:15][0:6]


@pytest.mark.parametrize("at", [5, "a", None, (1, 2), slice("a", "b"), slice(0, 1.0), slice(0.0)])
def test_slices__that_are_none(region: Region, at: Any) -> None:
    for memory in (region, region[:], region.handle):
        with pytest.raises(TypeError, match=r"needs a slice of bytes, such as \[0:64\], not "):
            memory[at]


def test_memory__keys_are_not_shown(region: Region) -> None:
    part, handle = region[1:5], region.handle[1:5]
    assert repr(region) == "<writable Region of 100 bytes>"
    assert repr(part) == "<<writable Region of 100 bytes>[1:5]>"
    assert repr(part[2:]) == "<<writable Region of 100 bytes>[3:5]>"
    assert repr(handle) == "<RemoteMemory of 4 bytes>"


def test_remote_memory__round_trip() -> None:
    remote = RemoteMemory((1 << 64) - 1, (1 << 32) - 1, 12)
    assert RemoteMemory.from_dict(remote.to_dict()) == remote
    assert RemoteMemory.from_bytes(bytes(remote)) == remote
    assert len(bytes(remote)) == 20


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


@pytest.mark.parametrize("value", [b"", bytes(19), bytes(21), "text", None])
def test_remote_memory__other_bytes(value: Any) -> None:
    with pytest.raises(ProtocolError, match="wrong memory description"):
        RemoteMemory.from_bytes(value)


def test_random_numbers__are_in_range_and_spread() -> None:
    qpns = [QueuePair.random_qpn() for _ in range(1000)]
    assert all(2 < qpn < 1 << 24 for qpn in qpns)
    assert all(0 < random_key() < 1 << 32 for _ in range(1000))
    assert len(set(qpns)) > 990


# ---- Memory of tensors without the buffer protocol -----------------------------------------------


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
        pair.near_context.register(Tensor(source)) as here,
        pair.far_context.register(target, writable=True) as there,
    ):
        assert await pair.near.write(here, there.handle) == 20_000
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
