# SPDX-License-Identifier: Apache-2.0
"""Options that decide who may view the endpoint that a subcommand opens, and their settings."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mrc.cli.address import listening_address
from mrc.cli.arguments import add
from mrc.cli.output import Output

if TYPE_CHECKING:
    from mrc.aio.context import Context

_METRICS = """
--metrics [ADDRESS:]PORT  serve Prometheus metrics at this address; without ADDRESS at 127.0.0.1
"""
_TOP = """
--top  let anybody who can reach the TCP port view this endpoint with mrc top HOST: its peers, paths
       and traffic
"""


def add_options(parser: Any, *, listens: bool) -> None:
    """Adds `--metrics`, and `--top` for a command that listens on a TCP port."""
    add(parser, _METRICS, metrics={"type": listening_address})
    if listens:
        add(parser, _TOP)
    else:
        parser.set_defaults(top=False)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ContextConfig. The user that runs the command may always view its endpoint."""
    return {
        "program": args.prog,
        "local_view": True,
        "remote_view": args.top,
        "metrics": args.metrics,
    }


def announce(out: Output, ctx: Context) -> None:
    """Prints the URL of the metrics."""
    if ctx.config.metrics is not None:
        address = ctx.config.metrics[0]
        name = f"[{address}]" if ":" in address else address
        out.note(f"metrics at http://{name}:{ctx.metrics_port}/metrics")
