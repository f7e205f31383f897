# SPDX-License-Identifier: Apache-2.0
"""The emulated fabric: its uSIDs compared with the kernel's, queues, faults and end.

h0 -- t0:1.0 --+-- t1:1.0 --+-- t0:1.1 -- h1
h2 -- t0:1.2 --+-- t1:1.1 --+
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from netns.processes import Hosts
from slowness import PATIENCE

from mrc.errors import ArgumentError, StateError
from mrc.linux import netns
from mrc.testbed import build, schedule, state, topology
from mrc.testbed import emulator as control
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import SOCKET
from mrc.testbed.shape import Fabric, namespace_of
from mrc.testbed.topology import Topology

from .conftest import bed_of, datagrams, fresh_name, has_ended, udp_socket

pytestmark = pytest.mark.usefixtures("healed")

PORT = 4791
ADDRESSES = topology.Addresses()
WRITE = 0xC7  # the opcode of WRITE Middle, which a switch may trim
ETH_P_IPV6 = 0x86DD
TRIMMED = 0x07
MS = 1_000_000
ALL = [*range(60)]
ONCE_WAITED_SECONDS = 5
RATE_BPS = 20_000_000
FILL = 30
"""packets of 4222 bytes on the wire that fit into a buffer"""


bed = bed_of(Fabric.EMULATED, hosts=3, planes=1, t1=2, rate=f"{RATE_BPS}", buffer_bytes=128 << 10)


def receiver(bed: Testbed) -> socket.socket:
    rx = udp_socket(bed, "h1")
    rx.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
    rx.bind(("::", PORT))
    rx.settimeout(PATIENCE)
    return rx


# ---- The kernel as oracle -------------------------------------------------------------------

T1, T0 = (partial(Topology(2, 1, 1).usid, tier) for tier in ("t1", "t0"))
HERE = topology.HOST_USID

NOBODY = IPv6Address("2001:db8::1").packed

# uSIDs that a host may put into a carrier, and a hop limit.
CARRIERS: dict[str, tuple[list[int], int]] = {
    "over t1 0": ([T1(0), T0(1), HERE], 64),
    "over t1 1": ([T1(1), T0(1), HERE], 64),
    "back to where it came from": ([T1(0), T0(0), HERE], 64),
    "six uSIDs": ([T1(0), T0(1), HERE, 0x1234, 0x5678, 0x9ABC], 64),
    "its own T0 first": ([T0(0), T1(1), T0(1), HERE], 64),
    "its own T0 twice": ([T0(0), T0(0), T1(0), T0(1), HERE], 64),
    "over two T1s": ([T1(0), T0(1), T1(1), T0(1), HERE], 64),
    "straight down": ([HERE], 64),
    "no such T1": ([T1(7), T0(1), HERE], 64),
    "no such T0": ([T1(0), T0(9), HERE], 64),
    "a T1 after a T1": ([T1(0), T1(1), T0(1), HERE], 64),
    "nothing after the T0": ([T1(0), T0(1)], 64),
    "unknown uSID": ([0x7777], 64),
    "as many hops as switches": ([T1(0), T0(1), HERE], 3),
    "one hop more": ([T1(0), T0(1), HERE], 4),
}

# Carriers in the order of their use: the first is the destination, an SRH has the others.
CHAINS: dict[str, tuple[list[list[int]], int]] = {
    "two uSIDs, then one": ([[T1(1), T0(1)], [HERE]], 64),
    "one each": ([[T1(0)], [T0(1)], [HERE]], 64),
    "its own T0 alone": ([[T0(0)], [T1(0), T0(1), HERE]], 64),
    "over two T1s": ([[T1(0), T0(1)], [T1(1), T0(1), HERE]], 64),
    "as many hops as switches": ([[T1(0)], [T0(1)], [HERE]], 3),
    "one hop more": ([[T1(0)], [T0(1)], [HERE]], 4),
    "no such T0": ([[T1(0)], [T0(9)], [HERE]], 64),
    "a segment is left at the host": ([[T1(0), T0(1), HERE], [HERE]], 64),
}


def frame(carriers: Sequence[Sequence[int]], hop_limit: int, mark: bytes) -> bytes:
    """Ethernet, outer IPv6 to a carrier, an SRH with the others, inner IPv6 with no next header and
    8 bytes. No host has a route to its inner source, so none reports an error.
    """
    ethernet = bytes.fromhex("020000000001020000000002") + struct.pack("!H", ETH_P_IPV6)
    carrier, *later = (
        topology.carrier(ADDRESSES.locator_block(1), each).packed for each in carriers
    )
    n = len(later)
    srh = struct.pack("!BBBBBBH", 41, 2 * n, 4, n, n - 1, 0, 0) if later else b""
    srh += b"".join(reversed(later))
    source = ADDRESSES.host(0).packed
    inner = struct.pack("!IHBB", 6 << 28 | 2 << 20, len(mark), 59, 64) + NOBODY + source + mark
    head = (6 << 28 | 2 << 20 | 0x4321, len(srh + inner), 43 if srh else 41, hop_limit)
    return ethernet + struct.pack("!IHBB", *head) + source + carrier + srh + inner


def raw_socket(bed: Testbed, host: str) -> socket.socket:
    with netns.inside(bed.plan.nodes[host].namespace):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IPV6))
        raw.bind(("p1", ETH_P_IPV6))
    raw.settimeout(PATIENCE)
    return raw


def walk(
    bed: Testbed, carriers: Sequence[Sequence[int]], hop_limit: int, mark: bytes
) -> dict[str, list[bytes]]:
    """Host -> frames with this mark that reach it before the last frame of each path."""
    with raw_socket(bed, "h0") as h0, raw_socket(bed, "h1") as h1:
        h0.send(frame(carriers, hop_limit, mark))
        last = {}
        for host, sock in ((0, h0), (1, h1)):
            for t1 in (0, 1):
                last[sock, t1] = b"last%d%d  " % (host, t1)
                h0.send(frame([[T1(t1), T0(host), HERE]], 64, last[sock, t1]))
        return {
            f"h{host}": frames_before(sock, [last[sock, 0], last[sock, 1]], mark)
            for host, sock in ((0, h0), (1, h1))
        }


def frames_before(sock: socket.socket, last: list[bytes], mark: bytes) -> list[bytes]:
    found = []
    while last:
        data, address = sock.recvfrom(2048)
        if address[2] == socket.PACKET_OUTGOING:
            continue
        if data.endswith(mark):
            found.append(data)
        last = [each for each in last if not data.endswith(each)]
    return found


@pytest.fixture(scope="module")
def both() -> Iterator[dict[Fabric, Testbed]]:
    with (
        Testbed(fresh_name(), planes=1, t1=2, fabric=Fabric.KERNEL) as kernel,
        Testbed(fresh_name(), planes=1, t1=2, fabric=Fabric.EMULATED) as emulated,
    ):
        yield {Fabric.KERNEL: kernel, Fabric.EMULATED: emulated}


@pytest.mark.default
@pytest.mark.parametrize("name", CARRIERS)
def test_usids__as_the_kernel_does(both: dict[Fabric, Testbed], name: str) -> None:
    """The same frames arrive at the same hosts; every byte is equal."""
    usids, hop_limit = CARRIERS[name]
    mark = b"%08d" % list(CARRIERS).index(name)
    kernel = walk(both[Fabric.KERNEL], [usids], hop_limit, mark)
    assert walk(both[Fabric.EMULATED], [usids], hop_limit, mark) == kernel
    if name == "six uSIDs":
        (arrived,) = kernel["h1"]
        rest = topology.carrier(ADDRESSES.locator_block(1), usids[2:])
        assert (IPv6Address(arrived[38:54]), arrived[21]) == (rest, 61)


@pytest.mark.parametrize("name", CHAINS)
def test_segments__as_the_kernel_does(both: dict[Fabric, Testbed], name: str) -> None:
    carriers, hop_limit = CHAINS[name]
    mark = b"segs%04d" % list(CHAINS).index(name)
    kernel = walk(both[Fabric.KERNEL], carriers, hop_limit, mark)
    assert walk(both[Fabric.EMULATED], carriers, hop_limit, mark) == kernel
    if name == "one each":
        (arrived,) = kernel["h1"]
        assert IPv6Address(arrived[38:54]) == topology.carrier(ADDRESSES.locator_block(1), [HERE])
        assert arrived[54 + 3] == 0


# ---- Queues ---------------------------------------------------------------------------------


def send_all(bed: Testbed, host: str) -> None:
    """Sends ECN-capable writes to h1. The host's port blocks the socket, so it drops none."""
    with udp_socket(bed, host) as tx:
        tx.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 2)
        for _ in range(FILL):
            tx.sendto(bytes([WRITE]).ljust(4096), (str(ADDRESSES.on_path(1, 1, 0)), PORT))


def incast(bed: Testbed) -> Counter[tuple[int, int]]:
    """h0 and h2 send to h1 over a T1; (traffic class, bytes) -> packets received.

    Method: the emulator is stopped until both are there, so the flows meet on any machine.
    """
    arrived: Counter[tuple[int, int]] = Counter()
    emulator = bed.counters()["pid"]
    with receiver(bed) as rx, ThreadPoolExecutor(2) as pool:
        os.kill(emulator, signal.SIGSTOP)
        try:
            for each in [pool.submit(send_all, bed, host) for host in ("h0", "h2")]:
                each.result(PATIENCE)
        finally:
            os.kill(emulator, signal.SIGCONT)
        while arrived.total() < 2 * FILL:
            data, messages, _, _ = rx.recvmsg(8192, 100)
            arrived[struct.unpack("i", messages[0][2])[0], len(data)] += 1
    return arrived


def test_queue__marks_and_trims_inside_the_fabric(bed: Testbed) -> None:
    """Two hosts send over one T1: its port marks, then trims, and no packet is lost."""
    bed.fail("uplink:1.1.0", rate_bps=RATE_BPS // 4)
    arrived = incast(bed)
    assert set(arrived) <= {(2, 4096), (3, 4096), (TRIMMED << 2 | 2, 64), (TRIMMED << 2 | 3, 64)}
    assert arrived[3, 4096] > 0
    assert sum(count for (_, size), count in arrived.items() if size == 64) > 0
    port = bed.links()["t1:1.0>t0:1.1"]
    assert port["marked"] > 0 and port["trimmed"] > 0 and port["dropped"] == 0
    assert port["peak_bytes"] > 100 << 10
    assert bed.counters()["overloaded"] == 0


def test_queue__a_transfer_lives_with_trimming(bed_name: str, tmp_path: Path) -> None:
    """NACKs for trimmed packets, every byte verified.

    Method: the buffers hold three packets, and the last hop is slower than the sender.
    """
    with Testbed(
        bed_name, planes=1, t1=1, rate=f"{RATE_BPS}", fabric=Fabric.EMULATED, buffer_bytes=16 << 10
    ) as bed:
        bed.fail("link:h1.1", rate_bps=RATE_BPS // 4)
        with Hosts(bed) as hosts:
            hosts.transfer("h0", "h1", tmp_path, 1 << 18)
        assert bed.counters()["trimmed"] > 0


# ---- Faults ---------------------------------------------------------------------------------


def exchange(bed: Testbed, count: int) -> list[int]:
    """Numbers of the datagrams received at h1, in order."""
    with receiver(bed) as rx, udp_socket(bed, "h0") as tx:
        for number in range(count):
            tx.sendto(number.to_bytes(4), (str(ADDRESSES.on_path(1, 1, 0)), PORT))
        return [int.from_bytes(data) for data in datagrams(rx, bed)]


FAULTS: dict[str, tuple[str, dict[str, Any], Callable[[list[int]], bool]]] = {
    "corrupt, as the checksum shows": ("uplink:1.0.0", {"corrupt": 1.0}, lambda found: not found),
    "duplicate": (
        "t1:1.0",
        {"duplicate": 1.0},
        lambda found: sorted(found) == sorted([*ALL, *ALL]),
    ),
    "reorder": ("plane:1", {"reorder": 0.5}, lambda found: sorted(found) == ALL != found),
}


@pytest.mark.default
@pytest.mark.parametrize("name", FAULTS)
def test_fail__packets_that_arrive(bed: Testbed, name: str) -> None:
    target, fault, is_right = FAULTS[name]
    bed.fail(target, **fault)
    assert is_right(exchange(bed, len(ALL)))
    assert bed.heal("all") == [target]
    assert exchange(bed, len(ALL)) == ALL


@pytest.mark.default
def test_fail__delay(bed: Testbed) -> None:
    bed.fail("plane:1", delay_ns=200 * MS)
    assert seconds(bed, 1, 1) >= 0.2


@pytest.mark.default
def test_fail__rate(bed: Testbed) -> None:
    """20 packets of 4222 bytes on the wire at 5 Mbit/s take 135 ms."""
    bed.fail("t1:1.0", rate_bps=5_000_000)
    assert seconds(bed, 20, 4096) >= 0.120


def seconds(bed: Testbed, count: int, size: int) -> float:
    """Until so many datagrams are at h1. A busy machine only adds to it."""
    with receiver(bed) as rx, udp_socket(bed, "h0") as tx:
        began = time.monotonic()
        for _ in range(count):
            tx.sendto(bytes(size), (str(ADDRESSES.on_path(1, 1, 0)), PORT))
        for _ in range(count):
            rx.recv(8192)
        return time.monotonic() - began


@pytest.mark.parametrize("fabric", [*Fabric])
def test_schedule__is_carried_out_and_healed(
    both: dict[Fabric, Testbed], fabric: Fabric, tmp_path: Path
) -> None:
    """Method: when each event is reported, and so after it happened, reads the current faults."""
    bed = both[fabric]
    file = tmp_path / "faults.toml"
    file.write_text(
        '[[faults]]\ntarget = "t1:1.0"\nkind = "silent"\nevery = "120ms"\nfor = "60ms"\n'
        'until = "180ms"\n[[faults]]\ntarget = "link:h0.1"\nkind = "rate"\nrate = "10%"\n'
        'at = "30ms"\n'
    )
    told: list[tuple[str, bool]] = []
    seconds: list[float] = []

    def tell(event: schedule.FaultChange, when: float) -> None:
        assert bed.faults().get(str(event.target)) == event.fault
        told.append((str(event.target), event.fault is not None))
        seconds.append(when - event.at_ns / 1e9)

    def wait(until: float | None) -> bool:
        if until is not None:
            time.sleep(max(0.0, until - time.monotonic()))
        return until is None

    schedule.run_faults(bed, schedule.load_faults(str(file), bed.plan), wait, tell)
    assert told == [
        ("t1:1.0", True), ("link:h0.1", True), ("t1:1.0", False), ("t1:1.0", True),
        ("t1:1.0", False),
    ]  # fmt: skip
    assert min(seconds) > 0
    assert bed.faults() == {}
    assert exchange(bed, 5) == list(range(5))


def test_fail__refuses_what_only_netem_could(
    both: dict[Fabric, Testbed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "has_netem", lambda plan: False)
    with pytest.raises(ArgumentError, match="--fabric emulated"):
        both[Fabric.KERNEL].fail("plane:1", delay_ns=MS)
    with pytest.raises(StateError, match="only an emulated fabric has counters"):
        both[Fabric.KERNEL].counters()


# ---- End ------------------------------------------------------------------------------------


@pytest.fixture
def small(bed_name: str) -> Testbed:
    bed = Testbed(bed_name, planes=1, t1=1, fabric=Fabric.EMULATED)
    bed.up()
    return bed


@pytest.mark.default
@pytest.mark.parametrize("hangs", [False, True])
def test_down__ends_the_emulator(
    small: Testbed, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    pid = small.counters()["pid"]
    if hangs:
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(control, "_END_SECONDS", 0.1)
    assert small.down().removed
    assert has_ended(pid)
    assert not [name for name in netns.names() if small.name in name]
    assert not state.folder(small.name).exists()


def test_up__again_after_the_emulator_was_killed(small: Testbed) -> None:
    pid = small.counters()["pid"]
    os.kill(pid, signal.SIGKILL)
    while not has_ended(pid):
        os.sched_yield()
    assert small.missing() == ["fabric"]
    with pytest.raises(StateError, match="lacks fabric"):
        small.fail("plane:1")
    assert small.up() is True
    assert exchange(small, 3) == [0, 1, 2]
    os.kill(small.counters()["pid"], signal.SIGKILL)
    assert small.down().removed


def test_emulator__ends_when_its_folder_is_gone(small: Testbed) -> None:
    pid = small.counters()["pid"]
    state.forget(small.name)
    while not has_ended(pid):
        os.sched_yield()


@pytest.mark.slow
def test_fail__an_emulator_that_stands_still(small: Testbed) -> None:
    """An answer that is late is no verdict: the command waits for it."""
    pid = small.counters()["pid"]
    os.kill(pid, signal.SIGSTOP)
    argv = [sys.executable, "-m", "mrc", "testbed", "--name", small.name, "fail", "plane:1"]
    failing = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with failing:
        with pytest.raises(subprocess.TimeoutExpired):
            failing.wait(ONCE_WAITED_SECONDS + 2)
        os.kill(pid, signal.SIGCONT)
        told, said = failing.communicate(timeout=PATIENCE)
    assert (failing.returncode, told, said) == (0, "plane:1 fails: silent\n", "")


def test_ask__a_client_that_stands_still(small: Testbed) -> None:
    """It delays no other client, and gets its answer when it goes on."""
    folder = state.folder(small.name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.connect(str(folder / SOCKET))
        assert control.ask(folder, {"do": "status", "hops": []})
        slow.sendall(b'{"do": "status", "hops": []}\n')
        assert b"stats" in slow.recv(1 << 16)
    assert small.counters()


def test_up__an_emulator_that_cannot_run_is_no_fabric(small: Testbed, tmp_path: Path) -> None:
    """It fails after it has left its parent."""
    (tmp_path / "fabric.log").mkdir()
    config = json.loads((state.folder(small.name) / "fabric.json").read_text())
    with pytest.raises(StateError, match=r"did not start: IsADirectoryError: .*fabric\.log"):
        control.start(tmp_path, namespace_of(small.name, "fabric"), config)
    assert not control.is_running(tmp_path)
