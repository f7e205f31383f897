# SPDX-License-Identifier: Apache-2.0
"""Options about the interfaces and the UDP port that a subcommand uses, and their settings."""

from __future__ import annotations

import argparse
from typing import Any

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.cli.arguments import count_argument
from mrc.limits import UDP_PORT


def add_options(parser: Any, *names: str) -> None:
    """Adds `--interface`, also under other `names`, `--udp-port` and `--verbose`."""
    parser.add_argument(
        "-B", "--interface", *names, action="append", default=[], dest="interfaces",
        metavar="IFACE",
        help="use only this interface (name or address); repeat it for each interface [all]",
    )  # fmt: skip
    parser.add_argument(
        "--udp-port", type=count_argument(65535, "a port number"), default=0, metavar="PORT",
        help="UDP port that peers send to, for a firewall that must know it"
        f" [{UDP_PORT} if it is free, else a random port]",
    )  # fmt: skip
    parser.add_argument(
        "-v", "--verbose", action="store_true",
        help="also print the parameters of the QP and the changes of its paths",
    )  # fmt: skip


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ContextConfig."""
    return {"interfaces": tuple(dict.fromkeys(args.interfaces)), "udp_port": args.udp_port}


def parameters(ctx: Context, qp: QP) -> str:
    """The parameters of a QP in one line, for -v."""
    config = ctx.config
    return (
        f"QP {qp.qpn:#x} to {qp.peer_host}: planes {', '.join(map(str, qp.planes))}, path MTU"
        f" {qp.path_mtu} B, window {qp.mpr} PSNs, cc {config.cc.name}, shares"
        f" {config.plane_shares.name}, integrity {config.integrity.name}"
    )
