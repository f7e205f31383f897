# SPDX-License-Identifier: Apache-2.0
"""`mrc perf`: measures goodput and latency, with the option letters of iperf3 and perftest."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import mrc
from mrc import versions
from mrc.cli import endpoint
from mrc.cli.arguments import add
from mrc.cli.output import Exit, Output, UsageError, exit_code
from mrc.connect.parse import Destination
from mrc.connect.security import Commands
from mrc.enums import Integrity, PlaneShares
from mrc.errors import ArgumentError, ConfigError, MrcError

if TYPE_CHECKING:
    from mrc.perf.load import PerfPlan
    from mrc.perf.results import PerfServed

HELP = "measure goodput and latency between two hosts"
EXAMPLES = """\
examples:
  mrc perf --server                    wait for clients (run this on h1); prints a one-time code
  mrc perf h1                          write 1 MiB messages to h1 for 10 s; asks for the code
  mrc perf h1 -t 30 -i 0.1 -P 4        30 s over 4 QPs, a line every 100 ms
  mrc perf h1 -R                       h1 writes; with --bidir both ends write
  mrc perf h1 --lat --size 2           latency of a 2-byte WRITE_IMM; --redundant: sent twice
  mrc perf h1 -a -J > sweep.json       every message size, as JSON
  mrc perf h1 --csv > perf.csv         a line for each interval
  mrc perf h1 --bins                   goodput in bins of 1 ms
"""
_MAX_PEER_BYTES = mrc.config.Limits().max_peer_bytes
DEFAULT_BIN = "1ms"
INSTEAD = {
    ("-u", "--udp"): "mrc always sends over UDP; -b limits the rate",
    ("-w", "--window"): "mrc sizes its windows itself; --size times --depth is in flight",
    ("-f", "--format"): "units follow the values; --json and --csv print plain bit/s and bytes",
    ("-V",): "-v prints details",
}
"""Options of iperf3 that mrc perf lacks, and what to use instead."""
NAMES = {
    "bidirectional": "--bidir", "bin_ns": "--bins", "latency": "--lat", "qps": "-P",
    "reverse": "-R", "seconds": "-t", "size": "--size", "sweep": "-a", "total_bytes": "-n",
}  # fmt: skip
"""What an error about several arguments of `measure` calls them."""
_SHARES = [shares.name.lower() for shares in PlaneShares]


HOST = "host HOST[:PORT]  host that runs mrc perf --server; this end is the client"
ENDS = f"""
-s, --server       be the server: wait for clients
-c, --client HOST  same as HOST without -c
-p, --port PORT    TCP port of the server [{versions.TCP_PORT}]
-1, --one-off      server: exit after one client
"""
MORE_ENDS = f"""
--max-memory BYTES  server: memory for the tests of all clients; one host gets at most half
                    [{_MAX_PEER_BYTES >> 30}G]
--timeout SECONDS   client: time limit for connecting [%(default)s]
"""
TEST = """
-t, --time SECONDS            duration of the test [10; 1 for each size of -a]
-n, --bytes BYTES             instead of -t: each writing end stops after this many bytes
-O, --omit SECONDS            run this long before -t begins, and do not count it [0]
-P, --parallel, --qps PARALLEL  number of QPs [%(default)s]
-R, --reverse                 the server writes, the client receives
--bidir                       both ends write
-b, --bitrate BITRATE         rate limit of each writing end, such as 500mbit [none]
-l, --size SIZE               bytes in a message [1M; 2 with --lat]
-a, --all                     sweep: test each power of two from 2 B to 8 MiB as --size
--depth DEPTH                 messages in flight on each QP [%(default)s]
--lat                         measure latency: half the round trip of one WRITE_IMM at a time
--redundant                   each packet leaves on two planes, and the first arrival counts; for
                              messages of at most 64 KiB
"""
ENGINE = """
--integrity      client: protect packets by a CRC, or only by the UDP checksum [%(default)s]
--plane-shares   how this end loads the planes; measured: in proportion to what each plane delivers;
                 equal: evenly, as MRC specifies [%(default)s]
--spray PACKETS  client: most packets in a burst, which uses one EV; 1: choose an EV for each
                 packet, as MRC specifies [the engine chooses]
"""
OUTPUT = """
-i, --interval SECONDS  time between result lines; the last one ends with the test [%(default)s]
-J, --json              print only one JSON object on stdout
--json-stream           print one JSON object a line: start, intervals, tests, end
--csv                   print only CSV on stdout: each interval; with -a or --lat each test, at both
                        ends
--quiet                 print no notes on stderr
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, HOST, host={"nargs": "?"})
    ends = parser.add_argument_group("client or server")
    add(ends, ENDS, client={"type": "HOST[:PORT]"})
    endpoint.add_endpoint_options(ends, "--bind")
    endpoint.add_engines(ends)
    endpoint.add_trust_options(parser, listens=True)
    endpoint.add_view_options(ends, listens=True)
    add(ends, MORE_ENDS, max_memory={"default": _MAX_PEER_BYTES}, timeout={"default": 5.0})
    endpoint.add_wait(ends, "client: ")
    add(
        parser.add_argument_group("test (client only)"),
        TEST,
        omit={"default": 0.0},
        parallel={"type": int, "default": 1},
        bitrate={"default": 0.0},
        depth={"type": int, "default": 8},
    )
    add(
        parser.add_argument_group("engine"),
        ENGINE,
        integrity={"choices": ("icrc", "udp"), "default": "icrc"},
        plane_shares={"choices": _SHARES, "default": "measured"},
        spray={"type": int, "default": 0},
    )
    output = parser.add_argument_group("output")
    endpoint.add_bins_option(
        output,
        DEFAULT_BIN,
        "record the bytes received in bins of this width; show the longest gap, and the changes"
        " of EVs and planes",
    )
    add(output, OUTPUT, interval={"default": 1.0})
    for letters, use in INSTEAD.items():
        parser.add_argument(*letters, action=_Instead, nargs=0, help=argparse.SUPPRESS, const=use)


class _Instead(argparse.Action):
    """An option of iperf3 that mrc perf lacks: the error says what to use."""

    def __call__(
        self, parser: argparse.ArgumentParser, _args: Any, _value: Any, option: str | None = None
    ) -> None:
        raise argparse.ArgumentError(None, f"{option} of iperf3: {self.const}")


def run(args: argparse.Namespace) -> int:
    from mrc.cli.runner import run_async

    args.json = args.json or args.json_stream
    out = Output.of(args)
    host = args.host or args.client
    if args.server:
        if host is not None:
            raise UsageError(args.prog, "--server takes no HOST; see mrc perf --help")
        if args.csv:
            raise UsageError(args.prog, "--csv: only at the client; see mrc perf --help")
        args.port = versions.TCP_PORT if args.port is None else args.port
        commands = Commands(_serves(args.port), f"mrc perf {endpoint.this_host(args.port)}")
        trusted = endpoint.listening(args, out, commands, local=True)
        return run_async(_serve(args, out, trusted))
    if args.top:
        raise UsageError(args.prog, "--top: requires --server; see mrc perf --help")
    if host is None:
        raise UsageError(args.prog, "name a HOST or use --server; see mrc perf --help")
    host = Destination(host.host, args.port or host.port)
    try:
        trusted = endpoint.connecting(args, *host, peer_runs=_serves(host.port))
        plans, config = _plans(args), _config(args, trusted)
    except (ArgumentError, ConfigError) as error:
        raise UsageError(args.prog, f"{error}; see mrc perf --help") from error
    return run_async(_measure(args, out, host, plans, config))


def _serves(port: int) -> str:
    """The command of a server."""
    return "mrc perf --server" if port == versions.TCP_PORT else f"mrc perf --server -p {port}"


def _config(args: argparse.Namespace, trusted: dict[str, Any]) -> mrc.ContextConfig:
    return mrc.ContextConfig(
        integrity=Integrity[args.integrity.upper()],
        spraying=mrc.config.Spraying(burst_packets=args.spray),
        plane_shares=PlaneShares[args.plane_shares.upper()],
        **endpoint.endpoint_settings(args),
        **endpoint.view_settings(args),
        **trusted,
    )


def _plans(args: argparse.Namespace) -> list[PerfPlan]:
    from mrc.perf.measurement import plans

    return plans(
        size=args.size, seconds=args.time, total_bytes=args.bytes, omit_seconds=args.omit,
        qps=args.parallel, depth=args.depth, rate_bits_per_second=args.bitrate,
        reverse=args.reverse, bidirectional=args.bidir, latency=args.lat, sweep=args.all,
        redundant=args.redundant, bin_ns=args.bins, names=NAMES,
    )  # fmt: skip


async def _measure(
    args: argparse.Namespace,
    out: Output,
    host: Destination,
    plans: list[PerfPlan],
    config: mrc.ContextConfig,
) -> int:
    from mrc.perf.measurement import run as run_plans
    from mrc.perf.report import PerfReport

    report = PerfReport(out, plans, stream=args.json_stream)

    async def once() -> int:
        try:
            async with mrc.open(config) as ctx:
                found = await run_plans(
                    ctx, host, plans,
                    interval_seconds=args.interval, timeout=args.timeout,
                    progress=partial(report.show, ctx), arguments=args.command_line,
                )  # fmt: skip
                report.end()
                return Exit.INTERRUPTED if found.results[-1].interrupted else Exit.OK
        except MrcError as error:
            if not report.has_begun:
                raise
            return report.fail(error)

    return await endpoint.first_connected(args, out, once)


async def _serve(args: argparse.Namespace, out: Output, trusted: dict[str, Any]) -> int:
    """Serves clients until it is cancelled; returns the exit code. With --one-off it ends after the
    first client, with --code after the one that it lets in.
    """
    from mrc.perf.measurement import serve, server_config
    from mrc.perf.report import server_line

    config = server_config(
        max_peer_bytes=args.max_memory,
        plane_shares=PlaneShares[args.plane_shares.upper()],
        **endpoint.endpoint_settings(args),
        **endpoint.view_settings(args),
        **trusted,
    )

    def show(served: PerfServed) -> None:
        out.text(server_line(served))
        out.result(served)

    async with serve(
        port=args.port, config=config, one_off=args.one_off,
        on_served=show, on_failed=out.session_failed,
    ) as server:  # fmt: skip
        endpoint.announce(out, server.context)
        out.note(f"listening on TCP port {server.port}, UDP port {server.context.udp_port}")
        error = await server.until_closed()
        return Exit.OK if error is None else exit_code(error)
