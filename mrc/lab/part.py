# SPDX-License-Identifier: Apache-2.0
"""Serves the part of a test bed on this machine over stdin and stdout: `mrc testbed part`.

Each line is a request in JSON, and each answer a line. What is built but not committed when stdin
ends is removed: so nothing is left behind if the machine where `up` runs, or the connection, dies.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, BinaryIO

from msgspec import convert, to_builtins

from mrc.errors import ArgumentError, ConnectError, MrcError, NetlinkError, StateError
from mrc.fabric.targets import Target
from mrc.lab.cut import OVERHEAD
from mrc.lab.machines import Machine, Machines, toward
from mrc.lab.spread import HELLO, own_version
from mrc.linux import netns, processes, programs
from mrc.testbed import build, state
from mrc.testbed.bed import PROGRAMS, Testbed
from mrc.testbed.build import LinkEnd
from mrc.testbed.faults import Fault
from mrc.testbed.plan import LOWER, BedPlan
from mrc.testbed.shape import MANAGEMENT

_ECHO_REQUEST, _ECHO_REPLY = 128, 129
_ECHO = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number
_HEADERS_BYTES = 40 + _ECHO.size
_TRIES, _TRY_SECONDS = 5, 1.0


def check_mtu(plan: BedPlan, machines: Machines) -> None:
    """Raises StateError if packets of the links do not fit the machines' network."""
    for place, other in enumerate(machines.every):
        if place == machines.here:
            continue
        _, mtu = toward(other)
        overhead = OVERHEAD[other.ip.version]
        if mtu < plan.shape.mtu + overhead:
            raise StateError(
                f"the MTU toward {other.name} is {mtu}, but links of MTU {plan.shape.mtu} over "
                f"VXLAN require {plan.shape.mtu + overhead}: use --mtu {mtu - overhead}, or raise "
                "the MTU of the machines' network"
            )


def check_tunnels(plan: BedPlan, machines: Machines) -> None:
    """Sends a small and a large packet over VXLAN to each machine with a higher number, and waits
    for their echoes. Raises StateError.
    """
    here = machines.every[machines.here]
    for place, other in list(enumerate(machines.every))[machines.here + 1 :]:
        end = (MANAGEMENT, f"m{place}")
        if not _answers(plan, end, _HEADERS_BYTES):
            raise StateError(
                f"no VXLAN packet passes between {_named(here)} and {_named(other)}: does a "
                f"firewall block UDP port {machines.port}?"
            )
        if not _answers(plan, end, plan.shape.mtu):
            raise StateError(
                f"between {_named(here)} and {_named(other)}, VXLAN packets of MTU "
                f"{plan.shape.mtu} are lost, and small ones pass: use a smaller --mtu, or raise "
                "the MTU of the switches between them"
            )


def _named(machine: Machine) -> str:
    return f"{machine.name} ({machine.address})"


def _answers(plan: BedPlan, end: LinkEnd, size: int) -> bool:
    """Whether the kernel at the other end of a link echoes a packet of this size."""
    node, interface = end
    with netns.inside(plan.nodes[node].namespace):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        index = socket.if_nametoindex(interface)
    with sock:
        identifier = os.getpid() & 0xFFFF
        for number in range(_TRIES):
            head = _ECHO.pack(_ECHO_REQUEST, 0, 0, identifier, number)
            sock.sendto(head + bytes(size - _HEADERS_BYTES), (str(LOWER), 0, 0, index))
            if _echoed(sock, identifier, size):
                return True
    return False


def _echoed(sock: socket.socket, identifier: int, size: int) -> bool:
    deadline = time.monotonic() + _TRY_SECONDS
    while select.select([sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data = sock.recv(1 << 16)
        kind, _, _, theirs, _ = _ECHO.unpack_from(data)
        if (kind, theirs, len(data)) == (_ECHO_REPLY, identifier, size - 40):
            return True
    return False


_Request = dict[str, Any]


class Part(Testbed):
    """What this machine has of a test bed over several."""

    def is_up(self) -> bool:
        """As `up` returns, but builds nothing."""
        with state.lock():
            return self._is_up()

    def build(self) -> None:
        """Build it up to the point where `commit` says that all machines have their part."""
        programs.require(*PROGRAMS)
        assert self.machines is not None
        check_mtu(self.plan, self.machines)
        try:
            with state.lock():
                self._build(up=False)
        except NetlinkError as exc:
            remedy = {
                errno.EEXIST: "; another test bed uses this VNI, or a program still runs in an "
                "earlier one: end it, or take another --name",
                errno.EADDRINUSE: f"; is UDP port {self.machines.port} in use? give another one "
                "in the file of machines",
            }
            raise NetlinkError(f"{exc}{remedy.get(exc.code, '')}", exc.code) from exc

    def commit(self) -> None:
        with state.lock():
            state.save(self.name, state.BedState(self.shape, up=True, machines=self.machines))

    def check_faults(self, wanted: dict[str, Fault]) -> None:
        """Raises ValueError for faults that this machine cannot inject."""
        after = self._state().with_faults(wanted)
        build.check_faults(self.plan, self.by_target(after.faults))

    def by_target(self, found: dict[str, Fault]) -> dict[Target, Fault]:
        return {self._target(target): fault for target, fault in found.items()}


class _Server:
    def __init__(self, name: str, requests: BinaryIO, answers: BinaryIO) -> None:
        self._name = name
        self._requests = requests
        self._answers = answers
        self._unfinished: Part | None = None
        self._known: Part | None = None
        """the test bed of the last request: a plan of a large one takes a second"""

    def serve(self) -> None:
        try:
            self._say({HELLO: own_version()})
            for line in self._requests:
                self._say(self._answer(json.loads(line)))
        finally:
            if self._unfinished is not None:
                self._unfinished.down()

    def _say(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer).encode() + b"\n")
        self._answers.flush()

    def _answer(self, request: _Request) -> dict[str, Any]:
        try:
            do: Callable[[_Request], object] = getattr(self, f"do_{request['do']}")
            return {"answer": to_builtins(do(request))}
        except MrcError as exc:
            return {"error": str(exc), "kind": type(exc).__name__}
        except ValueError as exc:
            return {"error": str(exc), "kind": ArgumentError.__name__}
        except OSError as exc:
            return {"error": str(exc), "kind": StateError.__name__}

    def _wanted(self, request: _Request) -> Part:
        found = state.decode(request["state"])
        return Part.of(self._name, found.shape, found.machines)

    def _ready(self, request: _Request) -> Callable[[], None] | None:
        if not request.get("waits"):
            return None

        def ready() -> None:
            self._say({"answer": "ready"})
            self._requests.readline()

        return ready

    def do_look(self, request: _Request) -> bool:
        return self._wanted(request).is_up()

    def do_build(self, request: _Request) -> None:
        if lacks := netns.lacks():
            raise StateError(
                f"a test bed over several machines requires root on each: needs {lacks}"
            )
        bed = self._wanted(request)
        bed.build()
        self._unfinished = bed

    def do_try(self, _: _Request) -> None:
        bed = self._unfinished
        assert bed is not None and bed.machines is not None
        check_tunnels(bed.plan, bed.machines)

    def do_commit(self, _: _Request) -> None:
        assert self._unfinished is not None
        self._unfinished.commit()
        self._unfinished = None

    def do_down(self, _: _Request) -> object:
        self._unfinished = None
        return Testbed(self._name).down()

    def _bed(self) -> Part:
        found = state.load(self._name)
        if found is None or not found.up:
            raise ConnectError(f"test bed {self._name} is not up there; was it restarted?")
        bed = self._known
        if bed is None or (bed.shape, bed.machines) != (found.shape, found.machines):
            bed = self._known = Part.of(self._name, found.shape, found.machines)
        return bed

    def do_hello(self, _: _Request) -> None:
        self._bed()

    def do_check(self, request: _Request) -> None:
        self._bed().check_faults(convert(request["faults"], dict[str, Fault]))

    def do_fail(self, request: _Request) -> None:
        bed, wanted = self._bed(), convert(request["faults"], dict[str, Fault])
        bed.set_faults(bed.by_target(wanted), self._ready(request))

    def do_heal(self, request: _Request) -> list[str]:
        return self._bed().heal(request["target"], self._ready(request))

    def do_drain(self, request: _Request) -> bool:
        return self._bed().drain(request["target"])

    def do_undrain(self, request: _Request) -> list[str]:
        return self._bed().undrain(request["target"])

    def do_links(self, _: _Request) -> object:
        return self._bed().links()

    def do_measure(self, request: _Request) -> object:
        return self._bed().measure(request["seconds"])

    def do_times(self, _: _Request) -> processes.Times:
        return processes.processor_times()

    def do_lost(self, _: _Request) -> dict[str, str]:
        return self._bed().lost()

    def do_missing(self, _: _Request) -> list[str]:
        return self._bed().missing()

    def do_mptcp(self, request: _Request) -> None:
        bed = self._bed()
        if request["host"] in bed.plan.configs:
            bed.prepare_mptcp(request["host"])


def serve(name: str, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests about a test bed until they end, or SIGTERM or SIGHUP comes."""

    def end(signum: int, _: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)
    _Server(name, requests, answers).serve()
