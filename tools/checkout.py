# SPDX-License-Identifier: Apache-2.0
"""The checkout of a program of tools/ or bench/, and the Python that tools/setup put there.

It needs nothing that is installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv" / "bin" / "python"
NAME = Path(sys.argv[0]).name


@contextmanager
def set_up(otherwise: str = "") -> Iterator[None]:
    """Around imports: a Python that lacks one starts the program again with that of tools/setup."""
    try:
        yield
    except ModuleNotFoundError as error:
        if os.access(VENV, os.X_OK) and Path(sys.prefix) != VENV.parent.parent:
            os.execv(VENV, [str(VENV), *sys.argv])
        sys.exit(f"{NAME}: {error.name} is not installed: run tools/setup{otherwise}")


def parser(name: str, description: str | None, examples: str) -> argparse.ArgumentParser:
    """Of a program whose help ends with examples."""
    return argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
