# SPDX-License-Identifier: Apache-2.0
"""What `mrc dissect` prints as JSON: a line for each packet."""

from __future__ import annotations

from dataclasses import dataclass

from mrc.results.plain import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Dissected(Result):
    """One MRC packet of a capture."""

    seconds: float
    """When it was captured, since the first packet."""
    source: str
    """Inner source address."""
    destination: str
    """Inner destination address."""
    carrier: str | None
    """Outer destination address, the uSIDs of the path; null without SRv6."""
    ev: int
    """Entropy value: source port in the upper half, the low 16 bits of the flow label below."""
    ce: bool
    """Whether a switch has marked it."""
    part: int
    """Its place in a captured burst, from 1."""
    parts: int
    """Packets in that burst."""
    type: str
    """Its opcode, by name."""
    bytes: int
    """Size of the UDP payload."""
    payload_bytes: int
    """Payload behind the headers, without padding."""
    headers: dict[str, dict[str, int]]
    """The fields of each header, by the specification's names."""
    icrc_is_right: bool | None
    """Whether the ICRC is right; null for a sealed packet, and for one that is too short."""
