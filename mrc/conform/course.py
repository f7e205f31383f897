# SPDX-License-Identifier: Apache-2.0
"""How a sender went on over time: its flight, round trips, and what it did after losses and marks.
Pure.

A reaction is the least flight within some round trips after the news, relative to the flight at the
news: 1 means that the sender went on as before, 0.5 that it had half as much in flight.
"""

from __future__ import annotations

from statistics import median

from msgspec import Struct, field

MOST_SAMPLES = 4000  # of each curve; then every second one is dropped
_ROUNDS = 4  # round trips in which a reaction must show
_LEAST_FLIGHT = 4  # PSNs: a smaller flight cannot show a reaction


class Curve(Struct):
    """Samples over time; of many, evenly chosen ones."""

    samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and value."""
    every: int = 1
    _left: int = 0

    def add(self, seconds: float, value: float) -> None:
        self._left -= 1
        if self._left > 0:
            return
        self._left = self.every
        self.samples.append((seconds, value))
        if len(self.samples) >= MOST_SAMPLES:
            del self.samples[1::2]
            self.every *= 2


class News(Struct):
    """A loss or a mark that the sender learned of, and the flight since then."""

    kind: str
    """loss, trim or mark."""
    seconds: float
    flight: int
    least: int


class Course(Struct):
    """Of one direction of a QP."""

    flight: Curve = field(default_factory=Curve)
    """PSNs between the cumulative PSN and the highest one sent."""
    round_trips: Curve = field(default_factory=Curve)
    """Seconds from a packet to its SACK."""
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
        self.flight.add(seconds, psns)
        late = seconds - _ROUNDS * self._round_trip
        for news in [each for each in self._open if each.seconds < late]:
            self._open.remove(news)
            self.reactions.setdefault(news.kind, []).append(news.least / news.flight)
        for news in self._open:
            news.least = min(news.least, psns)

    def on_round_trip(self, seconds: float, took: float) -> None:
        self._round_trip = took if not self._round_trip else (7 * self._round_trip + took) / 8
        self.round_trips.add(seconds, took)

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
