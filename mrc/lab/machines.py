# SPDX-License-Identifier: Apache-2.0
"""The machines of a test bed that spans several, and how to run a command on each."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Sequence
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import combinations
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace

from mrc.errors import ArgumentError, ResolveError
from mrc.fabric import document
from mrc.fabric.document import Table
from mrc.testbed import bed

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 {name}"
PORT = 47900
_IP_MTU, _IPV6_MTU = 14, 24


class Machine(Struct, frozen=True):
    """A machine with a part of a test bed."""

    name: str
    """for people, and for `reach`"""
    address: str = ""
    """where the other machines reach it; empty: not looked up yet"""
    reach: str = SSH
    """a command that takes one more word, a command line for a shell, and runs it there"""
    mrc: str = "mrc"
    """path of mrc there"""

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        return ip_address(self.address)

    def command(self, words: Sequence[str], *, terminal: bool = False) -> list[str]:
        """Arguments that run `mrc testbed` with these words there."""
        argv = shlex.split(self.reach.replace("{name}", self.name))
        if terminal and os.path.basename(argv[0]) == "ssh":
            argv.insert(1, "-t")
        if bed.FOLDER_VARIABLE in os.environ:  # in a host, with a network and names of its own
            outside = bed.outside_namespaces()
            argv = ["nsenter", f"--net={outside}/net", f"--mount={outside}/mnt", *argv]
        return [*argv, f"exec {shlex.join([self.mrc, 'testbed', *words])}"]


class Machines(Struct, frozen=True):
    """All machines of a test bed, in their order."""

    every: tuple[Machine, ...]
    port: int = PORT
    """UDP port of VXLAN"""
    here: int = -1
    """which of them this is"""

    @property
    def names(self) -> list[str]:
        return [machine.name for machine in self.every]

    def seen_by(self, here: int) -> Machines:
        return replace(self, here=here)


def decode(stored: Any) -> Machines:
    """The machines from JSON. Raises ValueError."""
    return convert(stored, Machines)


def read(text: str) -> Machines:
    """The machines of `--on`: names for ssh, separated by commas, or the path of a file.

    Raises ArgumentError, and BadFileError for an invalid file.
    """
    if "/" in text or text.endswith(".toml"):
        found = document.read(text, {}, "file of machines")
        machines = _parse(Table(found.values, found.place))
    else:
        machines = Machines(tuple(Machine(name) for name in text.split(",")))
    names = machines.names
    if len(names) < 2 or not all(names) or len({*names}) < len(names):
        raise ArgumentError(f"--on {text}: at least two machines, each with a name of its own")
    return machines


def _parse(table: Table) -> Machines:
    reach, mrc = table.text("reach", SSH), table.text("mrc", "mrc")
    port = table.integer("port", 1, 65535, PORT)
    every = []
    for each in table.tables("machines"):
        machine = Machine(
            name=each.text("name"),
            address=str(each.parsed("address", ip_address)) if each.has("address") else "",
            reach=each.text("reach", reach),
            mrc=each.text("mrc", mrc),
        )
        each.close()
        if not shlex.split(machine.reach):
            raise table.error("reach", "is empty")
        every.append(machine)
    table.close()
    return Machines(tuple(every), port)


def located(machines: Machines) -> Machines:
    """With the address of each machine, and which of them this is.

    Raises ResolveError, and ArgumentError if none of them is this machine.
    """
    found = [replace(each, address=each.address or _look_up(each.name)) for each in machines.every]
    here = [place for place, each in enumerate(found) if _is_here(each)]
    if len(here) != 1:
        named = " and ".join(found[each].name for each in here) + " are all" if here else "none is"
        raise ArgumentError(
            f"of {', '.join(machines.names)}, {named} this machine: list each machine once, and "
            "run this command on one of them"
        )
    if found[here[0]].ip.is_loopback:  # as /etc/hosts of Debian has it
        other = found[here[0] - 1]
        found[here[0]] = replace(found[here[0]], address=toward(other)[0])
    for one, other in combinations(found, 2):
        if one.ip.version != other.ip.version:
            raise ArgumentError(
                f"{one.name} has {one.address}, but {other.name} {other.address}: give addresses "
                "of one IP version in a file, see mrc/testbed/README.md"
            )
    return Machines(tuple(found), machines.port, here[0])


def toward(machine: Machine) -> tuple[str, int]:
    """The address that this machine sends from to another, and the MTU on the way as far as the
    kernel knows it. Raises ResolveError if there is no route.
    """
    is_ipv4 = machine.ip.version == 4
    family = socket.AF_INET if is_ipv4 else socket.AF_INET6
    level, option = (socket.IPPROTO_IP, _IP_MTU) if is_ipv4 else (socket.IPPROTO_IPV6, _IPV6_MTU)
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((machine.address, PORT))
        except OSError as exc:
            raise ResolveError(
                f"no route to {machine.name} at {machine.address}: {exc.strerror}"
            ) from exc
        return str(sock.getsockname()[0]), sock.getsockopt(level, option)


def _look_up(name: str) -> str:
    host = name.rpartition("@")[2]
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as exc:
        raise ResolveError(
            f"no address of {name}: {exc.strerror}; give it in a file: mrc testbed up --on FILE, "
            "see mrc/testbed/README.md"
        ) from exc


def _is_here(machine: Machine) -> bool:
    family = socket.AF_INET if machine.ip.version == 4 else socket.AF_INET6
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
        try:
            sock.bind((machine.address, 0))
        except OSError:
            return False
    return True
