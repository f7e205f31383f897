# SPDX-License-Identifier: Apache-2.0
"""What a command that serves many peers says when the session with one of them ends badly."""

from __future__ import annotations

import os
import sys

from mrc.cli.exits import exit_code
from mrc.cli.output import Output, print_error
from mrc.errors import MrcError
from mrc.exchange.foreign import shown


def session_failed(out: Output, peer: str, error: Exception) -> int:
    """Says why in one line; returns the exit code of a command that served this peer alone.

    An error that is no MrcError or OSError is a fault of ours. It ends its session like any other
    error: the peers of the other sessions have no part in it.
    """
    ours = not isinstance(error, (MrcError, OSError))
    cause = f"{type(error).__name__}: {error}; MRC_DEBUG=1 shows where" if ours else str(error)
    if ours and os.environ.get("MRC_DEBUG") == "1":
        sys.excepthook(type(error), error, error.__traceback__)
    code = exit_code(error)
    print_error(out.prog, f"{shown(peer)}: {cause}", code, as_json=out.as_json)
    return code
