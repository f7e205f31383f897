# SPDX-License-Identifier: Apache-2.0
"""A test bed over several machines, from one of them: asks each to do its part."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Self

from msgspec import convert, to_builtins

from mrc.errors import ConnectError, MrcError
from mrc.fabric.targets import Target
from mrc.linux.processors import Times
from mrc.testbed import cut, hops, state
from mrc.testbed.bed import Testbed
from mrc.testbed.fault import Fault
from mrc.testbed.machines import Machine, Machines
from mrc.testbed.names import DEFAULT_NAME, MANAGEMENT
from mrc.testbed.nft import Ready
from mrc.testbed.plan import Plan, make_plan
from mrc.testbed.programs import Removal
from mrc.testbed.results import Link
from mrc.testbed.session import Session
from mrc.testbed.shape import Shape, as_argument_error
from mrc.testbed.state import State

_log = logging.getLogger("mrc.testbed")


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
    def plan(self) -> Plan:
        return make_plan(self.name, self.shape)

    @cached_property
    def own(self) -> Testbed:
        """The part of this machine."""
        return Testbed.of(self.name, self.shape, self.machines)

    def _state(self) -> State:
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
            stored = state.encode(State(self.shape, machines=self.machines.seen_by(place)))
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
        return {str(hop): found[str(hop)] for hop in hops.all_hops(self.shape) if str(hop) in found}

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


def existing(name: str = DEFAULT_NAME) -> Testbed:
    """The test bed of this name, whether it is over several machines or not. It must be up."""
    found = state.load(name)
    if found is None or found.machines is None:
        return Testbed.existing(name)
    return SpreadTestbed.existing(name)


def named(name: str) -> Testbed:
    """As `existing`, but it may be down or half built."""
    found = state.load(name)
    return Testbed(name) if found is None else of(name, found.shape, found.machines)


def of(name: str, shape: Shape, machines: Machines | None) -> Testbed:
    """A test bed of this shape, on this machine alone or over several."""
    if machines is None:
        return Testbed.of(name, shape)
    return SpreadTestbed.of(name, shape, machines)
