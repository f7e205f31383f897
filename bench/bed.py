# SPDX-License-Identifier: Apache-2.0
"""The test bed of a benchmark: that of `mrc testbed`, with what peers of mrc need besides; and the
processes in its hosts, pinned, with their CPU time.

An `End` runs until its pipe closes. It reads jobs as lines and answers with JSON. `start_once` and
`wait_for` run other programs, such as a peer's own benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import cbuild

from mrc.engine.paths import TRANSPORT, payload_mtu
from mrc.linux import netns
from mrc.testbed.bed import Testbed
from mrc.testbed.child import BlockingChild
from mrc.testbed.shape import Fabric

Raw = dict[str, Any]
"""What a measurement returns: `bytes`, the payload that arrived in `ns`. Contenders that count them
add `messages`, percentiles, `packets`, `syscalls` and `retransmissions`.
"""
HERE = Path(__file__).resolve().parent
HOSTS = (0, 1)  # the sender's number, the receiver's
_LINKS = 4  # on a path
_BUFFERS = "4096 1048576 67108864"  # of TCP: enough for each of its rates
_WIRE_OVERHEAD = 14 + 40 + 40 + 8  # Ethernet, outer and inner IPv6, UDP: as tbf counts a packet
_TCP_OVERHEAD = 40 + 40 + 32  # outer and inner IPv6, TCP with timestamps


class Bed:
    """Two hosts, or more. They are up while the context manager is open."""

    def __init__(
        self, name: str, *, planes: int, t1: int, rate: str, mtu: int, delay_ns: int = 0,
        pinned: bool = True, hosts: int = 2, mptcp: bool = True,
    ) -> None:  # fmt: skip
        """`delay_ns` applies to every link. A fabric with a delay is emulated."""
        own = f"{name}{os.getpid()}"
        self.testbed = Testbed(
            own, hosts=hosts, planes=planes, t1=t1, rate=rate, mtu=mtu, delay_ns=delay_ns,
            fabric=Fabric.EMULATED if delay_ns else Fabric.KERNEL,
        )  # fmt: skip
        self.round_trip_ns = 2 * _LINKS * delay_ns  # sum of the delays of the links
        self.hosts = range(hosts)
        self.planes = planes
        self.mtu = mtu
        self.rate = rate
        self.pinned = pinned
        self._mptcp = mptcp
        self.path_mtu = payload_mtu(mtu, 6, segments=1)
        self.packet_bytes = self.path_mtu + TRANSPORT
        self.tcp_payload = mtu - _TCP_OVERHEAD  # bytes of a full segment

    def __enter__(self) -> Bed:
        self.testbed.up()
        try:
            for host in self.hosts:
                enlarge_buffers(self.namespace(host))
                if self._mptcp:
                    self.testbed.prepare_mptcp(f"h{host}")
        except BaseException:
            self.testbed.down()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.testbed.down()

    def namespace(self, host: int) -> str:
        return self.testbed.plan.nodes[f"h{host}"].namespace

    def command(self, host: int, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment that run a program in a host, on its core if the bed is
        pinned.
        """
        prefix = ["taskset", "-c", str(core(host))] if self.pinned else []
        return self.testbed.host_command(f"h{host}", [*prefix, *argv])

    def name(self, host: int) -> str:
        """By which mrc finds a host."""
        return f"h{host}"

    def address(self, host: int) -> str:
        return str(self.testbed.shape.addresses.host(host))

    def plane_address(self, host: int, plane: int) -> str:
        """A host's address in a plane. Packets to it go over T1 0 of the plane."""
        return str(self.testbed.shape.addresses.in_plane(host, plane))

    def plane_arguments(self, host: int) -> list[str]:
        """`p1=ADDRESS,ADDRESS p2=...`: the peer's address on every path, for the ends in C."""
        paths = self.testbed.shape.paths(host, 1 - host)
        return [
            f"p{plane}=" + ",".join(str(path.dst) for path in paths if path.plane == plane)
            for plane in range(1, self.planes + 1)
        ]

    def flows(self, planes: int) -> list[str]:
        """Addresses from and to of one TCP flow for each of the first planes."""
        return [self.plane_address(host, plane) for plane in range(1, planes + 1) for host in HOSTS]

    def sent_bytes(self) -> list[int]:
        """Bytes that the sender's interfaces have sent, plane by plane."""
        with netns.inside(self.namespace(0)):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        counts = {
            name.strip(): int(rest.split()[8]) for name, rest in (x.split(":") for x in lines)
        }
        return [counts[f"p{plane}"] for plane in range(1, self.planes + 1)]

    def payload_capacity_bps(self) -> float | None:
        """Payload rate of full packets of mrc over all planes; None without a rate limit."""
        rate_bps = self.testbed.shape.host_rate_bps
        if rate_bps is None:
            return None
        wire_bytes = self.packet_bytes + _WIRE_OVERHEAD
        return self.planes * rate_bps * self.path_mtu / wire_bytes

    def remove_link_local(self) -> None:
        """Leaves each interface of a host one address, for programs that would take the other one.
        Neighbours are known without it.
        """
        for host in HOSTS:
            for plane in range(1, self.planes + 1):
                words = f"-6 addr flush scope link dev p{plane}".split()
                subprocess.run(["ip", "-n", self.namespace(host), *words], check=True)

    def forget_connections(self) -> None:
        """Disables TCP's metrics cache, so that connections use no values of earlier ones."""
        for host in HOSTS:
            with netns.inside(self.namespace(host)):
                Path("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text("1")


class DirectBed(Bed):
    """Two hosts joined by cables: veth pairs p1, p2 and so on, without switches and SRv6."""

    def __init__(self, name: str, *, links: int, mtu: int, pinned: bool = True) -> None:
        self._names = [f"{name}{os.getpid()}-h{host}" for host in HOSTS]
        self.round_trip_ns = 0
        self.hosts = range(len(HOSTS))
        self.planes = links
        self.mtu = mtu
        self.rate = "none"
        self.pinned = pinned
        self.path_mtu = payload_mtu(mtu, 6)
        self.packet_bytes = self.path_mtu + TRANSPORT
        self.tcp_payload = mtu - _TCP_OVERHEAD + 40

    def __enter__(self) -> DirectBed:
        try:
            for host in HOSTS:
                self._ip("netns", "add", self.namespace(host))
            for plane in range(1, self.planes + 1):
                ends = [f"p{plane} mtu {self.mtu} netns {self.namespace(host)}" for host in HOSTS]
                self._ip(*f"link add {ends[0]} type veth peer name {ends[1]}".split())
            for host in HOSTS:
                self._set_up(host)
            for plane in range(1, self.planes + 1):  # the neighbours are known from here on
                target = self.plane_address(HOSTS[1], plane)
                self._ip("netns", "exec", self.namespace(0), "ping", "-c1", "-w9", "-q", target)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set_up(self, host: int) -> None:
        own = ("-n", self.namespace(host))
        self._ip(*own, *f"addr add {self.address(host)}/128 dev lo".split())
        self._ip(*own, "link", "set", "lo", "up")
        for plane in range(1, self.planes + 1):
            address = self.plane_address(host, plane)
            self._ip(*own, *f"addr add {address}/64 dev p{plane} nodad".split())
            self._ip(*own, *f"link set p{plane} up".split())
            if plane == 1:
                peer = f"{self.address(1 - host)} via {self.plane_address(1 - host, 1)}"
                self._ip(*own, *f"-6 route add {peer} dev p1".split())
        enlarge_buffers(self.namespace(host))
        if Testbed.has_mptcp():
            words = f"mptcp limits set subflows {self.planes} add_addr_accepted {self.planes}"
            self._ip(*own, *words.split())
            for plane in range(1, self.planes + 1):
                words = f"mptcp endpoint add {self.plane_address(host, plane)} signal"
                self._ip(*own, *words.split())

    def __exit__(self, *exc_info: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _ip(self, *words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def namespace(self, host: int) -> str:
        return self._names[host]

    def command(self, host: int, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        prefix = ["taskset", "-c", str(core(host))] if self.pinned else []
        inside = ["ip", "netns", "exec", self.namespace(host), *prefix, *argv]
        return inside, {**os.environ, "MRC_INSECURE": "1"}

    def name(self, host: int) -> str:
        return self.plane_address(host, 1)

    def address(self, host: int) -> str:
        return f"fd00:ffff::{host + 1}"

    def plane_address(self, host: int, plane: int) -> str:
        return f"fd00:{plane:x}::{host + 1}"

    def plane_arguments(self, host: int) -> list[str]:
        return [
            f"p{plane}={self.plane_address(1 - host, plane)}" for plane in range(1, self.planes + 1)
        ]

    def payload_capacity_bps(self) -> float | None:
        return None


def enlarge_buffers(namespace: str) -> None:
    """Lets the buffers of a host's TCP connections grow."""
    with netns.inside(namespace):
        for name in ("tcp_rmem", "tcp_wmem"):
            Path("/proc/sys/net/ipv4", name).write_text(_BUFFERS)


def core(host: int) -> int:
    """The core of one side. The sender's kernel forwards on the sender's core."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[host % len(cores)]


PATIENCE = 60  # seconds for any answer: long enough that only a hang ends a benchmark


class Commands(Protocol):
    """Makes the commands that run a program in a host."""

    def command(self, host: int, argv: list[str]) -> tuple[list[str], dict[str, str]]: ...


class BenchError(Exception):
    """A contender failed; the message is one line."""


def require_root() -> None:
    """Raises BenchError for other users. Only the machine's root can pin and count softirqs."""
    if lacks := netns.lacks():
        remedy = "run it with sudo" if lacks == "root" else f"this root lacks {lacks}"
        raise BenchError(f"this benchmark requires root: {remedy}")


def compiled(name: str) -> str:
    """The path of an end in C, with the flags of the shipped engine. Cached by content."""
    return str(cbuild.program(HERE / f"{name}.c", cbuild.SHIPPED))


def until(condition: Callable[[], object], words: Callable[[], str], late: str) -> None:
    """Waits for a condition. Raises BenchError with the words of a program that has ended instead,
    or after a while with `late`.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        said = words()  # before the condition: what came with the end is seen
        if condition():
            return
        if said:
            raise BenchError(said)
        if time.monotonic() > deadline:
            raise BenchError(late)
        time.sleep(0.002)


class End:
    """One process in a host. It answers every job with one line."""

    def __init__(self, bed: Commands, host: int, *argv: object) -> None:
        words = [str(word) for word in argv]
        self.what = " ".join(Path(word).name for word in words[:3])
        self._child = BlockingChild(*bed.command(host, words), seconds=PATIENCE)
        self.pid = self._child.process.pid
        try:
            self.hello = self.result()
        except BaseException:
            self.close()
            raise

    def start(self, *words: object) -> None:
        self._child.send(" ".join(map(str, words)).encode())

    def result(self) -> dict[str, Any]:
        try:
            line = self._child.line()
        except TimeoutError:
            raise BenchError(f"{self.what}: no answer in {PATIENCE} s") from None
        if not line:
            raise BenchError(f"{self.what}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, *words: object) -> dict[str, Any]:
        self.start(*words)
        return self.result()

    def close(self) -> None:
        self._child.end(at_once=True)
        self._child.close(5)

    def words(self) -> str:
        """Its last words if it has ended; empty if it still runs."""
        return "" if self._child.process.poll() is None else self._last_words()

    def _last_words(self) -> str:
        self._child.process.kill()
        code = self._child.process.wait()
        return last_words(self._child.notes(), code)


@dataclass(frozen=True)
class Ended:
    """A program's output, and the CPU time of it and its children."""

    output: str
    cpu_seconds: float


def start_once(
    bed: Commands, host: int, argv: Sequence[str], **environment: str
) -> subprocess.Popen[str]:
    command, inherited = bed.command(host, list(argv))
    return subprocess.Popen(
        command, env={**inherited, **environment}, stdin=_terminal()[1], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@cache
def _terminal() -> tuple[int, int]:
    """A terminal at which nobody types, both of its ends. Programs see the same stdin wherever the
    benchmark runs: without a terminal, the ucx_perftest of Debian 13 expects to be run by mpirun.
    """
    return os.openpty()


def words_of(process: subprocess.Popen[str]) -> str:
    """The last words of a program of `start_once` that has ended; empty if it still runs."""
    if process.poll() is None:
        return ""
    assert process.stdout is not None
    with process.stdout:
        return last_words(process.stdout.read(), process.returncode)


def last_words(output: str, exit_code: int) -> str:
    """The last line of a program that says something, and is no ruler."""
    said = [line for line in output.splitlines() if any(map(str.isalnum, line))]
    return said[-1].strip() if said else f"ended with exit code {exit_code}"


def wait_for(process: subprocess.Popen[str]) -> Ended:
    """Waits for the end of a program of `start_once`. Raises BenchError if it fails or hangs."""
    assert process.stdout is not None
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    cpu_seconds = 0.0  # not known of one that `poll` has found ended
    try:
        with process.stdout:
            output = process.stdout.read()
        if process.returncode is None:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu_seconds = usage.ru_utime + usage.ru_stime
    finally:
        watchdog.cancel()
    if process.returncode != 0:
        raise BenchError(last_words(output, process.returncode))
    return Ended(output, cpu_seconds)


def stop(*processes: subprocess.Popen[str]) -> None:
    """Ends programs that still run."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


# ---- CPU time -----------------------------------------------------------------------------------


def cpu_ns(pids: Sequence[Sequence[int]]) -> list[int]:
    """CPU time of each side so far: its processes, and the softirq thread of its core."""
    return [
        sum(run_ns(pid) for pid in (*side, *softirq_pids(core(host))))
        for host, side in zip(HOSTS, pids, strict=True)
    ]


def run_ns(pid: int) -> int:
    """CPU time of all threads of a process, including interrupts during it."""
    return sum(spent for _, spent in threads_ns(pid))


def threads_ns(pid: int) -> Iterator[tuple[str, int]]:
    """Name and CPU time of each thread of a process, including interrupts during it."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            name = (task / "comm").read_text().strip()
            yield name, int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that just ended


def core_ns() -> list[int]:
    """Time so far in which each side's core was not idle, in steps of 10 ms."""
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    found = []
    for line in Path("/proc/stat").read_text().splitlines():
        name, *words = line.split()
        if name in {f"cpu{core(host)}" for host in HOSTS}:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, words[:7])
            found.append((user + nice + system + irq + softirq) * tick_ns)
    return found if len(found) == len(HOSTS) else found * len(HOSTS)  # a machine of one core


@cache
def softirq_pids(number: int) -> tuple[int, ...]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == f"ksoftirqd/{number}":
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return tuple(found)
