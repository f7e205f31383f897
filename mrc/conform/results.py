# SPDX-License-Identifier: Apache-2.0
"""What `mrc conform` and `mrc dissect --readings` print as JSON."""

from __future__ import annotations

from msgspec import Struct

from mrc.results import Result


class CaseVerdict(Struct, frozen=True, kw_only=True):
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
    cases: tuple[CaseVerdict, ...]
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
    """Who says so: the paper, the API headers, readers of the specification, related standards."""


class ReadingText(Struct, frozen=True):
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


class SentText(Struct, frozen=True, kw_only=True):
    """One packet of an exchange."""

    sender: str
    """a or b."""
    line: str
    """The packet as in a case."""
    text: str
    """What it means."""
    fate: str
    """lost or trimmed by the network; empty: it arrives."""
    seconds: float
    """Since the first packet."""
    flow: FlowText
    """Below it."""
    bytes: str
    """The UDP payload, in hexadecimal digits."""


class ExchangeText(Struct, frozen=True, kw_only=True):
    """A golden exchange of two hosts."""

    name: str
    """Its name."""
    title: str
    """What happens."""
    reading: str
    """The reading that it shows; empty: none in particular."""
    packets: tuple[SentText, ...]
    """In the order in which they are sent."""


class Vectors(Result, frozen=True, kw_only=True):
    """Golden packets and exchanges."""

    version: int
    """Grows when the bytes of a packet change; packets may be added."""
    exchanges_version: int
    """The same for exchanges."""
    packets: tuple[VectorText, ...]
    """Every kind of packet, and sealed ones."""
    exchanges: tuple[ExchangeText, ...]
    """Every kind of conversation."""


class InvariantBreach(Struct, frozen=True, kw_only=True):
    """An invariant that the packets break."""

    invariant: str
    """What should hold."""
    count: int
    """How often it does not."""
    first: str
    """The first packet that breaks it."""
    first_seconds: float
    """When it was captured, since the first packet."""


class DirectionText(Struct, frozen=True, kw_only=True):
    """The data that goes to one QP, and the answers to it."""

    qpn: int
    """Of the receiver."""
    source: str
    """Address of the first packet's sender."""
    destination: str
    """Address that the first packet went to."""
    packets: int
    """Data packets, retransmissions included."""
    payload_bytes: int
    """Their payload."""
    retransmissions: int
    """Packets with rtx."""
    lost: int
    """PSNs that were sent more than once."""
    uncaptured: int
    """PSNs that the capture lacks, between others that it has."""
    marked: int
    """Packets with CE."""
    trimmed: int
    """Packets that a switch has cut."""
    sacks: int
    """Answers of this kind."""
    acks: int
    """Transport ACKs and NAKs."""
    nacks: dict[str, int]
    """Answers of this kind, by reason."""
    window_psns: int
    """The most PSNs between the cumulative PSN and the highest one sent."""
    evs: int
    """EVs that carried data."""
    fairness: float
    """Jain's index of the packets of each EV: 1 if all carry as many."""
    sack_seconds: float | None
    """Median time from a packet to the SACK that it triggered; null: none."""
    retransmission_seconds: float | None
    """Median time from a packet to its retransmission; null: none."""
    reported_loss_seconds: float | None
    """The same, after a SACK or NACK that showed the loss; null: none."""
    timer_seconds: float | None
    """The same, without such an answer: a timer; null: none."""
    timer_retransmissions: int
    """Number of these."""
    flight_after_loss: float | None
    """Least PSNs in flight within 4 round trips after a loss, relative to the flight at the loss;
    the median; null: no loss with a flight of at least 4 PSNs."""
    flight_after_mark: float | None
    """The same after a SACK with SKIP_ONCE."""
    flight_after_trim: float | None
    """The same after a NACK."""
    turn_packets: float | None
    """Median number of packets of its plane between two uses of an EV; null: no EV came twice."""
    turn_after_mark_packets: float | None
    """The same after a SACK with SKIP_ONCE for that EV."""
    readings: tuple[str, ...]
    """The readings that its packets show, such as C3-A."""
    broken: tuple[InvariantBreach, ...]
    """Invariants that its packets break."""


class CaptureReport(Result, frozen=True, kw_only=True):
    """What a capture shows."""

    packets: int
    """Packets to the UDP port."""
    wrong_icrc: int
    """Of which the ICRC was wrong; they are not judged."""
    readings: tuple[str, ...]
    """Readings that packets of no QP show."""
    hidden: tuple[str, ...]
    """Subjects of readings of which no packet shows anything."""
    directions: tuple[DirectionText, ...]
    """Each direction of each QP that carried data."""


class ReadingCount(Struct, frozen=True, kw_only=True):
    """An alternative that packets follow."""

    reading: str
    """Its name, such as C3-A."""
    subject: str
    """What it is about."""
    text: str
    """What it says."""
    ours: bool
    """Whether mrc's engine follows it, too."""
    packets: int
    """How many packets show it."""


class ReadingCounts(Result, frozen=True, kw_only=True):
    """The readings of MRC that a capture shows."""

    packets: int
    """Packets of MRC."""
    readings: tuple[ReadingCount, ...]
    """In the order of the table of readings."""
    hidden: tuple[str, ...]
    """Subjects, such as C5, of which it shows nothing."""
