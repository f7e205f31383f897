# SPDX-License-Identifier: Apache-2.0
"""Which connection gives its place to a newcomer.

An honest peer speaks at once and answers each message after a round trip, so the one whose last
message is the oldest goes. But a flood can be faster than an honest peer that is far away. So the
source with the most places pays first, and among sources that have as many, the network. No
rate of connections from few sources, or from one network, takes the only place of another peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

_GRACE_SECONDS = 0.1  # the first message of a new connection may still be unread


class Held(Protocol):
    """A place that can be taken away."""

    source: str
    network: str
    silent: bool
    """the peer has said nothing yet"""
    since: float
    """when it came, or sent its last message"""


H = TypeVar("H", bound=Held)
_source, _network, _since = map(attrgetter, ("source", "network", "since"))


def victim(places: Sequence[H], now: float) -> H:
    """The place to take away, of at least one; the newcomer's own is the last of `places`."""
    old = now - _GRACE_SECONDS
    found = [each for each in places if each.silent and each.since <= old] or list(places)
    of_source = Counter(map(_source, found))
    most = max(of_source.values())
    found = [each for each in found if of_source[each.source] == most]
    network, count = Counter(map(_network, found)).most_common(1)[0]
    if count > len(found) / 2:
        found = [each for each in found if each.network == network]
    return min(found, key=_since)
