# SPDX-License-Identifier: Apache-2.0
"""EV profiles and CC profiles: what a controller prepares, by name, and QPs refer to.

A profile is set up while it is OFFLINE, and new QPs may use it while it is ONLINE. Nothing of it
changes under a QP, but for the EVs that the controller denies at run time. The states and their
order are OCP's, as known at second hand; what is allowed in which is our reading of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Generic, Protocol, TypeVar

from mrc import limits
from mrc.config import CcParameters, check_plane_shares
from mrc.enums import CcKind, PlaneShares
from mrc.errors import ArgumentError, ConfigError, InUseError, StateError
from mrc.fabric.paths import PathEv

DEFAULT = "default"
"""The name of the profile that every Context has, ONLINE and as its configuration says."""


class ProfileState(Enum):
    """Where a profile stands in its life."""

    INIT = "INIT"
    OFFLINE = "OFFLINE"
    ONLINE = "ONLINE"


class Operation(Enum):
    """What may be asked of a profile."""

    MODIFY = "be modified"
    USE = "be used by a new QP"
    DENY = "deny or allow EVs"
    DESTROY = "be destroyed"


LEGAL_MOVES: dict[ProfileState, frozenset[ProfileState]] = {
    ProfileState.INIT: frozenset({ProfileState.OFFLINE}),
    ProfileState.OFFLINE: frozenset({ProfileState.ONLINE, ProfileState.INIT}),
    ProfileState.ONLINE: frozenset({ProfileState.OFFLINE}),
}
ALLOWED: dict[ProfileState, frozenset[Operation]] = {
    ProfileState.INIT: frozenset({Operation.DESTROY}),
    ProfileState.OFFLINE: frozenset({Operation.MODIFY, Operation.DENY}),
    ProfileState.ONLINE: frozenset({Operation.USE, Operation.DENY}),
}


@dataclass(frozen=True, slots=True)
class EvSelection:
    """Which EVs a QP takes of those that lead to its peer, and in which order.

    `paths` and `denied` are names of paths as `QP.evs()` has them, or patterns with `*`, `?` and
    `[...]`. EVs are numbered by plane, and in a plane by the first of `paths` that fits.
    """

    paths: tuple[str, ...] = ("*",)
    """Names or patterns of the paths to use."""
    planes: tuple[int, ...] = ()
    """Planes to use; empty: all."""
    active_per_plane: int = 0
    """EVs in rotation on each plane; 0: all."""
    denied: tuple[str, ...] = ()
    """Names or patterns of paths that are denied."""

    def __post_init__(self) -> None:
        for name in ("paths", "denied"):
            patterns = getattr(self, name)
            if isinstance(patterns, str) or not all(patterns):
                raise ConfigError(f"{name}: must be names or patterns that are not empty")
        if not self.paths:
            raise ConfigError("paths: there is none")
        if any(not 1 <= plane <= limits.MAX_PORTS for plane in self.planes):
            raise ConfigError(f"planes: {self.planes} are not within 1..{limits.MAX_PORTS}")
        if not 0 <= self.active_per_plane <= limits.MAX_EVS:
            span = f"0..{limits.MAX_EVS}"
            raise ConfigError(f"active_per_plane: {self.active_per_plane} is not within {span}")

    def choose(self, evs: Sequence[PathEv]) -> list[PathEv]:
        """The EVs that are taken, in order."""
        ranked = []
        for place, ev in enumerate(evs):
            rank = next((i for i, p in enumerate(self.paths) if fnmatchcase(ev.name, p)), None)
            if rank is not None and (not self.planes or ev.attr.port in self.planes):
                ranked.append((ev.attr.port, rank, place))
        return [evs[place] for *_, place in sorted(ranked)]


@dataclass(frozen=True, slots=True)
class CcSettings:
    """A congestion control and its parameters."""

    kind: CcKind = CcKind.DELAY
    """The congestion control."""
    parameters: CcParameters = field(default_factory=CcParameters)
    """Its parameters, for CcKind.NSCC."""
    plane_shares: PlaneShares = PlaneShares.MEASURED
    """How planes share the load."""

    def __post_init__(self) -> None:
        check_plane_shares(self.plane_shares)


Settings = TypeVar("Settings", bound=EvSelection | CcSettings)


class Profile(Generic[Settings]):
    """Named settings with a life cycle; see LEGAL_MOVES and ALLOWED."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._settings = settings
        self._state = ProfileState.INIT
        self._qps = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {self._state.name}, {self._qps} QPs>"

    @property
    def state(self) -> ProfileState:
        """INIT, OFFLINE or ONLINE."""
        return self._state

    @property
    def settings(self) -> Settings:
        """What a QP gets; frozen."""
        return self._settings

    @property
    def qps(self) -> int:
        """How many QPs refer to it, those that are being connected included."""
        return self._qps

    def to_offline(self) -> None:
        """From INIT to set it up, or from ONLINE: then QPs keep it, but no new one may use it."""
        self._move(ProfileState.OFFLINE)

    def to_online(self) -> None:
        """From OFFLINE: from now on new QPs may use it."""
        self._move(ProfileState.ONLINE)

    def to_init(self) -> None:
        """From OFFLINE, to be destroyed. Raises InUseError while a QP uses it."""
        self._move(ProfileState.INIT)

    def modify(self, **changes: Any) -> None:
        """Changes fields of `settings`; OFFLINE and unused only.

        Raises StateError, InUseError or, for a value out of range, ConfigError, and then nothing
        has changed.
        """
        self.check(Operation.MODIFY)
        self._check_unused()
        unknown = set(changes) - set(self._settings.__dataclass_fields__)
        if unknown:
            raise ArgumentError(f"profile {self.name}: there is no {', '.join(sorted(unknown))}")
        self._settings = replace(self._settings, **changes)

    def check(self, operation: Operation) -> None:
        """Raises StateError when that may not be done in this state."""
        if operation not in ALLOWED[self._state]:
            state = self._state.name
            raise StateError(f"profile {self.name}: cannot {operation.value}, it is {state}")

    def _move(self, state: ProfileState) -> None:
        if state not in LEGAL_MOVES[self._state]:
            moves = f"from {self._state.name} to {state.name}"
            raise StateError(f"profile {self.name}: no move {moves}")
        if state is ProfileState.INIT:
            self._check_unused()
        self._state = state

    def _check_unused(self) -> None:
        if self._qps:
            raise InUseError(f"profile {self.name}: in use by QPs ({self._qps})")

    def take(self) -> None:
        """For a new QP: refers to the profile until `give_back`."""
        self.check(Operation.USE)
        self._qps += 1

    def give_back(self) -> None:
        """The QP ended."""
        assert self._qps > 0
        self._qps -= 1


class CcProfile(Profile[CcSettings]):
    """A congestion control with its parameters."""


class EvUser(Protocol):
    """A QP, as far as its EV profile is concerned."""

    async def follow_profile(self) -> None:
        """Denies and allows EVs until they are as the profile says; none when it is closed."""


class EvProfile(Profile[EvSelection]):
    """A selection of EVs, and the denylist of those that use it."""

    def __init__(self, name: str, settings: EvSelection) -> None:
        super().__init__(name, settings)
        self._denied = dict.fromkeys(settings.denied)
        self._users: list[EvUser] = []

    @property
    def denied(self) -> tuple[str, ...]:
        """The names and patterns that are denied now."""
        return tuple(self._denied)

    def modify(self, **changes: Any) -> None:
        """As `Profile.modify`; `denied` replaces what was denied since."""
        super().modify(**changes)
        if "denied" in changes:
            self._denied = dict.fromkeys(self.settings.denied)

    def denies(self, path: str) -> bool:
        """True when the EV of this path is DENIED."""
        return any(fnmatchcase(path, pattern) for pattern in self._denied)

    async def deny(self, *paths: str) -> None:
        """Denies paths, by name or pattern, to all QPs of the profile: nothing is sent there.

        Returns when every QP that uses it has done so; holds for later QPs too.
        """
        self.check(Operation.DENY)
        if not paths or not all(paths):
            raise ArgumentError("paths: name at least one, and none may be empty")
        self._denied.update(dict.fromkeys(paths))
        await self._tell()

    async def allow(self, *paths: str) -> None:
        """Takes back what was denied under the same name or pattern."""
        self.check(Operation.DENY)
        for path in paths:
            if path not in self._denied:
                raise ArgumentError(f"profile {self.name}: {path!r} is not denied")
        for path in paths:
            self._denied.pop(path, None)
        await self._tell()

    async def _tell(self) -> None:
        await asyncio.gather(*(user.follow_profile() for user in self._users))

    def attach(self, user: EvUser) -> None:
        """From now on the QP, which has its EVs, follows the denylist."""
        self._users.append(user)

    def detach(self, user: EvUser) -> None:
        """The QP ends."""
        if user in self._users:
            self._users.remove(user)


AnyProfile = TypeVar("AnyProfile", bound=EvProfile | CcProfile)


class Profiles(Mapping[str, AnyProfile]):
    """The profiles of one kind that a Context has, by name, the default one first."""

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
        """Takes a new profile in; raises InUseError when there is one of that name."""
        if not profile.name:
            raise ArgumentError("name: is empty")
        if profile.name in self._profiles:
            raise InUseError(f"there is a profile {profile.name} already")
        self._profiles[profile.name] = profile
        return profile

    def destroy(self, profile: AnyProfile) -> None:
        """Ends a profile that is in INIT, and so has no QP."""
        self.find(profile)
        if profile is self._default:
            raise ArgumentError(f"profile {profile.name}: is the one of those that name none")
        profile.check(Operation.DESTROY)
        del self._profiles[profile.name]

    def find(self, profile: AnyProfile | None) -> AnyProfile:
        """The profile itself, or the default for None; raises ArgumentError for a strange one."""
        if profile is None:
            return self._default
        if self._profiles.get(profile.name) is not profile:
            raise ArgumentError(f"profile {profile.name}: does not belong to this Context")
        return profile
