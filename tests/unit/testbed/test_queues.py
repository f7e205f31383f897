# SPDX-License-Identifier: Apache-2.0
"""Queues of a kernel fabric under faults, and the netlink messages that create them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mrc.fabric.faults import LinkChange
from mrc.fabric.targets import parse_target
from mrc.linux.netlink import Netem, netem_message
from mrc.testbed import build
from mrc.testbed.build import Queue
from mrc.testbed.faults import HOST_DOWN, HOST_UP, T0_UP, T1_DOWN, Fault, Hop, Mode
from mrc.testbed.plan import make_plan, shaper
from mrc.testbed.shape import Shape

PLAN = make_plan(
    "x", Shape(hosts=2, planes=2, t1=1, host_rate_bps=1000_000, fabric_rate_bps=1000_000)
)


def wanted(faults: dict[str, Fault]) -> dict[Hop, Queue]:
    topology = PLAN.shape
    return build.queues_with(
        PLAN, {parse_target(name, topology): each for name, each in faults.items()}
    )


def test_wanted__loss_and_links_that_are_down_change_no_queue() -> None:
    assert wanted({"plane:1": Fault(), "t1:2.0": Fault(Mode.DOWN), "t0:1.0": Fault(loss=0.1)}) == {}


def test_wanted__a_rate_is_that_of_both_directions() -> None:
    slow = Queue(shaper(100_000))
    found = wanted({"link:h1.2": Fault(loss=0, rate_share=0.1)})
    assert found == {Hop(HOST_UP, 2, 1, 1): slow, Hop(HOST_DOWN, 2, 1, 1): slow}
    found = wanted({"uplink:1.0.0": Fault(loss=0.5, rate_bps=100_000)})
    assert found == {Hop(T0_UP, 1, 0, 0): slow, Hop(T1_DOWN, 1, 0, 0): slow}


def test_wanted__what_befalls_packets_is_netem_below_the_usual_queue() -> None:
    found = wanted({"t1:1.0": Fault(loss=0, delay_ns=1000, corrupt=0.01)})
    queue = Queue(shaper(1000_000), Netem(delay_ns=1000, corrupt=10_000))
    assert found == {Hop(T1_DOWN, 1, host, 0): queue for host in (0, 1)}


def test_wanted__a_link_keeps_the_delay_that_it_has() -> None:
    """Short delays need no queue: the kernel takes as long by itself."""
    links = (LinkChange("t1:1.0", delay_ns=10**6), LinkChange("t1:2.0", delay_ns=500))
    plan = make_plan("x", replace(PLAN.shape, links=links))
    faults = {
        "uplink:1.0.0": Fault(loss=0, rate_share=0.1),
        "plane:2": Fault(loss=0, rate_share=0.1),
    }
    found = build.queues_with(
        plan, {parse_target(name, plan.shape): each for name, each in faults.items()}
    )
    assert found[Hop(T0_UP, 1, 0, 0)] == Queue(shaper(100_000), Netem(delay_ns=10**6))
    assert found[Hop(T0_UP, 2, 0, 0)] == Queue(shaper(100_000))
    ends = [end for link in plan.links for _, _, end in link.ends]
    assert {build.queue_of(end).netem for end in ends} == {None, Netem(delay_ns=10**6)}


def test_wanted__refuses_what_netem_cannot() -> None:
    with pytest.raises(ValueError, match="cannot both delay and reorder"):
        wanted({"t1:1.0": Fault(loss=0, delay_ns=1000, reorder=0.01)})


@pytest.mark.parametrize(
    ("effects", "options"),
    [
        (  # tc: netem delay 1100us 200us limit 100000 corrupt 1% duplicate 2%
            Netem(delay_ns=900_000, jitter_ns=400_000, corrupt=10_000, duplicate=20_000),
            "23430000 a0860100 00000000 00000000 52b81e05 350c0000 0c000400 295c8f02 00000000",
        ),
        (  # tc: netem delay 1ms reorder 99% gap 1 limit 100000
            Netem(reorder=10_000, reorder_ns=1_000_000),
            "093d0000 a0860100 00000000 01000000 00000000 00000000 0c000300 d6a370fd 00000000",
        ),
    ],
)
def test_netem__is_encoded_as_by_tc(effects: Netem, options: str) -> None:
    message = netem_message(7, effects, below_tbf=True)
    message.encode()
    head = "00000000 07000000 00000200 01000100 00000000 0a000100 6e6574656d000000 28000200"
    assert bytes(message.data)[16:].hex() == f"{head} {options}".replace(" ", "")
