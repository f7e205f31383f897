# SPDX-License-Identifier: Apache-2.0
"""The life cycle of profiles, their selections and denylists; EVs of QPs over loopback."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from endpoints import (
    BUDGET_SECONDS,
    LOOPBACK,
    Pair,
    connected_pair,
    loopback_config,
    pattern,
    spawn,
    transfer,
    two_planes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import mrc
from mrc import (
    QP,
    CompletionError,
    ConnectError,
    Context,
    EventReason,
    EvEvent,
    EvState,
    PathError,
    WcStatus,
)
from mrc.config import CcParameters, Retries, Spraying
from mrc.connect.profiles import (
    ALLOWED,
    LEGAL_MOVES,
    CcProfile,
    CcSettings,
    ContextProfiles,
    EvController,
    EvProfile,
    EvSelection,
    ProfileOperation,
    ProfileState,
)
from mrc.engine.dispatch import Dispatcher
from mrc.engine.native import Command
from mrc.engine.paths import EvAttr, PathEv
from mrc.engine.queue_pair import QueuePair
from mrc.enums import CcKind, PlaneShares
from mrc.errors import ArgumentError, ConfigError, InUseError, MrcError, StateError

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
    attr = EvAttr(plane, 0, address, address, 1000 + plane, 0, 4791, plane)
    return PathEv(attr, name)


def moved(profile: EvProfile, *states: ProfileState) -> EvProfile:
    for state in states:
        move_of(profile, state)()
    return profile


def move_of(profile: EvProfile, state: ProfileState) -> Callable[[], None]:
    return {INIT: profile.to_init, OFFLINE: profile.to_offline, ONLINE: profile.to_online}[state]


def in_state(state: ProfileState, **selection: Any) -> EvProfile:
    way = (INIT, OFFLINE, ONLINE)
    return moved(EvProfile("p", **selection), *way[1 : way.index(state) + 1])


# ---- Life cycle -----------------------------------------------------------------------------


def test_tables__are_those_of_this_test() -> None:
    assert {(a, b) for a, targets in LEGAL_MOVES.items() for b in targets} == MOVES
    assert {(state, op) for state, ops in ALLOWED.items() for op in ops} == MAY


def test_tables__are_those_of_the_documentation() -> None:
    text = (ROOT / "mrc/connect/README.md").read_text()
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
    with pytest.raises(ConfigError, match=r"^active_per_plane: must be .*, not -1$"):
        profile.modify(active_per_plane=-1)
    with pytest.raises(ArgumentError, match="has no field activ"):
        profile.modify(activ=1)
    assert profile.settings == EvSelection(active_per_plane=2)
    profile.modify(active_per_plane=3, denied=("x",))
    assert profile.settings == EvSelection(active_per_plane=3, denied=("x",))
    assert profile.denied == ("x",)


def test_cc_profile__lives_the_same_life() -> None:
    profile = CcProfile("cc", CcKind.NULL)
    profile.to_offline()
    profile.modify(kind=CcKind.NSCC, parameters=CcParameters(base_rtt_ns=20_000))
    profile.to_online()
    with pytest.raises(StateError):
        profile.modify(kind=CcKind.NULL)
    assert profile.settings == CcSettings(CcKind.NSCC, CcParameters(base_rtt_ns=20_000))


# ---- Profiles of a Context ------------------------------------------------------------------


def test_profiles__names_are_unique_and_free_again_after_the_end() -> None:
    default = EvProfile("default")
    profiles = ContextProfiles(default)
    assert (default.state, list(profiles)) == (ONLINE, ["default"])
    profile = profiles.add(EvProfile("p"))
    assert (profiles["p"], len(profiles)) == (profile, 2)
    with pytest.raises(InUseError, match="profile p: exists already"):
        profiles.add(EvProfile("p"))
    with pytest.raises(ArgumentError, match="name: is empty"):
        profiles.add(EvProfile(""))
    profile.to_offline()
    with pytest.raises(StateError, match="cannot be destroyed, it is OFFLINE"):
        profiles.destroy(profile)
    profile.to_init()
    profiles.destroy(profile)
    with pytest.raises(ArgumentError, match="p: does not belong to this Context"):
        profiles.destroy(profile)
    profiles.add(EvProfile("p"))
    moved(default, OFFLINE, INIT)
    with pytest.raises(ArgumentError, match="is the default"):
        profiles.destroy(default)
    assert profiles.find(None) is default


def test_find__the_default_its_own_and_no_other() -> None:
    default = EvProfile("default")
    profiles = ContextProfiles(default)
    assert profiles.find(None) is default
    assert profiles.find(default) is default
    with pytest.raises(ArgumentError, match="does not belong"):
        profiles.find(EvProfile("default"))


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
        ({"paths": "t1:*"}, "^paths: must be a sequence, not 't1"),
        ({"denied": ("",)}, r"^denied\[0\]: must be a string that is not empty, not ''"),
        ({"planes": (0,)}, r"^planes\[0\]: must be a whole number from 1 to 32, not 0"),
        (
            {"active_per_plane": 1025},
            r"^active_per_plane: must be a whole number from 0 to 1024, not 1025$",
        ),
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
    users: list[Any] = profile._users
    users += [one, other]
    await profile.deny("t1:1.?", "t1:2.0")
    await profile.allow("t1:1.?")
    users.remove(other)
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


# ---- The EVs of one QP ---------------------------------------------------------------------------


PATHS = ("lo>127.0.0.1#1", "lo>127.0.0.1#2", "lo>127.0.0.2#1", "lo>127.0.0.2#2")


@asynccontextmanager
async def contexts() -> AsyncIterator[tuple[Context, Context]]:
    config = loopback_config(**two_planes(spraying=Spraying(evs_per_pair=2)))
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(config) as near, mrc.open(config) as far:
        yield near, far


@asynccontextmanager
async def pair_with(
    near: Context, far: Context, ev: EvProfile | None = None, cc: CcProfile | None = None
) -> AsyncIterator[Pair]:
    async with (
        await far.listen(LOOPBACK[4], 0) as listener,
        await near.connect(LOOPBACK[4], listener.port, ev_profile=ev, cc_profile=cc) as qp,
        await listener.accept() as other,
    ):
        yield Pair(near, far, listener, qp, other)


async def refused(near: Context, far: Context, ev: EvProfile | None = None,
                  cc: CcProfile | None = None) -> MrcError:  # fmt: skip
    """The error of a connect with these profiles."""
    with pytest.raises(MrcError) as caught:
        async with pair_with(near, far, ev, cc):
            pass
    return caught.value


P = TypeVar("P", EvProfile, CcProfile)


def online(profile: P) -> P:
    profile.to_offline()
    profile.to_online()
    return profile


GOOD, DENIED = EvState.GOOD, EvState.DENIED


async def states(qp: QP) -> list[EvState]:
    """A busy host may have an EV sit out a turn: it is as good."""
    return [GOOD if ev.state is EvState.SKIP else ev.state for ev in await qp.evs()]


# ---- Profiles -------------------------------------------------------------------------------


async def test_ev_profile__decides_which_evs_a_qp_has() -> None:
    async with contexts() as (near, far):
        profile = near.ev_profile(
            "p", paths=("*#2", "*"), active_per_plane=1, denied=("*2#1",), planes=(1, 2)
        )
        assert near.ev_profiles["p"] is profile
        async with pair_with(near, far, ev=online(profile)) as pair:
            evs = await pair.near.evs()
            assert [ev.path for ev in evs] == [PATHS[1], PATHS[0], PATHS[3], PATHS[2]]
            assert [ev.state for ev in evs] == [GOOD, GOOD, GOOD, DENIED]
            assert evs[3].sent_probes == evs[3].sent_packets == 0  # not even at connect
            assert sum(ev.active for ev in evs if ev.plane == 1) == 1
            assert (await states(pair.far)) == [GOOD] * 4
            assert await transfer(pair, pattern(1 << 20)) == pattern(1 << 20)
            assert (await pair.near.evs())[3].sent_packets == 0
            assert (profile.qps, near.ev_profiles["default"].qps) == (1, 0)
        assert profile.qps == 0


async def test_ev_profile__only_an_online_one_makes_qps() -> None:
    async with contexts() as (near, far):
        profile = far.ev_profile("p")
        mine = near.ev_profile("mine")
        async with await far.listen(LOOPBACK[4], 0, ev_profile=profile) as listener:
            with pytest.raises(ConnectError, match=r"profile p: cannot be used .* it is INIT"):
                await near.connect(LOOPBACK[4], listener.port)
            online(profile)
            with pytest.raises(StateError, match="profile mine: cannot be used"):
                await near.connect(LOOPBACK[4], listener.port, ev_profile=mine)
            with pytest.raises(ArgumentError, match="profile p: does not belong"):
                await near.connect(LOOPBACK[4], listener.port, ev_profile=profile)
            async with await near.connect(LOOPBACK[4], listener.port) as qp:
                other = await listener.accept()
                assert other.ev_profile is profile
                assert qp.ev_profile is near.ev_profiles["default"]
                profile.to_offline()
                with pytest.raises(InUseError, match=r"in use by QPs \(1\)"):
                    profile.to_init()
                await other.close()
            profile.to_init()
            far.destroy_profile(profile)
            assert profile.state is ProfileState.INIT
            assert list(far.ev_profiles) == ["default"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"paths": ("t1:*",)}, "EV profile p has no path to 127.0.0.1"),
        ({"denied": ("*",)}, "EV profile p denies every path to 127.0.0.1"),
    ],
    ids=str,
)
async def test_ev_profile__that_leaves_nothing(
    options: dict[str, tuple[str, ...]], problem: str
) -> None:
    async with contexts() as (near, far):
        profile = online(near.ev_profile("p", **options))  # type: ignore[arg-type]
        error = await refused(near, far, ev=profile)
        assert isinstance(error, PathError) and problem in str(error)
        assert profile.qps == 0
        await profile.deny("x")  # no QP is left to follow it


async def test_ev_profile__a_text_in_place_of_a_sequence() -> None:
    async with contexts() as (near, _):
        with pytest.raises(ArgumentError, match=r"^paths: must be a sequence, not "):
            near.ev_profile("p", paths="t1:*")


async def test_cc_profile__is_what_its_qps_run() -> None:
    async with contexts() as (near, far):
        parameters = CcParameters(base_rtt_ns=1_000_000, max_cwnd=100_000, disable_qa=True)
        profile = near.cc_profile("fabric", parameters=parameters)
        assert near.cc_profiles["fabric"].settings.kind is CcKind.NSCC
        error = await refused(near, far, cc=profile)
        assert isinstance(error, StateError) and "profile fabric: cannot be used" in str(error)
        async with pair_with(near, far, cc=online(profile)) as pair:
            assert await transfer(pair, pattern(1 << 20)) == pattern(1 << 20)
            assert 0 < (await pair.near.info()).cwnd_bytes <= 100_000
            assert (await pair.far.info()).cwnd_bytes > 100_000
            assert profile.qps == 1
        assert profile.qps == 0


async def test_cc_profile__plane_shares_are_what_its_qps_have() -> None:
    async with contexts() as (near, far):
        profile = near.cc_profile("equal", kind=CcKind.DELAY, plane_shares=PlaneShares.EQUAL)
        assert profile.settings == CcSettings(CcKind.DELAY, plane_shares=PlaneShares.EQUAL)
        with pytest.raises(
            ConfigError, match=r"^plane_shares: must be PlaneShares.*, not 'equal'$"
        ):
            near.cc_profile("text", plane_shares="equal")  # type: ignore[arg-type]
        assert "text" not in near.cc_profiles
        async with pair_with(near, far, cc=online(profile)) as pair:
            assert pair.near.cc_profile.settings.plane_shares is PlaneShares.EQUAL


async def test_cc_profile__a_window_below_the_path_mtu() -> None:
    async with contexts() as (near, far):
        profile = online(near.cc_profile("tight", parameters=CcParameters(max_cwnd=256)))
        error = await refused(near, far, cc=profile)
        assert isinstance(error, ConfigError)
        assert "tight: max_cwnd 256 is below the path MTU" in str(error)
        assert profile.qps == 0


# ---- Denied at run time ---------------------------------------------------------------------


async def test_deny__by_index_name_and_pattern() -> None:
    async with contexts() as (near, far), pair_with(near, far) as pair:
        qp = pair.near
        events = qp.events()
        assert await qp.deny(0) == (0,)
        assert await qp.deny(PATHS[2], "*#1") == (2, 0)
        assert await states(qp) == [DENIED, GOOD, DENIED, GOOD]
        before = [ev.sent_packets for ev in await qp.evs()]
        await transfer(pair, pattern(1 << 20))
        after = [ev.sent_packets for ev in await qp.evs()]
        assert (before[0], before[2]) == (after[0], after[2])
        assert before[1] < after[1]
        assert await qp.allow("*#1") == (0, 2)
        assert await states(qp) == [GOOD] * 4
        told = [await anext(events) for _ in range(4)]
        assert told == [
            EvEvent(index, 1 + index // 2, PATHS[index], state, EventReason.CONTROLLER)
            for index, state in ((0, DENIED), (2, DENIED), (0, GOOD), (2, GOOD))
        ]
        for wrong in (4, -1, "t1:*"):
            with pytest.raises(ArgumentError, match="has no EV"):
                await qp.deny(wrong)


async def test_deny__by_the_profile_reaches_all_its_qps_and_no_other() -> None:
    async with contexts() as (near, far):
        profile = online(near.ev_profile("p"))
        async with (
            pair_with(near, far, ev=profile) as one,
            pair_with(near, far, ev=profile) as two,
            pair_with(near, far) as other,
        ):
            await two.near.deny(0)
            await profile.deny("*127.0.0.1*")
            for pair in (one, two):
                assert await states(pair.near) == [DENIED, DENIED, GOOD, GOOD]
                assert await transfer(pair, pattern(100_000)) == pattern(100_000)
            assert await states(other.near) == [GOOD] * 4
            with pytest.raises(StateError, match=r"127\.0\.0\.1#2 is denied by profile p"):
                await one.near.allow(1)
            async with pair_with(near, far, ev=profile) as late:
                assert await states(late.near) == [DENIED, DENIED, GOOD, GOOD]
            await profile.allow("*127.0.0.1*")
            assert await states(one.near) == [GOOD] * 4
            assert await states(two.near) == [DENIED, GOOD, GOOD, GOOD]  # its own setting stays
        assert profile._users == []


async def test_close__before_the_start_and_again() -> None:
    profile = EvProfile("p")
    engine, queue = cast(Dispatcher, SlowEngine()), QueuePair(1, 128, 1)
    EvController(engine, queue, [], profile).close()
    controller = EvController(engine, queue, [], profile)
    await controller.start()
    assert profile._users == [controller]
    for _ in range(2):
        controller.close()
        assert profile._users == []


async def test_deny__everything_is_the_end_of_all_paths_and_of_nothing_else() -> None:
    few = Retries(ack_timeout_exponent=6, linear=1, exponential=1)
    async with connected_pair(spraying=Spraying(evs_per_pair=2), retries=few) as pair:
        await pair.near.deny("*")
        with pytest.raises(CompletionError) as caught:
            await pair.near.write(imm=1)
        assert caught.value.status is WcStatus.RETRY_EXC_ERR
        profile = pair.near_context.ev_profiles["default"]
        await profile.deny("*#1")  # a failed QP gets the change, too
        assert await states(pair.near) == [DENIED, DENIED]


async def test_deny__many_at_once_leave_what_the_last_one_wanted() -> None:
    async with contexts() as (near, far), pair_with(near, far) as pair:
        profile, qp = near.ev_profiles["default"], pair.near
        for _ in range(20):
            calls = [profile.deny("*#1"), qp.deny(1), qp.allow(1), profile.allow("*#1")]
            await asyncio.gather(*calls, qp.deny(3))
            assert await states(qp) == [GOOD, GOOD, GOOD, DENIED]
            await qp.allow(3)


async def test_deny__while_the_qps_of_a_profile_come_and_go() -> None:
    async with contexts() as (near, far):
        profile = near.ev_profiles["default"]

        async def churn() -> None:
            for _ in range(5):
                async with pair_with(near, far) as pair:
                    await pair.near.write(imm=1)

        churning = [spawn(churn()) for _ in range(2)]
        while not all(task.done() for task in churning):
            await profile.deny("*#2")
            await profile.allow("*#2")
            await asyncio.sleep(0)  # without a QP there is nothing to wait for
        await asyncio.gather(*churning)
        assert profile.qps == 0


async def test_set_ev_state__goes_with_the_denylist() -> None:
    async with contexts() as (near, far), pair_with(near, far) as pair:
        await pair.near.set_ev_state(0, DENIED)
        assert await pair.near.deny(0) == (0,)
        await pair.near.set_ev_state(0, GOOD)
        assert await states(pair.near) == [GOOD] * 4
        await near.ev_profiles["default"].deny(PATHS[0])
        with pytest.raises(StateError, match="denied by profile default"):
            await pair.near.set_ev_state(0, GOOD)


async def test_hold_back__stays_denied_whatever_the_caller_allows() -> None:
    async with contexts() as (near, far), pair_with(near, far) as pair:
        await pair.near._controller.hold_back([1])
        with pytest.raises(StateError, match="leads to an address that has not answered"):
            await pair.near.allow(1)
        assert (await states(pair.near))[1] is DENIED


WORDS = ["*", "*1", "*2", *PATHS]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["deny", "allow"]),
        st.sampled_from(["profile", "one", "two"]),
        st.sampled_from(WORDS),
        st.integers(0, 3),  # turns of the loop before the next call
    ),
    max_size=12,
)


class SlowEngine:
    """A fake dispatcher of one QP: runs commands in order, replies a turn later."""

    def __init__(self) -> None:
        self.states = [GOOD] * len(PATHS)

    def call(self, command: Command, what: str) -> asyncio.Future[int]:
        fields = command.fields
        assert self.states[fields["value"]] is not fields["key"], f"{what}: sent twice"
        self.states[fields["value"]] = EvState(fields["key"])
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[int] = loop.create_future()
        loop.call_soon(reply.set_result, 0)
        return reply


async def play(calls: list[tuple[str, str, str, int]]) -> None:
    """Makes the calls, some at the same time, and compares the result with two sets of patterns."""
    profile = online(EvProfile("p"))
    address = ip_address("127.0.0.1")
    attr = EvAttr(1, 0, address, address, 1, 0, 4791, 1)
    evs = [PathEv(attr, name) for name in PATHS]
    engines = {name: SlowEngine() for name in ("one", "two")}
    controllers = {
        name: EvController(cast(Dispatcher, engine), QueuePair(1, 128, 1), evs, profile)
        for name, engine in engines.items()
    }
    for controller in controllers.values():
        await controller.start()
    by_profile: set[str] = set()
    own: dict[str, set[str]] = {"one": set(), "two": set()}
    under_way = []
    for verb, who, word, turns in calls:
        fits = {path for path in PATHS if fnmatchcase(path, word)}
        if who == "profile":
            legal = verb == "deny" or word in by_profile
            by_profile = by_profile | {word} if verb == "deny" else by_profile - {word}
        else:
            denied = {p for p in PATHS if any(fnmatchcase(p, w) for w in by_profile)}
            legal = verb == "deny" or not fits & denied
            if legal:
                own[who] = own[who] | fits if verb == "deny" else own[who] - fits
        target = profile if who == "profile" else controllers[who]
        under_way.append((spawn(getattr(target, verb)(word)), legal))
        await asyncio.sleep(0)  # a call takes its decisions before its first wait
        for _ in range(turns):
            await asyncio.sleep(0)
    for task, legal in under_way:
        if legal:
            await task
        else:
            with pytest.raises((ArgumentError, StateError)):
                await task
    for name, engine in engines.items():
        denied = {p for p in PATHS if any(fnmatchcase(p, word) for word in by_profile)}
        wanted = [DENIED if p in denied | own[name] else GOOD for p in PATHS]
        assert engine.states == wanted, name


@settings(max_examples=150, deadline=None)
@given(CALLS)
def test_denylist__any_calls_at_once_leave_what_qp_or_profile_deny(
    calls: list[tuple[str, str, str, int]],
) -> None:
    asyncio.run(play(calls))


# ---- Probes ---------------------------------------------------------------------------------


async def test_probe_evs__one_result_for_each_in_order() -> None:
    async with contexts() as (near, far), pair_with(near, far) as pair:
        await pair.near.deny(1)
        before = [ev.sent_probes for ev in await pair.near.evs()]
        patient: dict[str, Any] = {"concurrency": 2, "timeout": BUDGET_SECONDS}
        results = await pair.near.probe_evs(payload=pair.near.path_mtu, **patient)
        assert [result.index for result in results] == [0, 1, 2, 3]
        assert [result.error for result in results] == [0, errno.EPERM, 0, 0]
        assert [result.answered for result in results] == [True, False, True, True]
        assert all((result.rtt_ns is not None) is result.answered for result in results)
        sent = [ev.sent_probes - old for ev, old in zip(await pair.near.evs(), before, strict=True)]
        assert sent == [1, 0, 1, 1]
        some = await pair.near.probe_evs(["*#2", 0, 3], **patient)
        assert [result.index for result in some] == [1, 3, 0]
        assert await pair.near.probe_evs([]) == ()


async def test_probe_evs__silence_is_a_result() -> None:
    async with contexts() as (near, far), pair_with(near, far) as pair:
        await pair.far.abort()
        results = await pair.near.probe_evs(timeout=0.01)
        assert {result.error for result in results} == {errno.ETIMEDOUT}
        assert not any(result.answered or result.rtt_ns for result in results)


async def test_probe_evs__refuses() -> None:
    async with contexts() as (near, far), pair_with(near, far) as pair:
        for options, problem in (
            ({"concurrency": 0}, "concurrency"),
            ({"timeout": 0.0}, "timeout"),
            ({"payload": 1 << 20}, "payload"),
        ):
            with pytest.raises(ArgumentError, match=problem):
                await pair.near.probe_evs(**options)
        with pytest.raises(ArgumentError, match="has no EV 4"):
            await pair.near.probe_evs([4])
