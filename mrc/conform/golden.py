# SPDX-License-Identifier: Apache-2.0
"""Golden packets and exchanges as results for programs, as lines for people, and as a capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from mrc.conform import exchanges
from mrc.conform.exchanges import Exchange
from mrc.conform.packets import write_capture
from mrc.conform.results import ExchangeText, FlowText, PartText, SentText, Vectors, VectorText
from mrc.dissect import vectors
from mrc.dissect.packet import Flow
from mrc.dissect.vectors import Vector
from mrc.results.plain import like

_SECOND_NS = 10**9


def result(packets: Sequence[Vector], found: Sequence[Exchange]) -> Vectors:
    """For programs."""
    return Vectors(
        version=vectors.VERSION,
        exchanges_version=exchanges.VERSION,
        packets=tuple(map(_packet, packets)),
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


def _packet(vector: Vector) -> VectorText:
    return VectorText(
        name=vector.name, type=vector.packet.kind, reading=vector.reading,
        flow=_flow(vector.flow), bytes=vector.payload.hex(),
        parts=tuple(PartText(bytes=one.data.hex(), text=one.text) for one in vector.parts),
        headers=vector.packet.headers, payload_bytes=vector.packet.payload_bytes,
    )  # fmt: skip


def _flow(flow: Flow) -> FlowText:
    return like(
        FlowText, flow,
        source=str(flow.source), destination=str(flow.destination),
        carrier=None if flow.carrier is None else str(flow.carrier),
    )  # fmt: skip


def lines(packets: Sequence[Vector], found: Sequence[Exchange]) -> Iterator[str]:
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


def _between(flow: Flow) -> str:
    via = f" via {flow.carrier}" if flow.carrier is not None else ""
    ends = f"{flow.source} port {flow.sport} > {flow.destination} port {flow.dport}"
    return f"{ends}, flow label {flow.flow_label:#x}{via}"


def write(file: BinaryIO, packets: Sequence[Vector], found: Sequence[Exchange]) -> None:
    """Writes a capture: a packet in each second, then an exchange in each."""
    datagrams = [(n * _SECOND_NS, each.flow, each.payload) for n, each in enumerate(packets)]
    for n, exchange in enumerate(found, len(packets)):
        datagrams += [(n * _SECOND_NS + sent.at_ns, sent.flow, sent.payload)
                      for sent in exchange.packets]  # fmt: skip
    write_capture(file, datagrams)
