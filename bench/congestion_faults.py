# SPDX-License-Identifier: Apache-2.0
"""The faults of a scenario on an emulated fabric: constant faults, and faults with a time."""

from __future__ import annotations

import time

from end import BenchError

from mrc.fabric.faults import Fault
from mrc.fabric.targets import Target, parse_target
from mrc.sim.scenario import Scenario
from mrc.testbed import schedule
from mrc.testbed.bed import Testbed
from mrc.testbed.fault import Fault as BedFault
from mrc.testbed.schedule import Event, Scheduled
from mrc.testbed.shape import Shape

_PPM = 1_000_000
_LATEST_NS = 100_000_000  # a shorter delay moves no check by much


def is_possible(fault: Fault) -> bool:
    """Whether a bed can inject the fault as the simulator does.

    For a plane or a switch a bed drops and delays each packet once, the simulator on each link.
    """
    is_link = fault.target.partition(":")[0] in ("link", "uplink")
    if fault.packets != "all" or fault.every_ns:
        return False
    return fault.kind == "rate" or (fault.kind in ("loss", "delay", "jitter") and is_link)


def lasts(scenario: Scenario, fault: Fault) -> bool:
    """Whether the fault lasts for the whole scenario."""
    return fault.at_ns == 0 and fault.end_ns >= scenario.until_ns


def begin(bed: Testbed, scenario: Scenario) -> None:
    """Injects the faults of the whole scenario. Call it before the first packet."""
    for fault in scenario.faults:
        if lasts(scenario, fault):
            scheduled = _scheduled(bed.shape, fault)
            bed.set_faults({scheduled.target: scheduled.fault})


def let_happen(bed: Testbed, scenario: Scenario, start_ns: int) -> None:
    """Injects the other faults, each at its time. Heals all of them when the scenario is over.

    Raises BenchError if one began or ended too late for checks that count from its time.
    """
    end = (start_ns + scenario.until_ns) / 1e9
    _sleep_until(start_ns / 1e9)

    def wait(until: float | None) -> bool:
        _sleep_until(end if until is None else min(until, end))
        return until is None or until > end

    mine = [_scheduled(bed.shape, fault) for fault in scenario.faults if not lasts(scenario, fault)]
    late_ns = 0

    def told(event: Event, _seconds: float) -> None:
        nonlocal late_ns
        late_ns = max(late_ns, time.monotonic_ns() - start_ns - event.at_ns)

    schedule.run(bed, mine, wait, told)
    if late_ns > _LATEST_NS:
        late_ms = late_ns // 1_000_000
        raise BenchError(f"this machine is too slow: a fault was {late_ms} ms late")


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _scheduled(shape: Shape, fault: Fault) -> Scheduled:
    target = parse_target(fault.target, shape)
    return Scheduled(target, bed_fault(shape, target, fault), fault)


def bed_fault(shape: Shape, target: Target, fault: Fault) -> BedFault:
    """Converts a fault. A bed adds to the delay and jitter of a link, a scenario sets them."""
    match fault.kind:
        case "loss":
            return BedFault(loss=fault.a / _PPM)
        case "delay":
            return BedFault(loss=0, delay_ns=fault.a - shape.link_properties()[target][0].delay_ns)
        case "jitter":
            return BedFault(loss=0, jitter_ns=fault.a - shape.jitter_ns)
        case _:
            return BedFault(loss=0, rate_bps=fault.a or None, rate_share=fault.b / _PPM)
