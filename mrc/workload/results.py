# SPDX-License-Identifier: Apache-2.0
"""What `mrc testbed run SCENARIO` prints as JSON: as `mrc sim run` where a value means the same."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from msgspec import Struct

from mrc.results import KEYS, Result
from mrc.sim import results as sim

Over = Literal["mrc", "tcp", "mptcp", "iperf3"]
OVERS: tuple[Over, ...] = get_args(Over)


class CheckVerdict(sim.Value, frozen=True, kw_only=True):
    """A figure of the first transport. `baselines` has those of the others, and as `simulator` that
    of the simulator.
    """

    relation: Literal["<=", ">="]
    """How the value must stand to the target."""
    target: float | None
    """The target; null: the figure has none."""
    met: bool | None
    """The value meets the target; null: it has none, or the figure does not apply, or is not
    judged.
    """
    not_judged: str
    """Why the machine does not allow a verdict; empty: it does."""
    not_applicable: dict[str, str]
    """Transports of which a test bed cannot tell this figure, and why."""
    differs: tuple[str, ...]
    """Transports whose value is more than 10% from the simulator's."""
    note: str
    """Why real hosts differ, as the scenario says."""


class BedStats(Struct, frozen=True, kw_only=True, rename=KEYS):
    """The whole fabric over the whole run."""

    texts_of: ClassVar = sim.Stats

    now_ns: int
    packets: int
    """Packets sent by hosts; a kernel fabric counts the segments of a burst."""
    hops: int
    dropped: int
    trimmed: int
    marked: int
    completed_writes: int


class BedFlow(sim.FlowTotals, frozen=True, kw_only=True):
    """One flow. What its transport does not count is null."""

    samples: sim.ArrivalSamples
    """The flow over time."""
    error: str
    """Why writes failed; empty: none did."""


class BedLastHop(Struct, frozen=True, kw_only=True, rename=KEYS):
    """The link from a T0 to a host."""

    texts_of: ClassVar = sim.LastHop

    host: int
    plane: int
    busy_ns: int
    trimmed: int
    dropped: int
    marked: int


class BedRun(Struct, frozen=True, kw_only=True):
    """One run: a seed, a transport and a variant."""

    seed: int
    """Seed of everything that is random."""
    transport: Over
    """What carried the flows."""
    variant: str
    """Name of the variant; empty: there are none."""
    stats: BedStats
    """The whole fabric."""
    flows: tuple[BedFlow, ...]
    """Every flow."""
    ev_events: tuple[sim.Event, ...]
    """What the engines of the senders reported, in order."""
    write_ns: sim.WriteTimes | None
    """Times of the writes; null: none was completed."""
    last_hops: tuple[BedLastHop, ...]
    """The links to hosts that received."""
    processors_busy: float
    """Share of the time of this machine's processors that was used, by whatever program."""
    latest_fault_ns: int
    """The largest delay of a fault's begin or end."""


class Workload(Result, frozen=True, kw_only=True):
    """`mrc testbed run` of a file with traffic."""

    scenario: sim.ScenarioParameters
    """Every parameter, as the test bed and the simulator ran it."""
    checks: tuple[CheckVerdict, ...]
    """Figures, with a target or without."""
    runs: tuple[BedRun, ...]
    """Every run on the test bed."""
    simulated: tuple[sim.Run, ...]
    """The same runs in the simulator."""
    notes: tuple[str, ...]
    """What a test bed does otherwise than the simulator."""
