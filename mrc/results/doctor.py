# SPDX-License-Identifier: Apache-2.0
"""What `mrc doctor` prints as JSON."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from mrc.results.plain import Result


class State(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


class Finding(Struct, frozen=True):
    """One property of this machine."""

    name: str
    """What was examined."""
    state: State
    """ok; limited: mrc runs, but lacks something; missing: something does not run at all."""
    found: str
    """What was found."""
    consequence: str = ""
    """What mrc lacks; empty when ok."""
    remedy: str = ""
    """How to get it; empty when ok."""

    @classmethod
    def of(cls, name: str, good: bool, found: str, needs: tuple[State, str, str]) -> Finding:
        """`needs`: state, consequence and remedy unless it is good."""
        return cls(name, State.OK, found) if good else cls(name, needs[0], found, *needs[1:])


class Doctor(Result, frozen=True, kw_only=True):
    """What this machine can do, and what it lacks."""

    can_run: bool
    """mrc can move data between this host and others."""
    findings: tuple[Finding, ...]
    """What was examined."""
