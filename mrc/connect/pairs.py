# SPDX-License-Identifier: Apache-2.0
"""The pairs of ports of a QP that runs: which ones are its planes, and which ones may still join.

The exchange proves the pairs that its planes need. Others are tried here, while the QP runs: pairs
of an interface that no living plane reaches (an uplink left over behind a router, the other address
of a link whose first one does not answer, a port that came later at either end), and all others
while a plane is slow. A pair joins when its EVs have answered and carry packets of full size.

Both ends do this on their own: a plane is proven by the side that sends on it. What answers late,
or not at all, costs a few small probes, ever more rarely.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct, to_builtins

from mrc import limits
from mrc.config import ContextConfig
from mrc.connect.oob import Channel, checked_port
from mrc.connect.profiles import EvController
from mrc.connect.proof import ADDRESS_TRIES, SMALL_BYTES, prove
from mrc.engine import paths
from mrc.engine.dispatch import Dispatcher
from mrc.engine.paths import LocalPort, PeerSource, PortPair, RemotePort
from mrc.engine.ports import LocalPorts
from mrc.engine.queue_pair import QueuePair
from mrc.errors import MrcError, ProtocolError
from mrc.events import ProbeResult
from mrc.fabric.hostconfig import IpAddress
from mrc.tasks import cancelled, within

logger = logging.getLogger("mrc.pairs")

AMPLIFICATION = 3  # bytes sent to addresses that have not answered, per byte from the peer
_FIRST_PAUSE_SECONDS = 1.0  # between two tries of a pair; doubles
_LONGEST_PAUSE_SECONDS = 64.0
_FIRST_LOOK_SECONDS = 0.25  # between two looks at the planes; doubles
_LONGEST_LOOK_SECONDS = 16.0
_UNEVEN_PERCENT = 85  # that a plane carries, of the mean of the others
_SETTLE_SECONDS = 0.02  # several planes change together
_PORT_SECONDS = 0.25  # after a port came here: the one that faces it comes soon


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
    admit: Callable[[list[PeerSource]], None]
    """refuses sources of the peer"""
    claim: Callable[[list[PeerSource]], None]
    """makes proved sources the peer's own"""
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
    uneven: bool
    """whether one carries much less than the others"""
    new: set[IpAddress]
    """addresses that came while the QP ran"""
    ends: set[tuple[IpAddress, str]] = set()
    """addresses of living planes, with the interface at the other end"""
    wanted: list[PortPair] = []
    """the pairs that are needed and wait"""

    def lacks(self, pair: PortPair) -> bool:
        """Whether the pair is needed: for an interface that no plane reaches, or to let all links
        carry what they can, where they differ in number or in rate.
        """
        local, remote = {here for here, _ in self.links}, {there for _, there in self.links}
        if pair.local.nic not in local or pair.remote.nic not in remote:
            return True
        for port, other in ((pair.local, pair.remote), (pair.remote, pair.local)):
            if port.address.ip in self.new and (port.address.ip, other.nic) not in self.ends:
                return True
        differ = self.uneven or len(local) != len(remote)
        return differ and (pair.local.nic, pair.remote.nic) not in self.links


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
        self._task: asyncio.Task[None] | None = None
        self._proofs: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
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
        if port in self._remote:
            return
        if len(self._remote) >= 2 * limits.MAX_PORTS:
            raise ProtocolError("the peer has named too many ports")
        sources = paths.peer_sources([(port.address.ip, port.source_ports)])
        try:
            terms.admit(sources)
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
            await self._channel.send("port", port=to_builtins(told, enc_hook=str))
            self._new.add(port.address.ip)
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
        due = [each for each in reach.wanted if self._tried(each).next <= now()]
        if due:
            await self._begin(due)
        self._pause = min(2 * self._pause, _LONGEST_LOOK_SECONDS)
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
        uneven = False
        for plane, each in self._planes.items():
            its, end = info.planes[plane - 1], (each.local.plane, each.local.address.ip)
            if plane in alive and not its.suspended and end in here:
                links.add((each.local.nic, each.remote.nic))
                ends.add((each.local.address.ip, each.remote.nic))
                ends.add((each.remote.address.ip, each.local.nic))
                uneven |= bool(its.slow) or its.share_percent < _UNEVEN_PERCENT
        reach = _Reach(links, uneven, self._new, ends)
        pairs = [each for plane, each in self._planes.items() if plane in waiting]
        proving = [self._planes[plane] for plane in self._proofs]
        reach.wanted = [
            each for each in (*pairs, *self._others)
            if reach.lacks(each) and each not in proving
            if (each.local.plane, each.local.address.ip) in here
            if each.remote.address.ip in there
        ]  # fmt: skip
        return reach

    async def _begin(self, due: list[PortPair]) -> None:
        """Begins to prove pairs."""
        terms, controller = self._terms, self._terms.controller
        added: dict[int, PortPair] = {}
        for each in due:
            tried = self._tried(each)
            tried.next = asyncio.get_running_loop().time() + tried.pause
            tried.pause = min(2 * tried.pause, _LONGEST_PAUSE_SECONDS)
            if each not in self._planes.values() and self._may_ask(each):
                added |= paths.numbered([each], terms.links.most, {*self._planes, *added})
        if added:
            evs = paths.pair_evs(
                added, terms.links.sports, terms.udp_port,
                terms.config.spraying.evs_per_pair, terms.rng,
                used=[ev.attr.ev for ev in controller.evs],
            )  # fmt: skip
            indices = await controller.add(evs)
            planes = {controller.evs[index].attr.plane for index in indices}
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
        self._spent_bytes += ADDRESS_TRIES * SMALL_BYTES
        heard_bytes = self._heard_bytes + self._channel.received_bytes
        return self._spent_bytes <= AMPLIFICATION * heard_bytes

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
        address = pair.remote.address.ip
        known = address in self._proved

        async def probe(place: int, payload: int, timeout: float) -> ProbeResult:
            return await controller.probe(indices[place], payload, timeout)

        proof = await prove(
            probe,
            [None if known else address] * len(indices),
            terms.path_mtu,
            ADDRESS_TRIES * SMALL_BYTES,
            planes=[plane] * len(indices),
            rtt=self._channel.rtt,
        )
        if proof.mtu < terms.path_mtu or not (await self._look()).lacks(pair):
            return
        if not known:
            self._proved.add(address)
            terms.claim(paths.peer_sources([(address, pair.remote.source_ports)]))
        number = f"QP {terms.queue.qpn:#x}"
        if pair.weight < 100:
            await terms.dispatcher.call(
                terms.queue.set_weight(plane, pair.weight), f"{number}: set a weight"
            )
        gone = {*proof.dead, *proof.unproven}
        await controller.join([each for place, each in enumerate(indices) if place not in gone])
        logger.info("%s: plane %d joins: %s to %s", number, plane, pair.local.nic, address)
        if (nic := pair.local.nic) in terms.silent:
            terms.silent.remove(nic)
            terms.warn(f"plane {plane} ({nic}) to {terms.host} answers: it is used")


def _key(pair: PortPair) -> tuple[IpAddress, IpAddress]:
    return pair.local.address.ip, pair.remote.address.ip
