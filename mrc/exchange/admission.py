# SPDX-License-Identifier: Apache-2.0
"""Limits connections by source, so that strangers cannot take all places.

Each TCP connection of the exchange holds one place from its arrival to its end, through the stages
of `Stage`. A connection is a stranger's until its source has proved itself once.
"""

from __future__ import annotations

import logging
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum, auto

from msgspec import Struct

from mrc.errors import BusyError, ConfigError, ConnectError
from mrc.exchange.attempts import Attempts, Tokens
from mrc.exchange.eviction import victim
from mrc.exchange.sources import KnownSources, network_of, source_of
from mrc.fabric.hostconfig import IpAddress, parse_address
from mrc.fabric.paths import PeerSource
from mrc.units import counted

logger = logging.getLogger("mrc.admission")

_STRANGERS_PART = 4  # one of so many places is for strangers, however many others connect
_LEAST_FILES = 64  # that a process can open
_FIRST_FILES = 32  # of its loop, sockets and modules
_KEPT_BACK = 64  # file descriptors that peers cannot take: the process needs them for other uses


class Limits(Struct, frozen=True):
    """The most places of each kind."""

    pending: int  # connecting, or connected and not accepted yet
    pending_per_source: int  # connecting
    qps: int  # the last quarter is only for sources without a QP
    qps_per_source: int


class Stage(Enum):
    """Progress of a connection."""

    CONNECTING = auto()
    READY = auto()  # connected, not accepted by the caller yet
    ACCEPTED = auto()
    GONE = auto()


PENDING = (Stage.CONNECTING, Stage.READY)


class Place(Struct, eq=False):
    """The place of one connection. `leave` at any time; the times are in seconds."""

    admission: Admission
    source: str
    network: str
    drop: Callable[[], None]
    since: float
    """when it came, or sent its last message"""
    known: bool
    """its source has proved itself before"""
    stage: Stage = Stage.CONNECTING
    silent: bool = True
    """no message has arrived"""
    tokens: Tokens | None = None
    """what its attempt has taken"""

    def hear(self, now: float) -> None:
        """A message has arrived."""
        self.since, self.silent = now, False

    def attempt(self, now: float) -> None:
        """The peer wants TLS. Raises BusyError after too many attempts of its source."""
        self.tokens = self.admission.begin_attempt(self, now)

    def prove(self, now: float) -> None:
        """The peer has proved that it may connect."""
        self.admission.know(self.source)
        if self.tokens is not None:
            self.tokens.give_back(now)

    def connect(self, now: float) -> None:
        """The exchange is complete, which proves as much where nothing else does."""
        self.prove(now)
        self.admission.move(self, Stage.READY)

    def accept(self) -> None:
        """The caller has taken the QP."""
        self.admission.move(self, Stage.ACCEPTED)

    def leave(self) -> None:
        """The connection has ended. Safe to call twice."""
        self.admission.move(self, Stage.GONE)


class Admission:
    """Assigns the places of a Context.

    `descriptors` returns how many files this process may have open; 0: any number.
    """

    def __init__(self, limits: Limits, *, descriptors: Callable[[], int]) -> None:
        self._limits = limits
        self._descriptors = descriptors
        self._descriptors_ran_out = False
        self._of: dict[Stage, list[Place]] = {stage: [] for stage in PENDING}
        self._connecting: Counter[str] = Counter()  # by source
        self._connected: Counter[str] = Counter()
        self._known = KnownSources()
        self._attempts = Attempts(limits.pending_per_source)

    @property
    def pending(self) -> int:
        """Number of peers that connect or wait to be accepted."""
        return sum(map(len, self._of.values()))

    def enter(
        self, address: str, descriptor: int, drop: Callable[[], None], *, now: float
    ) -> Place:
        """Returns a place for a connection from `address`, at the time `now` in seconds.

        Raises ConnectError, or BusyError if a retry can help. May evict another connection: this
        calls the other connection's `drop`, which must not block.
        """
        source = source_of(address)
        self._check_descriptors(descriptor)
        self._check_source(source)
        network, known = network_of(address), source in self._known
        self._attempts.check(source, network, known=known, now=now)
        place = Place(self, source, network, drop, now, known)
        if self.pending >= self._limits.pending:
            self._make_room(place, now)
        self._count(place, 1)
        return place

    def _make_room(self, newcomer: Place, now: float) -> None:
        """Evicts a stranger. While they have few places, others who connect make way."""
        connecting = [*self._of[Stage.CONNECTING], newcomer]
        known = [each for each in connecting if each.known]
        strangers = [each for each in connecting if not each.known]
        few = len(strangers) <= self._limits.pending // _STRANGERS_PART
        evicted = victim(known if known and few else strangers or known, now)
        if evicted is newcomer:
            raise BusyError("too many peers are connecting: try again later")
        evicted.leave()
        evicted.drop()

    def begin_attempt(self, place: Place, now: float) -> Tokens:
        """For Place."""
        return self._attempts.begin(place.source, place.network, known=place.known, now=now)

    def know(self, source: str) -> None:
        """For Place: from now on its connections are no stranger's."""
        self._known.add(source)
        for place in self._of[Stage.CONNECTING]:
            place.known |= place.source == source

    def move(self, place: Place, stage: Stage) -> None:
        """For Place."""
        if place.stage is not Stage.GONE:
            self._count(place, -1)
            place.stage = stage
            self._count(place, 1)

    def _count(self, place: Place, by: int) -> None:
        if place.stage is Stage.GONE:
            return
        if (places := self._of.get(place.stage)) is not None:
            (places.append if by > 0 else places.remove)(place)
        of_source = self._connecting if place.stage is Stage.CONNECTING else self._connected
        of_source[place.source] += by
        if not of_source[place.source]:
            del of_source[place.source]  # otherwise addresses of strangers would fill the memory

    def _check_source(self, source: str) -> None:
        connecting, qps = self._connecting[source], self._connected[source]
        most = self._limits.qps_per_source
        if qps >= most:
            raise ConnectError(
                f"{source} has {counted(qps, 'QP')} here, the limit (max_qps_per_source)"
            )
        if qps and sum(self._connected.values()) >= self._limits.qps * 3 // 4:
            raise ConnectError(
                f"the remaining QPs here are for sources without a QP; {source} has {qps}"
            )
        if connecting >= min(self._limits.pending_per_source, most - qps):
            raise BusyError(
                f"already connecting from {source}: {counted(connecting, 'peer')}: try again"
            )

    def _check_descriptors(self, descriptor: int) -> None:
        """The kernel assigns the lowest free number, so a high `descriptor` means few are free."""
        most = self._descriptors()
        if not most or descriptor < most - min(_KEPT_BACK, most // 4):
            self._descriptors_ran_out = False
            return
        if not self._descriptors_ran_out:
            self._descriptors_ran_out = True
            logger.warning(
                "%d of %d file descriptors are in use: new peers are refused; raise the limit"
                " (ulimit -n)", descriptor, most,
            )  # fmt: skip
        raise BusyError("no file descriptors are left for peers: try again later")


class Claims:
    """The owner of each UDP source, so that no peer can claim the packets of another peer.

    The identity of a peer is the address of its TCP connection and the addresses it has proved.
    """

    def __init__(self) -> None:
        # A peer's QPs mostly have the same sources, so each identity is here once, with its claims.
        self._owners: dict[PeerSource, Counter[frozenset[IpAddress]]] = {}

    def check(self, peer: str, sources: Iterable[PeerSource]) -> None:
        """Raises ConnectError when another peer owns one of `sources`. `peer`: a TCP address."""
        address = parse_address(peer)
        for source in sources:
            for known in self._owners.get(source, ()):
                if address not in known:
                    named = f"UDP port {source.sport} of {source.address}"
                    raise ConnectError(f"{named} belongs to another peer than {peer}")

    def take(self, peer: str, sources: Iterable[PeerSource]) -> Callable[[], None]:
        """Assigns proved sources to the peer; returns a function that releases them."""
        proved = tuple(sources)
        known = frozenset({parse_address(peer), *(source.address for source in proved)})
        for source in proved:
            self._owners.setdefault(source, Counter())[known] += 1

        def give_back() -> None:
            for source in proved:
                owners = self._owners[source]
                owners[known] -= 1
                if not owners[known]:
                    del owners[known]
                if not owners:
                    del self._owners[source]

        return give_back


def descriptor_limit() -> int:
    """How many files this process may have open; 0: any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, soft)


def raise_descriptor_limit() -> None:
    """Raises this process's limit of open files to the hard limit: each peer needs one file.

    Raises ConfigError if even that is too low to begin.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _LEAST_FILES:
        raise ConfigError(
            f"at most {counted(hard, 'open file')} (ulimit -Hn): mrc needs {_LEAST_FILES}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _try_descriptors()


def _try_descriptors() -> None:
    """Raises ConfigError if this process cannot open the files it needs to begin: whoever started
    it may have left most of its descriptors open. libuv aborts when it lacks one.
    """
    opened: list[int] = []
    try:
        while len(opened) < _FIRST_FILES:
            opened.append(os.eventfd(0))  # needs no file: /dev/null may be missing
    except OSError as error:
        why = str(error.strerror).lower()
        raise ConfigError(f"{why}: mrc needs {_FIRST_FILES} more to begin (ulimit -n)") from error
    finally:
        for each in opened:
            os.close(each)
