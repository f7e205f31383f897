# SPDX-License-Identifier: Apache-2.0
"""Plays cases against a device, and gives a verdict on each: takes the steps of a case one by one,
sends packets, waits for others, and asks the device.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct, field

from mrc import units
from mrc.conform import packets
from mrc.conform.adapter import (
    AdapterAnswer,
    AdapterError,
    Ask,
    Attach,
    Memory,
    QpAttributes,
    TestedDevice,
    Wait,
    WriteRequest,
)
from mrc.conform.case import PSNS, Case, Choice, Step, after, span, value
from mrc.conform.packets import Datagram, FaultyPath, JudgePeer, finished
from mrc.conform.situation import DevicePacket, Situation
from mrc.dissect.packet import Packet
from mrc.enums import Reading
from mrc.units import counted, digits

OWN_MEMORY = 0x10_0000_0000  # addresses of memory that the judge does not really have
OWN_RKEY = 0x5EED
MEMORY_BYTES = 1 << 20  # of either side
TIMEOUT = 14  # 17 ms, so that cases need not wait long for a timeout
SENDER_TIMEOUT = 18  # 268 ms: longer than the delays of cases with congestion control
_MANY_PSNS = 1000
_PLAYS = 100  # of a case in which the judge was late


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CaseOutcome(Struct):
    """The verdict on one case."""

    case: Case
    verdict: Verdict = Verdict.PASSED
    reason: str = ""
    """Of a failed case, the step and what came instead; of a skipped one, what the device lacks."""
    readings: tuple[str, ...] = ()
    """The readings with which the device agrees; the case assumed or found them."""
    unchecked: tuple[str, ...] = ()
    """Steps that the device cannot be asked about."""
    seconds: float = 0.0
    seen: list[Datagram] = field(default_factory=list)


class Player:
    """Plays one case after the other, each on a QP of its own."""

    def __init__(
        self, peer: JudgePeer, device: TestedDevice, readings: Reading = Reading.OURS, *,
        seconds: float = 2.0, seed: int | None = None,
    ) -> None:  # fmt: skip
        """`readings`: those that the judge's answers follow. `seconds`: how long a step waits for a
        packet unless it says so itself.
        """
        self._peer, self._device, self._seconds = peer, device, seconds
        self._readings = readings
        self.is_lost = False
        """The device cannot be asked any more: no case can follow."""
        self._former: QpAttributes | None = None  # the device's end of the case before
        self._qpns: set[int] = set()  # of the judge, in all cases so far
        self._rng = random.Random(seed)

    def play(self, case: Case) -> CaseOutcome:
        """The verdict."""
        outcome = CaseOutcome(case)
        start = time.monotonic()
        try:
            play = self._played(case)
            outcome.readings = (*case.readings, *play.readings)
            outcome.unchecked = tuple(play.unchecked)
        except StepFailure as error:
            outcome.verdict, outcome.reason = Verdict.FAILED, str(error)
        except CaseSkip as error:
            outcome.verdict, outcome.reason = Verdict.SKIPPED, str(error)
        except AdapterError as error:
            outcome.verdict, outcome.reason = Verdict.FAILED, str(error)
            self.is_lost = True
        outcome.seconds = time.monotonic() - start
        outcome.seen = self._peer.seen
        return outcome

    def _played(self, case: Case) -> Play:
        """Again on a new QP if the judge itself was late: that says nothing of the device."""
        for _ in range(_PLAYS):
            play = Play(self._peer, self._device, self._attach(case), self._rng, self._seconds)
            try:
                for step in case.steps:
                    play.take(step)
            except JudgeDelay:
                continue
            return play
        raise CaseSkip("this host is too busy: the judge's answers were late each time")

    def _attach(self, case: Case) -> Situation:
        """Connects the QP of a case."""
        peer = {name: value(text, {}) for name, text in case.peer.items()}
        own = QpAttributes(
            qpn=self._rng.randrange(3, 1 << 24),
            first_psn=value(case.psn, {}) % PSNS if case.psn else self._rng.randrange(PSNS),
            path_mtu=1024, mpr=peer.get("mpr", 1024), max_wimm=peer.get("max_wimm", 32),
            dynamic_mpr=bool(peer.get("dynamic_mpr")), udp_port=self._peer.udp_port,
            ports=self._peer.ports, va=OWN_MEMORY, rkey=OWN_RKEY, memory_bytes=MEMORY_BYTES,
        )  # fmt: skip
        wanted = value(case.device_psn, {}) % PSNS if case.device_psn else None
        nscc = {name: value(text, {}) for name, text in case.nscc.items()}
        timeout = case.timeout or (SENDER_TIMEOUT if nscc else TIMEOUT)
        device = asked(self._device, Attach(own, wanted, MEMORY_BYTES, timeout, nscc)).end
        if device is None:
            raise AdapterError("the adapter's answer to attach has no attributes")
        former, self._former = self._former or device, device
        if wanted not in (None, device.first_psn):
            raise CaseSkip("the device chooses its first PSN itself")
        if case.writes and not device.memory_bytes:
            raise CaseSkip("the device has no memory to write to")
        if own.dynamic_mpr and not device.dynamic_mpr:
            raise CaseSkip("the device cannot change its window")
        if "planes" in case.needs and min(len(own.ports), len(device.ports)) < 2:
            raise CaseSkip("judge and device have one plane; give --address twice")
        if "psns" in case.needs and device.mpr <= _MANY_PSNS:
            raise CaseSkip(
                f"the device grants {counted(device.mpr, 'PSN')}, not more than {_MANY_PSNS}"
            )
        if "ipv4" in case.needs and self._peer.addresses[0].version != 4:
            raise CaseSkip("the judge has no IPv4 address")
        self._peer.aim([port.address for port in device.ports], device.udp_port)
        situation = Situation(
            own, device, [self._peer.flow(path).ev for path in self._peer.paths],
            {"old_va": former.va, "old_rkey": former.rkey},
            former=self._qpns - {own.qpn}, readings=self._readings,
            is_prompt=bool(case.nscc) or case.timeout > 0,
        )  # fmt: skip
        self._qpns.add(own.qpn)
        return situation


# ---- One case ------------------------------------------------------------------------------------


_LATER_SECONDS = 0.003  # a device that may send does so without such a pause
_LATE_NS = 15_000_000  # from then on a device may believe that packets are lost
_STALLED_SECONDS = 0.1  # of the 0.27 s or more after which the device of such a case times out
_GAVE_UP = "RETRY_EXC_ERR"  # how a write of a device ends that has waited too often
_GIVES_UP_SECONDS = 0.05  # of the 0.15 s or more, over all rounds of a case, that a device waits
_DEAD_SECONDS = 0.05  # a QP that has failed answers no probe; its endpoint answers


class StepFailure(Exception):
    """The device did not do what a step says."""


class CaseSkip(Exception):
    """The device lacks what the case needs."""


class JudgeDelay(Exception):
    """The judge was too late for the case to mean anything."""


def asked(device: TestedDevice, what: Ask) -> AdapterAnswer:
    """The answer of a device. Raises CaseSkip if it cannot give one."""
    answer = device.ask(what)
    if answer.cannot:
        raise CaseSkip(answer.cannot)
    return answer


class Play:
    """One case while it is played. Steps raise StepFailure, CaseSkip or AdapterError."""

    def __init__(
        self,
        peer: JudgePeer,
        device: TestedDevice,
        situation: Situation,
        rng: random.Random,
        seconds: float,
    ) -> None:
        self._peer, self._device, self._situation = peer, device, situation
        self._rng, self._seconds = rng, seconds
        self.unchecked: list[str] = []
        """Steps that the device cannot be asked about."""
        self._chosen: list[str] = []
        self._fresh = 0  # index of the first datagram since the last packet of the judge
        self._taken: set[int] = set()  # datagrams that a step has matched
        self._path = 0
        self._limping: FaultyPath | None = None
        self._is_settled = True  # the device has handled what the judge sent

    @property
    def readings(self) -> tuple[str, ...]:
        """Those that the device was seen to follow."""
        return tuple(dict.fromkeys((*self._chosen, *sorted(self._situation.shown))))

    def take(self, step: Step | Choice) -> None:
        """The next step. Raises JudgeDelay if it failed after the judge itself stood still for so
        long that the device may have timed out, or given up.
        """
        try:
            self._take(step)
        except StepFailure:
            if self._situation.is_prompt and self._peer.stalled_seconds > _STALLED_SECONDS:
                raise JudgeDelay from None
            if self._peer.unread_seconds > _GIVES_UP_SECONDS:
                # Such a QP does nothing more, so that any later step fails.
                with suppress(AdapterError):
                    if _GAVE_UP in (self._device.ask(Wait(0.0)).completions or ()):
                        raise JudgeDelay from None
            raise

    def _take(self, step: Step | Choice) -> None:
        if isinstance(step, Choice):
            self._choose(step)
            return
        match step.sign:
            case ">":
                self._send(step)
            case "<":
                self._expect(step)
            case "!":
                for at in range(self._fresh, self._fence()):
                    if self._differs(step, at) == "":
                        raise StepFailure(f"{step.line}: the device sent one")
            case "." if step.what == "wait":
                time.sleep(units.parse_short_time(step.fields["time"]))
            case "." if step.what == "receive":
                self._receive_all(step)
            case ".":
                self._write(step)
            case _:
                self._check(step)

    # ---- Packets --------------------------------------------------------------------------

    def _send(self, step: Step) -> None:
        situation = self._situation
        self._path = situation.number("path", step.fields.get("path", "0")) % len(self._peer.paths)
        tclass = situation.number("tclass", step.fields.get("tclass", "0"))
        flow = self._peer.flow(self._peer.paths[self._path])
        self._fresh, self._taken, self._is_settled = len(self._peer.seen), set(), False
        if situation.is_prompt and ("delay" in step.fields or step.what == "NACK"):
            at_ns = situation.data_ns + situation.delay_ns(step)
            early_ns = at_ns - time.time_ns()
            if early_ns > 0:
                time.sleep(early_ns / 1e9)
            if at_ns > 0 and early_ns < -_LATE_NS:
                raise JudgeDelay
        for psn in situation.repeats(step):
            packet = situation.finished(step, situation.sent(step, psn, time.time_ns()), flow)
            self._send_packet(step, packet, tclass)
        situation.said_ns = time.time_ns()  # not before the packet has left

    def _send_packet(self, step: Step, packet: bytes, tclass: int) -> None:
        path = self._peer.paths[self._path]
        wrong = {name: self._situation.number(name, step.fields[name])
                 for name in packets.RAW_FIELDS if name in step.fields}  # fmt: skip
        if not wrong:
            self._peer.send(path, packet, tclass)
            return
        try:
            self._peer.send_raw(path, packet, tclass, wrong)
        except PermissionError:
            raise CaseSkip("headers of IP and UDP require CAP_NET_RAW: run as root") from None

    def _expect(self, step: Step) -> None:
        limit = step.fields.get("within")
        seconds = units.parse_short_time(limit) if limit else self._seconds
        until = time.monotonic() + seconds
        near = ""  # how the last packet of this kind differs
        at = self._fresh
        while True:
            while at < len(self._peer.seen):
                why = self._differs(step, at)
                if why == "":
                    self._taken.add(at)
                    # Not a request: the answer that it has got may still be on its way.
                    self._is_settled = step.what != "ENDPOINT_REQUEST"
                    return
                near = why or near
                at += 1
            if not self._receive(until):
                break
        came = "no packet came"
        if near:
            came = f"the last such packet differs: {near}; no other came"
        elif kinds := Counter(self._received()):
            told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            came = f"no such packet came, but {told}"
        raise StepFailure(f"{step.line}: {came} within {digits(seconds)} s")

    def _differs(self, step: Step, at: int) -> str | None:
        """How this packet differs from the expected one; None if the step cannot mean it: it is one
        of the judge, of another kind, or another step has it.
        """
        seen = self._peer.seen[at]
        if seen.sent or at in self._taken or not self._situation.is_of_kind(step, seen):
            return None
        if "EETH" in seen.packet.headers and seen.packet.headers["BTH"]["psn"] in self._peer.fences:
            return None  # the answer to a question of the judge, perhaps in an earlier case
        return self._situation.differs(step, seen)

    def _received(self) -> list[str]:
        """The kinds of what came since the judge sent something."""
        return [seen.packet.kind for seen in self._peer.seen[self._fresh :]
                if not seen.sent and "BTH" in seen.packet.headers]  # fmt: skip

    def _choose(self, choice: Choice) -> None:
        """Finds out which alternative the device follows."""
        end = self._fence()
        self._taken = set()
        for letter, step in choice.alternatives:
            found = any(self._differs(step, at) == "" for at in range(self._fresh, end))
            if found == (step.sign == "<"):
                if letter:
                    self._chosen.append(f"{choice.reading}-{letter}")
                return
        came = ", ".join(self._received()) or "nothing"
        raise StepFailure(
            f"{choice.line}: the device follows none of the alternatives: {came} came"
        )

    def _fence(self) -> int:
        """Waits until the device must have handled all that the judge sent: until it has answered
        a reliability probe. Returns the index of the first datagram behind the answer.
        """
        self._is_settled = True
        identity = self._rng.randrange(1 << 12, 1 << 16)
        fields = {"probe_id": identity, "dest_qpn": self._situation.device.qpn}
        self._control("PROBE", fields)
        at, until, asked = self._fresh, time.monotonic() + _DEAD_SECONDS, False
        while True:
            while at < len(self._peer.seen):
                packet = self._peer.seen[at].packet
                seth = packet.headers.get("SETH", {})
                if seth.get("pr") and seth["ack_psn_offset"] & 0xFFFF == identity:
                    return at
                if asked and packet.headers.get("BTH", {}).get("opcode") == 0xD9:
                    until = min(until, time.monotonic() + _DEAD_SECONDS)
                at += 1
            if self._receive(until):
                continue
            if asked:
                return len(self._peer.seen)
            self._peer.fences.add(identity)
            self._control("ENDPOINT_REQUEST", {"operation": 1, "dest_qpn": 2, "psn": identity})
            asked, until = True, time.monotonic() + self._seconds

    def _control(self, kind: str, fields: dict[str, int]) -> None:
        """Sends what belongs to no step, where the last step sent."""
        path = self._peer.paths[self._path]
        if not path.known:
            path = self._peer.paths[0]
        self._peer.send(path, finished(Packet.encode(kind, fields), self._peer.flow(path)))

    def _receive(self, until: float) -> bool:
        """Takes one datagram before that time. Answers endpoint requests."""
        seen = self._peer.receive(until)
        if seen is None:
            return False
        if why := self._situation.unsound(seen):
            raise StepFailure(f"a packet of the device {why}: {seen.packet.kind}")
        self._situation.note(seen)
        if self._limping is None:
            self._peer.answer(seen, self._situation.readings)
        else:
            self._limping.send(seen)
        return True

    def _receive_all(self, step: Step) -> None:
        """Answers the device until these PSNs have arrived over a network of which a part limps.
        From then on the judge answers nothing by itself.
        """
        situation, fields = self._situation, step.fields
        wanted = set(span(fields["psn"], situation.names))
        network = self._limping = FaultyPath(
            self._limps(step),
            int(units.parse_short_time(fields.get("late", "0s")) * 1e9),
            situation.number("loses", fields.get("loses", "0")),
            set(situation.reported),
        )
        for seen in self._peer.seen[self._fresh :]:
            network.send(seen)
        until = time.monotonic() + self._seconds
        while missing := wanted - network.received:
            for seen, delay_ns in network.arrivals(time.time_ns()):
                self._answer(step, network, seen, delay_ns)
            if missing - network.received < missing:
                until = time.monotonic() + self._seconds
            ahead_ns = (network.next_ns or 1 << 62) - time.time_ns()
            soon = time.monotonic() + max(0, ahead_ns) / 1e9
            if not self._receive(min(until, soon)) and time.monotonic() >= until:
                raise StepFailure(f"{step.line}: PSN {min(missing)} did not arrive")

    def _limps(self, step: Step) -> Callable[[Datagram], bool]:
        """Whether a packet takes the part that limps: the EV of a PSN, or a plane."""
        situation = self._situation
        if not step.fields.keys() & {"plane", "limps"}:
            return lambda seen: False
        if "plane" in step.fields:
            address = self._peer.addresses[situation.number("plane", step.fields["plane"]) - 1]
            return lambda seen: seen.flow.destination == address
        ev = situation.carried[situation.number("psn", step.fields["limps"])][0].ev
        return lambda seen: seen.flow.ev == ev

    def _answer(self, step: Step, network: FaultyPath, seen: Datagram, delay_ns: int) -> None:
        """What the receiver answers to a packet that has arrived. The device sees only the delay of
        the network: the judge's own time is taken out of the timestamp (G15-A).
        """
        situation, headers_ = self._situation, seen.packet.headers
        opcode = headers_.get("BTH", {}).get("opcode")
        psn = (
            after(headers_["BTH"]["psn"], situation.device.first_psn)
            if opcode in Packet.DATA
            else None
        )
        if psn is not None:
            network.received.add(psn)
        elif "PETH" not in headers_:
            self._peer.answer(seen, situation.readings)
            return
        told = network.report(psn)
        told |= {"for": psn} if psn is not None else {"probe_id": headers_["PETH"]["probe_id"]}
        stamp = headers_["TSETH" if psn is not None else "PETH"]["tx_timestamp"]
        situation.arrived = DevicePacket(seen.at_ns, seen.flow.ev, stamp)
        fields = {name: str(number) for name, number in told.items()}
        sack = Step(">", "SACK", fields | {"delay": f"{delay_ns // 1000}us"}, step.line)
        path = self._peer.paths[self._path]
        packet = situation.sent(sack, 0, time.time_ns())
        self._peer.send(path, situation.finished(sack, packet, self._peer.flow(path)))
        situation.arrived = None

    def _receive_rest(self) -> None:
        """Takes what comes without a pause."""
        while self._receive(time.monotonic() + _LATER_SECONDS):
            pass

    # ---- The device -----------------------------------------------------------------------

    def _write(self, step: Step) -> None:
        if not self._is_settled:  # an adapter can be quicker than the last packets
            self._fence()
        number = self._situation.number
        fields = {name: number(name, text) for name, text in step.fields.items()}
        self._fresh, self._taken = len(self._peer.seen), set()
        self._ask(WriteRequest(
            fields.get("at", 0), fields.get("bytes", 64), fields.get("fill", 0x22),
            fields.get("imm"), fields.get("count", 1),
        ))  # fmt: skip

    def _check(self, step: Step) -> None:
        """Compares what only the device can see; a device that cannot show it is not judged."""
        if not self._is_settled:
            self._fence()
        try:
            match step.what:
                case "memory":
                    self._check_memory(step)
                case "evs":  # at least so many carried the data of the device so far
                    evs = {each.ev for came in self._situation.carried.values() for each in came}
                    if len(evs) < value(step.words[0], self._situation.names):
                        raise StepFailure(f"{step.line}: the device has used {len(evs)}")
                case "flight":
                    self._check_flight(step)
                case "share":
                    self._check_share(step)
                case "waits":
                    self._check_waits(step)
                case "immediates":
                    self._check_immediates(step)
                case "completions":
                    ended = self._ask(Wait(self._seconds, completions=len(step.words)))
                    self._same(step, ended.completions)
                case _:
                    state = self._ask(Wait(self._seconds, state=step.words[0])).state
                    self._same(step, None if state is None else (state,))
        except CaseSkip as skipped:
            self.unchecked.append(f"{step.line}: {skipped}")

    def _ask(self, what: Ask) -> AdapterAnswer:
        return asked(self._device, what)

    def _check_memory(self, step: Step) -> None:
        number = self._situation.number
        at, count, filling = (number(name, step.fields[name]) for name in ("at", "bytes", "fill"))
        data = bytes.fromhex(self._ask(Memory(at, count)).data)
        if data != bytes([filling]) * count:
            wrong = next((i for i, byte in enumerate(data) if byte != filling), None)
            place = f"{len(data)} bytes came"
            if wrong is not None:
                place = f"byte {at + wrong} is {data[wrong]:#04x}"
            raise StepFailure(f"{step.line}: {place}")

    def _check_immediates(self, step: Step) -> None:
        """Values, or VALUE/BYTES."""
        names = self._situation.names
        wanted = tuple(
            tuple(value(each, names) for each in word.split("/")) for word in step.words
        )  # fmt: skip
        found = self._ask(Wait(self._seconds, immediates=len(wanted))).immediates
        if found is None:
            raise CaseSkip(f"the device cannot tell its {step.what}")
        cut = tuple(one[: len(other)] for one, other in zip(found, wanted, strict=False))
        if cut != wanted or len(found) != len(wanted):
            told = " ".join(f"{imm}/{count}" for imm, count in found)
            raise StepFailure(f"{step.line}: the device has {told or 'none'}")

    def _check_flight(self, step: Step) -> None:
        """So many packets of the device are without an answer, within the time for a packet."""
        wanted = span(step.words[0], self._situation.names)
        until = time.monotonic() + self._seconds
        while len(self._situation.flight) not in wanted and self._receive(until):
            pass
        self._receive_rest()
        if (found := len(self._situation.flight)) not in wanted:
            raise StepFailure(f"{step.line}: the device has {counted(found, 'packet')} in flight")

    def _check_share(self, step: Step) -> None:
        """The EV of a PSN carried at most so many percent of what the others carried on average."""
        number, carried = self._situation.number, self._situation.carried
        ev, since = carried[number("psn", step.fields["psn"])][0].ev, step.fields.get("since", "0")
        least = number("since", since)
        evs = Counter(each.ev for psn, came in carried.items() if psn >= least for each in came)
        found = evs.pop(ev, 0) * len(evs) * 100 // max(evs.total(), 1)
        if found not in span(step.words[0], self._situation.names):
            raise StepFailure(
                f"{step.line}: it has {found}% of the mean of {counted(len(evs), 'other EV')}"
            )

    def _check_waits(self, step: Step) -> None:
        """The device has waited longer and longer before it sent a packet again: the last time at
        least `growth` percent of the shortest time.
        """
        self._receive_rest()
        number = self._situation.number
        came = self._situation.carried.get(number("psn", step.fields["psn"]), [])
        times = sorted(each.at_ns for each in came)
        waits = [(later - earlier) / 1e6 for earlier, later in pairwise(times)]
        told = ", ".join(f"{wait:.1f} ms" for wait in waits) or "never"
        if len(waits) < 2 or waits[-1] * 100 < min(waits) * number("growth", step.fields["growth"]):
            raise StepFailure(f"{step.line}: the device has waited {told}")

    def _same(self, step: Step, found: tuple[str, ...] | None) -> None:
        if found is None:
            raise CaseSkip(f"the device cannot tell its {step.what}")
        if step.words != found:
            raise StepFailure(f"{step.line}: the device has {' '.join(found) or 'none'}")
