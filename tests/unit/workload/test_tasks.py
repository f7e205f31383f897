# SPDX-License-Identifier: Apache-2.0
"""What each host of a scenario is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from unit.workload.scenes import PAIR, SHAPE, scenario

from mrc.sim.run import make_flows
from mrc.workload.results import Over
from mrc.workload.run import host_tasks, unsupported
from mrc.workload.task import HostTask

RING = {"kind": "ring", "write": "64KiB", "steps": 3, "compute": "10us"}
TCP = {"kind": "tcp", "pairs": [[1, 2]], "plane": 2, "mss": 8000}


def told(over: Over, **values: Any) -> dict[int, HostTask]:
    part = scenario(**values)
    found = host_tasks(part, make_flows(part, 1), SHAPE, over, 1)
    # It travels as JSON.
    encoded = [msgspec.json.decode(msgspec.json.encode(each), type=HostTask) for each in found]
    assert encoded == found
    return {each.host: each for each in found}


def test_tasks__only_hosts_with_flows() -> None:
    found = told("mrc")
    assert sorted(found) == [0, 2]
    (flow,) = found[0].sends
    assert found[2].receives == (flow,) and found[0].receives == ()
    assert (flow.peer, flow.bytes, flow.writes, flow.step_writes) == ("h2", 65536, 4, 0)
    assert found[0].memory_bytes == 65536


def test_tasks__a_ring_waits_for_the_neighbour() -> None:
    found = told("tcp", traffic=[RING])
    for host, task in found.items():
        (sends,), (receives,) = task.sends, task.receives
        assert sends.after == receives.number and receives.notify
        assert (sends.writes, sends.step_writes) == (18, 6)
        assert sends.route == ("", str(SHAPE.addresses.host((host + 1) % 4)))


def test_tasks__tcp_of_the_scenario_in_its_plane() -> None:
    found = told("mrc", traffic=[PAIR, TCP])
    (flow,) = found[1].sends
    assert (flow.over, flow.plane, flow.is_endless) == ("tcp", 2, True)
    assert flow.route == tuple(str(SHAPE.addresses.in_plane(host, 2)) for host in (1, 2))
    assert found[1].memory_bytes == 65536  # TCP needs none


def test_tasks__iperf3_sends_all_at_once() -> None:
    (flow,) = told("iperf3")[0].sends
    assert (flow.bytes, flow.writes) == (4 * 65536, 1)


def test_tasks__paths_that_come_later() -> None:
    limited = {**PAIR, "paths": [0], "paths_until": "1ms"}
    (flow,) = told("mrc", traffic=[limited])[0].sends
    assert flow.denied == ("t1:1.1", "t1:2.1")
    assert flow.allow_ns == 100_000_000


@pytest.mark.parametrize(
    ("traffic", "over", "said"),
    [
        (PAIR, "iperf3", None),
        (RING, "tcp", None),
        (RING, "iperf3", "no rings and no steps"),
        ({**PAIR, "interval": "1ms"}, "iperf3", "no interval"),
        ({**PAIR, "paths": [1]}, "tcp", "tcp does not choose its path"),
        ({**PAIR, "paths": [1]}, "mrc", None),
        ({**TCP, "path": 1}, "mrc", "takes T1 0 of its plane"),
    ],
)
def test_unsupported(traffic: dict[str, Any], over: Over, said: str | None) -> None:
    found = unsupported(scenario(traffic=[traffic]), over)
    assert found is None if said is None else said in str(found)
