# SPDX-License-Identifier: Apache-2.0
"""Admission: which connections a host takes, so that strangers cannot take all places.

Each TCP connection of the exchange holds one place from its arrival to its end, through the stages
of `Stage`. A connection is a stranger's until its source has proved itself once. When all places
are taken, a newcomer costs another connection its place (`victim`). Beside places this limits
attempts to prove oneself (`Attempts`), the connections of servers beside the exchange (`Visits`),
the memory for peers (`Budget`) and who sends from which address (`Claims`).

A source is an IPv4 address or an IPv6 /64: what one host has for itself. Its network is the IPv4
/16 or the IPv6 /48: what one attacker may have as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import sys
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from inspect import isawaitable
from ipaddress import IPv4Address
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from mrc.connect.parse import parse_address
from mrc.engine.paths import PeerSource
from mrc.errors import BusyError, ConnectError, MrcError, reason_of
from mrc.fabric.hostconfig import IpAddress
from mrc.tasks import cancelled, took_cancellation
from mrc.units import counted

if TYPE_CHECKING:
    from mrc.config import Limits
    from mrc.connect.oob import Channel, Peer

logger = logging.getLogger("mrc.admission")

_SOURCE_BITS = {4: 32, 6: 64}
_NETWORK_BITS = {4: 16, 6: 48}
_MOST_KNOWN = 4096
_SOURCE_PER_SECOND = 1.0
_NETWORK, _NETWORK_PER_SECOND = 384.0, 192.0
_HOST, _HOST_PER_SECOND = 512.0, 256.0
_MOST_BUCKETS = 4096  # of each kind; the one that was used least recently makes way
_GRACE_SECONDS = 0.1  # the first message of a new connection may still be unread
_STRANGERS_PART = 4  # one of so many places is for strangers, however many others connect
_KEPT_BACK = 64  # file descriptors that peers cannot take: the process needs them for other uses

_PAUSE_SECONDS = 0.001  # doubles
_LOOKS = 12
_UNKNOWN_UID = 65534  # what a user namespace shows for all users that it does not know
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

# ---- Sources -------------------------------------------------------------------------------------


def source_of(address: str) -> str:
    """The source of an address: the IPv4 address itself, or the IPv6 /64."""
    return str(_first(parse_address(address), _SOURCE_BITS))


def origin_of(address: str) -> tuple[str, str]:
    """The source of an address, and its network, such as 10.9.0.0/16 or 2001:db8:1::/48."""
    found = parse_address(address)
    return source_of(address), f"{_first(found, _NETWORK_BITS)}/{_NETWORK_BITS[found.version]}"


def _first(address: IpAddress, bits: dict[int, int]) -> IpAddress:
    """The first address with the same bits."""
    rest = address.max_prefixlen - bits[address.version]
    return type(address)(int(address) >> rest << rest)


# ---- Places --------------------------------------------------------------------------------------


class Stage(Enum):
    """Progress of a connection."""

    CONNECTING = auto()
    READY = auto()  # connected, not accepted by the caller yet
    ACCEPTED = auto()
    GONE = auto()


class Evictable(Struct, eq=False):
    """A place that can be taken away."""

    source: str
    network: str
    since: float
    """when it came, or sent its last message or request"""
    silent: bool = True
    """no message of the peer has arrived"""


class ConnectionPlace(Evictable, eq=False, kw_only=True):
    """The place of one connection. `leave` at any time; the times are in seconds."""

    admission: Admission
    drop: Callable[[], None]
    known: bool
    """its source has proved itself before"""
    stage: Stage = Stage.CONNECTING
    give_back: Callable[[float], None] = lambda now: None
    """returns what its attempt has taken"""

    def hear(self, now: float) -> None:
        """A message has arrived."""
        self.since, self.silent = now, False

    def attempt(self, now: float) -> None:
        """The peer begins TLS. Raises BusyError after too many attempts of its source."""
        attempts = self.admission.attempts
        self.give_back = attempts.begin(self.source, self.network, known=self.known, now=now)

    def prove(self, now: float) -> None:
        """The peer has proved that it may connect."""
        self.admission.know(self.source)
        self.give_back(now)

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

    `descriptors` returns how many files this process may have open; 0: any number. None: its limit.
    """

    def __init__(self, limits: Limits, *, descriptors: Callable[[], int] | None = None) -> None:
        self._limits = limits
        self._descriptors = descriptors or _descriptor_limit
        self._descriptors_ran_out = False
        self._of: dict[Stage, list[ConnectionPlace]] = {
            stage: [] for stage in (Stage.CONNECTING, Stage.READY)
        }
        self._connecting: Counter[str] = Counter()  # by source
        self._connected: Counter[str] = Counter()
        self._known: OrderedDict[str, None] = OrderedDict()
        """the sources that proved themselves last"""
        self.attempts = Attempts(limits.max_pending_per_source)
        self.memory = Budget(limits.max_peer_bytes)
        """what transfers of peers may take"""

    @property
    def pending(self) -> int:
        """Number of peers that connect or wait to be accepted."""
        return sum(map(len, self._of.values()))

    def enter(
        self, address: str, descriptor: int, drop: Callable[[], None], *, now: float
    ) -> ConnectionPlace:
        """Returns a place for a connection from `address`, at the time `now` in seconds.

        Raises ConnectError, or BusyError if a retry can help. May evict another connection: this
        calls the other connection's `drop`, which must not block.
        """
        source, network = origin_of(address)
        self._check_descriptors(descriptor)
        self._check_source(source)
        known = source in self._known
        self.attempts.check(source, network, known=known, now=now)
        place = ConnectionPlace(source, network, now, admission=self, drop=drop, known=known)
        if self.pending >= self._limits.max_pending:
            self._make_room(place, now)
        self._count(place, 1)
        return place

    def _make_room(self, newcomer: ConnectionPlace, now: float) -> None:
        """Evicts a stranger. While they have few places, others who connect make way."""
        connecting = [*self._of[Stage.CONNECTING], newcomer]
        known = [each for each in connecting if each.known]
        strangers = [each for each in connecting if not each.known]
        few = len(strangers) <= self._limits.max_pending // _STRANGERS_PART
        evicted = victim(known if known and few else strangers or known, now)
        if evicted is newcomer:
            raise BusyError("too many peers are connecting: try again later")
        evicted.leave()
        evicted.drop()

    def know(self, source: str) -> None:
        """For a place: from now on its connections are no stranger's."""
        self._known[source] = None
        self._known.move_to_end(source)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        for place in self._of[Stage.CONNECTING]:
            place.known |= place.source == source

    def move(self, place: ConnectionPlace, stage: Stage) -> None:
        """For a place."""
        if place.stage is not Stage.GONE:
            self._count(place, -1)
            place.stage = stage
            self._count(place, 1)

    def _count(self, place: ConnectionPlace, by: int) -> None:
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
        most = self._limits.max_qps_per_source
        if qps >= most:
            raise ConnectError(
                f"{source} has {counted(qps, 'QP')} here, the limit (max_qps_per_source)"
            )
        if qps and sum(self._connected.values()) >= self._limits.max_qps * 3 // 4:
            raise ConnectError(
                f"the remaining QPs here are for sources without a QP; {source} has {qps}"
            )
        if connecting >= min(self._limits.max_pending_per_source, most - qps):
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


E = TypeVar("E", bound=Evictable)
_source, _network, _since = map(attrgetter, ("source", "network", "since"))


def victim(places: Sequence[E], now: float) -> E:
    """The place to take away, of at least one; the newcomer's own is the last of `places`.

    An honest peer sends at once and answers each message after a round trip, so the one whose last
    message is the oldest goes. But a flood can be faster than an honest peer that is far away. So
    the source with the most places pays first, and among sources that have as many, the network. No
    rate of connections from few sources, or from one network, takes the only place of another peer.
    """
    old = now - _GRACE_SECONDS
    found = [each for each in places if each.silent and each.since <= old] or list(places)
    of_source = Counter(map(_source, found))
    most = max(of_source.values())
    found = [each for each in found if of_source[each.source] == most]
    network, count = Counter(map(_network, found)).most_common(1)[0]
    if count > len(found) / 2:
        found = [each for each in found if each.network == network]
    return min(found, key=_since)


# ---- Connections to a server that only answers ---------------------------------------------------


PATIENCE_SECONDS = 60.0
"""A connection that asks nothing for so long gives its place to another."""


class Visit(Evictable, eq=False):
    """A connection that has a place."""

    task: asyncio.Task[None] | None = None
    """answers it"""

    def ask(self) -> None:
        """It has asked: to be called for each whole request."""
        self.silent, self.since = False, asyncio.get_running_loop().time()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Callable[[], None]], Awaitable[None]]
"""Answers one visit, and calls the last argument, `Visit.ask`, for each whole request. May raise
MrcError, OSError or ValueError, which ends the visit.
"""


class Visits:
    """At most `most` connections at a time. When all places are taken, a newcomer gets that of a
    connection that asks nothing, or of a source that has more places than its own will have. If
    there is none, the newcomer is turned away.
    """

    def __init__(self, most: int, answer: Answer | None = None) -> None:
        self._most = most
        self._answer = answer
        self._running: set[Visit] = set()
        self._closed = False

    async def close(self, server: asyncio.Server | None) -> None:
        """Ends the server and every visit; safe to call twice."""
        self._closed = True
        if server is not None:
            server.close()
        await cancelled(*(visit.task for visit in self._running if visit.task is not None))

    def admit(self, address: str) -> Visit | None:
        """A place for a connection from this address ("" if all are of one user of this machine);
        `start` has to follow at once. None: there is no place.
        """
        source, network = origin_of(address) if address else ("", "")
        now = asyncio.get_running_loop().time()
        if self._closed or not self._has_room(source, now):
            return None
        return Visit(source, network, now)

    def start(self, visit: Visit, task: asyncio.Task[Any]) -> None:
        """The task answers the visit, which has its place until the task ends. It may be cancelled,
        for a newcomer.
        """
        visit.task = task
        self._running.add(visit)
        task.add_done_callback(lambda _: self._running.discard(visit))

    def _has_room(self, source: str, now: float) -> bool:
        """Takes a place away if that is needed and possible."""
        if len(self._running) < self._most:
            return True
        places = Counter(visit.source for visit in self._running)
        least = places[source] + 1
        loose = [
            visit
            for visit in self._running
            if now - visit.since > (_GRACE_SECONDS if visit.silent else PATIENCE_SECONDS)
            or places[visit.source] > least
        ]
        if loose:
            gone = victim(loose, now)
            self._running.discard(gone)
            assert gone.task is not None
            gone.task.cancel()
        return bool(loose)

    async def on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A connection of the server. It may have come just before the server closed."""
        task = asyncio.current_task()
        assert task is not None and self._answer is not None
        peer = writer.get_extra_info("peername")
        visit = self.admit(peer[0] if isinstance(peer, tuple) else "")
        if visit is None:
            writer.transport.abort()
            return
        self.start(visit, task)
        try:
            await self._answer(reader, writer, visit.ask)
        except (MrcError, OSError, ValueError, EOFError) as error:
            logger.debug("a connection ended: %s", error)
        except asyncio.CancelledError:
            took_cancellation()  # asyncio would print a traceback of a cancelled task
        finally:
            writer.transport.abort()


# ---- Attempts ------------------------------------------------------------------------------------


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
    """Limits attempts of strangers to prove themselves: each costs about a millisecond, for TLS.

    An attempt takes a token of its source, and that of a source which is not known also one of its
    network and one of the host. A peer that proves itself gets them back, so honest peers do not
    run out of them, however many they are. `at_once`: attempts that a source may begin without a
    pause.
    """

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

    def begin(
        self, source: str, network: str, *, known: bool, now: float
    ) -> Callable[[float], None]:
        """Takes the tokens of an attempt; raises as `check`. Returns a function that gives them
        back when the peer has proved itself, once.
        """
        self.check(source, network, known=known, now=now)
        taken = self._needed(source, network, known=known)
        for buckets, name in taken:
            buckets.change(name, -1, now)

        def give_back(now: float) -> None:
            while taken:
                buckets, name = taken.pop()
                buckets.change(name, 1, now)

        return give_back

    def _needed(self, source: str, network: str, *, known: bool) -> list[tuple[Buckets, str]]:
        mine = [(self._of_source, source)]
        return mine if known else [*mine, (self._of_network, network), (self._of_host, "")]


# ---- Memory --------------------------------------------------------------------------------------


class BudgetError(MrcError):
    """A peer needs more memory than its budget on this host has left."""


class Budget:
    """Limits the memory that a Context uses for its peers: mailboxes, windows, test regions.

    `total` bytes for all peers together; peers of one source get at most half of them.
    """

    def __init__(self, total: int) -> None:
        self._left = total
        self._each = total // 2
        self._held: Counter[str] = Counter()

    def left(self, address: str) -> int:
        """Bytes that peers from this address can still take."""
        return min(self._left, self._each - self._held[source_of(address)])

    @contextmanager
    def taken(self, address: str, count: int) -> Iterator[None]:
        """Takes `count` bytes for a peer from this address while the body runs.

        Raises BudgetError when fewer bytes are left.
        """
        if count > (left := self.left(address)):
            raise BudgetError(f"no memory: {count} bytes are needed, {left} are left for this peer")
        source = source_of(address)
        self._left -= count
        self._held[source] += count
        try:
            yield
        finally:
            self._left += count
            self._held[source] -= count
            if not self._held[source]:
                del self._held[source]


# ---- Addresses -----------------------------------------------------------------------------------


class Claims:
    """The owner of each UDP source, so that no peer can claim the packets of another peer.

    The identity of a peer is the address of its TCP connection, the addresses it has proved, and
    those that it says it has: it may come again from each of them, to what it has proved itself.
    """

    def __init__(self) -> None:
        # A peer's QPs mostly have the same sources, so each identity is here once, with its claims.
        self._owners: dict[PeerSource, Counter[frozenset[IpAddress]]] = {}

    def check(self, peer: str, sources: Iterable[PeerSource]) -> None:
        """Raises ConnectError when another peer owns one of `sources`. `peer`: a TCP address."""
        address = parse_address(peer)
        for source in sources:
            owners = self._owners.get(source)
            if owners and not any(address in known for known in owners):
                named = f"UDP port {source.sport} of {source.address}"
                raise ConnectError(f"{named} belongs to another peer than {peer}")

    def take(
        self, peer: str, sources: Iterable[PeerSource], said: Iterable[IpAddress]
    ) -> Callable[[], None]:
        """Assigns proved sources to the peer; returns a function that releases them. `said`: the
        addresses that it says it has.
        """
        proved = tuple(sources)
        known = frozenset({parse_address(peer), *said, *(source.address for source in proved)})
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


# ---- What the program decides --------------------------------------------------------------------


Admit = Callable[["Peer"], bool | Awaitable[bool]]
"""Whether a peer may connect."""


async def ask_program(admit: Admit, peer: Peer) -> None:
    """Has the program decide about a peer; raises its MrcError or a ConnectError for a refusal. Any
    other error of the program refuses the peer, too, and is logged.
    """
    try:
        verdict = admit(peer)
        if isawaitable(verdict):
            verdict = await verdict
        if not isinstance(verdict, bool):
            raise TypeError(f"admit: returned {verdict!r:.60}, not True or False")
    except MrcError:
        raise
    except Exception as error:
        logging.getLogger("mrc.establish").exception("a peer is refused, because `admit` failed")
        raise ConnectError(reason_of(error)) from error
    if not verdict:
        raise ConnectError("its program does not admit this host")


# ---- Whether a peer is on this host, and a process of the same user ------------------------------

# Loopback is not a user: every user of a host reaches it, and so does whatever a proxy passes on.
# /proc/net names, for every process, whose the TCP sockets of this host are.


def is_loopback(channel: Channel) -> bool:
    """True when both ends of the exchange are on this host."""
    remote = parse_address(channel.remote)
    return remote.is_loopback or remote == parse_address(channel.local)


async def is_own(channel: Channel) -> bool:
    """Whether the peer is a process of this host and of the user that this one acts for.

    False where the kernel hides it. A listener gets some time to accept the connection.
    """
    uid = os.geteuid()
    if uid == _UNKNOWN_UID or not is_loopback(channel):
        return False
    here, there = channel.ports
    ours = parse_address(channel.local), here
    theirs = parse_address(channel.remote), there
    for turn in range(_LOOKS):
        owner = owner_of(theirs, ours)
        if owner is None or owner.accepted:
            return owner is not None and owner.uid == uid
        await asyncio.sleep(_PAUSE_SECONDS * 2**turn)
    return False


class Owner(Struct, frozen=True):
    """Who has a socket."""

    uid: int
    accepted: bool
    """False: of a connection that its listener has not accepted yet; then `uid` means nothing"""


SocketAddress = tuple[IpAddress, int]
"""Address and port."""


def owner_of(local: SocketAddress, remote: SocketAddress) -> Owner | None:
    """The owner of the socket with these ends; None if this host has none."""
    for table in _TABLES:
        try:
            rows = table.read_text()
        except OSError:  # without IPv6
            continue
        for ours in _written(*local):
            for theirs in _written(*remote):
                # then: state, queues, timer, retransmits, uid, timeout, inode
                if row := re.search(rf" {ours} {theirs} \S+ \S+ \S+ \S+ +(\d+) +\d+ (\d+) ", rows):
                    return Owner(int(row[1]), row[2] != "0")
    return None


def _written(address: IpAddress, port: int) -> list[str]:
    """How the tables write an end: an IPv4 address also as a socket of IPv6 has it."""
    forms = [address.packed]
    if isinstance(address, IPv4Address):
        forms.append(bytes(10) + b"\xff\xff" + address.packed)
    written = []
    for form in forms:
        words = (form[at : at + 4] for at in range(0, len(form), 4))
        digits = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
        written.append(f"{digits}:{port:04X}")
    return written


# ---- File descriptors ----------------------------------------------------------------------------


def _descriptor_limit() -> int:
    """How many files this process may have open; 0: any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, soft)
