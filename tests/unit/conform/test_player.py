# SPDX-License-Identifier: Apache-2.0
"""What the judge does not hold against a device: that the judge itself stood still."""

from __future__ import annotations

import random
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.conform.adapter import AdapterAnswer
from mrc.conform.packets import Datagram
from mrc.conform.path import FaultyPath
from mrc.conform.player import JudgeDelay, Play, StepFailure
from mrc.dissect.packet import Packet, UdpFlow


@pytest.mark.parametrize(
    ("is_prompt", "stalled", "unread", "completions", "error"),
    [
        (True, 0.2, 0.2, (), JudgeDelay),
        (True, 0.01, 0.2, (), StepFailure),
        (False, 0.2, 0.2, (), StepFailure),
        (False, 0.2, 0.2, None, StepFailure),
        (False, 0.02, 0.2, ("SUCCESS", "RETRY_EXC_ERR"), JudgeDelay),
        (False, 0.001, 0.01, ("RETRY_EXC_ERR",), StepFailure),
    ],
)
def test_take__after_the_judge_stood_still(
    is_prompt: bool, stalled: float, unread: float, completions: tuple[str, ...] | None,
    error: type[Exception], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever step fails then: a QP that has given up does nothing more."""
    peer: Any = SimpleNamespace(seen=[], stalled_seconds=stalled, unread_seconds=unread)
    situation: Any = SimpleNamespace(is_prompt=is_prompt)
    device: Any = SimpleNamespace(ask=lambda _: AdapterAnswer(completions=completions))
    play = Play(peer, device, situation, random.Random(1), 1.0)

    def fail(step: object) -> None:
        raise StepFailure("< WRITE_ONLY psn=0: nothing came")

    monkeypatch.setattr(play, "_take", fail)
    step: Any = None
    with pytest.raises(error):
        play.take(step)


# ---- A faulty path -------------------------------------------------------------------------------
#
# A network of which a part limps, and the receiver behind it.


MS = 1_000_000
LIMPS = 7  # the source port of the part that limps


def packet(at_ns: int, sport: int) -> Datagram:
    address = ip_address("::1")
    return Datagram(at_ns, UdpFlow(address, address, sport, 4791), b"", Packet(0), sent=False)


def limps(seen: Datagram) -> bool:
    return seen.flow.sport == LIMPS


def test_arrivals__late_ones_are_overtaken() -> None:
    network = FaultyPath(limps, late_ns=5 * MS)
    first, second, third = packet(MS, LIMPS), packet(2 * MS, 1), packet(2 * MS, 1)
    for each in (first, second, third):
        network.send(each)
    assert network.next_ns == 2 * MS
    assert list(network.arrivals(3 * MS)) == [(second, 0), (third, 0)]
    assert network.next_ns == 6 * MS
    assert list(network.arrivals(6 * MS)) == [(first, 5 * MS)]
    assert network.next_ns is None


@pytest.mark.parametrize(
    ("loses", "arrive"), [(0, [0, 1, 2, 3]), (1, []), (2, [0, 2]), (3, [0, 1, 3])]
)
def test_send__every_nth_is_lost(loses: int, arrive: list[int]) -> None:
    network = FaultyPath(limps, loses=loses)
    for n in range(4):
        network.send(packet(n, LIMPS))
        network.send(packet(n, 1))
    arrived = [seen for seen, _ in network.arrivals(MS)]
    assert [seen.at_ns for seen in arrived if limps(seen)] == arrive
    assert len(arrived) == len(arrive) + 4


def test_report__shows_the_packet_that_arrived() -> None:
    network = FaultyPath(limps, received={0, 1, 3, 100})
    assert network.report(3) == {"cum_psn": 1, "sack_offset": 1, "has": "3"}
    assert network.report(100) == {"cum_psn": 1, "sack_offset": 36, "has": "100"}
    assert network.report(0) == network.report(None) == network.report(3)
    assert FaultyPath(limps).report(None) == {"cum_psn": -1, "sack_offset": 1}
