# SPDX-License-Identifier: Apache-2.0
"""One run of a scenario on a test bed:

1. The scenario becomes one of the test bed: over its links, at its rates, by real hosts. The
   simulator runs the same, so the two can be compared.
2. The tasks of the hosts are made of its traffic.
3. A process in each host opens and connects its flows (hosts.py), and they begin together.
4. Faults happen at their times.
5. The counts of hosts and links become a result in the form of the simulator.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mrc.engine import paths
from mrc.enums import CcKind
from mrc.errors import ArgumentError, ConfigError, StateError
from mrc.linux import system
from mrc.sim import native
from mrc.sim.hosts import HostProcess, Hosts
from mrc.sim.results import Stats, Traffic, Transport
from mrc.sim.run import Curve, FlowSpec, SimRun, make_flows
from mrc.sim.scenario import Scenario, link_faults, load_scenario
from mrc.sim.task import FlowTask, HostAnswer, HostNews, HostTask, Over, Ready, SentFlow
from mrc.tasks import within
from mrc.testbed import schedule
from mrc.testbed.bed import Testbed
from mrc.testbed.plan import BedPlan
from mrc.testbed.shape import Shape
from mrc.testbed.tiers import Tiers, TimedFault
from mrc.units import counted, digits

# ---- 1. The scenario -----------------------------------------------------------------------------


# What hosts have that run mrc: the defaults of csrc/mrc.h, and the time until a thread wakes.
_NOISE_NS = _SACK_DELAY_NS = 500_000
_SACK_THRESHOLD_BYTES = 256 << 10
_WAKE_NS = 100_000

_SAMPLE_NS = 10_000_000  # a shorter one would take the processors' time from the traffic


def load(name: str, settings: Mapping[str, Any], shape: Shape, scale: float = 1.0) -> Scenario:
    """A built-in scenario or a file, for a test bed of this shape. `scale` multiplies the sizes of
    its writes, and its times.

    Its times also become longer by the ratio of the rates, so the same bytes are under way when a
    fault begins. Raises ConfigError, also for what no test bed can do.
    """
    scenario = load_scenario(name, settings, shape)
    parts = [fitted(part, shape, scale) for part in scenario.parts]
    if not scenario.variants:
        return parts[0]
    return replace(fitted(scenario, shape, scale), variants=tuple(parts))


def fitted(scenario: Scenario, shape: Shape, scale: float = 1.0) -> Scenario:
    """A scenario or variant, as `load` gives it."""
    if shape.host_rate_bps is None or shape.fabric_rate_bps is None:
        raise ArgumentError(
            "traffic of a scenario requires links with a rate, which its checks refer to: "
            "mrc testbed up --rate 200mbit"
        )
    if scenario.transport.kind != "mrc":
        raise ConfigError(f"{scenario.name}: transport.kind {scenario.transport.kind} is simulated")
    slower = scenario.topology.host_rate_bps / shape.host_rate_bps
    times = slower * scale
    sample_ns = max(_SAMPLE_NS, round(scenario.sample_ns * times))
    return replace(
        scenario,
        topology=tiers_of(scenario.topology, shape),
        transport=transport_of(scenario.transport, shape),
        traffic=tuple(_traffic(each, scale, times) for each in scenario.traffic),
        faults=tuple(_fault(each, slower, times) for each in scenario.faults),
        links=link_faults(shape.links),
        checks=tuple(
            replace(
                each,
                from_ns=round(each.from_ns * times),
                to_ns=each.to_ns if each.to_ns == TimedFault.NEVER else round(each.to_ns * times),
            )
            for each in scenario.checks
        ),
        until_ns=round(scenario.until_ns * times),
        sample_ns=sample_ns,
        baselines=(),
        plot="time",
    )


def tiers_of(tiers: Tiers, shape: Shape) -> Tiers:
    """The fabric of a test bed, for the simulator. The hosts' own settings are the scenario's."""
    is_kernel = not shape.is_emulated
    queue = shape.port_queue()
    if is_kernel:
        queue |= {"ecn_low_bytes": 0, "ecn_high_bytes": 0}
    return replace(
        tiers.sized_as(shape),
        **queue,
        routing="source-routes",
        host_rate_bps=shape.host_rate_bps,
        fabric_rate_bps=shape.fabric_rate_bps,
        host_delay_ns=max(shape.host_delay_ns, shape.least_delay_ns),
        fabric_delay_ns=max(shape.fabric_delay_ns, shape.least_delay_ns),
        jitter_ns=shape.jitter_ns,
        ecn_last_hop=False,
        trimming=shape.trim and not is_kernel,
        control_first=tiers.control_first and not is_kernel,
        wake_ns=max(tiers.wake_ns, _WAKE_NS),
        mtu=shape.mtu,
    )


def transport_of(transport: Transport, shape: Shape) -> Transport:
    """The settings of real QPs. A kernel fabric does not mark, so NSCC would lack its signal; it
    forwards bursts, and hosts that send single packets would take the processors' time.
    """
    is_kernel = not shape.is_emulated
    room = paths.payload_mtu(shape.mtu, 6, segments=1)
    return replace(
        transport,
        path_mtu=min(transport.path_mtu, room),
        evs_per_plane=0,
        probed=True,
        cc=CcKind.DELAY if is_kernel else transport.cc,
        spray=0 if is_kernel else transport.spray,
        sack_threshold_bytes=max(transport.sack_threshold_bytes, _SACK_THRESHOLD_BYTES),
        sack_delay_ns=max(transport.sack_delay_ns, _SACK_DELAY_NS),
        noise_ns=max(transport.noise_ns, _NOISE_NS),
    )


def _traffic(traffic: Traffic, scale: float, times: float) -> Traffic:
    is_tcp = traffic.kind == "tcp"  # its size is that of a segment
    return replace(
        traffic,
        bytes=traffic.bytes if is_tcp else max(1, round(traffic.bytes * scale)),
        start_ns=round(traffic.start_ns * times),
        interval_ns=round(traffic.interval_ns * times),
        compute_ns=round(traffic.compute_ns * times),
        paths_until_ns=round(traffic.paths_until_ns * times),
    )


def _fault(fault: TimedFault, slower: float, times: float) -> TimedFault:
    until_ns = None if fault.until_ns is None else round(fault.until_ns * times)
    is_rate = fault.kind == "rate" and fault.a
    return replace(
        fault,
        at_ns=round(fault.at_ns * times),
        until_ns=until_ns,
        every_ns=round(fault.every_ns * times),
        for_ns=round(fault.for_ns * times),
        a=max(1000, round(fault.a / slower)) if is_rate else fault.a,
    )


# ---- 2. Tasks ------------------------------------------------------------------------------------


_MANY = 256
_MANY_SAMPLE_NS = 100_000_000  # of many flows: a host reads the counters of each


def unsupported(scenario: Scenario, over: Over) -> str | None:
    """Why these flows cannot run over a transport."""
    if scenario.transport.backups and over == "mrc":
        return "only the simulator has backups: remove transport.backups"
    for traffic in scenario.traffic:
        if traffic.kind == "tcp" and traffic.paths != (0,):
            return "a TCP flow takes T1 0 of its plane: remove path"
        if traffic.kind == "tcp" or over == "mrc":
            continue
        if traffic.paths:
            return f"paths requires mrc: {over} does not choose its path"
        if over == "iperf3" and (traffic.kind == "ring" or traffic.steps > 1):
            return "iperf3 sends all of a flow at once: it has no rings and no steps"
        if over == "iperf3" and traffic.interval_ns:
            return "iperf3 sends all of a flow at once: it has no interval"
    return None


def over_of(flow: FlowSpec, over: Over) -> Over:
    """TCP of the scenario is TCP whatever the others are."""
    return "tcp" if flow.traffic.kind == "tcp" else over


def host_tasks(
    scenario: Scenario, flows: Sequence[FlowSpec], shape: Shape, over: Over, seed: int
) -> list[HostTask]:
    """The task of each host that has flows."""
    awaited = {flow.after for flow in flows}
    told = [
        _task(scenario, number, flow, shape, over, is_awaited=number in awaited)
        for number, flow in enumerate(flows)
    ]
    sample_ns = max(scenario.sample_ns, _MANY_SAMPLE_NS if len(flows) > _MANY else 0)
    transport = scenario.transport
    return [
        HostTask(
            host=host,
            seed=seed,
            planes=scenario.topology.planes,
            sample_ns=sample_ns,
            until_ns=scenario.until_ns,
            memory_bytes=max((each.bytes for each in told if not each.is_endless), default=1),
            link_bps=scenario.topology.host_rate_bps,
            base_rtt_ns=transport.cc_base_rtt_ns or scenario.base_rtt_ns,
            transport=transport,
            sends=tuple(told[i] for i, flow in enumerate(flows) if flow.sender == host),
            receives=tuple(told[i] for i, flow in enumerate(flows) if flow.receiver == host),
        )
        for host in sorted({host for flow in flows for host in (flow.sender, flow.receiver)})
    ]


def _task(
    scenario: Scenario, number: int, flow: FlowSpec, shape: Shape, over: Over, *, is_awaited: bool
) -> FlowTask:
    traffic, addresses = flow.traffic, shape.addresses
    source, route = "", str(addresses.host(flow.receiver))
    if traffic.plane:
        source, route = (
            str(addresses.in_plane(host, traffic.plane)) for host in (flow.sender, flow.receiver)
        )
    its = over_of(flow, over)
    whole = flow.writes if its == "iperf3" else 1  # one write that has all bytes
    return FlowTask(
        number=number,
        over=its,
        peer=f"h{flow.receiver}",
        route=(source, route),
        plane=traffic.plane,
        bytes=traffic.bytes * whole,
        writes=flow.writes // whole,
        redundant=traffic.redundant,
        depth=traffic.depth,
        start_ns=traffic.start_ns + traffic.compute_ns,
        interval_ns=traffic.interval_ns,
        step_writes=flow.step_writes if flow.job else 0,
        after=flow.after,
        notify=is_awaited,
        denied=tuple(_denied(scenario, flow)),
        allow_ns=traffic.paths_until_ns,
        is_endless=traffic.kind == "tcp",
    )


def _denied(scenario: Scenario, flow: FlowSpec) -> Iterator[str]:
    """Names of the paths that the flow may not use from the start."""
    if not flow.traffic.paths or flow.traffic.kind == "tcp":
        return
    topology, receiver = scenario.topology, flow.receiver
    origin = topology.origin(flow.sender, receiver)
    for plane in topology.plane_numbers():
        for number in range(topology.n_paths(receiver, origin)):
            if number not in flow.traffic.paths:
                yield topology.path(plane, number, receiver, origin).name


# ---- 3. Hosts ------------------------------------------------------------------------------------


T = TypeVar("T")

_AHEAD_NS = 200_000_000  # from the start command until the flows begin


class BedResult(Struct, frozen=True):
    """One run on a test bed."""

    result: SimRun
    over: Over
    answers: tuple[HostAnswer, ...]
    busy: float
    """share of the processors' time that was used, by whatever program, on the busiest machine"""
    late_ns: int
    """largest delay of a fault"""


async def run(bed: Testbed, scenario: Scenario, seed: int, over: Over, told: Told) -> BedResult:
    """Runs a scenario once, over one transport. `told` is called at each change of a fault, in
    another thread.

    Raises ConfigError for a scenario that hosts cannot run, StateError if a host fails.
    """
    scenario = scenario.with_seed(seed)
    if wrong := unsupported(scenario, over):
        raise ConfigError(f"{scenario.name}: {wrong}")
    flows, faults = make_flows(scenario, seed), Faults(bed, scenario)
    async with AsyncExitStack() as stack:
        stack.callback(faults.heal)
        faults.begin()
        hosts, starting = {}, Hosts(bed, stack)
        for task in host_tasks(scenario, flows, bed.shape, over, seed):
            if over == "mptcp":
                bed.prepare_mptcp(f"h{task.host}")
            hosts[task.host] = await starting.start(task)
        await _all(host.until(Ready) for host in hosts.values())
        for host in hosts.values():
            host.tell("connect")
        await _all(host.until(Ready) for host in hosts.values())
        before, used = counters(bed), bed.processor_times()
        start_ns = time.monotonic_ns() + _AHEAD_NS
        for host in hosts.values():
            host.tell("start", host.at(start_ns))
        happening = asyncio.create_task(asyncio.to_thread(faults.happen, start_ns, told))
        steps = _Steps(flows, hosts)
        try:
            async with within((start_ns + scenario.until_ns - time.monotonic_ns()) / 1e9):
                await _all(steps.until_over(host) for host in hosts.values())
        except TimeoutError:
            pass  # the time of the run is over, before all flows
        finally:
            faults.end()
            await happening
        busy, after = _busy(used, bed.processor_times()), counters(bed)
        for host in hosts.values():
            host.tell("stop")
        answers = tuple(await _all(host.until(HostAnswer) for host in hosts.values()))
        result = gathered(scenario, seed, flows, answers, _moved(bed, before, after), over)
        return BedResult(result, over, answers, busy, faults.late_ns)


class _Steps:
    """The steps of jobs: when all flows of a job have done one, the next begins at all of them."""

    def __init__(self, flows: Sequence[FlowSpec], hosts: Mapping[int, HostProcess]) -> None:
        self._flows, self._hosts = flows, hosts
        self._done = Counter[int]()

    async def until_over(self, host: HostProcess) -> None:
        """Until the flows that begin at a host have ended; begins the steps that follow its own."""
        while True:
            match await host.hear():
                case HostNews(over=True):
                    return
                case HostNews(step=int(flow)):
                    self._on_step(flow)

    def _on_step(self, number: int) -> None:
        flows = self._flows
        job = flows[number].job
        assert job is not None
        first, count = job
        self._done[first] += 1
        if self._done[first] % count:
            return
        at_ns = time.monotonic_ns() + flows[first].traffic.compute_ns
        for each in range(first, first + count):
            host = self._hosts[flows[each].sender]
            host.tell("step", each, host.at(at_ns))


async def _all(waits: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Waits for all of them; the first error ends the others."""
    jobs = [asyncio.create_task(each) for each in waits]
    try:
        return await asyncio.gather(*jobs)
    finally:
        for job in jobs:
            job.cancel()


def _moved(bed: Testbed, before: Moved, after: Moved) -> Moved:
    moved = {
        name: {key: count - before[name].get(key, 0) for key, count in counts.items()}
        for name, counts in after.items()
    }
    if bed.shape.is_emulated and (lost := moved[""]["overloaded"]):
        raise StateError(
            f"this machine is too slow: the emulator lost {counted(lost, 'packet')}; "
            "build the test bed with a lower --rate"
        )
    return moved


def _busy(before: Mapping[str, system.Times], after: Mapping[str, system.Times]) -> float:
    """Of the machine that was busiest."""
    found = []
    for machine, now in after.items():
        total, used, stolen = (b - a for a, b in zip(before[machine], now, strict=True))
        found.append((used + stolen) / total if total else 0.0)
    return max(found)


# ---- 4. Faults -----------------------------------------------------------------------------------


Told = Callable[[schedule.FaultChange, float], None]


class Faults:
    """The faults of one run. Those of the whole run are there before the first packet."""

    def __init__(self, bed: Testbed, scenario: Scenario) -> None:
        """Raises ConfigError for a fault that the test bed cannot inject at its time."""
        self._bed = bed
        self._until_ns = scenario.until_ns
        found = scheduled_faults(scenario, bed.plan)
        self._whole = [each for each in found if _lasts(each.times, scenario)]
        self._timed = [each for each in found if not _lasts(each.times, scenario)]
        self._over = threading.Event()
        self.late_ns = 0
        """the largest delay of a change"""

    def begin(self) -> None:
        """Injects the faults of the whole run."""
        if self._whole:
            try:
                self._bed.set_faults({each.target: each.fault for each in self._whole})
            except ValueError as error:
                raise ArgumentError(str(error)) from error

    def happen(self, start_ns: int, told: Told) -> None:
        """Injects the others, each at its time, until the run is over or `end` is called."""
        self._wait(start_ns / 1e9)
        end = (start_ns + self._until_ns) / 1e9

        def wait(until: float | None) -> bool:
            return self._wait(end if until is None else min(until, end)) or (until or end) >= end

        def counted(event: schedule.FaultChange, seconds: float) -> None:
            self.late_ns = max(self.late_ns, time.monotonic_ns() - start_ns - event.at_ns)
            told(event, seconds)

        if not self._over.is_set():
            schedule.run_faults(self._bed, self._timed, wait, counted)

    def _wait(self, until: float) -> bool:
        return self._over.wait(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """Ends `happen` from another thread."""
        self._over.set()

    def heal(self) -> None:
        """Heals the faults of the whole run; `happen` has healed the others."""
        for each in self._whole:
            self._bed.heal(str(each.target))


def scheduled_faults(scenario: Scenario, plan: BedPlan) -> list[schedule.ScheduledFault]:
    """Raises ConfigError for a fault that a test bed cannot inject at its time."""
    during = [fault for fault in scenario.faults if fault.at_ns < scenario.until_ns]
    found = [_scheduled_fault(scenario, fault, plan) for fault in during]
    least_ns = schedule.least_ns(plan.shape)
    for each in found:
        lasts_ns = each.times.end_ns - each.times.at_ns
        if not _lasts(each.times, scenario) and lasts_ns < least_ns:
            raise ConfigError(
                f"{scenario.name}: {each.target} fails for less than the "
                f"{digits(least_ns / 1e6)} ms that a change takes here: raise --scale"
            )
    return found


def _lasts(fault: TimedFault, scenario: Scenario) -> bool:
    """Whether a fault lasts for the whole run."""
    return fault.at_ns == 0 and fault.end_ns >= scenario.until_ns


def _scheduled_fault(
    scenario: Scenario, fault: TimedFault, plan: BedPlan
) -> schedule.ScheduledFault:
    try:
        found = schedule.schedule_fault(fault, plan)
    except ValueError as error:
        raise ConfigError(f"{scenario.name}: {fault.target} {fault.kind}: {error}") from error
    # A scenario sets the delay and jitter of links; a test bed adds to them.
    own = plan.shape.link_properties().get(found.target)
    delay_ns = own[0].delay_ns if own else plan.shape.host_delay_ns
    return replace(
        found,
        fault=replace(
            found.fault,
            delay_ns=max(0, found.fault.delay_ns - delay_ns),
            jitter_ns=max(0, found.fault.jitter_ns - plan.shape.jitter_ns),
        ),
    )


def fault_differences(faults: Sequence[TimedFault]) -> list[str]:
    """Which faults a test bed and the simulator inject in different places."""
    return [
        f"{fault.target} {fault.kind}: a test bed applies it once to each packet that crosses the "
        "part, the simulator on each of its links"
        for fault in faults
        if fault.kind not in ("silent", "down", "rate", "mtu")
        and fault.target.partition(":")[0] not in ("link", "uplink")
        and ">" not in fault.target
    ]


# ---- 5. The result -------------------------------------------------------------------------------


Moved = Mapping[str, Mapping[str, int]]
"""Counters of each direction of each link, by its name; those of the whole fabric by ""."""


def counters(bed: Testbed) -> Moved:
    """The counters so far. A kernel fabric counts links alone."""
    links = bed.links()
    if not bed.shape.is_emulated:
        return links
    fabric = bed.counters()
    return {**links, "": {key: fabric[key] for key in ("overloaded", "unroutable")}}


def gathered(
    scenario: Scenario,
    seed: int,
    flows: Sequence[FlowSpec],
    answers: Sequence[HostAnswer],
    moved: Moved,
    over: Over,
) -> SimRun:
    """What no host counts is 0; mrc.sim.compare says which measures need it."""
    sent = {each.number: each for answer in answers for each in answer.sent}
    samples = {each.number: each.samples for answer in answers for each in answer.received}
    for number, flow in enumerate(flows):
        if over_of(flow, over) == "iperf3":  # its samples count from the start of the flow
            first_ns = sent[number].first_ns
            samples[number] = tuple(
                (first_ns + at, *counts) for at, *counts in samples.get(number, ())
            )
    curves, planes = _curves(scenario, [samples.get(i, ()) for i in range(len(flows))])
    infos = [_info(flow, sent[i], curves[i], over) for i, flow in enumerate(flows)]
    return SimRun(
        scenario=scenario,
        seed=seed,
        flows=tuple(flows),
        infos=tuple(infos),
        curves=tuple(curves),
        planes=planes,
        retransmitted=(),
        events=tuple(_events(infos, answers)),
        messages=tuple(
            sorted(
                (
                    native.WriteRecord(wanted_ns=due, done_ns=done, flow=number)
                    for number, each in sent.items()
                    for due, done in each.times
                ),
                key=lambda message: message.done_ns,
            )
        ),
        last_hops=dict(_last_hops(scenario, flows, moved)),
        stats=_stats(max(curve.times_ns[-1] for curve in curves), moved, infos),
    )


def _curves(
    scenario: Scenario, samples: Sequence[Sequence[tuple[int, ...]]]
) -> tuple[list[Curve], tuple[tuple[Curve, ...], ...]]:
    """The curve of each flow, and the same in each plane, all at the same times: each host took
    its samples at times of its own. iperf3 counts no planes.
    """
    n_planes = len(scenario.topology.plane_numbers())
    end_ns = max((rows[-1][0] for rows in samples if rows), default=1)
    times = (*range(scenario.sample_ns, end_ns, scenario.sample_ns), end_ns)
    curves: list[Curve] = []
    apart: list[list[Curve]] = [[] for _ in range(n_planes)]
    for rows in samples:
        at, *columns = zip(
            (0,) * (2 + n_planes),
            *(row + (0,) * (2 + n_planes - len(row)) for row in rows),
            strict=True,
        )
        measured = [Curve(at, column) for column in columns]
        found = [Curve(times, tuple(round(each.at(ns)) for ns in times)) for each in measured]
        curves.append(found[0])
        for plane, curve in zip(apart, found[1:], strict=True):
            plane.append(curve)
    return curves, tuple(map(tuple, apart))


def _info(flow: FlowSpec, sent: SentFlow, curve: Curve, over: Over) -> native.FlowInfo:
    whole = flow.writes if over_of(flow, over) == "iperf3" else 1
    counts = sent.counts
    return native.FlowInfo(
        first_ns=sent.first_ns,
        last_ns=sent.last_ns,
        posted=sent.posted * whole,
        completed=sent.completed * whole,
        failed=sent.failed * whole,
        received_bytes=curve.bytes[-1],
        sent_packets=counts.sent_packets or 0,
        retransmitted_packets=counts.retransmitted_packets or 0,
        spurious_packets=counts.spurious_packets or 0,
        repeated_packets=counts.spurious_packets or 0,  # hosts count no others
        lost_packets=counts.lost_packets or 0,
        rtt_ns=-1 if counts.rtt_ns is None else counts.rtt_ns,
    )


def _events(
    infos: Sequence[native.FlowInfo], answers: Sequence[HostAnswer]
) -> Iterator[native.EngineEvent]:
    found = [
        native.EngineEvent(info.last_ns, i, 0, 0, native.EngineEvent.QP_ERROR, 0, 0, 0)
        for i, info in enumerate(infos)
        if info.failed
    ]
    for change in (each for answer in answers for each in answer.changes):
        kind = (
            native.EngineEvent.PLANE_STATE if change.path is None else native.EngineEvent.EV_STATE
        )
        found.append(
            native.EngineEvent(
                change.now_ns, change.flow, change.path or 0, change.plane, kind, change.state, 0, 0
            )
        )
    yield from sorted(found, key=lambda event: event.now_ns)


def _last_hops(
    scenario: Scenario, flows: Sequence[FlowSpec], moved: Moved
) -> Iterator[tuple[tuple[int, int], native.PortInfo]]:
    topology = scenario.topology
    for host in sorted({flow.receiver for flow in flows}):
        for plane in topology.plane_numbers():
            hop = moved.get(f"t0:{plane}.{topology.t0_of(host)}>h{host}")
            if hop is not None:
                busy_ns = hop["bytes"] * 8e9 / topology.host_rate_bps
                yield (
                    (host, plane),
                    native.PortInfo(
                        busy_ns=hop.get("busy_ns", round(busy_ns)),
                        peak_bytes=hop.get("peak_bytes", 0),
                        trimmed=hop["trimmed"],
                        dropped=hop["dropped"],
                        marked=hop["marked"],
                    ),
                )


def _stats(now_ns: int, moved: Moved, infos: Sequence[native.FlowInfo]) -> Stats:
    links = [counts for name, counts in moved.items() if name]

    def total(key: str) -> int:
        return max(0, sum(counts[key] for counts in links))

    return Stats(
        now_ns=now_ns,
        packets=sum(c["packets"] for name, c in moved.items() if name.startswith("h")),
        hops=total("packets"),
        lost=total("lost"),
        dropped=total("dropped"),
        trimmed=total("trimmed"),
        marked=total("marked"),
        completed_writes=sum(info.completed for info in infos),
        unroutable=moved[""]["unroutable"] if "" in moved else 0,
        events=0,
        corrupt=0,
        first_lost_ns=None,
        trace="",
    )
