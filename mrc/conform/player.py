# SPDX-License-Identifier: Apache-2.0
"""Plays cases against a device, and gives a verdict on each."""

from __future__ import annotations

import random
import time
from enum import StrEnum

from msgspec import Struct, field

from mrc.conform.adapter import (
    AdapterError,
    Answer,
    Ask,
    Attach,
    Completions,
    Device,
    End,
    Immediates,
    Memory,
    State,
    Write,
)
from mrc.conform.build import finished, headers
from mrc.conform.case import Case, Choice, Step
from mrc.conform.numbers import value
from mrc.conform.peer import Peer
from mrc.conform.seen import Seen
from mrc.conform.situation import Situation
from mrc.dissect.formats import OPERATIONS
from mrc.enums import Reading
from mrc.units import parse_short_time

OWN_MEMORY = 0x10_0000_0000  # addresses of memory that the judge does not really have
OWN_RKEY = 0x5EED
OWN_BYTES = 1 << 20
MEMORY_BYTES = 1 << 20
_DEAD_SECONDS = 0.05  # a QP that has failed answers no probe; its endpoint answers


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(Struct):
    """The verdict on one case."""

    case: Case
    verdict: Verdict
    reason: str = ""
    """Of a failed case, the step and what came instead; of a skipped one, what the device lacks."""
    readings: tuple[str, ...] = ()
    """The readings with which the device agrees; the case assumed or found them."""
    unchecked: tuple[str, ...] = ()
    """Steps that the device cannot be asked about."""
    seconds: float = 0.0
    seen: list[Seen] = field(default_factory=list)


class _Failed(Exception):
    """The device did not do what a step says."""


class _Skipped(Exception):
    """The device lacks what the case needs."""


class Player:
    """Plays one case after the other, each on a QP of its own."""

    def __init__(
        self, peer: Peer, device: Device, readings: Reading = Reading.OURS, *,
        seconds: float = 2.0, seed: int | None = None,
    ) -> None:  # fmt: skip
        """`readings`: those that the judge's answers follow. `seconds`: how long a step waits for a
        packet unless it says so itself.
        """
        self._peer, self._device, self._seconds = peer, device, seconds
        self._readings = readings
        self.is_lost = False
        """The device cannot be asked any more: no case can follow."""
        self._former: End | None = None  # the device's end of the case before
        self._qpns: set[int] = set()  # of the judge, in all cases before
        self._rng = random.Random(seed)

    def play(self, case: Case) -> Outcome:
        """The verdict."""
        outcome = Outcome(case, Verdict.PASSED)
        start = time.monotonic()
        try:
            play = _Play(self._peer, self._device, case, self._rng, self._seconds, outcome)
            situation = play.attach()
            situation.swaps = Reading.C3_B in self._readings
            situation.former = self._qpns - {situation.own.qpn}
            former, self._former = self._former, situation.device
            situation.names["old_va"] = former.va if former else 0
            situation.names["old_rkey"] = former.rkey if former else 0
            self._qpns.add(situation.own.qpn)
            play.run()
        except _Failed as error:
            outcome.verdict, outcome.reason = Verdict.FAILED, str(error)
        except _Skipped as error:
            outcome.verdict, outcome.reason = Verdict.SKIPPED, str(error)
        except AdapterError as error:
            outcome.verdict, outcome.reason = Verdict.FAILED, str(error)
            self.is_lost = True
        outcome.seconds = time.monotonic() - start
        outcome.seen = self._peer.seen
        if outcome.verdict is Verdict.PASSED:
            outcome.readings = (*case.readings, *outcome.readings)
        return outcome


class _Play:
    """One case while it is played."""

    def __init__(
        self, peer: Peer, device: Device, case: Case, rng: random.Random, seconds: float,
        outcome: Outcome,
    ) -> None:  # fmt: skip
        self._peer, self._device, self._case = peer, device, case
        self._rng, self._seconds, self._outcome = rng, seconds, outcome
        self._fresh = 0  # index of the first datagram since the last packet of the judge
        self._taken: set[int] = set()  # datagrams that a step has matched
        self._path = 0
        self._is_settled = True  # the device has handled what the judge sent

    def run(self) -> None:
        """All steps."""
        for each in self._case.steps:
            if isinstance(each, Choice):
                self._choose(each)
            else:
                self._take(each)
        if self._situation.halves:
            self._outcome.readings += (self._situation.halves,)

    def attach(self) -> Situation:
        """Connects the QP of this case."""
        psn, device_psn = self._case.psn, self._case.device_psn
        own = End(
            qpn=self._rng.randrange(3, 1 << 24),
            first_psn=value(psn, {}) % (1 << 24) if psn else self._rng.randrange(1 << 24),
            path_mtu=1024, mpr=1024, max_wimm=32, udp_port=self._peer.udp_port,
            ports=self._peer.ports, va=OWN_MEMORY, rkey=OWN_RKEY, memory_bytes=OWN_BYTES,
        )  # fmt: skip
        wanted = value(device_psn, {}) % (1 << 24) if device_psn else None
        device = self._ask(Attach(own, wanted, MEMORY_BYTES)).end
        if device is None:
            raise AdapterError("the adapter's answer to attach has no attributes")
        if wanted not in (None, device.first_psn):
            raise _Skipped("the device chooses its first PSN itself")
        if "memory" in self._case.needs and not device.memory_bytes:
            raise _Skipped("the device has no memory to write to")
        if "planes" in self._case.needs and min(len(own.ports), len(device.ports)) < 2:
            raise _Skipped("judge and device have one plane; give --address twice")
        self._peer.aim([port.address for port in device.ports], device.udp_port)
        evs = [self._peer.flow(path).ev for path in self._peer.paths]
        self._situation = Situation(own, device, evs)
        return self._situation

    def _ask(self, what: Ask) -> Answer:
        answer = self._device.ask(what)
        if answer.cannot:
            raise _Skipped(answer.cannot)
        return answer

    def _take(self, step: Step) -> None:
        match step.sign:
            case ">":
                self._send(step)
            case "<":
                self._expect(step)
            case "!":
                self._forbid(step)
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
        for psn in situation.repeats(step):
            body = situation.sent(step, psn)
            packet = finished(body, flow)
            if step.fields.get("icrc") == "wrong":
                packet = packet[:-1] + bytes([packet[-1] ^ 1])
            self._peer.send(self._peer.paths[self._path], situation.ending(step, packet), tclass)

    def _expect(self, step: Step) -> None:
        limit = step.fields.get("within")
        seconds = parse_short_time(limit) if limit else self._seconds
        until = time.monotonic() + seconds
        near: list[str] = []
        at = self._fresh
        while True:
            while at < len(self._peer.seen):
                if (why := self._differs(step, at)) == "":
                    self._taken.add(at)
                    self._is_settled = True
                    return
                if why is not None and not why.startswith("it is "):
                    near.append(why)
                at += 1
            if not self._receive(until):
                break
        raise _Failed(f"{step.line}: {_nearest(near, self._received())} within {seconds:g} s")

    def _differs(self, step: Step, at: int) -> str | None:
        """As of Situation; None for a datagram of the judge, or one that another step has."""
        seen = self._peer.seen[at]
        if seen.sent or at in self._taken:
            return None
        return self._situation.differs(step, seen)

    def _received(self) -> list[str]:
        """The kinds of what came since the judge sent something."""
        return [seen.packet.kind for seen in self._peer.seen[self._fresh :]
                if not seen.sent and "BTH" in seen.packet.headers]  # fmt: skip

    def _forbid(self, step: Step) -> None:
        for at in range(self._fresh, self._fence()):
            if self._differs(step, at) == "":
                raise _Failed(f"{step.line}: the device sent one")

    def _choose(self, choice: Choice) -> None:
        """Finds out which alternative the device follows."""
        end = self._fence()
        self._taken = set()
        for letter, step in choice.alternatives:
            found = any(self._differs(step, at) == "" for at in range(self._fresh, end))
            if found == (step.sign == "<"):
                self._outcome.readings += (f"{choice.reading}-{letter}",)
                return
        came = ", ".join(self._received()) or "nothing"
        raise _Failed(f"{choice.line}: the device follows none of the alternatives: {came} came")

    def _fence(self) -> int:
        """Waits until the device must have handled all that the judge sent: until it has answered
        a reliability probe. Returns the index of the first datagram behind the answer.
        """
        self._is_settled = True
        identity = self._rng.randrange(1, 1 << 16)
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
            self._control("ENDPOINT_REQUEST", {"operation": 1, "dest_qpn": 2, "psn": identity})
            asked, until = True, time.monotonic() + self._seconds

    def _control(self, kind: str, fields: dict[str, int]) -> None:
        """Sends what belongs to no step, where the last step sent."""
        path = self._peer.paths[self._path]
        if not path.known:
            path = self._peer.paths[0]
        self._peer.send(path, finished(headers(kind, fields), self._peer.flow(path)))

    def _receive(self, until: float) -> bool:
        """Takes one datagram before that time. Answers endpoint requests, as each peer must."""
        seen = self._peer.receive(until)
        if seen is None:
            return False
        if why := self._situation.unsound(seen.packet):
            raise _Failed(f"a packet of the device {why}: {seen.packet.kind}")
        self._situation.note(seen)
        erth = seen.packet.headers.get("ERTH")
        if erth is not None and erth["operation"] in OPERATIONS:
            bth = seen.packet.headers["BTH"]
            fields = {
                "operation": erth["operation"], "tx_timestamp": erth["tx_timestamp"],
                "psn": bth["psn"], "dest_qpn": 2,
            }  # fmt: skip
            path = next((each for each in self._peer.paths
                         if each.source == seen.flow.destination), self._peer.paths[0])  # fmt: skip
            packet = finished(headers("ENDPOINT_RESPONSE", fields), self._peer.flow(path))
            self._peer.send(path, packet)
        return True

    # ---- The device -----------------------------------------------------------------------

    def _write(self, step: Step) -> None:
        number = self._situation.number
        fields = {name: number(name, text) for name, text in step.fields.items()}
        self._fresh, self._taken = len(self._peer.seen), set()
        self._ask(Write(
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
                case "immediates":
                    self._check_immediates(step)
                case "evs":
                    self._check_evs(step)
                case "completions":
                    asked = Completions(len(step.words), self._seconds)
                    self._same(step, step.words, self._ask(asked).completions)
                case _:
                    asked_state = State(step.words[0], self._seconds)
                    self._same(step, step.words, (self._ask(asked_state).state,))
        except _Skipped as skipped:
            self._outcome.unchecked += (f"{step.line}: {skipped}",)

    def _check_memory(self, step: Step) -> None:
        number = self._situation.number
        at, count, filling = (number(name, step.fields[name]) for name in ("at", "bytes", "fill"))
        data = bytes.fromhex(self._ask(Memory(at, count)).data)
        if data != bytes([filling]) * count:
            wrong = next((i for i, byte in enumerate(data) if byte != filling), None)
            place = f"{len(data)} bytes came"
            if wrong is not None:
                place = f"byte {at + wrong} is {data[wrong]:#04x}"
            raise _Failed(f"{step.line}: {place}")

    def _check_immediates(self, step: Step) -> None:
        """Values, or VALUE/BYTES."""
        names = self._situation.names
        wanted = tuple(
            tuple(value(each, names) for each in word.split("/")) for word in step.words
        )  # fmt: skip
        answer = self._ask(Immediates(len(wanted), self._seconds))
        found = tuple(zip(answer.immediates, answer.immediate_bytes, strict=True))
        cut = tuple(one[: len(other)] for one, other in zip(found, wanted, strict=False))
        if cut != wanted or len(found) != len(wanted):
            told = " ".join(f"{imm}/{count}" for imm, count in found)
            raise _Failed(f"{step.line}: the device has {told or 'none'}")

    def _check_evs(self, step: Step) -> None:
        """At least so many EVs carried the data of the device so far."""
        least = value(step.words[0], self._situation.names)
        evs = set().union(*self._situation.carried.values())
        if len(evs) < least:
            raise _Failed(f"{step.line}: the device has used {len(evs)}")

    def _same(self, step: Step, wanted: tuple[object, ...], found: tuple[object, ...]) -> None:
        if wanted != found:
            raise _Failed(f"{step.line}: the device has {' '.join(map(str, found)) or 'none'}")


def _nearest(near: list[str], kinds: list[str]) -> str:
    """Why no packet was the expected one."""
    if near:
        return f"the last such packet differs: {near[-1]}; no other came"
    if kinds:
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return f"no such packet came, but {counted}"
    return "no packet came"
