# SPDX-License-Identifier: Apache-2.0
"""The history of two implementations, from a capture: invariants, the readings that packets show,
timers, spraying, and the flight of each sender, with its reactions. Pure.

Packets come in the order of the capture. Each direction of a QP is named by the QPN that its data
goes to. Answers lead back to it by the low halves of the QPNs that they carry.

A reaction is the least flight within some round trips after the news, relative to the flight at the
news: 1 means that the sender went on as before, 0.5 that it had half as much in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from msgspec import Struct, field

from mrc.conform.case import after
from mrc.dissect.packet import Packet, UdpFlow

_FIRST, _MIDDLE, _LAST, _LAST_IMM = 0xC6, 0xC7, 0xC8, 0xC9
_UNFINISHED = (_FIRST, _MIDDLE)  # they end no message, so no event is due
_SKIP_ONCE = 1
_PSN_OOR_WINDOW = 0x0B
_MOST_FINDINGS = 1000  # kept of one direction; the counts go on
_ROUNDS = 4  # round trips in which a reaction must show
_LEAST_FLIGHT = 4  # PSNs: a smaller flight cannot show a reaction


class News(Struct):
    """A loss or a mark that the sender learned of, and the flight since then."""

    kind: str
    """loss, trim or mark."""
    seconds: float
    flight: int
    least: int


class SenderHistory(Struct):
    """Of one direction of a QP."""

    waits_reported: list[float] = field(default_factory=list)
    """From a packet to its retransmission, after a SACK or NACK that showed the loss."""
    waits_silent: list[float] = field(default_factory=list)
    """The same without such an answer: the sender's timers."""
    reactions: dict[str, list[float]] = field(default_factory=dict)
    """By kind of the news."""
    _open: list[News] = field(default_factory=list)
    _round_trip: float = 0.0

    def on_flight(self, seconds: float, psns: int) -> None:
        """After a packet, or an answer."""
        late = seconds - _ROUNDS * self._round_trip
        for news in [each for each in self._open if each.seconds < late]:
            self._open.remove(news)
            self.reactions.setdefault(news.kind, []).append(news.least / news.flight)
        for news in self._open:
            news.least = min(news.least, psns)

    def on_round_trip(self, took: float) -> None:
        self._round_trip = took if not self._round_trip else (7 * self._round_trip + took) / 8

    def on_news(self, kind: str, seconds: float, psns: int) -> None:
        """The sender learns of a loss, a trim or a mark; more of it in one reaction is one."""
        if psns >= _LEAST_FLIGHT and not any(each.kind == kind for each in self._open):
            self._open.append(News(kind, seconds, psns, psns))

    def on_again(self, wait: float, *, reported: bool) -> None:
        """A retransmission, so long after the packet."""
        (self.waits_reported if reported else self.waits_silent).append(wait)

    def reaction(self, kind: str) -> float | None:
        """The median; None: no such news."""
        found = self.reactions.get(kind)
        return median(found) if found else None


# ---- Readings that one packet shows --------------------------------------------------------------


_PORTS = {4971: "C1-A", 4791: "C1-B"}
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
        if packet.opcode in Packet.DATA:
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


# ---- Two implementations -------------------------------------------------------------------------


class PsnRecord(Struct):
    """A PSN of one direction: its transmissions and what was said of it."""

    opcode: int
    msn: int
    va: int
    dma_bytes: int
    payload_bytes: int
    evs: list[int]
    seconds: list[float]
    reported: bool = False
    """In a SACK."""
    nacked: bool = False


class Violation(Struct, frozen=True):
    """A violation of an invariant."""

    invariant: str
    text: str
    seconds: float


class QpDirection(Struct):
    """The data that goes to one QPN, and the answers to it."""

    qpn: int
    source: str
    destination: str
    first_psn: int
    sent: dict[int, PsnRecord] = field(default_factory=dict)
    """By the distance from the first PSN."""
    highest: int = -1
    cum: int = -1
    window: int = 0
    """The most PSNs between the cumulative PSN and the highest one sent."""
    packets: int = 0
    payload_bytes: int = 0
    retransmissions: int = 0
    trimmed: int = 0
    marked: int = 0
    sacks: int = 0
    acks: int = 0
    nacks: Counter[str] = field(default_factory=Counter)
    evs: Counter[int] = field(default_factory=Counter)
    rtts: list[float] = field(default_factory=list)
    """From a packet to the SACK that it triggered, if it was sent once."""
    waits: list[float] = field(default_factory=list)
    """From the last transmission of a packet to its retransmission."""
    turns: list[int] = field(default_factory=list)
    """Packets of its plane between two uses of an EV without a mark."""
    turns_after_mark: list[int] = field(default_factory=list)
    """The same, after a SACK with SKIP_ONCE for that EV."""
    course: SenderHistory = field(default_factory=SenderHistory)
    findings: list[Violation] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    """How often each invariant was broken."""
    readings: Counter[str] = field(default_factory=Counter)
    """How often each reading was seen."""
    _planes: Counter[str] = field(default_factory=Counter)
    """Packets by the address of the sender."""
    _used: dict[int, int] = field(default_factory=dict)
    """By EV: of these, when the EV was used last."""
    _skips: set[int] = field(default_factory=set)
    _reported: int = -1  # highest PSN in a SACK
    _early: list[tuple[int, float]] = field(default_factory=list)
    """PSNs that a SACK reported before the capture had them."""

    def breaks(self, invariant: str, text: str, seconds: float) -> None:
        self.broken[invariant] += 1
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(Violation(invariant, text, seconds))

    @property
    def fairness(self) -> float:
        """Jain's index of the packets of each EV: 1 if all carry as many."""
        counts = self.evs.values()
        return sum(counts) ** 2 / (len(counts) * sum(n * n for n in counts)) if counts else 0.0

    @property
    def uncaptured(self) -> int:
        """PSNs that the capture lacks, between others that it has."""
        return sum(psn not in self.sent for psn in range(self.highest + 1))

    @property
    def lost(self) -> int:
        """PSNs that were sent more than once."""
        return sum(len(each.evs) > 1 for each in self.sent.values())


def typical(values: list[float] | list[int]) -> float | None:
    """The median, if there is one."""
    return median(values) if values else None


class Judge:
    """Takes the packets of a capture, and holds what they show."""

    def __init__(self) -> None:
        self.directions: dict[int, QpDirection] = {}
        self.wrong_icrc = 0
        self.readings: Counter[str] = Counter()
        """Of packets that belong to no QP."""
        self._inference = PacketInference()

    def take(self, seconds: float, flow: UdpFlow, packet: Packet) -> None:
        """The next packet."""
        if "BTH" not in packet.headers:
            return
        if packet.icrc_is_right is False:
            self.wrong_icrc += 1
            return
        self.readings.update(self._inference.shown(flow, packet))
        if packet.opcode in Packet.DATA:
            self._data(seconds, flow, packet)
        elif "SETH" in packet.headers:
            self._sack(seconds, packet)
        elif "NETH" in packet.headers:
            self._nack(seconds, packet)
        elif "AETH" in packet.headers:
            self._ack(seconds, packet)

    # ---- Data -----------------------------------------------------------------------------

    def _data(self, seconds: float, flow: UdpFlow, packet: Packet) -> None:
        bth = packet.headers["BTH"]
        way = self.directions.setdefault(
            bth["dest_qpn"],
            QpDirection(bth["dest_qpn"], str(flow.source), str(flow.destination), bth["psn"]),
        )
        way.marked += flow.ce
        psn = after(bth["psn"], way.first_psn)
        before = way.sent.get(psn)
        if packet.trimmed or not packet.complete:
            way.trimmed += 1
            return
        way.packets += 1
        way.payload_bytes += packet.payload_bytes
        self._spread(way, flow)
        if bth["rtx"]:
            way.retransmissions += 1
            way.course.on_news("loss", seconds, way.highest - way.cum)
        if before is None:
            self._first_time(seconds, way, psn, packet, flow.ev)
        else:
            self._again(seconds, way, psn, before, packet, flow.ev)

    @staticmethod
    def _spread(way: QpDirection, flow: UdpFlow) -> None:
        """Turns count the packets of the EV's plane, since the other planes may be suspended."""
        ev, plane = flow.ev, str(flow.source)
        way._planes[plane] += 1
        if ev in way._used:
            turns = way.turns_after_mark if ev in way._skips else way.turns
            turns.append(way._planes[plane] - way._used[ev])
        way._skips.discard(ev)
        way._used[ev] = way._planes[plane]
        way.evs[ev] += 1

    @staticmethod
    def _first_time(seconds: float, way: QpDirection, psn: int, packet: Packet, ev: int) -> None:
        meth, reth = packet.headers["METH"], packet.headers["RETH"]
        way.sent[psn] = PsnRecord(
            packet.opcode, meth["msn"], reth["va"], reth["dma_bytes"], packet.payload_bytes,
            [ev], [seconds],
        )  # fmt: skip
        way.highest = max(way.highest, psn)
        way.window = max(way.window, way.highest - way.cum)
        way.course.on_flight(seconds, way.highest - way.cum)

    @staticmethod
    def _again(
        seconds: float, way: QpDirection, psn: int, before: PsnRecord, packet: Packet, ev: int
    ) -> None:
        meth, reth = packet.headers["METH"], packet.headers["RETH"]
        same = (before.msn, before.va, before.dma_bytes, before.payload_bytes)
        now = (meth["msn"], reth["va"], reth["dma_bytes"], packet.payload_bytes)
        if same != now:
            way.breaks("one packet for a PSN", f"PSN {psn} comes with other contents", seconds)
        if not packet.headers["BTH"]["rtx"]:
            way.breaks("rtx is set", f"PSN {psn} comes again without rtx", seconds)
        if before.reported:
            way.breaks("no retransmission of what arrived",
                       f"PSN {psn} comes again after a SACK for it", seconds)  # fmt: skip
        if ev == before.evs[-1] and len(way.evs) > 1:
            way.breaks("another EV for a retransmission",
                       f"PSN {psn} comes again on EV {ev:08x}", seconds)  # fmt: skip
        way.waits.append(seconds - before.seconds[-1])
        way.course.on_again(way.waits[-1], reported=before.nacked or psn < way._reported)
        before.evs.append(ev)
        before.seconds.append(seconds)

    # ---- Answers --------------------------------------------------------------------------

    def _answered(self, half: int) -> QpDirection | None:
        """The direction whose QPN has this low half."""
        return next((way for qpn, way in self.directions.items() if qpn & 0xFFFF == half), None)

    def _sack(self, seconds: float, packet: Packet) -> None:
        seth = packet.headers["SETH"]
        way = self._answered(seth["spdcid"])
        if way is None:
            return
        way.sacks += 1
        way.readings["G12-A"] += 1
        cum = after(seth["cum_psn"], way.first_psn)
        base = cum + seth["sack_offset"]
        bits = [base + bit for bit in range(64) if seth["bitmap"] >> bit & 1]
        way._early += [(psn, seconds) for psn in (cum, *bits) if psn > way.highest]
        for psn in (*range(way.cum + 1, min(cum, way.highest) + 1), *bits):
            if psn in way.sent:
                way.sent[psn].reported = True
        flight = way.highest - way.cum
        way.cum = max(way.cum, cum)
        way._reported = max(way._reported, cum, *bits)
        ev, swapped = seth["ev"], (seth["ev"] & 0xFFFF) << 16 | seth["ev"] >> 16
        if ev not in way.evs and swapped in way.evs:
            way.readings["C3-B"] += 1
            ev = swapped
        else:
            way.readings["C3-A"] += ev in way.evs
        if seth["mark"] == _SKIP_ONCE:
            way._skips.add(ev)
            way.course.on_news("mark", seconds, flight)
        way.course.on_flight(seconds, way.highest - way.cum)
        trigger = None if seth["pr"] else way.sent.get(cum + seth["ack_psn_offset"])
        if trigger is not None and len(trigger.evs) == 1:
            way.rtts.append(seconds - trigger.seconds[0])
            way.course.on_round_trip(way.rtts[-1])

    def _nack(self, seconds: float, packet: Packet) -> None:
        neth = packet.headers["NETH"]
        way = self._answered(neth["spdcid"])
        if way is None:
            return
        way.nacks[Packet.NAMES["reason"].get(neth["reason"], str(neth["reason"]))] += 1
        if neth["reason"] == _PSN_OOR_WINDOW:
            way.readings["C4-B"] += 1
        psn = after(neth["nack_psn"], way.first_psn)
        if (sent := way.sent.get(psn)) is not None:
            sent.nacked = True
            way.course.on_news("trim", seconds, way.highest - way.cum)

    def _ack(self, seconds: float, packet: Packet) -> None:
        """An ACK names no QPN of its sender: it belongs to the direction whose PSN it has."""
        psn = packet.headers["BTH"]["psn"]
        for way in self.directions.values():
            distance = after(psn, way.first_psn)
            if way.qpn == packet.headers["BTH"]["dest_qpn"] or not -1 <= distance <= way.highest:
                continue
            way.acks += 1
            last = way.sent.get(distance)
            if last is not None and distance == way.cum < way.highest:
                beyond = any(each.reported for psn_, each in way.sent.items() if psn_ > way.cum)
                way.readings["S5-A"] += beyond
            return

    # ---- At the end -----------------------------------------------------------------------

    def finish(self) -> None:
        """Checks what only the whole capture shows: the shape of messages."""
        for way in self.directions.values():
            for psn, seconds in way._early:
                # What the capture lacks may have been sent all the same.
                if psn > way.highest or psn in way.sent:
                    way.breaks("a SACK reports what was sent", f"a SACK reports PSN {psn}", seconds)
            for psn in sorted(way.sent):
                if psn - 1 in way.sent:
                    self._follows(way, psn, way.sent[psn - 1], way.sent[psn])

    @staticmethod
    def _follows(way: QpDirection, psn: int, before: PsnRecord, now: PsnRecord) -> None:
        """A packet and the one before it belong to one message, or to two in a row."""
        seconds = now.seconds[0]
        inside = before.opcode in _UNFINISHED
        if inside != (now.opcode in (_MIDDLE, _LAST, _LAST_IMM)):
            way.breaks(
                "messages are whole", f"PSN {psn} does not go on with PSN {psn - 1}", seconds
            )
        elif inside and (now.msn, now.va, now.dma_bytes) != (
            before.msn, before.va + before.payload_bytes, before.dma_bytes,
        ):  # fmt: skip
            way.breaks("addresses advance by the payload",
                       f"PSN {psn} has another MSN, address or length", seconds)  # fmt: skip
        elif not inside and (now.msn - before.msn) % (1 << 16) != 1:
            way.breaks("MSN counts messages", f"PSN {psn} has MSN {now.msn}", seconds)
