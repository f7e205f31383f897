# SPDX-License-Identifier: Apache-2.0
"""A scenario as a test bed runs it: over the links of the test bed, at its rates, by real hosts.

The simulator runs the same scenario, so the two can be compared. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from mrc.enums import CcKind
from mrc.errors import ArgumentError, ConfigError
from mrc.fabric.faults import NEVER, Tiers, TimedFault
from mrc.fabric.paths import ENCAPSULATION, payload_mtu
from mrc.sim.results import Traffic, Transport
from mrc.sim.scenario import Scenario, load_scenario, sizes_of
from mrc.testbed.shape import MIN_KERNEL_DELAY_NS, Fabric, Shape

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
        links=tuple(_links(shape)),
        checks=tuple(
            replace(
                each,
                from_ns=round(each.from_ns * times),
                to_ns=each.to_ns if each.to_ns == NEVER else round(each.to_ns * times),
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
    is_kernel = shape.fabric is Fabric.KERNEL
    least_ns = MIN_KERNEL_DELAY_NS if is_kernel else 0  # that one hop through the kernel takes
    queue = shape.port_queue()
    if is_kernel:
        queue |= {"ecn_low_bytes": 0, "ecn_high_bytes": 0}
    return replace(
        tiers,
        **sizes_of(shape),
        **queue,
        routing="source-routes",
        host_rate_bps=shape.host_rate_bps,
        fabric_rate_bps=shape.fabric_rate_bps,
        host_delay_ns=max(shape.host_delay_ns, least_ns),
        fabric_delay_ns=max(shape.fabric_delay_ns, least_ns),
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
    is_kernel = shape.fabric is Fabric.KERNEL
    room = payload_mtu(shape.mtu, 6, encapsulation=ENCAPSULATION)
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


def _links(shape: Shape) -> Iterator[TimedFault]:
    """The links of a test bed that differ from their tier, as the simulator reads them."""
    for link in shape.links:
        loss = None if link.loss is None else round(link.loss * 1e6)
        values = {"rate": link.rate_bps, "delay": link.delay_ns, "loss": loss, "mtu": link.mtu}
        for kind, value in values.items():
            if value is not None:
                yield TimedFault(link.target, kind, "all", 0, None, value, 0)
