# SPDX-License-Identifier: Apache-2.0
"""`mrc perf`: measures goodput and latency, with the option letters of iperf3 and perftest."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import mrc
from mrc import versions
from mrc.cli import endpoint
from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.connect.security import Commands
from mrc.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from mrc.perf.load import PerfPlan

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
SWEEP_SIZES = tuple(2**power for power in range(1, 24))
SWEEP_SECONDS = 1.0
DEFAULT_SIZE = 1 << 20
_MAX_PEER_BYTES = mrc.Limits().max_peer_bytes
DEFAULT_SECONDS = 10.0
DEFAULT_BIN = "1ms"
INSTEAD = {
    ("-u", "--udp"): "mrc always sends over UDP; -b limits the rate",
    ("-w", "--window"): "mrc sizes its windows itself; --size times --depth is in flight",
    ("-f", "--format"): "units follow the values; --json and --csv print plain bit/s and bytes",
    ("-V",): "-v prints details",
}
"""Options of iperf3 that mrc perf lacks, and what to use instead."""
_SHARES = [shares.name.lower() for shares in mrc.PlaneShares]


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
TEST = f"""
-t, --time SECONDS            duration of the test [{DEFAULT_SECONDS:.0f}; {SWEEP_SECONDS:.0f} for
                              each size of -a]
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
    from mrc.perf.report import measure, serve

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
        return run_async(serve(args, out, trusted))
    if args.top:
        raise UsageError(args.prog, "--top: requires --server; see mrc perf --help")
    if host is None:
        raise UsageError(args.prog, "name a HOST or use --server; see mrc perf --help")
    try:
        port = args.port or host[1]
        trusted = endpoint.connecting(args, host[0], port, peer_runs=_serves(port))
        plans, config = _plans(args), _config(args, trusted)
    except (ArgumentError, ConfigError) as error:
        raise UsageError(args.prog, f"{error}; see mrc perf --help") from error
    return run_async(measure(args, out, host[0], port, plans, config))


def _serves(port: int) -> str:
    """The command of a server."""
    return "mrc perf --server" if port == versions.TCP_PORT else f"mrc perf --server -p {port}"


def _config(args: argparse.Namespace, trusted: dict[str, Any]) -> mrc.ContextConfig:
    return mrc.ContextConfig(
        integrity=mrc.Integrity[args.integrity.upper()],
        spraying=mrc.Spraying(burst_packets=args.spray),
        plane_shares=mrc.PlaneShares[args.plane_shares.upper()],
        **endpoint.endpoint_settings(args),
        **endpoint.view_settings(args),
        **trusted,
    )


def _plans(args: argparse.Namespace) -> list[PerfPlan]:
    from mrc.perf.load import Pattern, PerfDirection, PerfPlan

    if args.time and args.bytes:
        raise ArgumentError("-t and -n: use only one of them")
    if args.reverse and args.bidir:
        raise ArgumentError("-R and --bidir: use only one of them")
    if args.all and (args.size is not None or args.bytes):
        raise ArgumentError("-a: tests every size for a time; use neither --size nor -n with it")
    if args.all and args.bins:
        raise ArgumentError("--bins: not available for a sweep (-a)")
    if args.lat and (args.reverse or args.bidir or args.parallel != 1):
        raise ArgumentError("--lat: uses one QP and both directions; drop -P, -R and --bidir")
    default = 2 if args.lat else DEFAULT_SIZE
    sizes = SWEEP_SIZES if args.all else (default if args.size is None else args.size,)
    seconds = args.time or (SWEEP_SECONDS if args.all else DEFAULT_SECONDS)
    reverse = PerfDirection.REVERSE if args.reverse else PerfDirection.FORWARD
    return [
        PerfPlan(
            pattern=Pattern.PING_PONG if args.lat else Pattern.STREAM,
            direction=PerfDirection.BOTH if args.bidir else reverse,
            size=size,
            qps=args.parallel,
            depth=args.depth,
            seconds=0.0 if args.bytes else seconds,
            total_bytes=args.bytes or 0,
            omit_seconds=args.omit,
            rate_bits_per_second=args.bitrate,
            bin_ns=args.bins,
            redundant=args.redundant,
        )
        for size in sizes
    ]
