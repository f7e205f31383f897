# SPDX-License-Identifier: Apache-2.0
"""Plays cases against a device, and gives a verdict on each."""

from __future__ import annotations

import random
import time
from enum import StrEnum

from msgspec import Struct, field

from mrc.conform.adapter import AdapterError, Attach, Device, End
from mrc.conform.case import Case
from mrc.conform.numbers import PSNS, value
from mrc.conform.packets import Datagram
from mrc.conform.peer import Peer
from mrc.conform.play import Failed, Late, Play, Skipped, asked
from mrc.conform.situation import Situation
from mrc.enums import Reading
from mrc.units import counted

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


class Outcome(Struct):
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
        self._qpns: set[int] = set()  # of the judge, in all cases so far
        self._rng = random.Random(seed)

    def play(self, case: Case) -> Outcome:
        """The verdict."""
        outcome = Outcome(case)
        start = time.monotonic()
        try:
            play = self._played(case)
            outcome.readings = (*case.readings, *play.readings)
            outcome.unchecked = tuple(play.unchecked)
        except Failed as error:
            outcome.verdict, outcome.reason = Verdict.FAILED, str(error)
        except Skipped as error:
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
            except Late:
                continue
            return play
        raise Skipped("this host is too busy: the judge's answers were late each time")

    def _attach(self, case: Case) -> Situation:
        """Connects the QP of a case."""
        peer = {name: value(text, {}) for name, text in case.peer.items()}
        own = End(
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
            raise Skipped("the device chooses its first PSN itself")
        if case.writes and not device.memory_bytes:
            raise Skipped("the device has no memory to write to")
        if own.dynamic_mpr and not device.dynamic_mpr:
            raise Skipped("the device cannot change its window")
        if "planes" in case.needs and min(len(own.ports), len(device.ports)) < 2:
            raise Skipped("judge and device have one plane; give --address twice")
        if "psns" in case.needs and device.mpr <= _MANY_PSNS:
            raise Skipped(
                f"the device grants {counted(device.mpr, 'PSN')}, not more than {_MANY_PSNS}"
            )
        if "ipv4" in case.needs and self._peer.addresses[0].version != 4:
            raise Skipped("the judge has no IPv4 address")
        self._peer.aim([port.address for port in device.ports], device.udp_port)
        situation = Situation(
            own, device, [self._peer.flow(path).ev for path in self._peer.paths],
            {"old_va": former.va, "old_rkey": former.rkey},
            former=self._qpns - {own.qpn}, readings=self._readings,
            is_prompt=bool(case.nscc) or case.timeout > 0,
        )  # fmt: skip
        self._qpns.add(own.qpn)
        return situation
