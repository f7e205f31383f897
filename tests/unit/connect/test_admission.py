# SPDX-License-Identifier: Apache-2.0
"""Places for connecting peers: admission, removal and refusals with a reason."""

from __future__ import annotations

import itertools
import os
import resource
from ipaddress import ip_address

import pytest

from mrc.config import Limits
from mrc.connect.admission import (
    Admission,
    Claims,
    ConnectionPlace,
    descriptor_limit,
    raise_descriptor_limit,
)
from mrc.errors import BusyError, ConnectError
from mrc.fabric.paths import PeerSource

LIMITS = Limits(max_pending=8, max_pending_per_source=2, max_qps=16, max_qps_per_source=4)


SECONDS = itertools.count()  # far apart


def admission(limits: Limits = LIMITS, *, descriptors: int = 1024) -> Admission:
    return Admission(limits, descriptors=lambda: descriptors)


def enter(
    ours: Admission, address: str, dropped: list[str] | None = None, fd: int = 9
) -> ConnectionPlace:
    heard_of = [] if dropped is None else dropped
    return ours.enter(address, fd, lambda: heard_of.append(address), now=next(SECONDS))


def hear(place: ConnectionPlace) -> ConnectionPlace:
    place.hear(next(SECONDS))
    return place


def connect(place: ConnectionPlace) -> ConnectionPlace:
    hear(place).connect(next(SECONDS))
    return place


def know(ours: Admission, *sources: str) -> None:
    """Each has connected before, and ended."""
    for source in sources:
        connect(enter(ours, source)).leave()


def test_enter__a_source_has_so_many_places_and_no_more() -> None:
    ours = admission()
    first = enter(ours, "10.0.0.1")
    enter(ours, "10.0.0.1")
    with pytest.raises(BusyError, match=r"from 10\.0\.0\.1: 2 peers"):
        enter(ours, "10.0.0.1")
    enter(ours, "10.0.0.2")
    first.leave()
    first.leave()  # counts once
    enter(ours, "10.0.0.1")
    with pytest.raises(BusyError):
        enter(ours, "10.0.0.1")


def test_enter__a_source_has_so_many_qps_and_no_more() -> None:
    ours = admission()
    places = []
    for _ in range(4):
        places.append(connect(enter(ours, "10.0.0.1")))
        places[-1].accept()
    with pytest.raises(ConnectError, match=r"10\.0\.0\.1 has 4 QPs here"):
        enter(ours, "10.0.0.1")
    places[0].leave()
    enter(ours, "10.0.0.1")
    with pytest.raises(
        BusyError, match=r"from 10\.0\.0\.1: 1 peer:"
    ):  # the connecting peer may become a QP
        enter(ours, "10.0.0.1")


def test_enter__the_last_quarter_of_the_qps_is_for_newcomers() -> None:
    ours = admission()
    for n in range(12):
        connect(enter(ours, f"10.0.0.{n // 3}")).accept()
    with pytest.raises(ConnectError, match="remaining QPs"):
        enter(ours, "10.0.0.1")
    enter(ours, "10.0.1.1")


def test_enter__nobody_is_dropped_while_there_is_room() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(LIMITS.max_pending):
        enter(ours, f"10.0.0.{n}", dropped)
    assert dropped == []


def test_enter__every_newcomer_gets_a_place_and_those_who_wait_longest_go() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
        assert ours.pending <= LIMITS.max_pending
    assert dropped == [f"10.1.0.{n}" for n in range(100 - LIMITS.max_pending)]


def test_hear__each_message_is_progress() -> None:
    ours, dropped = admission(), list[str]()
    places = [hear(enter(ours, f"10.1.0.{n}", dropped)) for n in range(LIMITS.max_pending)]
    hear(places[0])
    enter(ours, "10.1.1.1", dropped)
    assert dropped == ["10.1.0.1"]


def test_hear__the_silent_go_first() -> None:
    ours, dropped = admission(), list[str]()
    places = [enter(ours, f"10.1.0.{n}", dropped) for n in range(LIMITS.max_pending)]
    hear(places[0])
    for n in range(LIMITS.max_pending - 1):
        hear(enter(ours, f"10.1.1.{n}", dropped))
    assert dropped == [f"10.1.0.{n}" for n in range(1, LIMITS.max_pending)]


def test_enter__known_sources_keep_their_places_from_strangers() -> None:
    ours, dropped = admission(), list[str]()
    know(ours, *(f"10.0.0.{n}" for n in range(6)))
    for n in range(6):
        enter(ours, f"10.0.0.{n}", dropped)
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
    assert not [address for address in dropped if address.startswith("10.0.")]


def test_enter__known_sources_leave_a_quarter_of_the_places_to_strangers() -> None:
    ours, dropped = admission(), list[str]()
    known = [f"10.0.0.{n}" for n in range(LIMITS.max_pending)]
    know(ours, *known)
    for address in known:
        enter(ours, address, dropped)
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
    assert [address for address in dropped if address in known] == known[:2]


def test_enter__a_known_source_makes_way_for_another_when_no_stranger_is_left() -> None:
    ours, dropped = admission(), list[str]()
    known = [f"10.0.0.{n}" for n in range(LIMITS.max_pending + 1)]
    know(ours, *known)
    for address in known:
        enter(ours, address, dropped)
    assert dropped == known[:1]


def test_prove__the_other_connections_of_the_source_are_no_strangers_either() -> None:
    ours, dropped = admission(), list[str]()
    first, second = (hear(enter(ours, "10.0.0.1", dropped)) for _ in range(2))
    first.prove(next(SECONDS))
    first.leave()
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
    assert "10.0.0.1" not in dropped and ours.pending == LIMITS.max_pending
    second.leave()


def test_attempt__who_proves_himself_may_go_on_and_others_may_not() -> None:
    ours = admission()
    for n in range(100):
        place = enter(ours, "10.0.0.1")
        place.attempt(n / 1000)
        place.prove(n / 1000)
        place.leave()
    for _ in range(2):
        place = enter(ours, "10.0.0.2")
        place.attempt(1)
        place.leave()
    with pytest.raises(BusyError, match=r"too many attempts from 10\.0\.0\.2 led to no proof"):
        enter(ours, "10.0.0.2").attempt(1)


def test_enter__who_has_no_attempt_left_gets_no_place() -> None:
    """It would hold a place that others need, only to be refused later."""
    ours = admission()
    for _ in range(2):
        place = enter(ours, "10.0.0.2")
        place.attempt(next(SECONDS) / 1e6)
        place.leave()
    with pytest.raises(BusyError, match="led to no proof"):
        ours.enter("10.0.0.2", 9, lambda: None, now=0.1)
    assert ours.pending == 0


def test_enter__those_that_are_connected_keep_their_places() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(8):
        connect(enter(ours, f"10.0.0.{n}", dropped))
    assert dropped == []
    with pytest.raises(BusyError, match="too many peers are connecting"):
        enter(ours, "10.0.0.9", dropped)


def test_enter__some_descriptors_are_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    ours = admission(descriptors=256)
    enter(ours, "10.0.0.1", fd=191)
    for n in range(2, 4):
        with pytest.raises(BusyError, match="file descriptors"):
            enter(ours, f"10.0.0.{n}", fd=192)
    assert [record.message for record in caplog.records] == [
        "192 of 256 file descriptors are in use: new peers are refused; raise the limit (ulimit -n)"
    ]


def test_connect__ready_qps_count_until_they_are_accepted() -> None:
    ours = admission()
    places = [connect(enter(ours, f"10.0.0.{n}")) for n in range(3)]
    assert ours.pending == 3
    places[0].accept()
    places[1].leave()
    assert ours.pending == 1


def test_raise_descriptor_limit__to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
        assert descriptor_limit() == before[1] // 2
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ---- Claims ---------------------------------------------------------------------------------

A1, A2 = (PeerSource(ip_address("10.0.0.1"), sport) for sport in (40000, 40001))
B1 = PeerSource(ip_address("10.0.1.1"), 40000)


def test_claims__a_source_is_of_who_proved_it_until_he_ends() -> None:
    claims = Claims()
    claims.check("10.0.0.1", [A1, B1])
    give_back = claims.take("10.0.0.1", [A1, B1])
    with pytest.raises(
        ConnectError, match=r"UDP port 40000 of 10\.0\.0\.1 belongs to another peer"
    ):
        claims.check("10.0.0.9", [A2, A1])
    claims.check("10.0.0.9", [A2])
    give_back()
    claims.check("10.0.0.9", [A1, B1])


def test_claims__a_peer_may_connect_from_each_of_its_addresses() -> None:
    claims = Claims()
    first = claims.take("192.0.2.1", [A1, B1])
    for address in ("192.0.2.1", "10.0.0.1", "10.0.1.1", "::ffff:10.0.1.1"):
        claims.check(address, [A1, B1])
    claims.take("10.0.1.1", [A1, B1])
    first()
    claims.check("10.0.0.1", [A1])
    with pytest.raises(ConnectError):
        claims.check("192.0.2.1", [A1])


def test_raise_descriptor_limit__without_dev_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bare container: it was told as too few descriptors."""
    monkeypatch.setattr(os, "devnull", "/nowhere")
    raise_descriptor_limit()
