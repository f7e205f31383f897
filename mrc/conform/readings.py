# SPDX-License-Identifier: Apache-2.0
"""Where sources on MRC disagree or say nothing: the alternatives, and our choice. Pure.

A verdict names the readings that it assumed, such as C4-B. C: sources disagree. G: sources say
nothing. S: a later source adds to an earlier one. `tools/readings` writes this table into
csrc/core/specification.md, and its switches into csrc/mrc.h and mrc/enums.py: so a switch is
declared here only.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import force_setattr

from mrc.results import Result

_PAPER, _API = "the paper", "the API headers"
_ONE, _TWO, _MORE = "one reader", "two readers", "several readers"
_UE, _ROCE, _OURS = "Ultra Ethernet", "RoCEv2", "ours"


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


class Switch(Struct, frozen=True):
    """Makes the engine follow another alternative: a member of mrc.enums.Reading."""

    letter: str
    bit: int
    effect: str
    """What an engine with it does."""
    shared: bool = False
    """Both ends of a QP must follow it, or neither."""


class Ambiguity(ReadingText, frozen=True):
    """A subject with its alternatives, and what the engine does."""

    section: str = ""
    switch: str = ""
    """As in ReadingText; with `switches` it follows from them."""
    switches: tuple[Switch, ...] = ()

    def __post_init__(self) -> None:
        if self.switches:
            force_setattr(self, "switch", "`ContextConfig.readings`")

    @property
    def choice(self) -> str:
        return f"{self.id}-{self.ours}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of its alternatives, such as C4-A."""
        return tuple(f"{self.id}-{each.letter}" for each in self.alternatives)


def _of(*alternatives: tuple[str, ...]) -> tuple[AlternativeText, ...]:
    """A text and its sources for each letter."""
    return tuple(
        AlternativeText(letter=letter, text=text, sources=tuple(sources))
        for letter, (text, *sources) in zip("ABCD", alternatives, strict=False)
    )


READINGS = (
    Ambiguity(
        "C1", "UDP destination port",
        _of(("4971", _TWO), ("4791", _ONE, _ROCE)), "B",
        "4791 is registered for RoCEv2; 4971 looks like two digits in the wrong order",
        "7.5.5.2", "`ContextConfig.udp_port`",
    ),
    Ambiguity(
        "C2", "how a host reports ports that are down",
        _of(("a bitmap in SACKs", _PAPER, _ONE),
            ("an endpoint request of its own", _API, _MORE)), "B",
        "only the wire form of the request is published", "7.4.8",
    ),
    Ambiguity(
        "C3", "halves of the EV",
        _of(("high 16 bits in the source port, low 16 bits in the flow label", _ONE),
            ("low 16 bits in the source port, high 16 bits in the flow label", _TWO)), "A",
        "both ends must agree, and only the reflected EV shows the difference",
        switches=(
            Switch("B", 1, "puts the source port into the low half of EVs in answers", shared=True),
        ),
    ),
    Ambiguity(
        "C4", "a PSN beyond the window",
        _of(("dropped silently", _MORE), ("NACK PSN_OOR_WINDOW", _ONE)), "B",
        "limited to one in 1 ms. A correct requester never causes it", "6.3.1",
        switches=(Switch("A", 2, "drops a PSN beyond the window silently"),),
    ),
    Ambiguity(
        "C5", "a probe that is answered with SKIP_ONCE",
        _of(("the EV becomes GOOD", _ONE), ("the EV becomes SKIP", _ONE)), "B",
        "the path is alive, but congested", "7.4.7",
    ),
    Ambiguity(
        "C6", "operation in the endpoint response",
        _of(("bits 3:2", _TWO), ("bits 5:4", _ONE)), "A", "two readers agree",
        switches=(
            Switch("B", 16, "puts the operation of endpoint responses into bits 5:4, and no mark",
                   shared=True),
        ),
    ),
    Ambiguity(
        "C7", "SE and M in byte 1 of the BTH",
        _of(("SE is bit 7, M is bit 6, as in InfiniBand", _MORE),
            ("M is bit 7, SE is bit 6", _ONE)), "A",
        "the engine sends 0 in both and reads neither, so it needs no choice",
    ),
    Ambiguity(
        "C8", "EV of a packet with SRv6",
        _of(("low 8 bits of the source port", "older API headers"),
            ("source port and flow label, as without SRv6", _PAPER)), "B",
        "the outer address is consumed on the way and cannot be reflected",
    ),
    Ambiguity(
        "C9", "EVs in rotation",
        _of(("128 to 256 for each QP", _PAPER), ("about 100, and backups", _PAPER),
            ("all paths that the profile selects", _OURS)), "C",
        "a software host has far fewer paths", "", "`Spraying.evs_active_per_plane`",
    ),
    Ambiguity(
        "G2", "received bytes that make a SACK due",
        _of(("16 KiB", _UE), ("4 KiB", _ONE),
             ("256 KiB, at least 1 KiB for each packet, besides the sender's requests", _OURS)),
        "C", "in software a SACK costs as much as a burst. Only the time until a SACK shows it",
        "7.5.2",
        switches=(Switch("A", 32, "sends a SACK after 16 KiB"),
                  Switch("B", 64, "sends a SACK after 4 KiB")),
    ),
    Ambiguity(
        "G3", "base of the SACK bitmap",
        _of(("cumulative PSN + 1, at most 64 below the highest PSN", _ONE),
            ("the lowest PSN that no SACK has reported", _UE),
            ("the first 64 PSNs with news of the plane, at least cumulative PSN + 1", _OURS)), "C",
        "a plane's news is reported on that plane, and the newest PSNs more than once", "7.5.2.2",
    ),
    Ambiguity(
        "G4", "when a hole in the bitmap is a loss",
        _of(("after a bandwidth-delay product of later packets", _ONE),
            ("a later packet on the same EV arrived", _OURS)), "B", "paths are FIFO", "7.4",
    ),
    Ambiguity(
        "G5", "duration of SKIP",
        _of(("one packet passes the EV when the rotation reaches it", _ONE),
            ("one rotation; more after repeated marks", _OURS)), "B",
        "one rotation leaves half of its share on a path that is always full", "7.5.5.5",
        switches=(Switch("A", 128, "lets a marked EV sit out one turn; a packet ends one skip"),),
    ),
    Ambiguity(
        "G6", "return of an EV that lost a packet",
        _of(("left to the implementation", _MORE), ("three answered probes in a row", _OURS)),
        "B", "a flapping link must not regain trust faster each time", "9.3.1",
    ),
    Ambiguity(
        "G7", "least number of EVs in rotation",
        _of(("a quarter of them", "example code of the API"),
            ("a quarter of each plane's rotation", _OURS)), "B",
        "a plane that is dead as a whole is suspended instead",
    ),
    Ambiguity(
        "G9", "code points of the traffic classes",
        _of(("roles without values", _MORE), ("0 for all packets", _OURS)), "B",
        "code points are configuration of the network", "", "`ContextConfig.traffic_classes`",
    ),
    Ambiguity(
        "G10", "what a trimming switch must keep",
        _of(("headers through METH and TSETH", _ONE),
            ("all headers, RETH included", "longer trim sizes of switches")), "A",
        "with SRv6, switches that keep 128 bytes of the frame cut the RETH off",
        switches=(Switch("B", 256, "sends no NACK for a packet trimmed within its RETH"),),
    ),
    Ambiguity(
        "G11", "timeouts",
        _of(("`linear` times T, then T doubles", _API, _PAPER),), "A",
        "the exact formula is not known", "7.4.1",
    ),
    Ambiguity(
        "G12", "spdcid and dpdcid",
        _of(("low 16 bits of the QPNs", _TWO),), "A", "as other implementations",
    ),
    Ambiguity(
        "G13", "syndromes of the transport ACK",
        _of(("InfiniBand's codes; ACK is 0x1f", _TWO),), "A", "none are published",
    ),
    Ambiguity(
        "G15", "service time of a responder",
        _of(("shifts the timestamp that SACKs reflect, and, if agreed, answers to EV probes",
             _OURS), ("not corrected", _ONE)), "A",
        "the field exists, and a requester that does not know of it loses nothing",
        switches=(Switch("B", 512, "reflects timestamps as they came"),),
    ),
    Ambiguity(
        "G16", "padding",
        _of(("to a multiple of 4 bytes, count in the BTH", "InfiniBand"),), "A",
        "the header has the field",
    ),
    Ambiguity(
        "G24", "bit of port 1 in the mask of ports",
        _of(("bit 0", _OURS), ("bit 1", "a literal reading of \"1-based\"")), "A",
        "the API only says that ports count from 1", "7.4.8",
    ),
    Ambiguity(
        "S1", "window where nothing is agreed",
        _of(("128 PSNs", _MORE), ("from link rates and round trips", _OURS)), "B",
        "128 PSNs are less than a software host has in flight",
        switches=(Switch("A", 1024, "grants 128 PSNs unless Queues.mpr is set"),),
    ),
    Ambiguity(
        "S2", "trimmed packets and the highest PSN received",
        _of(("a trimmed packet does not count as received", _ONE),), "A",
        "its payload has not arrived",
    ),
    Ambiguity(
        "S3", "codes of NACKs",
        _of(("seven: two for trims, five others", _MORE),
            ("eight: one more mandatory code", _TWO)), "A",
        "the eighth is not named anywhere. A NACK with an unknown code is dropped", "Table 7-3",
    ),
    Ambiguity(
        "S4", "ALWAYS_SKIP",
        _of(("never sent", _OURS), ("sent by a criterion of the implementation", _ONE)), "A",
        "the receiver knows less of a path than the sender",
        switches=(Switch("B", 2048, "calls EVs bad whose packets all come marked"),),
    ),
    Ambiguity(
        "S5", "transport ACK while an earlier packet is missing",
        _of(("sent with the last completed message", _ONE), ("not sent", _ONE)), "A",
        "an ACK also answers duplicates and probes",
        switches=(Switch("B", 4, "sends no transport ACK while an earlier packet is missing"),),
    ),
    Ambiguity(
        "S6", "IPv4 fields below the ICRC",
        _of(("identification, flags and offset count as ones", _OURS),
            ("they count as they are", _ROCE)), "A",
        "a socket neither sets nor sees them, and offloads change them: no choice here",
    ),
    Ambiguity(
        "S7", "unit of timestamps with tsr 1",
        _of(("1.024 us", _OURS), ("1 us", _ONE)), "A",
        "the requester measures against its own record of the send time",
    ),
    Ambiguity(
        "S8", "mark in the answer to an EV probe",
        _of(("at the position that it has in a SACK", _OURS), ("none", _TWO)), "A",
        "readers report answers with SKIP_ONCE, and a response without a field for it",
        switches=(Switch("B", 8, "sends no mark in answers to EV probes"),),
    ),
    Ambiguity(
        "S9", "an immediate without a posted receive",
        _of(("the QP fails", _ONE), ("the window closes until the program polls", _OURS)), "B",
        "completions of this engine need no posted receive",
    ),
    Ambiguity(
        "S10", "code points of trimmed packets",
        _of(("7, and 11 at the last hop", _OURS), ("configuration of the network", _MORE)), "A",
        "RFC 2474 reserves both for local use", "", "`ContextConfig.traffic_classes`",
    ),
)  # fmt: skip
BY_ID = {reading.id: reading for reading in READINGS}


def check(name: str) -> None:
    """Raises ValueError unless the name is that of an alternative, such as C4-A."""
    found = re.fullmatch(r"([CGS]\d+)-([A-D])", name)
    if found is None or found[1] not in BY_ID or name not in BY_ID[found[1]].names:
        raise ValueError(f"{name} is no reading; mrc conform readings lists them")


def table() -> str:
    """The table of specification.md."""
    lines = ["| Id | Subject | Readings | Ours | Reason | Section |", "|---|---|---|---|---|---|"]
    for each in READINGS:
        texts = (
            f"{one.letter}: {one.text} ({', '.join(one.sources)})" for one in each.alternatives
        )
        ours = f"{each.ours}, {each.switch}" if each.switch else each.ours
        lines.append(
            f"| {each.id} | {each.title} | {'; '.join(texts)} | {ours} | {each.reason}"
            f" | {each.section or '-'} |"
        )
    return "\n".join(lines)


def switches() -> list[tuple[str, Switch]]:
    """Every switch with its name, such as C3_B, in the order of the bits."""
    found = [(f"{each.id}_{one.letter}", one) for each in READINGS for one in each.switches]
    return sorted(found, key=lambda named: named[1].bit)


def in_c() -> list[str]:
    """The enums of csrc/mrc.h, flags."""
    found = switches()
    values = [f"  MRC_READING_{name} = {one.bit}," for name, one in found]
    values[-1] = values[-1].removesuffix(",")
    width = max(map(len, values))
    members = [f"{text:{width}} /* {one.effect} */"
               for text, (_, one) in zip(values, found, strict=True)]  # fmt: skip
    known = sum(one.bit for _, one in found)
    return ["enum mrc_reading {", *members, "};", f"enum {{ MRC_ALL_READINGS = {known} }};"]


def in_python() -> list[str]:
    """The members of mrc.enums.Reading, and those that both ends of a QP must share."""
    found = switches()
    lines = [f'    {name} = {one.bit}\n    """It {one.effect}."""' for name, one in found]
    shared = " | ".join(f"Reading.{name}" for name, one in found if one.shared)
    return [*lines, "", "", f"SHARED_READINGS = {shared}"]
