# SPDX-License-Identifier: Apache-2.0
"""Describes the compiled module `mrc._core` to cffi: what to declare, compile and link.

setup.py names `builder` of this file in `cffi_modules`. The declarations are the part of csrc/mrc.h
between its two cdef markers, so that C and Python cannot drift apart.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cffi import FFI

MODULE = "mrc._core"
BEGIN = "/* cdef begin */"
END = "/* cdef end */"
SOURCE_FOLDERS = ("csrc/core", "csrc/io")
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra")
# cffi's own glue is compiled with the same flags and is not ours to mend.
GLUE_FLAGS = ("-Wno-missing-field-initializers", "-Wno-cast-function-type")


def cut_cdef(header: str) -> str:
    """Returns the declarations between the markers of mrc.h."""
    if header.count(BEGIN) != 1 or header.count(END) != 1:
        raise ValueError(f"mrc.h must hold {BEGIN!r} and {END!r} exactly once")
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


def builder() -> FFI:
    """Returns the cffi builder of `mrc._core` for the checkout that this file lies in."""
    root = Path(__file__).resolve().parent.parent
    macros, link_args = crc_library()
    made = FFI()
    made.cdef(cut_cdef((root / "csrc" / "mrc.h").read_text()))
    made.set_source(
        MODULE,
        '#include "mrc.h"',
        sources=sources(root),
        depends=headers(root),
        include_dirs=["csrc"],
        define_macros=macros,
        extra_compile_args=compile_flags(os.environ),
        extra_link_args=[*link_args, "-pthread"],
    )
    return made
