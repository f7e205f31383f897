# SPDX-License-Identifier: Apache-2.0
"""`mrc top`: shows running endpoints, on this machine or on a host that allows remote viewing."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from mrc import products
from mrc.cli import endpoint, figures
from mrc.cli.arguments import add
from mrc.cli.output import (
    Exit,
    Output,
    UsageError,
)
from mrc.cli.runner import run_async
from mrc.cli.terminal import Block, Screen, blocks_text, keys
from mrc.connect.parse import shown
from mrc.connect.remote_view import RemoteEndpoint
from mrc.errors import MrcError, ProtocolError
from mrc.events import known
from mrc.linux import system
from mrc.observe import views
from mrc.observe.snapshot import Ev, Qp, QpPlane, Snapshot
from mrc.results import Result, like
from mrc.tasks import cancelled, within
from mrc.typed import take
from mrc.units import counted, digits, scaled

HELP = "watch the QPs, planes and paths of running endpoints"
EXAMPLES = """\
examples:
  mrc top --local                      your endpoints, in all network namespaces; keys:
                                       arrows scroll, p shows QPs, e shows EVs, q quits
  mrc top h1                           the mrc recv --top that runs on h1
  mrc top --web --local                in a browser, with goodput and EVs over the last minute
  mrc top --local --json | jq '.endpoints[].qps[] | {peer, rtt_ns}'
"""
OPTIONS = """
host HOST[:PORT]        host that runs mrc recv --top or mrc perf --server --top
--local                 show your endpoints on this machine
--all-users             with --local, as root: show the endpoints of all users
-i, --interval SECONDS  time between two updates, over which rates are averaged [%(default)s]
--web                   show them on a page in a browser, at a local address that it prints
--once                  exit after one interval; --json implies it
--timeout SECONDS       time limit for connecting and for each answer [%(default)s]
"""

KEYS = "arrows: scroll  p: QPs  e: EVs  q: quit"
MAX_LIVE_ROWS = 1024  # of QPs and of paths on a terminal, which scrolls


# ---- What a look finds ---------------------------------------------------------------------------


class Unanswered(Struct, frozen=True, kw_only=True):
    """An endpoint of this host that shows nothing of itself."""

    pid: int
    """Its process."""
    program: str
    """The name of the process; empty if it is unknown."""
    error: str
    """Why there is no snapshot."""

    def __str__(self) -> str:
        return f"{self.program or 'endpoint'}, pid {self.pid}: {self.error}"


class LocalEndpoints(Struct, frozen=True):
    """What one look found."""

    endpoints: dict[str, Snapshot]
    """by a name that stays the same"""
    unanswered: tuple[Unanswered, ...] = ()


Look = Callable[[], Awaitable[LocalEndpoints]]


# ---- The command ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS, host={"nargs": "?"}, interval={"default": 1.0}, timeout={"default": 5.0})
    if (page := products.load(products.PAGE)) is not None:
        page.add_port(parser.add_argument_group("with --web"))
    endpoint.add_trust_options(parser, listens=False)
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.host is None) != args.local:
        wrong = "use either a HOST or --local" if args.local else "name a HOST or use --local"
        raise UsageError(args.prog, f"{wrong}; see {args.prog} --help")
    if args.all_users and not (args.local and os.geteuid() == 0):
        raise UsageError(args.prog, "--all-users requires --local and root")
    page = products.load(products.PAGE) if args.web else None
    if args.web and page is None:
        raise UsageError(args.prog, "--web: needs mrc testbed view, which this mrc lacks")
    if args.web and args.once:
        raise UsageError(args.prog, "--once: not with --web, whose page is live")
    out = Output.of(args)
    if args.local:
        source = here(args.timeout, all_users=args.all_users)
    else:
        host, port = args.host
        security = endpoint.connecting(args, host, port, peer_runs="mrc recv --top")["security"]
        again = page is not None
        source = _remote(
            host, RemoteEndpoint(host, port, security, timeout=args.timeout, again=again)
        )
    if page is None:
        return run_async(_top(args, out, source))
    with page.listener(args.prog, args.port) as listener:
        return int(run_async(page.serve(out, listener, source, None)))


async def _top(
    args: argparse.Namespace, out: Output, source: AbstractAsyncContextManager[Look]
) -> int:
    async with source as look:
        before = await look()
        if args.once or args.json:
            await asyncio.sleep(args.interval)
            shown = _compared(before, await look(), args.interval)
            out.text(blocks_text(_all(shown)))
            out.result(shown)
            return Exit.OK
        return await _watch(look, before, args.interval)


async def _watch(look: Look, before: LocalEndpoints, interval: float) -> int:
    """Shows the endpoints until the key q; printed one after another without a terminal."""
    with Screen() if sys.stdout.isatty() else nullcontext() as screen:
        view = _View(screen, _compared(LocalEndpoints({}), before, interval))
        with keys(view.on_key) if screen is not None else nullcontext(False) as view.has_keys:
            view.show()
            while not await view.ended(interval):
                now = await look()
                view.top = _compared(before, now, interval)
                view.show()
                before = now
    return Exit.OK


class _View:
    """What is shown, as keys chose it."""

    has_keys = False

    def __init__(self, screen: Screen | None, top: Top) -> None:
        self.top = top
        self._screen = screen
        self._tables = {"p": False, "e": False}
        self._quit = asyncio.Event()

    def on_key(self, key: str) -> None:
        assert self._screen is not None
        if key == "q":
            self._quit.set()
        elif key in self._tables:
            self._tables[key] = not self._tables[key]
        else:
            self._screen.window.move(key)
        self.show()

    async def ended(self, seconds: float) -> bool:
        """Waits this long for the key q."""
        with suppress(TimeoutError):
            async with within(seconds):
                await self._quit.wait()
        return self._quit.is_set()

    def show(self) -> None:
        if self._screen is None:
            print(blocks_text(_all(self.top)) + "\n", flush=True)
        elif not self.has_keys:
            self._screen.show(_all(self.top), "^C ends; no keys: stdin is no terminal")
        else:
            qps, evs = self._tables["p"], self._tables["e"]
            blocks = _blocks(self.top, qps=qps, evs=evs, most=MAX_LIVE_ROWS)
            self._screen.show(blocks, KEYS)


def _compared(before: LocalEndpoints, now: LocalEndpoints, interval: float) -> Top:
    earlier = before.endpoints
    endpoints = (with_rates(earlier.get(name), each) for name, each in now.endpoints.items())
    return Top(interval_seconds=interval, endpoints=tuple(endpoints), unanswered=now.unanswered)


def _blocks(top: Top, *, qps: bool, evs: bool, most: int) -> list[Block]:
    """The planes of each endpoint, and if wanted up to `most` of its QPs and of its paths."""
    blocks = [Block(str(name), style="bold red") for name in top.unanswered]
    for each in top.endpoints:
        blocks += summary_blocks(each)
        blocks += qp_blocks(each, most) if qps else []
        blocks += path_blocks(each, most) if evs else []
        blocks.append(Block(""))
    return blocks or [Block("no endpoint of this user runs on this machine")]


def _all(top: Top) -> list[Block]:
    return _blocks(top, qps=True, evs=True, most=MAX_ROWS)


@asynccontextmanager
async def here(
    seconds: float = views.ANSWER_SECONDS, *, all_users: bool = False
) -> AsyncIterator[Look]:
    """Looks at the endpoints of this machine, and waits this long for an answer."""
    keeper = products.load(products.KEEPER)
    beds = None if keeper is None else keeper.run_folder()
    async with EndpointWatch(seconds, of_beds=beds, all_users=all_users) as here:
        yield here.look


@asynccontextmanager
async def _remote(host: str, distant: RemoteEndpoint) -> AsyncIterator[Look]:
    async def look() -> LocalEndpoints:
        return LocalEndpoints({host: await distant.look(checked)})

    try:
        await distant.connect()
        yield look
    finally:
        distant.close()


# ---- Tables of an endpoint -----------------------------------------------------------------------


MAX_ROWS = 32  # of QPs and of paths that are printed: the busiest QPs, the worst paths
DROPS = {
    "SHORT": "too short", "OPCODE": "unknown opcode", "VERSION": "unknown version",
    "PKEY": "wrong partition key", "FIELD": "forbidden value", "LENGTH": "wrong length",
    "ICRC": "wrong ICRC", "SEAL": "wrong seal", "REPLAY": "sealed long ago",
    "QPN": "unknown QP", "QP_STATE": "QP not ready",
    "SOURCE": "wrong source", "PSN_WINDOW": "PSN beyond the window",
    "DUPLICATE": "duplicates", "ACK_UNSENT": "ACK of an unsent PSN", "STALE": "outdated answers",
    "UNKNOWN_ID": "late probe answers", "ACCESS": "memory access refused",
    "WIMM_LIMIT": "too many immediates", "RATE": "too many requests", "TRIMMED": "trimmed",
    "PORT": "unknown port", "PORT_STATUS": "bad port status",
}  # fmt: skip
"""Reasons for dropped packets, in a few words."""
# A healthy fabric brings these: late or repeated packets, trimming switches, scans.
_HARMLESS = {"QPN", "QP_STATE", "DUPLICATE", "STALE", "UNKNOWN_ID", "RATE", "TRIMMED", "SPURIOUS"}
_ALARMS = {"RX_OVERFLOW": "receive buffer overflows", "TIMEOUTS": "timeouts",
           "SPURIOUS": "spurious losses", "TX_BURST_ERRORS": "send errors",
           "MEMORY_FAULTS": "memory faults"}  # fmt: skip
_BADNESS = ("ASSUMED_BAD", "DENIED", "UNPROVEN", "SKIP", "GOOD")  # the worst first


def summary_blocks(endpoint: Endpoint) -> list[Block]:
    """What fits 80 columns: the endpoint and its planes."""
    return [_title(endpoint), *_drops(endpoint), *_planes(endpoint)]


def _title(endpoint: Endpoint) -> Block:
    words = [
        f"{endpoint.host}: {endpoint.program or 'mrc'}",
        f"pid {endpoint.pid}",
        *([f"UDP port {endpoint.udp_port}"] if endpoint.udp_port is not None else []),
        counted(endpoint.qps_total, "QP"),
    ]
    return Block(", ".join(words))


def _drops(endpoint: Endpoint) -> list[Block]:
    """Two lines: drops and alarms that hurt, because they grow and are not usual; and the rest."""
    now, rest = [], []
    dropped = {name: f"dropped ({DROPS.get(name, name.lower())})" for name in endpoint.drops}
    for totals, rates, words in (
        (endpoint.drops, endpoint.drops_per_second, dropped),
        (endpoint.counters, endpoint.counters_per_second, _ALARMS),
    ):
        for name in (each for each in words if each in totals):
            text = f"{totals[name]} {words[name]}"
            if name in rates and name not in _HARMLESS:
                now.append(f"{text} {digits(rates[name], 3)}/s")
            else:
                rest.append(text)
    hurts = [Block(f"  now: {', '.join(now)}", style="bold red")] if now else []
    return hurts + ([Block(f"  so far: {', '.join(rest)}", style="dim")] if rest else [])


def _planes(endpoint: Endpoint) -> list[Block]:
    """One row for each plane, summed over all QPs."""
    nics = {port.plane: port.nic for port in endpoint.ports}
    shares: dict[int, list[PlaneRates]] = {}
    for qp in endpoint.qps:
        for plane in qp.planes:
            shares.setdefault(plane.plane, []).append(plane)
    rows = []
    for number, parts in sorted(shares.items()):
        rows.append((
            number,
            nics.get(number, "-"),
            _plane_state(parts),
            scaled(sum(part.sent_bits_per_second for part in parts), "bit/s"),
            scaled(sum(part.received_bits_per_second for part in parts), "bit/s"),
            _rtt(max(known(part.rtt_ns for part in parts), default=None)),
            sum(part.lost_packets for part in parts),
        ))  # fmt: skip
    head = ("plane", "NIC", "state", "sends", "receives", "RTT", "lost")
    return [Block("planes", head, rows)] if rows else []


def _plane_state(parts: list[PlaneRates]) -> str:
    """How many QPs have suspended the plane, the least that it carries for one, or the weight that
    it has; "up" if none.
    """
    if suspended := sum(part.suspended for part in parts):
        return f"suspended {suspended}/{len(parts)}" if len(parts) > 1 else "suspended"
    slow = [part.share_percent for part in parts if part.slow]
    weight = figures.weight_text(min(part.weight for part in parts))
    return f"slow {min(slow)}%" if slow else weight or "up"


def qp_blocks(endpoint: Endpoint, most: int) -> list[Block]:
    """One row for each QP, the busiest first."""
    busy = sorted(
        endpoint.qps,
        key=lambda qp: qp.acknowledged_bits_per_second + qp.received_bits_per_second,
        reverse=True,
    )
    rows = [
        (
            qp.id if qp.qpn is None else f"{qp.qpn:#08x}",
            qp.peer,
            qp.state,
            scaled(qp.acknowledged_bits_per_second, "bit/s"),
            scaled(qp.received_bits_per_second, "bit/s"),
            round(qp.retransmitted_packets_per_second),
            qp.outstanding,
            scaled(qp.inflight_bytes, "B"),
            scaled(qp.cwnd_bytes, "B"),
            _rtt(qp.rtt_ns),
            qp.timeouts,
        )
        for qp in busy[:most]
    ]
    head = ("QP", "peer", "state", "writes", "receives", "rtx/s", "posted", "in flight", "window",
            "RTT", "timeouts")  # fmt: skip
    more = endpoint.qps_total - len(rows)
    title = f"QPs ({more} more)" if more > 0 else "QPs"
    return [Block(title, head, rows)] if rows else []


def path_blocks(endpoint: Endpoint, most: int) -> list[Block]:
    """One row for each path to a peer, the worst first, summed over the QPs. Each QP has its own EV
    for a path.
    """
    paths: dict[tuple[str, int, str], list[Ev]] = {}
    for qp in endpoint.qps:
        for ev in qp.evs or ():
            paths.setdefault((qp.peer, ev.plane, ev.path), []).append(ev)
    rows = []
    for (peer, plane, path), evs in paths.items():
        states = Counter(ev.state for ev in evs)
        worst = sorted(states, key=_badness)
        several = ", ".join(f"{state} {states[state]}" for state in worst)
        rows.append((
            peer,
            plane,
            path,
            worst[0] if len(worst) == 1 else several,
            _rtt(min(known(ev.rtt_ns for ev in evs), default=None)),
            sum(ev.lost_packets for ev in evs),
        ))  # fmt: skip
    rows.sort(key=lambda row: (_badness(str(row[3])), row[:3]))
    title = f"paths (EVs), {len(rows) - most} more" if len(rows) > most else "paths (EVs)"
    head = ("peer", "plane", "path", "state", "RTT", "lost")
    return [Block(title, head, rows[:most])] if rows else []


def _badness(state: str) -> int:
    word = state.partition(" ")[0]
    return _BADNESS.index(word) if word in _BADNESS else 0


def _rtt(ns: int | None) -> str:
    return "-" if ns is None else scaled(ns / 1e9, "s")


# ---- Rates ---------------------------------------------------------------------------------------


class PlaneRates(QpPlane, frozen=True, kw_only=True):
    """One plane of a QP, with its rates during the interval."""

    sent_bits_per_second: float
    """Payload sent."""
    received_bits_per_second: float
    """Payload received."""


class QpRates(Qp, frozen=True, kw_only=True):
    """One QP, with its rates during the interval; 0 for a QP that is new."""

    acknowledged_bits_per_second: float
    """Payload that the peer acknowledged."""
    received_bits_per_second: float
    """Payload that the peer wrote here."""
    retransmitted_packets_per_second: float
    """Packets sent again."""
    planes: tuple[PlaneRates, ...]
    """Its planes."""


class Endpoint(Snapshot, frozen=True, kw_only=True):
    """One endpoint."""

    qps: tuple[QpRates, ...]
    """Its QPs."""
    counters_per_second: dict[str, float]
    """Counters that grew during the interval."""
    drops_per_second: dict[str, float]
    """Reasons for which packets were dropped during the interval."""


class Top(Result, frozen=True, kw_only=True):
    """All endpoints that were found."""

    interval_seconds: float
    """Time between the two snapshots."""
    endpoints: tuple[Endpoint, ...]
    """The endpoints of this host, or the one that answered for another."""
    unanswered: tuple[Unanswered, ...] = ()
    """Endpoints of this host that did not answer, or whose answer cannot be read."""


# ---- The endpoints of this machine, look after look ----------------------------------------------


_TURNS = 8  # concurrent requests: each answer may have a megabyte


class EndpointWatch:
    """Looks at the endpoints of this machine. A context manager.

    An endpoint that does not answer holds up one look for `seconds`. Then others are shown without
    it, and it is asked again in the background until it answers.
    """

    def __init__(
        self,
        seconds: float = views.ANSWER_SECONDS,
        *,
        of_beds: Path | None = None,
        all_users: bool = False,
    ) -> None:
        self.seconds = seconds
        self._of_beds = of_beds
        self._all_users = all_users
        self._asked: dict[Path, asyncio.Task[Snapshot | str | None]] = {}
        self._late: dict[Path, str] = {}  # and what is wrong with each
        # Endpoints that do not answer take no turns of the others.
        self._turns, self._late_turns = asyncio.Semaphore(_TURNS), asyncio.Semaphore(_TURNS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await cancelled(*self._asked.values())

    async def look(self) -> LocalEndpoints:
        paths = self._sockets()
        for gone in self._asked.keys() - paths:
            await cancelled(self._asked.pop(gone))
        self._late = {path: wrong for path, wrong in self._late.items() if path in paths}
        for path in paths:
            if path not in self._asked:
                self._asked[path] = asyncio.create_task(self._ask(path))
        if prompt := [self._asked[path] for path in paths if path not in self._late]:
            await asyncio.wait(prompt)
        endpoints = {}
        for path in paths:
            if self._asked[path].done():
                self._late.pop(path, None)
                found = self._asked.pop(path).result()
                if isinstance(found, Snapshot):
                    endpoints[str(path)] = found
                elif found is not None:
                    self._late[path] = found
        late = (path for path in paths if path in self._late)
        return LocalEndpoints(
            endpoints, tuple(_unanswered(path, self._late[path]) for path in late)
        )

    def _sockets(self) -> list[Path]:
        return views.sockets(self._of_beds, all_users=self._all_users)

    async def _ask(self, path: Path) -> Snapshot | str | None:
        """A snapshot, or why there is none; None: the process has ended."""
        async with self._late_turns if path in self._late else self._turns:
            try:
                seconds = self.seconds
                return checked(await views.look(path, seconds, all_users=self._all_users))
            except TimeoutError:
                return f"no answer in {digits(seconds)} s"
            except (MrcError, OSError) as error:
                if path not in self._sockets():
                    return None
                # The kernel keeps the requests of earlier viewers for a process that is stopped.
                full = "too many viewers wait for an answer"
                return str(error) if isinstance(error, MrcError) else full


def _unanswered(path: Path, wrong: str) -> Unanswered:
    pid = int(number) if (number := path.name.partition("-")[0]).isascii() else 0
    found = system.process(pid)
    if found.is_stopped:
        wrong += f": the process is stopped (kill -CONT {pid})"
    elif found.is_traced:
        wrong += ": a debugger stopped it"
    return Unanswered(pid=pid, program=shown(found.name), error=wrong)


# ---- Rates: two snapshots -----------------------------------------------------


_MAX_TEXT = 128


def checked(found: Mapping[str, Any]) -> Snapshot:
    """The snapshot without control characters; raises ProtocolError if it is invalid."""
    if (schema := found.get("schema")) != Result().schema:
        other = f"the snapshot has schema {shown(schema, 20)}, this mrc supports {Result().schema}"
        raise ProtocolError(other)
    try:
        return take(_clean(found), Snapshot)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the snapshot is invalid: {error}") from None


def _clean(value: Any) -> Any:
    """The value with control characters in its texts escaped, and long texts cut."""
    if isinstance(value, str):
        return shown(value, _MAX_TEXT)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, Mapping):
        return {_clean(name): _clean(each) for name, each in value.items()}
    return value


def with_rates(before: Snapshot | None, now: Snapshot) -> Endpoint:
    """`now` with the rates since `before`, a snapshot of the same endpoint.

    A QP that is missing in `before` has rates of 0.
    """
    seconds = (now.monotonic_ns - before.monotonic_ns) / 1e9 if before is not None else 0.0
    earlier = {_name(qp): qp for qp in before.qps} if before is not None else {}
    qps = (_qp(earlier.get(_name(qp), qp), qp, seconds) for qp in now.qps)
    first = now if before is None else before
    return like(
        Endpoint,
        now,
        qps=tuple(qps),
        counters_per_second=_growth(first.counters, now.counters, seconds),
        drops_per_second=_growth(first.drops, now.drops, seconds),
    )


def _growth(old: Mapping[str, int], new: Mapping[str, int], seconds: float) -> dict[str, float]:
    if seconds <= 0:
        return {}
    grown = {name: count - old.get(name, 0) for name, count in new.items()}
    return {name: count / seconds for name, count in grown.items() if count > 0}


def _name(qp: Qp) -> int | str | None:
    """The QPN, or in a remote snapshot the `id`, which identifies the QP."""
    return qp.id if qp.qpn is None else qp.qpn


def _qp(old: Qp, new: Qp, seconds: float) -> QpRates:
    before = {plane.plane: plane for plane in old.planes}
    planes = (
        like(
            PlaneRates,
            plane,
            **_rates(PlaneRates, before.get(plane.plane, plane), plane, seconds),
        )
        for plane in new.planes
    )
    return like(QpRates, new, planes=tuple(planes), **_rates(QpRates, old, new, seconds))


def _rates(
    kind: type[Struct], old: Qp | QpPlane, new: Qp | QpPlane, seconds: float
) -> dict[str, float]:
    """The rates that `kind` declares; the name of each rate begins with its counter."""
    rates = {}
    for name in (each for each in kind.__struct_fields__ if each.endswith("_per_second")):
        counter, scale = name.removesuffix("_per_second"), 1
        if counter.endswith("_bits"):
            counter, scale = counter.removesuffix("_bits") + "_bytes", 8
        moved = max(0, getattr(new, counter) - getattr(old, counter)) * scale
        rates[name] = moved / seconds if seconds > 0 else 0.0
    return rates
