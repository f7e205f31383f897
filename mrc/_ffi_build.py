# SPDX-License-Identifier: Apache-2.0
"""Describes the compiled modules to cffi: what to declare, compile and link.

setup.py names the two builders of this file in `cffi_modules`: `mrc._core` is the engine with the
socket driver, `mrc._sim` the engine in the simulated fabric, `mrc._emu` the same fabric between
real hosts. The declarations are the parts of csrc/mrc.h, csrc/sim/scenario.h, csrc/sim/sim.h and
csrc/emu/emu.h between the two cdef markers, so that C and Python cannot drift apart.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cffi import FFI

MODULE = "mrc._core"
SIM_MODULE = "mrc._sim"
EMU_MODULE = "mrc._emu"
BEGIN = "/* cdef begin */"
END = "/* cdef end */"
SOURCE_FOLDERS = ("csrc/core", "csrc/io")
# Of csrc/sim: what the emulated fabric has too, then the simulated hosts. The rest is for tests of
# the engine in C.
FABRIC_PARTS = (
    "agenda", "fabric", "fault", "frame", "heap", "hop", "link", "queue", "record", "scenario",
    "topology", "world",
)  # fmt: skip
SIM_PARTS = (
    *FABRIC_PARTS, "audit", "bytes", "engines", "fabric_watch", "flow", "gbn", "gbn_host", "host",
    "host_address", "memory", "prove", "qps", "sim", "sim_parts", "tcp", "tcp_host", "traffic",
)  # fmt: skip
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra")
# cffi's own glue is compiled with the same flags and is not ours to mend.
GLUE_FLAGS = ("-Wno-missing-field-initializers", "-Wno-cast-function-type")


def cut_cdef(header: str) -> str:
    """Returns the declarations between the markers of a header."""
    if header.count(BEGIN) != 1 or header.count(END) != 1:
        raise ValueError(f"the header must hold {BEGIN!r} and {END!r} exactly once")
    return header.split(BEGIN)[1].split(END)[0]


def sources(root: Path) -> list[str]:
    """Returns the C files to compile, relative to `root`, in a fixed order."""
    found = [path for folder in SOURCE_FOLDERS for path in sorted((root / folder).glob("*.c"))]
    return [str(path.relative_to(root)) for path in found]


def headers(root: Path) -> list[str]:
    """Returns what the C files include: a source distribution must carry it too."""
    patterns = [f"{folder}/*.{suffix}" for folder in SOURCE_FOLDERS for suffix in ("h", "def")]
    found = [path for pattern in ("csrc/*.h", *patterns) for path in sorted(root.glob(pattern))]
    return [str(path.relative_to(root)) for path in found]


def sim_sources(root: Path, parts: Sequence[str] = SIM_PARTS) -> list[str]:
    """Returns the C files of `mrc._sim`, or of some parts of it, relative to `root`."""
    core = [name for name in sources(root) if name.startswith("csrc/core/")]
    found = [f"csrc/sim/{part}.c" for part in parts]
    return [*core, *(name for name in found if (root / name).exists())]


def sim_headers(root: Path, parts: Sequence[str] = SIM_PARTS) -> list[str]:
    """Returns what the C files of `mrc._sim`, or of some parts of it, include."""
    core = [name for name in headers(root) if not name.startswith("csrc/io/")]
    found = [f"csrc/sim/{part}.h" for part in parts]
    return [*core, *(name for name in found if (root / name).exists())]


def emu_sources(root: Path) -> list[str]:
    """Returns the C files of `mrc._emu`, relative to `root`."""
    own = sorted((root / "csrc/emu").glob("*.c"))
    return [*sim_sources(root, FABRIC_PARTS), *(str(path.relative_to(root)) for path in own)]


def emu_headers(root: Path) -> list[str]:
    """Returns what the C files of `mrc._emu` include."""
    own = sorted((root / "csrc/emu").glob("*.h"))
    return [*sim_headers(root, FABRIC_PARTS), *(str(path.relative_to(root)) for path in own)]


def links(code: str, *libraries: str) -> bool:
    """True when the C compiler turns `code` into a program linked with `libraries`."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(code)
        command = [*compiler, str(source), "-o", str(Path(folder, "probe")), *libraries]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False  # the build itself will say better what is missing


def crc_library() -> tuple[list[tuple[str, str]], list[str]]:
    """Returns macros and link arguments for the CRC-32: ISA-L when installed, else zlib."""
    isal = "#include <isa-l/crc.h>\nint main(void) { return (int)crc32_gzip_refl(0, 0, 0); }\n"
    if links(isal, "-lisal"):
        return [("MRC_HAVE_ISAL", "1")], ["-lisal"]
    zlib = "unsigned long crc32(unsigned long, const unsigned char *, unsigned int);\n"
    zlib += "int main(void) { return (int)crc32(0, 0, 0); }\n"
    # Without zlib's -dev package only the versioned name of the shared library exists.
    return [], ["-lz"] if links(zlib, "-lz") else ["-l:libz.so.1"]


def compile_flags(environ: Mapping[str, str]) -> list[str]:
    """Returns the flags; MRC_WERROR=1 turns warnings into errors."""
    werror = ["-Werror"] if environ.get("MRC_WERROR") == "1" else []
    return [*FLAGS, *GLUE_FLAGS, *werror]


def describe(
    module: str,
    declared: Sequence[str],
    sources: Sequence[str],
    depends: Sequence[str],
    link_args: Sequence[str],
) -> FFI:
    """Returns the cffi builder of a module of the checkout that this file lies in."""
    root = Path(__file__).resolve().parent.parent
    macros, crc_args = crc_library()
    made = FFI()
    for header in declared:
        made.cdef(cut_cdef((root / "csrc" / header).read_text()))
    made.set_source(
        module,
        "\n".join(f'#include "{header}"' for header in declared),
        sources=list(sources),
        depends=list(depends),
        include_dirs=["csrc"],
        define_macros=macros,
        extra_compile_args=compile_flags(os.environ),
        extra_link_args=[*crc_args, *link_args],
    )
    return made


def builder() -> FFI:
    """The engine and its driver over sockets."""
    root = Path(__file__).resolve().parent.parent
    return describe(MODULE, ["mrc.h"], sources(root), headers(root), ["-pthread"])


def sim_builder() -> FFI:
    """The engine in the simulated fabric."""
    root = Path(__file__).resolve().parent.parent
    declared = ["sim/scenario.h", "sim/sim.h"]
    return describe(SIM_MODULE, declared, sim_sources(root), sim_headers(root), [])


def emu_builder() -> FFI:
    """The simulated fabric in real time, between interfaces."""
    root = Path(__file__).resolve().parent.parent
    return describe(EMU_MODULE, ["emu/emu.h"], emu_sources(root), emu_headers(root), ["-pthread"])
