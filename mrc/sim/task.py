# SPDX-License-Identifier: Apache-2.0
"""What the process in a host is told, and what it answers: lines of JSON. Pure.

The first line of its input is a HostTask, and it answers Ready when it listens. Then:

connect           connect the flows that begin here; it answers Ready
start NS          run the flows from this time of the monotonic clock on
step FLOW NS      begin the next step of a flow at this time
stop              it answers an Answer and ends

Between start and stop it says HostNews lines.

A relay on another machine says GREETING, answers CLOCK with CLOCK and the time of its monotonic
clock, and passes all other lines on, each with the name of its host in front. Ended is its own.
"""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from mrc.sim.results import Transport

Over = Literal["mrc", "tcp", "mptcp", "iperf3"]
OVERS: tuple[Over, ...] = get_args(Over)
GREETING = b"mrc testbed part --traffic\n"
CLOCK = "clock"
IPERF3 = "iperf3"  # the program


class FlowTask(Struct, frozen=True, kw_only=True):
    """A flow, for both of its ends. Times count from the start of the run."""

    number: int
    over: Over
    peer: str
    """name of the receiver"""
    route: tuple[str, str]
    """addresses of sender and receiver for TCP; the first is empty if it does not matter"""
    plane: int
    """plane of these addresses; 0: the kernel chooses"""
    bytes: int
    writes: int
    redundant: bool
    depth: int
    start_ns: int
    interval_ns: int
    step_writes: int
    """writes of a step; 0: all"""
    after: int | None
    """number of a flow that ends here: write n + 1 follows its n-th"""
    notify: bool
    """the receiver counts the writes that arrived: another flow waits for them"""
    denied: tuple[str, ...]
    """paths that it may not use, until `allow_ns`, or to the end if that is 0"""
    allow_ns: int
    is_endless: bool
    """it sends until the run ends"""


class HostTask(Struct, frozen=True, kw_only=True):
    """The flows of one host."""

    host: int
    seed: int
    planes: int
    sample_ns: int
    until_ns: int
    memory_bytes: int
    link_bps: int
    base_rtt_ns: int
    transport: Transport
    sends: tuple[FlowTask, ...]
    receives: tuple[FlowTask, ...]


class Ready(Struct, frozen=True, tag=True):
    """It has done what it was told."""


class HostNews(Struct, frozen=True, kw_only=True, tag="Said"):
    """News of a running host."""

    step: int | None = None
    """number of a flow that has ended a step"""
    over: bool = False
    """all flows that begin here have ended"""


class Counts(Struct, frozen=True, kw_only=True):
    """What a transport counts at the sender; None: it does not."""

    sent_packets: int | None = None
    retransmitted_packets: int | None = None
    spurious_packets: int | None = None
    lost_packets: int | None = None
    rtt_ns: int | None = None


class SentFlow(Struct, frozen=True, kw_only=True):
    """A flow at its sender."""

    number: int
    first_ns: int
    last_ns: int
    posted: int
    completed: int
    failed: int
    counts: Counts
    times: tuple[tuple[int, int], ...]
    """when each completed write was due, and when it was done"""
    error: str
    """why writes failed; empty: none did"""


class ReceivedFlow(Struct, frozen=True, kw_only=True):
    """A flow at its receiver."""

    number: int
    samples: tuple[tuple[int, ...], ...]
    """each: time, bytes received, and bytes of each plane where the transport counts them"""


class PathChange(Struct, frozen=True, kw_only=True):
    """An EV or a plane of a flow's sender changed its state."""

    now_ns: int
    flow: int
    plane: int
    path: int | None
    """None: the plane was suspended or resumed"""
    state: int
    """of the EV; for a plane 1 if it carries data again"""


class HostAnswer(Struct, frozen=True, kw_only=True, tag="Answer"):
    """What became of the flows of a host."""

    sent: tuple[SentFlow, ...]
    received: tuple[ReceivedFlow, ...]
    changes: tuple[PathChange, ...]


class HostEnd(Struct, frozen=True, kw_only=True, tag="Ended"):
    """The process in a host of another machine has ended before its answer."""

    why: str
