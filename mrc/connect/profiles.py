# SPDX-License-Identifier: Apache-2.0
"""A controller's decisions: the paths that a QP uses, and its reaction to congestion.

EV profiles and CC profiles are named settings that a controller prepares and QPs use. A profile is
set up while it is OFFLINE, and new QPs may use it while it is ONLINE. While a QP uses a profile,
only its denylist can change. The states and their order are OCP's, as known at second hand. The
operations allowed in each state are our reading of them. `EvController` applies a profile, and what
the QP's user denies, to the EVs of one QP, and probes them.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from mrc import limits
from mrc.config import CcParameters
from mrc.connect.proof import prove
from mrc.engine.dispatch import Dispatcher
from mrc.engine.paths import PathEv
from mrc.engine.queue_pair import QueuePair
from mrc.enums import CcKind, EvState, Named, PlaneShares
from mrc.errors import ArgumentError, ConfigError, InUseError, QueueFullError, StateError
from mrc.events import ProbeResult
from mrc.typed import Checked, Text, checked
from mrc.units import counted

_MOST_SECONDS = 3600  # until the answer to a probe
_EVS_ASKED = 4  # in each plane, whether they carry packets of the QP's size


# ---- Profiles ------------------------------------------------------------------------------------


class ProfileState(Named, Enum):
    """The state of a profile in its life cycle."""

    INIT = "INIT"
    OFFLINE = "OFFLINE"
    ONLINE = "ONLINE"


class ProfileOperation(Enum):
    """An operation on a profile; ALLOWED gives the states that permit it."""

    MODIFY = "be modified"
    USE = "be used by a new QP"
    DENY = "deny or allow EVs"
    DESTROY = "be destroyed"


LEGAL_MOVES: dict[ProfileState, frozenset[ProfileState]] = {
    ProfileState.INIT: frozenset({ProfileState.OFFLINE}),
    ProfileState.OFFLINE: frozenset({ProfileState.ONLINE, ProfileState.INIT}),
    ProfileState.ONLINE: frozenset({ProfileState.OFFLINE}),
}
ALLOWED: dict[ProfileState, frozenset[ProfileOperation]] = {
    ProfileState.INIT: frozenset({ProfileOperation.DESTROY}),
    ProfileState.OFFLINE: frozenset({ProfileOperation.MODIFY, ProfileOperation.DENY}),
    ProfileState.ONLINE: frozenset({ProfileOperation.USE, ProfileOperation.DENY}),
}


class EvSelection(Checked, Struct, frozen=True):
    """The EVs that a QP uses to reach its peer, and their order.

    `paths` and `denied` are names of paths as in `QP.evs()`, or patterns with `*`, `?` and `[...]`.
    EVs are numbered by plane. Within a plane they follow the first entry of `paths` that fits.
    """

    paths: tuple[Text, ...] = ("*",)
    """Names or patterns of the paths to use."""
    planes: tuple[Annotated[int, Meta(ge=1, le=limits.MAX_PORTS)], ...] = ()
    """Planes to use; empty: all."""
    active_per_plane: Annotated[int, Meta(ge=0, le=limits.MAX_EVS)] = 0
    """EVs in rotation on each plane; 0: all."""
    denied: tuple[Text, ...] = ()
    """Names or patterns of paths that are denied."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.paths:
            raise ConfigError('paths: is empty; use "*" for all paths')

    def _choose(self, evs: Sequence[PathEv]) -> list[PathEv]:
        """The selected EVs, in order."""
        ranked = []
        for place, ev in enumerate(evs):
            rank = next((i for i, p in enumerate(self.paths) if fnmatchcase(ev.name, p)), None)
            if rank is not None and (not self.planes or ev.attr.plane in self.planes):
                ranked.append((ev.attr.plane, rank, place))
        return [evs[place] for *_, place in sorted(ranked)]


class CcSettings(Checked, Struct, frozen=True):
    """A congestion control and its parameters."""

    kind: CcKind = CcKind.DELAY
    """The congestion control."""
    parameters: CcParameters = field(default_factory=CcParameters)
    """Its parameters, for CcKind.NSCC."""
    plane_shares: PlaneShares = PlaneShares.MEASURED
    """How planes share the load."""


Settings = TypeVar("Settings", bound=Struct)


class Profile(Generic[Settings]):
    """Named settings with a life cycle; see LEGAL_MOVES and ALLOWED."""

    _what, _users_are = "profile", "QPs"  # in errors

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = checked("name", name, str)
        self._settings = settings
        self._state = ProfileState.INIT
        self._qps = 0

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name}, {self._state.name}, {counted(self._qps, 'QP')}>"
        )

    @property
    def state(self) -> ProfileState:
        """INIT, OFFLINE or ONLINE."""
        return self._state

    @property
    def settings(self) -> Settings:
        """The settings that a QP gets; frozen."""
        return self._settings

    @property
    def qps(self) -> int:
        """The number of QPs that use the profile, including QPs that are still connecting."""
        return self._qps

    def to_offline(self) -> None:
        """Moves the profile from INIT, to set it up, or from ONLINE, to accept no new QPs.

        QPs that use the profile keep it.
        """
        self._move(ProfileState.OFFLINE)

    def to_online(self) -> None:
        """Moves the profile from OFFLINE. From now on new QPs may use it."""
        self._move(ProfileState.ONLINE)

    def to_init(self) -> None:
        """Moves the profile from OFFLINE, so that it can be destroyed.

        Raises InUseError while a QP uses it.
        """
        self._move(ProfileState.INIT)

    def modify(self, **changes: Any) -> None:
        """Changes fields of `settings`. The profile must be OFFLINE and unused.

        Raises StateError, InUseError or, for a value out of range, ConfigError. After an error
        nothing has changed.
        """
        self._check(ProfileOperation.MODIFY)
        self._check_unused()
        unknown = set(changes) - set(self._settings.__struct_fields__)
        if unknown:
            raise ArgumentError(f"{self._named}: has no field {', '.join(sorted(unknown))}")
        self._settings = replace(self._settings, **changes)

    def _check(self, operation: ProfileOperation) -> None:
        """Raises StateError if the profile's state does not allow the operation."""
        if operation not in ALLOWED[self._state]:
            state = self._state.name
            raise StateError(f"{self._named}: cannot {operation.value}, it is {state}")

    def check_usable(self) -> None:
        """Raises StateError if no QP may use it now."""
        self._check(ProfileOperation.USE)

    @property
    def _named(self) -> str:
        return f"{self._what} {self.name}"

    def _move(self, state: ProfileState) -> None:
        if state not in LEGAL_MOVES[self._state]:
            moves = f"from {self._state.name} to {state.name}"
            raise StateError(f"{self._named}: cannot move {moves}")
        if state is ProfileState.INIT:
            self._check_unused()
        self._state = state

    def _check_unused(self) -> None:
        if self._qps:
            raise InUseError(f"{self._named}: in use by {self._users_are} ({self._qps})")

    def _take(self) -> None:
        """Counts a new QP as a user, until `give_back`. Raises StateError."""
        self.check_usable()
        self._qps += 1

    def give_back(self) -> None:
        """Ends the use by one QP."""
        assert self._qps > 0
        self._qps -= 1


class CcProfile(Profile[CcSettings]):
    """A congestion control with its parameters."""

    def __init__(
        self,
        name: str,
        kind: CcKind = CcKind.DELAY,
        parameters: CcParameters | None = None,
        plane_shares: PlaneShares = PlaneShares.MEASURED,
    ) -> None:
        used = CcParameters() if parameters is None else parameters
        super().__init__(name, CcSettings(kind, used, plane_shares))


class EvProfile(Profile[EvSelection]):
    """A selection of EVs, and a denylist for all QPs that use the profile."""

    def __init__(
        self,
        name: str,
        *,
        paths: Sequence[str] = ("*",),
        planes: Sequence[int] = (),
        active_per_plane: int = 0,
        denied: Sequence[str] = (),
    ) -> None:
        """The arguments are the fields of EvSelection."""
        settings: dict[str, Any] = {"paths": paths, "planes": planes, "denied": denied}
        selection = EvSelection(**settings, active_per_plane=active_per_plane)
        super().__init__(name, selection)
        self._denied = dict.fromkeys(selection.denied)
        self._users: list[EvController] = []  # of the QPs that follow the denylist

    @property
    def denied(self) -> tuple[str, ...]:
        """The names and patterns that are denied now."""
        return tuple(self._denied)

    def modify(self, **changes: Any) -> None:
        """As `Profile.modify`. `denied` replaces the whole denylist, including later entries."""
        super().modify(**changes)
        if "denied" in changes:
            self._denied = dict.fromkeys(self.settings.denied)

    def denies(self, path: str) -> bool:
        """True if the profile denies the EV of this path."""
        return any(fnmatchcase(path, pattern) for pattern in self._denied)

    async def deny(self, *paths: str) -> None:
        """Denies paths, by name or pattern. QPs of the profile send nothing on denied paths.

        Returns when every QP of the profile has applied it. Later QPs apply it, too.
        """
        self._check(ProfileOperation.DENY)
        if not paths or not all(paths):
            raise ArgumentError("paths: give at least one name or pattern, none empty")
        self._denied.update(dict.fromkeys(paths))
        await self._update()

    async def allow(self, *paths: str) -> None:
        """Removes names or patterns from the denylist, exactly as they were given to `deny`."""
        self._check(ProfileOperation.DENY)
        for path in paths:
            if path not in self._denied:
                raise ArgumentError(f"profile {self.name}: {path!r} is not denied")
        for path in paths:
            self._denied.pop(path, None)
        await self._update()

    async def _update(self) -> None:
        await asyncio.gather(*(user.follow_profile() for user in self._users))

    def _control(self, dispatcher: Dispatcher, queue: QueuePair, evs: list[PathEv]) -> EvController:
        """What controls the EVs of a new QP."""
        return EvController(dispatcher, queue, evs, self)


AnyProfile = TypeVar("AnyProfile", bound=EvProfile | CcProfile)


class ContextProfiles(Mapping[str, AnyProfile]):
    """A Context's profiles of one kind by name, the default profile first."""

    def __init__(self, default: AnyProfile) -> None:
        self._default = default
        self._profiles = {default.name: default}
        default.to_offline()
        default.to_online()

    def __getitem__(self, name: str) -> AnyProfile:
        return self._profiles[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._profiles)

    def __len__(self) -> int:
        return len(self._profiles)

    def add(self, profile: AnyProfile) -> AnyProfile:
        """Adds a new profile. Raises InUseError if its name is taken."""
        if not profile.name:
            raise ArgumentError("name: is empty")
        if profile.name in self._profiles:
            raise InUseError(f"profile {profile.name}: exists already, choose another name")
        self._profiles[profile.name] = profile
        return profile

    def destroy(self, profile: AnyProfile) -> None:
        """Removes a profile. It must be in INIT, where no QP uses it."""
        self.find(profile)
        if profile is self._default:
            raise ArgumentError(f"profile {profile.name}: is the default, it cannot be destroyed")
        profile._check(ProfileOperation.DESTROY)
        del self._profiles[profile.name]

    def find(self, profile: AnyProfile | None) -> AnyProfile:
        """Returns the profile, or the default profile for None.

        Raises ArgumentError for a profile of another Context.
        """
        if profile is None:
            return self._default
        if self._profiles.get(profile.name) is not profile:
            raise ArgumentError(f"profile {profile.name}: does not belong to this Context")
        return profile


# ---- The EVs of one QP ---------------------------------------------------------------------------


class EvController:
    """The EVs of one QP. An EV is DENIED when its QP or its profile denies it, or when its
    destination address has never answered.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        queue: QueuePair,
        evs: list[PathEv],
        profile: EvProfile,
    ) -> None:
        self._dispatcher = dispatcher
        self._queue = queue
        self._evs = evs  # the QP's own list
        self._profile = profile
        self._own: set[int] = set()  # denied for this QP alone
        self._unproven: set[int] = set()  # to addresses that have not answered
        self._waiting: set[int] = set()  # that have not joined
        self._barred: dict[int, EvState] = {}  # DENIED or UNPROVEN, in the newest commands
        self._updating = asyncio.Lock()
        self._closed = False

    def named(self, *evs: int | str) -> tuple[int, ...]:
        """Indices of EVs, each once. `evs` holds indices, path names or patterns."""
        found: dict[int, None] = {}
        for ev in evs:
            if isinstance(ev, int):
                fits = [ev] if 0 <= ev < len(self._evs) else []
            else:
                fits = [i for i, path in enumerate(self._evs) if fnmatchcase(path.name, ev)]
            if not fits:
                raise ArgumentError(f"evs: QP {self._queue.qpn:#x} has no EV {ev}")
            found.update(dict.fromkeys(fits))
        return tuple(found)

    # Denylist

    async def start(self) -> tuple[int, ...]:
        """Applies the profile's denylist from now on. Returns the EVs that are not denied."""
        self._profile._users.append(self)
        await self.follow_profile()
        return tuple(i for i in range(len(self._evs)) if i not in self._barred)

    def close(self) -> None:
        """Ends with the QP: later changes of the profile do not reach it."""
        self._closed = True
        if self in self._profile._users:
            self._profile._users.remove(self)

    async def deny(self, *evs: int | str) -> tuple[int, ...]:
        indices = self.named(*evs)
        self._own.update(indices)
        await self._update()
        return indices

    async def allow(self, *evs: int | str) -> tuple[int, ...]:
        indices = self.named(*evs)
        for index in indices:
            path = self._evs[index].name
            if self._profile.denies(path):
                raise StateError(f"evs: {path} is denied by profile {self._profile.name}")
            if index in self._unproven:
                raise StateError(f"evs: {path} leads to an address that has not answered")
        self._own.difference_update(indices)
        await self._update()
        return indices

    async def hold_back(self, indices: Iterable[int]) -> None:
        """Denies EVs until the QP ends: their destination addresses have not answered."""
        self._unproven.update(indices)
        await self._update()

    async def set_state(self, ev: int, state: EvState) -> None:
        if len(indices := self.named(ev)) > 1:
            raise ArgumentError(
                f"ev: {ev} names {counted(len(indices), 'EV')}, only one can be set"
            )
        (index,) = indices
        if state is EvState.DENIED:
            await self.deny(index)
            return
        if state is EvState.GOOD:
            await self.allow(index)
        await self._set_state(index, state)

    async def follow_profile(self) -> None:
        """Denies and allows EVs to match the profile's denylist. Does nothing once closed."""
        try:
            await self._update()
        except StateError:
            if not self._closed:
                raise

    # EVs that join

    @property
    def evs(self) -> Sequence[PathEv]:
        """All EVs of the QP, by index."""
        return self._evs

    def waits(self, index: int) -> bool:
        """Whether the EV waits to join, or is held back."""
        return index in self._waiting or index in self._unproven

    @property
    def used(self) -> tuple[int, ...]:
        """The EVs that do not wait."""
        return tuple(index for index in range(len(self._evs)) if index not in self._waiting)

    async def add(self, evs: Sequence[PathEv]) -> tuple[int, ...]:
        """Adds the EVs that the profile selects to the QP. They carry only probes until they join.
        Returns their indices.
        """
        evs = self._profile.settings._choose(evs)
        if not evs:
            return ()
        command = self._queue.set_evs([ev.attr for ev in evs])
        await self._dispatcher.call(command, f"QP {self._queue.qpn:#x}: add EVs")
        indices = tuple(range(len(self._evs), len(self._evs) + len(evs)))
        self._evs.extend(evs)
        self._waiting.update(indices)
        self._barred |= dict.fromkeys(indices, EvState.UNPROVEN)
        await self._update()
        return indices

    async def wait(self, indices: Iterable[int]) -> None:
        """These EVs, which may have been held back, carry only probes until they join."""
        self._unproven.difference_update(indices)
        self._waiting.update(indices)
        await self._update()

    async def join(self, indices: Iterable[int]) -> None:
        """These EVs answered: they carry data from now on, unless they are denied."""
        self._waiting.difference_update(indices)
        await self._update()

    async def _update(self) -> None:
        """Sends the changed EV states to the engine. After several concurrent calls the engine has
        the changes of all callers.
        """
        async with self._updating:
            barred = dict.fromkeys(self._waiting, EvState.UNPROVEN)
            barred |= {
                index: EvState.DENIED
                for index, ev in enumerate(self._evs)
                if index in self._own or index in self._unproven or self._profile.denies(ev.name)
            }
            states = sorted(barred.items() - self._barred.items())
            states += [(index, EvState.GOOD) for index in sorted(self._barred.keys() - barred)]
            commands = [self._set_state(index, state) for index, state in states]
            # The engine runs the commands in order, even if this task is cancelled.
            self._barred = barred
            await asyncio.gather(*commands)

    def _set_state(self, index: int, state: EvState) -> asyncio.Future[int]:
        command = self._queue.set_ev_state(index, state)
        return self._dispatcher.call(command, f"QP {self._queue.qpn:#x}: set state of EV {index}")

    # Probes

    async def probe(self, index: int, payload: int, timeout: float) -> ProbeResult:
        self.named(index)
        if not 0 <= payload <= limits.MAX_MTU:
            raise ArgumentError(f"payload: {payload} is not within 0..{limits.MAX_MTU}")
        if not 0 < timeout <= _MOST_SECONDS:
            raise ArgumentError(f"timeout: {timeout} is not above 0 and up to {_MOST_SECONDS}")
        if self._barred.get(index) is EvState.DENIED:
            return ProbeResult(index, errno.EPERM, None)
        command = self._queue.probe_ev(index, payload=payload, timeout_ns=int(timeout * 1e9))
        what = f"QP {self._queue.qpn:#x}: probe EV {index}"
        return await self._dispatcher.probe(command, what)

    async def carried(self, most: int) -> int:
        """The largest payload that passes now; 0 if packets with `most` bytes pass, or if nothing
        answers.
        """
        planes = [ev.attr.plane for ev in self._evs]
        asked = [
            index
            for plane in sorted(set(planes))
            for index in [i for i, port in enumerate(planes) if port == plane][:_EVS_ASKED]
        ]

        def probe(place: int, payload: int, timeout: float) -> Awaitable[ProbeResult]:
            return self.probe(asked[place], payload, timeout)

        proof = await prove(
            probe, [None] * len(asked), most, planes=[planes[index] for index in asked]
        )
        passed = proof.carried.values()
        return 0 if most in passed else max(passed, default=0)

    async def probe_all(
        self, indices: Iterable[int], payload: int, timeout: float, concurrency: int
    ) -> tuple[ProbeResult, ...]:
        if concurrency < 1:
            raise ArgumentError("concurrency: must be positive")
        wanted = list(indices)
        waiting = iter(wanted)
        results: dict[int, ProbeResult] = {}

        async def work() -> None:
            for index in waiting:
                try:
                    results[index] = await self.probe(index, payload, timeout)
                except QueueFullError:  # probes of other QPs fill the engine's table
                    results[index] = ProbeResult(index, errno.EAGAIN, None)

        workers = (work() for _ in range(min(concurrency, len(wanted))))
        for ended in await asyncio.gather(*workers, return_exceptions=True):
            if ended is not None:
                raise ended
        return tuple(results[index] for index in wanted)
