# SPDX-License-Identifier: Apache-2.0
"""The border between gloo_device.cc and Python: its structs, and the functions of each side."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mrc.errors import MrcError, StateError
from mrc.messages.messages import MessageFunctions

if TYPE_CHECKING:
    from mrc.torch.transport import GlooTransport

_int, _u32, _ptr = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
_TYPES = {
    "address": ctypes.CFUNCTYPE(_int, _ptr, _u32, _ptr, _u32),
    "open": ctypes.CFUNCTYPE(_int, _u32, _ptr, _ptr, _u32),
    "connect": ctypes.CFUNCTYPE(_int, _u32, _int, _ptr, _u32, _ptr, _u32),
    "ready": ctypes.CFUNCTYPE(_int, _u32, _u32, ctypes.POINTER(_u32), _ptr, _u32),
    "failed": ctypes.CFUNCTYPE(None, _u32, ctypes.c_char_p),
    "close": ctypes.CFUNCTYPE(None, _u32),
}


class _EngineTable(ctypes.Structure):
    """Addresses of the engine's functions, in the order of struct mrc_gloo_engine."""

    _fields_ = tuple((name, _ptr) for name in ("ctx", "space", "close_space", "post", "cancel"))


class _CallTable(ctypes.Structure):
    _fields_ = tuple(_TYPES.items())


class Shim:
    """The functions of the compiled gloo_device.cc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._lost = library.mrc_gloo_lost
        self._lost.argtypes, self._lost.restype = (_ptr, _u32, ctypes.c_char_p, _int), None

    def register(self, calls: GlooTransport) -> int:
        """Registers the transport; `calls` must live until the process ends."""
        self._table = _CallTable(
            **{name: kind(_bound(calls, name)) for name, kind in _TYPES.items()}
        )
        result: int = self._library.mrc_gloo_register(
            ctypes.byref(self._table), _u32(ctypes.sizeof(self._table))
        )
        return result

    def attach(self, functions: MessageFunctions) -> None:
        """The engine is open: operations go to these functions from now on."""
        engine = _EngineTable(*functions.addresses)
        result = self._library.mrc_gloo_attach(
            ctypes.byref(engine),
            _u32(ctypes.sizeof(engine)),
            _u32(functions.post_bytes),
            _u32(functions.done_bytes),
        )
        if result != 0:
            raise StateError("the compiled transport belongs to another mrc")

    def lost(self, user: int, peer: int, text: str, *, everything: bool) -> None:
        """Tells a group why operations with a peer fail, or all of its operations."""
        self._lost(user, peer, text.encode(), everything)

    def stop(self) -> None:
        """From now on the library calls neither Python nor the engine."""
        self._library.mrc_gloo_stop()


def _bound(calls: GlooTransport, name: str) -> Callable[..., Any]:
    """The C function `name` of the table, which calls the method of this name."""

    def address(out: int, room: int, text: int, size: int) -> int:
        def run() -> int:
            data = calls.address()
            assert len(data) <= room
            ctypes.memmove(out, data, len(data))
            return 0

        return _result_of(run, text, size)

    def open_(space: int, user: int, text: int, size: int) -> int:
        return _result_of(lambda: calls.open(space, user), text, size)

    def connect(space: int, rank: int, data: int, length: int, text: int, size: int) -> int:
        packed = ctypes.string_at(data, length)
        return _result_of(lambda: calls.connect(space, rank, packed), text, size)

    def ready(space: int, timeout_ms: int, peers: Any, text: int, size: int) -> int:
        def run() -> None:
            for rank, peer in calls.ready(space, timeout_ms / 1000).items():
                peers[rank] = peer

        return _result_of(run, text, size)

    def failed(space: int, text: bytes) -> None:
        calls.failed(space, text.decode(errors="replace"))

    def close(space: int) -> None:
        calls.close(space)

    found: dict[str, Callable[..., Any]] = {
        "address": address,
        "open": open_,
        "connect": connect,
        "ready": ready,
        "failed": failed,
        "close": close,
    }
    return found[name]


def _result_of(run: Callable[[], int | None], text: int, size: int) -> int:
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
