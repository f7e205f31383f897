# SPDX-License-Identifier: Apache-2.0
"""Limits the attempts of strangers to prove themselves: each costs about a millisecond, for TLS.

Token buckets: an attempt takes a token of its source, and that of a source which is not known also
one of its network and one of the host. A peer that proves itself gets them back, so honest peers do
not run out of them, however many they are.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from mrc.errors import BusyError

_SOURCE_PER_SECOND = 1.0
_NETWORK, _NETWORK_PER_SECOND = 384.0, 192.0
_HOST, _HOST_PER_SECOND = 512.0, 256.0
_MOST_BUCKETS = 4096  # of each kind; the one that was used least recently makes way


class _Bucket(Struct):
    tokens: float
    at: float


class Buckets:
    """Token buckets by name, each full at first: `most` tokens, `per_second` more."""

    def __init__(self, most: float, per_second: float) -> None:
        self._most, self._per_second = most, per_second
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def has(self, name: str, now: float) -> bool:
        """Whether there is a token."""
        return self._filled(name, now) >= 1

    def change(self, name: str, by: float, now: float) -> None:
        """Takes tokens out, or puts them back as far as there is room."""
        tokens = self._filled(name, now) + by
        self._buckets.pop(name, None)
        if tokens < self._most:  # full ones are not kept
            self._buckets[name] = _Bucket(tokens, now)
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)

    def _filled(self, name: str, now: float) -> float:
        if (bucket := self._buckets.get(name)) is None:
            return self._most
        return min(self._most, bucket.tokens + (now - bucket.at) * self._per_second)


class Attempts:
    """The buckets of a host. `at_once`: attempts that a source may begin without a pause."""

    def __init__(self, at_once: int) -> None:
        self._of_source = Buckets(at_once, _SOURCE_PER_SECOND)
        self._of_network = Buckets(_NETWORK, _NETWORK_PER_SECOND)
        self._of_host = Buckets(_HOST, _HOST_PER_SECOND)

    def check(self, source: str, network: str, *, known: bool, now: float) -> None:
        """Raises BusyError if a token is missing for an attempt."""
        for buckets, name in self._needed(source, network, known=known):
            if not buckets.has(name, now):
                whose = f"from {name}" if name else "here"
                raise BusyError(f"too many attempts {whose} led to no proof: try again later")

    def begin(self, source: str, network: str, *, known: bool, now: float) -> Tokens:
        """Takes the tokens of an attempt; raises as `check`."""
        self.check(source, network, known=known, now=now)
        tokens = Tokens(self._needed(source, network, known=known))
        tokens.change(-1, now)
        return tokens

    def _needed(self, source: str, network: str, *, known: bool) -> list[tuple[Buckets, str]]:
        mine = [(self._of_source, source)]
        return mine if known else [*mine, (self._of_network, network), (self._of_host, "")]


class Tokens:
    """What one attempt has taken."""

    def __init__(self, taken: list[tuple[Buckets, str]]) -> None:
        self.taken = taken

    def give_back(self, now: float) -> None:
        """The peer has proved itself. Safe to call twice."""
        self.change(1, now)
        self.taken = []

    def change(self, by: float, now: float) -> None:
        for buckets, name in self.taken:
            buckets.change(name, by, now)
