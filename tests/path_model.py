# SPDX-License-Identifier: Apache-2.0
"""A model of the paths between two hosts, for the proof of paths in virtual time.

Packets on one path keep their order. Hosts stall: while a host does, it neither answers nor looks
at answers, and all that waits comes at once afterwards. Answers return on any EV of the plane that
lives: the engine answers on a path that was proven (test_ev.c).
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from mrc.connect.proof import PEER, Ask, Prover

SMALL = 16


@dataclass
class Ev:
    limit: int  # the payload that it carries; 0: it is dead
    plane: int = 1
    delay: float = 0.0005
    jitter: float = 0.0
    loss: float = 0.0  # in each direction
    icmp: bool = False  # a router tells what is too large, and the kernel tells the wrong probe
    address: Hashable = None
    arrived: list[float] = field(default_factory=lambda: [0.0, 0.0])  # the last, by direction

    def carry(self, rng: Random, now: float, way: int) -> float | None:
        """When a packet sent now arrives; None: never."""
        if rng.random() < self.loss:
            return None
        self.arrived[way] = max(self.arrived[way], now + self.delay + rng.random() * self.jitter)
        return self.arrived[way]


@dataclass
class Host:
    stalls: Sequence[tuple[float, float]] = ()

    def runs(self, at: float) -> float:
        """The first time from `at` on at which the host runs."""
        for begin, end in self.stalls:
            if begin <= at < end:
                at = end
        return at


class Run:
    """Runs a prover over the EVs until it is done, or until `most` seconds have passed."""

    def __init__(
        self, evs: Sequence[Ev], agreed: int, rng: Random | None = None, *,
        here: Host | None = None, there: Host | None = None, allowance: int = 0,
        rtt: float = 0.0, most: float = 120.0, full_until: float = 0.0, tcp: Ev | None = None,
    ) -> None:  # fmt: skip
        self.evs, self.rng = evs, rng or Random(1)
        self._here, self._there = here or Host(), there or Host()
        self._full_until = full_until
        self._tcp = tcp
        self.asked: list[tuple[float, Ask]] = []
        self.bytes = 0
        self._coming: list[tuple[float, int, Ask, int, float]] = []  # number, errno, round trip
        self._order = count()
        self._ended: set[int] = set()
        self.prover = Prover(
            [ev.address for ev in evs], [ev.plane for ev in evs], agreed,
            allowance=allowance, rtt=rtt, asks_peer=tcp is not None,
        )  # fmt: skip
        self.seconds = self._run(most)
        self.carried = self.prover.carried

    def tries(self, index: int) -> list[int]:
        return [ask.payload for _, ask in self.asked if ask.index == index]

    def _run(self, most: float) -> float:
        now = self._here.runs(0.0)
        while True:
            # After a stall the timer of the prover may be seen before the answers are.
            asks = self.prover.advance(now) if self.rng.random() < 0.3 else []
            self._receive(now)
            asks += self.prover.advance(now)
            for ask in asks:
                self._send(ask, now)
            if self.prover.done or now > most:
                return now
            due = [self.prover.deadline, *(self._coming[0][:1] if self._coming else ())]
            now = self._here.runs(max(now, min(due)))

    def _receive(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            _, _, ask, error, sent = heapq.heappop(self._coming)
            if ask.number in self._ended:
                continue
            self._ended.add(ask.number)
            if error:
                self.prover.on_failure(ask.number, error)
            else:
                self.prover.on_answer(ask.number, now - sent, now)

    def _send(self, ask: Ask, now: float) -> None:
        if ask.index == PEER:
            self._send_over_tcp(ask, now)
            return
        self.asked.append((now, ask))
        self.bytes += ask.payload or SMALL
        if now < self._full_until:
            self.prover.on_refusal(ask.number, now)
            return
        ev, rng = self.evs[ask.index], self.rng
        self._comes(now + ask.timeout, ask, errno.ETIMEDOUT, now)
        if max(ask.payload, SMALL) > ev.limit:
            if ev.icmp and ev.limit and rng.random() < 0.5:
                self._comes(now + ev.delay, ask, errno.EMSGSIZE, now)
            return
        if ev.icmp and rng.random() < 0.02:
            self._comes(now, ask, errno.EMSGSIZE, now)
            return
        there = ev.carry(rng, now, 0)
        if there is None:
            return
        there = self._there.runs(there)
        back = rng.choice([each for each in self.evs if each.plane == ev.plane and each.limit])
        here = back.carry(rng, there, 1)
        if here is not None and self._here.runs(here) <= now + ask.timeout:
            self._comes(here, ask, 0, now)

    def _send_over_tcp(self, ask: Ask, now: float) -> None:
        """A question, and its answer, get there unless TCP is silent too."""
        assert self._tcp is not None
        if self._tcp.limit:
            there = self._there.runs(now + self._tcp.delay)
            self._comes(there + self._tcp.delay, ask, 0, now)

    def _comes(self, at: float, ask: Ask, error: int, sent: float) -> None:
        heapq.heappush(self._coming, (at, next(self._order), ask, error, sent))
