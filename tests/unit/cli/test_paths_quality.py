# SPDX-License-Identifier: Apache-2.0
"""The quality of a path, from trains of probes."""

from __future__ import annotations

from mrc.cli.paths import Quality, Train, extra_delays, failed, quality


def shown(
    sent: int, lost: int, shortest_ns: int | None, jitter_ns: int | None, reordered: int
) -> Quality:
    return Quality(
        sent=sent, lost=lost, loss=lost / sent, shortest_ns=shortest_ns, extra_delay_ns=None,
        jitter_ns=jitter_ns, reordered=reordered,
    )  # fmt: skip


def test_quality__of_answers_in_order() -> None:
    trains = [Train((1000, 1200, 1100), (0, 1, 2)), Train((1500, 1500, 1500), (0, 1, 2))]
    assert quality(trains) == shown(
        sent=6, lost=0, shortest_ns=1000, jitter_ns=round((200 + 100 + 400) / 5), reordered=0
    )


def test_quality__of_losses_and_overtaken_answers() -> None:
    trains = [Train((1000, None, 900), (2, 0)), Train((None, None, None), ())]
    assert quality(trains) == shown(sent=6, lost=4, shortest_ns=900, jitter_ns=100, reordered=1)


def test_quality__without_answers() -> None:
    assert quality([Train((None,), ())]) == shown(1, 1, None, None, 0)
    assert quality([Train((7,), (0,))]).jitter_ns is None


def test_extra_delays__beside_the_best_of_the_plane() -> None:
    found = {index: shown(1, 0, ns, None, 0) for index, ns in enumerate((900, 700, 5000, None))}
    planes = {0: 1, 1: 1, 2: 2, 3: 2}
    assert extra_delays(found, planes) == {0: 200, 1: 0, 2: 0, 3: None}


def test_failed__beside_the_best_of_the_plane() -> None:
    """Plane 1: a path loses, and the answers of all. Plane 2: all lose. Plane 3: none."""
    lost = {0: 50, 1: 25, 2: 27, 3: 100, 4: 100, 5: 1, 6: 0}
    planes = {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3}
    found = {index: shown(100, each, None, None, 0) for index, each in lost.items()}
    assert failed(found, planes) == {0, 3, 4}
    assert failed({}, {}) == set()


def test_failed__more_than_chance_explains() -> None:
    few = {index: shown(24, lost, None, None, 0) for index, lost in enumerate((10, 16))}
    assert failed(few, {0: 1, 1: 1}) == {0, 1}  # both lose about half
    many = {index: shown(240, lost, None, None, 0) for index, lost in enumerate((100, 160))}
    assert failed(many, {0: 1, 1: 1}) == {1}
