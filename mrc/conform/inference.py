# SPDX-License-Identifier: Apache-2.0
"""Readings that packets show: one packet alone, or only several packets of one direction together.
Pure.

An alternative that is the lack of something, such as no ACK, needs several occasions on which the
other one would have shown itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from msgspec import Struct, field

from mrc.conform.case import PSNS
from mrc.dissect.formats import DATA
from mrc.dissect.packet import Packet, UdpFlow

# ---- Several packets -----------------------------------------------------------------------------


_OFTEN = 8  # occasions that no coincidence makes
_TICK_SECONDS = 1.024e-6
_LONG_TICKS = 16  # a service time that no clock hides
_LONG_TURNS = 4  # rotations: more than one skipped turn makes of a turn
_REPEATED_MARKS = 32  # after so many a sender that skips longer each time would have shown it
_NARROW = 128  # PSNs


class DirectionInference(Struct):
    """Of the sender and the receiver of one direction."""

    shifted: int = 0
    """SACKs whose timestamp has the receiver's service time."""
    _unshifted: int = 0
    """SACKs that were late, and have the timestamp of the packet."""
    _cut: set[int] = field(default_factory=set)
    """PSNs that arrived without their RETH, and neither before nor since then whole."""
    _ignored: int = 0
    """Of these, those that came whole later without a NACK."""
    _silent: int = 0
    """Messages that a SACK covers beside a hole, without an ACK until the next one."""
    _ended: int = -1
    """The last PSN of the newest such message."""
    _acked: int = -1
    _narrow: int = 0
    """Packets with which the flight was 128 PSNs."""
    _wide: int = 0
    """Packets with which it was more."""
    _row: dict[int, int] = field(default_factory=dict)
    """Complaints about each EV in a row."""
    _again: list[int] = field(default_factory=list)
    """Packets between two uses of an EV that is marked again and again."""

    # ---- The receiver ---------------------------------------------------------------------

    def on_timestamp(self, sent: int, reflected: int, seconds: float, *, at_receiver: bool) -> None:
        """A SACK reflects the timestamp of a packet, so long after it."""
        added = (reflected - sent) % (1 << 16)
        self.shifted += 0 < added < 1 << 15
        self._unshifted += added == 0 and at_receiver and seconds > _LONG_TICKS * _TICK_SECONDS

    def on_cut(self, psn: int) -> None:
        """A packet came without its RETH, for the first time."""
        self._cut.add(psn)

    def on_nack(self, psn: int) -> None:
        self._cut.discard(psn)

    def on_whole(self, psn: int, flight: int) -> None:
        """A packet came whole, and so many PSNs are in flight."""
        self._ignored += psn in self._cut
        self._cut.discard(psn)
        self._narrow += flight == _NARROW
        self._wide += flight > _NARROW

    def on_sack(self, ended: int, *, hole: bool) -> None:
        """`ended`: the last PSN of the newest message that it covers."""
        if not hole or ended <= self._acked:
            self._ended = -1
        elif self._ended < 0:
            self._ended = ended
        else:
            self._silent += 1
            self._ended = PSNS  # once for each hole

    def on_ack(self, psn: int) -> None:
        self._acked = max(self._acked, psn)
        self._ended = -1

    # ---- The sender -----------------------------------------------------------------------

    def on_feedback(self, ev: int, *, marked: bool) -> None:
        """A SACK tells of an EV."""
        self._row[ev] = self._row.get(ev, 0) + 1 if marked else 0

    def on_turn(self, ev: int, packets: int) -> None:
        """An EV with a complaint is used again, after so many packets."""
        if self._row.get(ev, 0) > 1:
            self._again.append(packets)

    # ---- At the end -----------------------------------------------------------------------

    def readings(self, turns: list[int], *, acks_beside_holes: bool) -> Counter[str]:
        """How often each showed. `turns`: packets between two uses of an EV without a mark."""
        longest = _LONG_TURNS * median(turns) if turns else 0
        long_turns = sum(each >= longest for each in self._again)
        found = Counter({"G15-A": self.shifted, "G10-B": self._ignored, "S1-B": self._wide})
        if not self.shifted and self._unshifted >= _OFTEN:
            found["G15-B"] = self._unshifted
        if not acks_beside_holes:
            found["S5-B"] = self._silent
        if not self._wide and self._narrow >= _OFTEN:
            found["S1-A"] = self._narrow
        if long_turns >= _OFTEN:
            found["G5-B"] = long_turns
        elif len(self._again) >= _REPEATED_MARKS:
            found["G5-A"] = len(self._again)
        return +found


# ---- One packet ----------------------------------------------------------------------------------


_PORTS = {4971: "C1-A", 4791: "C1-B"}
_UNFINISHED = (0xC6, 0xC7)  # First and Middle: they end no message, so no event is due
_PORT_STATUS, _EV_PROBE, _ALWAYS_SKIP, _ACK = 0, 1, 2, 0x1F


class PacketInference:
    """Takes packets in the order of their capture."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, bool]] = {}  # operation and mark of requests, by id
        self._cut: set[tuple[int, int]] = set()  # QPN's low half and PSN of data without RETH

    def shown(self, flow: UdpFlow, packet: Packet) -> Iterator[str]:
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

    def _endpoint(self, flow: UdpFlow, packet: Packet) -> Iterator[str]:
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
