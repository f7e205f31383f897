# SPDX-License-Identifier: Apache-2.0
"""`mrc doctor`: what mrc needs of this machine and of its Python packages, whether it is there, and
how to get what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from msgspec import Struct

import mrc
from mrc import products
from mrc.cli.output import Exit, Output
from mrc.cli.runner import run_async
from mrc.config import ContextConfig, Sockets
from mrc.engine import native, paths
from mrc.engine.paths import PortSelection
from mrc.errors import MrcError, StateError
from mrc.linux import netns, system
from mrc.linux.rtnetlink import Interface
from mrc.results import Result
from mrc.tasks import within


class State(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


class Finding(Struct, frozen=True):
    """One property of this machine."""

    name: str
    """What was examined."""
    state: State
    """ok; limited: mrc runs, but lacks something; missing: something does not run at all."""
    found: str
    """What was found."""
    consequence: str = ""
    """What mrc lacks; empty when ok."""
    remedy: str = ""
    """How to get it; empty when ok."""

    @classmethod
    def of(cls, name: str, good: bool, found: str, needs: tuple[State, str, str]) -> Finding:
        """`needs`: state, consequence and remedy unless it is good."""
        return cls(name, State.OK, found) if good else cls(name, needs[0], found, *needs[1:])


class Doctor(Result, frozen=True, kw_only=True):
    """What this machine can do, and what it lacks."""

    can_run: bool
    """mrc can move data between this host and others."""
    findings: tuple[Finding, ...]
    """What was examined."""


_UDP_SEGMENT, _UDP_GRO = 103, 104
_LOOPBACK_SECONDS = 10.0
_RCVBUF_BYTES, _SNDBUF_BYTES = 8 << 20, 4 << 20
"""socket buffers that a port requests, from csrc/mrc.h"""

POINT_TO_POINT = "point to point"

Run = Callable[[Coroutine[Any, Any, float]], float]


def examine_host(run: Run = asyncio.run) -> list[Finding]:
    """The findings, the most important first. `run` runs a coroutine."""
    count = len(os.sched_getaffinity(0))
    needs = (State.LIMITED, "sender, receiver and switches share one", "a machine with more")
    processors = Finding.of("processors", count > 1, f"{count}", needs)
    return [
        _point_to_point(run), _kernel(), _segments(), *_buffers(), processors, _crc(), _sealing(),
        arp(Interface.all(), _effective),
    ]  # fmt: skip


def can_run(findings: list[Finding]) -> bool:
    """Whether mrc can move data from this host to another."""
    return all(each.state is State.OK for each in findings if each.name == POINT_TO_POINT)


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
        within(_LOOPBACK_SECONDS),
        mrc.open(config) as near,
        mrc.open(config) as far,
        await far.listen("127.0.0.1", 0) as listener,
        await near.connect("127.0.0.1", listener.port) as qp,
        await listener.accept(),
        near.register(data) as source,
        far.register(target, writable=True) as region,
    ):
        began = time.monotonic()
        await qp.write(source, region.handle)
        seconds = time.monotonic() - began
    if target != data:
        raise StateError("a write over loopback delivered wrong data")
    return seconds


def _kernel() -> Finding:
    lacks = (
        "no SRv6 with uSIDs before 6.1"
        if system.release() < (6, 1)
        else "before 6.2 mrc testbed capture shows a burst as one packet"
    )
    needs = (State.LIMITED, lacks, "a newer kernel")
    return Finding.of("kernel", system.release() >= (6, 2), f"Linux {platform.release()}", needs)


def _segments() -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, 1000)
            sock.setsockopt(socket.SOL_UDP, _UDP_GRO, 1)
            found, good = "UDP_SEGMENT and UDP_GRO", True
        except OSError as exc:
            found, good = f"UDP_SEGMENT or UDP_GRO: {exc.strerror}", False
    needs = (State.MISSING, "no bursts in one system call", "Linux 5.0 or later")
    return Finding.of("segmentation", good, found, needs)


def _buffers() -> Iterator[Finding]:
    for name, wanted, what in (
        ("rmem_max", _RCVBUF_BYTES, "the socket drops bursts of many senders"),
        ("wmem_max", _SNDBUF_BYTES, "a fast port runs empty"),
    ):
        value = int(Path("/proc/sys/net/core", name).read_text())
        needs = (State.LIMITED, f"without root {what}",
                 f"sysctl -w net.core.{name}={wanted}")  # fmt: skip
        good = value >= wanted or not netns.lacks()
        yield Finding.of(name, good, f"{value} of the {wanted} bytes that a port requests", needs)


_NEEDS_CRC = (
    State.LIMITED,
    "the ICRC costs several times as much",
    "apt-get install libisal-dev, then rebuild mrc",
)


def _crc() -> Finding:
    """How the compiled engine computes CRCs; see csrc/core/crc.c."""
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    if {"vpclmulqdq", "avx512_vbmi2", "avx512bw"} <= flags:
        return Finding.of("CRC", True, "AVX-512, with carry-less multiplication", _NEEDS_CRC)
    library = "ISA-L" if "libisal" in Path("/proc/self/maps").read_text() else "zlib"
    fast = bool({"pclmulqdq", "pmull"} & flags)
    found = f"{library}, {'with' if fast else 'without'} carry-less multiplication"
    return Finding.of("CRC", library == "ISA-L", found, _NEEDS_CRC)


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
    return Finding.of("sealed packets", library == "IPsec-MB" or not x86, library, needs)


def arp(interfaces: list[Interface], setting: Callable[[str, str], int]) -> Finding:
    """Whether another interface of this host may answer ARP for an address. `setting`: the value of
    a setting of IPv4 that counts for an interface.
    """
    ports = PortSelection.of_interfaces(interfaces, (), 1).ports
    nics = [port.nic for port in ports if port.loose]
    if not nics:
        return Finding("ARP", State.OK, "no two interfaces are in one IPv4 network")
    found = f"{' and '.join(nics)} are in one IPv4 network"
    if all(setting(nic, "arp_ignore") for nic in nics):
        return Finding("ARP", State.OK, f"{found}, and answer only for their own addresses")
    sixes = {port.nic for port in ports if port.address.version == 6}
    lacks = "each answers ARP for all, so packets of a peer come in at any of them; mrc takes them"
    remedy = paths.ARP_REMEDY
    if any(setting(nic, "rp_filter") == 1 for nic in nics):
        lacks += ", but rp_filter=1 drops them"
        remedy += " net.ipv4.conf.all.rp_filter=2"
    else:
        lacks += " there"
    if sixes.issuperset(nics):
        lacks += ", and uses IPv6 on these links"
    else:
        lacks += ", and without IPv6 a link may be idle for 5 s, until peers ask again"
        remedy += ", or IPv6"
    return Finding("ARP", State.LIMITED, found, lacks, remedy)


def _effective(nic: str, name: str) -> int:
    """A setting of IPv4 that counts for an interface: the larger one of its own and that of all."""
    values = (Path("/proc/sys/net/ipv4/conf", each, name).read_text() for each in ("all", nic))
    return max(map(int, values))


# ---- Packages ------------------------------------------------------------------------------------


def examine() -> Iterator[Finding]:
    """A finding for each, in the order of the requirements."""
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


# ---- The command ---------------------------------------------------------------------------------


HELP = "check which features this machine supports, and what is missing"
EXAMPLES = """\
examples:
  mrc doctor                           exit code 0 if mrc can run here
  mrc doctor --json | jq '.findings[] | select(.state != "ok")'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    brought = filter(None, map(products.load, products.FINDINGS))
    findings = [
        *examine_host(run_async),
        *(row for each in brought for row in each.examine()),
    ]
    good = can_run(findings)
    out.text("\n".join(map(line, findings)))
    out.text(f"\n{summary(findings, can_run=good)}")
    out.result(Doctor(can_run=good, findings=tuple(findings)))
    return Exit.OK if good else Exit.FAILED


def line(finding: Finding) -> str:
    text = f"{finding.state:8} {finding.name:20} {finding.found}"
    if finding.state is not State.OK:
        text += f"; {finding.consequence}; remedy: {finding.remedy}"
    return text


def summary(findings: list[Finding], *, can_run: bool) -> str:
    counts = {state: sum(each.state is state for each in findings) for state in State}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{told}: mrc {'can' if can_run else 'CANNOT'} run here"
