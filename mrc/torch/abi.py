# SPDX-License-Identifier: Apache-2.0
"""Whether the installed torch has the binary interface of gloo_abi.h."""

from __future__ import annotations

import ctypes
from pathlib import Path

from mrc.errors import MrcError

VERSIONS = ((2, 13), (2, 15))  # the first and the last torch that this was tested with
RANGE = " to ".join(".".join(map(str, version)) for version in VERSIONS)

# Sizes in bytes of virtual tables: 8 for each function and 16 before them.
TABLES = {
    "_ZTVN4gloo9transport7ContextE": 0x48,
    "_ZTVN4gloo9transport3tcp7ContextE": 0x48,
    "_ZTVN4gloo9transport3tcp6DeviceE": 0x48,
    "_ZTVN4gloo9transport3tcp4PairE": 0xD8,
    "_ZTVN4gloo9transport3tcp13UnboundBufferE": 0x70,
    "_ZTVN4gloo9transport3tcp7AddressE": 0x30,
}
FUNCTIONS = (
    "_ZN4c10d18GlooDeviceRegistryB5cxx11Ev",
    "_ZN4gloo9transport7ContextC2Eii",
    "_ZN4gloo9transport7ContextD2Ev",
    "_ZN4gloo9transport7Context7getPairEi",
    "_ZN4gloo9transport7Context24createAndConnectAllPairsESt10shared_ptrINS_6IStoreEE",
    "_ZN4gloo9transport4PairD2Ev",
    "_ZN4gloo9transport6DeviceD2Ev",
    "_ZN4gloo9transport7AddressD2Ev",
    "_ZN4gloo9transport13UnboundBufferD2Ev",
    "_ZTIN4gloo11IoExceptionE",
)


class TorchError(MrcError):
    """This torch cannot run over mrc."""


class _Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _Symbol(ctypes.Structure):  # Elf64_Sym
    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


def check_version(version: str) -> None:
    """Raises TorchError for a torch that this transport was not tested with."""
    first, last = VERSIONS
    try:
        major, minor = map(int, version.split(".")[:2])
    except ValueError:
        major, minor = 0, 0
    if not first <= (major, minor) <= last:
        raise TorchError(
            f"torch {version}: the mrc transport supports torch {RANGE}; unset"
            " GLOO_DEVICE_TRANSPORT or install one of these"
        )


def check_library(version: str, library: Path) -> None:
    """Raises TorchError unless libtorch_cpu has all functions and tables of the right size."""
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise TorchError(f"torch {version}: cannot load {library}: {error}") from None
    found = {name: size_of(loaded, name) for name in (*FUNCTIONS, *TABLES)}
    for name, size in found.items():
        if size is None:
            raise TorchError(f"torch {version}: its Gloo has no {name}; {REMEDY}")
        if size != TABLES.get(name, size):
            raise TorchError(
                f"torch {version}: {name} has {size} bytes, not {TABLES[name]}; {REMEDY}"
            )


REMEDY = "the mrc transport does not fit it: unset GLOO_DEVICE_TRANSPORT"


def size_of(library: ctypes.CDLL, name: str) -> int | None:
    """The size of a symbol in bytes; None: the library does not export it."""
    try:
        address = ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:
        return None
    info, symbol = _Info(), ctypes.POINTER(_Symbol)()
    dladdr1 = ctypes.CDLL(None).dladdr1
    dladdr1.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    if not dladdr1(address, ctypes.byref(info), ctypes.byref(symbol), 1) or not symbol:
        return None
    return int(symbol.contents.size)
