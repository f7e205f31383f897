# SPDX-License-Identifier: Apache-2.0
"""Golden exchanges: conversations of two hosts, packet by packet, from exchanges.txt. Pure.

The bytes come from the tables of the format. A test holds their digest, so that they stay those of
`VERSION`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from mrc.conform.adapter import QpAttributes, QpPort
from mrc.conform.case import Step, step
from mrc.conform.packets import Datagram, write_capture
from mrc.conform.readings import check
from mrc.conform.situation import Situation
from mrc.dissect import vectors
from mrc.dissect.packet import Packet, UdpFlow
from mrc.enums import Reading
from mrc.results import Result, like

VERSION = 1
"""Grows when the bytes of an exchange change; exchanges may be added."""
FILE = Path(__file__).parent / "exchanges.txt"
LOST, TRIMMED = "lost", "trimmed"
_STEP_NS = 10_000  # between two packets
_CE = 3


class ExchangePacket(Struct, frozen=True):
    """One packet of an exchange."""

    sender: str
    """a or b."""
    line: str
    """As in a case."""
    text: str
    """What it means."""
    fate: str
    """lost, trimmed, or empty: it arrives as it was sent."""
    at_ns: int
    flow: UdpFlow
    payload: bytes


class Exchange(Struct, frozen=True):
    """What two hosts say."""

    name: str
    title: str
    reading: str
    packets: tuple[ExchangePacket, ...]


def load_exchanges() -> list[Exchange]:
    """All exchanges. Raises ValueError."""
    blocks = ("\n" + FILE.read_text()).split("\nexchange ")[1:]
    return [_exchange(block.strip().splitlines()) for block in blocks]


def _exchange(lines: list[str]) -> Exchange:
    name, *marks = lines[0].split()
    settings = dict(mark.split("=", 1) for mark in marks)
    reading = settings.get("reading", "")
    if reading:
        check(reading)
    hosts = _QpPair(settings.get("flow", "v6"), Reading.C3_B if reading == "C3-B" else Reading.OURS)
    return Exchange(name, lines[1].strip(), reading, tuple(hosts.packets(lines[2:])))


class _QpPair:
    """Both ends of the QP; each sees what arrives from the other."""

    def __init__(self, flow: str, readings: Reading) -> None:
        forth = vectors.FLOWS[flow]
        back = msgspec.structs.replace(forth, source=forth.destination, destination=forth.source)
        self._flows = {"a": _paths(forth, 0xC001), "b": _paths(back, 0xC101)}
        a, b = _end("a", forth, 0xFFFFFE), _end("b", back, 0x10)
        self._sides = {
            "a": Situation(a, b, [each.ev for each in self._flows["a"]], readings=readings),
            "b": Situation(b, a, [each.ev for each in self._flows["b"]], readings=readings),
        }

    def packets(self, lines: list[str]) -> Iterator[ExchangePacket]:
        for n, line in enumerate(lines):
            packet, _, text = (part.strip() for part in line.partition("|"))
            sender, *words = packet.split()
            fate = words.pop() if words[-1] in (LOST, TRIMMED) else ""
            yield self._sent(sender, step(f"> {' '.join(words)}"), text, fate, n * _STEP_NS)

    def _sent(self, sender: str, what: Step, text: str, fate: str, at_ns: int) -> ExchangePacket:
        own, other = self._sides[sender], self._sides["b" if sender == "a" else "a"]
        path = own.number("path", what.fields.get("path", "0"))
        flow = msgspec.structs.replace(
            self._flows[sender][path],
            ce=own.number("tclass", what.fields.get("tclass", "0")) == _CE,
            trimmed=fate == TRIMMED,
        )
        number = what.fields.get("nack_psn" if "nack_psn" in what.fields else "psn", "0")
        payload = own.finished(what, own.sent(what, own.number("psn", number), at_ns), flow)
        if fate != LOST:
            other.note(Datagram(at_ns, flow, payload, Packet.decode(payload, flow), sent=False))
        return ExchangePacket(
            sender, what.line.removeprefix("> "), text, fate, at_ns, flow, payload
        )


def _end(name: str, flow: UdpFlow, first_psn: int) -> QpAttributes:
    return QpAttributes(
        qpn=0xA0A0A0 if name == "a" else 0xB0B0B0, first_psn=first_psn, path_mtu=1024, mpr=128,
        max_wimm=32, udp_port=flow.dport, ports=(QpPort(str(flow.source), ()),),
        va=0x7F00_0000_0000, rkey=0x1234, memory_bytes=4096,
    )  # fmt: skip


def _paths(flow: UdpFlow, sport: int) -> list[UdpFlow]:
    """Four EVs: source ports, and flow labels where the flow has one."""
    return [
        msgspec.structs.replace(
            flow, sport=sport + n, flow_label=0x7ABC0 + n if flow.flow_label else 0
        )
        for n in range(4)
    ]


# ---- Golden packets and exchanges ----------------------------------------------------------------


_SECOND_NS = 10**9


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


def golden_result(packets: Sequence[vectors.Vector], found: Sequence[Exchange]) -> Vectors:
    """For programs."""
    return Vectors(
        version=vectors.VERSION,
        exchanges_version=VERSION,
        packets=tuple(
            VectorText(
                name=each.name, type=each.packet.kind, reading=each.reading,
                flow=_flow(each.flow), bytes=each.payload.hex(),
                parts=tuple(PartText(bytes=one.data.hex(), text=one.text) for one in each.parts),
                headers=each.packet.headers, payload_bytes=each.packet.payload_bytes,
            )
            for each in packets
        ),
        exchanges=tuple(
            like(
                ExchangeText, each,
                packets=tuple(
                    like(SentText, sent, flow=_flow(sent.flow), seconds=sent.at_ns / _SECOND_NS,
                         bytes=sent.payload.hex())
                    for sent in each.packets
                ),
            )
            for each in found
        ),
    )  # fmt: skip


def _flow(flow: UdpFlow) -> FlowText:
    return like(
        FlowText, flow,
        source=str(flow.source), destination=str(flow.destination),
        carrier=None if flow.carrier is None else str(flow.carrier),
    )  # fmt: skip


def golden_lines(packets: Sequence[vectors.Vector], found: Sequence[Exchange]) -> Iterator[str]:
    """For people."""
    for vector in packets:
        yield f"{vector.name}: {vector.packet.kind}{_reading(vector.reading)}"
        yield f"    {_between(vector.flow)}"
        for part in vector.parts:
            yield f"    {part.data.hex(' ', 4):40} {part.text}"
        yield ""
    for exchange in found:
        yield f"{exchange.name}: {exchange.title}{_reading(exchange.reading)}"
        for sent in exchange.packets:
            fate = f" ({sent.fate})" if sent.fate else ""
            yield f"    {sent.sender}: {sent.line}{fate}: {sent.text}"
            yield f"       {_between(sent.flow)}"
            for at in range(0, len(sent.payload), 32):
                yield f"       {sent.payload[at : at + 32].hex(' ', 4)}"
        yield ""


def _reading(name: str) -> str:
    return f", reading {name}" if name else ""


def _between(flow: UdpFlow) -> str:
    via = f" via {flow.carrier}" if flow.carrier is not None else ""
    ends = f"{flow.source} port {flow.sport} > {flow.destination} port {flow.dport}"
    return f"{ends}, flow label {flow.flow_label:#x}{via}"


def write_golden(
    file: BinaryIO, packets: Sequence[vectors.Vector], found: Sequence[Exchange]
) -> None:
    """Writes a capture: a packet in each second, then an exchange in each."""
    datagrams = [(n * _SECOND_NS, each.flow, each.payload) for n, each in enumerate(packets)]
    for n, exchange in enumerate(found, len(packets)):
        datagrams += [(n * _SECOND_NS + sent.at_ns, sent.flow, sent.payload)
                      for sent in exchange.packets]  # fmt: skip
    write_capture(file, datagrams)
