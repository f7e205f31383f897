# SPDX-License-Identifier: Apache-2.0
"""What a Context may be told: frozen dataclasses, validated when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mrc import limits
from mrc.enums import CcKind, Integrity, PlaneShares
from mrc.errors import ConfigError
from mrc.exchange import mpr
from mrc.fabric.hostconfig import HostConfig

MAX_PEER_BYTES = 1 << 30

_RANGES = {
    "udp_port": (0, 65535),
    "evs_per_pair": (1, 64),
    "sq_depth": (1, 65536),
    "max_wimm": (1, 1024),
    "timeout": (1, 24),
    "retry_linear": (0, 7),
    "retry_exp": (0, 25),
    "spray": (0, limits.MAX_BURST_PACKETS),
    "ev_active_per_plane": (0, limits.MAX_EVS),
    "spin_us": (0, 65535),
    "coalesce_us": (0, 1000),
    "max_pending": (1, 65536),
    "max_pending_per_source": (1, 65536),
    "max_qps_per_source": (1, 1 << 20),
    "max_peer_bytes": (0, 1 << 50),
    "max_unread": (1, 1 << 24),
}
_TIME = (0, limits.CC_MAX_NS)
_BYTES = (0, limits.CC_MAX_BYTES)
_FRACTION = (0, limits.CC_UNIT)
_CC_RANGES = {
    "link_bps": (0, limits.CC_MAX_BPS),
    "base_rtt_ns": _TIME,
    "target_delay_ns": _TIME,
    "max_cwnd": _BYTES,
    "fi": _BYTES,
    "eta": _BYTES,
    "adjust_period_threshold_ns": _TIME,
    "adjust_bytes_threshold": _BYTES,
    "qa_threshold_ns": _TIME,
    "md_threshold_ns": _TIME,
    "qa_gate": (0, limits.CC_MAX_QA_GATE),
    "fi_scale": (0, limits.CC_MAX_FI_SCALE),
    "gamma": _FRACTION,
    "max_md_jump": _FRACTION,
}


def _check_ranges(config: object, ranges: Mapping[str, tuple[int, int]]) -> None:
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise ConfigError(f"{name}: {value} is not within {low}..{high}")


@dataclass(frozen=True, slots=True)
class CcParameters:
    """What a CC profile sets for CcKind.NSCC, by OCP's names.

    0 takes the default, which follows from `base_rtt_ns` and `link_bps` by UET's formulas.
    """

    link_bps: int = 0
    """Rate of one plane's link in bit/s; 0: 10 Gbit/s."""
    base_rtt_ns: int = 0
    """Round trip of the empty network; 0: 100 us."""
    target_delay_ns: int = 0
    """Queueing delay that the control aims at; 0: three quarters of `base_rtt_ns`."""
    max_cwnd: int = 0
    """Largest window in bytes; 0: 1.5 bandwidth-delay products."""
    fi: int = 0
    """Fair increase in bytes for each window of acknowledged bytes."""
    eta: int = 0
    """Increase in bytes for each adjustment period."""
    adjust_period_threshold_ns: int = 0
    """Time after which gathered increases are applied."""
    adjust_bytes_threshold: int = 0
    """Acknowledged bytes after which gathered increases are applied."""
    qa_threshold_ns: int = 0
    """Queueing delay above which quick adapt looks at what was achieved."""
    md_threshold_ns: int = 0
    """Queueing delay above which the window decreases without an ECN mark."""
    qa_gate: int = 0
    """Quick adapt fires below the largest window shifted right by so many bits."""
    fi_scale: int = 0
    """Fast increase, in millionths of the acknowledged bytes."""
    gamma: int = 0
    """Multiplicative decrease, in millionths."""
    max_md_jump: int = 0
    """What one decrease leaves of the window at least, in millionths."""
    disable_qa: bool = False
    """Turns quick adapt off."""

    def __post_init__(self) -> None:
        _check_ranges(self, _CC_RANGES)
        if 0 < self.base_rtt_ns < limits.CC_MIN_BASE_RTT_NS:
            raise ConfigError(f"base_rtt_ns: {self.base_rtt_ns} is below a microsecond")
        base_rtt_ns = self.base_rtt_ns or limits.CC_BASE_RTT_NS
        target_delay_ns = self.target_delay_ns or base_rtt_ns * 3 // 4
        for name in ("qa_threshold_ns", "md_threshold_ns"):
            if 0 < (value := getattr(self, name)) < target_delay_ns:
                wrong = f"{value} is below target_delay_ns, which is {target_delay_ns}"
                raise ConfigError(f"{name}: {wrong}")
        if 0 < self.max_cwnd < limits.MIN_MTU:
            raise ConfigError(f"max_cwnd: {self.max_cwnd} is below the smallest path MTU")


def check_plane_shares(value: object) -> None:
    """Raises ConfigError for what is no PlaneShares; a number or a name is none."""
    if not isinstance(value, PlaneShares):
        raise ConfigError(f"plane_shares: {value!r:.40} is no PlaneShares")


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Sizes and policies of a Context. The defaults suit a host with a few links.

    `host` is the host configuration; None reads the file that $MRC_CONFIG names and, without it,
    follows the interfaces of this machine. `interfaces` then narrows them to the given names or
    addresses, in that order: port n, and plane n, is the n-th. One that is not there may come.
    """

    host: HostConfig | None = None
    """The host configuration; None: see above."""
    interfaces: tuple[str, ...] = ()
    """Names or addresses of the interfaces to use, one for each plane; empty: all."""
    name: str = ""
    """Name of this host as peers see it; empty: that of `host`, else the machine's."""
    udp_port: int = 0
    """UDP port that peers send to; 0: 4791 when it is free, another port otherwise."""
    evs_per_pair: int = 8
    """EVs for each pair of addresses, without SRv6."""
    mpr: int = 0
    """Window in PSNs; 0: from the links' rates and the round trip."""
    dynamic_mpr: bool = False
    """Offers peers that either side may narrow the window (`QP.set_mpr`)."""
    sq_depth: int = 256
    """Work requests of one QP that the engine holds; further ones wait outside it."""
    max_wimm: int = 128
    """Immediates in flight, in each direction."""
    timeout: int = 16
    """The local timeout is 1.024 us shifted left by so many bits."""
    retry_linear: int = 7
    """Timeouts of that length before they begin to double, 0 to 7."""
    retry_exp: int = 6
    """Timeouts that double; 25: never gives up. The defaults give up after about 9.0 s."""
    cc: CcKind = CcKind.DELAY
    """The congestion control of the default CC profile."""
    cc_parameters: CcParameters = CcParameters()
    """Its parameters, for CcKind.NSCC."""
    plane_shares: PlaneShares = PlaneShares.MEASURED
    """How planes share the load; EQUAL is MRC's own rule, for planes that are equal."""
    integrity: Integrity = Integrity.ICRC
    """What protects packets from corruption; UDP holds when both sides choose it."""
    spray: int = 0
    """Packets in a burst at most; 0: the engine chooses."""
    ev_active_per_plane: int = 0
    """EVs in rotation on each plane; 0: all."""
    mtu_limit: int = limits.MAX_MTU
    """Payload of a packet at most, in bytes."""
    spin_us: int = 0
    """Microseconds of busy polling before the datapath sleeps; with `polled` the event loop turns.

    """
    coalesce_us: int = 250
    """While bursts come in, the datapath takes them once in so many microseconds; 0: each at once.

    """
    polled: bool = False
    """No datapath thread: the event loop runs the datapath and must not be kept busy."""
    rcvbuf_bytes: int = 0
    """Receive buffer of each socket in bytes; 0: the engine's default."""
    sndbuf_bytes: int = 0
    """Send buffer of each socket in bytes; 0: the engine's default."""
    max_pending: int = 64
    """Peers that may be connecting, or wait to be accepted, at one time."""
    max_pending_per_source: int = 8
    """Of these, so many from one IPv4 address or IPv6 /64."""
    max_qps_per_source: int = 64
    """QPs that one IPv4 address or IPv6 /64 may have connected here."""
    hello_timeout: float = 2.0
    """Seconds in which a connecting peer must have sent its hello."""
    exchange_timeout: float = 10.0
    """Seconds in which a connecting peer must have completed the exchange."""
    max_peer_bytes: int = MAX_PEER_BYTES
    """Memory in bytes for the sessions of all peers; one source gets half of it at most."""
    max_unread: int = 65536
    """Immediates of one QP that the program has not taken yet."""
    linger: float = 2.0
    """Seconds that a closing QP waits until its peer needs no more answers."""
    program: str = ""
    """What this process is, for `mrc top`."""
    local_view: bool = False
    """Lets its user look into it with `mrc top --local`."""
    remote_view: bool = False
    """Lets everyone who reaches its listeners look into it with `mrc top HOST`."""
    metrics: tuple[str, int] | None = None
    """Address and TCP port that serve metrics to Prometheus; None: none."""

    def __post_init__(self) -> None:
        _check_ranges(self, _RANGES)
        if self.mpr % limits.MPR_UNIT or not 0 <= self.mpr <= mpr.MOST:
            raise ConfigError(f"mpr: {self.mpr} is not 0 or a multiple of 128 within 128..4096")
        if not limits.MIN_MTU <= self.mtu_limit <= limits.MAX_MTU or self.mtu_limit % 4:
            span = f"{limits.MIN_MTU}..{limits.MAX_MTU}"
            raise ConfigError(f"mtu_limit: {self.mtu_limit} is not a multiple of 4 within {span}")
        check_plane_shares(self.plane_shares)
        if min(self.exchange_timeout, self.hello_timeout) <= 0 or self.linger < 0:
            wrong = "must not be negative, and only linger may be 0"
            raise ConfigError(f"exchange_timeout, hello_timeout, linger: {wrong}")
