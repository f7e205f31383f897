# SPDX-License-Identifier: Apache-2.0
"""Configuration of a Context: frozen dataclasses, validated when they are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mrc import limits
from mrc.enums import CcKind, Integrity, PlaneShares, Seal
from mrc.errors import ConfigError
from mrc.exchange import mpr
from mrc.fabric.hostconfig import HostConfig
from mrc.trust.security import Security

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
    "max_qps": (1, 65536),
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
    """Parameters of a CC profile for CcKind.NSCC, with OCP's names.

    0 selects the default, which UET's formulas compute from `base_rtt_ns` and `link_bps`.
    """

    link_bps: int = 0
    """Rate of one plane's link in bit/s; 0: 10 Gbit/s."""
    base_rtt_ns: int = 0
    """Round trip of the idle network; 0: 100 us."""
    target_delay_ns: int = 0
    """Target queueing delay; 0: three quarters of `base_rtt_ns`."""
    max_cwnd: int = 0
    """Largest window in bytes; 0: 1.5 bandwidth-delay products."""
    fi: int = 0
    """Fair increase in bytes for each window of acknowledged bytes."""
    eta: int = 0
    """Increase in bytes for each adjustment period."""
    adjust_period_threshold_ns: int = 0
    """Time after which accumulated increases are applied."""
    adjust_bytes_threshold: int = 0
    """Acknowledged bytes after which accumulated increases are applied."""
    qa_threshold_ns: int = 0
    """Queueing delay above which quick adapt checks the bytes achieved."""
    md_threshold_ns: int = 0
    """Queueing delay above which the window decreases without an ECN mark."""
    qa_gate: int = 0
    """Quick adapt fires when the bytes achieved are below `max_cwnd >> qa_gate`."""
    fi_scale: int = 0
    """Fast increase, in millionths of the acknowledged bytes."""
    gamma: int = 0
    """Multiplicative decrease, in millionths."""
    max_md_jump: int = 0
    """Smallest part of the window that one decrease leaves, in millionths."""
    disable_qa: bool = False
    """Disables quick adapt."""

    def __post_init__(self) -> None:
        _check_ranges(self, _CC_RANGES)
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


def check_plane_shares(value: object) -> None:
    """Raises ConfigError unless `value` is a PlaneShares. Numbers and names are not accepted."""
    if not isinstance(value, PlaneShares):
        raise ConfigError(f"plane_shares: {value!r:.40} is not a PlaneShares")


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Sizes and policies of a Context. The defaults suit a host with a few links.

    `host` is the host configuration. None reads the file named by $MRC_CONFIG; without this
    variable, mrc uses and follows the interfaces of this machine. `interfaces` then selects some of
    them by name or address: the n-th is port n on plane n. An interface may appear later. With a
    host configuration, `interfaces` selects some of its ports, which keep their planes.
    """

    host: HostConfig | None = None
    """The host configuration; None: see above."""
    interfaces: tuple[str, ...] = ()
    """Names or addresses of the interfaces to use, one for each plane; empty: all."""
    name: str = ""
    """Name of this host as peers see it; empty: the name in `host`, else the machine's name."""
    udp_port: int = 0
    """UDP port that peers send to; 0: 4791 when it is free, another port otherwise."""
    evs_per_pair: int = 8
    """EVs for each pair of addresses, without SRv6."""
    mpr: int = 0
    """Window in PSNs; 0: computed from the links' rates and the round trip."""
    dynamic_mpr: bool = False
    """Offers `QP.set_mpr` to peers: each side may change its granted window while the QP runs."""
    sq_depth: int = 256
    """Work requests of one QP that the engine holds; further ones queue in Python."""
    max_wimm: int = 128
    """Immediates in flight, in each direction."""
    timeout: int = 16
    """The local ACK timeout is 1.024 us times 2 to the power of `timeout`."""
    retry_linear: int = 7
    """Timeouts of this length before timeouts begin to double, 0 to 7."""
    retry_exp: int = 6
    """Timeouts that double; 25: retry forever. With the defaults a QP fails after about 9.0 s."""
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
    spray: int = 0
    """Maximum number of packets in a burst; 0: the engine chooses."""
    ev_active_per_plane: int = 0
    """EVs in rotation on each plane; 0: all."""
    mtu_limit: int = limits.MAX_MTU
    """Largest payload of a packet, in bytes."""
    spin_us: int = 0
    """Microseconds of busy polling before the datapath (with `polled`: the event loop) sleeps."""
    coalesce_us: int = 250
    """While bursts arrive, microseconds between two reads of the sockets; 0: reads each at once."""
    polled: bool = False
    """No datapath thread: the event loop runs the datapath, so other tasks must not block it."""
    rcvbuf_bytes: int = 0
    """Receive buffer of each socket in bytes; 0: the engine's default."""
    sndbuf_bytes: int = 0
    """Send buffer of each socket in bytes; 0: the engine's default."""
    max_pending: int = 64
    """Maximum number of peers that are connecting or waiting to be accepted at one time."""
    max_pending_per_source: int = 8
    """Maximum number of connecting peers from one IPv4 address or IPv6 /64."""
    max_qps_per_source: int = 64
    """Maximum number of QPs that one IPv4 address or IPv6 /64 may have connected to this host."""
    max_qps: int = 1024
    """Maximum number of QPs."""
    hello_timeout: float = 2.0
    """Seconds within which each message of a connecting peer must follow, until its hello; with a
    long round trip more (mrc/exchange/README.md)."""
    exchange_timeout: float = 10.0
    """Seconds within which a connecting peer must complete the exchange; likewise."""
    max_peer_bytes: int = MAX_PEER_BYTES
    """Memory in bytes for the sessions of all peers; one source gets at most half of it."""
    max_unread: int = 65536
    """Maximum number of received immediates of one QP that the program has not read."""
    linger: float = 2.0
    """Seconds that a closing QP keeps answering its peer, if the peer still needs answers."""
    program: str = ""
    """Name of this program in `mrc top`."""
    local_view: bool = False
    """Allows the user of this process to watch it with `mrc top --local`."""
    remote_view: bool = False
    """Allows everyone who can reach its listeners to watch it with `mrc top HOST`."""
    metrics: tuple[str, int] | None = None
    """Address and TCP port of the Prometheus metrics; None: disabled."""

    def __post_init__(self) -> None:
        _check_ranges(self, _RANGES)
        if self.mpr % limits.MPR_UNIT or not 0 <= self.mpr <= mpr.MOST:
            raise ConfigError(f"mpr: {self.mpr} is not 0 or a multiple of 128 within 128..4096")
        if not limits.MIN_MTU <= self.mtu_limit <= limits.MAX_MTU or self.mtu_limit % 4:
            span = f"{limits.MIN_MTU}..{limits.MAX_MTU}"
            raise ConfigError(f"mtu_limit: {self.mtu_limit} is not a multiple of 4 within {span}")
        check_plane_shares(self.plane_shares)
        if min(self.exchange_timeout, self.hello_timeout) <= 0 or self.linger < 0:
            wrong = "timeouts must be above 0, and linger must not be negative"
            raise ConfigError(f"exchange_timeout, hello_timeout, linger: {wrong}")
