# SPDX-License-Identifier: Apache-2.0
"""The C programs beside this file."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from cbuild import CSRC, SANITIZE, THREAD, Flavour, shared_library

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "mrc/lib/libmrc.so.1"
CM_LIBRARY = ROOT / "mrc/lib/libmrc-cm.so.1"
CM_PARTS = [CSRC / "agent/link.c"]
_SHARED = ("-fPIC", f"-Wl,--version-script={CSRC}/verbs/libmrc.map")
_CM_SHARED = ("-fPIC", f"-Wl,--version-script={CSRC}/cm/libmrc-cm.map")
SANITIZERS = {
    "asan": Flavour("asan-verbs", (*SANITIZE, *_SHARED)),
    "tsan": Flavour("tsan-verbs", (*THREAD, *_SHARED)),
}
CM_SANITIZERS = {
    "asan": Flavour("asan-cm", (*SANITIZE, *_CM_SHARED)),
    "tsan": Flavour("tsan-cm", (*THREAD, *_CM_SHARED)),
}


def compiled(
    folder: Path,
    library: Path = LIBRARY,
    flags: Sequence[str] = (),
    compiler: Sequence[str] = ("gcc",),
) -> Path:
    """Compiles all programs into a folder, linked with libmrc; returns the folder."""
    _compile(Path(__file__).parent, folder, [library], flags, compiler)
    return folder


def cm_compiled(folder: Path) -> Path:
    """The same for the programs that use rdma_cm."""
    _compile(Path(__file__).parent / "cm", folder, [LIBRARY, CM_LIBRARY])
    return folder


def _compile(
    sources: Path, folder: Path, libraries: Sequence[Path], flags: Sequence[str] = (),
    compiler: Sequence[str] = ("gcc",),
) -> None:  # fmt: skip
    for source in sorted(sources.glob("*.c")):
        subprocess.run(
            [
                *(*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g"),
                *("-Wall", "-Wextra", "-Werror", *flags),
                *(f"-I{ROOT}/csrc", str(source), "-o", str(folder / source.stem)),
                "-Wl,--no-as-needed",  # in this order, and before libibverbs, whose names they have
                *(str(library) for library in libraries),
                *(f"-Wl,-rpath,{library.parent}" for library in libraries),
                *("-libverbs", "-pthread"),
            ],
            check=True,
        )


def sanitized(folder: Path, name: str) -> Path:
    """The programs and libmrc, compiled with a sanitizer: they must be run without preloading."""
    return compiled(folder, _sanitized_library(name), SANITIZERS[name].flags)


def cm_sanitized(folder: Path, name: str) -> Path:
    """The same for the programs that use rdma_cm."""
    flavour = CM_SANITIZERS[name]
    sources = [*sorted((CSRC / "cm").glob("*.c")), *CM_PARTS]
    made = shared_library(sources, "mrc-cm", flavour)
    libraries = [_sanitized_library(name), made]
    _compile(Path(__file__).parent / "cm", folder, libraries, flavour.flags)
    return folder


def _sanitized_library(name: str) -> Path:
    parts = ("core", "io", "msg", "agent", "verbs")
    sources = [path for part in parts for path in sorted((CSRC / part).rglob("*.c"))]
    return shared_library(sources, "mrc", SANITIZERS[name])
