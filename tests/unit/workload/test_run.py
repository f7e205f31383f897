# SPDX-License-Identifier: Apache-2.0
"""What each host of a scenario is told."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from unit.workload.scenes import EMULATED, PAIR, SHAPE, scenario

from mrc.errors import ConfigError
from mrc.fabric.targets import Target
from mrc.sim import checks, native
from mrc.sim.run import SimRun, make_flows
from mrc.testbed.faults import Fault
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Shape
from mrc.workload.results import Over
from mrc.workload.run import (
    Faults,
    Moved,
    fault_differences,
    gathered,
    host_tasks,
    scheduled_faults,
    unsupported,
)
from mrc.workload.task import Counts, HostAnswer, HostTask, PathChange, ReceivedFlow, SentFlow

# ---- Tasks ---------------------------------------------------------------------------------------


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


# ---- Faults --------------------------------------------------------------------------------------
#
# The faults of a scenario on a test bed, each at its time.


LINK = "link:h0.2"


class FakeBed:
    """Records the calls to a test bed and their times."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.plan = shape, make_plan("x", shape)
        self.told: list[tuple[float, str, Fault | None]] = []

    def set_faults(self, wanted: dict[Target, Fault], ready: Any = lambda: None) -> None:
        ready()
        now = time.monotonic()
        self.told += [(now, str(target), fault) for target, fault in wanted.items()]

    def heal(self, target: str, ready: Any = lambda: None) -> None:
        ready()
        self.told.append((time.monotonic(), target, None))


def test_scheduled__adds_what_is_missing() -> None:
    """A scenario sets the delay of a link; a test bed adds to it."""
    part = scenario(
        EMULATED,
        faults=[
            {"target": LINK, "kind": "delay", "delay": "5ms"},
            {"target": LINK, "kind": "jitter", "jitter": "2ms"},
            {"target": "plane:1", "kind": "rate", "rate": "50%"},
        ],
    )
    plan = make_plan("x", EMULATED)
    assert [each.fault for each in scheduled_faults(part, plan)] == [
        Fault(loss=0, delay_ns=4_800_000),
        Fault(loss=0, jitter_ns=2_000_000),
        Fault(loss=0, rate_share=0.5),
    ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"kind": "lose", "n": 1, "of": 9}, "lose is only for mrc sim"),
        ({"kind": "loss", "share": "1%", "packets": "control"}, "packets = 'control'"),
        ({"kind": "silent", "at": "1ms", "until": "1100us"}, r"less than the 50 ms .* --scale"),
    ],
)
def test_scheduled__what_no_bed_can_do(fault: dict[str, Any], said: str) -> None:
    part = scenario(faults=[{"target": LINK, **fault}])
    with pytest.raises(ConfigError, match=said):
        scheduled_faults(part, make_plan("x", SHAPE))


def test_happen__each_at_its_time() -> None:
    part = scenario(
        faults=[
            {"target": "plane:1", "kind": "rate", "rate": "10%", "at": "1ms", "until": "2ms"},
            {"target": LINK, "kind": "silent"},
        ],
        run={"until": "3ms"},
    )
    fake: Any = FakeBed(SHAPE)
    faults = Faults(fake, part)
    faults.begin()
    assert [target for _, target, _ in fake.told] == [LINK]
    start = time.monotonic()
    events: list[Any] = []
    faults.happen(round(start * 1e9), lambda event, _: events.append(event))
    (began, _, fault), (over, _, healed) = fake.told[1:]
    assert (fault, healed) == (Fault(loss=0, rate_share=0.1), None)
    assert began - start >= 0.1 and over - start >= 0.2
    assert len(events) == 2 and faults.late_ns >= 0
    faults.heal()
    assert fake.told[-1][1:] == (LINK, None)


def test_happen__ends_with_the_run() -> None:
    """What still fails then is healed."""
    part = scenario(faults=[{"target": "plane:1", "kind": "silent", "at": "100us"}])
    fake: Any = FakeBed(SHAPE)
    faults = Faults(fake, part)
    faults.happen(time.monotonic_ns(), lambda *_: faults.end())
    assert [(target, fault) for _, target, fault in fake.told] == [
        ("plane:1", Fault()), ("plane:1", None),
    ]  # fmt: skip
    Faults(fake, part).end()


def test_happen__not_after_the_end() -> None:
    part = scenario(faults=[{"target": "plane:1", "kind": "silent", "at": "1ms"}])
    fake: Any = FakeBed(SHAPE)
    faults = Faults(fake, part)
    faults.end()
    faults.happen(time.monotonic_ns(), lambda *_: None)
    assert fake.told == []


def test_differ__where_the_simulator_counts_links() -> None:
    part = scenario(faults=[{"target": LINK, "kind": "loss", "share": "1%"}])
    assert fault_differences(part.faults) == []
    (line,) = fault_differences([replace(part.faults[0], target="plane:1")])
    assert line.startswith("plane:1 loss: a test bed applies it once")


# ---- The result ----------------------------------------------------------------------------------
#
# Answers of hosts become a result of the simulator's form.


MS = 1_000_000
SENT = SentFlow(
    number=0, first_ns=MS, last_ns=21 * MS, posted=4, completed=4, failed=0,
    counts=Counts(sent_packets=70, retransmitted_packets=6, lost_packets=6, rtt_ns=5),
    times=((MS, 21 * MS), (MS, 11 * MS)), error="",
)  # fmt: skip
SAMPLES = ((12 * MS, 1000, 400, 600), (25 * MS, 4000, 1000, 3000))
HOP = {"packets": 9, "bytes": 125_000, "lost": 0, "dropped": 2, "trimmed": 0, "marked": 0}
MOVED: Moved = {"h0>t0:1.0": HOP, "t0:1.1>h2": HOP, "t0:2.1>h2": HOP | {"busy_ns": 7}}


def result(over: Over = "mrc", sent: SentFlow = SENT, samples: Any = SAMPLES) -> SimRun:
    part = scenario()
    change = PathChange(now_ns=9, flow=0, plane=2, path=1, state=2)
    plane = PathChange(now_ns=8, flow=0, plane=2, path=None, state=0)
    answers = [
        HostAnswer(sent=(sent,), received=(), changes=(change, plane)),
        HostAnswer(sent=(), received=(ReceivedFlow(number=0, samples=samples),), changes=()),
    ]
    return gathered(part, 1, make_flows(part, 1), answers, MOVED, over)


def test_result__flows_and_links() -> None:
    found = result()
    (info,), (curve,) = found.infos, found.curves
    assert (info.received_bytes, info.sent_packets, info.rtt_ns) == (4000, 70, 5)
    assert curve.times_ns == (10 * MS, 20 * MS, 25 * MS)
    assert curve.bytes == (833, 2846, 4000)  # between the samples of the host
    assert [plane[0].bytes[-1] for plane in found.planes] == [1000, 3000]
    assert [message.done_ns for message in found.messages] == [11 * MS, 21 * MS]
    assert found.last_hops[2, 1].busy_ns == 10 * MS  # 125 kB at 100 Mbit/s
    assert found.last_hops[2, 2].busy_ns == 7
    assert (found.stats.packets, found.stats.dropped, found.stats.completed_writes) == (9, 6, 4)


def test_result__events_in_order() -> None:
    plane, ev = result().events
    assert (plane.type, plane.now_ns, plane.status) == (native.PLANE_STATE, 8, 0)
    assert (ev.type, ev.path, ev.plane, ev.status) == (native.EV_STATE, 1, 2, 2)


def test_result__a_flow_that_failed_is_an_error_of_its_qp() -> None:
    failed = result(sent=replace(SENT, completed=1, failed=3))
    assert failed.events[-1].type == native.QP_ERROR
    (errors,) = scenario(checks=[{"measure": "qp_errors"}]).checks
    assert checks.values_of(replace(failed.scenario, checks=(errors,)), failed, None) == (1,)


def test_result__nothing_arrived() -> None:
    assert result(samples=()).infos[0].received_bytes == 0


def test_result__iperf3_counts_from_its_own_begin() -> None:
    """Its samples begin with the flow, know no planes, and one write stands for all."""
    one = replace(SENT, posted=1, completed=1)
    found = result("iperf3", one, ((0, 0), (19 * MS, 4000)))
    assert found.infos[0].completed == 4
    assert found.curves[0].times_ns[-1] == 20 * MS
    assert found.curves[0].bytes == (1895, 4000)
