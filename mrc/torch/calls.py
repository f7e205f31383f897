# SPDX-License-Identifier: Apache-2.0
"""The border between gloo_device.cc and Python: its structs, and the functions of each side."""

from __future__ import annotations

import ctypes
import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mrc.errors import MrcError

logger = logging.getLogger("mrc.torch")

ANY = 0xFFFFFFFF  # as the peer of a receive: any


class _Post(ctypes.Structure):
    _fields_ = (
        ("cookie", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("tag", ctypes.c_uint64),
        ("ignore", ctypes.c_uint64),
        ("space", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
        ("kind", ctypes.c_uint8),
        ("exact", ctypes.c_uint8),
    )


class _Done(ctypes.Structure):
    _fields_ = (
        ("cookie", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("tag", ctypes.c_uint64),
        ("space", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
        ("result", ctypes.c_int32),
    )


_int, _u32, _u64, _ptr = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_TYPES = {
    "address": ctypes.CFUNCTYPE(_int, _ptr, _u32, _ptr, _u32),
    "open": ctypes.CFUNCTYPE(_int, _u32, _ptr, _ptr, _u32),
    "connect": ctypes.CFUNCTYPE(_int, _u32, _int, _ptr, _u32, _ptr, _u32),
    "ready": ctypes.CFUNCTYPE(_int, _u32, _u32, _ptr, _u32),
    "post": ctypes.CFUNCTYPE(_int, ctypes.POINTER(_Post), _int),
    "cancel": ctypes.CFUNCTYPE(None, _u32, _u64),
    "close": ctypes.CFUNCTYPE(None, _u32),
}


class _Calls(ctypes.Structure):
    _fields_ = tuple(_TYPES.items())


@dataclass(slots=True, eq=False)
class Operation:
    """A send or a receive of Gloo."""

    cookie: int
    """Its number in the space."""
    address: int
    """Memory of this process that stays valid until the operation has ended."""
    bytes: int
    tag: int
    space: int
    """Number of the group."""
    peer: int
    """Number of the peer, or ANY."""
    sends: bool


class Calls(Protocol):
    """What gloo_device.cc calls, on Gloo's threads. Errors become a text or an errno."""

    def address(self) -> bytes: ...
    def open(self, space: int, user: int) -> None: ...
    def connect(self, space: int, rank: int, address: bytes) -> int: ...
    def ready(self, space: int, timeout: float) -> None: ...
    def post(self, operation: Operation) -> None: ...
    def cancel(self, space: int, cookie: int) -> None: ...
    def close(self, space: int) -> None: ...


class Shim:
    """The functions of the compiled gloo_device.cc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._done = library.mrc_gloo_done
        self._done.argtypes, self._done.restype = (_ptr, ctypes.POINTER(_Done), _int), None
        self._lost = library.mrc_gloo_lost
        self._lost.argtypes, self._lost.restype = (_ptr, _u32, ctypes.c_char_p, _int), None

    def register(self, calls: Calls) -> int:
        """Registers the transport; `calls` must live until the process ends."""
        self._table = _Calls(**{name: kind(_bound(calls, name)) for name, kind in _TYPES.items()})
        result: int = self._library.mrc_gloo_register(
            ctypes.byref(self._table), _u32(ctypes.sizeof(self._table))
        )
        return result

    def done(self, user: int, operation: Operation, peer: int, result: int) -> None:
        """Completes an operation; `result` is 0 or a negative errno."""
        completion = _Done(
            operation.cookie, operation.bytes, operation.tag, operation.space, peer, result
        )
        self._done(user, ctypes.byref(completion), 1)

    def lost(self, user: int, peer: int, text: str, *, everything: bool) -> None:
        """Tells a space why a peer is lost, before its operations complete with an error."""
        self._lost(user, peer, text.encode(), everything)

    def stop(self) -> None:
        """From now on the library makes no calls."""
        self._library.mrc_gloo_stop()


def _bound(calls: Calls, name: str) -> Callable[..., Any]:
    """The C function `name` of the table, which calls the method of this name."""

    def address(out: int, room: int, text: int, size: int) -> int:
        def run() -> int:
            data = calls.address()
            assert len(data) <= room
            ctypes.memmove(out, data, len(data))
            return 0

        return _told(run, text, size)

    def open_(space: int, user: int, text: int, size: int) -> int:
        return _told(lambda: calls.open(space, user), text, size)

    def connect(space: int, rank: int, data: int, length: int, text: int, size: int) -> int:
        packed = ctypes.string_at(data, length)
        return _told(lambda: calls.connect(space, rank, packed), text, size)

    def ready(space: int, timeout_ms: int, text: int, size: int) -> int:
        return _told(lambda: calls.ready(space, timeout_ms / 1000), text, size)

    def post(posts: Any, count: int) -> int:
        try:
            for i in range(count):
                p = posts[i]
                calls.post(
                    Operation(p.cookie, p.address, p.bytes, p.tag, p.space, p.peer, p.kind == 0)
                )
        except Exception as error:
            logger.error("cannot post: %s", error)
            return -errno.EIO
        return 0

    def cancel(space: int, cookie: int) -> None:
        calls.cancel(space, cookie)

    def close(space: int) -> None:
        calls.close(space)

    found: dict[str, Callable[..., Any]] = {
        "address": address,
        "open": open_,
        "connect": connect,
        "ready": ready,
        "post": post,
        "cancel": cancel,
        "close": close,
    }
    return found[name]


def _told(run: Callable[[], int | None], text: int, size: int) -> int:
    """The result of `run`, or -1 and its error as text."""
    try:
        return run() or 0
    except (MrcError, OSError) as error:
        said = f"mrc: {error}"
    except BaseException as error:
        said = f"mrc: {type(error).__name__}: {error}"
    data = said.encode()[: size - 1] + b"\0"
    ctypes.memmove(text, data, len(data))
    return -1
