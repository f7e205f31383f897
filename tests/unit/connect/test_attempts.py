# SPDX-License-Identifier: Apache-2.0
"""Token buckets for attempts."""

from __future__ import annotations

import pytest

from mrc.connect import admission
from mrc.connect.admission import Attempts, Buckets, Tokens
from mrc.errors import BusyError


def test_buckets__are_full_and_fill_again() -> None:
    buckets = Buckets(2, 0.5)
    for _ in range(2):
        assert buckets.has("a", 10)
        buckets.change("a", -1, 10)
    assert [buckets.has("a", now) for now in (10, 11.9, 12)] == [False, False, True]
    assert buckets.has("b", 10)


def test_buckets__never_hold_more_than_they_can() -> None:
    buckets = Buckets(2, 1)
    buckets.change("a", -1, 0)
    buckets.change("a", 5, 0)
    for _ in range(2):
        buckets.change("a", -1, 100)
    assert not buckets.has("a", 100)


def test_buckets__their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MOST_BUCKETS", 3)
    buckets = Buckets(1, 0.1)
    for name in ("a", "b", "c", "d"):
        buckets.change(name, -1, 0)
    assert len(buckets) == 3
    assert [buckets.has(name, 0) for name in "abcd"] == [True, False, False, False]
    buckets.change("b", 1, 0)
    assert len(buckets) == 2, "a full one is not kept"


def begun(ours: Attempts, source: str, network: str = "n", *, now: float = 0) -> Tokens:
    return ours.begin(source, network, known=False, now=now)


def test_begin__a_source_runs_out_alone() -> None:
    ours = Attempts(3)
    for _ in range(3):
        begun(ours, "a")
    with pytest.raises(BusyError, match="too many attempts from a led to no proof"):
        begun(ours, "a")
    begun(ours, "b")
    begun(ours, "a", now=1)


def test_begin__a_refused_attempt_takes_nothing() -> None:
    ours = Attempts(1)
    begun(ours, "a")
    for now in (0.3, 0.6, 0.9):
        with pytest.raises(BusyError):
            begun(ours, "a", now=now)
    begun(ours, "a", now=1)


def count(ours: Attempts, network: str, now: float) -> int:
    """How many new sources of a network can begin, until it or the host runs out."""
    for number in range(10_000):
        try:
            begun(ours, f"{network} {now} {number}", network, now=now)
        except BusyError:
            return number
    raise AssertionError


def test_begin__a_network_leaves_something_to_others() -> None:
    ours = Attempts(8)
    assert [count(ours, network, 0) for network in "abc"] == [384, 128, 0]
    assert [count(ours, network, 1) for network in "abc"] == [192, 64, 0]


def test_begin__known_sources_do_not_depend_on_strangers() -> None:
    ours = Attempts(8)
    count(ours, "n", 0)
    count(ours, "m", 0)
    for _ in range(8):
        ours.begin("a", "n", known=True, now=0)
    with pytest.raises(BusyError, match="from a led"):
        ours.begin("a", "n", known=True, now=0)


def test_give_back__who_proves_himself_never_runs_out() -> None:
    ours = Attempts(1)
    for number in range(1000):
        tokens = begun(ours, "a")
        tokens.give_back(0)
        begun(ours, f"b{number}", f"m{number}").give_back(0)
    begun(ours, "a")


def test_give_back__counts_once() -> None:
    ours = Attempts(2)
    first, _ = begun(ours, "a"), begun(ours, "a")
    first.give_back(0)
    first.give_back(0)
    begun(ours, "a")
    with pytest.raises(BusyError):
        begun(ours, "a")
