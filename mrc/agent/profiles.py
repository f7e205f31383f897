# SPDX-License-Identifier: Apache-2.0
"""The profiles that MRC's C interface names by numbers: the agent's own, under these names."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from mrc.agent.ev_values import UNPOPULATED, VALUE_BYTES, Ev, GeneratedField, generated
from mrc.agent.formats import Formats, RefusedError, moved, state_number
from mrc.config import CcParameters
from mrc.control.profiles import (
    CcProfile,
    CcSettings,
    EvProfile,
    EvSelection,
    Profiles,
    ProfileState,
)
from mrc.engine.native import lib
from mrc.enums import CcKind
from mrc.units import digits

ALGORITHM = "uet-1.0-nscc"
MAX_EVS = 1024
MAX_PROFILES = 1024
_MILLION = 1e6

# ---- EVs ----------------------------------------------------------------------------------------


class Evs(Struct, eq=False):
    """What the C interface adds to an EV profile."""

    profile: EvProfile
    mode: int = int(lib.MRC_API_EVS_AUTO)
    format: int | None = None
    count: int = 0
    min_active: int = 0
    events: int = 0
    entries: list[Ev] = field(default_factory=list)
    fields: tuple[GeneratedField, ...] = ()
    bad: set[Ev] = field(default_factory=set)
    """EVs that a QP of this host takes for lost"""
    vendor: bytes = bytes(128)

    def state_of(self, name: str, ev: Ev) -> int:
        """MRC_API_EV_*"""
        if self.profile.denies(name):
            return int(lib.MRC_API_EV_DENIED)
        return int(lib.MRC_API_EV_ASSUMED_BAD if ev in self.bad else lib.MRC_API_EV_GOOD)


class EvProfiles:
    """The EV profiles of a host, by number."""

    def __init__(
        self, profiles: Profiles[EvProfile], formats: Formats, names: Mapping[Ev, str]
    ) -> None:
        self._profiles = profiles
        self._formats = formats
        self._names = names
        self._evs: dict[int, Evs] = {}

    def __getitem__(self, number: int) -> Evs:
        if number not in self._evs:
            raise RefusedError(
                errno.EINVAL, f"EV profile {number}: does not exist, move it to OFFLINE first"
            )
        return self._evs[number]

    def number_of(self, profile: EvProfile) -> int | None:
        """The number of a profile; None if it has none."""
        return next((n for n, evs in self._evs.items() if evs.profile is profile), None)

    async def modify(self, head: Any, entries: Sequence[Any], fields: Sequence[Any]) -> None:
        """A call of mrc_ctl_modify_ev_profile."""
        number = int(head.id)
        found = self._evs.get(number) or self._create(number, int(head.mask), int(head.state))
        mask = int(head.mask)
        changed = replace(found)
        states: list[tuple[str, int]] = []

        def change() -> None:
            self._modify(changed, head, mask, fields)
            if mask & lib.MRC_API_EVS_OP and int(head.op) == lib.MRC_API_EVS_REPLACE:
                self._replace(changed, entries)
            if mask & lib.MRC_API_EVS_OP and int(head.op) == lib.MRC_API_EVS_MODIFY_STATE:
                states.extend(self._named_state(changed, each) for each in entries)
            if mask & lib.MRC_API_PROFILE_STATE and int(head.state) == lib.MRC_API_ONLINE:
                self._settle(changed)

        try:
            moved(f"EV profile {number}", found.profile, head, change)
            self._keep(number, changed)
        finally:
            if found.profile.state is ProfileState.INIT:
                self._destroy(number)
        await self._set_states(changed, states)

    def _create(self, number: int, mask: int, state: int) -> Evs:
        if not mask & lib.MRC_API_PROFILE_STATE or state != lib.MRC_API_OFFLINE:
            return self[number]  # refuses
        if len(self._evs) >= MAX_PROFILES:
            raise RefusedError(errno.ENOMEM, f"there are {MAX_PROFILES} EV profiles, the most")
        profile = self._profiles.add(EvProfile(str(number), EvSelection()))
        self._evs[number] = Evs(profile)
        return self._evs[number]

    def _keep(self, number: int, changed: Evs) -> None:
        former = self._evs[number].format
        if changed.format is not None and changed.format != former:
            self._formats[changed.format]._take()
            self._leave(former)
        self._evs[number] = changed

    def _leave(self, number: int | None) -> None:
        if number is not None:
            self._formats[number].give_back()

    def _destroy(self, number: int) -> None:
        evs = self._evs.pop(number)
        self._profiles.destroy(evs.profile)
        self._leave(evs.format)

    def _modify(self, evs: Evs, head: Any, mask: int, fields: Sequence[Any]) -> None:
        settings = mask & ~(
            lib.MRC_API_PROFILE_STATE | lib.MRC_API_PROFILE_CURRENT_STATE | lib.MRC_API_EVS_OP
        )
        if settings:
            evs.profile.modify()  # raises unless it is OFFLINE and unused
        if mask & lib.MRC_API_EVS_MODE:
            modes = (
                lib.MRC_API_EVS_AUTO, lib.MRC_API_EVS_EXPLICIT, lib.MRC_API_EVS_GENERATED,
            )  # fmt: skip
            if int(head.mode) not in modes:
                raise RefusedError(errno.EINVAL, f"{int(head.mode)} is no mode of an EV profile")
            evs.mode = int(head.mode)
        if mask & lib.MRC_API_EVS_FORMAT:
            wanted = self._formats[int(head.format)]
            if wanted.state is not ProfileState.ONLINE:
                raise RefusedError(errno.EINVAL, f"EV format {int(head.format)}: is not ONLINE")
            evs.format = int(head.format)
        if mask & lib.MRC_API_EVS_COUNT:
            if int(head.n_evs) > MAX_EVS:
                raise RefusedError(errno.EINVAL, f"an EV profile has at most {MAX_EVS} EVs")
            evs.count = int(head.n_evs)
            evs.entries = [UNPOPULATED] * evs.count
        if mask & lib.MRC_API_EVS_MIN_ACTIVE:
            evs.min_active = int(head.min_active)
        if mask & lib.MRC_API_EVS_EVENTS:
            evs.events = int(head.events)
        if mask & lib.MRC_API_EVS_FIELDS_OP:
            evs.fields = tuple(
                GeneratedField(each.bits, each.initial, each.least, each.most, each.mask)
                for each in fields
            )
        if mask & lib.MRC_API_PROFILE_VENDOR:
            evs.vendor = bytes(head.vendor)
        self._check_fields(evs)

    def _check_fields(self, evs: Evs) -> None:
        """The fields of a profile are those of its format."""
        if evs.format is None or not evs.fields:
            return
        widths = tuple(each.bits for each in evs.fields)
        wanted = self._formats[evs.format].settings.bits
        if widths != wanted:
            text = f"the fields have {widths} bits, those of EV format {evs.format} {wanted}"
            raise RefusedError(errno.EINVAL, text)

    def _check_ev(self, evs: Evs, ev: Ev) -> None:
        """An EV has no bits beyond its format."""
        if evs.format is None:
            return
        width = sum(self._formats[evs.format].settings.bits)
        if int.from_bytes(ev.value, "big") & (1 << 8 * VALUE_BYTES - width) - 1:
            text = f"EV {ev} does not fit the {width} bits of EV format {evs.format}"
            raise RefusedError(errno.EINVAL, text)

    def _replace(self, evs: Evs, entries: Sequence[Any]) -> None:
        if evs.profile.state is not ProfileState.OFFLINE:
            raise RefusedError(errno.EINVAL, "EVs can be replaced while the profile is OFFLINE")
        replaced = list(evs.entries)
        for each in entries:
            old, new = ev_in(each.ev), ev_in(each.new_ev)
            if new != UNPOPULATED:
                self._name_of(evs, new)
                self._check_ev(evs, new)
            places = [i for i, ev in enumerate(replaced) if ev == old]
            if not places:
                raise RefusedError(errno.ENOENT, f"the profile has no EV {old}")
            for place in places if each.flags & 1 else places[:1]:
                replaced[place] = new
        evs.entries = replaced

    def _name_of(self, evs: Evs, ev: Ev) -> str:
        settings = None if evs.format is None else self._formats[evs.format].settings
        if settings is not None and settings.mode == lib.MRC_API_FORMAT_UDP:
            raise RefusedError(
                errno.EOPNOTSUPP,
                "the kernel chooses UDP source ports: only AUTO profiles can have them",
            )
        if ev not in self._names:
            known = "mrc paths shows them" if self._names else "it has no SRv6 paths"
            raise RefusedError(errno.EINVAL, f"this host has no path with EV {ev}: {known}")
        return self._names[ev]

    def _settle(self, evs: Evs) -> None:
        """Before a profile is ONLINE: the paths that it means."""
        if evs.profile.state is ProfileState.ONLINE:
            return
        if evs.mode == lib.MRC_API_EVS_AUTO:
            self._select(evs, ("*",))
            return
        if evs.mode == lib.MRC_API_EVS_GENERATED:
            evs.entries = self._generated(evs)
        if not evs.entries or UNPOPULATED in evs.entries:
            raise RefusedError(errno.EINVAL, "the profile has EVs that are not populated")
        for ev in evs.entries:
            self._check_ev(evs, ev)  # its format may have come later
        named = dict.fromkeys(self._name_of(evs, ev) for ev in evs.entries)
        self._select(evs, tuple(named))

    def _select(self, evs: Evs, paths: tuple[str, ...]) -> None:
        if evs.profile.settings.paths != paths:  # QPs may use it, if it stays as it was
            evs.profile.modify(paths=paths)

    def _generated(self, evs: Evs) -> list[Ev]:
        """Those of the generated EVs that are paths of this host."""
        planes = sorted({ev.plane for ev in self._names})
        try:
            made = generated(evs.fields, planes, 1 << 20)
        except ValueError as error:
            raise RefusedError(errno.EINVAL, str(error)) from error
        found = [ev for ev in made if ev in self._names]
        if not found:
            raise RefusedError(errno.EINVAL, "no generated EV is a path of this host")
        return found[: evs.count or MAX_EVS]

    def _named_state(self, evs: Evs, entry: Any) -> tuple[str, int]:
        """The path of an entry, and the state that it is to have."""
        ev, state = ev_in(entry.ev), int(entry.state)
        if evs.mode != lib.MRC_API_EVS_AUTO and ev not in evs.entries:
            raise RefusedError(errno.ENOENT, f"the profile has no EV {ev}")
        name = self._name_of(evs, ev)
        if state not in (lib.MRC_API_EV_DENIED, lib.MRC_API_EV_GOOD):
            text = "a controller denies EVs, or allows them; mrc finds those that are bad"
            raise RefusedError(errno.EOPNOTSUPP, text)
        return name, state

    async def _set_states(self, evs: Evs, states: Sequence[tuple[str, int]]) -> None:
        for name, state in states:
            if state == lib.MRC_API_EV_DENIED:
                await evs.profile.deny(name)
            elif name in evs.profile.denied:
                await evs.profile.allow(name)

    def query(self, head: Any, given: Sequence[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The fields of the answer, and of each of its entries."""
        evs = self[int(head.id)]
        wanted = list(evs.entries)
        if int(head.op) == lib.MRC_API_EVS_QUERY_STATE and int(head.mask) & lib.MRC_API_EVS_OP:
            wanted = [ev_in(each.ev) for each in given]
        elif evs.mode == lib.MRC_API_EVS_AUTO:
            wanted = list(self._names)[:MAX_EVS]
        entries = [
            {"ev": {"value": ev.value, "port": ev.plane}, "state": self._state(evs, ev)}
            for ev in wanted
        ]
        answer = {
            "id": int(head.id), "format": evs.format or 0, "mode": evs.mode,
            "state": state_number(evs.profile.state), "n_evs": evs.count or len(wanted),
            "min_active": evs.min_active, "events": evs.events, "n_entries": len(entries),
            "n_fields": len(evs.fields), "vendor": evs.vendor,
        }  # fmt: skip
        return answer, entries

    def _state(self, evs: Evs, ev: Ev) -> int:
        name = self._names.get(ev)
        return int(lib.MRC_API_EV_UNKNOWN) if name is None else evs.state_of(name, ev)


def ev_in(found: Any) -> Ev:
    """The EV of a `struct mrc_api_ev`."""
    return Ev(int(found.port), bytes(found.value))


# ---- Congestion control -------------------------------------------------------------------------


class CcProfiles:
    """The CC profiles of a host, by number."""

    def __init__(self, profiles: Profiles[CcProfile]) -> None:
        self._profiles = profiles
        self._vendor: dict[int, bytes] = {}

    def __getitem__(self, number: int) -> CcProfile:
        if number not in self._vendor:
            raise RefusedError(
                errno.EINVAL, f"CC profile {number}: does not exist, move it to OFFLINE first"
            )
        return self._profiles[str(number)]

    def modify(self, head: Any, algorithm: str) -> None:
        """A call of mrc_ctl_modify_cc_profile."""
        number, mask = int(head.id), int(head.mask)
        if number not in self._vendor:
            if not mask & lib.MRC_API_PROFILE_STATE or head.state != lib.MRC_API_OFFLINE:
                _ = self[number]  # refuses
            if len(self._vendor) >= MAX_PROFILES:
                raise RefusedError(errno.ENOMEM, f"there are {MAX_PROFILES} CC profiles, the most")
            self._profiles.add(CcProfile(str(number), CcSettings(CcKind.NSCC)))
            self._vendor[number] = bytes(128)
        profile = self._profiles[str(number)]

        def change() -> None:
            if mask & lib.MRC_API_CC_ALGORITHM and algorithm != ALGORITHM:
                text = f"{algorithm!r:.40} is not known: {ALGORITHM} is"
                raise RefusedError(errno.EOPNOTSUPP, text)
            if mask & lib.MRC_API_CC_CONFIG:
                profile.modify(parameters=parameters_of(head.config))
            if mask & lib.MRC_API_PROFILE_VENDOR:
                self._vendor[number] = bytes(head.vendor)

        try:
            moved(f"CC profile {number}", profile, head, change)
        finally:
            if profile.state is ProfileState.INIT:
                self._profiles.destroy(profile)
                del self._vendor[number]

    def query(self, head: Any) -> dict[str, Any]:
        """The fields of the answer."""
        number = int(head.id)
        profile = self[number]
        return {
            "id": number, "state": state_number(profile.state), "algorithm": ALGORITHM.encode(),
            "config": config_of(profile.settings.parameters), "vendor": self._vendor[number],
        }  # fmt: skip


def parameters_of(config: Any) -> CcParameters:
    """NSCC's parameters in our units."""

    def whole(value: float, unit: float = 1) -> int:
        if not math.isfinite(value) or not 0 <= value * unit < 1 << 32:
            raise RefusedError(errno.EINVAL, f"{digits(value)} is out of range for NSCC")
        return round(value * unit)

    return CcParameters(
        base_rtt_ns=int(config.base_rtt_ns),
        target_delay_ns=int(config.target_delay_ns),
        max_cwnd=int(config.max_cwnd),
        fi=whole(config.fi),
        eta=whole(config.eta),
        adjust_period_threshold_ns=int(config.adjust_period_ns),
        adjust_bytes_threshold=int(config.adjust_bytes),
        qa_threshold_ns=int(config.quick_adapt_threshold),
        qa_gate=int(config.quick_adapt_gate),
        fi_scale=whole(config.fi_scale, _MILLION),
        gamma=whole(config.gamma, _MILLION),
        max_md_jump=whole(config.max_md_jump, _MILLION),
        disable_qa=bool(config.disable_quick_adapt),
    )


def config_of(parameters: CcParameters) -> dict[str, Any]:
    """The fields of a `struct mrc_api_nscc`."""
    return {
        "disable_quick_adapt": parameters.disable_qa,
        "adjust_bytes": parameters.adjust_bytes_threshold,
        "adjust_period_ns": parameters.adjust_period_threshold_ns,
        "base_rtt_ns": parameters.base_rtt_ns,
        "eta": float(parameters.eta),
        "fi": float(parameters.fi),
        "fi_scale": parameters.fi_scale / _MILLION,
        "gamma": parameters.gamma / _MILLION,
        "max_md_jump": parameters.max_md_jump / _MILLION,
        "max_cwnd": parameters.max_cwnd,
        "quick_adapt_gate": parameters.qa_gate,
        "quick_adapt_threshold": parameters.qa_threshold_ns,
        "target_delay_ns": parameters.target_delay_ns,
    }
