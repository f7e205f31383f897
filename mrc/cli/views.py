# SPDX-License-Identifier: Apache-2.0
"""Who may look into an endpoint that a subcommand opens: the options, and what they configure."""

from __future__ import annotations

import argparse
from typing import Any

from mrc.cli.address import listening_address
from mrc.cli.output import Output
from mrc.observe.context import Context

_TOP = (
    "show this endpoint to whoever reaches its TCP port, for mrc top HOST: peers, paths and how"
    " much is moved"
)


def add_options(parser: Any, *, listens: bool) -> None:
    """`--metrics`, and `--top` where there is a TCP port to ask at."""
    parser.add_argument(
        "--metrics", type=listening_address, metavar="[ADDRESS:]PORT",
        help="serve metrics to Prometheus there; of this machine only without ADDRESS",
    )  # fmt: skip
    if listens:
        parser.add_argument("--top", action="store_true", help=_TOP)
    else:
        parser.set_defaults(top=False)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ContextConfig: its own user may always look."""
    return {
        "program": args.prog,
        "local_view": True,
        "remote_view": args.top,
        "metrics": args.metrics,
    }


def announce(out: Output, ctx: Context) -> None:
    """Says where the metrics are."""
    if ctx.config.metrics is not None:
        address = ctx.config.metrics[0]
        name = f"[{address}]" if ":" in address else address
        out.note(f"metrics at http://{name}:{ctx.metrics_port}/metrics")
