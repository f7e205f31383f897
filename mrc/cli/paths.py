# SPDX-License-Identifier: Apache-2.0
"""`mrc paths HOST`: which paths lead to a host, and which of them answer."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import mrc
from mrc.cli.address import host_and_port
from mrc.cli.output import Output, add_options, format_seconds, format_table
from mrc.cli.report import planes_json
from mrc.cli.runner import run_async
from mrc.events import EvInfo

EXAMPLES = """\
examples:
  mrc paths h1                         needs a mrc recv there
  mrc paths --json h1 | jq '.evs[] | select(.state != "GOOD")'
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "paths", help="show the paths to a host that runs mrc recv", examples=EXAMPLES
    )
    parser.add_argument(
        "host", type=host_and_port, metavar="HOST[:PORT]", help="where mrc recv listens"
    )
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="for connecting [%(default)s]"
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return run_async(_paths(args, Output.of(args)))


async def _paths(args: argparse.Namespace, out: Output) -> int:
    host, port = args.host
    async with mrc.Context() as ctx:
        qp = await ctx.connect(host, port, private={"service": "paths"}, timeout=args.timeout)
        async with qp:
            info, evs = await qp.query(), await qp.evs()
        out.text(_table(evs))
        out.result(
            {
                "peer": qp.peer_host,
                "tcp_port": port,
                "udp_port": ctx.udp_port,
                "path_mtu_bytes": qp.path_mtu,
                "planes": planes_json(info.planes),
                "evs": [asdict(ev) | {"state": ev.state.name} for ev in evs],
            }
        )
    return 0


def _table(evs: tuple[EvInfo, ...]) -> str:
    head = ("plane", "path", "EV", "state", "RTT", "uSIDs or destination")
    rows = [
        (
            ev.plane,
            ev.path,
            f"{ev.ev:#010x}",
            ev.state.name if ev.active else f"{ev.state.name} (backup)",
            format_seconds(ev.rtt_ns / 1e9) if ev.rtt_ns >= 0 else "-",
            " ".join(ev.usids) or ev.destination,
        )
        for ev in evs
    ]
    return format_table(head, rows)
