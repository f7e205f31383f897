# SPDX-License-Identifier: Apache-2.0
"""MRC's control functions (csrc/verbs/mrc_api.h), for all programs of a host: profiles, formats and
EVs behind their numbers, and probes of EVs.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field, structs
from msgspec.structs import replace

from mrc.agent import steering
from mrc.agent.parameters import unpack_address
from mrc.agent.peers import described
from mrc.agent.socket import AgentFunction
from mrc.agent.steering import AgentKind, read_array, read_struct, struct_bytes, text_of
from mrc.aio.qp import QP
from mrc.config import CcParameters
from mrc.connect.connect import Local
from mrc.connect.profiles import CcProfile, EvProfile, Profile, ProfileState
from mrc.engine.native import lib
from mrc.enums import CcKind, EvState
from mrc.errors import InUseError, MrcError
from mrc.events import EvEvent
from mrc.fabric.hostconfig import HostConfig
from mrc.units import counted, digits

if TYPE_CHECKING:
    from mrc.agent.program import ProgramContext

# ---- Values of EVs ------------------------------------------------------------------------------

VALUE_BYTES = 32
_PORT_BYTES = 2


class EvValue(NamedTuple):
    """An EV: its plane, and the bits that select the path, in network order, then zeros."""

    plane: int
    value: bytes

    def __str__(self) -> str:
        shown = self.value.rstrip(b"\0") or b"\0"
        return f"{(shown + bytes(len(shown) % 2)).hex(' ', 2)} of port {self.plane}"


class GeneratedField(NamedTuple):
    """A field of generated EVs: an initial value, whose bits under the mask take all values from
    `least` to `most`.
    """

    bits: int
    initial: int
    least: int
    most: int
    mask: int

    def values(self) -> Iterator[int]:
        places = [1 << place for place in range(self.bits) if self.mask >> place & 1]
        for value in range(self.least, self.most + 1):
            generated = sum(bit for i, bit in enumerate(places) if value >> i & 1)
            yield self.initial & ~self.mask | generated


UNPOPULATED = EvValue(0, bytes(VALUE_BYTES))


def ev_of(plane: int, usids: Sequence[str], source_port: int) -> EvValue:
    """The EV of a path: its uSIDs, or without SRv6 the UDP source port."""
    value = bytes.fromhex("".join(usids)) or source_port.to_bytes(_PORT_BYTES, "big")
    return EvValue(plane, value.ljust(VALUE_BYTES, b"\0"))


def names_of(host: HostConfig | None) -> dict[EvValue, str]:
    """The paths of a host with SRv6: each EV, towards any peer, and the name of its path."""
    if host is None:
        return {}
    return {
        ev_of(path.plane, path.usids, 0): path.name
        for peer in host.peers.values()
        for path in peer.paths
        if path.usids
    }


def generated(fields: Sequence[GeneratedField], planes: Sequence[int], most: int) -> list[EvValue]:
    """The EVs that the fields make, the last one varying first, on each plane in turn.

    Raises ValueError for fields that are no whole bytes in sum, empty, or too many.
    """
    width = sum(each.bits for each in fields)
    if not fields or width % 8 or not 0 < width <= 8 * VALUE_BYTES:
        raise ValueError(f"the fields have {width} bits: they must be whole bytes, up to 256 bits")
    for each in fields:
        if (each.initial | each.mask) >> each.bits:
            raise ValueError("an initial value or a mask is wider than the field")
        if each.least > each.most or each.most >> each.mask.bit_count():
            raise ValueError("a field's values are not in order, or do not fit its mask")
    if prod(each.most - each.least + 1 for each in fields) * max(1, len(planes)) > most:
        raise ValueError(f"the fields make more than {counted(most, 'EV')}")
    found = []
    for values in product(*(each.values() for each in fields)):
        whole = 0
        for each, value in zip(fields, values, strict=True):
            whole = whole << each.bits | value
        packed = whole.to_bytes(width // 8, "big").ljust(VALUE_BYTES, b"\0")
        found += [EvValue(plane, packed) for plane in planes]
    return found


# ---- Formats of EVs -----------------------------------------------------------------------------

MAX_FORMATS = 64
_STATES = {
    int(lib.MRC_API_INIT): ProfileState.INIT,
    int(lib.MRC_API_OFFLINE): ProfileState.OFFLINE,
    int(lib.MRC_API_ONLINE): ProfileState.ONLINE,
}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}


class RequestError(Exception):
    """A call that fails: an errno, and a line for the program's user."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def move_profile(what: str, profile: Profile[Any], head: Any, modify: Callable[[], None]) -> None:
    """Moves a profile as a call asks, and modifies it while it is OFFLINE.

    If `modify` raises, the profile is again in its former state.
    """
    mask = int(head.mask)
    asserted = mask & lib.MRC_API_PROFILE_CURRENT_STATE
    if asserted and _STATES.get(int(head.current_state)) is not profile.state:
        raise RequestError(errno.EINVAL, f"{what}: is {profile.state.name}")
    wanted = profile.state
    if mask & lib.MRC_API_PROFILE_STATE:
        if int(head.state) not in _STATES:
            raise RequestError(errno.EINVAL, f"{what}: {int(head.state)} is no state")
        wanted = _STATES[int(head.state)]
    with ExitStack() as undo:
        if wanted is ProfileState.OFFLINE and profile.state is not wanted:
            back = profile.to_init if profile.state is ProfileState.INIT else profile.to_online
            profile.to_offline()
            undo.callback(back)
        modify()
        if wanted is ProfileState.ONLINE and profile.state is not wanted:
            profile.to_online()
        elif wanted is ProfileState.INIT and profile.state is not wanted:
            profile.to_init()
        undo.pop_all()


class FormatSettings(Struct, frozen=True):
    """How EVs are written."""

    mode: int = 0
    bits: tuple[int, ...] = ()
    """the widths of the fields"""
    vendor: bytes = bytes(128)


class Format(Profile[FormatSettings]):
    """A format of EVs. EV profiles use it: `qps` counts them."""

    _what, _users_are = "EV format", "EV profiles"

    def to_online(self) -> None:
        if not self.settings.mode or not self.settings.bits:
            raise RequestError(errno.EINVAL, "a format needs a mode and fields to be ONLINE")
        super().to_online()


class Formats:
    """The formats of a host, by number."""

    def __init__(self) -> None:
        self._formats: dict[int, Format] = {}

    def __getitem__(self, number: int) -> Format:
        if number not in self._formats:
            raise RequestError(errno.EINVAL, f"EV format {number}: does not exist")
        return self._formats[number]

    def modify(self, head: Any) -> None:
        """A call of mrc_ctl_modify_ev_fmt_profile."""
        number = int(head.id)
        found = copy(self._formats.get(number)) or Format(str(number), FormatSettings())
        if number not in self._formats and len(self._formats) >= MAX_FORMATS:
            raise RequestError(errno.ENOMEM, f"there are {MAX_FORMATS} EV formats, the most")

        def change() -> None:
            mask = int(head.mask)
            changes: dict[str, Any] = {}
            if mask & lib.MRC_API_FORMAT_MODE:
                mode = changes["mode"] = int(head.mode)
                if mode == lib.MRC_API_FORMAT_STEV:
                    text = "packets over UDP have no STEV: use an SRv6 or a UDP format"
                    raise RequestError(errno.EOPNOTSUPP, text)
                if mode not in (lib.MRC_API_FORMAT_SRV6, lib.MRC_API_FORMAT_UDP):
                    raise RequestError(errno.EINVAL, f"{mode} is no mode of an EV format")
            if mask & lib.MRC_API_FORMAT_OP:
                bits = changes["bits"] = tuple(head.bits[0 : min(head.n_fields, 256)])
                most = 8 * VALUE_BYTES
                if 0 in bits or sum(bits) > most:
                    raise RequestError(
                        errno.EINVAL,
                        f"fields of {bits} bits: each must have at least one, and an EV has up to"
                        f" {most}",
                    )
            if mask & lib.MRC_API_PROFILE_VENDOR:
                changes["vendor"] = bytes(head.vendor)
            if changes:
                found.modify(**changes)

        move_profile(f"EV format {number}", found, head, change)
        self._formats[number] = found
        if found.state is ProfileState.INIT:
            del self._formats[number]

    def query(self, head: Any) -> dict[str, Any]:
        """The fields of the answer."""
        found = self[int(head.id)]
        return {
            "id": int(head.id), "state": _STATE_NUMBERS[found.state],
            "n_fields": len(found.settings.bits), **structs.asdict(found.settings),
        }  # fmt: skip


ALGORITHM = "uet-1.0-nscc"
MAX_EVS = 1024
MAX_PROFILES = 1024

# ---- EVs ----------------------------------------------------------------------------------------


class Evs(Struct, eq=False):
    """What the C interface adds to an EV profile."""

    profile: EvProfile
    mode: int = int(lib.MRC_API_EVS_AUTO)
    format: int | None = None
    count: int = 0
    min_active: int = 0
    events: int = 0
    entries: list[EvValue] = field(default_factory=list)
    fields: tuple[GeneratedField, ...] = ()
    bad: set[EvValue] = field(default_factory=set)
    """EVs that a QP of this host takes for lost"""
    vendor: bytes = bytes(128)

    def state_of(self, name: str, ev: EvValue) -> int:
        """MRC_API_EV_*"""
        if self.profile.denies(name):
            return int(lib.MRC_API_EV_DENIED)
        return int(lib.MRC_API_EV_ASSUMED_BAD if ev in self.bad else lib.MRC_API_EV_GOOD)


class EvProfiles:
    """The EV profiles of a host, by number."""

    def __init__(self, local: Local, formats: Formats, names: Mapping[EvValue, str]) -> None:
        self._profiles = local.ev_profiles
        self._formats = formats
        self._names = names
        self._evs: dict[int, Evs] = {}

    def __getitem__(self, number: int) -> Evs:
        if number not in self._evs:
            raise RequestError(
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
            move_profile(f"EV profile {number}", found.profile, head, change)
            former = found.format
            if changed.format is not None and changed.format != former:
                self._formats[changed.format]._take()
                self._leave(former)
            self._evs[number] = changed
        finally:
            if found.profile.state is ProfileState.INIT:
                evs = self._evs.pop(number)
                self._profiles.destroy(evs.profile)
                self._leave(evs.format)
        for name, state in states:
            if state == lib.MRC_API_EV_DENIED:
                await changed.profile.deny(name)
            elif name in changed.profile.denied:
                await changed.profile.allow(name)

    def _create(self, number: int, mask: int, state: int) -> Evs:
        if not mask & lib.MRC_API_PROFILE_STATE or state != lib.MRC_API_OFFLINE:
            return self[number]  # refuses
        if len(self._evs) >= MAX_PROFILES:
            raise RequestError(errno.ENOMEM, f"there are {MAX_PROFILES} EV profiles, the most")
        profile = self._profiles.add(EvProfile(str(number)))
        self._evs[number] = Evs(profile)
        return self._evs[number]

    def _leave(self, number: int | None) -> None:
        if number is not None:
            self._formats[number].give_back()

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
                raise RequestError(errno.EINVAL, f"{int(head.mode)} is no mode of an EV profile")
            evs.mode = int(head.mode)
        if mask & lib.MRC_API_EVS_FORMAT:
            wanted = self._formats[int(head.format)]
            if wanted.state is not ProfileState.ONLINE:
                raise RequestError(errno.EINVAL, f"EV format {int(head.format)}: is not ONLINE")
            evs.format = int(head.format)
        if mask & lib.MRC_API_EVS_COUNT:
            if int(head.n_evs) > MAX_EVS:
                raise RequestError(errno.EINVAL, f"an EV profile has at most {MAX_EVS} EVs")
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
            raise RequestError(errno.EINVAL, text)

    def _check_ev(self, evs: Evs, ev: EvValue) -> None:
        """An EV has no bits beyond its format."""
        if evs.format is None:
            return
        width = sum(self._formats[evs.format].settings.bits)
        if int.from_bytes(ev.value, "big") & (1 << 8 * VALUE_BYTES - width) - 1:
            text = f"EV {ev} does not fit the {width} bits of EV format {evs.format}"
            raise RequestError(errno.EINVAL, text)

    def _replace(self, evs: Evs, entries: Sequence[Any]) -> None:
        if evs.profile.state is not ProfileState.OFFLINE:
            raise RequestError(errno.EINVAL, "EVs can be replaced while the profile is OFFLINE")
        replaced = list(evs.entries)
        for each in entries:
            old, new = ev_in(each.ev), ev_in(each.new_ev)
            if new != UNPOPULATED:
                self._name_of(evs, new)
                self._check_ev(evs, new)
            places = [i for i, ev in enumerate(replaced) if ev == old]
            if not places:
                raise RequestError(errno.ENOENT, f"the profile has no EV {old}")
            for place in places if each.flags & 1 else places[:1]:
                replaced[place] = new
        evs.entries = replaced

    def _name_of(self, evs: Evs, ev: EvValue) -> str:
        settings = None if evs.format is None else self._formats[evs.format].settings
        if settings is not None and settings.mode == lib.MRC_API_FORMAT_UDP:
            raise RequestError(
                errno.EOPNOTSUPP,
                "the kernel chooses UDP source ports: only AUTO profiles can have them",
            )
        if ev not in self._names:
            known = "mrc paths shows them" if self._names else "it has no SRv6 paths"
            raise RequestError(errno.EINVAL, f"this host has no path with EV {ev}: {known}")
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
            raise RequestError(errno.EINVAL, "the profile has EVs that are not populated")
        for ev in evs.entries:
            self._check_ev(evs, ev)  # its format may have come later
        named = dict.fromkeys(self._name_of(evs, ev) for ev in evs.entries)
        self._select(evs, tuple(named))

    def _select(self, evs: Evs, paths: tuple[str, ...]) -> None:
        if evs.profile.settings.paths != paths:  # QPs may use it, if it stays as it was
            evs.profile.modify(paths=paths)

    def _generated(self, evs: Evs) -> list[EvValue]:
        """Those of the generated EVs that are paths of this host."""
        planes = sorted({ev.plane for ev in self._names})
        try:
            made = generated(evs.fields, planes, 1 << 20)
        except ValueError as error:
            raise RequestError(errno.EINVAL, str(error)) from error
        found = [ev for ev in made if ev in self._names]
        if not found:
            raise RequestError(errno.EINVAL, "no generated EV is a path of this host")
        return found[: evs.count or MAX_EVS]

    def _named_state(self, evs: Evs, entry: Any) -> tuple[str, int]:
        """The path of an entry, and the state that it is to have."""
        ev, state = ev_in(entry.ev), int(entry.state)
        if evs.mode != lib.MRC_API_EVS_AUTO and ev not in evs.entries:
            raise RequestError(errno.ENOENT, f"the profile has no EV {ev}")
        name = self._name_of(evs, ev)
        if state not in (lib.MRC_API_EV_DENIED, lib.MRC_API_EV_GOOD):
            text = "a controller denies EVs, or allows them; mrc finds those that are bad"
            raise RequestError(errno.EOPNOTSUPP, text)
        return name, state

    def query(self, head: Any, given: Sequence[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The fields of the answer, and of each of its entries."""
        evs = self[int(head.id)]
        wanted = list(evs.entries)
        if int(head.op) == lib.MRC_API_EVS_QUERY_STATE and int(head.mask) & lib.MRC_API_EVS_OP:
            wanted = [ev_in(each.ev) for each in given]
        elif evs.mode == lib.MRC_API_EVS_AUTO:
            wanted = list(self._names)[:MAX_EVS]
        unknown = int(lib.MRC_API_EV_UNKNOWN)
        entries: list[dict[str, Any]] = []
        for ev in wanted:
            state = evs.state_of(self._names[ev], ev) if ev in self._names else unknown
            entries.append({"ev": {"value": ev.value, "port": ev.plane}, "state": state})
        answer = {
            "id": int(head.id), "format": evs.format or 0, "mode": evs.mode,
            "state": _STATE_NUMBERS[evs.profile.state], "n_evs": evs.count or len(wanted),
            "min_active": evs.min_active, "events": evs.events, "n_entries": len(entries),
            "n_fields": len(evs.fields), "vendor": evs.vendor,
        }  # fmt: skip
        return answer, entries


def ev_in(found: Any) -> EvValue:
    """The EV of a `struct mrc_api_ev`."""
    return EvValue(int(found.port), bytes(found.value))


# ---- Congestion control -------------------------------------------------------------------------


class CcProfiles:
    """The CC profiles of a host, by number."""

    def __init__(self, local: Local) -> None:
        self._profiles = local.cc_profiles
        self._vendor: dict[int, bytes] = {}

    def __getitem__(self, number: int) -> CcProfile:
        if number not in self._vendor:
            raise RequestError(
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
                raise RequestError(errno.ENOMEM, f"there are {MAX_PROFILES} CC profiles, the most")
            self._profiles.add(CcProfile(str(number), CcKind.NSCC))
            self._vendor[number] = bytes(128)
        profile = self._profiles[str(number)]

        def change() -> None:
            if mask & lib.MRC_API_CC_ALGORITHM and algorithm != ALGORITHM:
                text = f"{algorithm!r:.40} is not known: {ALGORITHM} is"
                raise RequestError(errno.EOPNOTSUPP, text)
            if mask & lib.MRC_API_CC_CONFIG:
                profile.modify(parameters=parameters_of(head.config))
            if mask & lib.MRC_API_PROFILE_VENDOR:
                self._vendor[number] = bytes(head.vendor)

        try:
            move_profile(f"CC profile {number}", profile, head, change)
        finally:
            if profile.state is ProfileState.INIT:
                self._profiles.destroy(profile)
                del self._vendor[number]

    def query(self, head: Any) -> dict[str, Any]:
        """The fields of the answer."""
        number = int(head.id)
        profile = self[number]
        return {
            "id": number, "state": _STATE_NUMBERS[profile.state], "algorithm": ALGORITHM.encode(),
            "config": config_of(profile.settings.parameters), "vendor": self._vendor[number],
        }  # fmt: skip


# The fields of struct mrc_api_nscc: their names in CcParameters, and how many of our units one is.
_NSCC: Mapping[str, tuple[str, float]] = {
    "adjust_bytes": ("adjust_bytes_threshold", 1),
    "adjust_period_ns": ("adjust_period_threshold_ns", 1),
    "base_rtt_ns": ("base_rtt_ns", 1),
    "eta": ("eta", 1),
    "fi": ("fi", 1),
    "fi_scale": ("fi_scale", 1e6),
    "gamma": ("gamma", 1e6),
    "max_md_jump": ("max_md_jump", 1e6),
    "max_cwnd": ("max_cwnd", 1),
    "quick_adapt_gate": ("qa_gate", 1),
    "quick_adapt_threshold": ("qa_threshold_ns", 1),
    "target_delay_ns": ("target_delay_ns", 1),
}


def parameters_of(config: Any) -> CcParameters:
    """NSCC's parameters in our units."""
    found: dict[str, Any] = {"disable_qa": bool(config.disable_quick_adapt)}
    for field_name, (name, unit) in _NSCC.items():
        value = getattr(config, field_name)
        if not math.isfinite(value) or not 0 <= value * unit < 1 << 32:
            raise RequestError(errno.EINVAL, f"{digits(value)} is out of range for NSCC")
        found[name] = round(value * unit)
    return CcParameters(**found)


def config_of(parameters: CcParameters) -> dict[str, Any]:
    """The fields of a `struct mrc_api_nscc`."""
    found: dict[str, Any] = {"disable_quick_adapt": parameters.disable_qa}
    for field_name, (name, unit) in _NSCC.items():
        value = getattr(parameters, name)
        found[field_name] = value if unit == 1 else value / unit
    return found


# ---- Requests of programs -----------------------------------------------------------------------

_MOST_FIELDS = 256
_MOST_QPS = 64  # one for each host that was probed lately
_EV_STATES = {
    EvState.GOOD: int(lib.MRC_API_EV_GOOD),
    EvState.ASSUMED_BAD: int(lib.MRC_API_EV_ASSUMED_BAD),
    EvState.DENIED: int(lib.MRC_API_EV_DENIED),
}


class Requests:
    """What the programs of a host control together."""

    def __init__(self, local: Local, connect: Callable[[str], Awaitable[QP]]) -> None:
        self.formats = Formats()
        self.evs = EvProfiles(local, self.formats, names_of(local.host))
        self.cc = CcProfiles(local)
        self._prober = EvProber(connect)
        self._watchers: set[ProgramContext] = set()

    def forget(self, program: ProgramContext) -> None:
        """A program has ended."""
        self._watchers.discard(program)

    async def request(
        self, program: ProgramContext, function: int, body: bytes
    ) -> tuple[int, bytes]:
        """A call: 0 and its results, or -errno and a line for the program's user.

        Raises ProtocolError.
        """
        try:
            return 0, await self._call(program, function, body)
        except RequestError as error:
            number, reason = error.number, str(error)
        except InUseError as error:
            number, reason = errno.EBUSY, str(error)
        except MrcError as error:
            number, reason = errno.EINVAL, str(error)
        return -number, steering.line_of(reason)

    async def _call(self, program: ProgramContext, function: int, body: bytes) -> bytes:
        match function:
            case AgentFunction.MODIFY_FORMAT:
                head, _ = read_struct("mrc_agent_format", body)
                self.formats.modify(head)
            case AgentFunction.QUERY_FORMAT:
                head, _ = read_struct("mrc_agent_format", body)
                return struct_bytes("mrc_agent_format", self.formats.query(head))
            case AgentFunction.MODIFY_EVS:
                head, rest = read_struct("mrc_agent_evs", body)
                entries, rest = read_array("mrc_api_ev_entry", head.n_entries, MAX_EVS, rest)
                fields, _ = read_array("mrc_api_ev_field", head.n_fields, _MOST_FIELDS, rest)
                await self.evs.modify(head, entries, fields)
            case AgentFunction.QUERY_EVS:
                head, rest = read_struct("mrc_agent_evs", body)
                given, _ = read_array("mrc_api_ev_entry", head.n_entries, MAX_EVS, rest)
                answer, found = self.evs.query(head, given)
                parts = [struct_bytes("mrc_agent_evs", answer)]
                parts += [struct_bytes("mrc_api_ev_entry", each) for each in found]
                made = self.evs[int(head.id)].fields
                parts += [struct_bytes("mrc_api_ev_field", each._asdict()) for each in made]
                return b"".join(parts)
            case AgentFunction.MODIFY_CC:
                head, _ = read_struct("mrc_agent_cc", body)
                self.cc.modify(head, text_of(head.algorithm))
            case AgentFunction.QUERY_CC:
                head, _ = read_struct("mrc_agent_cc", body)
                return struct_bytes("mrc_agent_cc", self.cc.query(head))
            case AgentFunction.WATCH_EVS:
                self._watchers.add(program)
            case AgentFunction.PROBE:
                return await self._probe(program, body)
            case _:
                raise RequestError(errno.EOPNOTSUPP, f"the agent knows no function {function}")
        return b""

    async def _probe(self, program: ProgramContext, body: bytes) -> bytes:
        head, rest = read_struct("mrc_agent_probe", body)
        probed, _ = read_array("mrc_agent_probed", head.n_probes, MAX_EVS, rest)
        probes = [
            EvProbe(
                int(each.id),
                program.address_of(unpack_address(bytes(each.dgid)))[1],
                ev_in(each.ev),
            )
            for each in probed
        ]
        answers = await self._prober.probe(probes, max(1e-6, head.timeout_ns / 1e9))
        return b"".join(
            struct_bytes(
                "mrc_api_answer",
                {"id": each.number, "port": each.plane, "rtt_ns": min(each.rtt_ns, 0xFFFFFFFF)},
            )
            for each in answers
        )

    # ---- Events ---------------------------------------------------------------------------

    async def watch(self, end: QP) -> None:
        """Reports the changes of a QP's EVs until it ends."""
        number = self.evs.number_of(end.ev_profile)
        async for event in end.events():
            if not isinstance(event, EvEvent):
                continue
            attr = end._paths[event.index]
            ev = ev_of(event.plane, attr.usids, attr.attr.sport)
            self._report(number, ev, event.state)

    def _report(self, number: int | None, ev: EvValue, state: EvState) -> None:
        if number is None:
            return  # programs know profiles by numbers
        evs = self.evs[number]
        if state is EvState.ASSUMED_BAD:
            evs.bad.add(ev)
        else:
            evs.bad.discard(ev)
        if not evs.events & _EV_STATES.get(state, 0):
            return
        fields = {
            "profile": number,
            "ev": {"value": ev.value, "port": ev.plane},
            "state": _EV_STATES[state],
        }
        body = struct_bytes("mrc_agent_ev_event", fields)
        for program in self._watchers:
            program.send(AgentKind.EV_EVENT, body=body)


# ---- Probes of EVs ------------------------------------------------------------------------------


class EvProbe(Struct, frozen=True):
    """One EV towards a host."""

    number: int
    host: str
    ev: EvValue


class EvProbeAnswer(Struct, frozen=True):
    """The answer to a probe."""

    number: int
    plane: int
    rtt_ns: int


class EvProber:
    """Keeps a QP to each host that was probed. `connect` makes one."""

    def __init__(self, connect: Callable[[str], Awaitable[QP]]) -> None:
        self._connect = connect
        self._qps: OrderedDict[str, asyncio.Future[QP]] = OrderedDict()

    async def probe(self, probes: Iterable[EvProbe], timeout: float) -> list[EvProbeAnswer]:
        """The answers that came within the time, in order of arrival. Raises RequestError."""
        by_host: dict[str, list[EvProbe]] = {}
        for each in probes:
            by_host.setdefault(each.host, []).append(each)
        answers: list[EvProbeAnswer] = []

        async def one(qp: QP, index: int, probe: EvProbe) -> None:
            (result,) = await qp.probe_evs([index], timeout=timeout)
            if result.rtt_ns is not None:
                answers.append(EvProbeAnswer(probe.number, probe.ev.plane, result.rtt_ns))

        async def all_to(host: str, wanted: list[EvProbe]) -> None:
            qp = await self._qp(host)
            places = {
                ev_of(each.plane, each.usids, each.ev >> 16): each.index for each in await qp.evs()
            }
            for each in wanted:
                if each.ev not in places:
                    raise RequestError(errno.EINVAL, f"no path to {host} has EV {each.ev}")
            await asyncio.gather(*(one(qp, places[each.ev], each) for each in wanted))

        try:
            await asyncio.gather(*(all_to(host, wanted) for host, wanted in by_host.items()))
        finally:  # closes the QPs to hosts that were not probed lately
            done = [host for host, qp in self._qps.items() if qp.done() and not qp.exception()]
            oldest = [self._qps.pop(host) for host in done[: max(0, len(done) - _MOST_QPS)]]
            await asyncio.gather(*(qp.result().close() for qp in oldest))
        return answers

    async def _qp(self, host: str) -> QP:
        """The QP to a host, which is connected if there is none."""
        found = self._qps.get(host)
        if found is not None and found.done() and (found.exception() or found.result().closed):
            found = None
        if found is None:
            found = self._qps[host] = asyncio.ensure_future(self._connect(host))
        self._qps.move_to_end(host)
        try:
            return await asyncio.shield(found)
        except (MrcError, OSError) as error:
            self._qps.pop(host, None)
            raise RequestError(errno.EHOSTUNREACH, described(error)) from error
