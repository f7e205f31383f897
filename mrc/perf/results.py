# SPDX-License-Identifier: Apache-2.0
"""What `mrc perf` prints as JSON: whole, as a stream of events, and at the server."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from mrc.cli import figures
from mrc.events import EvEvent, PlaneEvent, PlaneShareEvent
from mrc.results import Failure, Plain, Result
from mrc.typed import Whole

Real = Annotated[float, Meta(ge=-1e15, le=1e15)]


class PerfMachine(Struct, frozen=True, kw_only=True):
    """When, where and with which arguments the test ran."""

    started_at: str
    """Date and time in UTC, as ISO 8601."""
    host: str
    """Name of this host."""
    kernel: str
    """Release of the Linux kernel."""
    cpu: str | None
    """Model of the CPU; null where the kernel does not name it."""
    cpu_cores: int | None
    """Cores of this host."""
    arguments: tuple[str, ...]
    """The command line, without the program's name; empty of a program that calls `measure`."""


class TestPlan(Struct, frozen=True, kw_only=True):
    """The parameters of one test."""

    __test__: ClassVar = False  # for pytest, which collects classes by their names

    pattern: Literal["stream", "ping-pong"]
    """stream: WRITEs stay in flight; ping-pong: a WRITE_IMM is answered by another."""
    direction: Literal["forward", "reverse", "both"]
    """Who writes: the client, the server, or both."""
    message_bytes: int
    """Size of a message."""
    qps: int
    """QPs of the test."""
    depth: int
    """WRITEs in flight on each QP."""
    seconds: float | None
    """Duration; null: the test ends after `total_bytes`."""
    total_bytes: int | None
    """Bytes that each writing end writes; null: the test ends after `seconds`."""
    omit_seconds: float
    """Time at the start that is not counted."""
    rate_bits_per_second: float | None
    """Limit of each writing end; null: none."""
    bin_ns: int | None
    """Width of the bins asked for; null without --bins."""
    redundant: bool
    """Whether each packet of a write left twice."""


class SentPlane(Struct, frozen=True, kw_only=True):
    """What one plane carried away from this end."""

    plane: int
    """The plane, from 1."""
    sent_bytes: int
    """Payload sent, retransmissions included."""
    carried_percent: int | None
    """In percent of the mean of the other planes; null: these carried nothing."""
    slow: bool
    """At the end of the interval: the plane carries less than half of what the others do."""
    suspended: bool
    """At the end of the interval: the plane carries only probes."""
    weight: int
    """What it may carry, in percent of the plane that carries most; 0: a backup."""


class ReceivedPlane(Struct, frozen=True, kw_only=True):
    """What arrived at this end by one plane."""

    plane: int
    """The plane, from 1."""
    received_bytes: int
    """Payload that arrived, each byte once."""
    carried_percent: int | None
    """In percent of the mean of the other planes; null: these carried nothing."""


class SendWaits(Struct, frozen=True):
    """What kept the QPs of one end from sending more, and for how long: a mean over them, from
    samples 20 times a second.
    """

    program_seconds: Real = 0.0
    """The program: everything that it had posted was sent."""
    peer_seconds: Real = 0.0
    """The peer: its window of PSNs or of WRITE_IMMs was full."""
    network_seconds: Real = 0.0
    """The network: the congestion windows were full."""
    socket_seconds: Real = 0.0
    """The link of this host: the sockets were full."""
    nothing_seconds: Real = 0.0
    """Nothing: the processor decided."""


class Interval(Plain, frozen=True, kw_only=True):
    """What happened at one end between two moments."""

    start_seconds: float
    """Begin, from the moment when counting began."""
    seconds: float
    """Duration."""
    written_bytes: int
    """Payload of this end that the peer acknowledged."""
    written_bits_per_second: float
    """Goodput of what this end writes."""
    received_bytes: int
    """Payload that the peer wrote here."""
    received_bits_per_second: float
    """Goodput of what the peer writes."""
    sent_packets: int
    """Data packets sent, retransmissions included."""
    retransmitted_packets: int
    """Packets sent again because they were declared lost."""
    retransmitted_bytes: int
    """Payload sent again."""
    ev_changes: int
    """EVs that went from one state to another."""
    cpu_seconds: float
    """CPU time of this process, all threads."""
    waits: SendWaits
    """What kept this end from sending more."""
    planes: tuple[SentPlane, ...]
    """What this end sent, by plane."""
    planes_received: tuple[ReceivedPlane, ...]
    """What this end received, by plane."""


class EvChange(Struct, frozen=True):
    """An EV of one QP went from one state to another."""

    texts_of: ClassVar = EvEvent

    at_ns: Whole
    """When, from the start."""
    qpn: Whole
    """Number of the QP."""
    plane: Whole
    path: str
    old: str
    """State before: GOOD, SKIP, ASSUMED_BAD, DENIED or UNPROVEN."""
    new: str
    """State after."""
    reason: str


class PlaneChange(Struct, frozen=True):
    """A plane of one QP was suspended or resumed."""

    texts_of: ClassVar = PlaneEvent

    at_ns: Whole
    """When, from the start."""
    qpn: Whole
    """Number of the QP."""
    plane: Whole
    suspended: bool
    reason: str


class ShareChange(Struct, frozen=True):
    """A plane of one QP became slow, or no longer is."""

    texts_of: ClassVar = PlaneShareEvent

    at_ns: Whole
    """When, from the start."""
    qpn: Whole
    """Number of the QP."""
    plane: Whole
    slow: bool
    percent: Whole
    reason: str


class Changes(Struct, frozen=True, kw_only=True):
    """What changed when during a test with --bins; all times count from the start."""

    start_monotonic_ns: int
    """The start, by CLOCK_MONOTONIC of this end's host."""
    evs: tuple[EvChange, ...]
    """EVs that went from one state to another."""
    planes: tuple[PlaneChange, ...]
    """Planes that were suspended or resumed."""
    shares: tuple[ShareChange, ...]
    """Planes that became slow, or no longer are."""
    lost_changes: int
    """Further changes, beyond the limit of what is kept."""


class Latency(Struct, frozen=True):
    """What a histogram says, in nanoseconds; all 0 when it is empty."""

    count: Whole
    """Durations measured."""
    min_ns: Whole
    """The shortest."""
    mean_ns: Whole
    """The mean."""
    p50_ns: Whole
    """The median."""
    p99_ns: Whole
    """The 99th percentile."""
    p999_ns: Whole
    """The 99.9th percentile."""
    max_ns: Whole
    """The longest."""


class PerfEnd(Interval, frozen=True, kw_only=True):
    """One end over the whole test."""

    messages: int
    """Messages that this end wrote."""
    messages_per_second: float
    """The same, divided by `seconds`."""
    latency_of: Literal["completion", "half round trip"]
    """What `latency` measures. completion: from the post of a message to its completion."""
    latency: Latency | None
    """null: this end measured none, because it wrote no message or only answered."""
    bins: figures.Bins | None
    """Payload that arrived here over time; null without --bins, and where nothing is written to."""
    changes: Changes | None
    """EVs and planes that changed; null without --bins."""


class Test(Plain, frozen=True, kw_only=True):
    """One test: with -a there are several."""

    __test__: ClassVar = False  # for pytest, which collects classes by their names

    plan: TestPlan
    """Its parameters."""
    interrupted: bool
    """It was ended by a signal or by an error; figures are of the time up to then."""
    goodput_bits_per_second: float
    """Both directions together; in ping-pong these are the WRITE_IMMs and their answers."""
    intervals: tuple[Interval, ...]
    """The client, interval after interval. Their sums are the figures of `client`."""
    client: PerfEnd
    """The client, as a whole, until no write of either end was in flight."""
    server: PerfEnd | None
    """The server, over the same seconds: what one end wrote, the other received. null when the test
    was ended before it answered.
    """


class Setup(figures.Settings, frozen=True, kw_only=True):
    """The parameters of a session with a server."""

    planes: tuple[int, ...]
    """Planes of the first QP."""
    machine: PerfMachine
    """When, where and with which arguments the test ran."""


class Perf(Setup, frozen=True, kw_only=True):
    """All tests of one client: `mrc perf HOST --json`."""

    results: tuple[Test, ...]
    """The tests, in their order."""


class PerfFailed(Perf, frozen=True, kw_only=True):
    """A Failure with the tests until one failed, which is the last of them if it had begun."""

    texts_of: ClassVar = Failure

    error: str
    exit_code: int


class PerfServed(Result, frozen=True, kw_only=True):
    """A test that a server served: `mrc perf --server --json`."""

    peer: str
    """The client."""
    plan: TestPlan
    """The parameters of the test."""
    server: PerfEnd
    """This end."""


class StartEvent(Setup, frozen=True, kw_only=True):
    """First line of `mrc perf HOST --json-stream`."""

    event: Literal["start"] = "start"
    """What this line is."""


class IntervalEvent(Interval, frozen=True, kw_only=True, tag=True, tag_field="result"):
    """A line of the stream for each interval."""

    schema: Literal[1] = 1
    """The version of the format."""
    event: Literal["interval"] = "interval"
    """What this line is."""


class TestEvent(Test, frozen=True, kw_only=True, tag=True, tag_field="result"):
    """A line of the stream for each test that ended."""

    schema: Literal[1] = 1
    """The version of the format."""
    event: Literal["result"] = "result"
    """What this line is."""


class EndEvent(Perf, frozen=True, kw_only=True):
    """Last line of the stream."""

    event: Literal["end"] = "end"
    """What this line is."""
