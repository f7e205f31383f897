# SPDX-License-Identifier: Apache-2.0
"""What `mrc agent profiles` prints as JSON."""

from __future__ import annotations

from msgspec import Struct, field

from mrc.results.plain import Result


class EvProfileRow(Struct, frozen=True, kw_only=True):
    """A profile of EVs."""

    name: str
    """Its name; a number if a program made it through MRC's C interface."""
    state: str
    """INIT, OFFLINE or ONLINE."""
    qps: int
    """QPs that use it."""
    paths: tuple[str, ...]
    """Names or patterns of its paths."""
    denied: tuple[str, ...]
    """Names or patterns of paths that are denied."""


class CcProfileRow(Struct, frozen=True, kw_only=True):
    """A profile of congestion control."""

    name: str
    """Its name."""
    state: str
    """INIT, OFFLINE or ONLINE."""
    qps: int
    """QPs that use it."""
    kind: str
    """The congestion control."""


class CmPortRow(Struct, frozen=True, kw_only=True):
    """A port of rdma_cm at which a program listens."""

    port: int
    """Its number. It is not a port of TCP."""
    address: str
    """The address to which it is bound; empty: any."""
    pid: int
    """The process of the program."""


class Profiles(Result, frozen=True, kw_only=True):
    """The profiles of a host's agent: of each kind the first 256."""

    ev_profiles: tuple[EvProfileRow, ...]
    """Profiles of EVs."""
    cc_profiles: tuple[CcProfileRow, ...]
    """Profiles of congestion control."""
    rdma_cm: tuple[CmPortRow, ...] = ()
    """Ports at which programs started with `mrc run --rc` listen."""
    options: dict[str, str] = field(default_factory=dict)
    """The options with which the agent was started; of a file the SHA-256 of its content."""
