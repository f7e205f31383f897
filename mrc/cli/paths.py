# SPDX-License-Identifier: Apache-2.0
"""`mrc paths HOST`: the paths to a host, with their states and round trips."""

from __future__ import annotations

import argparse
import asyncio
import errno
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

import mrc
from mrc.aio.qp import QP
from mrc.cli import endpoint, paths_quality, trust
from mrc.cli.address import DEFAULT_PORT
from mrc.cli.arguments import WAIT, add, pause_argument
from mrc.cli.exits import Exit
from mrc.cli.live import Block, screen
from mrc.cli.output import Output, add_options, format_seconds, format_table
from mrc.cli.paths_quality import measure
from mrc.cli.retry import Retry
from mrc.cli.runner import run_async
from mrc.enums import EvState
from mrc.errors import MrcError, PeerGoneError
from mrc.events import EvInfo, ProbeResult, known
from mrc.results.paths import Paths, Probe, ProbedEv, Quality
from mrc.results.plain import like
from mrc.running import RunningClock
from mrc.units import counted

HELP = "show the paths to a host that runs mrc recv, and their states"
EXAMPLES = """\
examples:
  mrc paths h1                         h1 must run mrc recv
  mrc paths --probe h1                 also send a full-size probe on each path
  mrc paths --watch -i 0.5 h1          probe every 0.5 s, until ^C
  mrc paths --check h1 || alarm        exit code 1 if some path does not answer
  mrc paths --measure 5s h1            loss, delay, jitter and reordering of each path
  mrc paths --locate h1                name the links that failing paths share
  mrc paths -B eth1 h1                 only the paths from one interface
  mrc paths --json h1 | jq '.evs[] | select(.state != "GOOD")'
"""
OPTIONS = f"""
host HOST[:PORT]        host that runs mrc recv [TCP port {DEFAULT_PORT}]
--timeout SECONDS       time limit for connecting, and for a host that answers no probe
                        [%(default)s]
--probe                 send a probe of full packet size on every EV
--watch                 repeat --probe until interrupted
--check                 probe, and exit with 1 if some path does not answer, or a configured port is
                        down; with --watch as soon as one does not. DENIED paths do not count
--measure SECONDS       probe each path for this long, at most 10 s; show loss, extra delay beside
                        the best path of the plane, jitter and reordering; with --watch again and
                        again
--locate                name the links that failing paths share; implies --measure [2s]
-i, --interval SECONDS  pause between the probes of --watch [%(default)s]
"""

_LOCATE_SECONDS = 2.0
_WITNESSES = 4  # paths that answer, probed again beside those that do not
MAX_NAMES = 8  # paths that an error names
LEAST_PROBE_SECONDS = 0.25  # time limit for an answer; twice the longest round trip if that is more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS, timeout={"default": 5.0}, interval={"default": 1.0})
    add(parser, WAIT, wait={"type": pause_argument, "default": 0.0})
    endpoint.add_options(parser)
    trust.add_options(parser, listens=False)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    trusted = trust.connecting(args, *args.host, peer_runs="mrc recv")
    return run_async(_paths(args, out, trusted))


async def _paths(args: argparse.Namespace, out: Output, trusted: dict[str, Any]) -> int:
    async with mrc.Context(mrc.ContextConfig(**endpoint.settings(args), **trusted)) as ctx:
        if args.watch:
            return _checked(out, await _watch(args, out, ctx))
        async with await _connect(args, out, ctx) as qp:
            out.detail(endpoint.parameters(ctx, qp))
            block, result = await _look(args, ctx, qp)
            if args.measure and qp.peer_has_gone:
                out.note(f"{qp.peer_host} ended the look before the measurement was over")
        out.text(format_table(block.head, block.rows))
        out.text(_summary(result))
        if args.locate:
            out.text("\n".join(paths_quality.lines(result.suspects)))
        out.result(result)
        return _checked(out, result) if args.check else Exit.OK


async def _connect(args: argparse.Namespace, out: Output, ctx: mrc.Context) -> QP:
    host, port = args.host
    with Retry(0.0, out.note, first=args.wait) as retry:
        while True:
            try:
                return await ctx.connect(
                    host, port, private={"service": "paths"}, timeout=args.timeout
                )
            except MrcError as error:
                await retry.wait(error, connected=False, progress=False)


async def _watch(args: argparse.Namespace, out: Output, ctx: mrc.Context) -> Paths:
    """Shows the paths until it is cancelled. With --check it returns the first result with a path
    that does not answer. If the peer closes the QP, it connects again.
    """
    with nullcontext() if out.as_json else screen() as show:
        while True:
            async with await _connect(args, out, ctx) as qp:
                while not qp.peer_has_gone:
                    try:
                        block, result = await _look(args, ctx, qp)
                    except PeerGoneError:
                        await asyncio.sleep(args.interval)
                        break
                    if show is not None:
                        show([block])
                    out.result(result)
                    if args.check and (_dead(result) or result.missing):
                        return result
                    await asyncio.sleep(args.interval)


def _checked(out: Output, result: Paths) -> Exit:
    """The exit code of --check, and lines that name what does not answer, or is missing."""
    if result.missing:
        out.warn(f"this host lacks configured ports: {_listed(result.missing)}")
    if dead := _dead(result):
        many = f"{len(dead)} of {counted(len(result.evs), 'path')}"
        out.warn(f"{many} to {result.peer} do not answer: {_listed(dead)}")
    return Exit.FAILED if dead or result.missing else Exit.OK


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")


def _dead(result: Paths) -> list[str]:
    evs = [ev for ev in result.evs if ev.state != EvState.DENIED.name]
    return [f"{ev.path} ({ev.destination})" for ev in evs if ev.probe and not ev.probe.answered]


async def _look(args: argparse.Namespace, ctx: mrc.Context, qp: QP) -> tuple[Block, Paths]:
    """The paths as a table, and as a result."""
    # An idle QP sends no data, so only probes can find changes for --watch.
    probes = await _probed(qp, args.timeout) if args.probe or args.watch or args.check else ()
    evs = await qp.evs()
    found = await _measured(args, qp, evs)
    quality = paths_quality.with_extra_delays(evs, found)
    info, evs = await qp.query(), await qp.evs()
    result = Paths(
        peer=qp.peer_host,
        tcp_port=args.host[1],
        udp_port=ctx.udp_port,
        path_mtu_bytes=qp.path_mtu,
        planes=info.planes,
        evs=tuple(
            like(
                ProbedEv,
                ev,
                state=_state(ev, probes),
                probe=_probe(ev, probes),
                quality=quality.get(ev.index),
            )
            for ev in evs
        ),
        missing=ctx.missing,
        suspects=tuple(paths_quality.located(evs, found, qp.peer_host)) if args.locate else (),
    )
    title = f"paths to {qp.peer_host} at {time.strftime('%H:%M:%S')}"
    return replace(_block(evs, probes, quality), title=title), result


async def _measured(args: argparse.Namespace, qp: QP, evs: Sequence[EvInfo]) -> dict[int, Quality]:
    """EV -> its quality; empty if it is not wanted."""
    seconds = args.measure or (_LOCATE_SECONDS if args.locate else 0.0)
    if not seconds:
        return {}
    used = [ev.index for ev in evs if ev.state is not EvState.DENIED]
    longest_ns = max(known(ev.rtt_ns for ev in evs), default=0)
    timeout = max(LEAST_PROBE_SECONDS, 2 * longest_ns / 1e9)
    return await measure(qp, used, seconds, payload=qp.path_mtu, timeout=timeout)


async def _probed(qp: QP, seconds: float) -> list[ProbeResult]:
    """A probe of every EV, and further ones where no answer came: a path may lose some packets.

    Silence counts only while the peer answers on another path. A host that stands still answers on
    none, so it is probed again, for `seconds` at most. Raises PeerGoneError if the peer ends the
    look before.
    """
    longest_ns = max(known(ev.rtt_ns for ev in await qp.evs()), default=0)
    timeout = max(LEAST_PROBE_SECONDS, 2 * longest_ns / 1e9)
    probes = list(await qp.probe_evs(payload=qp.path_mtu, timeout=timeout))
    with RunningClock() as clock:
        until = clock.time() + seconds
        while silent := [probe.index for probe in probes if probe.error == errno.ETIMEDOUT]:
            if qp.peer_has_gone:
                raise PeerGoneError(f"{qp.peer_host} ended the look: try again")
            # The last ones show whether the peer ran until the end.
            witnesses = [probe.index for probe in probes if probe.answered][:_WITNESSES]
            asked = silent + witnesses
            again = await qp.probe_evs(asked, payload=qp.path_mtu, timeout=timeout)
            for probe in again[: len(silent)]:
                probes[probe.index] = probe
            answered = {probe.index for probe in again if probe.answered}
            proved = answered and answered.isdisjoint(silent)
            if proved or clock.time() > until:
                break
    return probes


def _state(ev: EvInfo, probes: Sequence[ProbeResult]) -> str:
    """The EV's state; but NO_ANSWER where the QP, which is idle, has not noticed that."""
    usable = ev.state in (EvState.GOOD, EvState.SKIP)
    return "NO_ANSWER" if usable and probes and not probes[ev.index].answered else ev.state.name


def _probe(ev: EvInfo, probes: Sequence[ProbeResult]) -> Probe | None:
    if not probes:
        return None
    found = probes[ev.index]
    return like(Probe, found, ce=found.ce if found.answered else None)


def _summary(result: Paths) -> str:
    """How many planes and paths can carry data, and the size of a packet."""
    usable = [ev for ev in result.evs if ev.state == "GOOD"]
    planes = len({ev.plane for ev in result.evs}) + len(result.missing)
    return (
        f"{result.peer}: {len({ev.plane for ev in usable})} of {counted(planes, 'plane')} and"
        f" {len(usable)} of {counted(len(result.evs), 'path')} are good; a packet carries"
        f" {result.path_mtu_bytes} B" + "".join(f"; {missing}" for missing in result.missing)
    )


def _block(
    evs: Sequence[EvInfo], probes: Sequence[ProbeResult], quality: Mapping[int, Quality]
) -> Block:
    head = [
        "plane",
        "path",
        "EV",
        "state",
        "RTT",
        "uSIDs" if any(ev.usids for ev in evs) else "destination",
    ]
    rows = [
        [
            ev.plane,
            ev.path,
            f"{ev.ev:#010x}",
            _state(ev, probes) + ("" if ev.active else " (backup)"),
            format_seconds(ev.rtt_ns / 1e9) if ev.rtt_ns is not None else "-",
            " ".join(ev.usids) or ev.destination,
        ]
        for ev in evs
    ]
    if probes:
        head.insert(5, "probe")
        for row, probe in zip(rows, probes, strict=True):
            row.insert(5, _outcome(probe))
    if quality:
        head[-1:-1] = paths_quality.HEAD
        for row, ev in zip(rows, evs, strict=True):
            row[-1:-1] = paths_quality.cells(quality.get(ev.index))
    return Block("", head, rows)


def _outcome(probe: ProbeResult) -> str:
    if probe.rtt_ns is not None:
        return format_seconds(probe.rtt_ns / 1e9) + ", CE" * probe.ce
    if probe.error == errno.EPERM:
        return "denied"
    return "no answer" if probe.error == errno.ETIMEDOUT else "not sent"
