# SPDX-License-Identifier: Apache-2.0
"""The EVs of one plane beside a list of states and a set for the rotation."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from models.library import ffi, library

QUICK = settings(max_examples=10, stateful_step_count=50)
LONG = settings(max_examples=500, stateful_step_count=100)
GOOD, SKIP, ASSUMED_BAD, DENIED, UNPROVEN = range(5)
NONE = 0xFFFF
EVS = st.integers(0, 15)


class EvMachine(RuleBasedStateMachine):
    """The engine chooses the backup; the model checks that one joins, and of which kind."""

    @initialize(n=st.integers(1, 16), active=st.integers(0, 16))
    def start(self, n: int, active: int) -> None:
        lib = library()
        self.n, self.now = n, 0
        self.set = ffi().gc(lib.shim_evset_new(n, active), lib.shim_evset_free)
        self.target = n if active == 0 else min(n, active)
        self.floor = max(1, self.target // 4)
        self.bad_since: dict[int, int] = {}
        self.states = [GOOD] * n
        self.rotation = self.see()[1]
        assert len(self.rotation) == self.target

    def see(self) -> tuple[list[int], set[int]]:
        out = ffi().new("struct shim_ev *")
        states, rotation = [], set()
        for ev in range(self.n):
            library().shim_evset_look(self.set, ev, out)
            states.append(out.state)
            rotation |= {ev} if out.active else set()
        return states, rotation

    def happen(self, event: int, ev: int) -> int:
        self.now += 1
        return int(library().shim_evset_event(self.set, event, ev, self.now))

    def backups(self) -> set[int]:
        return {ev for ev in range(self.n) if self.states[ev] == GOOD} - self.rotation

    def leave(self, ev: int) -> None:
        """The EV leaves the rotation; a backup, if any, joins it."""
        if ev not in self.rotation:
            return
        rotation = self.see()[1]
        came = rotation - self.rotation
        assert self.rotation - rotation == {ev}
        assert came <= self.backups()
        assert len(came) == min(1, len(self.backups()))
        self.rotation = rotation

    @rule(ev=EVS)
    def mark(self, ev: int) -> None:
        ev %= self.n
        changes = ev in self.rotation and self.states[ev] == GOOD
        assert self.happen(library().SHIM_MARKED, ev) == changes
        if changes:
            self.states[ev] = SKIP

    @rule(ev=EVS)
    def clear(self, ev: int) -> None:
        ev %= self.n
        self.happen(library().SHIM_CLEAR, ev)
        if self.states[ev] == SKIP:  # a repeated mark's pause ends later
            self.states[ev] = self.see()[0][ev]
            assert self.states[ev] in (GOOD, SKIP)

    @rule(ev=EVS)
    def lose(self, ev: int) -> None:
        ev %= self.n
        usable = self.states[ev] in (GOOD, SKIP)
        at_floor = ev in self.rotation and len(self.rotation) <= self.floor and not self.backups()
        oldest = min(self.bad_since, key=lambda bad: self.bad_since[bad], default=None)
        changes = usable and not (at_floor and oldest is None)
        assert self.happen(library().SHIM_LOST, ev) == changes
        if not changes:
            return
        if at_floor and oldest is not None:
            self.states[oldest] = GOOD
            del self.bad_since[oldest]
        self.leave(ev)
        self.states[ev] = ASSUMED_BAD
        self.bad_since[ev] = self.now

    @rule(ev=EVS)
    def trust(self, ev: int) -> None:
        ev %= self.n
        changes = self.states[ev] in (ASSUMED_BAD, DENIED, UNPROVEN)
        assert self.happen(library().SHIM_TRUSTED, ev) == changes
        if changes:
            self.states[ev] = GOOD
            self.bad_since.pop(ev, None)
            self.rotation |= {ev} if len(self.rotation) < self.target else set()

    @rule(ev=EVS, state=st.sampled_from((DENIED, UNPROVEN)))
    def bar(self, ev: int, state: int) -> None:
        ev %= self.n
        event = library().SHIM_DENIED if state == DENIED else library().SHIM_UNPROVEN
        assert self.happen(event, ev) == (self.states[ev] != state)
        if self.states[ev] != state:
            self.leave(ev)
            self.states[ev] = state
            self.bad_since.pop(ev, None)

    @rule(turns=st.integers(1, 40))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            ev = self.happen(library().SHIM_TURN, 0)
            assert (ev == NONE) == (not self.rotation)
            if ev == NONE:
                return
            assert ev in self.rotation
            states = self.see()[0]
            for other in range(self.n):
                if other in self.rotation:
                    assert states[other] in (GOOD, SKIP)
                else:
                    assert states[other] == self.states[other]
            self.states = states

    @rule()
    def turn_all_around(self) -> None:
        """Without marks each EV of the rotation has its turn within two rounds."""
        if any(self.states[ev] == SKIP for ev in self.rotation) or self.has_skip_level():
            return
        seen = {self.happen(library().SHIM_TURN, 0) for _ in range(2 * len(self.rotation))}
        assert seen >= self.rotation

    def has_skip_level(self) -> bool:
        out = ffi().new("struct shim_ev *")
        for ev in self.rotation:
            library().shim_evset_look(self.set, ev, out)
            if out.skip_level > 0:
                return True
        return False

    @invariant()
    def states_agree(self) -> None:
        states, rotation = self.see()
        assert states == self.states
        assert rotation == self.rotation
        assert all(states[ev] in (GOOD, SKIP) for ev in rotation)
        assert all(states[ev] != SKIP for ev in set(range(self.n)) - rotation)
        assert len(rotation) == self.target or not self.backups()


class TestEvs(EvMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = QUICK


@pytest.mark.slow
class TestEvsLong(EvMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = LONG
