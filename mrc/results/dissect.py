# SPDX-License-Identifier: Apache-2.0
"""What `mrc dissect` prints as JSON: a line for each packet."""

from __future__ import annotations

from mrc.results.plain import Result


class Dissected(Result, frozen=True, kw_only=True):
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
    """Whether a switch has marked it, in its inner or outer header."""
    trimmed: bool
    """Whether a switch has cut it off behind its headers."""
    part: int
    """Its place in a captured burst, from 1."""
    parts: int
    """Packets in that burst."""
    type: str
    """Its opcode, by name."""
    bytes: int
    """Size of the UDP payload."""
    missing_bytes: int
    """Bytes at its end that the capture left out."""
    payload_bytes: int
    """Payload behind the headers, without padding."""
    headers: dict[str, dict[str, int]]
    """The fields of each header, by the specification's names; no encrypted immediate."""
    icrc_is_right: bool | None
    """Whether the ICRC is right; null for a packet without one: sealed, trimmed, not all captured
    or too short."""
