# SPDX-License-Identifier: Apache-2.0
"""What `mrc testbed` prints as JSON, action by action."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from mrc.results.plain import KEYS, Result

_SHARES = {each: f"{each}_share" for each in ("loss", "corrupt", "duplicate", "reorder")}


class Host(Struct, frozen=True, kw_only=True):
    """A host of a test bed."""

    host: str
    """Its name: h0, h1, ..."""
    namespace: str
    """Its network namespace."""
    config: str
    """Path of its host configuration file."""
    address: str
    """Its address on all planes (ECMP): the name h1 or h1.any."""
    plane_addresses: tuple[str, ...]
    """Its address in each plane: the names h1.p1, h1.p2, ..."""
    oob: str
    """Its management address, over which mrc exchanges the attributes of QPs: the name h1.mgmt."""


class Fault(Struct, frozen=True, kw_only=True, rename=KEYS | _SHARES):
    """What fails, and how. A share is a part of all packets, from 0 to 1."""

    target: str
    """What fails: plane:2, t1:3.0, link:h0.1, ..."""
    mode: Literal["silent", "down"]
    """silent: packets are dropped and the link stays up; down: the link is down."""
    loss: float
    """Packets dropped."""
    corrupt: float
    """Packets in which a bit is flipped."""
    duplicate: float
    """Packets delivered twice."""
    reorder: float
    """Packets delivered late."""
    reorder_ns: int | None
    """Delay of reordered and duplicate packets at most; null: there are none."""
    delay_ns: int
    """Delay added to every packet."""
    jitter_ns: int
    """Random delay added at most; the order of packets is kept."""
    rate_bps: int | None
    """Rate of each link of the target; null: its own."""
    rate_share: float | None
    """Rate of each link as a share of its own; null: all of it."""
    mtu: int | None
    """Size of the largest IPv6 packet that is not lost; null: that of each link."""


class LentInterface(Struct, frozen=True):
    """An interface of the machine inside a host or switch of a test bed."""

    interface: str
    """Its name, here and there."""
    node: str
    """The host or switch: h0, t1:2.0, mgmt."""


class RealHost(Struct, frozen=True):
    """A host that is no namespace, but the machine at the other end of these interfaces."""

    host: str
    """Its name: h1."""
    interfaces: tuple[str, ...]
    """The interface of each plane."""
    management: str | None
    """The interface of the management network; null: mrc exchanges attributes over the planes."""


class Outside(Struct, frozen=True):
    """What joins a test bed to the world."""

    uplink: str | None
    """The interface over which hosts reach the world by NAT; null: there is none."""
    interfaces: tuple[LentInterface, ...]
    """Interfaces of the machine in hosts and switches."""
    hosts: tuple[RealHost, ...]
    """Hosts that are no namespaces."""


class MachineShare(Struct, frozen=True, kw_only=True):
    """What a machine has of a test bed over several."""

    name: str
    """Its name in `--on`."""
    address: str | None
    """Where the other machines reach it; null: it was not looked up."""
    hosts: tuple[str, ...]
    """Its hosts."""
    switches: tuple[str, ...]
    """Its T0s and T1s."""
    tunnels: int
    """Its links to switches on other machines, over VXLAN."""
    lost: str | None
    """Why it does not answer; null: it does."""


class Bed(Result, frozen=True, kw_only=True, rename=KEYS):
    """A test bed that is up."""

    name: str
    """Name of the test bed."""
    state: Literal["up"] = "up"
    """The test bed is up."""
    hosts: tuple[Host, ...]
    """Its hosts."""
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
    faults: tuple[Fault, ...]
    """What fails now."""
    missing: tuple[str, ...]
    """Network namespaces that somebody removed."""
    drained: tuple[str, ...]
    """Targets that hosts send no traffic over, see `mrc testbed drain`."""
    taken_down: tuple[str, ...]
    """Ends of links that somebody took down by hand, as NODE:INTERFACE; they may be up again, but
    without routes."""
    machines: tuple[MachineShare, ...]
    """Its machines; empty: all of it is on this one."""


class Built(Bed, frozen=True, kw_only=True):
    """`mrc testbed up`."""

    built: bool
    """True: this command built it. False: it was up already."""


class Link(Struct, frozen=True, kw_only=True, rename=KEYS):
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


class Counters(Struct, frozen=True, kw_only=True, rename=KEYS):
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


class Status(Bed, frozen=True, kw_only=True):
    """`mrc testbed status` of a test bed that is up."""

    counters: Counters | None
    """What the emulator counted; null in a kernel fabric."""
    links: dict[str, Link]
    """Each direction of each link, by its name, such as h0>t0:1.0."""


class NotUp(Result, frozen=True, kw_only=True):
    """`mrc testbed status` of a test bed that is not up."""

    name: str
    """Name of the test bed."""
    state: Literal["down", "half built"]
    """half built: a command that built or removed it was interrupted."""


class Program(Struct, frozen=True):
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
    ended: tuple[Program, ...]
    """Programs of `exec` and `shell` that this command ended."""
    left: tuple[Program, ...]
    """Programs that still run, in a network that is gone."""
    unreachable: dict[str, str]
    """Machines that keep their part of it, and why they do not answer."""


class Failed(Result, frozen=True, kw_only=True):
    """`mrc testbed fail`."""

    name: str
    """Name of the test bed."""
    fault: Fault
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


class Scheduled(Result, frozen=True, kw_only=True):
    """A line of `mrc testbed run` for each change."""

    event: Literal["fail", "heal"]
    """What happened."""
    target: str
    """The target."""
    due_seconds: float
    """When the file says, from the start."""
    seconds: float
    """When it happened, from the start."""
    fault: Fault | None
    """How the target fails from now on; null: it is healed."""


class HostAddresses(Struct, frozen=True, kw_only=True):
    """Addresses of a host."""

    host: str
    """Its name: h0, h1, ..."""
    address: str
    """Its address on all planes (ECMP): the name h1 or h1.any."""
    plane_addresses: tuple[str, ...]
    """Its address in each plane: the names h1.p1, h1.p2, ..."""
    oob: str
    """Its management address: the name h1.mgmt."""


class LinkProperties(Struct, frozen=True, rename=KEYS | _SHARES):
    """A link, each way."""

    rate_bps: int | None
    """Its rate; null: no limit."""
    delay_ns: int
    """Its delay."""
    loss: float
    """Packets lost by chance, as a part of all packets, from 0 to 1."""
    mtu: int
    """Larger packets are dropped."""


class Census(Struct, frozen=True):
    """How many of each a test bed takes."""

    namespaces: int
    """Network namespaces."""
    links: int
    """Links (veth pairs)."""
    routes: int
    """Routes in the kernel."""
    paths: int
    """Paths from any host to any other."""


class Planned(Result, frozen=True, kw_only=True, rename=KEYS):
    """`mrc testbed plan`: what `up` would build."""

    texts_of: ClassVar = Bed

    title: str
    """Title of the topology."""
    fabric: Literal["kernel", "emulated"]
    hosts: int
    """Number of hosts."""
    planes: int
    t0: int
    t1: int
    pods: int
    t2: int
    host_rate_bps: int | None
    fabric_rate_bps: int | None
    core_rate_bps: int | None
    host_delay_ns: int
    """Delay of a link between host and T0."""
    fabric_delay_ns: int
    """Delay of a link between T0 and T1."""
    core_delay_ns: int
    """Delay of a link between T1 and T2."""
    jitter_ns: int
    """Random delay added at most."""
    mtu: int
    addresses: tuple[HostAddresses, ...]
    """Addresses of the hosts."""
    links: dict[str, LinkProperties]
    """Every link, by the name that faults use; each direction, if the two differ."""
    outside: Outside
    built: Census
    """What the test bed takes."""
    machines: tuple[MachineShare, ...]
    """What each machine of `--on` takes; empty without `--on`."""


class Topologies(Result, frozen=True, kw_only=True):
    """`mrc testbed plan --list`."""

    topologies: dict[str, str]
    """Built-in topologies: name and title."""


class Captured(Result, frozen=True, kw_only=True, rename=KEYS):
    """`mrc testbed capture`."""

    packets: int
    """Packets written."""
    bytes: int
    """Size of the file."""
    dropped: int
    """Packets that the kernel dropped because the capture was too slow."""
    interfaces: tuple[str, ...]
    """Where packets were captured, as NODE:INTERFACE."""
