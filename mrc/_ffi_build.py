# SPDX-License-Identifier: Apache-2.0
"""Describes what is compiled: for cffi the modules, for setup.py the library for C programs.

setup.py names the three builders of this file in `cffi_modules`: `mrc._core` is the engine with the
socket driver, `mrc._sim` the engine in the simulated fabric, `mrc._emu` the same fabric between
real hosts. The declarations are the parts of headers between the two cdef markers, so that C and
Python cannot drift apart. libmrc is the engine with the socket driver and no Python (csrc/verbs).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cffi import FFI

BEGIN = "/* cdef begin */"
END = "/* cdef end */"
# Headers of csrc whose declarations mrc._core has.
DECLARED = ["mrc.h", "core/base.h"]
# Of the programs: for mrc.Messages and the agent. A tree without them has less.
PROGRAMS = ["msg/types.h", "msg/messages.h", "agent/api_values.h", "agent/protocol.h"]
# Source folders of each module, in csrc.
CORE = ("core", "io", "msg")
SIM = ("core", "virtual", "sim")  # also of mrc._emu
VERBS = ("core", "io", "agent", "verbs")
OFI = ("core", "io", "msg", "agent", "ofi")
CM = ("cm", "agent/link.c")
# Every build of C in this project has these flags. gcc for aarch64 would contract a * b + c to one
# operation that rounds once, so the simulated TCP would differ from that on x86-64.
LANGUAGE = ("-std=gnu11", "-ffp-contract=off")
# Calls between the engine's modules are inlined: a sixth fewer instructions for a packet. Exported
# functions would never be, because another library could replace them.
FLAGS = (*LANGUAGE, "-O3", "-g", "-fvisibility=hidden", "-Wall", "-Wextra")
LTO = "-flto=auto"
LOCAL = "-Wl,-Bsymbolic-functions"  # libmrc calls its own functions, whoever else exports the name
# A program that closes a library has its helper thread all the same: MPI_Finalize of Intel MPI
# closes libfabric and so libmrc-fi.
STAYS = "-Wl,-z,nodelete"
# The C code that cffi generates is compiled with the same flags; we cannot fix its warnings.
GLUE_FLAGS = ("-Wno-missing-field-initializers", "-Wno-cast-function-type")


def cut_cdef(header: str) -> str:
    """Returns the declarations between the markers of a header."""
    if header.count(BEGIN) != 1 or header.count(END) != 1:
        raise ValueError(f"the header must hold {BEGIN!r} and {END!r} exactly once")
    return header.split(BEGIN)[1].split(END)[0]


def sources(root: Path, folders: Sequence[str]) -> list[str]:
    """Returns the C files of folders of csrc, relative to `root`, in a fixed order. A name that
    ends in .c stands for itself.
    """
    found = []
    for each in folders:
        path = root / "csrc" / each
        found += [path] if path.suffix == ".c" else sorted(path.rglob("*.c"))
    return [str(path.relative_to(root)) for path in found]


def headers(root: Path, folders: Sequence[str]) -> list[str]:
    """Returns the headers that the C files include; a source distribution must contain them too."""
    patterns = ["*.h", *(f"{each}/**/*.{suffix}" for each in folders for suffix in ("h", "def"))]
    found = [path for pattern in patterns for path in sorted((root / "csrc").glob(pattern))]
    return [str(path.relative_to(root)) for path in found]


def links(code: str, *arguments: str) -> bool:
    """True when the C compiler can compile and link `code` with these arguments."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(code)
        command = [*compiler, str(source), "-o", str(Path(folder, "probe")), *arguments]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False  # no compiler: the build itself reports this with a better message


def has_header(name: str) -> bool:
    """True when the compiler finds a header, whether or not it can compile it."""
    return links(f"#if !__has_include(<{name}>)\n#error\n#endif\nint main(void) {{ return 0; }}\n")


def crc_library() -> tuple[list[tuple[str, str]], list[str]]:
    """Returns macros and link arguments for the CRC-32: ISA-L when installed, else zlib."""
    isal = "#include <isa-l/crc.h>\nint main(void) { return (int)crc32_gzip_refl(0, 0, 0); }\n"
    if links(isal, "-lisal"):
        return [("MRC_HAVE_ISAL", "1")], ["-lisal"]
    zlib = "unsigned long crc32(unsigned long, const unsigned char *, unsigned int);\n"
    zlib += "int main(void) { return (int)crc32(0, 0, 0); }\n"
    # Without zlib's -dev package only the versioned name of the shared library exists.
    return [], ["-lz"] if links(zlib, "-lz") else ["-l:libz.so.1"]


def lto_flags() -> list[str]:
    """Returns the flags for optimization at link time, where compiler and linker support it."""
    return [LTO] if links("int main(void) { return 0; }\n", LTO) else []


def compile_flags(environ: Mapping[str, str]) -> list[str]:
    """Returns the flags; MRC_WERROR=1 makes warnings errors (and setup.py require all parts)."""
    werror = ["-Werror"] if environ.get("MRC_WERROR") == "1" else []
    return [*FLAGS, *GLUE_FLAGS, *werror]


def describe(
    module: str, declared: Sequence[str], folders: Sequence[str], link_args: Sequence[str] = ()
) -> FFI:
    """Returns the cffi builder of a module in the checkout that contains this file."""
    root = Path(__file__).resolve().parent.parent
    macros, crc_args = crc_library()
    lto = lto_flags()
    made = FFI()
    for header in declared:
        made.cdef(cut_cdef((root / "csrc" / header).read_text()))
    made.set_source(
        module,
        "\n".join(f'#include "{header}"' for header in declared),
        sources=sources(root, folders),
        depends=[
            *headers(root, folders),
            *(f"csrc/{each}" for each in declared),
            str(Path(__file__)),
        ],
        include_dirs=["csrc"],
        define_macros=macros,
        extra_compile_args=[*compile_flags(os.environ), *lto],
        extra_link_args=["-O3", *lto, *crc_args, *link_args],
    )
    return made


def declared() -> list[str]:
    """The headers that mrc._core declares."""
    root = Path(__file__).resolve().parent.parent
    return [*DECLARED, *(each for each in PROGRAMS if (root / "csrc" / each).exists())]


def builder() -> FFI:
    """The engine and its driver over sockets."""
    return describe("mrc._core", declared(), CORE, ["-pthread"])


def sim_builder() -> FFI:
    """The engine in the simulated fabric."""
    return describe(
        "mrc._sim", ["sim/topology.h", "sim/scenario.h", "sim/sim.h"], SIM, ["-pthread"]
    )


def emu_builder() -> FFI:
    """The simulated fabric in real time, between interfaces."""
    return describe("mrc._emu", ["sim/topology.h", "sim/emu.h"], SIM, ["-pthread"])


def libraries() -> dict[str, dict[str, Any]]:
    """The libraries for C programs: file name, and arguments of a setuptools.Extension.

    One without its headers is left out: rdma-core's for libmrc and libmrc-cm, libfabric's for its
    provider. setup.py links libmrc-cm with libmrc.
    """
    found: dict[str, dict[str, Any]] = {}
    if not Path(__file__).parents[1].joinpath("csrc", "agent").is_dir():
        return found  # a tree without programs: tools/without
    if has_header("infiniband/verbs.h"):
        found["libmrc.so.1"] = library("libmrc.so.1", VERBS, "csrc/verbs/libmrc.map")
        if has_header("rdma/rdma_cma.h"):
            found["libmrc-cm.so.1"] = library("libmrc-cm.so.1", CM, "csrc/cm/libmrc-cm.map")
    if has_header("rdma/providers/fi_prov.h"):
        found["libmrc-fi.so"] = library("libmrc-fi.so", OFI, "csrc/ofi/libmrc-fi.map")
    return found


def library(name: str, folders: Sequence[str], exports: str) -> dict[str, Any]:
    """The arguments of a setuptools.Extension for one library; `exports` says what it exports."""
    root = Path(__file__).resolve().parent.parent
    macros, crc_args = crc_library()
    lto = lto_flags()
    named = [f"-Wl,--version-script={exports}", f"-Wl,-soname,{name}", "-Wl,-z,defs", LOCAL, STAYS]
    return {
        "sources": sources(root, folders),
        "depends": [*headers(root, folders), exports, "mrc/_ffi_build.py", "setup.py"],
        "include_dirs": ["csrc"],
        "define_macros": macros,
        "extra_compile_args": [*compile_flags(os.environ), *lto],
        "extra_link_args": ["-O3", *lto, *named, *crc_args, "-pthread", "-ldl"],
    }
