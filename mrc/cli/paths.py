# SPDX-License-Identifier: Apache-2.0
"""`mrc paths HOST`: which paths lead to a host, and which of them answer."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import mrc
from mrc.cli.address import host_and_port
from mrc.cli.output import Output, add_options, format_seconds, format_table
from mrc.cli.report import planes_json
from mrc.cli.runner import run_async
from mrc.events import EvInfo, ProbeResult

EXAMPLES = """\
examples:
  mrc paths h1                         needs a mrc recv there
  mrc paths --probe h1                 also sends a packet of full size over every path
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
    parser.add_argument(
        "--probe", action="store_true", help="probe every EV once more, in a batch, at full size"
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
            probes = await qp.probe_evs(payload=qp.path_mtu) if args.probe else ()
            info, evs = await qp.query(), await qp.evs()
        out.text(_table(evs, probes))
        out.result(
            {
                "peer": qp.peer_host,
                "tcp_port": port,
                "udp_port": ctx.udp_port,
                "path_mtu_bytes": qp.path_mtu,
                "planes": planes_json(info.planes),
                "evs": [_ev_json(ev, probes) for ev in evs],
            }
        )
    return 0


def _ev_json(ev: EvInfo, probes: Sequence[ProbeResult]) -> dict[str, Any]:
    shown = asdict(ev) | {"state": ev.state.name}
    if probes:
        probe = probes[ev.index]
        answer = {"rtt_ns": probe.rtt_ns, "ce": probe.ce} if probe.answered else {}
        shown["probe"] = {"answered": probe.answered, "rtt_ns": None, "ce": None} | answer
    return shown


def _table(evs: Sequence[EvInfo], probes: Sequence[ProbeResult]) -> str:
    head = ["plane", "path", "EV", "state", "RTT", "uSIDs or destination"]
    rows = [
        [
            ev.plane,
            ev.path,
            f"{ev.ev:#010x}",
            ev.state.name if ev.active else f"{ev.state.name} (backup)",
            format_seconds(ev.rtt_ns / 1e9) if ev.rtt_ns >= 0 else "-",
            " ".join(ev.usids) or ev.destination,
        ]
        for ev in evs
    ]
    if probes:
        head.insert(5, "probe")
        for row, probe in zip(rows, probes, strict=True):
            row.insert(5, _outcome(probe))
    return format_table(head, rows)


def _outcome(probe: ProbeResult) -> str:
    if probe.answered:
        return format_seconds(probe.rtt_ns / 1e9) + ", CE" * probe.ce
    if probe.error == errno.EPERM:
        return "denied"
    return "no answer" if probe.error == errno.ETIMEDOUT else "not sent"
