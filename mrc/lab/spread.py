# SPDX-License-Identifier: Apache-2.0
"""A test bed over several machines, from one of them: asks each to do its part.

A process on each machine (`mrc.lab.part`) serves its part of the test bed. A question is a line of
JSON, and so is an answer.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, Self

from msgspec import convert, to_builtins

from mrc import errors
from mrc.child import BlockingChild
from mrc.errors import ConnectError, MrcError, StateError
from mrc.fabric.targets import Target
from mrc.lab import cut
from mrc.lab.machines import Machine, Machines
from mrc.linux import programs
from mrc.linux.processes import Times
from mrc.testbed import state
from mrc.testbed.bed import Removal, Testbed
from mrc.testbed.build import Ready
from mrc.testbed.faults import Fault, all_hops
from mrc.testbed.plan import BedPlan, make_plan
from mrc.testbed.results import Link, MachineShare
from mrc.testbed.shape import MANAGEMENT, Shape, as_argument_error
from mrc.testbed.state import BedState

_log = logging.getLogger("mrc.testbed")


HELLO = "mrc_testbed_part"
"""key of the first line, with the version of mrc"""

_BANNERS = 100  # lines that a login may print before
_END_SECONDS = 60.0


@cache
def own_version() -> str:
    """The version of mrc on this machine."""
    from importlib.metadata import version  # slow import

    return version("mrc-transport")


class Session:
    """The process on one machine, from now on until `close`. `own`: this machine is that one."""

    def __init__(self, machine: Machine, name: str, *, own: bool) -> None:
        """Does not wait. Raises ConnectError if the program that reaches the machine is missing."""
        words = ["part", "--name", name]
        argv = machine.command(words)
        if own:
            argv = [sys.executable, "-P", "-m", "mrc", "testbed", *words]
        try:
            # It ends by the end of its input, and then removes what it did not finish.
            self._child = BlockingChild(argv, ties=False)
        except FileNotFoundError as exc:
            raise ConnectError(programs.not_found(argv[0])) from exc
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
        answer = self._read()
        if "error" in answer:
            kind = getattr(errors, answer["kind"], StateError)
            raise (kind if issubclass(kind, MrcError) else StateError)(answer["error"])
        return answer["answer"]

    def _greet(self) -> None:
        for _ in range(_BANNERS):
            with suppress(ValueError):
                found = self._read()
                if isinstance(found, dict) and HELLO in found:
                    break
        else:
            raise ConnectError("prints other lines than those of mrc testbed part")
        if found[HELLO] != own_version():
            raise StateError(
                f"has mrc {found[HELLO]}, and this machine {own_version()}: "
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
        with as_argument_error():
            cut.check(shape, len(machines.every))
        return super().of(name, shape, machines)

    @cached_property
    def plan(self) -> BedPlan:
        return make_plan(self.name, self.shape)

    @cached_property
    def own(self) -> Testbed:
        """The part of this machine."""
        return Testbed.of(self.name, self.shape, self.machines)

    def _state(self) -> BedState:
        return self.own._state()

    @cached_property
    def owners(self) -> dict[str, int]:
        """Node -> its machine. `mgmt` means that of this machine."""
        return {MANAGEMENT: self.machines.here} | cut.owners(self.plan, len(self.machines.every))

    # ---- Questions to all machines --------------------------------------------------------------

    def _ask(self, do: str, *, ready: Ready | None = None, **request: Any) -> dict[str, Any]:
        """Machine -> its answer, of those that answer. `ready`: every machine prepares, and goes
        on when this returns.

        Raises an error that a machine answers with, after all have answered: that of this machine,
        if it has one.
        """
        begun = []
        for place, machine in enumerate(self.machines.every):
            if machine.name in self.unreachable or (session := self._session(place)) is None:
                continue
            stored = state.encode(BedState(self.shape, machines=self.machines.seen_by(place)))
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

    def _change(self, do: str, *, ready: Ready | None = None, **request: Any) -> list[Any]:
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

    def _receive(self, machine: Machine, wrong: dict[str, MrcError]) -> tuple[Any] | None:
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

    def down(self) -> Removal:
        found = [convert(each, Removal) for each in self._ask("down").values()]
        return Removal(
            any(each.removed for each in found),
            tuple(program for each in found for program in each.ended),
            tuple(program for each in found for program in each.left),
            dict(self.unreachable),
        )

    def set_faults(self, wanted: Mapping[Target, Fault], ready: Ready | None = None) -> None:
        told = {str(target): to_builtins(fault) for target, fault in wanted.items()}
        self._change("check", faults=told)
        self._change("fail", faults=told, ready=ready)

    def heal(self, target: str = "all", ready: Ready | None = None) -> list[str]:
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
        return self._in_order(self._ask("links"))

    def measure(self, seconds: float) -> dict[str, Link]:
        """Without the links of machines that do not answer."""
        return convert(self._in_order(self._ask("measure", seconds=seconds)), dict[str, Link])

    def _in_order(self, answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        found = {link: told for answer in answers.values() for link, told in answer.items()}
        return {str(hop): found[str(hop)] for hop in all_hops(self.shape) if str(hop) in found}

    def processor_times(self) -> dict[str, Times]:
        return convert(self._ask("times"), dict[str, Times])

    def connect(self) -> None:
        self._change("hello")

    def prepare_mptcp(self, host: str) -> None:
        self._host_number(host)
        self._change("mptcp", host=host)

    def elsewhere(self, where: str) -> Machine | None:
        machine = self.owners[self._node(where).name]
        return None if machine == self.machines.here else self.machines.every[machine]

    def shares(self) -> tuple[MachineShare, ...]:
        return cut.machine_shares(self.plan, self.machines, self.unreachable)

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
