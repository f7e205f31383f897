# SPDX-License-Identifier: Apache-2.0
"""Runs a contender through a scenario: starts it, waits for its first traffic, injects the faults.

The measured value is the data of the receiving application: mrc's receiver records the payload that
it places, TCP's receiver the bytes that it reads. UCX's own benchmark reports neither, so the
counters of its receiver's interfaces replace it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import copies
import peers
from bed import HOSTS, Bed
from contenders import Flows
from end import PATIENCE, BenchError, start_once, stop, wait_for, words_of
from failover_figures import Run, Series, figures
from failover_scenario import DOWN, Event, Scenario
from program import note

from mrc.fabric.targets import parse_target
from mrc.linux import netns
from mrc.linux.processes import stolen_seconds
from mrc.testbed import bed as beds
from mrc.testbed.faults import Fault, Mode

NAMES = ("mrc", "MPTCP", "TCP, a flow a plane", "TCP, one flow", "UCX over TCP")
PEERS = NAMES[1:]  # left out if they cannot run
BIN_SECONDS = 0.01
_TRAFFIC_BYTES = 1 << 20
_PREPARE_SECONDS = 0.15  # the preparation of a change starts this much earlier
_SPARE_SECONDS = 0.5  # a contender sends this much longer than the scenario
_MRC_BIN = "500us"  # short enough to measure gaps of 5 ms
_MPTCP = NAMES[1]
_MRC_PORT, _UCX_PORT = 4791, 13337
_MRC = [sys.executable, "-m", "mrc", "perf"]


@dataclass(slots=True)
class Seen:
    """Data received by a contender. Times are those of the monotonic clock."""

    start: float
    width: float
    streams: list[list[int]]  # bytes in bins, for each separately ordered stream
    planes: dict[str, list[int]] = field(default_factory=dict)
    evs: list[dict[str, Any]] = field(default_factory=list)  # plane and path of each
    ev_changes: list[dict[str, Any]] = field(default_factory=list)
    plane_changes: list[dict[str, Any]] = field(default_factory=list)
    resent_bytes: int = 0
    ended: str = ""  # why it ended before its time


class Contender(ABC):
    """Sends from h0 to h1 as fast as it can, until the stack closes."""

    name: str
    what: str  # description in one line
    measured: str

    def __init__(self, bed: Bed) -> None:
        self.bed = bed

    @abstractmethod
    def start(self, stack: ExitStack, seconds: float) -> None:
        """Begins to send, for at least `seconds`."""

    @abstractmethod
    def finish(self) -> Seen:
        """Waits for the end. Returns the data that the receiver got."""

    def start_pair(
        self, stack: ExitStack, server: list[str], client: list[str], port: int,
        **environment: str,
    ) -> None:  # fmt: skip
        """Starts a program in both hosts, the server first."""
        self._server = start_once(self.bed, HOSTS[1], server, **environment)
        stack.callback(stop, self._server)
        peers.until_listening(self.bed, self._server, port)
        self._client = start_once(self.bed, HOSTS[0], client, **environment)
        stack.callback(stop, self._client)

    def words(self) -> str:
        """The last words of an end that has ended; empty if both run."""
        return words_of(self._client) or words_of(self._server)


class Mrc(Contender):
    name = "mrc"
    measured = "payload placed by the receiver"

    def __init__(self, bed: Bed, seal: str = "none", folder: Path = Path()) -> None:
        """`seal` is `none`, or how the packets are sealed between hosts that share a secret, which
        `folder` has.
        """
        super().__init__(bed)
        self.what = "mrc perf, one QP, " + ("defaults" if seal == "none" else f"seal={seal}")
        self._trust = ["--insecure"]
        if seal != "none":
            self._trust = ["--secret", str(copies.secret(folder)), "--seal", seal]

    def start(self, stack: ExitStack, seconds: float) -> None:
        server = [*_MRC, "--server", "--one-off", "--quiet", *self._trust]
        client = [*_MRC, "h1", "--json", "--quiet", "--bins", _MRC_BIN, "-t", f"{seconds:g}"]
        self.start_pair(stack, server, [*client, *self._trust], _MRC_PORT)

    def finish(self) -> Seen:
        told = json.loads(wait_for(self._client).output)
        wait_for(self._server)
        paths = self.bed.testbed.shape.paths(*HOSTS)
        evs = [{"plane": path.plane, "path": path.name} for path in paths]
        return replace(seen_by_mrc(told), evs=evs)


class Tcp(Contender):
    """TCP or MPTCP by flow.c, whose receiver counts the bytes that it reads."""

    measured = "bytes read by the receiver"

    def __init__(
        self, bed: Bed, name: str, what: str, *, flows: int = 1, mptcp: bool = False,
        cc: str = "cubic",
    ) -> None:  # fmt: skip
        super().__init__(bed)
        self.name, self.what = name, what
        self._flows, self._mptcp, self._cc = flows, mptcp, cc

    def start(self, stack: ExitStack, seconds: float) -> None:
        self._pair = stack.enter_context(Flows(self.bed, mptcp=self._mptcp))
        self._resent = _resent_segments(self.bed)
        self._pair.receiver.start("watch", self._flows, round((seconds + 1) * 1000))
        flows = self.bed.flows(self._flows)
        self._pair.sender.start("send", self._cc, "write", round(seconds * 1000), *flows)

    def words(self) -> str:
        return self._pair.sender.words() or self._pair.receiver.words()

    def finish(self) -> Seen:
        sent = self._pair.sender.result()
        got = self._pair.receiver.result()
        resent = (_resent_segments(self.bed) - self._resent) * self.bed.tcp_payload
        return Seen(
            start=got["start_monotonic_ns"] / 1e9,
            width=got["width_ns"] / 1e9,
            streams=got["flows"],
            resent_bytes=resent + sent["reinjected_bytes"],
        )


class Ucx(Contender):
    """ucx_perftest. It records no bins, and runs until it is stopped."""

    name = NAMES[-1]
    what = "ucx_perftest, tag_bw of 1 MiB, a rail a plane"
    measured = "bytes received by the interfaces, headers and repeats included"

    def start(self, stack: ExitStack, seconds: float) -> None:
        self._resent = _resent_segments(self.bed)
        common = ["ucx_perftest", "-p", str(_UCX_PORT), "-6"]
        job = ["-t", "tag_bw", "-s", str(1 << 20), "-n", "1000000", "-w", "5", "-f"]
        client = [*common, self.bed.plane_address(HOSTS[1], 1), *job]
        self.start_pair(stack, common, client, _UCX_PORT, **peers.ucx_environment(self.bed))
        self._sampler = Sampler(self.bed)
        stack.callback(self._sampler.stop)
        self._sampler.start()

    def finish(self) -> Seen:
        self._sampler.stop()
        resent = (_resent_segments(self.bed) - self._resent) * self.bed.tcp_payload
        return replace(self._sampler.seen(), resent_bytes=resent, ended=words_of(self._client))


class Sampler(threading.Thread):
    """Reads the byte counters of the receiver's interfaces every 10 ms."""

    def __init__(self, bed: Bed) -> None:
        super().__init__(daemon=True)
        self._stop_asked = threading.Event()
        self._samples: list[tuple[float, list[int]]] = []
        self._names = [f"p{plane}" for plane in range(1, bed.planes + 1)]
        with netns.inside(bed.namespace(HOSTS[1])):
            self._fd = os.open("/proc/thread-self/net/dev", os.O_RDONLY)

    def run(self) -> None:
        due = time.monotonic()
        while not self._stop_asked.wait(max(0.0, due - time.monotonic())):
            lines = os.pread(self._fd, 1 << 16, 0).decode().splitlines()[2:]
            counts = {name.strip(): rest for name, rest in (x.split(":") for x in lines)}
            self._samples.append(
                (time.monotonic(), [int(counts[name].split()[0]) for name in self._names])
            )
            due += BIN_SECONDS

    def stop(self) -> None:
        if not self._stop_asked.is_set():
            self._stop_asked.set()
            self.join()
            os.close(self._fd)

    def seen(self) -> Seen:
        pairs = list(zip(self._samples, self._samples[1:], strict=False))
        planes = {
            str(i + 1): [now[1][i] - then[1][i] for then, now in pairs]
            for i in range(len(self._names))
        }
        total = [sum(counts) for counts in zip(*planes.values(), strict=True)]
        return Seen(self._samples[0][0], BIN_SECONDS, [total], planes)


def _resent_segments(bed: Bed) -> int:
    """TCP segments that the sender's host has retransmitted so far, over all its flows."""
    with netns.inside(bed.namespace(HOSTS[0])):
        names, values = (
            line.split()
            for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
            if line.startswith("Tcp:")
        )
    return int(values[names.index("RetransSegs")])


def skipped() -> dict[str, str]:
    """The contenders that this machine does not support, and why."""
    found = {}
    if not beds.has_mptcp():
        found[_MPTCP] = "this kernel has no MPTCP: it requires CONFIG_MPTCP"
    if (missing := peers.missing().get("ucx_perftest")) is not None:
        found[Ucx.name] = f"ucx_perftest is {missing}"
    return found


def contenders(bed: Bed, wanted: Container[str], seal: str, folder: Path) -> list[Contender]:
    """The wanted contenders that this machine supports, in the order of the page."""
    _, _, spread, one, _ = NAMES
    every: list[Contender] = [
        Mrc(bed, seal, folder),
        Tcp(bed, _MPTCP, "one connection, a subflow a plane", mptcp=True),
        Tcp(bed, spread, "what an application can do by itself", flows=bed.planes),
        Tcp(bed, one, "cubic, in plane 1"),
        Ucx(bed),
    ]
    left_out = skipped()
    return [
        each for each in every
        if each.name not in left_out and (not wanted or each.name in wanted)
    ]  # fmt: skip


def seen_by_mrc(told: Mapping[str, Any]) -> Seen:
    """The receiver's payload and the sender's EVs, from `mrc perf --bins --json`."""
    (test,) = told["results"]
    bins, changes = test["server"]["bins"], test["client"]["changes"]

    def dated(told: Any) -> list[dict[str, Any]]:
        return [
            {**each, "at": (changes["start_monotonic_ns"] + each["at_ns"]) / 1e9} for each in told
        ]

    return Seen(
        start=bins["start_monotonic_ns"] / 1e9,
        width=bins["width_ns"] / 1e9,
        streams=[bins["bytes"]],
        planes={str(each["plane"]): each["bytes"] for each in bins["planes"]},
        ev_changes=dated(changes["evs"]),
        plane_changes=dated(changes["planes"]),
        resent_bytes=test["client"]["retransmitted_bytes"],
    )


# ---- one run ------------------------------------------------------------------------------------


def repeated(
    name: str, repeats: int, run: Callable[[], Run], amount: Callable[[Run], float]
) -> tuple[Run, list[Run]]:
    """Several runs of mrc, whose checks are medians; one run of another contender. Returns the run
    to show, which has the median amount, and all of them.
    """
    runs = []
    for number in range(repeats if name == "mrc" else 1):
        note(f"{name}, run {number + 1}")
        runs.append(run())
    return sorted(runs, key=amount)[len(runs) // 2], runs


def through_faults(
    bed: Bed, scenario: Scenario, zero: float
) -> tuple[list[Event], list[float], float]:
    """Lets the faults happen until the scenario is over. Returns the events with the actual times,
    the seconds that each change took, and the CPU time that the hypervisor has stolen.
    """
    stolen = stolen_seconds()
    events, took = let_happen(bed, scenario, zero)
    time.sleep(max(0.0, zero + scenario.seconds - time.monotonic()))
    return events, took, stolen_seconds() - stolen


def run(contender: Contender, scenario: Scenario) -> Run:
    """Runs one contender through one scenario. Returns the run for JSON."""
    bed = contender.bed
    with ExitStack() as stack:
        note(f"{contender.name}: {scenario.title}")
        contender.start(stack, scenario.seconds + _SPARE_SECONDS)
        zero = _first_traffic(contender)
        events, took, stolen = through_faults(bed, scenario, zero)
        seen = contender.finish()
    found = document(contender, scenario, events, seen, zero)
    return found | {"changes_took_seconds": took, "stolen_cpu_seconds": stolen}


def _first_traffic(contender: Contender) -> float:
    """Waits until the sender has sent 1 MiB. Returns the monotonic time. Raises BenchError with the
    words of an end that ends before.
    """
    bed = contender.bed
    before, deadline = sum(bed.sent_bytes()), time.monotonic() + PATIENCE
    while sum(bed.sent_bytes()) < before + _TRAFFIC_BYTES:
        if words := contender.words():
            raise BenchError(words)
        if time.monotonic() > deadline:
            raise BenchError(f"the sender sent less than 1 MiB in {PATIENCE} s")
        time.sleep(0.002)
    return time.monotonic()


def let_happen(bed: Bed, scenario: Scenario, zero: float) -> tuple[list[Event], list[float]]:
    """Makes every change at its time. Returns the events with the actual times, and the seconds
    that each change took.
    """
    took: list[float] = []
    begun: dict[Event, float] = {}
    ended: dict[Event, float] = {}
    changes = [(event.at, event, begun) for event in scenario.events]
    changes += [(event.until, event, ended) for event in scenario.events]
    for moment, group in groupby(sorted(changes, key=itemgetter(0)), key=itemgetter(0)):
        together = [(event, moments) for _, event, moments in group]
        struck: list[float] = []

        def ready(due: float = zero + moment, struck: list[float] = struck) -> None:
            time.sleep(max(0.0, due - time.monotonic()))
            struck.append(time.monotonic())

        time.sleep(max(0.0, zero + moment - _PREPARE_SECONDS - time.monotonic()))
        _change(bed, [event for event, _ in together], together[0][1] is begun, ready)
        took.append(time.monotonic() - struck[0])
        for event, moments in together:
            moments[event] = struck[0] - zero
            note(f"{moment:5.2f} s: {event.name}{'' if moments is begun else ' is over'}")
    return [replace(e, at=begun[e], until=ended[e]) for e in scenario.events], took


def _change(bed: Bed, events: list[Event], begins: bool, ready: Callable[[], None]) -> None:
    """Begins faults at once, ends one fault, or ends all faults."""
    if begins:
        faults = {}
        for event in events:
            mode = Mode.DOWN if event.mode == DOWN else Mode.SILENT
            target = parse_target(event.target, bed.testbed.shape)
            faults[target] = Fault(mode, event.loss, rate_share=event.rate)
        bed.testbed.set_faults(faults, ready)
    else:
        bed.testbed.heal(events[0].target if len(events) == 1 else "all", ready)


def document(
    contender: Contender,
    scenario: Scenario,
    events: list[Event],
    seen: Seen,
    zero: float,
) -> dict[str, Any]:
    """A run for JSON. Its seconds count from the first traffic."""
    bed = contender.bed
    total = [sum(counts) for counts in zip(*seen.streams, strict=True)]
    series = Series(seen.start - zero, seen.width, total)
    plane_bps = (bed.payload_capacity_bps() or 0.0) / bed.planes
    found = figures(series, events, scenario.seconds, bed.planes, plane_bps)
    stalls = [
        Series(series.start, series.width, stream).stall(0.1, scenario.seconds)[0]
        for stream in seen.streams
    ]
    found["longest_stall_of_a_stream_seconds"] = max(stalls)
    found["retransmitted_bytes"] = seen.resent_bytes
    coarse = max(1, round(BIN_SECONDS / seen.width))
    return {
        "contender": contender.name,
        "what": contender.what,
        "measured": contender.measured,
        "ended": seen.ended,
        "scenario": scenario.name,
        "title": scenario.title,
        "seconds": scenario.seconds,
        "events": [asdict(event) for event in events],
        "figures": found,
        "bins": {"start_seconds": series.start, "width_seconds": seen.width, "bytes": total},
        "planes": {
            "start_seconds": series.start,
            "width_seconds": seen.width * coarse,
            "bytes": {
                plane: [sum(counts[i : i + coarse]) for i in range(0, len(counts), coarse)]
                for plane, counts in seen.planes.items()
            },
        },
        "evs": seen.evs,
        "ev_changes": _changes(seen.ev_changes, zero, ("plane", "path", "old", "new", "reason")),
        "plane_changes": _changes(seen.plane_changes, zero, ("plane", "suspended", "reason")),
    }


def _changes(changes: list[dict[str, Any]], zero: float, names: tuple[str, ...]) -> Any:
    return [
        {"at_seconds": change["at"] - zero, **{name: change[name] for name in names}}
        for change in changes
    ]
