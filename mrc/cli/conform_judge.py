# SPDX-License-Identifier: Apache-2.0
"""`mrc conform judge`: what a capture shows of two implementations."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable
from pathlib import Path

from mrc.cli.arguments import add, count_argument
from mrc.cli.exits import Exit, UsageError
from mrc.cli.output import Output, add_options
from mrc.conform import plots, shown
from mrc.conform.passive import Judge
from mrc.dissect.capture import CaptureError, Frame, read
from mrc.dissect.formats import OPCODES
from mrc.dissect.frame import udp_of
from mrc.dissect.packet import MIN_BYTES, Flow, decode, split
from mrc.sim import drawing
from mrc.whole import write_whole

OPTIONS = """
file FILE        pcap or pcapng file with both directions
--html PAGE      write a page with plots, too
-p, --port PORT  UDP port that packets are sent to; may be repeated [all that carry MRC]
"""


def add_judge(parser: argparse.ArgumentParser) -> None:
    port = {"type": count_argument(65535, "a port number"), "action": "append"}
    add(parser, OPTIONS, file={"nargs": None}, port=port, html={"type": Path})
    add_options(parser)


def run_judge(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.html is not None and not drawing.available():
        raise UsageError(args.prog, drawing.HINT)
    try:
        with open(args.file, "rb") as file:
            judge, packets = judged(read(file, args.file), args.port)
    except OSError as error:
        raise CaptureError(f"{args.file}: {(error.strerror or str(error)).lower()}") from error
    result = shown.result(judge, packets)
    out.text("\n".join(shown.lines(result)))
    out.result(result)
    if args.html is not None:
        write_whole(args.html, plots.page(args.file, judge, result).encode())
    if not result.directions:
        out.note("no data of MRC was found")
    return Exit.FAILED if any(way.broken for way in result.directions) else Exit.OK


def judged(frames: Iterable[Frame], ports: Collection[int] | None) -> tuple[Judge, int]:
    """What these frames show, and how many packets to these UDP ports there are."""
    judge, packets, start = Judge(), 0, None
    for frame in frames:
        start = frame.seconds if start is None else start
        found = udp_of(frame.data, frame.link)
        if found is None or not is_mrc(*found, ports):
            continue
        flow, payload = found
        parts = split(payload)
        for part, piece in enumerate(parts, 1):
            missing = frame.missing if part == len(parts) else 0
            judge.take(frame.seconds - start, flow, decode(piece, flow, missing=missing))
            packets += 1
    judge.finish()
    return judge, packets


def is_mrc(flow: Flow, payload: bytes, ports: Collection[int] | None) -> bool:
    """Whether a datagram goes to one of these ports; without ports, whether it begins as MRC."""
    if ports is not None:
        return flow.dport in ports
    return len(payload) >= MIN_BYTES and payload[0] in OPCODES and payload[2:4] == b"\xff\xff"
