# SPDX-License-Identifier: Apache-2.0
"""Error codes and pinned buffers at the border to C."""

from __future__ import annotations

import ctypes
import errno
import mmap
from array import array
from collections import deque
from typing import Any

import pytest
import walls

from mrc.engine.memory import HeldBuffer
from mrc.engine.native import CData, StructQueue, check, names_of
from mrc.errors import ArgumentError, InUseError, QueueFullError, StateError


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
