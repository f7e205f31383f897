# SPDX-License-Identifier: Apache-2.0
"""The pairs of ports of a QP that runs: which ones are its planes, and which ones may still join.

The exchange proves the pairs that its planes need. Others are tried here, while the QP runs: pairs
of an interface that no living plane reaches (an uplink left over behind a router, the other address
of a link whose first one does not answer, a port that came later at either end), and all others
while much data is sent, because links may differ in rate. Such a pair yields: it carries what the
other planes leave of its links. A pair joins when its EVs have answered and carry packets of full
size.

Both ends do this on their own: a plane is proven by the side that sends on it. What answers late,
or not at all, costs a few small probes, ever more rarely. `infos` says of each pair whether it is a
plane, and why not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from msgspec import Struct, to_builtins

from mrc import limits
from mrc.config import ContextConfig
from mrc.connect.admission import Claims
from mrc.connect.oob import Channel, checked_port
from mrc.connect.profiles import EvController
from mrc.connect.proof import ADDRESS_TRIES, SMALL_BYTES, Proof, prove
from mrc.engine import paths
from mrc.engine.dispatch import Dispatcher
from mrc.engine.paths import LocalPort, PortPair, RemotePort
from mrc.engine.ports import LocalPorts
from mrc.engine.queue_pair import QueuePair
from mrc.enums import EvState, PairState, PlaneShares
from mrc.errors import MrcError, ProtocolError
from mrc.events import PairInfo, ProbeResult
from mrc.fabric.hostconfig import IpAddress
from mrc.tasks import cancelled, within
from mrc.units import counted

logger = logging.getLogger("mrc.pairs")

AMPLIFICATION = 3  # bytes sent to addresses that have not answered, per byte from the peer
_TRY_BYTES = 2 * SMALL_BYTES  # sent to such an address in a try: there may be many pairs
_FIRST_PAUSE_SECONDS = 1.0  # between two tries of a pair; doubles
_LONGEST_PAUSE_SECONDS = 64.0
_FIRST_LOOK_SECONDS = 0.25  # between two looks at the planes; doubles
_LONGEST_LOOK_SECONDS = 16.0
_LONGEST_BUSY_LOOK_SECONDS = 0.5  # while data is sent: until it is much, or planes yield
_KEPT_NUMBERS = 2  # of planes, for ports that come
_BULK_BYTES = 1 << 20  # sent by a QP with more to send: other pairs may help then
_COUNTED_PACKETS = 256  # show how much each plane carries
_SETTLE_SECONDS = 0.02  # several planes change together
_PORT_SECONDS = 0.25  # after a port came here: the one that faces it comes soon


class PairProof(Struct, frozen=True):
    """What the probes of a pair have found."""

    paths: int
    """that were probed"""
    answering: int = 0
    carried: int = 0
    """payload that all of them carry, in bytes"""
    error: int = 0
    """errno of probes that could not be sent"""

    @classmethod
    def of(cls, planes: Sequence[int], proof: Proof | None = None) -> dict[int, PairProof]:
        """By plane, from the plane of each EV; None: nothing has answered."""
        found: dict[int, PairProof] = {}
        for plane in dict.fromkeys(planes):
            places = [place for place, each in enumerate(planes) if each == plane]
            if proof is None:
                found[plane] = cls(len(places))
                continue
            gone = {*proof.dead, *proof.unproven}.intersection(places)
            errors = [proof.errors[place] for place in places if proof.errors]
            found[plane] = cls(
                len(places),
                len(places) - len(gone),
                proof.carried.get(plane, 0),
                max(errors, default=0),
            )
        return found


class PairTerms(Struct, frozen=True, kw_only=True):
    """What the exchange has found, for the pairs of its QP."""

    links: LocalPorts
    dispatcher: Dispatcher
    queue: QueuePair
    controller: EvController
    rng: random.Random
    first: bool
    """whether this side connected"""
    udp_port: int
    """of the peer"""
    config: ContextConfig
    path_mtu: int
    local: list[LocalPort]
    remote: list[RemotePort]
    planes: dict[int, PortPair]
    others: list[PortPair]
    proofs: dict[int, PairProof]
    """by plane"""
    fixed: bool
    """whether no others are tried: they are configured, or of this host"""
    claims: Claims
    """of UDP sources"""
    check: Callable[[list[IpAddress], str], None]
    """refuses addresses of the peer, by the one that it calls from"""
    warn: Callable[[str], None]
    """logs a line"""
    host: str
    """the peer, for a line"""
    silent: set[str]
    """interfaces here that were said not to answer"""


class _Try(Struct):
    """When a pair may be tried."""

    next: float = 0.0
    pause: float = _FIRST_PAUSE_SECONDS


class _Reach(Struct):
    """What the living planes of a QP reach."""

    links: set[tuple[str, str]]
    """their interfaces, here and there"""
    bulk: bool
    """whether much data is sent, and no plane waits for a slower one"""
    new: set[IpAddress]
    """addresses that came while the QP ran"""
    ends: set[tuple[IpAddress, str]] = set()
    """addresses of living planes, with the interface at the other end"""
    spared: set[tuple[str, str]] = set()
    """those in `links` that only backups reach"""
    carrying: dict[int, PortPair] = {}
    """the living planes that carry data"""
    wanted: list[PortPair] = []
    """the pairs that are needed and wait"""
    suspended: set[int] = set()
    """planes that carry only probes"""
    weights: dict[int, int] = {}
    """of planes that carry data"""
    evs: dict[int, list[EvState | None]] = {}
    """by plane, the states of its EVs; None: it waits to join, or is held back"""

    def lacks(self, pair: PortPair) -> bool:
        """Whether the pair is needed, or lets all links carry what they can. An interface with only
        a backup may be dear at its other end, so other pairs do not use it, but for one like it.
        """
        if self.needs(pair):
            return True
        busy = self.links - self.spared
        local, remote = {here for here, _ in busy}, {there for _, there in busy}
        known = (pair.local.nic in local) + (pair.remote.nic in remote)
        if pair.weight == 0 or known < 2:
            return pair.weight > 0 and known == 0
        differ = self.bulk or len(local) != len(remote)
        return differ and (pair.local.nic, pair.remote.nic) not in busy

    def needs(self, pair: PortPair) -> bool:
        """Whether the pair is needed for an interface that no plane reaches, or a new address."""
        local, remote = {here for here, _ in self.links}, {there for _, there in self.links}
        if pair.local.nic not in local or pair.remote.nic not in remote:
            return True
        for port, other in ((pair.local, pair.remote), (pair.remote, pair.local)):
            if port.address.ip in self.new and (port.address.ip, other.nic) not in self.ends:
                return True
        return False


# ---- The state of a pair -------------------------------------------------------------------------


def on_plane(
    evs: Sequence[EvState | None], *, suspended: bool, weight: int
) -> tuple[PairState, str]:
    """The state of a pair that is a plane, and why. `evs`: those of its EVs; None: it waits."""
    joined = [state for state in evs if state is not None]
    good = sum(state in (EvState.GOOD, EvState.SKIP) for state in joined)
    if all(state is EvState.DENIED for state in joined):
        return PairState.DENIED, "all its paths are denied"
    if suspended or not good:
        return PairState.SILENT, "no answer over UDP now"
    rest = len(evs) - good
    some = f"{rest} of {counted(len(evs), 'path')} do not carry data" if rest else ""
    if weight == 0:
        return PairState.BACKUP, some or "it carries data while no other plane does"
    return PairState.USED, some


def beside_planes(found: PairProof, least: int) -> tuple[PairState, str]:
    """The state of a pair that has been tried and did not join; `least`: the size of packets."""
    if found.answering and found.carried < least:
        return PairState.SMALL, f"carries only {found.carried} bytes in a packet, not {least}"
    if found.answering:
        return PairState.WAITS, _NOT_NEEDED
    if found.error:
        return PairState.UNREACHABLE, f"cannot be sent: {os.strerror(found.error).lower()}"
    return PairState.SILENT, "no answer over UDP"


_CONFIGURED = "the host configuration does not join them"
_IN_ORDER = "on one host ports are joined in order"
_NOT_NEEDED = "not needed: both interfaces have another pair"


def sharing_hosts(
    planes: Mapping[int, PortPair],
    local: Iterable[LocalPort],
    remote: Iterable[RemotePort],
    host: str,
) -> dict[int, str]:
    """By plane, the hosts where another interface may answer ARP for an address of its pair; or "".
    `host`: the peer.
    """
    found = {}
    for plane, pair in planes.items():
        names = ["this host"] if paths.shares_network(pair.local, local) else []
        names += [host] if paths.shares_network(pair.remote, remote) else []
        found[plane] = " and ".join(names)
    return found


def yielding(planes: Mapping[int, PortPair], carried: Mapping[int, int]) -> set[int]:
    """The planes without which the others still reach all interfaces. Those that carried most
    packets stay, by powers of two; of planes alike the first ones.
    """
    left = dict(planes)
    most_first = sorted(planes, key=lambda plane: -carried.get(plane, 0).bit_length())
    for plane, each in ((plane, planes[plane]) for plane in reversed(most_first)):
        others = [other for number, other in left.items() if number != plane]
        here, there = {o.local.nic for o in others}, {o.remote.nic for o in others}
        if each.local.nic in here and each.remote.nic in there:
            del left[plane]
    return planes.keys() - left.keys()


class Pairs:
    """Tries pairs of ports of one QP, from `start` to `close`."""

    def __init__(self, channel: Channel, lose: Callable[[], None], terms: PairTerms) -> None:
        """`lose` is called when the address of the connection to the peer has gone."""
        self._channel = channel
        self._lose = lose
        self._named = channel.ends
        """of the first connection"""
        self._heard_bytes = 0  # on the connections before it
        self._terms = terms
        self._planes = dict(terms.planes)
        self._others = list(terms.others)
        self._local = list(terms.local)
        self._told = frozenset(port.address.ip for port in terms.local)  # in the hello
        self._remote = list(terms.remote)
        self._tries: dict[tuple[IpAddress, IpAddress], _Try] = {}
        self._proved = {
            ev.attr.destination
            for index, ev in enumerate(terms.controller.evs)
            if not terms.controller.waits(index)
        }
        self._asked: set[str] = set()  # interfaces whose link-local ports were asked for
        self._new: set[IpAddress] = set()
        """addresses that came while the QP ran"""
        self._spent_bytes = SMALL_BYTES * ADDRESS_TRIES * len(self._planes)
        self._news = asyncio.Event()
        self._pause = _FIRST_LOOK_SECONDS
        self._busy = False  # with writes
        self._task: asyncio.Task[None] | None = None
        self._proofs: dict[int, asyncio.Task[None]] = {}
        self._found = {
            _ends(self._planes[plane]): each
            for plane, each in terms.proofs.items()
            if plane in self._planes  # a configured one may have no port at the peer
        }
        self._refused: dict[tuple[IpAddress, IpAddress], str] = {}  # why a pair is not tried
        self._runs = False  # the QP
        self._carrying: dict[int, PortPair] = {}
        self._yielding: set[int] = set()
        self._sent: dict[int, int] = {}  # packets, by plane
        self._carried: dict[int, int] = {}  # of them since the last look that counted them
        self._reached = (False, False)  # the interfaces of the connection, here and there

    def start(self) -> None:
        self._runs = True
        if self._terms.fixed:
            return
        self._terms.links.on_change.append(self._on_links)
        self._news.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._terms.links.on_change.remove(self._on_links)
            await cancelled(self._task, *self._proofs.values())
            self._task = None

    def take_channel(self, channel: Channel) -> None:
        """The connection to the peer was opened again: what was said last may be lost."""
        self._heard_bytes += self._channel.received_bytes
        self._channel = channel
        self._local = [port for port in self._local if port.address.ip in self._told]
        self._reached = (False, False)
        self._news.set()

    def look(self) -> None:
        """Planes have changed."""
        self._news.set()

    def _on_links(self) -> None:
        """Ports of this host have changed."""
        known = {(port.plane, port.address.ip) for port in self._local}
        here = {(port.plane, port.address.ip) for port in self._ports()}
        if here != known:
            self._tries.clear()
            self._news.set()

    def _ports(self) -> list[LocalPort]:
        """The ports of this host that the QP may use."""
        links, (named, _) = self._terms.links, self._named
        used = {each.local.plane for each in self._planes.values()}
        return [port for port in links.for_peer(named, used) if not port.loopback]

    async def on_peer_port(self, message: Mapping[str, Any]) -> None:
        """The peer has a new port. Raises ProtocolError if that cannot be."""
        terms = self._terms
        port = checked_port(message.get("port"))
        if port in self._remote or terms.fixed:
            return
        if len(self._remote) >= 2 * limits.MAX_PORTS:
            raise ProtocolError("the peer has named too many ports")
        sources = paths.peer_sources([(port.address.ip, port.source_ports)])
        try:
            terms.claims.check(self._channel.remote, sources)
            terms.check([port.address.ip], self._channel.remote)
            command = terms.queue.set_peer(sources)
            await terms.dispatcher.call(command, f"QP {terms.queue.qpn:#x}: add sources")
        except MrcError as error:
            logger.info("QP %#x: a new port of the peer is not used: %s", terms.queue.qpn, error)
            return
        self._remote = [
            each for each in self._remote if each.number != port.number or not port.number
        ]
        self._remote.append(port)
        self._new.add(port.address.ip)
        self._tries.clear()
        self._news.set()

    # ---- The state of all pairs -------------------------------------------------------------

    async def infos(self) -> tuple[PairInfo, ...]:
        """The state of every port of this host with every port of the peer."""
        reach = await self._look()
        planes = {_ends(each): plane for plane, each in self._planes.items()}
        named = [PortPair(*ends) for ends in product(self._local, self._remote)]
        gone = {_ends(each): each for each in self._planes.values()}
        for each in named:
            gone.pop(_ends(each), None)
        return tuple(
            self._info(each, planes.get(_ends(each)), reach) for each in (*named, *gone.values())
        )

    def _info(self, pair: PortPair, plane: int | None, reach: _Reach) -> PairInfo:
        local, remote = pair.local, pair.remote
        evs = reach.evs.get(plane or 0, [])
        state, why = self._state(pair, plane, evs, reach)
        tried = self._found.get(_ends(pair), PairProof(len(evs)))
        good = sum(each in (EvState.GOOD, EvState.SKIP) for each in evs)
        used = state in (PairState.USED, PairState.BACKUP)
        hosts = sharing_hosts({0: pair}, self._local, self._remote, self._terms.host)[0]
        if state is PairState.SILENT and hosts:
            why = f"{why}, perhaps because of ARP: run mrc doctor on {hosts}"
        return PairInfo(
            nic=local.nic, address=str(local.address.ip),
            peer_nic=remote.nic, peer_address=str(remote.address.ip),
            plane=plane, state=state, why=why,
            weight_percent=reach.weights.get(plane or 0, pair.weight),
            paths=len(evs) or tried.paths, answering_paths=good if used else tried.answering,
        )  # fmt: skip

    def _state(
        self, pair: PortPair, plane: int | None, evs: list[EvState | None], reach: _Reach
    ) -> tuple[PairState, str]:
        terms, key = self._terms, _key(pair)
        if plane is None:
            if terms.fixed:
                return PairState.UNFIT, _IN_ORDER if pair.local.loopback else _CONFIGURED
            if why := paths.misfit(pair, self._local, self._remote):
                return PairState.UNFIT, why
            if key not in map(_key, self._others):
                return PairState.LIMIT, f"only {paths.MOST_PAIRS} pairs are tried"
            if not reach.lacks(pair):
                return PairState.WAITS, _NOT_NEEDED
            if key in self._refused:
                return PairState.LIMIT, self._refused[key]
            return PairState.TRYING, "is being tried"
        if not evs:
            overhead = paths.SEAL_OVERHEAD if terms.queue.seal else 0
            if pair.mtu - overhead < limits.MIN_MTU:
                return PairState.SMALL, "the MTU of an interface is too small"
            return PairState.DENIED, "the EV profile leaves out its paths"
        if self._runs and any(each is not None for each in evs):
            weight = reach.weights.get(plane, pair.weight)
            return on_plane(evs, suspended=plane in reach.suspended, weight=weight)
        if (found := self._found.get(_ends(pair))) is not None:
            return beside_planes(found, terms.path_mtu)
        if reach.lacks(pair):
            return PairState.TRYING, "is being tried"
        return PairState.WAITS, _NOT_NEEDED

    # ---- The task -------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                if await self._tell():
                    await asyncio.sleep(_PORT_SECONDS)
                await self._find()
                pause = await self._try()
            except MrcError as error:  # the QP has ended, or its Context is closed
                logger.debug("QP %#x: %s", self._terms.queue.qpn, error)
                return
            try:
                async with within(pause):
                    await self._news.wait()
            except TimeoutError:
                continue
            self._pause = _FIRST_LOOK_SECONDS
            await asyncio.sleep(_SETTLE_SECONDS)

    async def _tell(self) -> bool:
        """Names new ports of this host to the peer. Returns whether there are any."""
        terms = self._terms
        known = {(port.plane, port.address.ip) for port in self._local}
        here = self._ports()
        address = self._channel.ends[0]
        gone = {port.address.ip for port in self._local} - {port.address.ip for port in here}
        if address in gone:
            self._lose()
        new = [port for port in here if (port.plane, port.address.ip) not in known]
        for port in new:
            told = RemotePort.of(port, terms.links.sports[port.plane])
            self._new.add(port.address.ip)
            try:
                await self._channel.send("port", port=to_builtins(told, enc_hook=str))
            except (MrcError, OSError) as error:  # told again when the connection is open again
                logger.debug("QP %#x: a port is not told: %s", terms.queue.qpn, error)
                self._lose()
        self._local = here
        return bool(new)

    async def _find(self) -> None:
        """Finds the pairs that ports allow now."""
        terms = self._terms
        here = self._local
        nics = set(paths.lacking_link_local(here, self._remote)) - self._asked
        if nics:
            self._asked |= nics
            engine = terms.dispatcher
            await terms.links.open_link_local(nics, terms.config, engine.call, engine.engine)
        there = [_key(each) for each in self._planes.values()]
        found = paths.pair(here, self._remote, self._named, first=terms.first)
        self._others = [each for each in found if _key(each) not in there]

    async def _try(self) -> float:
        """Tries the pairs that are needed now. Returns the seconds until the next look."""
        now = asyncio.get_running_loop().time
        reach = await self._look()
        self._look_after_connection(reach.links)
        await self._set_carrying(reach.carrying)
        due = [each for each in reach.wanted if self._tried(each).next <= now()]
        if due:  # new ones first: addresses that do not answer use up what may be sent
            await self._begin(reach, sorted(due, key=lambda each: self._tried(each).pause))
        waits = self._busy and (not reach.bulk or bool(self._yielding))
        longest = _LONGEST_BUSY_LOOK_SECONDS if waits else _LONGEST_LOOK_SECONDS
        self._pause = min(2 * self._pause, longest)
        times = [self._tried(each).next - now() for each in reach.wanted]
        return max(0.0, min([self._pause, *times]))

    def _tried(self, pair: PortPair) -> _Try:
        return self._tries.setdefault(_key(pair), _Try())

    async def _look(self) -> _Reach:
        """What the planes reach now."""
        terms, controller = self._terms, self._terms.controller
        number = f"QP {terms.queue.qpn:#x}"
        query, info = terms.queue.query()
        await terms.dispatcher.call(query, f"{number}: query")
        evs = tuple(controller.evs)
        query, infos = terms.queue.query_evs(len(evs))
        await terms.dispatcher.call(query, f"{number}: query EVs")
        alive = {ev.attr.plane for ev, its in zip(evs, infos, strict=False) if its.active}
        waiting = {ev.attr.plane for index, ev in enumerate(evs) if controller.waits(index)} - alive
        here = {(port.plane, port.address.ip) for port in self._local}
        there = {port.address.ip for port in self._remote}
        links: set[tuple[str, str]] = set()
        ends: set[tuple[IpAddress, str]] = set()
        busy: set[tuple[str, str]] = set()
        carrying: dict[int, PortPair] = {}
        for plane, each in self._planes.items():
            its, end = info.planes[plane - 1], (each.local.plane, each.local.address.ip)
            if plane in alive and not its.suspended and end in here:
                links.add((each.local.nic, each.remote.nic))
                ends.add((each.local.address.ip, each.remote.nic))
                ends.add((each.remote.address.ip, each.local.nic))
                if each.weight > 0:
                    busy.add((each.local.nic, each.remote.nic))
                    carrying[plane] = each
        self._busy = info.outstanding > 0
        self._count({plane: info.planes[plane - 1].sent_packets for plane in self._planes})
        measured = terms.config.plane_shares is PlaneShares.MEASURED
        bulk = measured and self._busy and info.first_sent_bytes >= _BULK_BYTES
        reach = _Reach(links, bulk, self._new, ends, links - busy, carrying=carrying)
        for index, (ev, its) in enumerate(zip(evs, infos, strict=False)):
            state = None if controller.waits(index) else EvState(its.state)
            reach.evs.setdefault(ev.attr.plane, []).append(state)
        reach.suspended = {plane for plane in reach.evs if info.planes[plane - 1].suspended}
        reach.weights = {plane: info.planes[plane - 1].weight for plane in alive}
        pairs = [each for plane, each in self._planes.items() if plane in waiting]
        proving = [self._planes[plane] for plane in self._proofs]
        reach.wanted = [
            each for each in (*pairs, *self._others)
            if reach.lacks(each) and each not in proving
            if (each.local.plane, each.local.address.ip) in here
            if each.remote.address.ip in there
        ]  # fmt: skip
        return reach

    def _count(self, sent: dict[int, int]) -> None:
        """Notes what each plane carries, by the packets that it has sent."""
        carried = {plane: max(0, count - self._sent.get(plane, 0)) for plane, count in sent.items()}
        if sum(carried.values()) >= _COUNTED_PACKETS:
            self._sent, self._carried = sent, carried

    def _look_after_connection(self, links: set[tuple[str, str]]) -> None:
        """Has the connection opened again when no plane reaches one of its interfaces any more, but
        planes reach others: it may be silent for minutes.
        """
        own, peer = self._channel.ends
        ours, theirs = {nic for nic, _ in links}, {nic for _, nic in links}
        here = any(port.nic in ours for port in self._local if port.address.ip == own)
        there = any(port.nic in theirs for port in self._remote if port.address.ip == peer)
        before, self._reached = self._reached, (here, there)
        if links and ((before[0] and not here) or (before[1] and not there)):
            self._lose()

    async def _set_carrying(self, carrying: dict[int, PortPair]) -> None:
        """Says which planes yield, of those that carry data now."""
        self._carrying = carrying
        planes = yielding(carrying, self._carried)
        if planes != self._yielding:
            queue = self._terms.queue
            command = queue.set_yielding(planes)
            await self._terms.dispatcher.call(command, f"QP {queue.qpn:#x}: planes yield")
            self._yielding = planes

    async def _begin(self, reach: _Reach, due: list[PortPair]) -> None:
        """Begins to prove pairs."""
        terms, controller = self._terms, self._terms.controller
        added: dict[int, PortPair] = {}
        for each in due:
            tried = self._tried(each)
            tried.next = asyncio.get_running_loop().time() + tried.pause
            tried.pause = min(2 * tried.pause, _LONGEST_PAUSE_SECONDS)
            if each in self._planes.values():
                continue
            if not self._may_ask(each):
                self._refused[_key(each)] = "its address has had all probes that a stranger gets"
                continue
            most = terms.links.most - (0 if reach.needs(each) else _KEPT_NUMBERS)
            one = paths.numbered([each], most, {*self._planes, *added})
            if not one:
                self._refused[_key(each)] = f"a QP has at most {counted(most, 'plane')}"
            added |= one
        if added:
            evs = paths.pair_evs(
                added, terms.links.sports, terms.udp_port,
                terms.config.spraying.evs_per_pair, terms.rng,
                used=[ev.attr.ev for ev in controller.evs],
            )  # fmt: skip
            indices = await controller.add(evs)
            planes = {controller.evs[index].attr.plane for index in indices}
            had = {ev.attr.plane for ev in evs}
            for plane, each in added.items():
                if plane not in planes:
                    self._refused[_key(each)] = (
                        "the EV profile selects none of its paths"
                        if plane in had
                        else "its port has no free source port"
                    )
            self._planes |= {plane: each for plane, each in added.items() if plane in planes}
            self._others = [each for each in self._others if each not in added.values()]
        for plane, each in self._planes.items():
            if (
                each in due
                and plane not in self._proofs
                and (plane in added or self._may_ask(each))
            ):
                proof = asyncio.get_running_loop().create_task(self._prove(plane, each))
                self._proofs[plane] = proof
                proof.add_done_callback(partial(self._end, plane))

    def _may_ask(self, pair: PortPair) -> bool:
        """Whether probes may go to the peer's address, which may be a stranger's."""
        if pair.remote.address.ip in self._proved:
            return True
        heard_bytes = self._heard_bytes + self._channel.received_bytes
        if self._spent_bytes + _TRY_BYTES > AMPLIFICATION * heard_bytes:
            return False
        self._spent_bytes += _TRY_BYTES
        return True

    def _end(self, plane: int, proof: asyncio.Task[None]) -> None:
        del self._proofs[plane]
        self._news.set()
        if not proof.cancelled() and (error := proof.exception()) is not None:
            if not isinstance(error, MrcError):  # the QP has ended, or its Context is closed
                raise error
            logger.debug("QP %#x: %s", self._terms.queue.qpn, error)

    async def _prove(self, plane: int, pair: PortPair) -> None:
        """Proves a pair, which joins if it is still needed then."""
        terms, controller = self._terms, self._terms.controller
        indices = [
            index
            for index, ev in enumerate(controller.evs)
            if ev.attr.plane == plane and controller.waits(index)
        ]
        await controller.wait(indices)
        terms.rng.shuffle(indices)  # a stranger gets two probes: each try on other paths
        address = pair.remote.address.ip
        known = address in self._proved

        async def probe(place: int, payload: int, timeout: float) -> ProbeResult:
            return await controller.probe(indices[place], payload, timeout)

        proof = await prove(
            probe,
            [None if known else address] * len(indices),
            terms.path_mtu,
            _TRY_BYTES,
            planes=[plane] * len(indices),
            rtt=self._channel.rtt,
        )
        if indices:
            self._found[_ends(pair)] = PairProof.of([plane] * len(indices), proof)[plane]
        if proof.mtu < terms.path_mtu or not (await self._look()).lacks(pair):
            return
        if not known:
            self._proved.add(address)
            said = [port.address.ip for port in self._remote]
            proved = [each for each in self._remote if each.address.ip in self._proved]
            sources = paths.peer_sources([(x.address.ip, x.source_ports) for x in proved])
            give_back = terms.claims.take(self._channel.remote, sources, said)
            self._channel.at_end(give_back, of_qp=True)
        number = f"QP {terms.queue.qpn:#x}"
        if pair.weight < 100:
            await terms.dispatcher.call(
                terms.queue.set_weight(plane, pair.weight), f"{number}: set a weight"
            )
        if pair.weight > 0:  # before it carries anything
            await self._set_carrying(self._carrying | {plane: pair})
        gone = {*proof.dead, *proof.unproven}
        await controller.join([each for place, each in enumerate(indices) if place not in gone])
        logger.info("%s: plane %d joins: %s to %s", number, plane, pair.local.nic, address)
        if (nic := pair.local.nic) in terms.silent:
            terms.silent.remove(nic)
            terms.warn(f"plane {plane} ({nic}) to {terms.host} answers: it is used")


def _key(pair: PortPair) -> tuple[IpAddress, IpAddress]:
    return pair.local.address.ip, pair.remote.address.ip


def _ends(pair: PortPair) -> tuple[str, IpAddress, str, IpAddress]:
    """Interfaces and addresses: under SRv6 all interfaces of a host may have the same address."""
    return pair.local.nic, pair.local.address.ip, pair.remote.nic, pair.remote.address.ip
