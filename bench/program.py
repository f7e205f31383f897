# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder share: their Python, their help, their notes and exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from checkout import ROOT as ROOT
from checkout import parser as parser
from checkout import set_up as set_up


def note(text: str) -> None:
    """For somebody who looks on."""
    if sys.stderr.isatty():
        print(f"bench: {text}", file=sys.stderr)


def run(
    work: Callable[[], None], failures: Mapping[type[Exception], int] = MappingProxyType({})
) -> int:
    """Does the work of a program; returns its exit code. `failures` are more of its own."""
    from end import BenchError  # only now: what they need is known to be installed

    from mrc.cli.exits import Exit
    from mrc.errors import MrcError

    codes = {**failures, **dict.fromkeys((BenchError, MrcError, OSError), Exit.FAILED)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        work()
    except tuple(codes) as error:
        print(f"bench: {error}", file=sys.stderr)
        return next(code for kind, code in codes.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return Exit.OK
