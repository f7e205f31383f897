# SPDX-License-Identifier: Apache-2.0
"""What `mrc testbed` prints as JSON of a test bed that is planned or up."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from mrc.results import KEYS, Result
from mrc.testbed.faults import TargetFault
from mrc.testbed.plan import Census
from mrc.testbed.shape import LinkProperties, Outside


class BedHost(Struct, frozen=True, kw_only=True):
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
    hosts: tuple[BedHost, ...]
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
    faults: tuple[TargetFault, ...]
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
