# SPDX-License-Identifier: Apache-2.0
"""What a Context may be told: one frozen dataclass, validated when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from mrc._native import lib
from mrc.enums import CcKind, Integrity
from mrc.errors import ConfigError
from mrc.hostconfig import HostConfig

_RANGES = {
    "udp_port": (0, 65535),
    "evs_per_pair": (1, 64),
    "sq_depth": (1, 65536),
    "max_wimm": (1, 1024),
    "timeout": (1, 24),
    "retry_linear": (0, 7),
    "retry_exp": (0, 25),
    "spray": (0, lib.MRC_MAX_BURST_PACKETS),
    "ev_active_per_plane": (0, lib.MRC_MAX_EVS),
    "spin_us": (0, 65535),
    "max_pending": (1, 65536),
    "max_unread": (1, 1 << 24),
}


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Sizes and policies of a Context. The defaults suit a host with a few links.

    `host` is the host configuration; None reads the file that $MRC_CONFIG names and, without it,
    finds the interfaces of this machine. `interfaces` then narrows them to the given names or
    addresses, in that order: port n, and plane n, is the n-th.
    """

    host: HostConfig | None = None
    interfaces: tuple[str, ...] = ()
    name: str = ""  # of this host, as peers see it; empty: of `host`, else the machine's
    udp_port: int = 0  # 0: 4791 when free, another otherwise
    evs_per_pair: int = 8  # EVs for each pair of addresses, without SRv6
    mpr: int = 1024  # window in PSNs
    sq_depth: int = 1024  # work requests of one QP that the engine holds
    max_wimm: int = 128  # immediates in flight, each way
    timeout: int = 16  # local timeout is 1.024 us << timeout
    retry_linear: int = 7
    retry_exp: int = 6  # with the two above: gives up after about 9.0 s
    cc: CcKind = CcKind.DELAY
    integrity: Integrity = Integrity.ICRC
    spray: int = 0  # packets of a burst at most; 0 leaves it to the engine
    ev_active_per_plane: int = 0  # 0: all
    mtu_limit: int = lib.MRC_MAX_MTU  # bytes of payload in a packet at most
    spin_us: int = 0  # busy poll so long before sleeping
    rcvbuf_bytes: int = 0  # 0: the engine's default
    sndbuf_bytes: int = 0
    max_pending: int = 64  # peers that are connecting, or wait to be accepted, at a time
    exchange_timeout: float = 10.0  # seconds in which a connecting peer must be done
    max_unread: int = 65536  # immediates of one QP not yet taken by the caller
    linger: float = 2.0  # seconds that a closing QP waits for its peer to be done with it

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name}: {value} is not within {low}..{high}")
        if self.mpr % lib.MRC_MPR_UNIT or not lib.MRC_MPR_UNIT <= self.mpr <= 4096:
            raise ConfigError(f"mpr: {self.mpr} is not a multiple of 128 within 128..4096")
        if not lib.MRC_MIN_MTU <= self.mtu_limit <= lib.MRC_MAX_MTU or self.mtu_limit % 4:
            span = f"{lib.MRC_MIN_MTU}..{lib.MRC_MAX_MTU}"
            raise ConfigError(f"mtu_limit: {self.mtu_limit} is not a multiple of 4 within {span}")
        if self.exchange_timeout <= 0 or self.linger < 0:
            raise ConfigError("exchange_timeout, linger: must not be negative")
