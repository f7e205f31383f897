# SPDX-License-Identifier: Apache-2.0
"""How a command that serves many peers reports a failed session, and a void one-time code."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from mrc.aio.context import Context
from mrc.cli.exits import cause, exit_code
from mrc.cli.output import Output, print_error
from mrc.connect.parse import shown
from mrc.errors import MrcError


async def until_guessed(ctx: Context) -> NoReturn:
    """Raises when the one-time code is used up without success, and nobody else may connect."""
    raise MrcError(await ctx._code_failed())


def session_failed(out: Output, peer: str, error: Exception) -> int:
    """Prints the error as one line. Returns the exit code for a command that serves only this peer.

    Another error than MrcError, OSError and MemoryError is a bug in mrc. It ends only its own
    session, like any other error.
    """
    ours = not isinstance(error, (MrcError, OSError, MemoryError))
    text = f"{type(error).__name__}: {error}; MRC_DEBUG=1 shows where" if ours else cause(error)
    if ours and os.environ.get("MRC_DEBUG") == "1":
        sys.excepthook(type(error), error, error.__traceback__)
    code = exit_code(error)
    about = "" if text.startswith(f"{shown(peer)} ") else f"{shown(peer)}: "
    print_error(out.prog, f"{about}{text}", code, as_json=out.as_json)
    return code
