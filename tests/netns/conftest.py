# SPDX-License-Identifier: Apache-2.0
"""Namespaces for tests: with unique names, always removed."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from netns.owner import owner
from netns.processes import Hosts, Mrc, Start
from skips import mark
from slowness import PATIENCE

from mrc.errors import MrcError
from mrc.linux import netns
from mrc.testbed import build, emulator, rootless, state
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

# A user namespace created by an ordinary user maps only this user.
HAS_USERS = int(Path("/proc/self/uid_map").read_text().split()[2]) > 1

needs_real_root = pytest.mark.skipif(not HAS_USERS, reason="needs root outside a user namespace")

PORT = 4791
BEDS = {"bed", "own", "uneven", "pods"}
"""names of fixtures of modules that are test beds"""
FLUSH = -1
"""the round of datagrams that are not counted"""

_numbers = count()


def missing_privilege() -> str | None:
    """Why this process cannot create namespaces, or None."""
    if lacks := netns.lacks():
        return f"needs {lacks}, or a shell opened with: {rootless.SHELL}"
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install {package}"
    name = f"mrc-{fresh_name()}"
    try:
        netns.create(name)
    except MrcError as exc:
        return str(exc)
    netns.remove(name)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, missing_privilege, "netns")


def fresh_name() -> str:
    return f"{owner()}{next(_numbers)}"


def bed_of(*fabrics: Fabric, **options: Any) -> Any:
    """A fixture: one test bed for all tests of a file, or one in each of these fabrics."""

    @pytest.fixture(scope="module", params=fabrics or None)
    def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
        fabric = {"fabric": request.param} if fabrics else {}
        with Testbed(fresh_name(), **options, **fabric) as made:
            yield made

    return bed


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts mrc in a namespace; ends the processes that still run."""
    running: list[Mrc] = []

    def start(namespace: str, *arguments: str | Path) -> Mrc:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "mrc"]
        running.append(Mrc.begin([*command, *map(str, arguments)]))
        return running[-1]

    yield start
    for each in running:
        each.end()


@pytest.fixture
def bed_name() -> Iterator[str]:
    """A name for a test bed, which is removed after the test."""
    name = fresh_name()
    yield name
    emulator.stop(state.folder(name))
    build.remove(name)
    state.forget(name)


@pytest.fixture
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Removes all faults from the module's beds after the test."""
    yield
    for name in BEDS.intersection(request.fixturenames):
        request.getfixturevalue(name).heal("all")


@pytest.fixture
def hosts(bed: Testbed) -> Iterator[Hosts]:
    """Runs mrc in the hosts of the module's bed."""
    with Hosts(bed) as hosts:
        yield hosts


def has_ended(pid: int) -> bool:
    """Whether all threads have ended: the first may end while others still hold sockets.

    If the process ends between open and read, the read fails with ESRCH.
    """
    try:
        first = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return first == "Z" and os.listdir(f"/proc/{pid}/task") == [str(pid)]
    except (FileNotFoundError, ProcessLookupError):
        return True


def udp_socket(bed: Testbed, host: str) -> socket.socket:
    """Its receive buffer is as large as the kernel allows: a test may be late to read.

    The default one holds 12 datagrams of 8,900 B, since the kernel counts 16 KiB for each.
    """
    with netns.inside(bed.plan.nodes[host].namespace):
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    return made


@contextmanager
def udp_pair(
    bed: Testbed, receiver: str = "h1", sender: str = "h0"
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket that receives at PORT, for some time, and one that sends."""
    with udp_socket(bed, receiver) as rx, udp_socket(bed, sender) as tx:
        rx.bind(("::", PORT))
        rx.settimeout(PATIENCE)
        yield rx, tx


@dataclass
class Probing:
    """Full-size datagrams over each path from one host to another."""

    bed: Testbed
    src: int
    dst: int
    rx: socket.socket
    tx: socket.socket
    arrived: list[Counter[str]] = field(default_factory=list)
    """datagrams received per round, by path"""

    def send(self, alive: Collection[str]) -> None:
        """One round; ends when each path in `alive` has delivered, or after PATIENCE."""
        self.arrived.append(Counter())
        self._round(len(self.arrived) - 1, alive)

    def flush(self, alive: Collection[str]) -> None:
        """Ends when the datagrams sent before have met the fault of their path.

        Without it they may still be in a queue when the fault is healed. They are ahead of those
        sent here, which are not counted.
        """
        self._round(FLUSH, alive)

    def _round(self, number: int, alive: Collection[str]) -> None:
        for path in self.bed.shape.paths(self.src, self.dst):
            data = f"{number} {path.name}".encode().ljust(self.bed.shape.mtu - 112)
            self.tx.sendto(data, (str(path.dst), PORT + self.src))
        here: set[str] = set()
        try:
            while not here >= set(alive):
                words = self.rx.recv(65536).decode().split()
                if int(words[0]) == number:
                    here.add(words[1])
                if int(words[0]) != FLUSH:
                    self.arrived[int(words[0])][words[1]] += 1
        except TimeoutError:
            pass


@contextmanager
def probing(bed: Testbed, src: int, dst: int) -> Iterator[Probing]:
    with udp_socket(bed, f"h{dst}") as rx, udp_socket(bed, f"h{src}") as tx:
        rx.bind(("::", PORT + src))
        rx.settimeout(PATIENCE)
        yield Probing(bed, src, dst, rx, tx)


Case = tuple[int, int, set[str], set[str]]
"""Two hosts, the paths between them, and those that a fault disables."""


def check_fault(bed: Testbed, target: str, mode: str, *cases: Case) -> None:
    """A fault disables its paths and no others, until it is healed.

    Method: a datagram that passed a dead path would arrive before one sent after healing.
    """
    with ExitStack() as stack:
        pairs = [stack.enter_context(probing(bed, src, dst)) for src, dst, _, _ in cases]
        bed.fail(target, mode)
        for pair, (_, _, usual, dead) in zip(pairs, cases, strict=True):
            pair.send(usual - dead)
            pair.flush(usual - dead)
        assert bed.heal(target) == [target]
        for pair, (_, _, usual, _) in zip(pairs, cases, strict=True):
            pair.send(usual)
    for pair, (_, _, usual, dead) in zip(pairs, cases, strict=True):
        assert pair.arrived == [Counter(usual - dead), Counter(usual)]


def arrivals(bed: Testbed, rounds: int, alive: Collection[str]) -> Counter[str]:
    """Datagrams received from h0 to h1 by path, while a fault leaves `alive` intact; heals it.

    Method: the paths `alive` pace the rounds. A last round after healing flushes every path.
    """
    with probing(bed, 0, 1) as pair:
        for _ in range(rounds):
            pair.send(alive)
        bed.heal("all")
        pair.send([path.name for path in bed.shape.paths(0, 1)])
    return sum(pair.arrived[:rounds], Counter())


def datagrams(
    rx: socket.socket, bed: Testbed, are_all_here: Callable[[], bool] = lambda: False
) -> Iterator[bytes]:
    """Those that arrive, until none comes any more: at ten looks, of which each process on this
    machine gets its turn in between, and an emulated fabric has nothing left to work on.
    """
    counts: dict[str, Any] = {}
    rx.settimeout(0.05)
    while True:
        looks = 0
        while looks < (2 if are_all_here() else 10):
            try:
                yield rx.recv(65536)
                looks = 0
            except TimeoutError:
                looks += 1
        if are_all_here() or bed.shape.fabric is Fabric.KERNEL:
            return
        if counts == (counts := bed.counters()):
            return


def probe(bed: Testbed, src: int = 0, dst: int = 1, each: int = 1) -> Counter[str]:
    """Sends `each` full-size datagrams over each path; counts the received ones by path."""
    arrived: Counter[str] = Counter()
    paths = bed.shape.paths(src, dst)
    with udp_socket(bed, f"h{dst}") as rx, udp_socket(bed, f"h{src}") as tx:
        rx.bind(("::", PORT))
        for _ in range(each):
            rx.settimeout(0.002)
            with suppress(TimeoutError):  # receive before sending more, so that no queue overflows
                while arrived:
                    arrived[rx.recv(65536).decode().strip()] += 1
            for path in paths:
                tx.sendto(path.name.encode().ljust(bed.shape.mtu - 112), (str(path.dst), PORT))
        for data in datagrams(
            rx, bed, lambda: not any(arrived[path.name] < each for path in paths)
        ):
            arrived[data.decode().strip()] += 1
    return arrived


@pytest.fixture
def namespace_pair() -> Iterator[tuple[str, str]]:
    """Two empty namespaces."""
    names = (f"mrc-{fresh_name()}", f"mrc-{fresh_name()}")
    try:
        for name in names:
            netns.create(name)
        yield names
    finally:
        for name in names:
            netns.remove(name)
