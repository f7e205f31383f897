# SPDX-License-Identifier: Apache-2.0
"""Builds the engine with csrc/io over the simulated kernel, and puts it in place of `mrc._core`.

Import it before anything of `mrc`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import itertools
import mmap
import runpy
import sys
import sysconfig
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import cbuild
from cffi import FFI

HERE = Path(__file__).resolve().parent
_MAP_FIXED_NOREPLACE = 0x100000  # of linux/mman.h
_NEVER = (1 << 64) - 1
_FIRST_FD = 1 << 20
_GLUE = cbuild.Flavour(
    "virtual-glue",
    (
        "-O1",
        "-fPIC",
        f"-I{sysconfig.get_path('include')}",
        "-Wno-missing-field-initializers",
        "-Wno-cast-function-type",
        "-Wno-unused-parameter",
    ),
)
_DRIVER = cbuild.Flavour("virtual", ("-O2", "-fPIC", "-include", str(HERE / "calls.h")))


def build() -> Path:
    """The compiled module; nothing is compiled twice."""
    recipe = runpy.run_path(str(cbuild.ROOT / "mrc" / "_ffi_build.py"))
    made = FFI()
    names = recipe["declared"]()
    headers = [*(cbuild.CSRC / name for name in names), HERE / "kernel.h"]
    for header in headers:
        made.cdef(recipe["cut_cdef"](header.read_text()))
    lines = [f'#include "{name}"' for name in [*names, "virtual/kernel.h"]]
    made.set_source("_virtual", "\n".join(lines))
    glue = cbuild.BUILD / "virtual-glue" / "_virtual.c"
    glue.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):  # cffi says what it does
        made.emit_c_code(str(glue))
    messages = cbuild.CSRC / "msg" / "messages.c"
    pure = [*cbuild._sources("core"), *sorted({*cbuild._sources("msg")} - {messages})]
    objects = [
        *cbuild._objects([*pure, HERE / "kernel.c"], cbuild.FAST),
        *cbuild._objects([*cbuild._sources("io"), messages], _DRIVER),
        *cbuild._objects([glue], _GLUE),
    ]
    return cbuild._link("_virtual.so", objects, _GLUE, "lib", ("-shared",))


def _end_heap() -> None:
    """Addresses of memory are part of hellos and messages, so they have as many digits in each run:
    a page behind the heap ends it, and glibc takes all further memory by mmap.
    """
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
    behind = -(-libc.sbrk(ctypes.c_ssize_t(0)) // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
    size, none = ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_long(0)
    libc.mmap(ctypes.c_void_p(behind), size, 0, flags, -1, none)


def _load() -> Any:
    _end_heap()
    assert "mrc._core" not in sys.modules, "import virtual.kernel before mrc"
    loader = ExtensionFileLoader("_virtual", str(build()))
    spec = importlib.util.spec_from_loader("_virtual", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules["mrc._core"] = module
    return module


_module = _load()
ffi, lib = _module.ffi, _module.lib


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet that a socket has sent."""

    fd: int
    ifname: str
    family: int
    source: bytes
    target: bytes
    sport: int
    dport: int
    flow_label: int
    tclass: int
    data: bytes

    @property
    def bytes(self) -> int:
        """Of the UDP payload."""
        return len(self.data)

    @property
    def target_address(self) -> str:
        """Where it goes."""
        found = IPv6Address(self.target)
        return str(found.ipv4_mapped or found)


class Kernel:
    """The simulated kernel of kernel.c; there is one in a process."""

    def __init__(self, now_ns: int, seed: int) -> None:
        lib.vk_reset(now_ns, seed)
        self._taken = ffi.new("struct vk_packet *")
        self.owners = itertools.count(1)
        """numbers of programs, for `run_as`"""

    def set_now(self, now_ns: int) -> None:
        lib.vk_set_now(now_ns)

    def interface(self, name: str, mtu: int, *, up: bool) -> None:
        """Adds an interface, or changes it."""
        lib.vk_interface(name.encode(), mtu, up)

    def take(self) -> Packet | None:
        """The oldest packet that was sent and not yet taken."""
        if not lib.vk_take(self._taken):
            return None
        at = self._taken
        return Packet(
            at.fd, ffi.string(at.ifname).decode(), at.family, bytes(at.source), bytes(at.target),
            at.sport, at.dport, at.flow_label, at.tclass, bytes(ffi.buffer(at.data, at.bytes)),
        )  # fmt: skip

    def departed(self, fd: int, size: int) -> None:
        lib.vk_departed(fd, size)

    def deliver(self, ifname: str, packet: Packet) -> bool:
        """Gives a packet to the socket that it is for; False: there is none."""
        data = ffi.from_buffer(packet.data)
        fields = {
            "family": packet.family, "source": packet.source, "target": packet.target,
            "sport": packet.sport, "dport": packet.dport, "flow_label": packet.flow_label,
            "tclass": packet.tclass, "bytes": packet.bytes, "data": data,
        }  # fmt: skip
        return bool(lib.vk_deliver(ifname.encode(), ffi.new("struct vk_packet *", fields)))

    def report(self, fd: int, error: int) -> None:
        """An ICMP error for a packet of this socket."""
        lib.vk_report(fd, error)

    def run_as(self, owner: int) -> None:
        """A program runs, which owns what it opens."""
        lib.vk_run_as(owner)

    def end(self, owner: int) -> None:
        """Closes the descriptors of a program that was killed."""
        lib.vk_end(owner)

    @property
    def open_sockets(self) -> int:
        return int(lib.vk_open_sockets())

    # ---- For the event loop ---------------------------------------------------------------

    def is_ready(self, fd: int) -> bool:
        return fd >= _FIRST_FD and bool(lib.vk_is_ready(fd))

    def deadline_ns(self, fd: int) -> int | None:
        found = int(lib.vk_deadline(fd)) if fd >= _FIRST_FD else _NEVER
        return None if found == _NEVER else found
