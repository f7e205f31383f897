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
import struct
from asyncio import Future, ensure_future, shield
from collections.abc import Awaitable, Callable
from operator import index
from types import TracebackType
from typing import Annotated, Any, Self

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from mrc.engine.native import ffi
from mrc.enums import Access
from mrc.errors import ArgumentError, ProtocolError, StateError
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
    """Memory of the peer, or a slice of it: what the peer's `Region.handle` says."""

    address: Annotated[int, Meta(ge=0)]
    """Address in the peer's process."""
    rkey: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    """Remote key: permits writes to this memory."""
    length: Annotated[int, Meta(ge=0)]
    """Size in bytes."""

    def __getitem__(self, at: slice) -> RemoteMemory:
        """`handle[begin:end]`, in bytes: that part of it. Raises ArgumentError outside."""
        begin, length = _within(at, self.length, "memory of the peer")
        return RemoteMemory(self.address + begin, self.rkey, length)

    def __repr__(self) -> str:
        return f"<RemoteMemory of {self.length} bytes>"  # without its key

    def __bytes__(self) -> bytes:
        """20 bytes for the peer, the inverse of `from_bytes`."""
        return _HANDLE.pack(self.address, self.rkey, self.length)

    @classmethod
    def from_bytes(cls, value: bytes) -> RemoteMemory:
        """The inverse of `bytes(handle)`; raises ProtocolError."""
        try:
            return cls(*_HANDLE.unpack(value))
        except (TypeError, struct.error) as error:
            raise ProtocolError(f"the peer sent a wrong memory description: {error}") from None

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


class Part(Struct, frozen=True):
    """A slice of a Region, as the source of a write."""

    region: Region
    """The memory that it is part of."""
    address: int
    """Where it begins in this process."""
    length: int
    """Size in bytes."""

    def __getitem__(self, at: slice) -> Part:
        """A slice of the slice, in bytes. Raises ArgumentError outside."""
        begin, length = _within(at, self.length, "part")
        return Part(self.region, self.address + begin, length)

    def __repr__(self) -> str:
        begin = self.address - self.region.address
        return f"<{self.region!r}[{begin}:{begin + self.length}]>"


class Region(Struct, eq=False):
    """Registered memory: this side writes from it, and a writable one is written by peers.

    `region[begin:end]` is a part of it, in bytes. `async with` closes it.
    """

    _held: HeldBuffer
    """The pinned buffer."""
    _access: Access
    """What the engine allows: LOCAL_READ, and REMOTE_WRITE if it is writable."""
    _close: Callable[[Region, BaseException | None], Awaitable[None]]
    """What ends its registration; an error does not wait for ever."""
    _key: int = field(default_factory=random_key)
    """Random local and remote key."""
    _outstanding: int = 0
    """Number of work requests that use the memory now."""
    _waiting: list[Future[None]] = field(default_factory=list)
    """They end when `_outstanding` becomes 0."""
    _ending: Future[None] | None = None
    """Ends when the region is closed, for all who close it."""
    _engines: int = 0
    """Number of engines that have registered the region."""

    @classmethod
    def _over(
        cls,
        buffer: Any,
        access: Access,
        close: Callable[[Region, BaseException | None], Awaitable[None]],
    ) -> Region:
        """Pins `buffer`, which must be writable for REMOTE_WRITE."""
        held = HeldBuffer.hold(buffer, writable=Access.REMOTE_WRITE in access)
        if held.length == 0:
            held.release()
            raise ArgumentError("buffer: is empty (a write of 0 bytes needs no memory region)")
        return cls(held, access | Access.LOCAL_READ, close)

    def __repr__(self) -> str:
        kind = "writable " if self.writable else ""
        return f"<{kind}Region of {self.length} bytes>"  # without its key

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end(error)

    async def close(self) -> None:
        """Waits until no write uses the region, then ends it and unpins the buffer."""
        await self._end(None)

    async def _end(self, error: BaseException | None) -> None:
        if self._ending is None:
            self._ending = ensure_future(self._close(self, error))
        await shield(self._ending)

    def _wake(self) -> None:
        """`_outstanding` has become 0."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    @property
    def address(self) -> int:
        """Address of the memory in this process."""
        return self._held.address

    @property
    def length(self) -> int:
        """Size in bytes."""
        return self._held.length

    @property
    def writable(self) -> bool:
        """Whether peers that have the handle may write."""
        return Access.REMOTE_WRITE in self._access

    @property
    def handle(self) -> RemoteMemory:
        """What the peer needs for its writes: send it, for example as private data.

        Raises StateError if the region is not writable.
        """
        if not self.writable:
            raise StateError(f"{self!r} takes no writes: register it with writable=True")
        return RemoteMemory(self.address, self._key, self.length)

    def __getitem__(self, at: slice) -> Part:
        """`region[begin:end]`, in bytes: a part to write from. Raises ArgumentError outside."""
        held = self._held
        begin, length = _within(at, held.length, "region")
        return Part(self, held.address + begin, length)


_HANDLE = struct.Struct("!QIQ")


def _within(at: slice, size: int, what: str) -> tuple[int, int]:
    """Begin and length of a slice, which must be inside: what is missing would not be written."""
    try:
        begin, end = at.start, at.stop
        if begin is None:
            begin = 0
        if end is None:
            end = size
        if 0 <= begin <= end <= size and at.step is None:
            return index(begin), index(end) - begin
        if at.step is not None:
            raise ArgumentError(f"{what}: a slice has no step")
        cause = f"[{begin}:{end}] is not inside its {size} bytes (a negative index counts nothing)"
    except (AttributeError, TypeError):
        raise TypeError(f"{what}: needs a slice of bytes, such as [0:64], not {at!r:.60}") from None
    raise ArgumentError(f"{what}: {cause}")
