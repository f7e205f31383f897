# SPDX-License-Identifier: Apache-2.0
"""Memory that the engine reads and writes: pinned buffers, regions here, and regions of the peer.

Tensors that support `__dlpack__` but not the buffer protocol, such as torch's, are pinned too. Of
them only address and size are read, so that element types which Python lacks, such as bfloat16,
work. The structs follow dlpack.h, versions 0.8 and 1.0 (Apache-2.0,
https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
import re
import secrets
from asyncio import Future
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from mrc.engine.native import ffi
from mrc.enums import Access
from mrc.errors import ArgumentError, ProtocolError
from mrc.typed import take

# ---- Pinned buffers -------------------------------------------------------------------------


class HeldBuffer(Struct):
    """A Python buffer pinned for C. It cannot be resized or closed before `release`."""

    address: int
    length: int
    _keep: object

    @classmethod
    def hold(cls, buffer: Any, *, writable: bool) -> HeldBuffer:
        """Pins `buffer`; raises ArgumentError unless it is contiguous plain data, and writable if
        required.
        """
        try:
            format = _format_of(buffer)
            if format is None and hasattr(buffer, "__dlpack__"):
                return cls(*_tensor_memory(buffer, writable=writable))
            if format is not None and _POINTERS.search(_NAMES.sub("", format)):
                raise ValueError("it holds objects or pointers, not plain data")
            view = ffi.from_buffer("uint8_t[]", buffer, require_writable=writable)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            kind = "writable contiguous" if writable else "contiguous"
            raise ArgumentError(f"buffer: needs a {kind} buffer: {error}") from error
        return cls(int(ffi.cast("uintptr_t", view)), len(view), view)

    def release(self) -> None:
        """Unpins the buffer."""
        if isinstance(self._keep, ffi.CData):
            ffi.release(self._keep)
        self._keep = None


# In the format of a buffer, as the struct module, NumPy (PEP 3118) and ctypes write it.
_NAMES = re.compile(r":[^:]*:")  # of fields
_POINTERS = re.compile(r"[OPXz&]|Z(?![fdg])")  # Zf, Zd and Zg are complex numbers


def _format_of(candidate: Any) -> str | None:
    """The format of a buffer; None for what has no buffer protocol."""
    try:
        with memoryview(candidate) as view:
            return view.format
    except TypeError:
        return None


_CPU = 1
_READ_ONLY = 1  # a flag of version 1


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _tensor_memory(tensor: Any, *, writable: bool) -> tuple[int, int, object]:
    """Returns address, bytes, and an object that keeps the memory alive.

    Raises BufferError if the memory is not CPU memory, not contiguous, or read-only but `writable`
    is set. Passes on errors of the tensor, for example because it requires a gradient.
    """
    if int(tensor.__dlpack_device__()[0]) != _CPU:
        raise BufferError("the tensor is not in CPU memory")
    try:
        capsule = tensor.__dlpack__(max_version=(1, 0))
    except TypeError:  # the tensor supports only DLPack versions before 1
        capsule = tensor.__dlpack__()
    # We do not rename the capsule, so its destructor releases the memory.
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if versioned.major > 1:
            raise BufferError(f"DLPack version {versioned.major} is not supported")
        if writable and versioned.flags & _READ_ONLY:
            raise BufferError("the tensor is read-only")
        found = versioned.tensor
    else:
        found = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    elements = 1
    for axis in reversed(range(found.ndim)):
        size = found.shape[axis]
        if found.strides and size > 1 and found.strides[axis] != elements:
            raise BufferError("the tensor is not contiguous")
        elements *= size
    bytes = (elements * found.bits * found.lanes + 7) // 8
    return (found.data or 0) + found.byte_offset, bytes, capsule


# ---- Regions --------------------------------------------------------------------------------


def random_key() -> int:
    """An unpredictable, non-zero 32-bit key of a memory region."""
    return 1 + secrets.randbelow(0xFFFFFFFF)


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
    """Number of engines that have registered the region."""

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
