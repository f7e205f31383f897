# SPDX-License-Identifier: Apache-2.0
"""Who may look into an endpoint that a subcommand opens: the options, and what they configure."""

from __future__ import annotations

import argparse
from typing import Any

_TOP = (
    "show this endpoint to whoever reaches its TCP port, for mrc top HOST: peers, paths and how"
    " much is moved"
)


def add_options(parser: Any, *, listens: bool) -> None:
    """`--top` where there is a TCP port to ask at."""
    if listens:
        parser.add_argument("--top", action="store_true", help=_TOP)
    else:
        parser.set_defaults(top=False)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ContextConfig: its own user may always look."""
    return {"program": args.prog, "local_view": True, "remote_view": args.top}
