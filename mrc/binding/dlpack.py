# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors that support `__dlpack__` but not the buffer protocol, such as torch tensors.

This module reads only address and size, so it supports element types that Python lacks, such as
bfloat16. The structs follow dlpack.h, versions 0.8 and 1.0 (Apache-2.0,
https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
from typing import Any

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


def memory_of(tensor: Any, *, writable: bool) -> tuple[int, int, object]:
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
