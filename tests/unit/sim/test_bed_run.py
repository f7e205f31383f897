# SPDX-License-Identifier: Apache-2.0
"""A scenario on a test bed: its links, its rates, hosts that are real; what each host is told, and
how their answers become a result.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from slowness import PATIENCE

from mrc.enums import CcKind
from mrc.errors import ArgumentError, BadFileError, ConfigError, ConnectError, MrcError, StateError
from mrc.lab.machines import BedMachine
from mrc.sim import checks, native
from mrc.sim import host as host_process
from mrc.sim.host import Writer
from mrc.sim.hosts import Relay
from mrc.sim.run import SimRun, make_flows
from mrc.sim.scenario import Scenario, parse_scenario
from mrc.sim.task import (
    GREETING,
    Counts,
    FlowTask,
    HostAnswer,
    HostNews,
    HostTask,
    Over,
    PathChange,
    Ready,
    ReceivedFlow,
    SentFlow,
)
from mrc.sim.traffic import (
    Faults,
    Moved,
    fault_differences,
    fitted,
    gathered,
    host_tasks,
    load,
    scheduled_faults,
    unsupported,
)
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Fault
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Fabric, Shape
from mrc.testbed.tiers import LinkChange, TimedFault
from mrc.testbed.topology import Target

SHAPE = Shape(hosts=4, planes=2, t0=2, t1=2, host_rate_bps=10**8, fabric_rate_bps=10**8)
EMULATED = Shape(
    hosts=4, planes=2, t0=2, t1=2, host_rate_bps=10**8, fabric_rate_bps=10**8,
    fabric=Fabric.EMULATED, host_delay_ns=200_000,
)  # fmt: skip
PAIR = {"kind": "pairs", "pairs": [[0, 2]], "write": "64KiB", "writes": 4}


def scenario(shape: Shape = SHAPE, **values: Any) -> Scenario:
    """A fitted scenario of one flow, unless `values` say otherwise."""
    topology = {"hosts": 4, "planes": 2, "t0": 2, "t1": 2, "host_rate": "10Gbit/s"}
    document = {"title": "scene", "topology": topology, "traffic": [PAIR], **values}
    return fitted(parse_scenario(document, "scene", "scene.toml", fabric=shape), shape)


# ---- The scenario --------------------------------------------------------------------------------


FAULTS_OF_BYTES = [
    {"target": "plane:1", "kind": "silent", "at": "1ms", "until": "3ms"},
    {"target": "plane:2", "kind": "rate", "rate": "1Gbit/s", "at": "2ms"},
]
LONG = """
title = "a hundredth of the rate"
[topology]
hosts = 8
planes = 4
t1 = 2
host_rate = "10Gbit/s"
[[traffic]]
kind = "permutation"
write = "1MiB"
[[traffic]]
kind = "checkpoint"
to = [3]
write = "1MiB"
start = "1ms"
steps = 2
compute = "2ms"
[[checks]]
measure = "goodput"
from = "1ms"
to = "2ms"
at_least = "90%"
[run]
until = "5ms"
[[variants]]
name = "one"
set = { "traffic.0.write" = "2MiB" }
"""


def test_load__the_bed_of_the_user(tmp_path: Path) -> None:
    """Hosts, planes and rates are those of the test bed; times grow as the links are slower."""
    file = tmp_path / "long.toml"
    file.write_text(LONG)
    (part,) = load(str(file), {}, SHAPE, 0.5).parts
    assert (part.topology.hosts, part.topology.planes, part.topology.t0) == (4, 2, 2)
    assert part.topology.host_rate_bps == 10**8
    assert [each.bytes for each in part.traffic] == [1 << 20, 1 << 19]
    assert (part.traffic[1].start_ns, part.traffic[1].compute_ns) == (50_000_000, 100_000_000)
    assert (part.checks[0].from_ns, part.checks[0].to_ns) == (50_000_000, 100_000_000)
    assert part.until_ns == 250_000_000


def test_load__what_the_bed_lacks(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text(LONG.replace("to = [3]", "to = [4]"))
    with pytest.raises(BadFileError, match=r"traffic\[1\].to"):
        load(str(file), {}, SHAPE)
    file.write_text(LONG)
    without = replace(SHAPE, host_rate_bps=None)
    with pytest.raises(ArgumentError, match="requires links with a rate"):
        load(str(file), {}, without)
    with pytest.raises(ConfigError, match=r"transport.kind ecmp is simulated"):
        load(str(file), {"transport.kind": "ecmp"}, SHAPE)


def test_fitted__faults_at_the_same_byte() -> None:
    silent, rate = scenario(faults=FAULTS_OF_BYTES).faults
    assert (silent.at_ns, silent.until_ns) == (100_000_000, 300_000_000)
    assert (rate.at_ns, rate.a) == (200_000_000, 10_000_000)


@pytest.mark.parametrize("shape", [SHAPE, EMULATED])
def test_fitted__hosts_are_real(shape: object) -> None:
    """They are later than simulated ones, and acknowledge more rarely."""
    assert shape in (SHAPE, EMULATED)
    part = scenario(SHAPE if shape is SHAPE else EMULATED, transport={"path_mtu": 16384})
    transport = part.transport
    assert transport.path_mtu == 8844
    assert transport.noise_ns == transport.sack_delay_ns == 500_000
    assert transport.sack_threshold_bytes == 256 << 10
    is_kernel = shape is SHAPE
    assert transport.cc is (CcKind.DELAY if is_kernel else CcKind.NSCC)
    assert part.topology.trimming is not is_kernel
    assert (part.topology.ecn_high_bytes == 0) is is_kernel
    assert part.topology.host_delay_ns == (50_000 if is_kernel else 200_000)


def test_fitted__links_that_differ() -> None:
    shape = replace(SHAPE, links=(LinkChange("plane:2", rate_bps=10**7, loss=0.01),))
    assert scenario(shape).links == (
        TimedFault("plane:2", "rate", "all", 0, None, 10**7, 0),
        TimedFault("plane:2", "loss", "all", 0, None, 10_000, 0),
    )


def test_fitted__tcp_keeps_the_size_of_its_segments() -> None:
    tcp = {"kind": "tcp", "pairs": [[1, 2]], "mss": 8000}
    assert [each.bytes for each in scenario(traffic=[PAIR, tcp]).traffic] == [65536, 8000]


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


def test_unsupported__backups() -> None:
    assert "remove transport.backups" in str(
        unsupported(scenario(transport={"backups": [2]}), "mrc")
    )
    assert unsupported(scenario(transport={"backups": [2]}), "tcp") is None


# ---- Faults --------------------------------------------------------------------------------------


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
    assert (plane.type, plane.now_ns, plane.status) == (native.EngineEvent.PLANE_STATE, 8, 0)
    assert (ev.type, ev.path, ev.plane, ev.status) == (native.EngineEvent.EV_STATE, 1, 2, 2)


def test_result__a_flow_that_failed_is_an_error_of_its_qp() -> None:
    failed = result(sent=replace(SENT, completed=1, failed=3))
    assert failed.events[-1].type == native.EngineEvent.QP_ERROR
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


# ---- Hosts on this machine, and on another one ---------------------------------------------------


THERE_NS = 5 * 10**18
RELAY = f"""#!/bin/sh
echo Welcome
echo '{GREETING.decode().strip()}'
while read host words; do
    case "$host $words" in
        clock*) echo clock {THERE_NS} ;;
        *task*) echo $host '{{"type": "Ready"}}' ;;
        *step*) echo $host '{{"type": "Said", "step": 3}}' ;;
        *fail*) echo $host '{{"type": "Ended", "why": "no path"}}' ;;
        *die*) printf h7; echo 'power is out' >&2; exit 1 ;;
    esac
done
"""


@asynccontextmanager
async def relay(folder: Path, script: str = RELAY) -> AsyncIterator[Relay]:
    program = folder / "mrc"
    program.write_text(script)
    program.chmod(0o755)
    machine = BedMachine("host-b", reach="sh -c", mrc=str(program))
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        yield await Relay.start(Testbed("lab"), machine, stack)


async def test_hear__each_host_its_own_lines(tmp_path: Path) -> None:
    async with relay(tmp_path) as b:
        first, second = b.host("h2"), b.host("h3")
        first.send(b"task")
        second.send(b"task")
        second.tell("step", 3)
        assert await first.hear() == Ready()
        assert [await second.hear(), await second.hear()] == [Ready(), HostNews(step=3)]
        first.send(b"fail")
        with pytest.raises(StateError, match=r"^h2: no path$"):
            await first.hear()


async def test_at__in_the_time_of_the_other_machine(tmp_path: Path) -> None:
    async with relay(tmp_path) as b:
        now_ns = time.monotonic_ns()
        assert abs(b.host("h2").at(now_ns) - THERE_NS) < PATIENCE * 1e9


async def test_hear__of_a_machine_that_dies(tmp_path: Path) -> None:
    """All its hosts say so, also one that is first told something afterwards."""
    async with relay(tmp_path) as b:
        hosts = [b.host("h2"), b.host("h3")]
        hosts[0].send(b"die")
        for each in (*hosts, hosts[0]):
            with pytest.raises(ConnectError, match="host-b does not answer: power is out"):
                await each.hear()
        with pytest.raises(ConnectError, match="h4: host-b does not answer"):
            await b.host("h4").hear()


async def test_start__without_a_greeting(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="host-b does not answer: no mrc here"):
        async with relay(tmp_path, "#!/bin/sh\necho no mrc here >&2\n"):
            pass


# ---- When the writes of a flow are due -----------------------------------------------------------


class FakeLink:
    """Completes writes when it is told to."""

    def __init__(self, fails_at: int = -1) -> None:
        self.begun: list[asyncio.Event] = []
        self.started = asyncio.Condition()
        self._fails_at = fails_at

    async def write(self) -> None:
        done = asyncio.Event()
        self.begun.append(done)
        async with self.started:
            self.started.notify_all()
        await done.wait()
        if len(self.begun) - 1 == self._fails_at:
            raise MrcError("no path is left")

    async def until_begun(self, count: int) -> None:
        async with self.started:
            await self.started.wait_for(lambda: len(self.begun) >= count)

    async def counts(self) -> Counts:
        return Counts()


def flow_task(**changes: Any) -> FlowTask:
    part = scenario()
    (task, _) = host_tasks(part, make_flows(part, 1), SHAPE, "mrc", 1)
    return replace(task.sends[0], **{"depth": 2, "writes": 6} | changes)


async def test_sleep_until__timers_that_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of uvloop, each of which may come almost 1 ms before its time."""
    now = start = 10**12
    waits: list[float] = []

    async def early(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += max(1, round(seconds * 1e9) - 990_000)

    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", early)
    await host_process.sleep_until(start + 20_000_000)
    assert now >= start + 20_000_000 and len(waits) < 120


async def test_run__keeps_the_depth() -> None:
    link = FakeLink()
    writer = Writer(flow_task(), link, 1, lambda number: None)
    start_ns = time.monotonic_ns()
    running = asyncio.create_task(writer.run(start_ns))
    for number in range(6):
        await link.until_begun(min(number + 2, 6))
        assert len(link.begun) == min(number + 2, 6)
        link.begun[number].set()
    await running
    sent = await writer.sent(start_ns)
    assert (sent.posted, sent.completed, sent.failed, sent.error) == (6, 6, 0, "")
    due, done = zip(*sent.times, strict=True)
    assert len(set(due)) > 0 and all(a <= b for a, b in sent.times)
    assert sent.last_ns == max(done) >= sent.first_ns


async def test_run__steps_wait_for_the_barrier() -> None:
    link, steps = FakeLink(), asyncio.Queue[int]()
    writer = Writer(flow_task(step_writes=3), link, 1, steps.put_nowait)
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    for number in range(3):
        await link.until_begun(number + 1)
        link.begun[number].set()
    assert await steps.get() == 0
    assert len(link.begun) == 3
    writer.begin_step()
    for number in range(3, 6):
        await link.until_begun(number + 1)
        link.begun[number].set()
    await running
    assert steps.empty()  # no step follows the last one


async def test_run__each_write_follows_an_arrival() -> None:
    link = FakeLink()
    writer = Writer(flow_task(after=1, writes=3), link, 1, lambda number: None)
    writer.on_arrival(0)  # before it has begun
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    for number in range(3):
        await link.until_begun(number + 1)
        assert len(link.begun) == number + 1
        link.begun[number].set()
        writer.on_arrival(number + 1)
    await running


async def test_run__open_loop() -> None:
    """Writes become due whether the ones before have ended or not."""
    link = FakeLink()
    writer = Writer(flow_task(interval_ns=1000, depth=6), link, 1, lambda number: None)
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    await link.until_begun(6)
    for event in link.begun:
        event.set()
    await running


async def test_run__a_failure_ends_the_flow() -> None:
    link = FakeLink(fails_at=1)
    writer = Writer(flow_task(), link, 1, lambda number: None)
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    await link.until_begun(2)
    link.begun[1].set()
    await running
    sent = await writer.sent(0)
    assert (sent.completed, sent.failed, sent.error) == (0, 6, "no path is left")


# ---- iperf3 --------------------------------------------------------------------------------------


def test_samples__of_a_server() -> None:
    intervals = [{"sum": {"end": 0.1, "bytes": 30}}, {"sum": {"end": 0.15, "bytes": 12}}]
    told: dict[str, Any] = {"intervals": intervals, "end": {}}
    assert host_process._iperf3_samples(told) == [(0, 0), (100_000_000, 30), (150_000_000, 42)]
    told["end"] = {"sum_received": {"seconds": 0.14, "bytes": 50}}
    assert host_process._iperf3_samples(told)[-1] == (150_000_001, 50)
    assert host_process._iperf3_samples({"error": "no route"}) == [(0, 0)]


def test_listens__when_the_port_is_open() -> None:
    with socket.socket(socket.AF_INET6) as server:
        server.bind(("::", 0))
        port = server.getsockname()[1]
        assert not host_process._listens(port)
        server.listen()
        assert host_process._listens(port)
