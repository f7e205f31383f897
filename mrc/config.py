# SPDX-License-Identifier: Apache-2.0
"""Configuration of a Context: frozen dataclasses, validated when they are created.

Whatever configures something and has no name in `mrc` has one here: `mrc.config.Queues`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta

from mrc import limits
from mrc.connect.security import Commands as Commands
from mrc.connect.security import Security
from mrc.enums import CcKind, Seal
from mrc.enums import Integrity as Integrity
from mrc.enums import PlaneShares as PlaneShares
from mrc.enums import Reading as Reading
from mrc.errors import ConfigError
from mrc.fabric.hostconfig import HostConfig
from mrc.fabric.hostconfig import HostPath as HostPath
from mrc.fabric.hostconfig import HostPeer as HostPeer
from mrc.fabric.hostconfig import HostPort as HostPort
from mrc.linux.namespace import OWN, NetworkNamespace
from mrc.linux.secret import Secret as Secret
from mrc.typed import Checked, Name

_MOST_SECONDS = 7 * 86400.0
_Time = Annotated[int, Meta(ge=0, le=limits.CC_MAX_NS)]
_Bytes = Annotated[int, Meta(ge=0, le=limits.CC_MAX_BYTES)]
_Fraction = Annotated[int, Meta(ge=0, le=limits.CC_UNIT)]
_CodePoint = Annotated[int, Meta(ge=0, le=63)]
_TrimmedCodePoint = Annotated[int, Meta(ge=1, le=63)]
_Buffer = Annotated[int, Meta(ge=0, le=1 << 30)]
_Count = Annotated[int, Meta(ge=1, le=65536)]
_Seconds = Annotated[float, Meta(gt=0, le=_MOST_SECONDS)]


@dataclass(frozen=True, slots=True)
class CcParameters(Checked):
    """Parameters of a CC profile for CcKind.NSCC, with OCP's names.

    0 selects the default, which UET's formulas compute from `base_rtt_ns` and `link_bps`.
    """

    link_bps: Annotated[int, Meta(ge=0, le=limits.CC_MAX_BPS)] = 0
    """Rate of one plane's link in bit/s; 0: 10 Gbit/s."""
    base_rtt_ns: _Time = 0
    """Round trip of the idle network; 0: 100 us."""
    target_delay_ns: _Time = 0
    """Target queueing delay; 0: three quarters of `base_rtt_ns`."""
    max_cwnd: _Bytes = 0
    """Largest window in bytes; 0: 1.5 bandwidth-delay products."""
    fi: _Bytes = 0
    """Fair increase in bytes for each window of acknowledged bytes."""
    eta: _Bytes = 0
    """Increase in bytes for each adjustment period."""
    adjust_period_threshold_ns: _Time = 0
    """Time after which accumulated increases are applied."""
    adjust_bytes_threshold: _Bytes = 0
    """Acknowledged bytes after which accumulated increases are applied."""
    qa_threshold_ns: _Time = 0
    """Queueing delay above which quick adapt checks the bytes achieved."""
    md_threshold_ns: _Time = 0
    """Queueing delay above which the window decreases without an ECN mark."""
    qa_gate: Annotated[int, Meta(ge=0, le=limits.CC_MAX_QA_GATE)] = 0
    """Quick adapt fires when the bytes achieved are below `max_cwnd >> qa_gate`."""
    fi_scale: Annotated[int, Meta(ge=0, le=limits.CC_MAX_FI_SCALE)] = 0
    """Fast increase, in millionths of the acknowledged bytes."""
    gamma: _Fraction = 0
    """Multiplicative decrease, in millionths."""
    max_md_jump: _Fraction = 0
    """Smallest part of the window that one decrease leaves, in millionths."""
    disable_qa: bool = False
    """Disables quick adapt."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if 0 < self.base_rtt_ns < limits.CC_MIN_BASE_RTT_NS:
            raise ConfigError(f"base_rtt_ns: {self.base_rtt_ns} is below 1000 (1 us)")
        base_rtt_ns = self.base_rtt_ns or limits.CC_BASE_RTT_NS
        target_delay_ns = self.target_delay_ns or base_rtt_ns * 3 // 4
        for name in ("qa_threshold_ns", "md_threshold_ns"):
            if 0 < (value := getattr(self, name)) < target_delay_ns:
                wrong = f"{value} is below target_delay_ns ({target_delay_ns})"
                raise ConfigError(f"{name}: {wrong}")
        if 0 < self.max_cwnd < limits.MIN_MTU:
            raise ConfigError(
                f"max_cwnd: {self.max_cwnd} is below {limits.MIN_MTU}, the smallest path MTU"
            )


@dataclass(frozen=True, slots=True)
class Retries(Checked):
    """When a QP without acknowledgements sends again, and when it gives up."""

    ack_timeout_exponent: Annotated[int, Meta(ge=1, le=24)] = 16
    """The local ACK timeout is 1.024 us times 2 to the power of this number."""
    linear: Annotated[int, Meta(ge=0, le=7)] = 7
    """Timeouts of this length before timeouts begin to double, 0 to 7."""
    exponential: Annotated[int, Meta(ge=0, le=25)] = 6
    """Timeouts that double; 25: retry forever. With the defaults a QP fails after about 9.0 s."""


@dataclass(frozen=True, slots=True)
class Queues(Checked):
    """Sizes of a QP."""

    sq_depth: _Count = 256
    """Work requests that the engine holds; further ones queue in Python."""
    max_wimm: Annotated[int, Meta(ge=1, le=1024)] = 128
    """Immediates in flight, in each direction."""
    max_unread: Annotated[int, Meta(ge=1, le=1 << 24)] = 65536
    """Received immediates that the program has not read."""
    mpr: Annotated[int, Meta(ge=0, le=limits.MAX_MPR, multiple_of=limits.MPR_UNIT)] = 0
    """Window in PSNs; 0: computed from the links' rates and the round trip."""
    dynamic_mpr: bool = False
    """Offers `QP.set_mpr` to peers: each side may change its granted window while the QP runs."""


@dataclass(frozen=True, slots=True)
class Spraying(Checked):
    """How packets are spread over EVs."""

    evs_per_pair: Annotated[int, Meta(ge=1, le=64)] = 8
    """EVs for each pair of addresses, without SRv6."""
    evs_active_per_plane: Annotated[int, Meta(ge=0, le=limits.MAX_EVS)] = 0
    """EVs in rotation on each plane; 0: all."""
    burst_packets: Annotated[int, Meta(ge=0, le=limits.MAX_BURST_PACKETS)] = 0
    """Maximum number of packets in a burst; 0: the engine chooses."""
    mtu_limit: Annotated[int, Meta(ge=limits.MIN_MTU, le=limits.MAX_MTU, multiple_of=4)] = (
        limits.MAX_MTU
    )
    """Largest payload of a packet, in bytes."""


@dataclass(frozen=True, slots=True)
class TrafficClasses(Checked):
    """Code points (DSCP) of packets, by which switches put them into queues.

    The code points of trimmed packets are those that the switches set.
    """

    control: _CodePoint = 0
    """SACKs, NACKs, ACKs and probes."""
    data: _CodePoint = 0
    """Data that leaves for the first time."""
    retransmission: _CodePoint = 0
    """Data that leaves again."""
    trimmed: _TrimmedCodePoint = limits.DSCP_TRIMMED
    """Data that a switch has trimmed."""
    trimmed_last: _TrimmedCodePoint = limits.DSCP_TRIMMED_LAST
    """Data that the last switch before this host has trimmed."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        trimmed = (self.trimmed, self.trimmed_last)
        both = {self.control, self.data, self.retransmission}.intersection(trimmed)
        if self.trimmed == self.trimmed_last or both:
            raise ConfigError("trimmed, trimmed_last: must differ from each other and the rest")


@dataclass(frozen=True, slots=True)
class Sockets(Checked):
    """How the datapath uses its sockets and a processor."""

    polled: bool = False
    """No datapath thread: the event loop runs the datapath, so other tasks must not block it."""
    spin_us: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Microseconds of busy polling before the datapath (with `polled`: the event loop) sleeps."""
    engines: Annotated[int, Meta(ge=1, le=limits.MAX_ENGINES)] = 1
    """Datapath threads, each with sockets of its own; QPs are spread over them. Several use several
    cores, and receive on UDP ports from `udp_port` on."""
    coalesce_us: Annotated[int, Meta(ge=0, le=1000)] = 250
    """While bursts arrive, microseconds between two reads of the sockets; 0: reads each at once."""
    rcvbuf_bytes: _Buffer = 0
    """Receive buffer of each socket in bytes, at most 1 GiB; 0: the engine's default."""
    sndbuf_bytes: _Buffer = 0
    """Send buffer of each socket in bytes, at most 1 GiB; 0: the engine's default."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.polled and self.engines > 1:
            raise ConfigError("engines: an event loop that polls runs one engine")


@dataclass(frozen=True, slots=True)
class Limits(Checked):
    """What peers may take of this host. A source is an IPv4 address or an IPv6 /64."""

    max_qps: _Count = 1024
    """Maximum number of QPs."""
    max_qps_per_source: Annotated[int, Meta(ge=1, le=1 << 20)] = 64
    """Maximum number of QPs that one source may have connected to this host."""
    max_pending: _Count = 64
    """Maximum number of peers that are connecting or waiting to be accepted at one time."""
    max_pending_per_source: _Count = 8
    """Maximum number of connecting peers from one source."""
    max_peer_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 1 << 30
    """Memory in bytes for the sessions of all peers; one source gets at most half of it."""


@dataclass(frozen=True, slots=True)
class Timeouts(Checked):
    """How long a Context waits for peers, in seconds, at most a week."""

    hello: _Seconds = 2.0
    """For each message of a connecting peer, until its hello; with a long round trip more
    (mrc/connect/README.md)."""
    exchange: _Seconds = 10.0
    """For the whole exchange of a connecting peer; likewise."""
    linger: Annotated[float, Meta(ge=0, le=_MOST_SECONDS)] = 2.0
    """For a peer that still needs answers when this side closes the QP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig(Checked):
    """Sizes and policies of a Context. The defaults suit a host with a few links.

    `host` is the host configuration. None reads the file named by $MRC_CONFIG; without this
    variable, mrc uses and follows the interfaces of this machine. `interfaces` then selects some of
    them by name or address: the n-th is port n on plane n. An interface may appear later. With a
    host configuration, `interfaces` selects some of its ports, which keep their planes.
    """

    host: HostConfig | None = None
    """The host configuration; None: see above."""
    namespace: NetworkNamespace = OWN
    """The network namespace of its sockets; the default: that of this process."""
    interfaces: tuple[str, ...] = ()
    """Names or addresses of the interfaces to use, one for each plane; empty: all. `wwan0:backup`
    carries data only while no other can, `wwan0:50` half of what the busiest one carries."""
    name: Name = ""
    """Name of this host for its peers, at most 255 characters; empty: the name in `host`, else the
    machine's name."""
    udp_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """UDP port that peers send to; 0: 4791 when it is free, another port otherwise."""
    cc: CcKind = CcKind.DELAY
    """The congestion control of the default CC profile."""
    cc_parameters: CcParameters = CcParameters()
    """Parameters of the default CC profile, for CcKind.NSCC."""
    plane_shares: PlaneShares = PlaneShares.MEASURED
    """How planes share the load; EQUAL is the rule of the MRC specification, for equal planes."""
    integrity: Integrity = Integrity.ICRC
    """How packets are protected from corruption; UDP applies only if both sides choose it."""
    seal: Seal | None = None
    """How packets are sealed; None: AEAD with a peer whose exchange is encrypted, else NONE. The
    stronger wish of both sides holds; a seal requires an encrypted exchange."""
    security: Security | None = None
    """Who the peers must be, and how this host proves itself; None: everything is plain."""
    readings: Reading = Reading.OURS
    """Readings of the MRC specification to follow in place of mrc's own. Two hosts with different
    readings of C3 or C6 refuse each other at the connect."""
    program: str = ""
    """Name of this program in `mrc top`."""
    local_view: bool = False
    """Allows the user of this process to watch it with `mrc top --local`."""
    remote_view: bool = False
    """Allows everyone who can reach its listeners to watch it with `mrc top HOST`."""
    metrics: tuple[str, Annotated[int, Meta(ge=0, le=65535)]] | None = None
    """Address and TCP port of the Prometheus metrics; None: disabled."""

    retries: Retries = Retries()
    """When a QP sends again, and when it gives up."""
    queues: Queues = Queues()
    """Sizes of each QP."""
    spraying: Spraying = Spraying()
    """How packets are spread over EVs."""
    traffic_classes: TrafficClasses = TrafficClasses()
    """Code points of its packets."""
    sockets: Sockets = Sockets()
    """How the datapath uses its sockets and a processor."""
    limits: Limits = Limits()
    """What peers may take of this host."""
    timeouts: Timeouts = Timeouts()
    """How long it waits for peers."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.udp_port > (most := 65536 - self.sockets.engines):
            wrong = f"must be up to {most}, as each engine takes one, not {self.udp_port}"
            raise ConfigError(f"udp_port: {wrong}")
        if not self.name.isprintable():
            raise ConfigError("name: is not printable")
        names = [name for name, _ in map(_weighed, self.interfaces)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"interfaces: has {', '.join(twice)} twice")
        if self.namespace != OWN and self.security is not None and self.security.plain_loopback:
            # /proc/net has the owners of sockets in the process's own namespace only.
            raise ConfigError("security: plain_loopback requires the namespace of this process")
        subjects = [str(each.name).partition("_")[0] for each in self.readings]
        if twice := sorted({each for each in subjects if subjects.count(each) > 1}):
            raise ConfigError(f"readings: names two alternatives of {', '.join(twice)}")
        if Reading.S1_A in self.readings and self.queues.mpr == 0:
            object.__setattr__(self, "queues", replace(self.queues, mpr=limits.MPR_UNIT))

    @property
    def weights(self) -> dict[str, int | None]:
        """The weights of `interfaces`, by name, in per cent; 0: a backup, None: not given."""
        return dict(map(_weighed, self.interfaces))


def _weighed(text: str) -> tuple[str, int | None]:
    """A name or address, and its weight. Raises ConfigError.

    An IPv6 address with a weight is in brackets, because 2001:db8::1:50 is an address. A weight
    below 10 has its %, because eth0:1 may mean an alias of ifconfig.
    """
    try:
        ip_address(text)
    except ValueError:
        pass
    else:
        return text, None
    weight = r"backup|[1-9]\d?%|[1-9]\d|100%?"
    found = re.fullmatch(rf"(?:\[([^][]+)\]|([^][:]+))(?::({weight}))?", text, re.ASCII)
    if found is None:
        known = "eth0:backup, eth0:50, eth0:5% or [2001:db8::1]:backup"
        raise ConfigError(f"interfaces: {text!r} is no name; with a weight it is as {known}")
    name = found[1] or found[2]
    if found[3] is None:
        return name, None
    return name, 0 if found[3] == "backup" else int(found[3].rstrip("%"))
