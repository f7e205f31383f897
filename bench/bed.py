# SPDX-License-Identifier: Apache-2.0
"""The test bed of a benchmark: that of `mrc testbed`, with what peers of mrc need besides."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mrc.fabric.paths import ENCAPSULATION, TRANSPORT, payload_mtu
from mrc.fabric.srv6 import locator, segments
from mrc.linux import netns
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric, t0_name

HOSTS = (0, 1)  # the sender's number, the receiver's
_LINKS = 4  # on a path
_LOWER = "fe80::2"
_IPV4_USID = 0xE004
_END_DX4 = "encap seg6local action End.DX4 nh4 0.0.0.0"  # next hop: the packet's own destination
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
        self.path_mtu = payload_mtu(mtu, 6, encapsulation=ENCAPSULATION)
        self.packet_bytes = self.path_mtu + TRANSPORT
        self.tcp_payload = mtu - _TCP_OVERHEAD  # bytes of a full segment

    def __enter__(self) -> Bed:
        self.testbed.up()
        try:
            for host in self.hosts:
                enlarge_buffers(self.testbed, host)
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

    def command(
        self, host: int, argv: list[str], *, pinned: bool = True
    ) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment that run a program in a host, on its core if both the bed and
        the program are pinned.
        """
        prefix = ["taskset", "-c", str(core(host))] if self.pinned and pinned else []
        return self.testbed.host_command(f"h{host}", [*prefix, *argv])

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

    def add_ipv4(self) -> None:
        """Adds an encapsulated path for IPv4 in plane 1, for programs that support only IPv4.

        It has a uSID of its own, because the host's uSID ends only carriers of IPv6.
        """
        shape = self.testbed.shape
        block = shape.addresses.locator_block(1)
        end = f"{locator(block, _IPV4_USID)}"
        for host in HOSTS:
            usids = (shape.usid("t1", 0), shape.usid("t0", 1 - host), _IPV4_USID)
            (carrier,) = segments(block, usids)
            here, there = self.ipv4_address(host), self.ipv4_address(1 - host)
            encap = f"encap seg6 mode encap.red segs {carrier}"
            t0 = self.testbed.plan.nodes[t0_name(1, host)].namespace
            for namespace, line in (
                (self.namespace(host), f"addr add {here}/32 dev p1"),
                (self.namespace(host), f"route add {there}/32 {encap} dev p1 src {here}"),
                (self.namespace(host), f"-6 route add {end} {_END_DX4} dev p1"),
                (t0, f"-6 route add {end} via {_LOWER} dev h{host}"),
            ):
                subprocess.run(["ip", "-n", namespace, *line.split()], check=True)

    def ipv4_address(self, host: int) -> str:
        return f"10.0.0.{host + 1}"

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


def enlarge_buffers(testbed: Testbed, host: int) -> None:
    """Lets the buffers of a host's TCP connections grow."""
    with netns.inside(testbed.plan.nodes[f"h{host}"].namespace):
        for name in ("tcp_rmem", "tcp_wmem"):
            Path("/proc/sys/net/ipv4", name).write_text(_BUFFERS)


def core(host: int) -> int:
    """The core of one side. The sender's kernel forwards on the sender's core."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[host % len(cores)]
