# SPDX-License-Identifier: Apache-2.0
"""Options about the interfaces and the UDP port that a subcommand uses, and their settings."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mrc.cli.address import DEFAULT_PORT, port_number
from mrc.cli.arguments import add, count_argument
from mrc.config import MAX_ENGINES, Sockets
from mrc.limits import UDP_PORT
from mrc.units import counted

if TYPE_CHECKING:
    from mrc.aio.context import Context
    from mrc.aio.qp import QP

_OPTIONS = f"""
-B, --interface IFACE...  use only this interface (name or address); repeat it for each interface
                          [all]
--udp-port PORT           UDP port that peers send to, for a firewall that must know it
                          [{UDP_PORT} if it is free, else a random port]
-v, --verbose             also print the parameters of the QP and the changes of its paths
"""


def add_options(parser: Any, *names: str) -> None:
    """Adds `--interface`, also under other `names`, `--udp-port` and `--verbose`."""
    add(
        parser,
        _OPTIONS.replace("--interface", " ".join(("--interface", *names))),
        interface={"dest": "interfaces"},
        udp_port={"type": count_argument(65535, "a port number"), "default": 0},
    )


def add_engines(parser: Any) -> None:
    """Adds `--engines`, for commands with several QPs."""
    line = (
        "--engines N  run N datapath threads, each with a UDP port of its own (from --udp-port on),"
        " and spread the QPs over them [1]"
    )
    add(parser, line, engines={"type": count_argument(MAX_ENGINES, "a number"), "default": 1})


def add_listening(parser: Any, port_help: str) -> None:
    """Adds `--port` and `--bind`."""
    lines = (
        f"--port PORT     {port_help} [%(default)s]\n"
        "--bind ADDRESS  listen on this address of this host only, for TCP [every address]"
    )
    add(parser, lines, port={"type": port_number, "default": DEFAULT_PORT})


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ContextConfig."""
    found = {"interfaces": tuple(dict.fromkeys(args.interfaces)), "udp_port": args.udp_port}
    return {**found, "sockets": Sockets(engines=getattr(args, "engines", 1))}


def parameters(ctx: Context, qp: QP) -> str:
    """The parameters of a QP in one line, for -v."""
    config = ctx.config
    return (
        f"QP {qp.qpn:#x} to {qp.peer_host}: planes {', '.join(map(str, qp.planes))}, path MTU"
        f" {qp.path_mtu} B, window {counted(qp.mpr, 'PSN')}, cc {config.cc.name}, shares"
        f" {config.plane_shares.name}, integrity {config.integrity.name}"
    )
