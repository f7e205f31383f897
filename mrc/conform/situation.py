# SPDX-License-Identifier: Apache-2.0
"""A case that is being played: both ends of the QP, and how packets follow from its steps. Pure."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from mrc import units
from mrc.conform.adapter import QpAttributes
from mrc.conform.case import SENT, Step, after, members, psn_at, span, value
from mrc.conform.packets import ENDPOINT_QPN, OPCODE, OPERATION_BYTE, Datagram, finished
from mrc.dissect.packet import Packet, UdpFlow
from mrc.enums import Reading

PSN_FIELDS = ("psn", "cum_psn", "nack_psn")
_TIMESTAMP = 1  # ftype
_MPR_UNIT = 128  # PSNs
_TICK_NS = 1024  # of timestamps
_ANSWERS = ("SACK", "NACK", "ACK")
_KINDS = Packet.NAMES["opcode"]
_WORDS = {name: Packet.NAMES[name] for name in ("mark", "reason", "syndrome", "operation")}
_ICRC_BYTES = 4


class DevicePacket(Struct, frozen=True):
    """A packet of the device: what its answer reflects."""

    at_ns: int = 0
    """Since the epoch."""
    ev: int = 0
    timestamp: int = 0
    address: str = ""
    """Of the judge: it stands for a plane."""


class Situation(Struct):
    """What the numbers of a case refer to."""

    own: QpAttributes
    device: QpAttributes
    evs: list[int]
    """The EV of each path of the judge."""
    names: dict[str, int] = field(default_factory=dict)
    """Numbers with a name: those of the device, and what its last packets said."""
    last: DevicePacket = field(default_factory=lambda: DevicePacket())
    """The device's last packet that can be answered."""
    marked: dict[int, int] = field(default_factory=dict)
    """EVs that the judge's SACKs and NACKs have complained about, by a mark or by a hole: how many
    packets came on each since then."""
    since_mark: Counter[int] = field(default_factory=Counter)
    """Packets on each EV since the judge's last complaint."""
    said_ns: int = 0
    """When the judge sent its last packet, since the epoch."""
    former: set[int] = field(default_factory=set)
    """QPNs of the judge in earlier cases, whose packets may come late."""
    readings: Reading = Reading.OURS
    """Those that the judge's answers follow."""
    shown: set[str] = field(default_factory=set)
    """Readings that the form of the device's packets has shown."""
    carried: dict[int, list[DevicePacket]] = field(default_factory=dict)
    """Each transmission of each PSN of the device."""
    flight: set[int] = field(default_factory=set)
    """PSNs of the device that came, and that the judge has not answered since."""
    reported: set[int] = field(default_factory=set)
    """PSNs of the device that the judge's SACKs have reported."""
    is_prompt: bool = False
    """The device must not time out, so the judge has to answer soon."""
    data_ns: int = 0
    """When the device's last data came, since the epoch."""
    arrived: DevicePacket | None = None
    """The packet that the next answers reflect; None: the one that they name."""

    def __post_init__(self) -> None:
        self.names |= {
            "mpr": self.device.mpr, "wimm": self.device.max_wimm, "mtu": self.device.path_mtu,
            "size": self.device.memory_bytes, "half": 1 << 23, "va": self.device.va,
            "rkey": self.device.rkey, "window": self.own.mpr, "probe": 0, "id": 0,
            "their_id": self.device.qpn & 0xFFFF, "our_id": self.own.qpn & 0xFFFF,
            "our_rkey": self.own.rkey, "our_qpn": self.own.qpn,
            "mpr_units": self.device.mpr // _MPR_UNIT, "evs": 0, "turns": 0, "no_time": 0,
        }  # fmt: skip

    def number(self, name: str, text: str) -> int:
        """The value of a field, such as mark=SKIP_ONCE or psn=mpr-1."""
        if codes := [code for code, word in _WORDS.get(name, {}).items() if word == text]:
            return codes[0]
        return value(text, self.names)

    def note(self, seen: Datagram) -> None:
        """Remembers what later steps may refer to."""
        headers_, ev = seen.packet.headers, seen.flow.ev
        bth = headers_.get("BTH", {"opcode": 0})
        stamp = next((headers_[name] for name in ("TSETH", "PETH", "ERTH") if name in headers_), {})
        stamped = stamp.get("tx_timestamp", self.last.timestamp)
        came = DevicePacket(seen.at_ns, ev, stamped, str(seen.flow.destination))
        self.names["no_time"] = (came.timestamp + (1 << 15)) % (1 << 16)
        if bth["opcode"] in Packet.DATA or "PETH" in headers_:
            self.last = came
        if bth["opcode"] in Packet.DATA:
            psn = after(bth["psn"], self.device.first_psn)
            before = self.carried.setdefault(psn, [])
            seen.same_ev = any(ev == each.ev for each in before)
            before.append(came)
            if ev in self.marked:
                self.marked[ev] += 1
                seen.after_mark = self.marked[ev]
            self.since_mark[ev] += 1
            planes = {each.ev: each.address for came in self.carried.values() for each in came}
            # The mean of the packets since the judge's last complaint on each EV that is as good as
            # new, in the planes of the others. A plane may be suspended.
            hurt = {planes[ev] for ev in self.marked if ev in planes}
            good = [ev for ev in planes if planes[ev] in hurt and ev not in self.marked]
            turns = sum(self.since_mark[ev] for ev in good) // max(1, len(good))
            self.names |= {"evs": len(planes), "turns": turns}
            self.flight |= {psn} - self.reported
            self.data_ns = seen.at_ns
        if "PETH" in headers_:
            self.names["probe"] = headers_["PETH"]["probe_id"]
        if "ERTH" in headers_:
            self.names["id"] = bth["psn"]

    # ---- To the device --------------------------------------------------------------------

    def repeats(self, step: Step) -> list[int]:
        """The PSNs of a step that sends several packets: psn=3..7, nack_psn=3..7, or count=3."""
        name = "nack_psn" if "nack_psn" in step.fields else "psn"
        psns = span(step.fields.get(name, "0"), self.names)
        return [*psns] * self.number("count", step.fields.get("count", "1"))

    def sent(self, step: Step, psn: int, now_ns: int = 0) -> bytes:
        """The packet of a step, without its ICRC. `now_ns`: since the epoch."""
        kind, texts = step.what, step.fields
        own = {name for name in texts if name in SENT} - Packet.fields_of(kind, ts=False)
        fields = {name: self.number(name, text) for name, text in texts.items()
                  if name not in own and name not in ("psn", "nack_psn")}  # fmt: skip
        if "nack_psn" in texts:
            fields["nack_psn"] = psn
        payload = b""
        if OPCODE[kind] in Packet.DATA:
            payload = self._data(step, fields, psn)
        else:
            self._control(kind, step, fields, psn, now_ns)
        fields.setdefault("dest_qpn", self.device.qpn)
        if "tx_timestamp" in texts and OPCODE[kind] in Packet.DATA:
            fields["ts"] = 1
        return Packet.encode(kind, fields) + payload

    def _data(self, step: Step, fields: dict[str, int], psn: int) -> bytes:
        count = self.number("bytes", step.fields.get("bytes", "64"))
        filling = self.number("fill", step.fields.get("fill", "0x11"))
        at = self.number("at", step.fields.get("at", "0"))
        fields.setdefault("va", self.device.va + at)
        fields.setdefault("rkey", self.device.rkey if count else 0)
        fields.setdefault("dma_bytes", count)
        fields.setdefault("pad", -count % 4)
        fields.setdefault("msn", psn & 0xFFFF)
        fields["psn"] = psn_at(psn, self.own.first_psn)
        return bytes([filling]) * count + bytes(-count % 4)

    def _control(
        self, kind: str, step: Step, fields: dict[str, int], psn: int, now_ns: int
    ) -> None:
        """What follows from other fields; the numbers of an answer are those of the device."""
        first = self.device.first_psn
        if kind.startswith("ENDPOINT"):
            fields.setdefault("dest_qpn", ENDPOINT_QPN)
            fields["psn"] = psn & 0xFFFFFF
            return
        if kind == "SACK":
            self._sack(step, fields)
        if kind in ("SACK", "NACK"):
            # The packet that the answer names, as it came last; otherwise the last packet.
            psns = fields.get("cum_psn", 0) + fields.get("ack_psn_offset", 0)
            named = self.carried.get(fields.get("nack_psn", psns), [self.last])[-1]
            came = self.arrived or (self.last if fields.get("pr") else named)
            ev = came.ev
            swaps = Reading.C3_B in self.readings
            fields.setdefault("ev", (ev & 0xFFFF) << 16 | ev >> 16 if swaps else ev)
            if fields.get("mark") or kind == "NACK":
                self._mark(ev)
            shift = 0
            if "delay" in step.fields:  # less the time that the packet spent here beyond it (G15-A)
                shift = max(0, now_ns - came.at_ns - self.delay_ns(step)) // _TICK_NS
            fields.setdefault("tx_timestamp", (came.timestamp + shift) % (1 << 16))
        if kind != "ACK":
            fields.setdefault("spdcid", self.own.qpn & 0xFFFF)
            fields.setdefault("dpdcid", self.device.qpn & 0xFFFF)
        number = next((name for name in ("cum_psn", "nack_psn") if name in fields), "")
        if "psn" not in step.fields and number:
            psn = fields[number]
        if kind == "NACK":
            self.flight.discard(fields.get("nack_psn", 0))
        for name in ("cum_psn", "nack_psn"):
            if name in fields:
                fields[name] = psn_at(fields[name], first)
        fields["psn"] = psn_at(psn, first) if kind in _ANSWERS else psn & 0xFFFFFF

    def delay_ns(self, step: Step) -> int:
        """The queueing delay that an answer pretends."""
        return int(units.parse_short_time(step.fields.get("delay", "0s")) * 1e9)

    def _sack(self, step: Step, fields: dict[str, int]) -> None:
        has: set[int] = set()
        cum = fields.setdefault("cum_psn", 0)
        offset = fields.setdefault("sack_offset", 1)
        if "probe_id" in step.fields:
            identity = self.number("probe_id", step.fields["probe_id"]) & 0xFFFF
            fields |= {"pr": 1, "ack_psn_offset": identity - (identity >> 15 << 16)}
        if "for" in step.fields:
            fields["ack_psn_offset"] = self.number("for", step.fields["for"]) - cum
        if "has" in step.fields:
            has = set(members(step.fields["has"], self.names))
        if has:
            fields["bitmap"] = sum(1 << psn - cum - offset for psn in has)
        for psn in range(cum + 1, max(has, default=cum)):
            if psn in self.carried and psn not in has:
                self._mark(self.carried[psn][-1].ev)
        self.reported |= has | {psn for psn in self.carried if psn <= cum}
        self.flight -= self.reported

    def _mark(self, ev: int) -> None:
        self.marked[ev] = 0
        self.since_mark.clear()

    def finished(self, step: Step, body: bytes, flow: UdpFlow) -> bytes:
        """The UDP payload. `short` and `longer` change the packet before its ICRC, which then is
        right; `icrc`, `cut` and `extra` damage the whole.
        """
        if "short" in step.fields:
            body = body[: self.number("short", step.fields["short"])]
        body += bytes.fromhex(step.fields.get("longer", ""))
        packet = finished(body, flow)
        if step.fields.get("icrc") == "rocev2":
            identity = self.number("ip_id", step.fields["ip_id"])
            packet = body + flow.icrc(body, fragment=identity.to_bytes(2, "big") + b"\0\0")
        if step.fields.get("icrc") == "wrong":
            packet = packet[:-1] + bytes([packet[-1] ^ 1])
        if "cut" in step.fields:
            packet = packet[: self.number("cut", step.fields["cut"])]
        return packet + bytes.fromhex(step.fields.get("extra", ""))

    # ---- From the device ------------------------------------------------------------------

    def is_of_kind(self, step: Step, seen: Datagram) -> bool:
        """Whether a datagram is a packet of the kind that a step expects."""
        packet = seen.packet
        if "BTH" not in packet.headers or not packet.complete:
            return False
        if packet.headers["BTH"]["dest_qpn"] in self.former:
            return False
        kind = _KINDS.get(packet.opcode, "")
        # The device's own probes of its paths are an answer to nothing.
        return step.what == kind or (step.what == "any" and kind not in ("", "ENDPOINT_REQUEST"))

    def differs(self, step: Step, seen: Datagram) -> str:
        """What keeps a packet of its kind from being the expected one; empty: nothing."""
        found = self.read(seen)
        for name, text in step.fields.items():
            if name in ("has", "lacks"):
                wrong = self._bitmap_differs(name, text, seen.packet)
            elif name == "path":
                # Both orders of the halves are right; which one the device uses is remembered.
                wanted, ev = self.evs[value(text, self.names)], found.get("ev")
                if ev not in (wanted, (wanted & 0xFFFF) << 16 | wanted >> 16):
                    return f"its EV is not {wanted:08x}"
                self.shown.add("C3-A" if ev == wanted else "C3-B")
                continue
            elif name != "within":
                wrong = self._field_differs(name, text, found)
            else:
                continue
            if wrong:
                return wrong
        return ""

    def unsound(self, seen: Datagram) -> str:
        """What no packet of a device may have, whatever the case; empty: nothing."""
        packet = seen.packet
        if "BTH" not in packet.headers or packet.opcode not in _KINDS or not packet.complete:
            return "is no whole packet of MRC"
        if packet.icrc_is_right is False:
            return "has a wrong ICRC"
        bth = packet.headers["BTH"]
        endpoint = _KINDS[packet.opcode].startswith("ENDPOINT")
        qpn = ENDPOINT_QPN if endpoint else self.own.qpn
        if bth["dest_qpn"] != qpn and bth["dest_qpn"] not in self.former:
            return f"goes to QPN {bth['dest_qpn']:#x}, not {qpn:#x}"
        if bth["tver"] or bth["pkey"] != 0xFFFF or bth["var_res"] or has_reserved_bits(seen):
            return "has another version or partition key, or reserved bits"
        if packet.opcode not in Packet.DATA and (bth["pad"] or bth["ts"] or bth["rtx"]):
            return "has flags of data"
        stamps = (packet.headers[name] for name in ("TSETH", "PETH", "ERTH")
                  if name in packet.headers)  # fmt: skip
        if any(stamp["ftype"] != _TIMESTAMP for stamp in stamps):
            return "has a timestamp of another type"
        return ""

    def _field_differs(self, name: str, text: str, found: dict[str, int]) -> str:
        if name not in found:
            return f"it has no {name}"
        for part in text.split("|"):
            first, dots, last = part.partition("..")
            least = self.number(name, first)
            if least <= found[name] <= (self.number(name, last) if dots else least):
                return ""
        shown = _WORDS.get(name, {}).get(found[name], found[name])
        return f"{name} is {shown}, not {text}"

    def _bitmap_differs(self, name: str, text: str, packet: Packet) -> str:
        if (seth := packet.headers.get("SETH")) is None:
            return "it has no bitmap"
        cum = after(seth["cum_psn"], self.own.first_psn)
        base = cum + seth["sack_offset"]
        for psn in members(text, self.names):
            bit = psn - base
            reported = psn <= cum or (0 <= bit < 64 and bool(seth["bitmap"] >> bit & 1))
            if reported != (name == "has"):
                return f"it {'lacks' if name == 'has' else 'has'} PSN {psn}"
        return ""

    def read(self, seen: Datagram) -> dict[str, int]:
        """The fields of a packet and what follows from them, in the numbers of cases."""
        packet = seen.packet
        addresses = [port.address for port in self.own.ports]
        found = {"late_us": (seen.at_ns - self.said_ns) // 1000}
        if str(seen.flow.destination) in addresses:
            found["plane"] = addresses.index(str(seen.flow.destination)) + 1
        for each in packet.headers.values():
            found |= each
        found["marked_ev"] = int(seen.flow.ev in self.marked)
        kind = _KINDS[packet.opcode]
        first = self.device.first_psn if packet.opcode in Packet.DATA else self.own.first_psn
        if kind != "PROBE" and not kind.startswith("ENDPOINT"):
            found |= {name: after(found[name], first) for name in PSN_FIELDS if name in found}
        if "SETH" in packet.headers:
            answers = "probe_id" if found["pr"] else "for"
            offset = found["ack_psn_offset"]
            found[answers] = offset & 0xFFFF if found["pr"] else found["cum_psn"] + offset
        if "RETH" in packet.headers:
            found |= self._read_data(seen)
        if "EETH" in packet.headers:
            # That of an endpoint response; both places are right.
            if is_lifted(seen):
                self.shown.add("C6-B")
                found["operation"] = 1
            elif found["operation"] == 1:
                self.shown.add("C6-A")
        return found

    def _read_data(self, seen: Datagram) -> dict[str, int]:
        size = seen.packet.payload_bytes
        end = len(seen.payload) - _ICRC_BYTES - seen.packet.headers["BTH"]["pad"]
        data = seen.payload[end - size : end]
        return {
            "same_ev": int(seen.same_ev),
            "after_mark": seen.after_mark,
            "at": seen.packet.headers["RETH"]["va"] - self.own.va,
            "bytes": size,
            "fill": data[0] if size and data == data[:1] * size else -1,
        }


def has_reserved_bits(seen: Datagram) -> bool:
    """Whether a bit is set that belongs to no field: the fields alone make other headers."""
    found = {name: text for each in seen.packet.headers.values() for name, text in each.items()}
    again = bytearray(Packet.encode(seen.packet.kind, found))
    if is_lifted(seen):
        again[OPERATION_BYTE] |= 1 << 4
    return again != seen.payload[: len(again)]


def is_lifted(seen: Datagram) -> bool:
    """Whether it is the answer to an EV probe with the operation in bits 5:4 (C6-B)."""
    eeth = seen.packet.headers.get("EETH")
    lifted = eeth is not None and seen.payload[OPERATION_BYTE] >> 4 & 3 == 1
    return lifted and eeth is not None and eeth["operation"] == 0
