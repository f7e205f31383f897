# SPDX-License-Identifier: Apache-2.0
"""A test bed over several machines, from one of them: asks each to do its part.

A process on each machine (`mrc testbed part`) serves its part of the test bed. A question is a line
of JSON, and so is an answer.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import FrameType
from typing import Any, BinaryIO, Self

from msgspec import convert, to_builtins
from msgspec.structs import replace

import mrc
from mrc.cli.arguments import add
from mrc.cli.output import Output
from mrc.errors import ConnectError, MrcError, NetlinkError, StateError
from mrc.lab.machines import (
    OVERHEAD,
    BedMachine,
    Machines,
    check_partition,
    machine_shares,
    owners_of,
    toward,
)
from mrc.linux import netns, system
from mrc.testbed import build, state
from mrc.testbed import capture as captures
from mrc.testbed import plan as plans
from mrc.testbed.bed import Testbed
from mrc.testbed.child import BlockingChild
from mrc.testbed.cli.main import Action
from mrc.testbed.faults import Fault, Hop
from mrc.testbed.plan import BedLink, BedPlan, MachineShare
from mrc.testbed.results import Removed
from mrc.testbed.server import answer_of, answered
from mrc.testbed.shape import MANAGEMENT, Shape
from mrc.testbed.signals import FirstSignal
from mrc.testbed.topology import Target

_log = logging.getLogger("mrc.testbed")


HELLO = "mrc_testbed_part"
"""key of the first line, with the version of mrc"""

_BANNERS = 100  # lines that a login may print before
_END_SECONDS = 60.0


class Session:
    """The process on one machine, from now on until `close`. `own`: this machine is that one."""

    def __init__(self, machine: BedMachine, name: str, *, own: bool) -> None:
        """Does not wait. Raises ConnectError if the program that reaches the machine is missing."""
        words = ["part", "--name", name]
        argv = machine.command(words)
        if own:
            argv = [sys.executable, "-P", "-m", "mrc", "testbed", *words]
        try:
            # It ends by the end of its input, and then removes what it did not finish.
            self._child = BlockingChild(argv, ties=False)
        except FileNotFoundError as exc:
            raise ConnectError(system.not_found(argv[0])) from exc
        self._greeted = False

    def send(self, request: dict[str, Any]) -> None:
        """Never fails: `receive` does."""
        self._child.send(json.dumps(request).encode())

    def receive(self) -> Any:
        """The next answer. Raises ConnectError if the machine does not answer, and the MrcError
        that it answers with.
        """
        if not self._greeted:
            self._greet()
        return answered(self._read())

    def _greet(self) -> None:
        for _ in range(_BANNERS):
            with suppress(ValueError):
                found = self._read()
                if isinstance(found, dict) and HELLO in found:
                    break
        else:
            raise ConnectError("prints other lines than those of mrc testbed part")
        if found[HELLO] != mrc.__version__:
            raise StateError(
                f"has mrc {found[HELLO]}, and this machine {mrc.__version__}: "
                "install the same version on all machines"
            )
        self._greeted = True

    def _read(self) -> Any:
        if not (line := self._child.line()):
            raise ConnectError(self._child.last_words())
        return json.loads(line)

    def end(self) -> None:
        """Has the process end, which then removes what it did not finish."""
        self._child.end(at_once=True)

    def close(self) -> None:
        """Waits until the process has ended."""
        self.end()
        self._child.close(_END_SECONDS)


class SpreadTestbed(Testbed):
    """A test bed over several machines. `plan` is that of the whole.

    A machine that does not answer is left out, with a warning; `unreachable` names it.
    """

    machines: Machines

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.unreachable: dict[str, str] = {}
        """machine -> why it does not answer"""
        self._sessions: dict[str, Session] = {}

    @classmethod
    def of(cls, name: str, shape: Shape, machines: Machines | None = None) -> Self:
        assert machines is not None
        check_partition(shape, len(machines.every))
        return super().of(name, shape, machines)

    @cached_property
    def plan(self) -> BedPlan:
        return plans.make_plan(self.name, self.shape)

    @cached_property
    def own(self) -> Testbed:
        """The part of this machine."""
        return Testbed.of(self.name, self.shape, self.machines)

    def _state(self) -> state.BedState:
        return self.own._state()

    @cached_property
    def owners(self) -> dict[str, int]:
        """Node -> its machine. `mgmt` means that of this machine."""
        return {MANAGEMENT: self.machines.here} | owners_of(self.plan, len(self.machines.every))

    # ---- Questions to all machines --------------------------------------------------------------

    def _ask(self, do: str, *, ready: build.Ready | None = None, **request: Any) -> dict[str, Any]:
        """Machine -> its answer, of those that answer. `ready`: every machine prepares, and goes
        on when this returns.

        Raises an error that a machine answers with, after all have answered: that of this machine,
        if it has one.
        """
        begun = []
        for place, machine in enumerate(self.machines.every):
            if machine.name in self.unreachable or (session := self._session(place)) is None:
                continue
            there = state.BedState(self.shape, machines=replace(self.machines, here=place))
            stored = state.encode(there)
            session.send({"do": do, "state": stored, "waits": ready is not None, **request})
            begun.append(machine)
        wrong: dict[str, MrcError] = {}
        if ready is not None:
            begun = [each for each in begun if self._receive(each, wrong) is not None]
            ready()
            for machine in begun:
                self._sessions[machine.name].send({})
        answers = {each.name: self._receive(each, wrong) for each in begun}
        if own := wrong.get(self.machines.every[self.machines.here].name):
            raise own
        for name, error in wrong.items():
            raise type(error)(f"{name}: {error}")
        return {name: answer[0] for name, answer in answers.items() if answer is not None}

    def _change(self, do: str, *, ready: build.Ready | None = None, **request: Any) -> list[Any]:
        """The answers; a warning names the machines that do not answer."""
        known = {*self.unreachable}
        answers = self._ask(do, ready=ready, **request)
        for name, why in self.unreachable.items():
            if name not in known:
                _log.warning("%s is lost, and left out: %s", name, why)
        return list(answers.values())

    def _session(self, place: int) -> Session | None:
        """None: the machine cannot be reached."""
        machine = self.machines.every[place]
        try:
            if machine.name not in self._sessions:
                own = place == self.machines.here
                self._sessions[machine.name] = Session(machine, self.name, own=own)
            return self._sessions[machine.name]
        except ConnectError as exc:
            self.unreachable[machine.name] = str(exc)
            return None

    def _receive(self, machine: BedMachine, wrong: dict[str, MrcError]) -> tuple[Any] | None:
        """None: it does not answer, or with an error, which `wrong` takes."""
        try:
            return (self._sessions[machine.name].receive(),)
        except ConnectError as exc:
            self.unreachable[machine.name] = str(exc)
        except MrcError as exc:
            wrong[machine.name] = exc
        return None

    def close(self) -> None:
        """Ends the processes on all machines. What an `up` has not finished is removed there."""
        for session in self._sessions.values():
            session.end()
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    # ---- What a Testbed does --------------------------------------------------------------------

    def up(self) -> bool:
        if all(self._ask_every("look").values()):
            return False
        try:
            self._ask_every("build")
            self._ask_every("try")
        except BaseException:
            self._clean(self.unreachable)
            raise
        try:
            self._ask_every("commit")
        except BaseException:
            self._clean(self.machines.names)
            raise
        return True

    def _ask_every(self, do: str) -> dict[str, Any]:
        """Raises ConnectError if a machine does not answer."""
        answers = self._ask(do)
        for name, why in self.unreachable.items():
            raise ConnectError(f"{name} does not answer: {why}")
        return answers

    def _clean(self, names: Iterable[str]) -> None:
        """Ends an `up` that failed: each machine removes its part, those of `names` by a process of
        their own, as the one before ended.
        """
        broken = {*names}
        self.close()
        self.unreachable = {each: "" for each in self.machines.names if each not in broken}
        with suppress(MrcError):
            self._ask("down")
        self.close()

    def down(self) -> Removed:
        found = [convert(each, Removed) for each in self._ask("down").values()]
        return Removed(
            name=self.name,
            removed=any(each.removed for each in found),
            ended=tuple(program for each in found for program in each.ended),
            left=tuple(program for each in found for program in each.left),
            unreachable=dict(self.unreachable),
        )

    def set_faults(self, wanted: Mapping[Target, Fault], ready: build.Ready | None = None) -> None:
        told = {str(target): to_builtins(fault) for target, fault in wanted.items()}
        self._change("check", faults=told)
        self._change("fail", faults=told, ready=ready)

    def heal(self, target: str = "all", ready: build.Ready | None = None) -> list[str]:
        self._target(target)
        return _joined(self._change("heal", target=target, ready=ready))

    def drain(self, target: str) -> bool:
        return any(self._change("drain", target=target))

    def undrain(self, target: str = "all") -> list[str]:
        self._target(target)
        return _joined(self._change("undrain", target=target))

    def lost(self) -> dict[str, str]:
        return {
            end: target for found in self._ask("lost").values() for end, target in found.items()
        }

    def missing(self) -> list[str]:
        """Nodes that no longer exist on machines that answer."""
        return [node for found in self._ask("missing").values() for node in found]

    def links(self) -> dict[str, dict[str, int]]:
        """Without those of machines that do not answer."""
        found = {link: its for each in self._ask("links").values() for link, its in each.items()}
        return {str(hop): found[str(hop)] for hop in Hop.every(self.shape) if str(hop) in found}

    def processor_times(self) -> dict[str, system.Times]:
        return convert(self._ask("times"), dict[str, system.Times])

    def connect(self) -> None:
        self._change("hello")

    def prepare_mptcp(self, host: str) -> None:
        self._host_number(host)
        self._change("mptcp", host=host)

    def elsewhere(self, where: str) -> BedMachine | None:
        machine = self.owners[self._node(where).name]
        return None if machine == self.machines.here else self.machines.every[machine]

    def shares(self) -> tuple[MachineShare, ...]:
        return machine_shares(self.plan, self.machines, self.unreachable)

    def host_command(
        self, host: str, command: Sequence[str], *, user: str | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """As in a Testbed. On another machine, it runs `mrc testbed exec` there."""
        machine = self.elsewhere(host)
        if machine is None:
            return self.own.host_command(host, command, user=user)
        words = ["exec", "--name", self.name, host, *(["--user", user] if user else [])]
        terminal = os.isatty(0) and os.isatty(1)
        return machine.command([*words, "--", *command], terminal=terminal), dict(os.environ)


def _joined(answers: Iterable[list[str]]) -> list[str]:
    """What any of them has, once."""
    return list(dict.fromkeys(each for answer in answers for each in answer))


# ---- The part on one machine ---------------------------------------------------------------------
#
# What is built but not committed when stdin ends is removed: so nothing is left behind if the
# machine where `up` runs, or the connection, dies.


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


def _named(machine: BedMachine) -> str:
    return f"{machine.name} ({machine.address})"


def _answers(plan: BedPlan, end: build.LinkEnd, size: int) -> bool:
    """Whether the kernel at the other end of a link echoes a packet of this size."""
    node, interface = end
    with netns.inside(plan.nodes[node].namespace):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        index = socket.if_nametoindex(interface)
    with sock:
        identifier = os.getpid() & 0xFFFF
        for number in range(_TRIES):
            head = _ECHO.pack(_ECHO_REQUEST, 0, 0, identifier, number)
            sock.sendto(head + bytes(size - _HEADERS_BYTES), (str(BedLink.LOWER), 0, 0, index))
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


class BedPart(Testbed):
    """What this machine has of a test bed over several."""

    def is_up(self) -> bool:
        """As `up` returns, but builds nothing."""
        with state.lock():
            return self._is_up()

    def build(self) -> None:
        """Build it up to the point where `commit` says that all machines have their part."""
        Testbed.require_programs()
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


class _PartServer:
    def __init__(self, name: str, requests: BinaryIO, answers: BinaryIO) -> None:
        self._name = name
        self._requests = requests
        self._answers = answers
        self._unfinished: BedPart | None = None
        self._known: BedPart | None = None
        """the test bed of the last request: a plan of a large one takes a second"""

    def serve(self) -> None:
        try:
            self._say({HELLO: mrc.__version__})
            for line in self._requests:
                request = json.loads(line)
                self._say(answer_of(lambda: self._done(request)))  # noqa: B023  # at once
        finally:
            if self._unfinished is not None:
                self._unfinished.down()

    def _say(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer).encode() + b"\n")
        self._answers.flush()

    def _wanted(self, request: _Request) -> BedPart:
        found = state.decode(request["state"])
        return BedPart.of(self._name, found.shape, found.machines)

    def _ready(self, request: _Request) -> Callable[[], None] | None:
        if not request.get("waits"):
            return None

        def ready() -> None:
            self._say({"answer": "ready"})
            self._requests.readline()

        return ready

    def _done(self, request: _Request) -> object:
        """What answers a request. Those before `down` are parts of an `up`."""
        match request["do"]:
            case "look":
                return self._wanted(request).is_up()
            case "build":
                if lacks := netns.lacks():
                    raise StateError(
                        f"a test bed over several machines requires root on each: needs {lacks}"
                    )
                bed = self._wanted(request)
                bed.build()
                self._unfinished = bed
            case "try":
                assert self._unfinished is not None and self._unfinished.machines is not None
                check_tunnels(self._unfinished.plan, self._unfinished.machines)
            case "commit":
                assert self._unfinished is not None
                self._unfinished.commit()
                self._unfinished = None
            case "down":
                self._unfinished = None
                return Testbed(self._name).down()
            case "times":
                return system.processor_times()
            case _:
                return self._done_by(self._bed(), request)
        return None

    def _bed(self) -> BedPart:
        if self._known is not None and self._known.is_current():
            return self._known
        found = state.load(self._name)
        if found is None or not found.up:
            raise ConnectError(f"test bed {self._name} is not up there; was it restarted?")
        self._known = BedPart.of(self._name, found.shape, found.machines)
        return self._known

    def _done_by(self, bed: BedPart, request: _Request) -> object:
        """What a test bed answers that is up."""
        match request["do"]:
            case "check":
                bed.check_faults(convert(request["faults"], dict[str, Fault]))
            case "fail":
                wanted = bed.by_target(convert(request["faults"], dict[str, Fault]))
                bed.set_faults(wanted, self._ready(request))
            case "heal":
                return bed.heal(request["target"], self._ready(request))
            case "drain":
                return bed.drain(request["target"])
            case "undrain":
                return bed.undrain(request["target"])
            case "links":
                return bed.links()
            case "lost":
                return bed.lost()
            case "missing":
                return bed.missing()
            case "mptcp" if request["host"] in bed.plan.configs:
                bed.prepare_mptcp(request["host"])
        return None  # also of "hello"


def serve_part(name: str, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests about a test bed until they end, or SIGTERM or SIGHUP comes."""

    def end(signum: int, _: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)
    _PartServer(name, requests, answers).serve()


# ---- Commands ------------------------------------------------------------------------------------


PART = """\
Serve the part of a test bed that is on this machine, over stdin and stdout.
mrc testbed starts this on the machines of up --on; nobody has to type it.
"""
PART_OPTIONS = """
--traffic  instead serve mrc testbed run: pass on what the processes in the hosts of this machine
           are told and say
"""


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = PART
    add(parser, PART_OPTIONS)


def run_part(args: argparse.Namespace) -> int:
    if args.traffic:
        from mrc.sim.hosts import serve_relay  # slow import: the simulator

        serve_relay(args.name)
    else:
        serve_part(args.name, sys.stdin.buffer, sys.stdout.buffer)
    return 0


def forward(machine: BedMachine, words: Sequence[str]) -> int:
    """Replaces this process by `mrc testbed` on another machine."""
    argv = machine.command(words, terminal=os.isatty(0) and os.isatty(1))
    if system.find(argv[0]) is None:
        raise StateError(f"{machine.name}: {system.not_found(argv[0])}")
    return os.execvp(argv[0], argv)


def capture(args: argparse.Namespace, out: Output, machine: BedMachine) -> int:
    """Captures on another machine of the test bed. The end of its stdin ends it."""
    words = ["capture", "--name", args.name, args.where, "-", "--until-eof"]
    words += ["--snaplen", str(args.snaplen)]
    words += ["--count", str(args.count)] if args.count is not None else []
    words += ["--seconds", str(args.seconds)] if args.seconds is not None else []
    pipe, result = subprocess.PIPE, None
    with (
        FirstSignal() as ending,
        captures.opened(args.file) as file,
        subprocess.Popen(
            machine.command(words), bufsize=0, stdin=pipe, stdout=file, stderr=pipe, process_group=0
        ) as process,
    ):
        assert process.stdin is not None and process.stderr is not None
        while True:
            if not process.stdin.closed:
                ending.wait(None, process.stderr.fileno())
            if ending.signum is not None:
                process.stdin.close()
            line = process.stderr.readline().decode(errors="replace").strip()
            if not line:
                break
            said = line.removeprefix(f"{args.prog}: ")
            if said.startswith("{"):
                result = convert(json.loads(said), captures.Captured)
            else:
                out.note(f"{machine.name}: {said}")
        process.stdin.close()
        code = process.wait()
    if result is None:
        return code
    result.tell(out)
    return 0


ACTIONS = {"part": Action(run_part, add_part_arguments, "nothing", prints=False)}
