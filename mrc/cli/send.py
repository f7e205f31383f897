# SPDX-License-Identifier: Apache-2.0
"""`mrc send FILE... HOST[:PORT]`: sends files to a host that runs `mrc recv`."""

from __future__ import annotations

import argparse

import mrc
from mrc.cli import endpoint, views
from mrc.cli.address import DEFAULT_PORT, host_and_port
from mrc.cli.arguments import seconds_argument
from mrc.cli.incidents import Incidents
from mrc.cli.output import Output, add_options
from mrc.cli.progress import ProgressMeter
from mrc.cli.report import overflow, slow_planes, transfer
from mrc.cli.runner import run_async
from mrc.transfer.sender import check_sources, send_files
from mrc.transfer.session import connect_session

HELP = "send files to a host that runs mrc recv"
EXAMPLES = """\
examples:
  mrc send a.bin h1                    send to mrc recv on h1
  mrc send a.bin b.bin h1:7000         mrc recv listens on TCP port 7000
  mrc send a.bin '[2001:db8::1]:7000'
  mrc send -B eth1 -B eth2 a.bin h1    use only these two interfaces
  mrc send --json a.bin h1 | jq .planes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="file to send, of any size")
    parser.add_argument(
        "host", type=host_and_port, metavar="HOST[:PORT]",
        help=f"host that runs mrc recv [TCP port {DEFAULT_PORT}]",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=seconds_argument, default=5.0, metavar="SECONDS",
        help="time limit for connecting [%(default)s]",
    )  # fmt: skip
    endpoint.add_options(parser)
    views.add_options(parser, listens=False)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    total = check_sources(args.files)
    return run_async(_send(args, Output.of(args), total))


async def _send(args: argparse.Namespace, out: Output, total: int) -> int:
    host, port = args.host
    meter = ProgressMeter(out, "sender")
    incidents = Incidents(meter.detail)
    async with (
        mrc.Context(mrc.ContextConfig(**endpoint.settings(args), **views.settings(args))) as ctx,
        connect_session(ctx, host, port, total_bytes=total, timeout=args.timeout) as session,
        meter.watch(session, f"to {host}", total),
        incidents.follow(session.qp),
    ):
        views.announce(out, ctx)
        meter.detail(endpoint.parameters(ctx, session.qp))
        sent, seconds = await meter.files(send_files(session, args.files))
        slow = slow_planes("sender", (await session.query()).planes)
        meter.note(incidents.sentence(slow))
        meter.note_once(await overflow(ctx))
        if out.as_json:
            outages = incidents.outages
            out.result(await transfer("sender", session, sent, seconds, port, outages=outages))
    return 0
