# SPDX-License-Identifier: Apache-2.0
"""Readings that single packets show, or an answer and what it answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mrc.dissect.formats import DATA
from mrc.dissect.packet import Flow, Packet

_PORTS = {4971: "C1-A", 4791: "C1-B"}
_UNFINISHED = (0xC6, 0xC7)  # First and Middle: they end no message, so no event is due
_PORT_STATUS, _EV_PROBE, _ALWAYS_SKIP, _ACK = 0, 1, 2, 0x1F


class Traits:
    """Takes packets in the order of their capture."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, bool]] = {}  # operation and mark of requests, by id
        self._cut: set[tuple[int, int]] = set()  # QPN's low half and PSN of data without RETH

    def shown(self, flow: Flow, packet: Packet) -> Iterator[str]:
        """The readings that this packet shows."""
        if (port := _PORTS.get(flow.dport)) is not None:
            yield port
        if packet.icrc_is_right and flow.source.version == 4:
            yield "S6-B" if packet.icrc_covers_fragment else "S6-A"
        headers = packet.headers
        if packet.opcode in DATA:
            yield from self._data(packet)
        elif headers.get("SETH", {}).get("mark") == _ALWAYS_SKIP:
            yield "S4-B"
        elif "NETH" in headers:
            neth = headers["NETH"]
            if (neth["spdcid"], neth["nack_psn"]) in self._cut:
                yield "G10-A"
        elif headers.get("AETH", {}).get("syndrome") == _ACK:
            yield "G13-A"
        else:
            yield from self._endpoint(flow, packet)

    def _data(self, packet: Packet) -> Iterator[str]:
        bth = packet.headers["BTH"]
        if packet.trimmed and not packet.complete:
            self._cut.add((bth["dest_qpn"] & 0xFFFF, bth["psn"]))
        if bth["pad"]:
            yield "G16-A"
        if packet.opcode in _UNFINISHED and bth["m"] != bth["se"]:
            yield "C7-A" if bth["m"] else "C7-B"

    def _endpoint(self, flow: Flow, packet: Packet) -> Iterator[str]:
        identity = packet.headers["BTH"]["psn"]
        if "ERTH" in packet.headers:
            operation = packet.headers["ERTH"]["operation"]
            self._asked[identity] = (operation, flow.ce)
            if operation == _PORT_STATUS:
                yield "C2-B"
        if "EETH" not in packet.headers:
            return
        eeth = packet.headers["EETH"]
        operation, marked = self._asked.get(identity, (_PORT_STATUS, False))
        if operation == _EV_PROBE:
            yield "C6-A" if eeth["operation"] == _EV_PROBE else "C6-B"
        if eeth["mark"]:
            yield "S8-A"
        elif marked:
            yield "S8-B"
