# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors without the buffer protocol, and through it a write in place."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from endpoints import connected_pair

from mrc import Access
from mrc.engine.memory import HeldBuffer
from mrc.errors import ArgumentError

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
