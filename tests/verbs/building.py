# SPDX-License-Identifier: Apache-2.0
"""The C programs beside this file."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "mrc/lib/libmrc.so.1"


def compiled(folder: Path) -> Path:
    """Compiles all programs into a folder, linked with libmrc; returns the folder."""
    library = LIBRARY.parent
    for source in sorted(Path(__file__).parent.glob("*.c")):
        subprocess.run(
            [
                *("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"),
                *(f"-I{ROOT}/csrc", str(source), "-o", str(folder / source.stem)),
                *(f"-L{library}", "-lmrc", "-libverbs", f"-Wl,-rpath,{library}", "-pthread"),
            ],
            check=True,
        )
    return folder
