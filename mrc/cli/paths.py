# SPDX-License-Identifier: Apache-2.0
"""What `mrc paths` prints as JSON."""

from __future__ import annotations

import argparse
import asyncio
import errno
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

import mrc
from mrc import versions
from mrc.aio.qp import QP
from mrc.cli import endpoint, figures
from mrc.cli.arguments import add
from mrc.cli.output import Exit, Output, format_table
from mrc.cli.runner import run_async
from mrc.cli.terminal import Block, screen
from mrc.connect.proof import NoAnswerError
from mrc.enums import EvState, PairState
from mrc.errors import PeerGoneError
from mrc.events import EvInfo, PairInfo, PlaneInfo, ProbeResult, known
from mrc.fabric.hostconfig import HostPath
from mrc.results import KEYS, Result, like
from mrc.tasks import RunningClock
from mrc.units import counted, scaled


class Probe(Struct, frozen=True, kw_only=True):
    """An EV probe of full size."""

    answered: bool
    """The path carried the probe there and the answer came back."""
    rtt_ns: int | None
    """The round trip; null without an answer."""
    ce: bool | None
    """The probe was marked by ECN on its way; null without an answer."""


class Quality(Struct, frozen=True, kw_only=True, rename=KEYS):
    """What trains of full-size probes show about a path, during a measurement."""

    sent: int = field(name="sent_probes")
    """Probes sent."""
    lost: int = field(name="lost_probes")
    """Probes without an answer; the answer may have been lost, too."""
    loss: float = field(name="loss_share")
    """The lost ones as a part of all, from 0 to 1."""
    shortest_ns: int | None
    """Shortest round trip; null without an answer."""
    extra_delay_ns: int | None
    """By how much the way to the peer takes longer than on the best path of the plane: the
    difference of the shortest round trips, since answers return on any path."""
    jitter_ns: int | None
    """Mean difference of successive round trips; null below two answers."""
    reordered: int = field(name="reordered_probes")
    """Answers that came after the answer to a later probe of the path."""


class Suspect(Struct, frozen=True):
    """Links of which one may be at fault: the paths do not tell them apart."""

    links: tuple[str, ...]
    """The links, named for people."""
    failed: int
    """Failed paths over them."""
    working: int
    """Paths over them that work. Above 0 the fault hits only some packets."""


class ProbedEv(EvInfo, frozen=True, kw_only=True):
    """One EV and its path."""

    state: Literal[  # type: ignore[assignment]
        "GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNPROVEN", "NO_ANSWER"
    ]
    """Its state. UNPROVEN: its pair of interfaces is tried again. NO_ANSWER: the QP has it as GOOD
    or SKIP, but no answer came to two probes."""
    probe: Probe | None
    """What the last probe found; null without --probe, --watch and --check."""
    quality: Quality | None
    """Null without --measure and --locate, and of a DENIED path."""


class Paths(Result, frozen=True, kw_only=True):
    """The paths to a peer."""

    peer: str
    """Name or address of the peer."""
    tcp_port: int
    """TCP port of the exchange."""
    udp_port: int
    """UDP port of this host's packets."""
    path_mtu_bytes: int
    """Payload of a packet at most."""
    planes: tuple[PlaneInfo, ...]
    """The planes of the QP."""
    evs: tuple[ProbedEv, ...]
    """Its EVs, one for each path."""
    missing: tuple[str, ...]
    """Why configured ports of this host, or interfaces of -B, have no path: one text for each."""
    unused: tuple[str, ...] | None
    """Why other interfaces or addresses of this host are not used; null without --why."""
    pairs: tuple[PairInfo, ...] | None
    """Every interface of this host with every one of the peer; null without --why."""
    suspects: tuple[Suspect, ...]
    """Links that may be at fault, the likeliest first; empty without --locate."""


HELP = "show the paths to a host that runs mrc recv, and their states"
EXAMPLES = """\
examples:
  mrc paths h1                         h1 must run mrc recv
  mrc paths --probe h1                 also send a full-size probe on each path
  mrc paths --watch -i 0.5 h1          probe every 0.5 s, until ^C
  mrc paths --check h1 || alarm        exit code 1 if some path does not answer
  mrc paths --measure 5s h1            loss, delay, jitter and reordering of each path
  mrc paths --locate h1                name the links that failing paths share
  mrc paths --why h1                   each pair of interfaces: used, or why not
  mrc paths -B eth1 h1                 only the paths from one interface
  mrc paths --json h1 | jq '.evs[] | select(.state != "GOOD")'
"""
_LOCATE_SECONDS = 2.0
_PAIRS_SECONDS = 10.0  # until a pair was tried
_PAIRS_PAUSE_SECONDS = 0.1
OPTIONS = f"""
host HOST[:PORT]        host that runs mrc recv [TCP port {versions.TCP_PORT}]
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
--why                   also show for each interface of this host and each one of the peer whether
                        packets go from one to the other, and if not, why: also if no path answers;
                        takes up to {_PAIRS_SECONDS:.0f} s if some do not answer
-i, --interval SECONDS  pause between the probes of --watch [%(default)s]
"""

_WITNESSES = 4  # paths that answer, probed again beside those that do not
MAX_NAMES = 8  # paths that an error names
LEAST_PROBE_SECONDS = 0.25  # time limit for an answer; twice the longest round trip if that is more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS, timeout={"default": 5.0}, interval={"default": 1.0})
    endpoint.add_wait(parser)
    endpoint.add_endpoint_options(parser)
    endpoint.add_trust_options(parser, listens=False)
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    trusted = endpoint.connecting(args, *args.host, peer_runs="mrc recv")
    return run_async(_paths(args, out, trusted))


async def _paths(args: argparse.Namespace, out: Output, trusted: dict[str, Any]) -> int:
    async with mrc.open(mrc.ContextConfig(**endpoint.endpoint_settings(args), **trusted)) as ctx:
        if args.watch:
            return _checked(out, await _watch(args, out, ctx))
        async with await _connect(args, out, ctx) as qp:
            out.detail(figures.parameters(ctx, qp))
            if args.why:
                await _until_tried(out, qp)
            block, result = await _look(args, ctx, qp)
            if args.measure and qp.ended is not None:
                out.note(f"{qp.peer.host} ended the look before the measurement was over")
        out.text(format_table(block.head, block.rows))
        if result.pairs is not None:
            out.text(f"\n{_pairs_text(result.pairs, ctx)}\n")
        out.text(_summary(result))
        if args.locate:
            out.text("\n".join(suspect_lines(result.suspects)))
        out.result(result)
        return _checked(out, result) if args.check else Exit.OK


async def _connect(args: argparse.Namespace, out: Output, ctx: mrc.Context) -> QP:
    host, port = args.host

    async def connect() -> QP:
        return await ctx.connect(host, port, private={"service": "paths"}, timeout=args.timeout)

    try:
        return await endpoint.first_connected(args, out, connect)
    except NoAnswerError as error:
        if args.why:
            out.text(_pairs_text(error.pairs, ctx))
        raise


async def _watch(args: argparse.Namespace, out: Output, ctx: mrc.Context) -> Paths:
    """Shows the paths until it is cancelled. With --check it returns the first result with a path
    that does not answer. If the peer closes the QP, it connects again.
    """
    with nullcontext() if out.as_json else screen() as show:
        while True:
            async with await _connect(args, out, ctx) as qp:
                while qp.ended is None:
                    try:
                        block, result = await _look(args, ctx, qp)
                    except PeerGoneError:
                        await asyncio.sleep(args.interval)
                        break
                    if show is not None:
                        pairs = [] if result.pairs is None else [_pairs_block(result.pairs)]
                        show([block, *pairs])
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
    extra = extra_delays(found, {ev.index: ev.plane for ev in evs})
    quality = {index: replace(each, extra_delay_ns=extra[index]) for index, each in found.items()}
    info, evs = await qp.info(), await qp.evs()
    result = Paths(
        peer=qp.peer.host,
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
        unused=ctx.unused if args.why else None,
        pairs=await qp.pairs() if args.why else None,
        suspects=tuple(suspected_links(evs, found, qp.peer.host)) if args.locate else (),
    )
    title = f"paths to {qp.peer.host} at {time.strftime('%H:%M:%S')}"
    return replace(_block(evs, info.planes, probes, quality), title=title), result


async def _until_tried(out: Output, qp: QP) -> None:
    """Waits until all pairs that the QP needs were tried. A terminal shows them meanwhile."""
    watched = sys.stdout.isatty() and not out.as_json
    with RunningClock() as clock, screen() if watched else nullcontext() as show:
        until = clock.time() + _PAIRS_SECONDS
        while clock.time() < until and qp.ended is None:
            pairs = await qp.pairs()
            if all(each.state is not PairState.TRYING for each in pairs):
                break
            if show is not None:
                show([_pairs_block(pairs)])
            await asyncio.sleep(_PAIRS_PAUSE_SECONDS)
        if show is not None:
            show([])


def _pairs_text(pairs: Sequence[PairInfo], ctx: mrc.Context) -> str:
    """The pairs as a table, and a line for each interface that has none."""
    block = _pairs_block(pairs)
    lines = [f"not used: {each}" for each in (*ctx.missing, *ctx.unused)]
    return "\n".join([format_table(block.head, block.rows), *lines])


def _pairs_block(pairs: Sequence[PairInfo]) -> Block:
    """Those of one pair of interfaces together, the best first, without useless crossings of
    addresses.
    """
    links: dict[tuple[str, str], list[PairInfo]] = {}
    for each in pairs:
        links.setdefault((each.nic, each.peer_nic), []).append(each)
    shown = [
        each
        for of_link in links.values()
        for best in [min(each.state for each in of_link)]
        for each in sorted(of_link, key=lambda each: each.state)
        if each.state is not PairState.UNFIT or best is PairState.UNFIT
    ]
    rows = [
        [
            f"{each.nic} ({each.address})",
            f"{each.peer_nic} ({each.peer_address})",
            "-" if each.plane is None else str(each.plane),
            each.state.name + f" (weight {each.weight_percent})" * (0 < each.weight_percent < 100),
            f"{each.answering_paths} of {each.paths}" if each.paths else "-",
            each.why,
        ]
        for each in shown
    ]
    return Block("", ["this host", "peer", "plane", "state", "paths", "why"], rows)


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
            if qp.ended is not None:
                raise PeerGoneError(f"{qp.peer.host} ended the look: try again")
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
    evs: Sequence[EvInfo],
    planes: Sequence[PlaneInfo],
    probes: Sequence[ProbeResult],
    quality: Mapping[int, Quality],
) -> Block:
    weights = {plane.plane: figures.weight_text(plane.weight) for plane in planes}
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
            f"{ev.plane} ({weight})" if (weight := weights.get(ev.plane)) else ev.plane,
            ev.path,
            f"{ev.ev:#010x}",
            _state(ev, probes) + ("" if ev.active else " (backup)"),
            scaled(ev.rtt_ns / 1e9, "s") if ev.rtt_ns is not None else "-",
            " ".join(ev.usids) or ev.destination,
        ]
        for ev in evs
    ]
    if probes:
        head.insert(5, "probe")
        for row, probe in zip(rows, probes, strict=True):
            row.insert(5, _outcome(probe))
    if quality:
        head[-1:-1] = QUALITY_HEAD
        for row, ev in zip(rows, evs, strict=True):
            row[-1:-1] = quality_cells(quality.get(ev.index))
    return Block("", head, rows)


def _outcome(probe: ProbeResult) -> str:
    if probe.rtt_ns is not None:
        return scaled(probe.rtt_ns / 1e9, "s") + ", CE" * probe.ce
    if probe.error == errno.EPERM:
        return "denied"
    return "no answer" if probe.error == errno.ETIMEDOUT else "not sent"


# ---- Quality and location of faults --------------------------------------------------------------


QUALITY_HEAD = ("loss", "extra delay", "jitter", "reordered")
_EVS_AT_ONCE = 32
_LOOK_SECONDS = 0.05  # between two looks whether this process was stopped
TRAIN = 3  # probes that follow each other on one EV: they show whether packets overtake

FAILS_FROM = 0.1
"""A path that loses this share of its probes counts as failed."""


async def measure(
    qp: QP, evs: Sequence[int], seconds: float, *, payload: int, timeout: float
) -> dict[int, Quality]:
    """Probes EVs for this long, at least once; times in seconds, payload in bytes.

    A peer may end the look before: what it then does not answer does not count, nor what comes too
    late because this process was stopped.
    """
    rounds: list[dict[int, Train]] = []
    latest: dict[int, Train] = {}
    with RunningClock(lambda stop: _LOOK_SECONDS) as clock:
        deadline = clock.time() + seconds
        while not latest or (clock.time() < deadline and qp.ended is None):
            stopped = clock.stopped
            latest = {}
            for start in range(0, len(evs), _EVS_AT_ONCE):
                some = evs[start : start + _EVS_AT_ONCE]
                sent = await asyncio.gather(*(_train(qp, each, payload, timeout) for each in some))
                latest |= zip(some, sent, strict=True)
            if qp.ended is None and clock.stopped == stopped:
                rounds.append(latest)
    return {index: quality([each[index] for each in rounds or [latest]]) for index in evs}


async def _train(qp: QP, index: int, payload: int, timeout: float) -> Train:
    arrivals: list[int] = []

    async def probe(place: int) -> int | None:
        (result,) = await qp.probe_evs([index], payload=payload, timeout=timeout)
        if result.answered:
            arrivals.append(place)
        return result.rtt_ns

    rtts = await asyncio.gather(*map(probe, range(TRAIN)))
    return Train(tuple(rtts), tuple(arrivals))


def quality_cells(found: Quality | None) -> list[str]:
    """The columns of HEAD."""
    if found is None:
        return ["-"] * len(QUALITY_HEAD)
    times = (found.extra_delay_ns, found.jitter_ns)
    shown = ["-" if ns is None else scaled(ns / 1e9, "s") for ns in times]
    return [f"{found.loss:.1%}", *shown, str(found.reordered)]


def suspected_links(
    evs: Sequence[EvInfo], found: Mapping[int, Quality], peer: str
) -> list[Suspect]:
    """Links that the failed paths share."""
    planes = {ev.index: ev.plane for ev in evs}
    bad = failed(found, planes)
    seen = [
        PathCheck(links_on(ev.plane, ev.path, ev.usids, peer), ev.index not in bad)
        for ev in evs
        if ev.state is not EvState.DENIED
    ]
    return suspects(seen)


def suspect_lines(suspected: Sequence[Suspect]) -> list[str]:
    """A line for each group of links."""
    if not suspected:
        return [f"no path loses {FAILS_FROM:.0%} of its probes"]
    return [
        f"may be at fault: {' or '.join(each.links)}: {counted(each.failed, 'failed path')}"
        + (f", and {each.working} that work" if each.working else ", and none that works")
        for each in suspected
    ]


# ---- Trains of probes ----------------------------------------------------------------------------


class Train(Struct, frozen=True):
    """Probes of one EV, sent one directly after the other."""

    rtts_ns: tuple[int | None, ...]
    """in the order in which they were sent; None: without an answer"""
    arrivals: tuple[int, ...]
    """their places, in the order of the answers"""


def quality(trains: Iterable[Train]) -> Quality:
    """What trains of one path show, of one probe at least."""
    trains = list(trains)
    rtts = [rtt for train in trains for rtt in train.rtts_ns if rtt is not None]
    sent = sum(len(train.rtts_ns) for train in trains)
    steps = [abs(b - a) for a, b in pairwise(rtts)]
    return Quality(
        sent=sent,
        lost=sent - len(rtts),
        loss=(sent - len(rtts)) / sent,
        shortest_ns=min(rtts, default=None),
        extra_delay_ns=None,
        jitter_ns=round(sum(steps) / len(steps)) if steps else None,
        reordered=sum(
            any(earlier > each for earlier in train.arrivals[:place])
            for train in trains
            for place, each in enumerate(train.arrivals)
        ),
    )


def extra_delays(found: Mapping[int, Quality], planes: Mapping[int, int]) -> dict[int, int | None]:
    """By how much the way to the peer takes longer on each EV than on the best EV of its plane.

    Answers return on any path of the plane, so the shortest round trips share the best way back;
    their difference is that of the ways there. `planes`: EV -> plane.
    """
    best: dict[int, int] = {}
    for index, each in found.items():
        if each.shortest_ns is not None:
            plane = planes[index]
            best[plane] = min(best.get(plane, each.shortest_ns), each.shortest_ns)
    return {
        index: None if each.shortest_ns is None else each.shortest_ns - best[planes[index]]
        for index, each in found.items()
    }


def failed(found: Mapping[int, Quality], planes: Mapping[int, int]) -> set[int]:
    """The EVs whose paths fail.

    Answers return on any path of the plane, and may be lost there. So the best path of a plane
    shows what the way back loses, and a path fails if it loses more than chance explains; or all
    fail, if all lose the same.
    """
    bad: set[int] = set()
    for plane in {planes[index] for index in found}:
        here = {index: each for index, each in found.items() if planes[index] == plane}
        best = min(each.lost / each.sent for each in here.values())
        # The losses of paths that lose the same share differ by two standard deviations.
        worse = {
            index
            for index, each in here.items()
            if each.lost / each.sent
            > best + max(FAILS_FROM, 2 * math.sqrt(2 * best * (1 - best) / each.sent))
        }
        bad |= worse or (set(here) if best >= FAILS_FROM else set())
    return bad


# ---- Which links may be at fault -----------------------------------------------------------------


class PathCheck(Struct, frozen=True):
    """A path, and whether it works."""

    links: tuple[str, ...]
    works: bool


def links_on(plane: int, path: str, usids: Sequence[str], peer: str) -> tuple[str, ...]:
    """The links of a path from this host to a peer, by names for people.

    `path`: `t1:P.S`, `t0:P.N` or `t2:P.M` of an SRv6 path; else `INTERFACE>ADDRESS#N`.
    """
    if not usids:
        interface, _, address = path.partition("#")[0].partition(">")
        return f"{interface} of this host", f"{address or peer} of {peer}"
    ends = f"this host's link of plane {plane}", f"{peer}'s link of plane {plane}"
    if len(usids) < 3:  # both hosts are below one T0
        return ends
    way = [HostPath.switch_of(plane, int(usid, 16)) for usid in usids[:-1]]
    way[0] = path if len(way) == 2 else way[0]
    between = [f"{one}>{other}" for one, other in pairwise(way)]
    return ends[0], f"uplink to {way[0]}", *between, ends[1]


def suspects(paths: Sequence[PathCheck]) -> list[Suspect]:
    """The fewest links that explain all failed paths, the likeliest first.

    A link over which a path works is a suspect only if nothing else explains a failed path: then
    the fault may hit only some packets.
    """
    through = {link: [i for i, path in enumerate(paths) if link in path.links]
               for path in paths for link in path.links}  # fmt: skip
    failed = {i for i, path in enumerate(paths) if not path.works}
    found: list[Suspect] = []
    left = set(failed)
    while left:
        groups: dict[tuple[int, int, tuple[int, ...]], list[str]] = {}
        for link, members in through.items():
            explained = tuple(i for i in members if i in left)
            working = sum(i not in failed for i in members)
            if explained:
                groups.setdefault((-working, len(explained), explained), []).append(link)
        dead = {key: links for key, links in groups.items() if key[0] == 0}
        working, _, explained = max(dead or groups, key=lambda key: (key[1] + key[0], key[1]))
        links = (dead or groups)[working, len(explained), explained]
        found.append(Suspect(tuple(links), len(explained), -working))
        left -= set(explained)
    return sorted(found, key=lambda each: (each.working, -each.failed))
