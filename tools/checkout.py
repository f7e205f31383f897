# SPDX-License-Identifier: Apache-2.0
"""The checkout of a program of tools/ or bench/, and the Python in its .venv from tools/setup.

It requires only the standard library.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv" / "bin" / "python"
sys.path.append(str(ROOT / "tests"))  # modules that the programs share with tests


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the program with the exit code of `main`, or with 130 after ^C."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def set_up(otherwise: str = "") -> Iterator[None]:
    """Surrounds imports. If one is missing, restarts the program with the Python of .venv, or ends
    it with a message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if os.access(VENV, os.X_OK) and Path(sys.prefix) != VENV.parent.parent:
            os.execv(VENV, [str(VENV), *sys.argv])
        sys.exit(
            f"{Path(sys.argv[0]).name}: {error.name} is not installed: run tools/setup{otherwise}"
        )


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with `text` between two markers; ends the program if these are not there once."""
    if page.count(begin) != 1:
        sys.exit(
            f"{Path(sys.argv[0]).name}: {page.count(begin)} places have {begin.strip()}, not 1"
        )
    head, _, rest = page.partition(begin)
    return f"{head}{begin}{text}{end}{rest.partition(end)[2]}"


def parser(name: str, description: str | None, examples: str) -> argparse.ArgumentParser:
    """The parser of a program whose help ends with examples."""
    return argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
