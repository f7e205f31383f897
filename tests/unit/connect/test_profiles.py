# SPDX-License-Identifier: Apache-2.0
"""The life cycle of profiles against its table; paths that an EV profile chooses and denies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mrc.config import CcParameters
from mrc.connect.profiles import (
    ALLOWED,
    LEGAL_MOVES,
    CcProfile,
    CcSettings,
    ContextProfiles,
    EvProfile,
    EvSelection,
    ProfileOperation,
    ProfileState,
)
from mrc.enums import CcKind
from mrc.errors import ArgumentError, ConfigError, InUseError, MrcError, StateError
from mrc.fabric.paths import EvAttr, PathEv

ROOT = Path(__file__).resolve().parents[3]
INIT, OFFLINE, ONLINE = ProfileState

# Repeated here, so that the tables of the source are not checked against themselves.
MOVES = {(INIT, OFFLINE), (OFFLINE, ONLINE), (OFFLINE, INIT), (ONLINE, OFFLINE)}
MAY = {
    (OFFLINE, ProfileOperation.MODIFY),
    (OFFLINE, ProfileOperation.DENY),
    (ONLINE, ProfileOperation.DENY),
    (ONLINE, ProfileOperation.USE),
    (INIT, ProfileOperation.DESTROY),
}


def path(plane: int, name: str) -> PathEv:
    address = ip_address("127.0.0.1")
    attr = EvAttr(plane, 0, address, address, 1000 + plane, 0, 4791)
    return PathEv(attr, name)


def moved(profile: EvProfile, *states: ProfileState) -> EvProfile:
    for state in states:
        move_of(profile, state)()
    return profile


def move_of(profile: EvProfile, state: ProfileState) -> Callable[[], None]:
    return {INIT: profile.to_init, OFFLINE: profile.to_offline, ONLINE: profile.to_online}[state]


def in_state(state: ProfileState, **selection: Any) -> EvProfile:
    ways: dict[ProfileState, tuple[ProfileState, ...]] = {
        INIT: (),
        OFFLINE: (OFFLINE,),
        ONLINE: (OFFLINE, ONLINE),
    }
    return moved(EvProfile("p", EvSelection(**selection)), *ways[state])


# ---- Life cycle -----------------------------------------------------------------------------


def test_tables__are_those_of_this_test() -> None:
    assert {(a, b) for a, targets in LEGAL_MOVES.items() for b in targets} == MOVES
    assert {(state, op) for state, ops in ALLOWED.items() for op in ops} == MAY


def test_tables__are_those_of_the_documentation() -> None:
    text = (ROOT / "mrc/connect/profiles.md").read_text()
    for state in ProfileState:
        moves = ", ".join(to.name for to in ProfileState if to in LEGAL_MOVES[state])
        may = ", ".join(op.value for op in ProfileOperation if op in ALLOWED[state])
        assert f"| {state.name} | {moves} | {may} |" in text


@pytest.mark.parametrize("start", ProfileState)
@pytest.mark.parametrize("end", ProfileState)
def test_move__every_pair_of_states(start: ProfileState, end: ProfileState) -> None:
    profile = in_state(start)
    if (start, end) in MOVES:
        move_of(profile, end)()
        assert profile.state is end
    else:
        with pytest.raises(StateError, match=f"p: cannot move from {start.name} to {end.name}"):
            move_of(profile, end)()
        assert profile.state is start


@pytest.mark.parametrize("state", ProfileState)
@pytest.mark.parametrize("operation", ProfileOperation)
def test_check__every_operation_in_every_state(
    state: ProfileState, operation: ProfileOperation
) -> None:
    profile = in_state(state)
    if (state, operation) in MAY:
        profile._check(operation)
    else:
        with pytest.raises(StateError, match=f"cannot {operation.value}, it is {state.name}"):
            profile._check(operation)


def test_take__holds_the_profile_until_the_last_qp_is_gone() -> None:
    profile = in_state(ONLINE)
    profile._take()
    profile._take()
    profile.to_offline()  # no new QPs, but QPs that use it keep it
    with pytest.raises(StateError, match="be used by a new QP"):
        profile._take()
    for change in (profile.to_init, lambda: profile.modify(paths=("a",))):
        with pytest.raises(InUseError, match=r"in use by QPs \(2\)"):
            change()
    profile.give_back()
    with pytest.raises(InUseError, match=r"in use by QPs \(1\)"):
        profile.to_init()
    profile.give_back()
    profile.modify(paths=("a",))
    profile.to_init()
    assert (profile.state, profile.qps) == (INIT, 0)


def test_modify__what_is_wrong_changes_nothing() -> None:
    profile = in_state(OFFLINE, active_per_plane=2)
    with pytest.raises(ConfigError, match="active_per_plane: -1"):
        profile.modify(active_per_plane=-1)
    with pytest.raises(ArgumentError, match="has no field activ"):
        profile.modify(activ=1)
    assert profile.settings == EvSelection(active_per_plane=2)
    profile.modify(active_per_plane=3, denied=("x",))
    assert profile.settings == EvSelection(active_per_plane=3, denied=("x",))
    assert profile.denied == ("x",)


def test_cc_profile__lives_the_same_life() -> None:
    profile = CcProfile("cc", CcSettings(CcKind.NULL))
    profile.to_offline()
    profile.modify(kind=CcKind.NSCC, parameters=CcParameters(base_rtt_ns=20_000))
    profile.to_online()
    with pytest.raises(StateError):
        profile.modify(kind=CcKind.NULL)
    assert profile.settings == CcSettings(CcKind.NSCC, CcParameters(base_rtt_ns=20_000))


# ---- Profiles of a Context ------------------------------------------------------------------


def test_profiles__names_are_unique_and_free_again_after_the_end() -> None:
    default = EvProfile("default", EvSelection())
    profiles = ContextProfiles(default)
    assert (default.state, list(profiles)) == (ONLINE, ["default"])
    profile = profiles.add(EvProfile("p", EvSelection()))
    assert (profiles["p"], len(profiles)) == (profile, 2)
    with pytest.raises(InUseError, match="profile p: exists already"):
        profiles.add(EvProfile("p", EvSelection()))
    with pytest.raises(ArgumentError, match="name: is empty"):
        profiles.add(EvProfile("", EvSelection()))
    profile.to_offline()
    with pytest.raises(StateError, match="cannot be destroyed, it is OFFLINE"):
        profiles.destroy(profile)
    profile.to_init()
    profiles.destroy(profile)
    with pytest.raises(ArgumentError, match="p: does not belong to this Context"):
        profiles.destroy(profile)
    profiles.add(EvProfile("p", EvSelection()))
    moved(default, OFFLINE, INIT)
    with pytest.raises(ArgumentError, match="is the default"):
        profiles.destroy(default)
    assert profiles.find(None) is default


def test_find__the_default_its_own_and_no_other() -> None:
    default = EvProfile("default", EvSelection())
    profiles = ContextProfiles(default)
    assert profiles.find(None) is default
    assert profiles.find(default) is default
    with pytest.raises(ArgumentError, match="does not belong"):
        profiles.find(EvProfile("default", EvSelection()))


# ---- Paths that an EV profile chooses -------------------------------------------------------

EVS = [path(p, f"t1:{p}.{s}") for p in (1, 2) for s in (0, 1, 2)]


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ({}, ["t1:1.0", "t1:1.1", "t1:1.2", "t1:2.0", "t1:2.1", "t1:2.2"]),
        ({"planes": (2,)}, ["t1:2.0", "t1:2.1", "t1:2.2"]),
        ({"paths": ("*.2", "*.0")}, ["t1:1.2", "t1:1.0", "t1:2.2", "t1:2.0"]),
        ({"paths": ("*.2", "*")}, ["t1:1.2", "t1:1.0", "t1:1.1", "t1:2.2", "t1:2.0", "t1:2.1"]),
        ({"paths": ("t1:2.1", "t1:1.?"), "planes": (1,)}, ["t1:1.0", "t1:1.1", "t1:1.2"]),
        ({"paths": ("t1",)}, []),
    ],
    ids=str,
)
def test_choose__by_plane_then_by_the_order_of_the_patterns(
    selection: dict[str, Any], names: list[str]
) -> None:
    assert [ev.name for ev in EvSelection(**selection)._choose(EVS)] == names


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        ({"paths": ()}, "paths: is empty"),
        ({"paths": "t1:*"}, "paths: must be a list of names or patterns"),
        ({"denied": ("",)}, "denied: must be a list of names or patterns"),
        ({"planes": (0,)}, r"planes: \(0,\) are not within 1\.\.32"),
        ({"active_per_plane": 1025}, r"active_per_plane: 1025 is not within 0\.\.1024"),
    ],
)
def test_selection__refuses(selection: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        EvSelection(**selection)


# ---- Denied at run time ---------------------------------------------------------------------


class Follower:
    """A fake QP; records the denied EVs of its profile at each update."""

    def __init__(self, profile: EvProfile) -> None:
        self.profile = profile
        self.seen: list[list[str]] = []

    async def follow_profile(self) -> None:
        await asyncio.sleep(0)
        self.seen.append([ev.name for ev in EVS if self.profile.denies(ev.name)])


async def test_deny__tells_every_qp_and_stays_for_later_ones() -> None:
    profile = in_state(ONLINE, denied=("*.2",))
    one, other = Follower(profile), Follower(profile)
    profile._attach(one)
    profile._attach(other)
    await profile.deny("t1:1.?", "t1:2.0")
    await profile.allow("t1:1.?")
    profile._detach(other)
    profile._detach(other)
    await profile.allow("*.2", "t1:2.0")
    denied = [["t1:1.0", "t1:1.1", "t1:1.2", "t1:2.0", "t1:2.2"], ["t1:1.2", "t1:2.0", "t1:2.2"]]
    assert one.seen == [*denied, []]
    assert other.seen == denied
    assert profile.denied == ()


async def test_deny__refuses() -> None:
    profile = in_state(INIT)
    with pytest.raises(StateError, match="cannot deny or allow EVs, it is INIT"):
        await profile.deny("x")
    profile.to_offline()
    for wrong in ((), ("",)):
        with pytest.raises(ArgumentError, match="paths"):
            await profile.deny(*wrong)
    await profile.deny("x")
    with pytest.raises(ArgumentError, match="'y' is not denied"):
        await profile.allow("x", "y")
    assert profile.denied == ("x",)


# ---- Any order of calls ---------------------------------------------------------------------


class ProfileLife(RuleBasedStateMachine):
    """Calls in any order, compared with a model of state, users and settings."""

    def __init__(self) -> None:
        super().__init__()
        self.profiles: ContextProfiles[EvProfile] = ContextProfiles(
            EvProfile("default", EvSelection())
        )
        self.profile = self.profiles.add(EvProfile("p", EvSelection()))
        self.state, self.users, self.active = INIT, 0, 0

    def attempt(self, call: Callable[[], object], *, legal: bool) -> bool:
        """Makes the call and checks that it succeeds or is refused as the model predicts."""
        try:
            call()
        except MrcError as error:
            assert isinstance(error, StateError | InUseError)
            assert not legal, f"refused: {error}"
        else:
            assert legal, "was not refused"
        return legal

    @rule(to=st.sampled_from(ProfileState))
    def move(self, to: ProfileState) -> None:
        legal = (self.state, to) in MOVES and not (to is INIT and self.users)
        if self.attempt(move_of(self.profile, to), legal=legal):
            self.state = to

    @rule(active=st.integers(0, 1024))
    def modify(self, active: int) -> None:
        legal = self.state is OFFLINE and not self.users
        if self.attempt(lambda: self.profile.modify(active_per_plane=active), legal=legal):
            self.active = active

    @rule()
    def take(self) -> None:
        if self.attempt(self.profile._take, legal=self.state is ONLINE):
            self.users += 1

    @precondition(lambda self: self.users)
    @rule()
    def give_back(self) -> None:
        self.profile.give_back()
        self.users -= 1

    @rule()
    def destroy_and_make_anew(self) -> None:
        if self.attempt(lambda: self.profiles.destroy(self.profile), legal=self.state is INIT):
            assert self.users == 0, "a profile that QPs refer to is never destroyed"
            self.profile = self.profiles.add(EvProfile("p", EvSelection()))
            self.active = 0

    @invariant()
    def is_as_the_model(self) -> None:
        profile = self.profile
        assert (profile.state, profile.qps) == (self.state, self.users)
        assert profile.settings.active_per_plane == self.active
        assert self.profiles["p"] is profile


ProfileLife.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestProfileLife = ProfileLife.TestCase
