# SPDX-License-Identifier: Apache-2.0
"""Machines for tests: network and mount namespaces with a /run of their own, joined by a bridge.

`nsenter` stands for ssh. What runs on a machine has its name in the environment: so a machine is
killed by the end of all of that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slowness import PATIENCE, until

from mrc.linux import netns

from .conftest import fresh_name
from .plain import ip

_MARK = "MRC_TEST_MACHINE"
_KEEP = "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip link set lo up && echo && cat"
MRC = str(Path(sys.executable).parent / "mrc")


@dataclass
class Machine:
    """One machine. `keeper` holds its namespaces."""

    name: str
    address: str
    mark: str
    keeper: subprocess.Popen[str]

    @property
    def enter(self) -> list[str]:
        pid = str(self.keeper.pid)
        return ["env", f"{_MARK}={self.mark}", "nsenter", "-t", pid, "-m", "-n"]

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Starts `mrc testbed` there."""
        argv = [*self.enter, MRC, "testbed", *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str | Path, code: int = 0) -> str:
        """Runs `mrc testbed` there; what it prints, also on stderr."""
        argv = [*self.enter, MRC, "testbed", *map(str, words)]
        pipe = subprocess.PIPE
        done = subprocess.run(argv, stdout=pipe, stderr=pipe, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def namespaces(self) -> list[str]:
        """Those of its test beds, and the folders of their state."""
        argv = [*self.enter, "sh", "-c", "ls /run/netns; test ! -e /run/mrc || ls /run/mrc"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    def processes(self) -> Iterator[int]:
        mark = f"{_MARK}={self.mark}".encode()
        for each in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if mark in Path("/proc", each, "environ").read_bytes().split(b"\0"):
                    yield int(each)

    def kill(self) -> None:
        """As if it lost its power."""
        self.keeper.kill()
        while found := list(self.processes()):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda: not set(found) & set(self.processes()))
        self.keeper.wait(PATIENCE)
        for stream in (self.keeper.stdin, self.keeper.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def machines(count: int, folder: Path, mtu: int = 9050) -> Iterator[list[Machine]]:
    """Machines host-a, host-b, ... with 192.0.2.1, ...; the file `folder`/on.toml lists them."""
    wire = f"mrc-{fresh_name()}"
    with ExitStack() as stack:
        netns.create(wire)
        stack.callback(netns.remove, wire)
        ip(f"-n {wire} link add bridge type bridge")
        ip(f"-n {wire} link set bridge mtu {mtu} up")
        made = []
        for number in range(count):
            machine = _start(f"host-{chr(ord('a') + number)}", f"192.0.2.{number + 1}")
            stack.callback(machine.kill)
            pid = machine.keeper.pid
            ip(f"-n {wire} link add {machine.name} mtu {mtu} type veth peer name eth0 netns {pid} "
               f"mtu {mtu}")  # fmt: skip
            ip(f"-n {wire} link set {machine.name} master bridge up")
            for command in (f"addr add {machine.address}/24 dev eth0", "link set eth0 up"):
                subprocess.run([*machine.enter, "ip", *command.split()], check=True)
            made.append(machine)
        reach = [" ".join([*each.enter, "sh", "-c"]) for each in made]
        (folder / "on.toml").write_text("".join(
            f'[[machines]]\nname = "{each.name}"\naddress = "{each.address}"\n'
            f'reach = "{reach[n]}"\nmrc = "{MRC}"\n' for n, each in enumerate(made)
        ))  # fmt: skip
        vxlan = "ip link add try0 type vxlan id 1 dstport 1 && ip link del try0"
        lacks = [*made[0].enter, "sh", "-c", vxlan]
        if count > 1 and subprocess.run(lacks, capture_output=True).returncode:
            pytest.skip("this kernel has no VXLAN")
        yield made


def _start(name: str, address: str) -> Machine:
    mark = f"{fresh_name()}-{name}"
    pipe = subprocess.PIPE
    keeper = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", _KEEP],
        stdin=pipe, stdout=pipe, text=True, env=os.environ | {_MARK: mark},
    )  # fmt: skip
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == "\n"
    return Machine(name, address, mark, keeper)


def status(machine: Machine) -> dict[str, Any]:
    """What `mrc testbed status --json` prints there."""
    done: dict[str, Any] = json.loads(machine.run("status", "--json").splitlines()[0])
    return done


def hosts_file(machine: Machine, *lines: str) -> None:
    """Mounts an /etc/hosts of its own."""
    text = "\n".join(["127.0.0.1 localhost", *lines])
    script = f"echo '{text}' >/run/etc-hosts; mount --bind /run/etc-hosts /etc/hosts"
    subprocess.run([*machine.enter, "sh", "-c", script], check=True)
