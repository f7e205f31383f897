# SPDX-License-Identifier: Apache-2.0
"""The contenders of `bench/allreduce`: a job of torch.distributed for each way to carry Gloo.

The ranks keep running between rounds, one in each host of the bed.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from bed import Bed
from compiled import library
from end import BenchError, End, core_ns, run_ns, softirq_pids

_RANK = str(Path(__file__).resolve().with_name("allreduce_rank"))
_MASTER = "fd00:c::1"  # h0 in the management network
_PORTS = itertools.count(29500)  # of torch's store


@dataclass(frozen=True, slots=True)
class Transport:
    """A way to carry Gloo."""

    name: str
    what: str
    tcp: bool = True
    mptcp: bool = False
    pinned: bool = True

    def unpinned(self) -> Transport:
        """The same with ranks that may run on every core."""
        what = f"{self.what}; ranks on all cores"
        return replace(self, name=f"{self.name}, unpinned", what=what, pinned=False)

    def variables(self) -> dict[str, str]:
        """The environment of the ranks."""
        if not self.tcp:
            return {"GLOO_DEVICE_TRANSPORT": "MRC"}
        found = {"GLOO_DEVICE_TRANSPORT": "TCP", "GLOO_SOCKET_IFNAME": "p1"}
        folder, name = os.path.split(library("sockets"))
        found |= {"LD_PRELOAD": name, "LD_LIBRARY_PATH": folder}  # the path may have blanks
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
        self._pinned = transport.pinned
        self._variables = {
            **transport.variables(),
            "MASTER_ADDR": _MASTER, "MASTER_PORT": str(next(_PORTS)),
            "WORLD_SIZE": str(len(bed.hosts)), "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip

    def command(self, host: int, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        command, environment = self._bed.command(host, argv, pinned=self._pinned)
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
