# SPDX-License-Identifier: Apache-2.0
"""Places for connecting peers: admission, removal and refusals with a reason."""

from __future__ import annotations

import itertools
import random
import resource
from ipaddress import ip_address

import pytest

from mrc.errors import BusyError, ConnectError
from mrc.exchange.admission import (
    Admission,
    Claims,
    Limits,
    Place,
    descriptor_limit,
    drop_chance,
    raise_descriptor_limit,
    source_of,
)
from mrc.fabric.paths import PeerSource

LIMITS = Limits(pending=8, pending_per_source=2, qps=16, qps_per_source=4)


SECONDS = itertools.count()  # far apart


def admission(limits: Limits = LIMITS, *, seed: int = 1, descriptors: int = 1024) -> Admission:
    return Admission(limits, random.Random(seed), descriptors=lambda: descriptors)


def enter(ours: Admission, address: str, dropped: list[str] | None = None, fd: int = 9) -> Place:
    heard_of = [] if dropped is None else dropped
    return ours.enter(address, fd, lambda: heard_of.append(address), now=next(SECONDS))


def test_enter__the_newest_are_safe_for_a_moment() -> None:
    """Their hello may have arrived but not been read by the event loop."""
    ours, dropped = admission(), list[str]()
    refused = 0
    for n in range(100):
        try:
            ours.enter(f"10.0.1.{n}", 9, lambda: dropped.append("early"), now=7.0 + n / 1001)
        except BusyError:
            refused += 1
    assert dropped == [] and refused == 100 - LIMITS.pending
    for n in range(100):
        try:
            ours.enter(f"10.0.2.{n}", 9, lambda: None, now=7.2)
        except BusyError:
            pass
    assert len(dropped) == LIMITS.pending


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_source_of__an_ipv4_address_or_an_ipv6_64(address: str, source: str) -> None:
    assert source_of(address) == source


def test_enter__a_source_has_so_many_places_and_no_more() -> None:
    ours = admission()
    first = enter(ours, "10.0.0.1")
    enter(ours, "10.0.0.1")
    with pytest.raises(BusyError, match=r"2 peers from 10\.0\.0\.1"):
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
        places.append(enter(ours, "10.0.0.1"))
        places[-1].hear()
        places[-1].connect()
        places[-1].accept()
    with pytest.raises(ConnectError, match=r"10\.0\.0\.1 has 4 QPs here"):
        enter(ours, "10.0.0.1")
    places[0].leave()
    enter(ours, "10.0.0.1")
    with pytest.raises(BusyError, match="1 peers from"):  # the connecting peer may become a QP
        enter(ours, "10.0.0.1")


def test_enter__the_last_quarter_of_the_qps_is_for_newcomers() -> None:
    ours = admission()
    for n in range(12):
        place = enter(ours, f"10.0.0.{n // 3}")
        place.hear()
        place.connect()
        place.accept()
    with pytest.raises(ConnectError, match="remaining QPs"):
        enter(ours, "10.0.0.1")
    enter(ours, "10.0.1.1")


def test_enter__below_half_nobody_is_dropped() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(4):
        enter(ours, f"10.0.0.{n}", dropped)
    assert dropped == []


def test_enter__the_silent_make_way_for_newcomers() -> None:
    """Silent strangers hold all places: a newcomer nearly always gets one. A sending peer stays."""
    ours, dropped = admission(), list[str]()
    inside = 0
    for n in range(1000):
        try:
            enter(ours, f"10.1.{n >> 8}.{n & 255}", dropped)
            inside += 1
        except BusyError:
            pass
        assert ours.pending <= LIMITS.pending
    assert len(dropped) == inside - ours.pending
    assert inside > 800
    speaker = enter(admission(), "10.0.0.1", dropped)
    speaker.hear()
    assert "10.0.0.1" not in dropped


@pytest.mark.parametrize(
    ("pending", "chance"), [(0, 0.0), (32, 0.0), (33, 1 / 32), (48, 0.5), (64, 1.0)]
)
def test_drop_chance__rises_from_half_to_full(pending: int, chance: float) -> None:
    assert drop_chance(pending, 64) == chance


def test_drop_chance__one_place_can_be_taken() -> None:
    assert (drop_chance(0, 1), drop_chance(1, 1)) == (0.0, 1.0)


def test_enter__those_that_speak_lose_their_places_to_others_only_when_few_are_silent() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(5):
        enter(ours, f"10.0.0.{n}", dropped).hear()
    for n in range(100):
        try:
            enter(ours, f"10.1.0.{n}", dropped)
        except BusyError:
            pass
    assert not any(address.startswith("10.0.0.") for address in dropped)
    for n in range(100):
        try:
            enter(ours, f"10.2.0.{n}", dropped).hear()
        except BusyError:
            pass
    assert {f"10.0.0.{n}" for n in range(5)} <= {*dropped}


def test_enter__those_that_are_connected_keep_their_places() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(8):
        place = enter(ours, f"10.0.0.{n}", dropped)
        place.hear()
        place.connect()
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
    places = [enter(ours, f"10.0.0.{n}") for n in range(3)]
    for place in places:
        place.hear()
        place.connect()
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
