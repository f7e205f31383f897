# SPDX-License-Identifier: Apache-2.0
"""The results of the actions of `mrc testbed`, as `--json` prints and `mrc.testbed` returns them.
Pure.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mrc.results import KEYS, Result
from mrc.testbed.faults import TargetFault
from mrc.testbed.plan import Census, MachineShare
from mrc.testbed.shape import LinkProperties, Outside


class Topologies(Result, frozen=True, kw_only=True):
    """`mrc testbed plan --list`."""

    topologies: dict[str, str]
    """Built-in topologies: name and title."""


class HostAddresses(Struct, frozen=True, kw_only=True):
    """Addresses of a host."""

    host: str
    """Its name: h0, h1, ..."""
    address: str
    """Its address on all planes (ECMP): the name h1 or h1.any."""
    plane_addresses: tuple[str, ...]
    """Its address in each plane: the names h1.p1, h1.p2, ..."""
    oob: str
    """Its management address, over which mrc exchanges the attributes of QPs: the name h1.mgmt."""


class BedHost(HostAddresses, frozen=True, kw_only=True):
    """A host of a test bed."""

    namespace: str
    """Its network namespace."""
    config: str
    """Path of its host configuration file."""


class BedSize(Result, frozen=True, kw_only=True, rename=KEYS):
    """A test bed that is up, or that `up` would build."""

    planes: int
    """Number of planes."""
    t0: int
    """T0s of each plane."""
    t1: int
    """T1s of each plane."""
    pods: int
    """Pods of each plane; 1 without T2s."""
    t2: int
    """T2s of each plane; 0: two tiers."""
    host_rate_bps: int | None
    """Rate of a link between host and T0, each way; null: no limit."""
    fabric_rate_bps: int | None
    """Rate of a link between T0 and T1, each way; null: no limit."""
    core_rate_bps: int | None
    """Rate of a link between T1 and T2, each way; null: no limit."""
    mtu: int
    """MTU of all links."""
    fabric: Literal["kernel", "emulated"]
    """What forwards packets: the Linux kernel, or the emulator."""
    outside: Outside
    """What joins it to the world."""
    machines: tuple[MachineShare, ...]
    """Its machines; empty: all of it is on this one."""


class Planned(BedSize, frozen=True, kw_only=True):
    """`mrc testbed plan`: what `up` would build."""

    title: str
    """Title of the topology."""
    hosts: int
    """Number of hosts."""
    host_delay_ns: int
    """Delay of a link between host and T0."""
    fabric_delay_ns: int
    """Delay of a link between T0 and T1."""
    core_delay_ns: int
    """Delay of a link between T1 and T2."""
    jitter_ns: int
    """Random delay added at most."""
    addresses: tuple[HostAddresses, ...]
    """Addresses of the hosts."""
    links: dict[str, LinkProperties]
    """Every link, by the name that faults use; each direction, if the two differ."""
    built: Census
    """What the test bed takes."""


class BedDescription(BedSize, frozen=True, kw_only=True):
    """A test bed that is up."""

    name: str
    """Name of the test bed."""
    state: Literal["up"] = "up"
    """The test bed is up."""
    hosts: tuple[BedHost, ...]
    """Its hosts."""
    faults: tuple[TargetFault, ...]
    """What fails now."""
    missing: tuple[str, ...]
    """Network namespaces that somebody removed."""
    drained: tuple[str, ...]
    """Targets that hosts send no traffic over, see `mrc testbed drain`."""
    taken_down: tuple[str, ...]
    """Ends of links that somebody took down by hand, as NODE:INTERFACE; they may be up again, but
    without routes."""


class Built(BedDescription, frozen=True, kw_only=True):
    """`mrc testbed up`."""

    built: bool
    """True: this command built it. False: it was up already."""


class BedProgram(Struct, frozen=True):
    """A program that ran in a test bed."""

    pid: int
    """Its process id."""
    node: str
    """Where it ran: h0, h1, ..., or a switch."""
    command: str
    """Its command line, shortened."""


class Removed(Result, frozen=True, kw_only=True):
    """`mrc testbed down`."""

    name: str
    """Name of the test bed."""
    state: Literal["down"] = "down"
    """The test bed is down."""
    removed: bool
    """True: this command removed it. False: it was not up."""
    ended: tuple[BedProgram, ...]
    """Programs of `exec` and `shell` that this command ended."""
    left: tuple[BedProgram, ...]
    """Programs that still run, in a network that is gone."""
    unreachable: dict[str, str]
    """Machines that keep their part of it, and why they do not answer."""


class LinkCounters(Struct, frozen=True, kw_only=True, rename=KEYS):
    """One direction of a link, since the test bed is up."""

    packets: int
    """Packets sent, or lost by a fault."""
    bytes: int
    """Bytes sent."""
    bits_per_second: int
    """Rate during the interval."""
    rate_bps: int | None
    """Rate that the link can carry; null: no limit."""
    queue_bytes: int
    """Bytes in its queue now."""
    peak_bytes: int | None
    """Longest queue so far; null in a kernel fabric, which does not record it."""
    lost: int
    """Packets lost by faults, on lossy links, or because they exceed the MTU of the link."""
    dropped: int
    """Packets dropped by a full queue."""
    trimmed: int
    """Packets that lost their payload in a full queue."""
    marked: int
    """Packets marked by ECN."""


class FabricCounters(Struct, frozen=True, kw_only=True, rename=KEYS):
    """Packets of an emulated fabric, since it is up."""

    received: int
    """From hosts."""
    sent: int
    """To hosts."""
    lost: int
    """Lost by faults."""
    dropped: int
    """Dropped by full queues."""
    trimmed: int
    """Trimmed by full queues."""
    marked: int
    """Marked by ECN."""
    unroutable: int
    """Dropped: no switch has a route, or the hop limit ran out."""
    refused: int
    """Dropped: the host's interface was down."""
    offloaded: int
    """Dropped: the host had left segmentation or checksum to its interface."""
    overloaded: int
    """Dropped by the emulator or the kernel because the machine is too slow. Above 0 the results of
    the test bed are wrong.
    """


class Status(BedDescription, frozen=True, kw_only=True):
    """`mrc testbed status` of a test bed that is up."""

    counters: FabricCounters | None
    """What the emulator counted; null in a kernel fabric."""
    links: dict[str, LinkCounters]
    """Each direction of each link, by its name, such as h0>t0:1.0."""


class NotUp(Result, frozen=True, kw_only=True):
    """`mrc testbed status` of a test bed that is not up."""

    name: str
    """Name of the test bed."""
    state: Literal["down", "half built"]
    """half built: a command that built or removed it was interrupted."""


class Injection(Result, frozen=True, kw_only=True):
    """`mrc testbed fail`."""

    name: str
    """Name of the test bed."""
    fault: TargetFault
    """What fails now."""


class Healed(Result, frozen=True, kw_only=True):
    """`mrc testbed heal`."""

    name: str
    """Name of the test bed."""
    healed: tuple[str, ...]
    """Targets that no longer fail."""
    failing: tuple[str, ...]
    """Targets that still fail."""


class Drained(Result, frozen=True, kw_only=True):
    """`mrc testbed drain` and `undrain`."""

    name: str
    """Name of the test bed."""
    changed: tuple[str, ...]
    """Targets that this command drained, or returned traffic to."""
    drained: tuple[str, ...]
    """Targets that hosts send no traffic over."""
