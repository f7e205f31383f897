# SPDX-License-Identifier: Apache-2.0
"""Programs of others: UCX, libfabric, socat; and whole commands of ours, to send files.

Each is started anew for every measurement. A peer that is missing is skipped; `install` gets it.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bed import HOSTS, Bed
from contenders import Raw
from end import BenchError, Ended, run_once, start_once, wait_for

PACKAGES = {
    "ucx_perftest": "ucx-utils",
    "fi_pingpong": "libfabric-bin",
    "socat": "socat",
}
_UCX_PORT, _FI_PORT, _SOCAT_PORT = 13337, 14500, 5003
_MRC = [sys.executable, "-m", "mrc"]


def missing() -> dict[str, str]:
    """Programs that are not here, and what to do about it."""
    return {
        name: f"apt-get install {package}, or bench/compare --install-peers"
        for name, package in PACKAGES.items()
        if shutil.which(name) is None
    }


def install() -> None:
    """Installs what is missing, as root on Debian."""
    packages = [PACKAGES[name] for name in missing()]
    if packages:
        command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"apt-get: {done.stderr.strip().splitlines()[-1]}")


def with_server(
    bed: Bed, server: list[str], client: list[str], port: int, **environment: str
) -> tuple[Ended, Ended]:
    """Runs a server in the receiver's host and a client in the sender's, to their ends."""
    process = start_once(bed, HOSTS[1], server, **environment)
    try:
        until_listening(bed, process, port)
        sent = run_once(bed, HOSTS[0], client, **environment)
        return sent, wait_for(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def until_listening(bed: Bed, process: subprocess.Popen[str], port: int) -> None:
    """Waits until somebody listens on a TCP port of the receiver's host."""
    command = [
        "ip",
        "netns",
        "exec",
        bed.namespace(HOSTS[1]),
        "cat",
        "/proc/net/tcp6",
        "/proc/net/tcp",
    ]
    wanted = f":{port:04X} "
    deadline = time.monotonic() + 10
    while True:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        lines = [line.split() for line in shown.splitlines()]
        if any(len(x) > 3 and x[3] == "0A" and f"{x[1]} ".endswith(wanted) for x in lines):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"nothing listens on TCP port {port}")
        time.sleep(0.005)


def _raw(sent: Ended, got: Ended, size: int, ns: float) -> Raw:
    return {"bytes": size, "ns": ns, "cpu_seconds": [sent.cpu_seconds, got.cpu_seconds]}


def ucx_put(bed: Bed, size: int, ms: int) -> Raw:
    """UCX 1.x: puts over TCP, a connection on every interface."""
    environment = {
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": ",".join(f"p{plane}" for plane in range(1, bed.planes + 1)),
        "UCX_AF_PRIO": "inet6",
        "UCX_MAX_RNDV_RAILS": str(min(bed.planes, 4)),
        "UCX_MAX_EAGER_RAILS": str(min(bed.planes, 4)),
        "UCX_WARN_UNUSED_ENV_VARS": "n",
    }
    count = max(ms * 1_000_000 // size, 20)  # about a GB/s
    common = ["ucx_perftest", "-p", str(_UCX_PORT), "-6"]
    job = ["-t", "ucp_put_bw", "-s", str(size), "-n", str(count), "-w", "5", "-f", "-v"]
    target = bed.plane_address(HOSTS[1], 1)
    sent, got = with_server(bed, common, [*common, target, *job], _UCX_PORT, **environment)
    rows = [row for row in csv.reader(sent.output.splitlines()) if row and row[0].isdigit()]
    if not rows:
        raise BenchError(f"ucx_perftest: {sent.output.strip().splitlines()[-1]}")
    mib_per_second = float(rows[-1][5])
    return _raw(sent, got, count * size, count * size / (mib_per_second * 2**20) * 1e9)


def libfabric(bed: Bed, size: int, ms: int) -> Raw:
    """libfabric's reliable datagrams over UDP, one interface: it knows no other way."""
    count = max(ms * 100_000 // size, 10)
    common = ["fi_pingpong", "-p", "udp;ofi_rxd", "-e", "rdm", "-I", str(count), "-S", str(size)]
    server = [*common, "-B", str(_FI_PORT)]
    target = bed.plane_address(HOSTS[1], 1)
    sent, got = with_server(bed, server, [*common, "-P", str(_FI_PORT), target], _FI_PORT)
    last = sent.output.strip().splitlines()[-1].split()
    half_us = float(last[6])
    return {**_raw(sent, got, size * count * 2, half_us * 2e3 * count), "p50_ns": half_us * 1e3}


# ---- Files --------------------------------------------------------------------------------------


def mrc_file(bed: Bed, source: Path, folder: Path) -> Raw:
    """`mrc send` to `mrc recv`: until the receiver has verified the digest."""
    command = [*_MRC, "recv", "--output", str(folder), "--once", "--overwrite"]
    receiver = start_once(bed, HOSTS[1], command)
    try:
        until_listening(bed, receiver, 4791)
        sent = run_once(bed, HOSTS[0], [*_MRC, "send", "--json", "--quiet", str(source), "h1"])
        got = wait_for(receiver)
    finally:
        if receiver.poll() is None:
            receiver.kill()
            receiver.wait()
    told = json.loads(sent.output)
    size = source.stat().st_size
    return {
        **_raw(sent, got, size, 8e9 * size / told["goodput_bits_per_second"]),
        "planes_bytes": [plane["bytes"] for plane in told["planes"]],
    }


def socat_file(bed: Bed, source: Path, target: Path) -> Raw:
    """What an administrator would type."""
    listen = f"TCP6-LISTEN:{_SOCAT_PORT},reuseaddr"
    server = ["socat", "-u", "-b", "1048576", listen, f"OPEN:{target},creat,trunc"]
    here, there = bed.flows(1)
    to = f"TCP6:[{there}]:{_SOCAT_PORT},bind=[{here}]"
    client = ["socat", "-u", "-b", "1048576", f"OPEN:{source}", to]
    process = start_once(bed, HOSTS[1], server)
    try:
        until_listening(bed, process, _SOCAT_PORT)
        start = time.monotonic()
        sent = run_once(bed, HOSTS[0], client)
        got = wait_for(process)
        seconds = time.monotonic() - start
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return _raw(sent, got, source.stat().st_size, seconds * 1e9)
