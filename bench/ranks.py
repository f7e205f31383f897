# SPDX-License-Identifier: Apache-2.0
"""The contenders of `bench/allreduce`: a job of torch.distributed for each way to carry Gloo; its
metrics, checks and tables.

The ranks keep running between rounds, one in each host of the bed.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any, Self

import cbuild
from bed import HERE, Bed, BenchError, End, core_ns, run_ns, softirq_pids
from figures import Check, quantile, ratios, size_table, spreads

_RANK = str(HERE / "allreduce_rank")
_MASTER = "fd00:c::1"  # h0 in the management network
_PORTS = itertools.count(29500)  # of torch's store


@dataclass(frozen=True, slots=True)
class Transport:
    """A way to carry Gloo."""

    name: str
    what: str
    tcp: bool = True
    mptcp: bool = False

    def variables(self) -> dict[str, str]:
        """The environment of the ranks."""
        if not self.tcp:
            return {"GLOO_DEVICE_TRANSPORT": "MRC"}
        found = {"GLOO_DEVICE_TRANSPORT": "TCP", "GLOO_SOCKET_IFNAME": "p1"}
        library = cbuild.shared_library([HERE / "sockets.c"], "bench-sockets")
        # The path of the folder may have blanks, which separate libraries in LD_PRELOAD.
        found |= {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": str(library.parent)}
        return found | ({"BENCH_MPTCP": "1"} if self.mptcp else {})


TRANSPORTS = (
    Transport("mrc", "all planes", tcp=False),
    Transport("TCP", "one path, in plane 1; cubic"),
    Transport("MPTCP", "a subflow a plane; cubic", mptcp=True),
)
PEERS = tuple(each.name for each in TRANSPORTS if each.tcp)  # left out if they cannot run


def missing() -> str:
    return "" if find_spec("torch") else "torch is not installed: see mrc/torch/README.md"


class RankBed:
    """A bed as the ranks of one contender see it: with their environment."""

    def __init__(self, bed: Bed, transport: Transport) -> None:
        self._bed = bed
        self._variables = {
            **transport.variables(),
            "MASTER_ADDR": _MASTER, "MASTER_PORT": str(next(_PORTS)),
            "WORLD_SIZE": str(len(bed.hosts)), "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip

    def command(self, host: int, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        command, environment = self._bed.command(host, argv)
        return command, {**environment, **self._variables, "RANK": str(host)}


class Ranks:
    """The ranks of one contender. As a context manager it stops them."""

    def __init__(self, bed: Bed, transport: Transport) -> None:
        self.name = transport.name
        self._ends: list[End] = []
        ranks = RankBed(bed, transport)
        try:
            for host in bed.hosts:
                self._ends.append(End(ranks, host, sys.executable, _RANK))
            self._run("join")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for end in self._ends:
            end.close()

    def check(self, size: int) -> None:
        """Raises BenchError for a wrong sum."""
        if not all(answer["right"] for answer in self._run("check", size)):
            raise BenchError(f"{self.name}: the sums of {size} bytes are wrong")

    def reduce(self, size: int, count: int) -> dict[str, Any]:
        """The times of rank 0, and the CPU time of all ranks."""
        before = self._cpu_ns(), sum(core_ns())
        answer = self._run("reduce", size, count)[0]
        after = self._cpu_ns(), sum(core_ns())
        cpu, cores = (now - then for then, now in zip(before, after, strict=True))
        return {**answer, "cpu_ns": cpu, "core_ns": cores}

    def _run(self, *job: object) -> Sequence[dict[str, Any]]:
        for end in self._ends:
            end.start(*job)
        return [end.result() for end in self._ends]

    def _cpu_ns(self) -> int:
        """CPU time of the ranks and of the kernel's softirq threads."""
        softirqs = (pid for number in range(os.cpu_count() or 1) for pid in softirq_pids(number))
        return sum(run_ns(pid) for pid in (*(end.pid for end in self._ends), *softirqs))


# ---- figures -------------------------------------------------------------------------------------

SIZES = tuple(4**i << 10 for i in range(9))  # 1 KiB to 64 MiB
LARGE = 1 << 20  # targets of bandwidth apply from this size on
SMALL = 4 << 10  # the target of latency applies to this size

Metrics = dict[str, float]
Rounds = Mapping[str, Mapping[int, Sequence[Metrics]]]
"""By contender, then by bytes of the tensor: the metrics of each round."""


def bus_share(ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests define it for an allreduce.

    Each rank must send and receive this share of the tensor at least, so the bus bandwidth can be
    compared with the rate of a host's links, whatever the number of ranks.
    """
    return 2 * (ranks - 1) / ranks


def count_for(seconds: float, one_seconds: float) -> int:
    """Operations that take about `seconds`, within limits."""
    return max(5, min(2000, round(seconds / one_seconds)))


def metrics(size: int, ranks: int, raw: Mapping[str, Any]) -> Metrics:
    """Metrics of one measurement. CPU time is that of all ranks, for each GB that crosses the
    fabric. It includes the operations before the first that was timed.
    """
    ordered = sorted(raw["ns"])
    sent_bytes = size * bus_share(ranks)  # by each rank in one operation
    gigabytes = sent_bytes * raw["operations"] * ranks / 1e9
    return {
        "bus_bits_per_second": 8e9 * sent_bytes * len(ordered) / sum(ordered),
        "p50_ns": quantile(ordered, 500),
        "p99_ns": quantile(ordered, 990),
        "cpu_seconds_per_gb": raw["cpu_ns"] / 1e9 / gigabytes,
        "core_seconds_per_gb": raw["core_ns"] / 1e9 / gigabytes,
    }


def rows(rounds: Rounds) -> list[dict[str, Any]]:
    """A row for each contender and size: median, smallest and largest value of each metric."""
    return [
        {"contender": name, "bytes": size, "metrics": spreads(found)}
        for name, sizes in rounds.items()
        for size, found in sizes.items()
    ]


# ---- targets ------------------------------------------------------------------------------------


def checks(title: str, rounds: Rounds, capacity_bps: float | None) -> Iterator[Check]:
    """The targets of mrc on one bed. `capacity_bps`: payload of full packets on all planes of a
    host; None without a rate limit.
    """
    ours, tcp = rounds.get("mrc", {}), rounds.get("TCP", {})
    if SMALL in ours and SMALL in tcp:
        name = f"{title}: 4 KiB, p50, of Gloo over TCP"
        yield Check(name, median(ratios(ours[SMALL], tcp[SMALL], "p50_ns")), "<=", 1.5)
    for size in (size for size in ours if size >= LARGE):
        name = f"{title}: {size >> 20} MiB, bus bandwidth, of "
        if capacity_bps is not None:
            share = median(each["bus_bits_per_second"] for each in ours[size]) / capacity_bps
            yield Check(name + "the planes", share, ">=", 0.9)
        elif size in tcp:
            share = median(ratios(ours[size], tcp[size], "bus_bits_per_second"))
            yield Check(name + "Gloo over TCP", share, ">=", 1.0)


# ---- tables -------------------------------------------------------------------------------------

_COLUMNS = (
    ("bus_bits_per_second", 1e9, "Gbit/s"),
    ("p50_ns", 1e3, "p50, us"),
    ("p99_ns", 1e3, "p99, us"),
    ("cpu_seconds_per_gb", 1, "CPU, s/GB"),
)


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows of one bed as text: contenders beside each other, a line for each size."""
    names = list(dict.fromkeys(row["contender"] for row in found))
    by_place = {(row["contender"], row["bytes"]): row["metrics"] for row in found}
    sizes = dict.fromkeys(row["bytes"] for row in found)
    return "\n\n".join(
        size_table(
            (heading, *names),
            {size: [by_place[name, size][metric] for name in names] for size in sizes},
            [divisor] * len(names),
        )
        for metric, divisor, heading in _COLUMNS
    )
