# SPDX-License-Identifier: Apache-2.0
"""Programs that start for every measurement: those of other projects, which are UCX, iperf3,
perftest and MPIs, and those that copy a file, plain and encrypted.

A missing peer is skipped. `install` installs it. Each MPI has an environment of its own, which a
variable names, because they have files of the same names. Open MPI may be in this one.
"""

from __future__ import annotations

import csv
import filecmp
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bed import (
    HOSTS,
    PATIENCE,
    Bed,
    BenchError,
    Ended,
    Raw,
    last_words,
    start_once,
    stop,
    until,
    wait_for,
    words_of,
)
from figures import GOODPUT, P50, P99, Metrics, ratios, size_table, spread

from mrc.agent import socket as agent_socket
from mrc.agent.cli.run import hydra_options, mpi_options
from mrc.linux import netns
from mrc.linux.system import find

PACKAGES = {
    "ucx_perftest": "ucx-utils",
    "socat": "socat",
    "iperf3": "iperf3",
    "sshd": "openssh-server",
}
_UCX_PORT, _IPERF_PORT = 13337, 5201
MIB = 1 << 20


def missing() -> dict[str, str]:
    """Missing programs -> remedy."""
    return {
        name: f"not installed: apt-get install {package}, or bench/compare --install-peers"
        for name, package in PACKAGES.items()
        if find(name) is None
    }


def install() -> None:
    """Installs missing programs, as root on Debian."""
    packages = [PACKAGES[name] for name in missing()]
    if packages:
        command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"apt-get: {done.stderr.strip().splitlines()[-1]}")


def serve_and_run(
    bed: Bed,
    server: list[str],
    client: list[str],
    port: int,
    ready: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Ended, Raw]:
    """Runs a server in the receiver's host, then a client in the sender's host, until both end.

    Calls `ready` before the client. Returns the client's output, and the time from its start to the
    end of both.
    """
    process = start_once(bed, HOSTS[1], server, **environment)
    try:
        until_listening(bed, process, port)
        ready()
        start = time.monotonic_ns()
        sent = wait_for(start_once(bed, HOSTS[0], client, **environment))
        got = wait_for(process)
        ns = time.monotonic_ns() - start
    finally:
        stop(process)
    return sent, {"ns": ns, "cpu_seconds": [sent.cpu_seconds, got.cpu_seconds]}


def until_listening(bed: Bed, process: subprocess.Popen[str], port: int) -> None:
    """Waits until a process listens on a TCP port of the receiver's host. Raises BenchError with
    its last words if it ends instead.
    """
    tables = [Path("/proc/thread-self/net", name) for name in ("tcp6", "tcp")]

    def listens() -> bool:
        with netns.inside(bed.namespace(HOSTS[1])):
            lines = [line.split() for table in tables for line in table.read_text().splitlines()]
        return any(x[3] == "0A" and x[1].endswith(f":{port:04X}") for x in lines)

    late = f"the server does not listen on TCP port {port} after {PATIENCE} s"
    until(listens, lambda: words_of(process), late)


@contextmanager
def result_of(sent: Ended) -> Iterator[None]:
    """Raises BenchError if a program's output has no result where it should be."""
    try:
        yield
    except (LookupError, ValueError):
        raise BenchError(f"printed no result: {last_words(sent.output, 0)}") from None


@contextmanager
def agent(bed: Bed, host: int) -> Iterator[None]:
    """`mrc agent` in a host, for all programs of the run."""
    process = start_once(bed, host, [sys.executable, "-m", "mrc", "agent", "--quiet"])
    try:
        with netns.inside(bed.namespace(host)):
            name = agent_socket.name_of({})
            until(lambda: agent_socket.is_open(name),
                  lambda: (said := words_of(process)) and f"mrc agent in h{host}: {said}",
                  f"mrc agent does not start in h{host} in {PATIENCE} s")  # fmt: skip
        yield
    finally:
        stop(process)


def mrc_perf(bed: Bed, ms: int) -> Raw:
    """`mrc perf`, as users run it; half a second at its start does not count."""
    server = [*_MRC, "perf", "--server", "--one-off", "--quiet", "--insecure"]
    seconds = ["-t", str(ms / 1000), "-O", "0.5", "-J", "--quiet", "--insecure"]
    client = [*_MRC, "perf", bed.name(HOSTS[1]), *seconds]
    sent, raw = serve_and_run(bed, server, client, _MRC_PORT)
    with result_of(sent):
        told = json.loads(sent.output)["results"][0]["client"]
        return {**raw, "bytes": told["written_bytes"], "ns": told["seconds"] * 1e9}


def iperf3(bed: Bed, ms: int, *options: str) -> Raw:
    """One TCP flow, measured with iperf3."""
    here, there = bed.flows(1)
    total = max(ms * 2 * MIB, 16 * MIB)  # at 2 GB/s
    server = ["iperf3", "-s", "-1", "-p", str(_IPERF_PORT)]
    job = ["-n", str(total), "-l", "1M", "-C", "cubic", "-J", *options]
    client = ["iperf3", "-c", there, "-B", here, "-p", str(_IPERF_PORT), *job]
    sent, raw = serve_and_run(bed, server, client, _IPERF_PORT)
    with result_of(sent):
        told = json.loads(sent.output)["end"]["sum_received"]
        return {**raw, "bytes": told["bytes"], "ns": told["seconds"] * 1e9}


def ucx_environment(bed: Bed) -> dict[str, str]:
    """Environment that makes UCX use TCP over every interface."""
    rails = str(min(bed.planes, 4))
    return {
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": ",".join(f"p{plane}" for plane in range(1, bed.planes + 1)),
        "UCX_TCP_AF_PRIO": "inet6",
        "UCX_MAX_RNDV_RAILS": rails,
        "UCX_MAX_EAGER_RAILS": rails,
    }


def ucx(bed: Bed, test: str, size: int, ms: int) -> Raw:
    """UCX over TCP with every interface. UCX spreads tags over all, but uses only one for puts."""
    environment = ucx_environment(bed)
    count = max(ms * 500_000 // size, 20)  # at half a GB/s
    common = ["ucx_perftest", "-p", str(_UCX_PORT), "-6"]
    job = ["-t", test, "-s", str(size), "-n", str(count), "-w", "5", "-f", "-v"]
    target = bed.plane_address(HOSTS[1], 1)
    sent, raw = serve_and_run(
        bed, common, [*common, target, *job], _UCX_PORT, environment=environment
    )
    with result_of(sent):
        lines = map(str.strip, sent.output.splitlines())  # small numbers have blanks before them
        rows = [row for row in csv.reader(lines) if row[:1] == [str(count)]]
        mib_per_second = float(rows[-1][5])
    total = count * size
    return {**raw, "bytes": total, "ns": total / (mib_per_second * MIB) * 1e9}


# ---- copies of a file ----------------------------------------------------------------------------

_SOCAT_PORT, _SSH_PORT, _MRC_PORT = 5003, 5022, 4791
_MRC = [sys.executable, "-m", "mrc"]
_CIPHER = "aes256-gcm@openssh.com"  # the one of sealed packets; ssh's default is slower here


class CopyError(Exception):
    """A copied file differs from its source."""


def check_copy(source: Path, target: Path) -> None:
    """Compares a copy with its source, and removes it. Raises CopyError."""
    if not filecmp.cmp(source, target, shallow=False):
        raise CopyError(f"{target.name} differs from its source")
    target.unlink()


def warm_pages(target: Path, size: int) -> None:
    """Gives the kernel as many free pages as the copy needs, before the copy starts.

    A hypervisor takes free pages back after some seconds, and returns them one page fault at a
    time. Without this, only the first row would pay for that.
    """
    block = bytes(1 << 20)
    with target.open("wb", buffering=0) as file:
        for _ in range(-(-size // len(block))):
            file.write(block)
    target.unlink()


def secret(folder: Path) -> Path:
    """The file of a secret in this folder."""
    made = folder / "mrc.secret"
    if not made.exists():
        subprocess.run([*_MRC, "key", "--secret", made], check=True, stdout=subprocess.DEVNULL)
    return made


def by_mrc(bed: Bed, source: Path, target: Path, *, sealed: bool = False) -> Raw:
    """`mrc send` to `mrc recv`. Its own time counts, until the receiver has verified the digest.
    `sealed`: packets are encrypted, between hosts that share a secret.
    """
    trust = ["--secret", str(secret(source.parent))] if sealed else ["--insecure"]
    server = [*_MRC, "recv", "--output", str(target.parent), "--once", *trust]
    client = [*_MRC, "send", "--json", "--quiet", str(source), bed.name(1), *trust]
    output, raw = _copy(bed, server, client, _MRC_PORT, source, target)
    return {**raw, "ns": 8e9 * raw["bytes"] / json.loads(output)["goodput_bits_per_second"]}


def by_tls_socat(bed: Bed, source: Path, target: Path) -> Raw:
    """Over TLS 1.3. Both ends have the same certificate and require it of each other."""
    pem = source.with_name("socat.pem")
    if not pem.exists():
        ask = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=bench"]
        made = subprocess.run(
            [*ask, "-keyout", "-"], check=True, capture_output=True, text=True
        ).stdout
        pem.touch(mode=0o600)
        pem.write_text(made)
    ours = f"cert={pem},cafile={pem}"
    listen = f"OPENSSL-LISTEN:{_SOCAT_PORT},pf=ip6,{ours}"
    return by_socat(bed, source, target, listen, "OPENSSL", f",{ours},commonname=bench")


def by_socat(
    bed: Bed, source: Path, target: Path, listen: str = f"TCP6-LISTEN:{_SOCAT_PORT}",
    connect: str = "TCP6", options: str = "",
) -> Raw:  # fmt: skip
    copy = ["socat", "-u", "-b", "1048576"]
    here, there = bed.flows(1)
    server = [*copy, f"{listen},reuseaddr", f"OPEN:{target},creat,trunc"]
    client = [*copy, f"OPEN:{source}", f"{connect}:[{there}]:{_SOCAT_PORT},bind=[{here}]{options}"]
    return _copy(bed, server, client, _SOCAT_PORT, source, target)[1]


def by_scp(bed: Bed, source: Path, target: Path) -> Raw:
    """scp to an own sshd, which serves one connection."""
    key = source.with_name("ssh.key")
    if not key.exists():
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(make, check=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires it; its own unit makes it
    here, there = bed.flows(1)
    settings = {"HostKey": key, "AuthorizedKeysFile": f"{key}.pub", "PermitRootLogin": "yes",
                "StrictModes": "no", "UsePAM": "no", "Subsystem": "sftp internal-sftp"}  # fmt: skip
    sshd = str(find("sshd"))
    server = [sshd, "-d", "-E", "/dev/null", "-f", "/dev/null", "-p", str(_SSH_PORT)]
    server += _options({name: str(value) for name, value in settings.items()})
    server = ["sh", "-c", '"$@" || :', "sh", *server]  # with -d, sshd always ends with an error
    known = {"BindAddress": here, "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}
    client = ["scp", "-q", "-F", "/dev/null", "-i", str(key), "-P", str(_SSH_PORT), "-c", _CIPHER]
    client += [*_options(known), str(source), f"root@[{there}]:{target}"]
    return _copy(bed, server, client, _SSH_PORT, source, target)[1]


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _copy(
    bed: Bed, server: list[str], client: list[str], port: int, source: Path, target: Path
) -> tuple[str, Raw]:
    """The client's output, and the measurement: time from the client's start to both ends."""
    size = os.path.getsize(source)
    sent, raw = serve_and_run(bed, server, client, port, lambda: warm_pages(target, size))
    return sent.output, {**raw, "bytes": size}


# ---- perftest ------------------------------------------------------------------------------------

PERFTEST, PERF = "perftest", "mrc perf"
PERFTEST_COLUMNS = {
    GOODPUT: (1e9, "Gbit/s", "ib_write_bw"),
    P50: (1e3, "p50, us", "ib_write_lat"),
    P99: (1e3, "p99, us", "ib_write_lat"),
}


def numbers(output: str) -> list[float]:
    """The row of numbers that a program of perftest prints; raises ValueError without one."""
    rows = [line.split() for line in output.splitlines() if re.fullmatch(r"[\s\d.]+", line)]
    rows = [row for row in rows if row]
    if len(rows) != 1:
        raise ValueError(f"prints {len(rows)} rows of numbers instead of one")
    return [float(word) for word in rows[0]]


def of_write_bw(output: str) -> Metrics:
    """Of `ib_write_bw --report_gbits`: size, count, peak, average, messages."""
    _, _, _, average, _ = numbers(output)
    return {GOODPUT: average * 1e9}


def of_write_lat(output: str) -> Metrics:
    """Of `ib_write_lat`: size, count, least, most, typical, average, deviation, 99%, 99.9%.

    Its typical time is the median.
    """
    _, _, _, _, typical, _, _, late, _ = numbers(output)
    return {P50: typical * 1e3, P99: late * 1e3}


def of_perf(document: Mapping[str, Any]) -> Metrics:
    """Of `mrc perf --json`, with `--lat` or without."""
    (test,) = document["results"]
    if test["client"]["latency_of"] == "completion":
        return {GOODPUT: test["goodput_bits_per_second"]}
    latency = test["client"]["latency"]
    return {P50: latency[P50], P99: latency[P99]}


def perftest_row(size: int, theirs: Sequence[Metrics], ours: Sequence[Metrics]) -> dict[str, Any]:
    """Medians and spread of both contenders at one size, and the median of the rounds' ratios."""
    return {"bytes": size, "metrics": {
        metric: {
            "ratio": spread(ratios(theirs, ours, metric)),
            PERFTEST: spread([each[metric] for each in theirs]),
            PERF: spread([each[metric] for each in ours]),
        }
        for metric in ours[0]
    }}  # fmt: skip


def perftest_table(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """One metric as text: a line for each size, medians with the smallest and largest value."""
    divisor, heading, program = PERFTEST_COLUMNS[metric]
    lines = {
        row["bytes"]: [row["metrics"][metric][name] for name in (PERFTEST, PERF, "ratio")]
        for row in rows
        if metric in row["metrics"]
    }
    return size_table((heading, program, PERF, "ratio"), lines, (divisor, divisor, 1))


# ---- MPIs ----------------------------------------------------------------------------------------

MRC, TCP = "mrc", "TCP"
WINDOWS = "mrc, with windows"
Words = Sequence[str | Path]


@dataclass(frozen=True)
class Mpi:
    name: str
    variable: str
    packages: str
    launcher: str
    home_here: str = "/nonexistent"  # without the variable

    @property
    def home(self) -> Path:
        return Path(os.environ.get(self.variable, self.home_here))

    @property
    def python(self) -> Path:
        return self.home / "bin/python"

    @property
    def path(self) -> Path:
        return self.home / "bin" / self.launcher

    @property
    def is_there(self) -> bool:
        return self.path.exists() and any(self.home.glob("lib/python*/site-packages/mpi4py"))

    @property
    def needs(self) -> str:
        """What to do where it is missing."""
        return (
            f"pip install {self.packages} mpi4py numpy (in the environment that {self.variable} "
            "names, or for Open MPI here)"
        )

    def command(
        self, rsh: Path, over: str, where: str, program: Words, planes: Iterable[int] = ()
    ) -> list[str]:
        """Runs as many ranks of each host as `where` says, as in `h0:2,h1:2`. `rsh` stands in place
        of ssh; `planes` are for TCP.
        """
        interfaces = [f"p{plane}" for plane in planes]
        return [*self._launch(rsh, over, where, interfaces), *map(str, program)]

    def _launch(self, rsh: Path, over: str, where: str, interfaces: list[str]) -> list[str]:
        raise NotImplementedError


class OpenMpi(Mpi):
    def _launch(self, rsh: Path, over: str, where: str, interfaces: list[str]) -> list[str]:
        """Not bound to cores: else the first rank of each host has the first core. Without WINDOWS,
        windows are over TCP even with mrc, and would hang with a plane that dies.
        """
        tcp = {
            "pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": ",".join(interfaces),
            "btl_tcp_disable_family": "4",
        }  # fmt: skip
        chosen = [word for name, value in tcp.items() for word in ("--mca", name, value)]
        if over == WINDOWS:
            chosen = mpi_options(windows=True)
        elif over == MRC:
            chosen = [*mpi_options(), "--mca", "btl_tcp_if_include", "mgmt"]
        return [
            *(str(self.path), "--allow-run-as-root", "--prtemca", "plm_ssh_agent", str(rsh)),
            *("--host", where, "--bind-to", "none"),
            *chosen,
        ]


class Hydra(Mpi):
    """MPICH or Intel MPI."""

    def _launch(self, rsh: Path, over: str, where: str, interfaces: list[str]) -> list[str]:
        """libfabric's TCP has one interface."""
        hosts = [each.partition(":") for each in where.split(",")]
        n = sum(int(count) for _, _, count in hosts)
        own = {
            "I_MPI_ROOT": self.home,
            "LD_LIBRARY_PATH": self.home / "lib",
            "I_MPI_PIN": 0,
        }
        tcp = {
            "FI_PROVIDER": "tcp", "I_MPI_OFI_PROVIDER": "tcp", "MPIR_CVAR_CH4_NETMOD": "ofi",
            "FI_TCP_IFACE": ",".join(interfaces[:1]),
        }  # fmt: skip
        chosen = [word for name, value in tcp.items() for word in ("-genv", name, value)]
        return [
            *("env", *(f"{name}={value}" for name, value in own.items()), str(self.path)),
            *("-launcher", "ssh", "-launcher-exec", str(rsh)),
            *(chosen if over == TCP else hydra_options()),
            *("-n", str(n), "-ppn", hosts[0][2], "-hosts", ",".join(name for name, _, _ in hosts)),
        ]


OPEN_MPI = OpenMpi("Open MPI", "MRC_OPEN_MPI", "openmpi", "mpirun", sys.prefix)
MPICH = Hydra("MPICH", "MRC_MPICH", "mpich", "mpiexec.hydra")
INTEL_MPI = Hydra("Intel MPI", "MRC_INTEL_MPI", "impi-rt", "mpiexec.hydra")
ALL = {each.name: each for each in (OPEN_MPI, MPICH, INTEL_MPI)}


def write_rsh(path: Path, bed: str) -> None:
    """A command in place of ssh, for the hosts of a test bed. Hydra wants one file."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mrc testbed --name {bed} rsh "$@"\n')
    path.chmod(0o755)
