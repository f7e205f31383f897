# SPDX-License-Identifier: Apache-2.0
"""Four hosts behind one router, and mrc in them.

    a   10.7.1.2 --+
    b   10.7.2.2 --+-- router, without filters: any source address passes
    v   10.7.3.2 --+
    x   10.7.4.2 --+   the attacker, who also owns 10.9.0.0/16

a and b run mrc; v is a bystander without mrc.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import cbuild
from netns.conftest import fresh_name
from netns.plain import address, ip, join
from netns.processes import Mrc
from slowness import PATIENCE

from mrc.linux import netns

ADDRESSES = {"a": "10.7.1.2", "b": "10.7.2.2", "v": "10.7.3.2", "x": "10.7.4.2"}
CROWD = "10.9.0.0/16"  # more source addresses of x
PREFIX = f"mrc-{fresh_name()}-"
PORT = 4791  # TCP and UDP


def secret_in(folder: Path) -> Path:
    """A new file with a secret, which its user alone may read."""
    file = folder / "secret"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    return file


def crowd(number: int) -> str:
    """A source address of x."""
    return f"10.9.{number >> 8}.{number & 0xFF}"


def descriptors(of: Mrc) -> int:
    return len(list(Path(f"/proc/{of.process.pid}/fd").iterdir()))


def memory_bytes(pid: int, name: str = "RssAnon") -> int:
    """Of the process: RssAnon (anonymous), VmRSS (now) or VmHWM (at most so far)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


@dataclass
class Net:
    """The namespaces and the processes started in them."""

    running: list[Mrc] = field(default_factory=list)

    @staticmethod
    def namespace(host: str) -> str:
        return f"{PREFIX}{host}"

    def build(self) -> None:
        """Joins the namespaces, which are there."""
        router = self.namespace("r")
        for host in ("r", *ADDRESSES):
            with netns.inside(self.namespace(host)):
                Path("/proc/sys/net/ipv4/conf/all/rp_filter").write_text("0")
                Path("/proc/sys/net/ipv4/conf/default/rp_filter").write_text("0")
                Path("/proc/sys/net/ipv4/ip_forward").write_text(str(int(host == "r")))
        for host, own in ADDRESSES.items():
            gateway = own.removesuffix("2") + "1"
            join(self.namespace(host), "eth0", router, f"to-{host}")
            address(self.namespace(host), "eth0", f"{own}/24")
            address(router, f"to-{host}", f"{gateway}/24")
            ip(f"-n {self.namespace(host)} route add default via {gateway}")
        ip(f"-n {self.namespace('x')} route add local {CROWD} dev lo")
        ip(f"-n {router} route add {CROWD} via {ADDRESSES['x']}")

    def mrc(self, host: str, *arguments: str | Path) -> Mrc:
        """Starts mrc in a host; it ends with the test."""
        return self.python(host, "-m", "mrc", *arguments)

    def python(self, host: str, *arguments: object) -> Mrc:
        """Starts Python in a host; it ends with the test."""
        environment = {name: os.environ[name] for name in os.environ if name != "MRC_CONFIG"}
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (cbuild.ROOT, cbuild.ROOT / "tests")))
        command = [sys.executable, *map(str, arguments)]
        pipe = subprocess.PIPE
        with netns.inside(self.namespace(host)):
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
                text=True,
            )  # fmt: skip
        self.running.append(Mrc(process))
        return self.running[-1]

    def end(self) -> None:
        """Ends every process that was started."""
        while self.running:
            self.running.pop().end()

    def tcp(self, to: str, *, source: str = ADDRESSES["x"], host: str = "x") -> socket.socket:
        """A TCP connection to the exchange of a host; the caller closes it."""
        with netns.inside(self.namespace(host)):
            made = socket.socket()
        made.settimeout(PATIENCE)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.bind((source, 0))
            made.connect((ADDRESSES[to], PORT))
        except BaseException:
            made.close()
            raise
        return made

    def udp(self, host: str, port: int = 0) -> socket.socket:
        """A bound UDP socket in a host; the caller closes it."""
        with netns.inside(self.namespace(host)):
            made = socket.socket(type=socket.SOCK_DGRAM)
        made.settimeout(PATIENCE)
        made.bind(("0.0.0.0", port))
        return made

    def raw(self, host: str = "x") -> socket.socket:
        """A socket for packets with any source address; the caller closes it."""
        with netns.inside(self.namespace(host)):
            return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

    def udp_ports(self, host: str) -> list[int]:
        """The local UDP ports of all sockets in a host, without PORT."""
        with netns.inside(self.namespace(host)):
            lines = Path("/proc/thread-self/net/udp").read_text().splitlines()[1:]
        ports = {int(line.split()[1].partition(":")[2], 16) for line in lines}
        return sorted(ports - {PORT})
