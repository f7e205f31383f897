# SPDX-License-Identifier: Apache-2.0
"""The rows of the comparison: each bed's contenders and their jobs, in the order of a round; and
the metrics of a row.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import peers
from bed import Bed, Raw, core_ns, cpu_ns
from benchmark import run_rounds
from checks import DIRECT
from contenders import (
    GSO_PACKETS,
    Floor,
    Flows,
    Mrc,
    MrcPython,
    MrcVerbs,
    Pair,
    UdpPython,
    full_burst,
    tcp_controls,
)
from figures import GOODPUT, spreads
from streams import ROUND_TRIPS, long_contenders, measure_stream

from mrc.engine.paths import TRANSPORT
from mrc.enums import Integrity, Seal
from mrc.linux.system import find

P = TypeVar("P", bound=Pair)
Copy = Callable[[Bed, Path, Path], Raw]

KIB, MIB = 1 << 10, 1 << 20
SPIN_US = 200  # for the spinning rows: longer than any round trip here
BEDS: dict[str, dict[str, Any]] = {
    **DIRECT,
    "9000": {"rate": "none", "mtu": 9000},
    "1500": {"rate": "none", "mtu": 1500},
    "500mbit": {"rate": "500mbit", "mtu": 9000},
    "25ms": {"rate": "100mbit", "mtu": 9000, "delay_ns": 3_125_000},  # each of a path's four links
}
# WRITEs outstanding over all QPs: enough that the sender never waits for a round trip.
_DEPTH = {64: 512, KIB: 512, 4 * KIB: 512, 64 * KIB: 32, MIB: 8, 64 * MIB: 2}
_LIST = 32  # WRITEs posted together, with one completion
_BATCHED = 256  # WRITEs outstanding in two batches: a send queue full
_SIZE_NAMES = {2: "2 B", 64: "64 B", KIB: "1 KiB", 4 * KIB: "4 KiB", 64 * KIB: "64 KiB",
               MIB: "1 MiB", 64 * MIB: "64 MiB"}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    measure: Callable[[], Raw]
    pids: list[list[int]] = field(default_factory=lambda: [[], []])  # of ends that stay up
    costed: bool = True  # CPU time is measured; False: it would include uncounted work
    peer: bool = False  # another project's program: its failure ends its row, not the run
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Maker:
    """Makes rows and starts their ends. The ends run until the stack closes."""

    bed: Bed
    stack: ExitStack
    ms: int  # of one measurement
    file: Path  # the source of copies
    folder: Path  # the folder of received files
    quick: bool

    def rows(self, kind: str) -> list[Row]:
        """The rows of one of BEDS."""
        makers = {"9000": _full, "1500": _small_packets, "500mbit": _limited, "25ms": _long}
        return list(makers.get(kind, _direct)(self))

    def floor(self, pair: Floor, name: str, packet_bytes: int, packets: int) -> Row:
        parameters = {"packet_bytes": packet_bytes, "burst_packets": packets}
        measure = partial(pair.bursts, packet_bytes, packets, self.ms)
        return Row(name, measure, pair.pids, parameters=parameters)

    def ping(self, pair: Floor, how: str, size: int) -> Row:
        """Datagrams as large as mrc's packets with `size` bytes of payload."""
        measure = partial(pair.ping, size + TRANSPORT, self.ms, spin=how == "spinning")
        name = f"UDP ping-pong, {how}, {_SIZE_NAMES[size]}"
        return Row(name, measure, pair.pids, parameters={"packet_bytes": size + TRANSPORT})

    def flow(self, pair: Flows, name: str, cc: str, mode: str, flows: int = 1) -> Row:
        parameters = {"congestion_control": cc, "mode": mode, "flows": flows}
        measure = partial(pair.stream, cc, mode, self.ms, flows=flows)
        return Row(name, measure, pair.pids, parameters=parameters)

    def write(self, pair: Mrc, what: str, size: int, depth: int | None = None) -> Row:
        depth = depth or _DEPTH[size]
        parameters = {"bytes": size, "outstanding": depth, **pair.settings}
        name = f"{what}, WRITE {_SIZE_NAMES[size]}"
        measure = partial(pair.write, size, depth, self.ms)
        return Row(name, measure, pair.pids, parameters=parameters)

    def imm(self, pair: Mrc, what: str, size: int) -> Row:
        name = f"{what}, WRITE_IMM {_SIZE_NAMES[size]}"
        parameters = {"bytes": size, **pair.settings}
        return Row(name, partial(pair.ping, size, self.ms), pair.pids, parameters=parameters)

    def copy(self, name: str, measure: Copy, **more: Any) -> Row:
        """A copy of the file, which is compared with its source."""
        source, target = self.file, self.folder / self.file.name

        def run() -> Raw:
            raw = measure(self.bed, source, target)
            peers.check_copy(source, target)
            return raw

        return Row(f"file, {name}", run, **more)

    def enter(self, pair: P) -> P:
        self.stack.enter_context(pair)
        return pair


def _direct(make: Maker) -> Iterator[Row]:
    bed = make.bed
    floor = make.enter(Floor(bed))
    tcp, mptcp = make.enter(Flows(bed)), make.enter(Flows(bed, mptcp=True))
    mrc = make.enter(MrcVerbs(bed, arena_mib=64))
    yield make.floor(floor, "UDP floor", bed.packet_bytes, full_burst(bed.packet_bytes))
    yield make.write(mrc, "mrc", MIB)
    yield Row("mrc perf", partial(peers.mrc_perf, bed, make.ms))
    for mode in ("write", "sendfile"):
        yield make.flow(tcp, f"TCP, cubic, {mode}", "cubic", mode)
    if find("iperf3"):
        yield Row("TCP, iperf3", lambda: peers.iperf3(bed, make.ms), peer=True)
        yield Row("TCP, iperf3 -Z", lambda: peers.iperf3(bed, make.ms, "-Z"), peer=True)
    if bed.planes > 1:
        yield make.flow(tcp, "TCP, a flow a link", "cubic", "write", bed.planes)
    yield make.flow(mptcp, "MPTCP", "cubic", "write")
    yield make.write(mrc, "mrc", 64 * KIB)
    yield make.write(mrc, "mrc", 64)
    yield from _files(make, tcp)


def _full(make: Maker) -> Iterator[Row]:
    bed = make.bed
    floor = make.enter(Floor(bed))
    tcp, mrc = make.enter(Flows(bed)), make.enter(MrcVerbs(bed, arena_mib=64))
    polled = make.enter(MrcVerbs(bed, polled=True))
    yield from _bulk(make, floor, tcp, mrc, polled)
    spray = make.enter(MrcVerbs(bed, spray=1))
    yield make.floor(floor, "UDP floor, a packet a send", bed.packet_bytes, 1)
    yield make.write(spray, "mrc, spray=1", MIB)
    yield from _small(make, floor, mrc, polled)
    yield from _latency(make, floor, mrc, polled)
    yield from _latency_python(make)
    yield from _files(make, tcp)
    if find("ucx_perftest"):
        for what, test in (("put", "ucp_put_bw"), ("tag, every plane", "tag_bw")):
            measure = partial(peers.ucx, bed, test, MIB, make.ms)
            yield Row(f"UCX over TCP, {what}, 1 MiB", measure, peer=True)


def _bulk(make: Maker, floor: Floor, tcp: Flows, mrc: Mrc, polled: Mrc) -> Iterator[Row]:
    bed = make.bed
    mptcp = make.enter(Flows(bed, mptcp=True))
    unchecked = make.enter(MrcVerbs(bed, integrity=Integrity.UDP, arena_mib=64))
    many = make.enter(MrcVerbs(bed, qps=16))
    python = make.enter(MrcPython(bed))
    yield make.floor(floor, "UDP floor", bed.packet_bytes, full_burst(bed.packet_bytes))
    yield make.write(mrc, "mrc", MIB)
    yield make.write(unchecked, "mrc, integrity=udp", MIB)
    yield from _sealed(make)
    for cc in tcp_controls():
        for mode in ("write", "sendfile"):
            yield make.flow(tcp, f"TCP, {cc}, {mode}", cc, mode)
    if find("iperf3"):
        yield Row("TCP, iperf3", lambda: peers.iperf3(bed, make.ms), peer=True)
        yield Row("TCP, iperf3 -Z", lambda: peers.iperf3(bed, make.ms, "-Z"), peer=True)
    yield make.flow(tcp, "TCP, a flow a plane", "cubic", "write", bed.planes)
    yield make.flow(mptcp, "MPTCP", "cubic", "write")
    yield make.write(mrc, "mrc", 64 * MIB)
    yield make.write(unchecked, "mrc, integrity=udp", 64 * MIB)
    yield make.write(mrc, "mrc", 64 * KIB)
    yield make.write(polled, "mrc, polled", MIB)
    yield make.write(many, "mrc, 16 QPs", MIB, 32)
    yield make.write(python, "mrc, asyncio", MIB)
    yield make.write(many, "mrc, 16 QPs", 64, 1024)
    yield make.write(python, "mrc, asyncio", 64)
    batches = partial(python.batches, 64, _BATCHED, make.ms)
    yield replace(make.write(python, "mrc, asyncio, in batches", 64, _BATCHED), measure=batches)


def _latency_python(make: Maker) -> Iterator[Row]:
    bed = make.bed
    thread, polled = make.enter(MrcPython(bed)), make.enter(MrcPython(bed, polled=True))
    spinning = make.enter(MrcPython(bed, polled=True, spin_us=SPIN_US))
    datagrams = make.enter(UdpPython(bed))
    yield make.imm(thread, "mrc, asyncio", 2)
    yield make.imm(polled, "mrc, asyncio, polled, sleeping", 2)
    ping = partial(datagrams.ping, 2 + TRANSPORT, make.ms)
    yield Row("UDP ping-pong, asyncio, 2 B", ping, datagrams.pids)
    yield make.imm(spinning, "mrc, asyncio, polled, spinning", 2)
    yield make.imm(polled, "mrc, asyncio, polled, sleeping", 4 * KIB)


def _sealed(make: Maker) -> Iterator[Row]:
    """Beside `mrc`, which stands before them."""
    for name, seal, library in (
        ("seal=aead", Seal.AEAD, None),
        ("seal=auth", Seal.AUTH, None),
        ("seal=aead by libcrypto", Seal.AEAD, "libcrypto"),
    ):
        pair = make.enter(MrcVerbs(make.bed, library, seal=seal))
        yield make.write(pair, f"mrc, {name}", MIB)


def _small(make: Maker, floor: Floor, mrc: Mrc, polled: Mrc) -> Iterator[Row]:
    yield make.floor(floor, "UDP floor, 64 B", 64 + TRANSPORT, GSO_PACKETS)
    for size in (64, KIB, 4 * KIB):
        yield make.write(mrc, "mrc", size)
        yield make.write(polled, "mrc, polled", size)
    for polls, name in ((False, "mrc, lists"), (True, "mrc, polled, lists")):
        lists = make.enter(MrcVerbs(make.bed, list=_LIST, polled=polls))
        yield make.write(lists, name, 64)
    sealed = make.enter(MrcVerbs(make.bed, list=_LIST, seal=Seal.AEAD))
    yield make.write(sealed, "mrc, seal=aead, lists", 64)


def _latency(make: Maker, floor: Floor, mrc: Mrc, polled: Mrc) -> Iterator[Row]:
    spinning = make.enter(MrcVerbs(make.bed, polled=True, spin_us=SPIN_US))
    for size in (2, 4 * KIB):
        yield make.ping(floor, "spinning", size)
        yield make.imm(spinning, "mrc, polled, spinning", size)
        yield make.ping(floor, "sleeping", size)
        yield make.imm(polled, "mrc, polled, sleeping", size)
        yield make.imm(mrc, "mrc", size)


def _files(make: Maker, tcp: Flows) -> Iterator[Row]:
    yield make.copy("mrc send", peers.by_mrc)
    yield make.copy("one TCP flow", lambda _, *paths: tcp.file(*paths), pids=tcp.pids)
    yield make.copy("mrc send, encrypted", partial(peers.by_mrc, sealed=True))
    for name, measure, program in (
        ("socat", peers.by_socat, "socat"),
        ("socat, TLS", peers.by_tls_socat, "socat"),
        ("scp", peers.by_scp, "sshd"),
    ):
        if find(program):
            yield make.copy(name, measure, peer=True)


def _small_packets(make: Maker) -> Iterator[Row]:
    bed = make.bed
    floor = make.enter(Floor(bed))
    tcp, mrc = make.enter(Flows(bed)), make.enter(MrcVerbs(bed))
    unchecked = make.enter(MrcVerbs(bed, integrity=Integrity.UDP))
    yield make.floor(floor, "UDP floor", bed.packet_bytes, full_burst(bed.packet_bytes))
    yield make.write(mrc, "mrc", MIB)
    yield make.write(unchecked, "mrc, integrity=udp", MIB)
    yield from _sealed(make)
    yield make.flow(tcp, "TCP, cubic, write", "cubic", "write")


def _limited(make: Maker) -> Iterator[Row]:
    bed = make.bed
    tcp, mptcp = make.enter(Flows(bed)), make.enter(Flows(bed, mptcp=True))
    mrc = make.enter(MrcVerbs(bed))
    yield make.write(mrc, "mrc", MIB)
    yield make.flow(tcp, "TCP, cubic, write", "cubic", "write")
    yield make.flow(tcp, "TCP, a flow a plane", "cubic", "write", bed.planes)
    yield make.flow(mptcp, "MPTCP", "cubic", "write")
    if not make.quick:
        yield from _files(make, tcp)


def _long(make: Maker) -> Iterator[Row]:
    make.bed.forget_connections()
    for contender in long_contenders(make.bed):
        yield Row(
            contender.name,
            partial(measure_stream, contender, make.ms),
            costed=False,
            parameters={"what": contender.what, "from_round_trip": ROUND_TRIPS},
        )
    if not make.quick:
        yield from _long_files(make)


def _long_files(make: Maker) -> Iterator[Row]:
    """Copies a quarter of the usual file, because one TCP flow is slow here."""
    part = make.file.with_name("part.bin")
    with part.open("wb") as file:
        file.write(make.file.read_bytes()[: make.file.stat().st_size // 4])
        file.flush()
        os.fsync(file)
    smaller = replace(make, file=part)
    yield smaller.copy("mrc send", peers.by_mrc)
    yield smaller.copy("one TCP flow", partial(_new_flow, mptcp=False), costed=False)
    yield smaller.copy("MPTCP", partial(_new_flow, mptcp=True), costed=False)


def _new_flow(bed: Bed, source: Path, target: Path, *, mptcp: bool) -> Raw:
    with Flows(bed, mptcp=mptcp) as pair:
        return pair.file(source, target)


# ---- metrics -------------------------------------------------------------------------------------

GIB = 1 << 30
Metrics = dict[str, Any]
# Row name -> metrics of each round.
Rounds = dict[str, list[Metrics]]


def run_rows(
    bed: Bed, rows: Sequence[Row], args: argparse.Namespace
) -> tuple[Rounds, dict[str, str]]:
    """The metrics of every row, and the reasons for missing rows of peers."""
    return run_rounds(
        {row.name: partial(measure, bed, row) for row in rows},
        args.repeats,
        warm_up=not args.quick,
        peers=[row.name for row in rows if row.peer],
        brief=lambda name, metrics: f"{name}: {brief(metrics)}",
    )


def measure(bed: Bed, row: Row) -> Metrics:
    """Measures one row once."""
    before = bed.sent_bytes(), cpu_ns(row.pids), core_ns()
    raw = row.measure()
    after = bed.sent_bytes(), cpu_ns(row.pids), core_ns()
    planes, cpu, cores = (
        [now - then for then, now in zip(*both, strict=True)]
        for both in zip(before, after, strict=True)
    )
    if not row.costed:
        return metrics_of(raw, planes)
    raw["core_seconds"] = [ns / 1e9 for ns in cores]
    # A program that ended meanwhile reported its own CPU time. `cpu` has the softirq threads'.
    raw["cpu_seconds"] = [
        ns / 1e9 + own for ns, own in zip(cpu, raw.get("cpu_seconds", (0, 0)), strict=True)
    ]
    return metrics_of(raw, planes)


def metrics_of(raw: Raw, planes_bytes: Sequence[int]) -> Metrics:
    """Rates and costs of a row, as far as its contender reports them."""
    seconds = raw["ns"] / 1e9
    metrics: Metrics = {name: raw[name] for name in ("p50_ns", "p99_ns", "p999_ns") if name in raw}
    if "messages" in raw:
        metrics["messages_per_second"] = raw["messages"] / seconds
    if "retransmissions" in raw:
        metrics["retransmissions"] = raw["retransmissions"]
    if raw.get("bytes"):
        gib = raw["bytes"] / GIB
        metrics[GOODPUT] = 8 * raw["bytes"] / seconds
        for kind in ("cpu", "core") if "core_seconds" in raw else ():
            for side, spent in zip(("sender", "receiver"), raw[f"{kind}_seconds"], strict=True):
                metrics[f"{side}_{kind}_seconds_per_gib"] = spent / gib
        metrics |= {f"{name}_per_gib": raw[name] / gib for name in ("packets", "syscalls")
                    if name in raw}  # fmt: skip
        total = sum(planes_bytes)
        metrics["plane_shares"] = [count / total for count in planes_bytes]
    return metrics


def summary(rounds: Sequence[Metrics]) -> dict[str, Any]:
    """The spread of every metric, and the median of each plane's share."""
    found: dict[str, Any] = spreads(
        [{name: each[name] for name in each if name != "plane_shares"} for each in rounds]
    )
    if "plane_shares" in rounds[0]:
        planes = zip(*(each["plane_shares"] for each in rounds), strict=True)
        found["plane_shares"] = [median(plane) for plane in planes]
    return found


def brief(metrics: Metrics) -> str:
    if GOODPUT in metrics:
        return f"{metrics[GOODPUT] / 1e9:.3g} Gbit/s"
    return f"p50 {metrics['p50_ns'] / 1e3:.3g} us"
