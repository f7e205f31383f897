# SPDX-License-Identifier: Apache-2.0
"""The common part of this folder's programs: their Python, help, notes and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

# An installed mrc is compiled. Without this, each start of it would compile it here.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from checkout import ROOT as ROOT
from checkout import parser as parser
from checkout import set_up as set_up


def note(text: str) -> None:
    """Prints a line of progress on a terminal."""
    if sys.stderr.isatty():
        say(text)


def say(text: str) -> None:
    """Prints a line that also belongs into a log."""
    print(f"bench: {text}", file=sys.stderr)


def run(
    work: Callable[[], None], failures: Mapping[type[Exception], int] = MappingProxyType({})
) -> int:
    """Runs a program and returns its exit code. `failures`: further errors -> exit codes."""
    from end import BenchError  # imported late: set_up must first ensure the packages

    from mrc.cli.exits import Exit
    from mrc.errors import MrcError

    codes: dict[type[Exception], int] = {
        **failures,
        **dict.fromkeys((BenchError, MrcError, OSError), Exit.FAILED),
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        work()
    except tuple(codes) as error:
        print(f"bench: {error}", file=sys.stderr)
        return next(code for kind, code in codes.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return Exit.OK
