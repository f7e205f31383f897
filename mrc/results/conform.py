# SPDX-License-Identifier: Apache-2.0
"""What `mrc conform` prints as JSON."""

from __future__ import annotations

from msgspec import Struct

from mrc.results.plain import Result


class Judged(Struct, frozen=True, kw_only=True):
    """The verdict on one case."""

    name: str
    """Of the case."""
    topic: str
    """The file that has it."""
    title: str
    """What the device must do."""
    section: str
    """Of MRC 1.0, as its readers cite it; empty: not known."""
    verdict: str
    """passed, failed, or skipped because the device lacks something."""
    reason: str
    """Of a failed case the step and what came instead; of a skipped one what the device lacks."""
    readings: tuple[str, ...]
    """The readings with which the device agrees, such as C4-B."""
    unchecked: tuple[str, ...]
    """Steps that this device cannot be asked about."""
    seconds: float
    """How long the case took."""
    capture: str | None
    """The pcap file of a failed case; null without --captures."""


class Conformance(Result, frozen=True, kw_only=True):
    """The verdicts on a device."""

    device: str
    """What was judged."""
    passed: int
    """Number of cases."""
    failed: int
    """Number of cases."""
    skipped: int
    """Number of cases."""
    readings: tuple[str, ...]
    """All readings with which the device agrees."""
    cases: tuple[Judged, ...]
    """Each case, in the order in which they were played."""


class CaseText(Struct, frozen=True, kw_only=True):
    """One case."""

    name: str
    """Its name."""
    topic: str
    """The file that has it."""
    title: str
    """What a device must do."""
    why: str
    """Why."""
    section: str
    """Of MRC 1.0, as its readers cite it; empty: not known."""
    readings: tuple[str, ...]
    """The readings that it assumes."""
    text: str
    """Its lines."""


class Cases(Result, frozen=True, kw_only=True):
    """The cases."""

    cases: tuple[CaseText, ...]
    """In the order of the files."""


class AlternativeText(Struct, frozen=True, kw_only=True):
    """One way to read the specification."""

    letter: str
    """Its letter."""
    text: str
    """What it says."""
    sources: tuple[str, ...]
    """Who says so."""


class ReadingText(Struct, frozen=True, kw_only=True):
    """A subject on which sources disagree or are silent."""

    id: str
    """Such as C4."""
    title: str
    """The subject."""
    alternatives: tuple[AlternativeText, ...]
    """The ways to read it."""
    ours: str
    """The letter that mrc's engine follows."""
    reason: str
    """Why."""
    section: str
    """Of MRC 1.0, as its readers cite it; empty: not known."""
    switch: str
    """What makes mrc's engine follow another one; empty: nothing."""


class Readings(Result, frozen=True, kw_only=True):
    """The readings of MRC."""

    readings: tuple[ReadingText, ...]
    """In the order of their ids."""


class PartText(Struct, frozen=True, kw_only=True):
    """Some bytes of a golden packet, mostly a header."""

    bytes: str
    """Hexadecimal digits."""
    text: str
    """What they are."""


class FlowText(Struct, frozen=True, kw_only=True):
    """The headers below the packet; the ICRC covers addresses and ports."""

    source: str
    """Source address."""
    destination: str
    """Destination address."""
    sport: int
    """UDP source port."""
    dport: int
    """UDP destination port."""
    flow_label: int
    """IPv6 flow label."""
    trimmed: bool
    """Whether a switch has cut it off behind its headers; the packet then has no ICRC."""
    carrier: str | None
    """Outer destination address, the uSIDs of the path; null without SRv6."""


class VectorText(Struct, frozen=True, kw_only=True):
    """A golden packet."""

    name: str
    """Its name."""
    type: str
    """Its opcode, by name."""
    reading: str
    """The reading that it follows in place of mrc's own, such as C6-B; empty: none."""
    flow: FlowText
    """Below it."""
    bytes: str
    """The UDP payload, in hexadecimal digits."""
    parts: tuple[PartText, ...]
    """The same bytes, explained."""
    headers: dict[str, dict[str, int]]
    """The fields of each header, by mrc's readings."""
    payload_bytes: int
    """Payload behind the headers, without padding."""


class Vectors(Result, frozen=True, kw_only=True):
    """Golden packets."""

    version: int
    """Grows when the bytes of a packet change; packets may be added."""
    packets: tuple[VectorText, ...]
    """Every kind of packet."""
