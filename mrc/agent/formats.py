# SPDX-License-Identifier: Apache-2.0
"""Formats of EVs, which MRC's C interface names by numbers, and how its profiles move."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from typing import Any

from msgspec import Struct, structs

from mrc.agent.ev_values import VALUE_BYTES
from mrc.control.profiles import Profile, ProfileState
from mrc.engine.native import lib

MAX_FORMATS = 64
_STATES = {
    int(lib.MRC_API_INIT): ProfileState.INIT,
    int(lib.MRC_API_OFFLINE): ProfileState.OFFLINE,
    int(lib.MRC_API_ONLINE): ProfileState.ONLINE,
}
_NUMBERS = {state: number for number, state in _STATES.items()}


class RefusedError(Exception):
    """A call that fails: an errno, and a line for the program's user."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def state_number(state: ProfileState) -> int:
    """A state as the C interface has it."""
    return _NUMBERS[state]


def moved(what: str, profile: Profile[Any], head: Any, modify: Callable[[], None]) -> None:
    """Moves a profile as a call asks, and modifies it while it is OFFLINE.

    If `modify` raises, the profile is again in its former state.
    """
    mask = int(head.mask)
    asserted = mask & lib.MRC_API_PROFILE_CURRENT_STATE
    if asserted and _STATES.get(int(head.current_state)) is not profile.state:
        raise RefusedError(errno.EINVAL, f"{what}: is {profile.state.name}")
    wanted = profile.state
    if mask & lib.MRC_API_PROFILE_STATE:
        if int(head.state) not in _STATES:
            raise RefusedError(errno.EINVAL, f"{what}: {int(head.state)} is no state")
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
            raise RefusedError(errno.EINVAL, "a format needs a mode and fields to be ONLINE")
        super().to_online()


class Formats:
    """The formats of a host, by number."""

    def __init__(self) -> None:
        self._formats: dict[int, Format] = {}

    def __getitem__(self, number: int) -> Format:
        if number not in self._formats:
            raise RefusedError(errno.EINVAL, f"EV format {number}: does not exist")
        return self._formats[number]

    def modify(self, head: Any) -> None:
        """A call of mrc_ctl_modify_ev_fmt_profile."""
        number = int(head.id)
        found = copy(self._formats.get(number)) or Format(str(number), FormatSettings())
        if number not in self._formats and len(self._formats) >= MAX_FORMATS:
            raise RefusedError(errno.ENOMEM, f"there are {MAX_FORMATS} EV formats, the most")

        def change() -> None:
            mask = int(head.mask)
            changes: dict[str, Any] = {}
            if mask & lib.MRC_API_FORMAT_MODE:
                changes["mode"] = _format_mode(int(head.mode))
            if mask & lib.MRC_API_FORMAT_OP:
                changes["bits"] = _widths(tuple(head.bits[0 : min(head.n_fields, 256)]))
            if mask & lib.MRC_API_PROFILE_VENDOR:
                changes["vendor"] = bytes(head.vendor)
            if changes:
                found.modify(**changes)

        moved(f"EV format {number}", found, head, change)
        self._formats[number] = found
        if found.state is ProfileState.INIT:
            del self._formats[number]

    def query(self, head: Any) -> dict[str, Any]:
        """The fields of the answer."""
        found = self[int(head.id)]
        return {
            "id": int(head.id), "state": state_number(found.state),
            "n_fields": len(found.settings.bits), **structs.asdict(found.settings),
        }  # fmt: skip


def _widths(bits: tuple[int, ...]) -> tuple[int, ...]:
    if 0 in bits or sum(bits) > 8 * VALUE_BYTES:
        most = 8 * VALUE_BYTES
        text = f"fields of {bits} bits: each must have at least one, and an EV has up to {most}"
        raise RefusedError(errno.EINVAL, text)
    return bits


def _format_mode(mode: int) -> int:
    if mode == lib.MRC_API_FORMAT_STEV:
        text = "packets over UDP have no STEV: use an SRv6 or a UDP format"
        raise RefusedError(errno.EOPNOTSUPP, text)
    if mode not in (lib.MRC_API_FORMAT_SRV6, lib.MRC_API_FORMAT_UDP):
        raise RefusedError(errno.EINVAL, f"{mode} is no mode of an EV format")
    return mode
