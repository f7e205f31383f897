# SPDX-License-Identifier: Apache-2.0
"""Contenders that send from one host to the other until they are stopped: through faults, or over a
long path.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

import peers
from bed import HOSTS, Bed, Raw, start_once, stop, wait_for, words_of
from contenders import Flows, tcp_controls

from mrc.demo.cli import Timeline
from mrc.linux import netns
from mrc.testbed.bed import Testbed

NAMES = ("mrc", "MPTCP", "TCP, a flow a plane", "TCP, one flow", "UCX over TCP")
PEERS = NAMES[1:]  # left out if they cannot run
BIN_SECONDS = 0.01
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
            self._trust = ["--secret", str(peers.secret(folder)), "--seal", seal]

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
        self._pair.receiver.start("take", self._flows, round((seconds + 1) * 1000))
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
    if not Testbed.has_mptcp():
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


# ---- a long path ---------------------------------------------------------------------------------

ROUND_TRIPS = 20
_MORE_SECONDS = 0.2  # a contender sends this much longer than the measured time


def long_contenders(bed: Bed) -> Iterator[Contender]:
    """Those of a long path, in the order of a round. Each starts for each row."""
    yield Mrc(bed)
    for cc in tcp_controls():
        yield Tcp(bed, f"TCP, {cc}", "one flow", cc=cc)
    yield Tcp(bed, "TCP, a flow a plane", "cubic", flows=bed.planes)
    yield Tcp(bed, "MPTCP", "cubic, a subflow a plane", mptcp=True)


def measure_stream(contender: Contender, ms: int) -> Raw:
    """Sends for twenty round trips and then for `ms`, which is measured."""
    skip = ROUND_TRIPS * contender.bed.round_trip_ns / 1e9
    with ExitStack() as stack:
        contender.start(stack, skip + ms / 1000 + _MORE_SECONDS)
        seen = contender.finish()
    return settled(seen, skip, ms / 1000)


def settled(seen: Seen, skip: float, seconds: float) -> Raw:
    """The bytes that arrived in `seconds`, starting `skip` seconds after the first byte."""
    total = [sum(counts) for counts in zip(*seen.streams, strict=True)]
    came = list(dropwhile(lambda count: count == 0, total))
    timeline = Timeline(0.0, seen.width, came)
    got = timeline.bytes_at(skip + seconds) - timeline.bytes_at(skip)
    return {"bytes": round(got), "ns": seconds * 1e9}
