# SPDX-License-Identifier: Apache-2.0
"""The contenders raw UDP, TCP, MPTCP and mrc: pairs of ends that keep running between rounds.

A method measures once.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bed import HERE, HOSTS, Bed, End, Raw, compiled
from peers import warm_pages

from mrc.connect.proof import psns_for
from mrc.engine.paths import SEAL_OVERHEAD
from mrc.linux.system import UNKNOWN_BPS

GSO_BYTES = 65527  # largest UDP payload of one UDP_SEGMENT message
GSO_PACKETS = 64  # most packets in it on kernels before 6.9; mrc uses this limit, too
_FLOOR_PORT = 7000
_UDP_PORT = 7100
_FLOW_PORTS = {False: 5001, True: 5002}
_OOB_PORTS = itertools.count(4792)  # the default one is for `mrc recv`
TCP_CONTROLS = ("cubic", "bbr")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_ENDPOINT = str(HERE / "endpoint")


def missing_controls() -> dict[str, str]:
    """TCP rows whose congestion control this kernel lacks -> remedy."""
    available = _AVAILABLE.read_text().split()
    return {
        f"TCP, {cc}": f"this kernel has no {cc}: modprobe tcp_{cc}"
        for cc in TCP_CONTROLS
        if cc not in available
    }


def tcp_controls() -> list[str]:
    """The congestion controls of TCP that this kernel supports."""
    return [cc for cc in TCP_CONTROLS if f"TCP, {cc}" not in missing_controls()]


class Pair:
    """Two ends. As a context manager it stops them."""

    def __init__(self, sender: End, receiver: End) -> None:
        self.sender = sender
        self.receiver = receiver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sender.close()
        self.receiver.close()

    @property
    def pids(self) -> list[list[int]]:
        return [[self.sender.pid], [self.receiver.pid]]

    def while_receiver(self, *job: object, sender: tuple[object, ...]) -> tuple[Raw, Raw]:
        """Runs a job of the sender during a job of the receiver. Then ends the receiver's job."""
        self.receiver.start(*job)
        sent = self.sender.run(*sender)
        self.receiver.start("end")
        return sent, self.receiver.result()


class Floor(Pair):
    """Raw UDP over the same routes."""

    def __init__(self, bed: Bed) -> None:
        floor = compiled("floor")
        ends = [
            End(bed, host, floor, _FLOOR_PORT, bed.address(host), *bed.plane_arguments(host))
            for host in HOSTS
        ]
        super().__init__(*ends)

    def bursts(self, packet_bytes: int, packets: int, ms: int) -> Raw:
        job = ("send", packet_bytes, packets, ms)
        sent, got = self.while_receiver("receive", sender=job)
        syscalls = sent["syscalls"] + got["syscalls"]
        return {**got, "messages": got["packets"], "syscalls": syscalls}

    def ping(self, size: int, ms: int, *, spin: bool) -> Raw:
        return self.while_receiver("echo", int(spin), sender=("ping", size, ms, int(spin)))[0]


def full_burst(packet_bytes: int) -> int:
    """Packets of the largest burst."""
    return min(GSO_BYTES // packet_bytes, GSO_PACKETS)


class UdpPython(Pair):
    """Datagrams on asyncio with uvloop."""

    def __init__(self, bed: Bed) -> None:
        ends = []
        for host in reversed(HOSTS):
            here, there = bed.plane_address(host, 1), bed.plane_address(1 - host, 1)
            ends.append(
                End(bed, host, sys.executable, _ENDPOINT, "udp", "p1", here, there, _UDP_PORT)
            )
        super().__init__(ends[1], ends[0])

    def ping(self, size: int, ms: int) -> Raw:
        return self.while_receiver("echo", sender=("ping", size, ms))[0]


class Flows(Pair):
    """TCP or MPTCP by flow.c."""

    def __init__(self, bed: Bed, *, mptcp: bool = False) -> None:
        self.bed = bed
        port, kind = _FLOW_PORTS[mptcp], "mptcp" if mptcp else "tcp"
        receiver = End(bed, HOSTS[1], compiled("flow"), "receive", port, kind)
        super().__init__(End(bed, HOSTS[0], compiled("flow"), "send", port, kind), receiver)

    def stream(self, cc: str, mode: str, ms: int, *, flows: int = 1) -> Raw:
        self.receiver.start("take", flows, 0)
        sent = self.sender.run("send", cc, mode, ms, *self.bed.flows(flows))
        return self._both(sent)

    def file(self, source: Path, target: Path) -> Raw:
        warm_pages(target, source.stat().st_size)
        self.receiver.start("take", 1, 0, target)
        return self._both(self.sender.run("file", "cubic", source, *self.bed.flows(1)))

    def _both(self, sent: Raw) -> Raw:
        got = self.receiver.result()
        assert got["bytes"] == sent["bytes"]
        return {**sent, "syscalls": sent["syscalls"] + got["syscalls"]}


class Mrc(Pair):
    """The common part of mrc's contenders: jobs, and the counters of both ends around them."""

    settings: Mapping[str, object]

    def write(self, size: int, depth: int, ms: int) -> Raw:
        return self._counted(("serve",), ("write", size, depth, ms))

    def batches(self, size: int, depth: int, ms: int) -> Raw:
        """As `write`, but posted in batches; for MrcPython."""
        return self._counted(("serve",), ("batches", size, depth, ms))

    def ping(self, size: int, ms: int) -> Raw:
        return self._counted(("echo", size), ("ping", size, ms))

    def _counted(self, receiver: tuple[object, ...], sender: tuple[object, ...]) -> Raw:
        before = self._counters()
        self.receiver.start(*receiver)
        sent = self.sender.run(*sender)
        # A polled context acknowledges only while it runs, so the sender's context runs until the
        # receiver has finished.
        self.sender.start("serve")
        for each in (self.receiver, self.sender):
            each.start("end")
            each.result()
        here, there = (
            {name: after[name] - was[name] for name in after}
            for was, after in zip(before, self._counters(), strict=True)
        )
        return {
            **sent,
            "packets": here["RX_PACKETS"] + there["RX_PACKETS"],
            "syscalls": sum(x["RX_SYSCALLS"] + x["TX_SYSCALLS"] for x in (here, there)),
            "retransmissions": here["TX_RETRANSMITTED"],
            "counters": [here, there],
        }

    def _counters(self) -> list[dict[str, int]]:
        return [self.sender.run("counters"), self.receiver.run("counters")]


class MrcVerbs(Mrc):
    """mrc by its C interface: with a datapath thread, or polled (run to completion).

    verbs.c has the names of the settings. `library` seals the packets, unless mrc may choose.
    """

    def __init__(self, bed: Bed, library: str | None = None, **settings: int) -> None:
        # The window that a Context chooses for the bed's links, whose rate it does not know.
        psns = psns_for(bed.planes * UNKNOWN_BPS, 0, bed.path_mtu)
        path_mtu = bed.path_mtu - (SEAL_OVERHEAD if settings.get("seal") else 0)
        numbers = {"path_mtu": path_mtu, "mpr": psns, **settings}
        self.settings = numbers
        words = [f"{name}={int(value)}" for name, value in numbers.items()]
        ends = []
        command = [*(["env", f"MRC_AEAD={library}"] if library else []), compiled("verbs")]
        for host in HOSTS:
            addresses = [bed.address(host), bed.address(1 - host), *bed.plane_arguments(host)]
            ends.append(End(bed, host, *command, *addresses, "--", *words))
        super().__init__(*ends)
        for end, peer in ((ends[0], ends[1]), (ends[1], ends[0])):
            end.run("peer", peer.hello["udp_port"], peer.hello["arena"], *peer.hello["sports"])


class MrcPython(Mrc):
    """mrc through asyncio: with a datapath thread, or polled by the event loop."""

    def __init__(self, bed: Bed, *, polled: bool = False, spin_us: int = 0) -> None:
        self.settings = {"asyncio": True, "qps": 1, "polled": polled, "spin_us": spin_us}
        command = (sys.executable, _ENDPOINT, "mrc")
        options = (next(_OOB_PORTS), int(polled), spin_us)
        receiver = End(bed, HOSTS[1], *command, "listen", *options)
        try:
            sender = End(bed, HOSTS[0], *command, "connect", *options)
        except BaseException:
            receiver.close()
            raise
        super().__init__(sender, receiver)
        assert sender.hello["path_mtu"] == bed.path_mtu  # the same as the other contenders'
