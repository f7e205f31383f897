# SPDX-License-Identifier: Apache-2.0
"""Golden exchanges: conversations of two hosts, packet by packet, from exchanges.txt. Pure.

The bytes come from the tables of the format. A test holds their digest, so that they stay those of
`VERSION`.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import msgspec
from msgspec import Struct

from mrc.conform.adapter import End, Port
from mrc.conform.case import Step, step
from mrc.conform.packets import Datagram
from mrc.conform.readings import check
from mrc.conform.situation import Situation
from mrc.dissect.packet import Flow, decode
from mrc.dissect.vectors import FLOWS
from mrc.enums import Reading

VERSION = 1
"""Grows when the bytes of an exchange change; exchanges may be added."""
FILE = Path(__file__).parent / "exchanges.txt"
LOST, TRIMMED = "lost", "trimmed"
_STEP_NS = 10_000  # between two packets
_CE = 3


class Sent(Struct, frozen=True):
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
    flow: Flow
    payload: bytes


class Exchange(Struct, frozen=True):
    """What two hosts say."""

    name: str
    title: str
    reading: str
    packets: tuple[Sent, ...]


def load(text: str | None = None) -> list[Exchange]:
    """All exchanges. Raises ValueError."""
    blocks = ("\n" + (FILE.read_text() if text is None else text)).split("\nexchange ")[1:]
    return [_exchange(block.strip().splitlines()) for block in blocks]


def _exchange(lines: list[str]) -> Exchange:
    name, *marks = lines[0].split()
    settings = dict(mark.split("=", 1) for mark in marks)
    reading = settings.get("reading", "")
    if reading:
        check(reading)
    hosts = _Hosts(settings.get("flow", "v6"), Reading.C3_B if reading == "C3-B" else Reading.OURS)
    return Exchange(name, lines[1].strip(), reading, tuple(hosts.packets(lines[2:])))


class _Hosts:
    """Both ends of the QP; each sees what arrives from the other."""

    def __init__(self, flow: str, readings: Reading) -> None:
        forth = FLOWS[flow]
        back = msgspec.structs.replace(forth, source=forth.destination, destination=forth.source)
        self._flows = {"a": _paths(forth, 0xC001), "b": _paths(back, 0xC101)}
        a, b = _end("a", forth, 0xFFFFFE), _end("b", back, 0x10)
        self._sides = {
            "a": Situation(a, b, [each.ev for each in self._flows["a"]], readings=readings),
            "b": Situation(b, a, [each.ev for each in self._flows["b"]], readings=readings),
        }

    def packets(self, lines: list[str]) -> Iterator[Sent]:
        for n, line in enumerate(lines):
            packet, _, text = (part.strip() for part in line.partition("|"))
            sender, *words = packet.split()
            fate = words.pop() if words[-1] in (LOST, TRIMMED) else ""
            yield self._sent(sender, step(f"> {' '.join(words)}"), text, fate, n * _STEP_NS)

    def _sent(self, sender: str, what: Step, text: str, fate: str, at_ns: int) -> Sent:
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
            other.note(Datagram(at_ns, flow, payload, decode(payload, flow), sent=False))
        return Sent(sender, what.line.removeprefix("> "), text, fate, at_ns, flow, payload)


def _end(name: str, flow: Flow, first_psn: int) -> End:
    return End(
        qpn=0xA0A0A0 if name == "a" else 0xB0B0B0, first_psn=first_psn, path_mtu=1024, mpr=128,
        max_wimm=32, udp_port=flow.dport, ports=(Port(str(flow.source), ()),),
        va=0x7F00_0000_0000, rkey=0x1234, memory_bytes=4096,
    )  # fmt: skip


def _paths(flow: Flow, sport: int) -> list[Flow]:
    """Four EVs: source ports, and flow labels where the flow has one."""
    return [
        msgspec.structs.replace(
            flow, sport=sport + n, flow_label=0x7ABC0 + n if flow.flow_label else 0,
            destination=ip_address(str(flow.destination)),
        )
        for n in range(4)
    ]  # fmt: skip
