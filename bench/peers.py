# SPDX-License-Identifier: Apache-2.0
"""Other projects' programs: UCX, libfabric, iperf3.

Each program starts for every measurement. A missing peer is skipped. `install` installs it.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from bed import HOSTS, Bed
from contenders import Raw
from end import (
    PATIENCE,
    BenchError,
    Ended,
    last_words,
    run_once,
    start_once,
    stop,
    wait_for,
    words_of,
)

from mrc.agent import socket as agent_socket
from mrc.linux import netns

PACKAGES = {
    "ucx_perftest": "ucx-utils",
    "fi_pingpong": "libfabric-bin",
    "socat": "socat",
    "iperf3": "iperf3",
    "sshd": "openssh-server",
}
_UCX_PORT, _FI_PORT, _IPERF_PORT = 13337, 14500, 5201
MIB = 1 << 20


def missing() -> dict[str, str]:
    """Missing programs -> remedy."""
    return {
        name: f"not installed: apt-get install {package}, or bench/compare --install-peers"
        for name, package in PACKAGES.items()
        if find(name) is None
    }


def find(name: str) -> str | None:
    """The path of a program, which may be one of the system's."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


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
        sent = run_once(bed, HOSTS[0], client, **environment)
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
    deadline = time.monotonic() + PATIENCE
    while True:
        with netns.inside(bed.namespace(HOSTS[1])):
            lines = [line.split() for table in tables for line in table.read_text().splitlines()]
        if any(x[3] == "0A" and x[1].endswith(f":{port:04X}") for x in lines):
            return
        if words := words_of(process):
            raise BenchError(words)
        if time.monotonic() > deadline:
            raise BenchError(f"the server does not listen on TCP port {port} after {PATIENCE} s")
        time.sleep(0.005)


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
        deadline = time.monotonic() + PATIENCE
        with netns.inside(bed.namespace(host)):
            while not agent_socket.is_open(agent_socket.name_of({})):
                if words := words_of(process):
                    raise BenchError(f"mrc agent in h{host}: {words}")
                if time.monotonic() > deadline:
                    raise BenchError(f"mrc agent does not start in h{host} in {PATIENCE} s")
                time.sleep(0.01)
        yield
    finally:
        stop(process)


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
        rows = [row for row in csv.reader(sent.output.splitlines()) if row[:1] == [str(count)]]
        mib_per_second = float(rows[-1][5])
    total = count * size
    return {**raw, "bytes": total, "ns": total / (mib_per_second * MIB) * 1e9}


def libfabric(bed: Bed, size: int, ms: int) -> Raw:
    """libfabric's reliable datagrams over UDP. They support only one interface and IPv4."""
    count = max(ms // 20, 5)  # at some 20 ms each
    common = ["fi_pingpong", "-p", "udp;ofi_rxd", "-e", "rdm", "-I", str(count), "-S", str(size)]
    server = [*common, "-B", str(_FI_PORT)]
    client = [*common, "-P", str(_FI_PORT), bed.ipv4_address(HOSTS[1])]
    sent, raw = serve_and_run(bed, server, client, _FI_PORT)
    with result_of(sent):
        half_us = float(sent.output.strip().splitlines()[-1].split()[6])
    total = {"bytes": size * count * 2, "ns": half_us * 2e3 * count}
    return {**raw, **total, "p50_ns": half_us * 1e3}
