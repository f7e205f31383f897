# SPDX-License-Identifier: Apache-2.0
"""The C programs beside this file."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from cbuild import CSRC, SANITIZE, THREAD, Flavour, shared_library

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "mrc/lib/libmrc.so.1"
_SHARED = ("-fPIC", f"-Wl,--version-script={CSRC}/verbs/libmrc.map")
SANITIZERS = {
    "asan": Flavour("asan-verbs", (*SANITIZE, *_SHARED)),
    "tsan": Flavour("tsan-verbs", (*THREAD, *_SHARED)),
}


def compiled(
    folder: Path,
    library: Path = LIBRARY,
    flags: Sequence[str] = (),
    compiler: Sequence[str] = ("gcc",),
) -> Path:
    """Compiles all programs into a folder, linked with libmrc; returns the folder."""
    for source in sorted(Path(__file__).parent.glob("*.c")):
        subprocess.run(
            [
                *(*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g"),
                *("-Wall", "-Wextra", "-Werror", *flags),
                *(f"-I{ROOT}/csrc", str(source), "-o", str(folder / source.stem)),
                *(str(library), "-libverbs", f"-Wl,-rpath,{library.parent}", "-pthread"),
            ],
            check=True,
        )
    return folder


def sanitized(folder: Path, name: str) -> Path:
    """The programs and libmrc, compiled with a sanitizer: they must be run without preloading."""
    flavour = SANITIZERS[name]
    parts = ("core", "io", "msg", "program", "rc", "verbs")
    sources = [path for part in parts for path in sorted((CSRC / part).rglob("*.c"))]
    return compiled(folder, shared_library(sources, "mrc", flavour), flavour.flags)
