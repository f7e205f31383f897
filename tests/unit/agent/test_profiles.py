# SPDX-License-Identifier: Apache-2.0
"""Profiles by number, what programs ask of them, and probes of EVs."""

from __future__ import annotations

import asyncio
import errno
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import Struct

from mrc.agent import profiles as profiles_module
from mrc.agent.profiles import (
    UNPOPULATED,
    CcProfiles,
    EvProbe,
    EvProbeAnswer,
    EvProber,
    EvProfiles,
    EvValue,
    Formats,
    GeneratedField,
    RequestError,
    config_of,
    ev_of,
    generated,
    names_of,
    parameters_of,
)
from mrc.connect.connect import Local
from mrc.connect.profiles import (
    CcProfile,
    ContextProfiles,
    EvProfile,
    ProfileState,
)
from mrc.engine.native import ffi, lib
from mrc.errors import ConnectError, InUseError
from mrc.fabric.hostconfig import HostConfig

STATE, MODE = int(lib.MRC_API_PROFILE_STATE), int(lib.MRC_API_EVS_MODE)
PATHS = {
    EvValue(plane, bytes([t1]) + bytes(31)): f"t1:{plane}.{t1}" for plane in (1, 2) for t1 in (0, 1)
}
ALL = tuple(PATHS)
NOTHING, STRANGE = EvValue(0, bytes(32)), EvValue(9, bytes(32))


def evs(**fields: Any) -> Any:
    return ffi.new("struct mrc_agent_evs *", fields)


def entry(old: EvValue, new: EvValue | None = None, state: int = 0, flags: int = 0) -> Any:
    fields = {"ev": {"value": old.value, "port": old.plane}, "state": state, "flags": flags}
    if new is not None:
        fields["new_ev"] = {"value": new.value, "port": new.plane}
    return ffi.new("struct mrc_api_ev_entry *", fields)


def change_format(formats: Formats, number: int, state: int, mask: int = 0, **fields: Any) -> None:
    head = {"id": number, "mask": STATE | mask, "state": state, **fields}
    formats.modify(ffi.new("struct mrc_agent_format *", head))


def make_format(formats: Formats, number: int, *bits: int) -> None:
    """An SRv6 format that is ONLINE."""
    mask = lib.MRC_API_FORMAT_MODE | lib.MRC_API_FORMAT_OP
    fields = {"mode": lib.MRC_API_FORMAT_SRV6, "n_fields": len(bits), "bits": bits}
    change_format(formats, number, lib.MRC_API_OFFLINE, mask, **fields)
    change_format(formats, number, lib.MRC_API_ONLINE)


def change_cc(table: CcProfiles, number: int, state: int, mask: int = 0, **fields: Any) -> None:
    head = {"id": number, "mask": STATE | mask, "state": state, **fields}
    table.modify(ffi.new("struct mrc_agent_cc *", head), "uet-1.0-nscc")


@pytest.fixture
def table() -> CcProfiles:
    local = SimpleNamespace(cc_profiles=ContextProfiles(CcProfile("default")))
    return CcProfiles(cast(Local, local))


@pytest.fixture
def formats() -> Formats:
    made = Formats()
    make_format(made, 1, 8)
    return made


@pytest.fixture
def profiles(formats: Formats) -> EvProfiles:
    local = SimpleNamespace(ev_profiles=ContextProfiles(EvProfile("default")))
    return EvProfiles(cast(Local, local), formats, PATHS)


def offline(mode: int, mask: int = 0, **fields: Any) -> Any:
    """A head that makes profile 7, or takes it OFFLINE."""
    mask |= STATE | MODE | lib.MRC_API_EVS_FORMAT
    return evs(id=7, mask=mask, state=lib.MRC_API_OFFLINE, mode=mode, **fields)


async def explicit(profiles: EvProfiles, *chosen: EvValue) -> None:
    head = offline(lib.MRC_API_EVS_EXPLICIT, lib.MRC_API_EVS_COUNT, format=1, n_evs=len(chosen))
    await profiles.modify(head, [], [])
    await replace(profiles, *[entry(NOTHING, each) for each in chosen])


async def replace(profiles: EvProfiles, *entries: Any) -> None:
    head = evs(id=7, mask=lib.MRC_API_EVS_OP, op=lib.MRC_API_EVS_REPLACE)
    await profiles.modify(head, list(entries), [])


async def move(profiles: EvProfiles, state: int, number: int = 7) -> None:
    await profiles.modify(evs(id=number, mask=STATE, state=state), [], [])


async def refused(number: int, awaitable: Any) -> str:
    with pytest.raises(RequestError) as raised:
        await awaitable
    assert raised.value.number == number
    return str(raised.value)


async def test_explicit__selects_its_paths(profiles: EvProfiles) -> None:
    await explicit(profiles, ALL[3], ALL[0])
    await move(profiles, lib.MRC_API_ONLINE)
    found = profiles[7]
    assert found.profile.settings.paths == ("t1:2.1", "t1:1.0")
    assert found.profile.state is ProfileState.ONLINE
    assert profiles.number_of(found.profile) == 7


async def test_explicit__populates_each_place(profiles: EvProfiles) -> None:
    await explicit(profiles, NOTHING, NOTHING)
    assert "not populated" in await refused(errno.EINVAL, move(profiles, lib.MRC_API_ONLINE))
    await replace(profiles, entry(NOTHING, ALL[2], flags=1))
    assert profiles[7].entries == [ALL[2]] * 2
    for wrong, number, said in (
        (entry(STRANGE, ALL[2]), errno.ENOENT, "no EV"),
        (entry(ALL[2], STRANGE), errno.EINVAL, "no path"),
    ):
        assert said in await refused(number, replace(profiles, wrong))
    assert profiles[7].entries == [ALL[2]] * 2, "after an error nothing has changed"


async def test_explicit__is_replaced_only_while_it_is_offline(profiles: EvProfiles) -> None:
    await explicit(profiles, *ALL[:2])
    await move(profiles, lib.MRC_API_ONLINE)
    again = replace(profiles, entry(ALL[0], ALL[2]))
    assert "while the profile is OFFLINE" in await refused(errno.EINVAL, again)
    assert profiles[7].entries == list(ALL[:2])


async def test_generated__selects_those_that_are_paths(
    profiles: EvProfiles, formats: Formats
) -> None:
    make_format(formats, 2, 8, 248)
    fields = {"bits": 8, "initial": 0, "least": 0, "most": 1, "mask": 1}
    head = offline(lib.MRC_API_EVS_GENERATED, lib.MRC_API_EVS_FIELDS_OP, format=2)
    wide = {"bits": 248, "initial": 0, "least": 0, "most": 0, "mask": 0}
    made = [ffi.new("struct mrc_api_ev_field *", each) for each in (fields, wide)]
    await profiles.modify(head, [], made)
    await move(profiles, lib.MRC_API_ONLINE)
    assert profiles[7].profile.settings.paths == ("t1:1.0", "t1:2.0", "t1:1.1", "t1:2.1")
    assert [field.mask for field in profiles[7].fields] == [1, 0]


def denied(profiles: EvProfiles) -> tuple[str, ...]:
    return profiles[7].profile.denied


async def test_states__are_denied_and_allowed_by_path(profiles: EvProfiles) -> None:
    await explicit(profiles, *ALL[:2])
    await move(profiles, lib.MRC_API_ONLINE)
    head = evs(id=7, mask=lib.MRC_API_EVS_OP, op=lib.MRC_API_EVS_MODIFY_STATE)
    await profiles.modify(head, [entry(ALL[1], state=lib.MRC_API_EV_DENIED)], [])
    assert denied(profiles) == ("t1:1.1",)
    ask = evs(id=7, mask=lib.MRC_API_EVS_OP, op=lib.MRC_API_EVS_QUERY_STATE)
    _, found = profiles.query(ask, [entry(ALL[0]), entry(ALL[1]), entry(EvValue(5, bytes(32)))])
    assert [each["state"] for each in found] == [
        lib.MRC_API_EV_GOOD, lib.MRC_API_EV_DENIED, lib.MRC_API_EV_UNKNOWN,
    ]  # fmt: skip
    await profiles.modify(head, [entry(ALL[1], state=lib.MRC_API_EV_GOOD)], [])
    assert denied(profiles) == ()
    bad = entry(ALL[1], state=lib.MRC_API_EV_ASSUMED_BAD)
    await refused(errno.EOPNOTSUPP, profiles.modify(head, [bad], []))
    await refused(errno.ENOENT, profiles.modify(head, [entry(ALL[3], state=4)], []))
    await refused(errno.ENOENT, profiles.modify(head, [entry(STRANGE, state=4)], []))


async def test_profile__moves_from_the_state_that_the_call_names(profiles: EvProfiles) -> None:
    await explicit(profiles, *ALL[:2])
    mask = STATE | int(lib.MRC_API_PROFILE_CURRENT_STATE)
    fields = {"id": 7, "mask": mask, "state": lib.MRC_API_ONLINE}
    wrong = profiles.modify(evs(current_state=lib.MRC_API_INIT, **fields), [], [])
    assert "is OFFLINE" in await refused(errno.EINVAL, wrong)
    await profiles.modify(evs(current_state=lib.MRC_API_OFFLINE, **fields), [], [])
    assert profiles[7].profile.state is ProfileState.ONLINE


async def test_profile__in_use_keeps_its_settings(profiles: EvProfiles) -> None:
    await explicit(profiles, *ALL)
    await move(profiles, lib.MRC_API_ONLINE)
    profiles[7].profile._take()
    await move(profiles, lib.MRC_API_OFFLINE)
    with pytest.raises(InUseError):
        await move(profiles, lib.MRC_API_INIT)
    with pytest.raises(InUseError):
        await profiles.modify(evs(id=7, mask=lib.MRC_API_EVS_COUNT, n_evs=1), [], [])
    await move(profiles, lib.MRC_API_ONLINE)
    profiles[7].profile.give_back()


async def test_profile__exists_from_offline_to_init(profiles: EvProfiles, formats: Formats) -> None:
    await refused(errno.EINVAL, move(profiles, lib.MRC_API_ONLINE))
    await explicit(profiles, ALL[0])
    assert formats[1].qps == 1
    assert "no state" in await refused(errno.EINVAL, move(profiles, 9))
    await move(profiles, lib.MRC_API_OFFLINE)
    await move(profiles, lib.MRC_API_INIT)
    assert formats[1].qps == 0
    await refused(errno.EINVAL, move(profiles, lib.MRC_API_INIT))


async def test_profile__no_more_than_the_most(
    profiles: EvProfiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrc.agent.profiles.MAX_PROFILES", 2)
    for number in (3, 4, 3):
        await move(profiles, lib.MRC_API_OFFLINE, number)
    assert "the most" in await refused(errno.ENOMEM, move(profiles, lib.MRC_API_OFFLINE, 5))


async def test_profile__a_refused_call_changes_nothing(
    profiles: EvProfiles, formats: Formats
) -> None:
    """A new profile does not come to exist, one that exists keeps its state and settings."""
    wrong = offline(lib.MRC_API_EVS_AUTO, lib.MRC_API_EVS_MIN_ACTIVE, format=2)
    await refused(errno.EINVAL, profiles.modify(wrong, [], []))
    await refused(errno.EINVAL, move(profiles, lib.MRC_API_INIT))
    op = {"op": lib.MRC_API_EVS_MODIFY_STATE, "mask": STATE | lib.MRC_API_EVS_OP}
    deny = evs(id=7, state=lib.MRC_API_OFFLINE, min_active=3, **op)
    both = [entry(each, state=lib.MRC_API_EV_DENIED) for each in (ALL[0], STRANGE)]
    await refused(errno.EINVAL, profiles.modify(deny, both, []))
    await refused(errno.EINVAL, move(profiles, lib.MRC_API_INIT))
    await explicit(profiles, ALL[0])
    await move(profiles, lib.MRC_API_ONLINE)
    wrong.mask |= lib.MRC_API_EVS_EVENTS
    await refused(errno.EINVAL, profiles.modify(wrong, [], []))
    await refused(errno.ENOENT, profiles.modify(deny, both, []))
    found = profiles[7]
    assert found.profile.state is ProfileState.ONLINE and found.profile.denied == ()
    assert (found.mode, found.format) == (lib.MRC_API_EVS_EXPLICIT, 1)
    assert formats[1].qps == 1


async def test_format__is_as_wide_as_its_evs(profiles: EvProfiles, formats: Formats) -> None:
    """EVs that do not fit, fields of other widths, and formats wider than an EV are refused."""
    make_format(formats, 2, 4, 3)
    explicit = offline(lib.MRC_API_EVS_EXPLICIT, lib.MRC_API_EVS_COUNT, format=2, n_evs=1)
    await profiles.modify(explicit, [], [])
    new = entry(NOTHING, ALL[1])  # its eighth bit is 1
    assert "the 7 bits" in await refused(errno.EINVAL, replace(profiles, new))
    explicit.format = 1
    await profiles.modify(explicit, [], [])
    await replace(profiles, new)
    narrow = evs(id=7, mask=lib.MRC_API_EVS_FORMAT, format=2)
    await profiles.modify(narrow, [], [])
    assert "the 7 bits" in await refused(errno.EINVAL, move(profiles, lib.MRC_API_ONLINE))
    fields = [ffi.new("struct mrc_api_ev_field *", {"bits": bits}) for bits in (3, 4)]
    head = evs(id=7, mask=lib.MRC_API_EVS_FIELDS_OP)
    assert "(4, 3)" in await refused(errno.EINVAL, profiles.modify(head, [], fields))
    await profiles.modify(head, [], fields[::-1])
    for bits in ((8, 0), (255, 2)):
        with pytest.raises(RequestError, match="up to 256"):
            make_format(formats, 3, *bits)


def test_format__in_use_keeps_its_fields(formats: Formats) -> None:
    formats[1]._take()
    with pytest.raises(InUseError, match="EV format 1: in use by EV profiles"):
        make_format(formats, 1, 16)
    assert formats[1].settings.bits == (8,)


def test_format__a_refused_call_changes_nothing(formats: Formats) -> None:
    mask = lib.MRC_API_FORMAT_OP | lib.MRC_API_FORMAT_MODE
    fields = {"mode": lib.MRC_API_FORMAT_STEV, "n_fields": 1, "bits": [9]}
    with pytest.raises(RequestError, match="STEV"):
        change_format(formats, 1, lib.MRC_API_OFFLINE, mask, **fields)
    assert formats[1].state is ProfileState.ONLINE and formats[1].settings.bits == (8,)


def test_cc__a_refused_call_changes_nothing(table: CcProfiles) -> None:
    wrong = {"mask": lib.MRC_API_CC_CONFIG, "config": {"gamma": math.nan}}
    with pytest.raises(RequestError, match="out of range"):
        change_cc(table, 3, lib.MRC_API_OFFLINE, **wrong)
    with pytest.raises(RequestError, match="does not exist"):
        _ = table[3]
    change_cc(table, 3, lib.MRC_API_OFFLINE, lib.MRC_API_CC_CONFIG)
    change_cc(table, 3, lib.MRC_API_ONLINE)
    with pytest.raises(RequestError, match="out of range"):
        change_cc(table, 3, lib.MRC_API_OFFLINE, **wrong)
    assert table[3].state is ProfileState.ONLINE


def test_format__no_more_than_the_most(formats: Formats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.agent.profiles.MAX_FORMATS", 2)
    make_format(formats, 2, 8)
    make_format(formats, 1, 4, 4)
    with pytest.raises(RequestError, match="there are 2 EV formats, the most"):
        make_format(formats, 3, 8)


def test_cc__no_more_than_the_most(table: CcProfiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.agent.profiles.MAX_PROFILES", 2)
    for number in (3, 4, 3):
        change_cc(table, number, lib.MRC_API_OFFLINE)
    with pytest.raises(RequestError, match="there are 2 CC profiles, the most") as refused:
        change_cc(table, 5, lib.MRC_API_OFFLINE)
    assert refused.value.number == errno.ENOMEM


def test_format__is_kept_while_profiles_use_it(formats: Formats) -> None:
    formats[1]._take()
    change_format(formats, 1, lib.MRC_API_OFFLINE)
    with pytest.raises(InUseError):
        change_format(formats, 1, lib.MRC_API_INIT)
    formats[1].give_back()
    change_format(formats, 1, lib.MRC_API_INIT)
    with pytest.raises(RequestError):
        formats.query(ffi.new("struct mrc_agent_format *", {"id": 1, "mask": STATE}))


def test_cc__parameters_survive_the_way(table: CcProfiles) -> None:
    config = ffi.new("struct mrc_api_nscc *", {"gamma": 0.25, "fi": 3.0, "base_rtt_ns": 7000})
    kept = parameters_of(config)
    assert (kept.gamma, kept.fi, kept.base_rtt_ns) == (250_000, 3, 7000)
    assert config_of(kept)["gamma"] == 0.25
    for value in (math.nan, math.inf, -1.0, 1e30):
        with pytest.raises(RequestError):
            parameters_of(ffi.new("struct mrc_api_nscc *", {"gamma": value}))
    fields = {"id": 3, "mask": STATE | lib.MRC_API_CC_ALGORITHM, "state": lib.MRC_API_OFFLINE}
    with pytest.raises(RequestError, match="'reno' is not known"):
        table.modify(ffi.new("struct mrc_agent_cc *", fields), "reno")


# ---- Values of EVs ------------------------------------------------------------------------------

CONFIG = """
schema = 1
host = "h0"
source = "srv6"
[[ports]]
ifname = "p1"
address = "fd00:a::1"
mtu = 9000
[peers.h1]
oob = "fd00:c::2"
sources = ["fd00:a:1::1"]
[[peers.h1.paths]]
plane = 1
name = "t1:1.0"
dst = "fd00:a:1::1:0"
segments = ["fcbb:1:100:201:e000::"]
usids = ["0100", "0201", "e000"]
"""


def ev(plane: int, digits: str) -> EvValue:
    return EvValue(plane, bytes.fromhex(digits).ljust(32, b"\0"))


def test_ev_of__usids_or_the_source_port() -> None:
    assert ev_of(3, ("0100", "0201"), 50000) == ev(3, "01000201")
    assert ev_of(2, (), 0xC351) == ev(2, "c351")


def test_ev__is_shown_as_mrc_paths_shows_it() -> None:
    assert str(ev(3, "01000201e000")) == "0100 0201 e000 of port 3"
    assert str(UNPOPULATED) == "0000 of port 0"


def test_names_of__the_paths_of_the_configuration() -> None:
    assert names_of(HostConfig.parse(CONFIG, "h0.toml")) == {ev(1, "01000201e000"): "t1:1.0"}
    assert names_of(None) == {}


def test_generated__all_values_the_last_field_first() -> None:
    fields = [GeneratedField(8, 0, 1, 2, 0xFF), GeneratedField(8, 0, 7, 8, 0xFF)]
    assert generated(fields, [1], 100) == [
        ev(1, digits) for digits in ("0107", "0108", "0207", "0208")
    ]
    fixed = GeneratedField(16, 5, 0, 0, 0)
    assert generated([fixed], [1, 4], 2) == [ev(1, "0005"), ev(4, "0005")]


def test_generated__bits_of_the_mask_over_the_initial_value() -> None:
    low = GeneratedField(16, 0x0A50, 1, 2, 0x000F)
    assert generated([low], [1], 100) == [ev(1, "0a51"), ev(1, "0a52")]
    apart = GeneratedField(8, 0x42, 0, 3, 0x81)
    assert generated([apart], [1], 100) == [ev(1, each) for each in ("42", "43", "c2", "c3")]
    wide = GeneratedField(32, 0xFFFFFFFF, 0, 1, 0x00010000)
    assert generated([wide], [1], 100) == [ev(1, "fffeffff"), ev(1, "ffffffff")]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "whole bytes"),
        ([GeneratedField(7, 0, 0, 1, 1)], "whole bytes"),
        ([GeneratedField(8, 0, 5, 4, 0xFF)], "not in order"),
        ([GeneratedField(8, 0, 0, 256, 0xFF)], "do not fit"),
        ([GeneratedField(8, 0, 0, 8, 0x07)], "do not fit"),
        ([GeneratedField(8, 0, 0, 1, 0)], "do not fit"),
        ([GeneratedField(8, 256, 0, 0, 0)], "wider than the field"),
        ([GeneratedField(8, 0, 0, 0, 0x100)], "wider than the field"),
        ([GeneratedField(32, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF)], "more than 1000 EVs"),
        ([GeneratedField(32, 0, 0, 0, 0)] * 9, "whole bytes"),
    ],
)
def test_generated__what_is_not_meant_is_refused(fields: list[GeneratedField], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        generated(fields, [1], 1000)


# ---- Probes of EVs ------------------------------------------------------------------------------

PLANE, SPORT = 2, 40000
EV = ev_of(PLANE, (), SPORT)


class Path(Struct):
    index: int = 0
    plane: int = PLANE
    usids: tuple[str, ...] = ()
    ev: int = SPORT << 16


class Result(Struct):
    rtt_ns: int | None


class Peer:
    """A QP to a host. It answers probes, unless it is silent."""

    def __init__(self, host: str, *, silent: bool = False) -> None:
        self.host, self.silent, self.closed = host, silent, False

    async def evs(self) -> list[Path]:
        return [Path()]

    async def probe_evs(self, indices: list[int], *, timeout: float) -> list[Result]:
        assert indices == [0] and timeout == 1.0 and not self.closed
        return [Result(None if self.silent else 1000)]

    async def close(self) -> None:
        self.closed = True


class Peers:
    """The QPs that were connected, in this order. Hosts in `away` have no agent."""

    def __init__(self) -> None:
        self.made: list[Peer] = []
        self.away: set[str] = set()

    async def connect(self, host: str) -> Any:
        if host in self.away:
            raise ConnectError(f"{host}: no program listens") from ConnectionRefusedError()
        self.made.append(Peer(host))
        return self.made[-1]

    @property
    def open(self) -> list[str]:
        return [peer.host for peer in self.made if not peer.closed]


def probes(*hosts: str, ev: EvValue = EV) -> list[EvProbe]:
    return [EvProbe(number, host, ev) for number, host in enumerate(hosts)]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    monkeypatch.setattr(profiles_module, "_MOST_QPS", 2)
    return Peers()


async def test_probe__those_that_answer(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    one, other = EvProbeAnswer(0, PLANE, 1000), EvProbeAnswer(1, PLANE, 1000)
    assert await asked.probe(probes("a", "b"), 1.0) == [one, other]
    peers.made[0].silent = True
    assert await asked.probe(probes("a", "b"), 1.0) == [other]
    assert peers.open == ["a", "b"]


async def test_probe__another_qp_when_the_peer_has_closed_the_former(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    await asked.probe(probes("a"), 1.0)
    peers.made[0].closed = True
    assert len(await asked.probe(probes("a"), 1.0)) == 1
    assert len(peers.made) == 2


async def test_probe__keeps_the_qps_to_hosts_that_were_probed_lately(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    for host in ("a", "b", "a", "c"):
        await asked.probe(probes(host), 1.0)
    assert peers.open == ["a", "c"]


async def test_probe__of_more_hosts_than_it_keeps_qps_to(peers: Peers) -> None:
    """Each host is probed before its QP is closed."""
    assert len(await EvProber(peers.connect).probe(probes(*"abcde"), 1.0)) == 5
    assert peers.open == ["d", "e"]


async def test_probe__of_a_host_without_an_agent(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    peers.away = {"b"}
    with pytest.raises(RequestError, match="b: no program listens; does mrc agent") as refused:
        await asked.probe(probes(*"abcde"), 1.0)
    assert refused.value.number == errno.EHOSTUNREACH
    peers.away.clear()
    assert len(await asked.probe(probes("b"), 1.0)) == 1
    assert len(peers.open) == 2


async def test_probe__of_an_ev_that_leads_nowhere(peers: Peers) -> None:
    elsewhere = ev_of(PLANE, (), SPORT + 1)
    with pytest.raises(RequestError, match="no path to a has EV") as refused:
        await EvProber(peers.connect).probe(probes("a", ev=elsewhere), 1.0)
    assert refused.value.number == errno.EINVAL


async def test_probe__whose_program_ends_before_its_host_refuses(peers: Peers) -> None:
    refused, begun = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def connect(host: str) -> Any:
        begun.set()
        return await (refused if host == "a" else peers.connect(host))

    asked = EvProber(connect)
    cancelled = asyncio.create_task(asked.probe(probes("a"), 1.0))
    await begun.wait()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    refused.set_exception(ConnectError("a: no program listens"))
    for host in "bcd":
        assert len(await asked.probe(probes(host), 1.0)) == 1
    assert peers.open == ["c", "d"]
