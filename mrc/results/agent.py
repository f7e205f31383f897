# SPDX-License-Identifier: Apache-2.0
"""What `mrc agent profiles` prints as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from mrc.results.plain import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class EvProfileRow:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CcProfileRow:
    """A profile of congestion control."""

    name: str
    """Its name."""
    state: str
    """INIT, OFFLINE or ONLINE."""
    qps: int
    """QPs that use it."""
    kind: str
    """The congestion control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles(Result):
    """The profiles of a host's agent: of each kind the first 256."""

    ev_profiles: tuple[EvProfileRow, ...]
    """Profiles of EVs."""
    cc_profiles: tuple[CcProfileRow, ...]
    """Profiles of congestion control."""
