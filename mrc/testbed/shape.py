# SPDX-License-Identifier: Apache-2.0
"""The parameters of a test bed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from ipaddress import IPv6Network
from typing import Any

from msgspec import convert
from msgspec.structs import force_setattr, replace

from mrc.errors import ArgumentError
from mrc.fabric.faults import MAX_MTU, MIN_MTU, LinkChange
from mrc.fabric.targets import DOWN, UP, Target, absent_links, all_links, links_of, parse_target
from mrc.fabric.topology import Addresses, Topology
from mrc.testbed import extras
from mrc.testbed.results import LinkProperties, Outside, RealHost
from mrc.units import parse_short_rate

DEFAULT_RATE = "500mbit"
MIN_RATE_BPS, MAX_RATE_BPS = 1000, 100_000_000_000_000
NO_RATE_BPS = 1_000_000_000_000  # the emulator requires a rate; at this one 4 KiB take 33 ns
_QUEUE_SECONDS = 0.010
_MIN_QUEUE_BYTES = 256 * 1024
# A hop through the kernel alone takes almost this long. A shorter delay would have no effect.
MIN_KERNEL_DELAY_NS = 50_000


NOTHING = Outside(uplink=None, interfaces=(), hosts=())
"""of a test bed that is not joined to the world"""

BothWays = tuple[LinkProperties, LinkProperties]
"""The properties of a link, up and down."""


class Fabric(StrEnum):
    """The kind of the switches between the hosts."""

    KERNEL = "kernel"
    """a namespace for each switch, in which Linux forwards by uSID"""
    EMULATED = "emulated"
    """one process with the simulator's switches, in real time"""


class Shape(Topology, frozen=True):
    """The parameters of a test bed."""

    hosts: int = 2
    planes: int = 4
    t0: int = 0
    """T0s per plane; 0: one for each host"""
    t1: int = 2
    """T1s per plane"""
    host_rate_bps: int | None = 500_000_000
    """of a link between host and T0, each way; None: as fast as the machine can"""
    fabric_rate_bps: int | None = 500_000_000
    """of a link between T0 and T1"""
    core_rate_bps: int | None = 500_000_000
    """of a link between T1 and T2"""
    host_delay_ns: int = 0
    fabric_delay_ns: int = 0
    core_delay_ns: int = 0
    jitter_ns: int = 0
    """largest random addition to every delay; it keeps the order"""
    links: tuple[LinkChange, ...] = ()
    """later changes override earlier ones"""
    mtu: int = 9000
    buffer_bytes: int | None = None
    """of a switch port, for data and for control; 0: no limit; None: 10 ms, at least 256 KiB. The
    10 ms are at the host rate in an emulated fabric, at the link's rate in a kernel fabric.
    """
    ecn_low_bytes: int | None = None
    """queue depth from which data is marked at random; None: 10% of the buffer"""
    ecn_high_bytes: int | None = None
    """queue depth from which all data is marked; 0: never; None: 40% of the buffer"""
    trim: bool = True
    """a full buffer trims data packets; False: it drops them"""
    fabric: Fabric = Fabric.KERNEL
    outside: Outside = NOTHING
    """what joins it to the world"""

    def __post_init__(self) -> None:
        force_setattr(self, "fabric", Fabric(self.fabric))
        Topology.__post_init__(self)
        force_setattr(self, "absent", absent_links(self.absent, self))
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise ValueError(f"mtu is {self.mtu}, not in {MIN_MTU}..{MAX_MTU}")
        rates = [self.host_rate_bps, self.fabric_rate_bps, self.core_rate_bps]
        for rate_bps in [*rates, *(link.rate_bps for link in self.links)]:
            if rate_bps is not None and not MIN_RATE_BPS <= rate_bps <= MAX_RATE_BPS:
                raise ValueError(f"rate is {rate_bps} bit/s, not in 1kbit..100tbit (or none)")
        if self.fabric is Fabric.KERNEL and self.jitter_ns:
            raise ValueError("jitter would reorder in a kernel fabric: use --fabric emulated")
        if self.fabric is Fabric.EMULATED:
            self._check_queue()
        for link in self.links:
            parse_target(link.target, self)
        if self.outside != NOTHING:
            has_switches = self.fabric is Fabric.KERNEL
            extras.need(extras.OUTSIDE).check(self.outside, self, has_switches=has_switches)

    def port_queue(self) -> dict[str, int]:
        """The buffer of a switch port, and the depths from which it marks; a kernel fabric does
        not.
        """
        buffer_bytes = self.buffer_bytes
        if buffer_bytes is None:
            buffer_bytes = usual_queue_bytes(self.host_rate_bps or NO_RATE_BPS)
        low, high = self.ecn_low_bytes, self.ecn_high_bytes
        return {
            "buffer_bytes": buffer_bytes,
            "ecn_low_bytes": buffer_bytes // 10 if low is None else low,
            "ecn_high_bytes": buffer_bytes * 4 // 10 if high is None else high,
        }

    def _check_queue(self) -> None:
        found = self.port_queue()
        size, low, high = found["buffer_bytes"], found["ecn_low_bytes"], found["ecn_high_bytes"]
        if 0 < size < self.mtu:
            raise ValueError(f"buffer is {size} B, which holds no packet of {self.mtu} B (the MTU)")
        if 0 < high <= low:
            raise ValueError(f"ecn_low is {low} B, not below ecn_high, which is {high} B")

    def link_properties(self) -> dict[Target, BothWays]:
        """The properties of every link in this fabric, up and down, plane by plane: first the
        hosts' links, then those between switches.
        """
        tiers = {
            "link": self._link(self.host_rate_bps, self.host_delay_ns),
            "uplink": self._link(self.fabric_rate_bps, self.fabric_delay_ns),
            "core": self._link(self.core_rate_bps, self.core_delay_ns),
        }
        found = {link: (tiers[link.kind], tiers[link.kind]) for link in all_links(self)}
        for change in self.links:
            target = parse_target(change.target, self)
            for link in links_of(target, self):
                up, down = found[link]
                found[link] = (
                    up if target.direction == DOWN else self._changed(up, change),
                    down if target.direction == UP else self._changed(down, change),
                )
        return found

    def _changed(self, usual: LinkProperties, change: LinkChange) -> LinkProperties:
        return self._link(
            change.rate_bps or usual.rate_bps,
            usual.delay_ns if change.delay_ns is None else change.delay_ns,
            usual.loss if change.loss is None else change.loss,
            min(change.mtu or usual.mtu, self.mtu),
        )

    def _link(
        self, rate_bps: int | None, delay_ns: int, loss: float = 0.0, mtu: int | None = None
    ) -> LinkProperties:
        is_short = self.fabric is Fabric.KERNEL and delay_ns < MIN_KERNEL_DELAY_NS
        return LinkProperties(rate_bps, 0 if is_short else delay_ns, loss, mtu or self.mtu)


@contextmanager
def as_argument_error() -> Iterator[None]:
    """Turns a ValueError of the body into an ArgumentError."""
    try:
        yield
    except ValueError as exc:
        raise ArgumentError(str(exc)) from exc


def real_host(outside: Outside, host: str) -> RealHost | None:
    return next((each for each in outside.hosts if each.host == host), None)


def usual_queue_bytes(rate_bps: int) -> int:
    """10 ms at this rate, at least 256 KiB."""
    return max(round(rate_bps / 8 * _QUEUE_SECONDS), _MIN_QUEUE_BYTES)


def parse_rate(text: str) -> int | None:
    """Bits a second, from the notation of tc(8) or of scenarios: `500mbit`, `10 Gbit/s` or plain
    bit/s. None for `none`: no limit.
    """
    if text == "none":
        return None
    try:
        return parse_short_rate(text)
    except ValueError as error:
        raise ValueError(f"{error}, or none") from error


def scale_rates(shape: Shape, host_rate_bps: int | None) -> Shape:
    """Changes the rate of the hosts' links. All other rates keep their ratio to it. None: no link
    has a limit.
    """
    usual_bps = shape.host_rate_bps

    def scaled(rate_bps: int | None) -> int | None:
        if host_rate_bps is None or rate_bps is None or usual_bps is None:
            return None
        return max(MIN_RATE_BPS, rate_bps * host_rate_bps // usual_bps)

    links = tuple(replace(link, rate_bps=scaled(link.rate_bps)) for link in shape.links)
    return replace(
        shape,
        links=links,
        host_rate_bps=host_rate_bps,
        fabric_rate_bps=scaled(shape.fabric_rate_bps),
        core_rate_bps=scaled(shape.core_rate_bps),
    )


def with_delay(shape: Shape, delay_ns: int) -> Shape:
    """Sets the delay of every link."""
    links = tuple(replace(link, delay_ns=None) for link in shape.links)
    every = dict.fromkeys(("host_delay_ns", "fabric_delay_ns", "core_delay_ns"), delay_ns)
    return replace(shape, links=links, **every)


def decode(stored: dict[str, Any]) -> Shape:
    """A Shape from its fields after JSON."""
    networks: dict[str, Any] = {
        key: IPv6Network(value) if isinstance(value, str) else value
        for key, value in stored["addresses"].items()
    }
    links = tuple(LinkChange(**link) for link in stored["links"])
    own = {"addresses": Addresses(**networks), "links": links, "absent": tuple(stored["absent"])}
    own["outside"] = convert(stored.get("outside", NOTHING), Outside, from_attributes=True)
    return Shape(**stored | own)
