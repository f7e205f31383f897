# SPDX-License-Identifier: Apache-2.0
"""Checks which features of mrc this machine supports."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from mrc.agent import door, libraries
from mrc.agent.door import TakenError
from mrc.aio.context import Context
from mrc.binding import native
from mrc.config import ContextConfig, Sockets
from mrc.doctor import kernel
from mrc.enums import Access
from mrc.errors import MrcError, StateError
from mrc.linux import installed, netns
from mrc.linux.release import release
from mrc.results.doctor import Finding, State
from mrc.testbed import rootless
from mrc.testbed.capture import splits_bursts

_UDP_SEGMENT, _UDP_GRO = 103, 104
_LOOPBACK_SECONDS = 10.0
_RCVBUF_BYTES, _SNDBUF_BYTES = 8 << 20, 4 << 20
"""socket buffers that a port requests, from csrc/mrc.h"""


POINT_TO_POINT = "point to point"
PROGRAMS = ("ip", "nft", "unshare")
"""of test beds"""

# Features tested in namespaces: state without the feature, consequence, remedy.
_NEEDS: dict[str, tuple[State, str, str]] = {
    "veth": (State.MISSING, "no test beds", "a kernel with CONFIG_VETH"),
    "seg6": (
        State.MISSING, "no test beds, no SRv6 paths", "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL"
    ),
    "seg6local": (
        State.MISSING, "no test beds, no end of SRv6 paths", "CONFIG_IPV6_SEG6_LWTUNNEL"
    ),
    "uSIDs": (
        State.LIMITED, "no kernel fabrics: use mrc testbed up --fabric emulated",
        "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL",
    ),
    "packet ring": (
        State.LIMITED, "no emulated fabric, no mrc testbed capture", "CONFIG_PACKET"
    ),
    "VXLAN": (
        State.LIMITED, "no test beds over several machines (mrc testbed up --on)", "CONFIG_VXLAN"
    ),
    "tbf": (State.LIMITED, "test beds only with --rate none", "CONFIG_NET_SCH_TBF"),
    "netem": (
        State.LIMITED, "kernel fabrics cannot delay, corrupt, duplicate or reorder packets",
        "--fabric emulated, or CONFIG_NET_SCH_NETEM",
    ),
    "ESP": (
        State.LIMITED, "IPsec cannot encrypt packets of mrc",
        "iproute2; a kernel with CONFIG_INET_ESP, CONFIG_INET6_ESP, CONFIG_CRYPTO_GCM",
    ),
    "nftables": (
        State.MISSING, "no test beds", "apt-get install nftables; a kernel with CONFIG_NF_TABLES"
    ),
    "reassembly": (
        State.LIMITED, "test beds lose datagrams larger than the MTU", "CONFIG_NFT_TPROXY"
    ),
}  # fmt: skip


Run = Callable[[Coroutine[Any, Any, float]], float]


def examine(run: Run = asyncio.run) -> list[Finding]:
    """All findings, the most important first. Takes about a second and leaves nothing behind.

    `run` runs a coroutine.
    """
    return [
        _point_to_point(run), _kernel(), _segments(), *_buffers(), _processors(), _crc(),
        _sealing(), _verbs(), _rdma_cm(), _mpi(), *_packages(), _real_time(), _mptcp(),
        *_namespaces(), *_programs(),
    ]  # fmt: skip


def can_run(findings: list[Finding]) -> bool:
    """Whether mrc can move data from this host to another."""
    return all(each.state is State.OK for each in findings if each.name == POINT_TO_POINT)


def _finding(name: str, good: bool, found: str, needs: tuple[State, str, str]) -> Finding:
    return Finding(name, State.OK, found) if good else Finding(name, needs[0], found, *needs[1:])


def _point_to_point(run: Run) -> Finding:
    try:
        seconds = run(_write_over_loopback())
    except (MrcError, OSError) as exc:
        needs = "mrc cannot move data", "Linux 5.7 or later with IPv4 on lo"
        return Finding(POINT_TO_POINT, State.MISSING, str(exc) or "no answer", *needs)
    return Finding(POINT_TO_POINT, State.OK, f"a write over loopback, {seconds * 1e6:.0f} us")


async def _write_over_loopback() -> float:
    small = Sockets(rcvbuf_bytes=1 << 16, sndbuf_bytes=1 << 16)
    config = ContextConfig(interfaces=("127.0.0.1",), sockets=small)
    data, target = bytearray(b"mrc"), bytearray(3)
    async with (
        asyncio.timeout(_LOOPBACK_SECONDS),
        Context(config) as near,
        Context(config) as far,
        await far.listen("127.0.0.1", 0) as listener,
        await near.connect("127.0.0.1", listener.port) as qp,
        await listener.accept(),
        near.register(data, access=Access.LOCAL_READ) as source,
        far.register(target, access=Access.REMOTE_WRITE) as region,
    ):
        began = time.monotonic()
        await qp.write(source, region.remote)
        seconds = time.monotonic() - began
    if target != data:
        raise StateError("a write over loopback delivered wrong data")
    return seconds


def _kernel() -> Finding:
    lacks = (
        "no SRv6 with uSIDs before 6.1"
        if release() < (6, 1)
        else "before 6.2 mrc testbed capture shows a burst as one packet"
    )
    needs = (State.LIMITED, lacks, "a newer kernel")
    return _finding("kernel", splits_bursts(), f"Linux {platform.release()}", needs)


def _segments() -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, 1000)
            sock.setsockopt(socket.SOL_UDP, _UDP_GRO, 1)
            found, good = "UDP_SEGMENT and UDP_GRO", True
        except OSError as exc:
            found, good = f"UDP_SEGMENT or UDP_GRO: {exc.strerror}", False
    needs = (State.MISSING, "no bursts in one system call", "Linux 5.0 or later")
    return _finding("segmentation", good, found, needs)


def _buffers() -> Iterator[Finding]:
    for name, wanted, what in (
        ("rmem_max", _RCVBUF_BYTES, "the socket drops bursts of many senders"),
        ("wmem_max", _SNDBUF_BYTES, "a fast port runs empty"),
    ):
        value = int(Path("/proc/sys/net/core", name).read_text())
        needs = (State.LIMITED, f"without root {what}",
                 f"sysctl -w net.core.{name}={wanted}")  # fmt: skip
        good = value >= wanted or not netns.lacks()
        yield _finding(name, good, f"{value} of the {wanted} bytes that a port requests", needs)


def _processors() -> Finding:
    count = len(os.sched_getaffinity(0))
    needs = (State.LIMITED, "sender, receiver and switches share one", "a machine with more")
    return _finding("processors", count > 1, f"{count}", needs)


_NEEDS_CRC = (
    State.LIMITED,
    "the ICRC costs several times as much",
    "apt-get install libisal-dev, then rebuild mrc",
)


def _crc() -> Finding:
    """How the compiled engine computes CRCs; see csrc/core/wire/crc32.c."""
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    if {"vpclmulqdq", "avx512_vbmi2", "avx512bw"} <= flags:
        return _finding("CRC", True, "AVX-512, with carry-less multiplication", _NEEDS_CRC)
    library = "ISA-L" if "libisal" in Path("/proc/self/maps").read_text() else "zlib"
    fast = bool({"pclmulqdq", "pmull"} & flags)
    found = f"{library}, {'with' if fast else 'without'} carry-less multiplication"
    return _finding("CRC", library == "ISA-L", found, _NEEDS_CRC)


def _sealing() -> Finding:
    """The library that seals packets; see csrc/io/aead.c."""
    library, x86 = native.aead_name(), platform.machine() == "x86_64"
    forced = f"; unset MRC_AEAD={os.environ['MRC_AEAD']}" if os.environ.get("MRC_AEAD") else ""
    if library is None:
        return Finding(
            "sealed packets", State.LIMITED, "neither IPsec-MB nor libcrypto",
            "only plain packets: --insecure, --seal none", f"apt-get install openssl{forced}",
        )  # fmt: skip
    needs = (
        State.LIMITED,
        "sealing a packet costs about twice as much as with IPsec-MB 1 or 2",
        f"apt-get install libipsec-mb-dev{forced}",
    )
    return _finding("sealed packets", library == "IPsec-MB" or not x86, library, needs)


def _verbs() -> Finding:
    """The library for programs in C, and the device that they see."""
    lacks = "no mrc run: programs for RDMA verbs cannot use mrc"
    try:
        runs = door.is_open(door.name_of(os.environ))
    except TakenError as error:
        return Finding("libmrc", State.LIMITED, error.found, lacks, error.remedy)
    found = f"device mrc0; {'an agent runs' if runs else 'no agent runs'}"
    return _library("libmrc", found, lacks, libraries.LIBMRC, libraries.LOADED_NAME)


def _rdma_cm() -> Finding:
    """The library for programs that use rdma_cm."""
    lacks = "mrc run --rc has no rdma_cm: programs such as rping cannot connect"
    return _library("libmrc-cm", "rdma_cm for mrc run --rc", lacks, libraries.LIBMRC_CM)


def _mpi() -> Finding:
    """The provider for libfabric, which MPI programs use."""
    lacks = "no mrc run --mpi: MPI programs cannot use mrc"
    return _library("libmrc-fi", "provider mrc", lacks, libraries.PROVIDER)


def _library(name: str, found: str, lacks: str, *files: str) -> Finding:
    """A library for C programs: the first file, which may have another name too."""
    if why := libraries.why_missing(files[0]):
        return Finding(name, State.LIMITED, why[0], lacks, why[1])
    if error := libraries.load(*files):
        return Finding(name, State.LIMITED, f"does not load: {error}", lacks, "install mrc again")
    return Finding(name, State.OK, found)


def _packages() -> Iterator[Finding]:
    try:
        wanted = requires("mrc-transport") or []
    except PackageNotFoundError:
        wanted = []
    for each in wanted:
        if "extra ==" in each or not (match := re.match(r"[\w-]+", each)):
            continue
        try:
            yield Finding(f"package {match[0]}", State.OK, version(match[0]))
        except PackageNotFoundError:
            needs = ("parts of mrc do not start", f"pip install '{each}'")
            yield Finding(f"package {match[0]}", State.MISSING, "not installed", *needs)


def _real_time() -> Finding:
    """Tests real-time priority in a thread, so that we keep our own."""

    def is_allowed() -> bool:
        lowest = os.sched_get_priority_min(os.SCHED_FIFO)
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(lowest))  # 0: this thread
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        good = pool.submit(is_allowed).result()
    needs = (State.LIMITED, "on a busy machine an emulated fabric runs milliseconds late",
             "root, or ulimit -r 1")  # fmt: skip
    return _finding("real-time priority", good, "allowed" if good else "not allowed", needs)


def _mptcp() -> Finding:
    path = Path("/proc/sys/net/mptcp/enabled")
    enabled = path.exists() and path.read_text().strip() == "1"
    needs = (State.LIMITED, "bench/compare omits MPTCP", "CONFIG_MPTCP, net.mptcp.enabled=1")
    return _finding("MPTCP", enabled, "enabled" if enabled else "not enabled", needs)


def _namespaces() -> Iterator[Finding]:
    root = not netns.lacks()
    try:
        allowed = rootless.is_allowed()
        found = "allowed" if allowed else "not allowed"
        needs = (State.LIMITED if root else State.MISSING, "test beds require root",
                 rootless.REMEDY)  # fmt: skip
        yield _finding("user namespaces", allowed, found, needs)
        if not (root or allowed):
            return
        tried = kernel.examine()
    except StateError as exc:
        yield Finding("network namespaces", State.MISSING, str(exc), "no test beds",
                      "CONFIG_NET_NS; unshare of util-linux")  # fmt: skip
        return
    yield Finding("network namespaces", State.OK, "available")
    for name, error in tried.items():
        yield _finding(name, error is None, error or "available", _NEEDS[name])


def _programs() -> Iterator[Finding]:
    for name in PROGRAMS:
        where = installed.find(name)
        needs = (State.MISSING, "no test beds", f"apt-get install {installed.PACKAGES[name]}")
        yield _finding(f"program {name}", where is not None, where or "not installed", needs)
