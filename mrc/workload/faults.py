# SPDX-License-Identifier: Apache-2.0
"""The faults of a scenario on a test bed, each at its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mrc.errors import ArgumentError, ConfigError
from mrc.fabric.faults import Fault
from mrc.sim.scenario import Scenario
from mrc.testbed import schedule
from mrc.testbed.bed import Testbed
from mrc.testbed.plan import BedPlan
from mrc.testbed.schedule import FaultChange, ScheduledFault
from mrc.units import digits

Told = Callable[[FaultChange, float], None]


class Faults:
    """The faults of one run. Those of the whole run are there before the first packet."""

    def __init__(self, bed: Testbed, scenario: Scenario) -> None:
        """Raises ConfigError for a fault that the test bed cannot inject at its time."""
        self._bed = bed
        self._until_ns = scenario.until_ns
        found = scheduled(scenario, bed.plan)
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

        def counted(event: FaultChange, seconds: float) -> None:
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


def scheduled(scenario: Scenario, plan: BedPlan) -> list[ScheduledFault]:
    """Raises ConfigError for a fault that a test bed cannot inject at its time."""
    during = [fault for fault in scenario.faults if fault.at_ns < scenario.until_ns]
    found = [_scheduled(scenario, fault, plan) for fault in during]
    least_ns = schedule.least_ns(plan.shape.fabric)
    for each in found:
        lasts_ns = each.times.end_ns - each.times.at_ns
        if not _lasts(each.times, scenario) and lasts_ns < least_ns:
            raise ConfigError(
                f"{scenario.name}: {each.target} fails for less than the "
                f"{digits(least_ns / 1e6)} ms that a change takes here: raise --scale"
            )
    return found


def _lasts(fault: Fault, scenario: Scenario) -> bool:
    """Whether a fault lasts for the whole run."""
    return fault.at_ns == 0 and fault.end_ns >= scenario.until_ns


def _scheduled(scenario: Scenario, fault: Fault, plan: BedPlan) -> ScheduledFault:
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


def differ(faults: Sequence[Fault]) -> list[str]:
    """Which faults a test bed and the simulator inject in different places."""
    return [
        f"{fault.target} {fault.kind}: a test bed applies it once to each packet that crosses the "
        "part, the simulator on each of its links"
        for fault in faults
        if fault.kind not in ("silent", "down", "rate", "mtu")
        and fault.target.partition(":")[0] not in ("link", "uplink")
        and ">" not in fault.target
    ]
