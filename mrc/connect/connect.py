# SPDX-License-Identifier: Apache-2.0
"""The route of a connect, from the name of a host to a QP that is ready on both sides.

1. `dial` resolves the name and opens the TCP connection (and comes again to a busy peer).
2. With a `Security` both sides go over to TLS and prove themselves (mrc.connect.tls).
3. Both sides create a QP in INIT and exchange hellos: attributes, addresses, random bytes for the
   seal. A listener checks the hello before it creates any state for the peer.
4. From both hellos follow the seal, the EVs, and the largest path MTU that interfaces allow.
5. INIT to RTR: the engine gets EVs, the peer's addresses and the secrets of the seal.
6. Both sides prove the EVs (mrc.connect.proof) and agree on one path MTU.
7. RTR to RTS, with the window of PSNs that the links fill in a round trip.
8. Each side says `rts`: both may send.

`Local.connect` is all of it; from stage 3 on both sides run `Local.establish`, and the connecting
side sends first at every step. Functions and methods stand in the order of the stages.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field

from mrc import limits, products
from mrc.config import ContextConfig
from mrc.connect.admission import Admission, Admit, Claims, ask_program, is_loopback
from mrc.connect.dial import Rejoin, Rejoins, dial, new_token, rejoined
from mrc.connect.failures import SEALS, about, timed_out, wanted_seal
from mrc.connect.nat import Ends
from mrc.connect.oob import (
    EXCHANGE_TRIPS,
    Attributes,
    Channel,
    CutOffError,
    Hello,
    Peer,
    check_readings,
    extended,
)
from mrc.connect.pairs import AMPLIFICATION, PairProof, Pairs, PairTerms, sharing_hosts
from mrc.connect.parse import parse_address
from mrc.connect.profiles import CcProfile, ContextProfiles, EvProfile
from mrc.connect.proof import (
    Proof,
    no_answer,
    plane_limits,
    plane_names,
    prove,
    psns_for,
    silent_paths,
    smaller_packets,
)
from mrc.connect.tls import RANDOM_BYTES, Guard, QuestionError
from mrc.engine import paths
from mrc.engine.dispatch import Dispatcher
from mrc.engine.paths import LocalPort, PathEv, PeerSource, PortPair, RemotePort
from mrc.engine.ports import LocalPorts
from mrc.engine.queue_pair import QueuePair
from mrc.enums import CcKind, EvState, Integrity, Seal
from mrc.errors import (
    BusyError,
    ConfigError,
    ConnectError,
    ConnectRefusedError,
    InUseError,
    Kind,
    MrcError,
    PathError,
    PeerGoneError,
    ProtocolError,
    QueueFullError,
    StateError,
    reason_of,
)
from mrc.events import ProbeResult
from mrc.fabric.hostconfig import HostConfig, IpAddress
from mrc.linux import system
from mrc.linux.secret import Secret
from mrc.tasks import Limit, cancelled

if TYPE_CHECKING:
    from mrc.aio.qp import QP
    from mrc.messages.messages import MessagePeer

logger = logging.getLogger("mrc.connect")
_warning_logger = logging.getLogger("mrc.establish")

_FIRST_PAUSE_SECONDS = 0.05  # doubles after each refusal by a busy peer
_LONGEST_PAUSE_SECONDS = 0.4
_DROPS = 8  # a connection that the peer drops counts as busy up to this many times
_USUAL_SECONDS = 0.5  # of the usual pairs alone, with two round trips
_NUMBER_TRIES = 8  # with 1024 QPs, one random QPN in 16384 is already in use


# ---- What a connect starts from ------------------------------------------------------------------


class Local(Struct, frozen=True):
    """State that all QPs of a Context share."""

    name: str
    config: ContextConfig
    host: HostConfig | None
    links: LocalPorts
    dispatcher: Dispatcher
    rng: random.Random
    guard: Guard | None
    admission: Admission
    ev_profiles: ContextProfiles[EvProfile]
    cc_profiles: ContextProfiles[CcProfile]
    warned: deque[str] = field(default_factory=lambda: deque(maxlen=64))  # lines, logged once each
    source: IpAddress | None = None  # the address to connect from; None: any
    claims: Claims = field(default_factory=Claims)
    rejoins: Rejoins = field(default_factory=Rejoins)

    @classmethod
    def of(
        cls, config: ContextConfig, host: HostConfig | None, links: LocalPorts, engine: Dispatcher
    ) -> Self:
        """That of a Context with this first engine."""
        evs = EvProfile("default", active_per_plane=config.spraying.evs_active_per_plane)
        cc = CcProfile("default", config.cc, config.cc_parameters, config.plane_shares)
        return cls(
            name=config.name or (host.host if host else socket.gethostname()),
            config=config,
            host=host,
            links=links,
            dispatcher=engine,
            rng=random.Random(secrets.randbits(64)),
            guard=None if config.security is None else Guard(config.security),
            admission=Admission(config.limits),
            ev_profiles=ContextProfiles(evs),
            cc_profiles=ContextProfiles(cc),
        )

    def warn(self, line: str) -> None:
        """Logs the line, if there is one. A transfer has several QPs with the same findings."""
        if line:
            _warning_logger.log(
                logging.DEBUG if line in self.warned else logging.WARNING, "%s", line
            )
            self.warned.append(line)

    @property
    def srv6(self) -> HostConfig | None:
        """The host configuration if it defines SRv6 paths, else None."""
        return self.host if self.host and self.host.has_srv6 else None

    async def connect(self, terms: Terms, host: str, port: int, *, timeout: float) -> QP:
        """As `Context.connect`; retries while the peer is busy.

        A user has all the time for an answer about the peer, or for its code: nobody waits
        meanwhile.
        """
        try:
            return await _connect(self, terms, host, port, timeout)
        except QuestionError as question:
            assert self.guard is not None  # which has raised it
            await self.guard.ask(question)
        return await _connect(self, terms, host, port, timeout)

    async def establish(
        self, channel: Channel, terms: Terms, *, first: bool, expected: str = ""
    ) -> QP:
        """Returns this end of a QP that is ready on both sides. `first`: this side sends first.

        On failure this destroys the QP, and the caller must inform the peer. `expected` is the
        required host name of the peer; empty: any.
        """
        with ExitStack() as taken:
            for profile in (terms.ev_profile, terms.cc_profile):
                profile._take()
                taken.callback(profile.give_back)
            end = await _Exchange(self, channel, terms, first=first).run(expected)
            taken.pop_all()
            return end


class Terms(Struct, frozen=True):
    """The caller's parameters for a QP."""

    private: dict[str, Any]
    ev_profile: EvProfile
    cc_profile: CcProfile
    end: Callable[..., QP]  # makes this side's end of the QP
    admit: Admit | None = None  # whether a peer may connect
    check: Callable[[str, Collection[IpAddress], str], None] = lambda *_: None
    """refuses by the peer's name, its addresses, and the one that it calls from"""
    failed: Callable[[Peer, MrcError], None] | None = None  # a peer that was admitted
    messages: bool = False  # the QP carries messages
    rejoins: bool = True  # a TCP connection that is lost is opened again
    peer: Callable[[Dispatcher], MessagePeer] | None = None  # the same, with a peer that exists
    queue: Callable[[], QueuePair] | None = None  # makes one for each attempt, with its number


# ---- Attempts ------------------------------------------------------------------------------------


async def _connect(local: Local, terms: Terms, host: str, port: int, timeout: float) -> QP:
    attempt = _Attempt(local, terms, host, port)
    with about(host, port):
        try:
            async with Limit(timeout) as limit:
                return await attempt.run(limit)
        except TimeoutError as error:
            heard = attempt.channel is not None and attempt.channel.received_bytes > 0
            if attempt.busy is not None and not heard:
                raise attempt.busy from error
            await attempt.refuse(error)
            raise timed_out(host, port, timeout, attempt.channel) from error
        except (Exception, asyncio.CancelledError) as error:
            await attempt.refuse(error)
            raise


class _Attempt:
    def __init__(self, local: Local, terms: Terms, host: str, port: int) -> None:
        self._local = local
        self._terms = terms
        self._host = host
        self._port = port
        self.channel: Channel | None = None
        self.busy: MrcError | None = None
        """The last refusal by a busy peer."""

    async def run(self, limit: Limit) -> QP:
        """Connects; the round trip to the peer extends the limit."""
        seconds = limit.seconds
        srv6 = self._local.srv6
        expected = self._host if srv6 and self._host in srv6.peers else ""
        pause, drops = _FIRST_PAUSE_SECONDS, 0
        while True:
            own = self._local
            self.channel = await dial(
                own.host, self._host, self._port, own.source, namespace=own.config.namespace
            )
            self.channel.limit_silence(on=True)
            try:
                with extended(limit, self.channel, seconds, EXCHANGE_TRIPS):
                    if self._local.guard is not None:
                        await self._local.guard.connect(self.channel)
                    end = await self._local.establish(
                        self.channel, self._terms, first=True, expected=expected
                    )
                    self.channel.limit_silence(on=False)
                    return end
            except CutOffError as error:  # `dial` finds another way if there is one
                logger.info("%s: %s", self._host, error)
                self.busy = None
            except PeerGoneError as error:
                # A peer under a flood of connections drops some of them without a message.
                drops += 1
                if drops > _DROPS:
                    raise
                self.busy = error
            except BusyError as error:
                self.busy = error
            self.channel.abort()
            self.channel = None
            await asyncio.sleep(self._local.rng.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def refuse(self, error: BaseException) -> None:
        if self.channel is not None:
            await self.channel.refuse(reason_of(error), Kind.of(error))


# ---- 3. The QP and both hellos -------------------------------------------------------------------


async def _create(local: Local, terms: Terms) -> QueuePair:
    """Creates the QP in INIT, with a random free number unless the caller has chosen one."""
    config = local.config
    for _ in range(_NUMBER_TRIES):
        queue = terms.queue() if terms.queue else QueuePair.sized(config.queues)
        created = local.dispatcher.call(queue.create(), "create QP")
        try:
            await asyncio.shield(created)
        except InUseError as error:
            if terms.queue is not None:  # an exchange that was cut off has not ended yet
                raise BusyError(f"QP {queue.qpn:#x} is being connected already") from error
            continue
        except asyncio.CancelledError:
            created.add_done_callback(partial(_undo, local, queue))
            raise
        try:
            await local.dispatcher.call(queue.to_init(), "QP to INIT")
        except BaseException:
            _forget(local, queue)
            raise
        return queue
    raise QueueFullError(f"{_NUMBER_TRIES} random QP numbers were all in use: try again")


def _undo(local: Local, queue: QueuePair, created: asyncio.Future[int]) -> None:
    if created.exception() is None:
        _forget(local, queue)


def _forget(local: Local, queue: QueuePair) -> None:
    """Destroys a QP whose exchange failed, without waiting."""

    def on_reply(reply: asyncio.Future[int]) -> None:
        local.dispatcher.detach(queue)
        if not reply.cancelled():
            reply.exception()  # marks it as retrieved, so that asyncio logs nothing

    try:
        reply = local.dispatcher.call(queue.destroy(), f"QP {queue.qpn:#x}: destroy")
    except StateError:
        return  # the Context is closed, and the QP with it
    reply.add_done_callback(on_reply)


class _Agreement(Struct, frozen=True):
    """The parameters of the QP, computed from the hellos of both sides."""

    evs: list[PathEv]
    sources: list[PeerSource]
    path_mtu: int
    mtus: dict[int, int]  # what the interfaces of each plane allow
    integrity: Integrity
    dynamic_mpr: bool
    configured: bool  # the addresses come from our own configuration, not from the peer's hello


class _Exchange:
    """The stages of one side from here on. Each reads what those before it have found."""

    queue: QueuePair
    ports: list[LocalPort]
    """This side's ports for the peer, as of the start of the exchange, and their source ports."""
    sports: dict[int, tuple[int, ...]]
    mine: Hello
    peer: Hello
    ends: Ends
    plan: _Agreement
    pairs: dict[int, PortPair]
    """The pairs of ports by plane; none with a host configuration that defines the paths."""
    others: list[PortPair]
    """Pairs that a running QP tries."""
    nat: PortPair | None = None
    """The pair that a NAT lies between."""

    def __init__(self, local: Local, channel: Channel, terms: Terms, *, first: bool) -> None:
        """`first`: this side sends first."""
        self.local = local
        self.channel = channel
        self.terms = terms
        self.first = first
        self.loopback = is_loopback(channel)
        self.random: Secret | None = None  # of this side; without TLS it would be no secret
        self.messages: MessagePeer | None = None
        self.pairs, self.others = {}, []
        self.proofs: dict[int, PairProof] = {}  # what the probes have found, by plane
        self.silent: set[str] = set()  # interfaces that were said not to answer
        self.proved: list[IpAddress] = []  # addresses of the peer, but behind NAT
        self.end: QP | None = None

    async def run(self, expected: str) -> QP:
        """Stages 3 to 8. `expected`: the required host name of the peer; empty: any."""
        if not self.first:  # a listener checks the hello before it creates any state for the peer
            await self._take_hello(expected)
        self.queue = await _create(self.local, self.terms)
        try:
            await self._find_ports()
            await self._open_messages()
            mark = ""
            if self.channel.secured:
                self.random, mark = Secret.random(RANDOM_BYTES), secrets.token_hex(RANDOM_BYTES)
            self.mine = self._hello(mark)
            await self.channel.send_hello(self.mine, self.random)
            if self.first:
                await self._take_hello(expected)
            if self.messages is not None and self.peer.attributes.inbox is None:
                raise ConnectError(f"{self._host} takes no messages on this QP")
            seal = self._agreed_seal()
            self.plan = self._plan(seal)
            self.end = end = self.terms.end(
                self.local.dispatcher, self.queue, self.plan.evs, self.channel, self.peer,
                self.local.config, self.terms.ev_profile, self.terms.cc_profile, self.messages,
            )  # fmt: skip
            if seal:
                await self._seal(seal)
            await self._receive_ready()
            allowed = await end._controller.start()
            await self._turn("rtr")
            path_mtu, rtt_ns = await self._prove(end, allowed)
            window = self._window(path_mtu, rtt_ns)
            await self._send_ready(path_mtu, window)
            if self.messages is not None:
                await self.messages.connect(self.peer)
            await self._turn("rts")
            end._pairs = self._tried_pairs(end, path_mtu)
            end._rejoin = self._rejoin(end)
            end._start(path_mtu, window)
            return end
        except BaseException:
            if self.end is not None:
                self.end._controller.close()
            _forget(self.local, self.queue)
            if self.messages is not None:
                self.messages.forget()
            raise

    @property
    def _host(self) -> str:
        """The peer, for a line of text."""
        return self.channel.called or self.peer.called

    @property
    def _nics(self) -> dict[int, str]:
        """The interface of each plane."""
        nics = {port.plane: port.nic for port in self.ports}
        pairs = self._later() | self.pairs
        return nics | {plane: each.local.nic for plane, each in pairs.items()}

    async def _find_ports(self) -> None:
        """The ports that can reach this peer, among them that of the address which it has named."""
        local, links, (named, peer) = self.local, self.local.links, self.channel.ends
        if not self.loopback and local.host is None:
            engine = local.dispatcher
            await links.open_for(named, peer, local.config, engine.call, engine.engine)
        usable = links.for_peer(named)
        self.ports = [port for port in usable if port.loopback is self.loopback]
        self.sports = links.sports
        if not self.ports:
            which, why = ("loopback", "lo is down") if self.loopback else ("network", links.missing)
            to = self.channel.remote
            raise PathError(f"this Context has no {which} interface for {to}: {why}")

    async def _open_messages(self) -> None:
        local = self.local
        if self.terms.messages:
            opened = products.need("mrc.messages.messages", "messages").MessagePeer.open
            self.messages = await opened(local.dispatcher, self.queue, local.config.queues.max_wimm)
        elif self.terms.peer is not None:
            self.messages = self.terms.peer(local.dispatcher)

    def _hello(self, mark: str) -> Hello:
        """`mark` stands for the random bytes of this side."""
        config = self.local.config
        ports = [RemotePort.of(port, self.sports[port.plane]) for port in self.ports]
        attributes = Attributes(
            qpn=self.queue.qpn,
            first_psn=secrets.randbits(24),
            path_mtu=config.spraying.mtu_limit,
            mpr=self.queue.mpr,
            max_wimm=config.queues.max_wimm,
            integrity="udp" if config.integrity is Integrity.UDP else "icrc",
            udp_port=self.local.dispatcher.engine.udp_port,
            ports=tuple(ports),
            dynamic_mpr=config.queues.dynamic_mpr,
            sack_times=self.terms.cc_profile.settings.kind is CcKind.DELAY,
            service_time=True,
            readings=config.readings.shared_names,
            seal=SEALS[wanted_seal(config.seal, self.channel)],
            inbox=None if self.messages is None else self.messages.inbox,
            seal_random=mark,
            rejoin="" if self.first or not self.terms.rejoins else new_token(),
        )
        return Hello(
            host=self.local.name,
            here=self.channel.local,
            there=self.channel.remote,
            attributes=attributes,
            private=self.terms.private,
        )

    async def _take_hello(self, expected: str) -> None:
        """Receives the peer's hello; raises if it is wrong or the peer is not allowed."""
        remote, terms = self.channel.remote, self.terms
        self.peer = peer = await Hello.receive(self.channel)
        if expected and peer.host != expected:
            raise ConnectError(f"{remote} is host {peer.called}, not {expected}")
        check_readings(peer.called, peer.attributes.readings, self.local.config.readings)
        for port in peer.attributes.ports:
            if port.address.ip.is_loopback is not self.loopback:
                wrong = f"the peer sent address {port.address.ip}, which is not its own"
                raise ProtocolError(wrong)
        self.ends = Ends.of(self.channel, peer, self.first)
        if not self.ends.has_nat:
            self.local.claims.check(remote, self._sources())
        if terms.admit is not None:
            await ask_program(terms.admit, Peer._at(self.channel, peer.host, peer.private))
        terms.check(peer.host, [port.address.ip for port in peer.attributes.ports], remote)

    def _sources(self) -> list[PeerSource]:
        """The source addresses and ports of the peer's packets, according to its hello."""
        ports = self.peer.attributes.ports
        found = paths.peer_sources((port.address.ip, port.source_ports) for port in ports)
        if self.nat is None:
            return found
        return self.ends.sources(self.nat, self.peer.attributes.udp_port, found, self.first)

    async def _turn(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Exchanges messages of one type with the peer; the connecting side sends first."""
        if self.first:
            await self.channel.send(kind, **fields)
            return await self.channel.expect(kind)
        answer = await self.channel.expect(kind)
        await self.channel.send(kind, **fields)
        return answer

    # ---- 4. Seal, EVs and MTU -------------------------------------------------------------

    def _peer_random(self) -> Secret | None:
        """The random bytes of the peer."""
        index = int(self.peer.attributes.seal_random or "0", 16)
        randoms = self.channel.randoms
        return randoms[index] if index < len(randoms) else None

    def _agreed_seal(self) -> Seal:
        """The stronger wish of both hellos; raises ProtocolError if the peer's is wrong."""
        both = (self.mine.attributes, self.peer.attributes)
        seal = Seal(max(SEALS.index(each.seal) for each in both))
        if seal and self.random is None:
            raise ProtocolError("the peer wants sealed packets, but the exchange is not encrypted")
        if seal and self._peer_random() in (None, self.random):
            raise ProtocolError("the peer sent no random bytes of its own for sealed packets")
        return seal

    def _plan(self, seal: Seal) -> _Agreement:
        """Chooses the EVs and the largest possible path MTU from both hellos."""
        local, theirs, profile = self.local, self.peer.attributes, self.terms.ev_profile
        configured = local.srv6 is not None and not self.loopback
        evs, mtus = (
            self._configured_evs(local.srv6) if local.srv6 and configured else self._evs(seal)
        )
        if not evs:
            raise PathError(f"{self._host} and this host have no IP version in common")
        overhead = paths.SEAL_OVERHEAD if seal else 0
        most = min(local.config.spraying.mtu_limit, theirs.path_mtu)
        payloads = plane_limits([(plane, mtu - overhead) for plane, mtu in mtus], most)
        planes = {ev.attr.plane for ev in evs}
        if small := sorted(plane for plane in planes if payloads[plane] < limits.MIN_MTU):
            what = f"{plane_names(small, self._nics)} to {self._host}"
            if len(small) == len(planes):
                raise PathError(f"{what}: the MTU is too small: raise it")
            local.warn(f"{what}: left out, because the MTU is too small")
            evs = [ev for ev in evs if ev.attr.plane not in small]
        evs = profile.settings._choose(evs)
        if not evs:
            raise PathError(f"EV profile {profile.name} has no path to {self._host}")
        used = {ev.attr.plane for ev in evs}
        payloads = {plane: mtu for plane, mtu in payloads.items() if plane in used}
        payloads |= {plane: min(x.mtu - overhead, most) for plane, x in self._later().items()}
        return _Agreement(
            evs,
            self._sources(),
            min(payloads.values()),
            payloads,
            # UDP's checksum alone, the weaker protection, applies only if both sides choose it.
            integrity=local.config.integrity if theirs.integrity == "udp" else Integrity.ICRC,
            dynamic_mpr=local.config.queues.dynamic_mpr and theirs.dynamic_mpr,
            configured=configured,
        )

    def _configured_evs(self, srv6: HostConfig) -> tuple[list[PathEv], list[tuple[int, int]]]:
        """The EVs of the host configuration, and the payload that each port of both sides allows,
        by plane.
        """
        local, peer, theirs = self.local, self.peer, self.peer.attributes
        if peer.host not in srv6.peers:
            which = f"host {peer.called} is not among the configured peers"
            raise ConnectError(f"{which} of {srv6.host}")
        named = srv6.peers[peer.host]
        addresses = {port.address.ip for port in theirs.ports}
        if not addresses <= set(named.sources):
            raise ConnectError(f"host {peer.called} sends from addresses that are not configured")
        evs = paths.srv6_evs(named.paths, self.ports, self.sports, theirs.udp_port, local.rng)
        if not evs:
            why = f"no port with a path to host {peer.called} is usable"
            raise PathError(f"{why}: {local.links.missing}")
        least = min(port.mtu for port in theirs.ports)
        return evs, [(port.plane, min(port.mtu, least)) for port in self.ports]

    def _evs(self, seal: Seal) -> tuple[list[PathEv], list[tuple[int, int]]]:
        """The same for addresses of both hellos. Finds the pairs."""
        local, theirs = self.local, self.peer.attributes
        if self.loopback:
            version = parse_address(self.channel.remote).version
            found = paths.loopback_pairs(self.ports, theirs.ports, version) or paths.loopback_pairs(
                self.ports, theirs.ports, 10 - version
            )
        else:
            found = paths.pair(self.ports, theirs.ports, self.channel.ends, first=self.first)
        most = local.links.most
        soon = [each for each in found if not each.late]
        self.nat = nat = self.ends.pair(found, self.first) if seal else None
        self.pairs = pairs = paths.numbered([nat] if nat else soon or found, most)
        self.others = [each for each in found if each not in pairs.values()]
        per_pair = local.config.spraying.evs_per_pair
        if nat is not None:
            udp_port = local.dispatcher.engine.udp_port
            evs = paths.nat_evs(nat, udp_port, theirs.udp_port, per_pair, local.rng)
        else:
            evs = paths.pair_evs(pairs, self.sports, theirs.udp_port, per_pair, local.rng)
        most_bytes = paths.common_mtu(pairs.values(), self.others, self.ports, theirs.ports)
        return evs, [(plane, min(each.mtu, most_bytes)) for plane, each in pairs.items()]

    def _later(self) -> dict[int, PortPair]:
        """Pairs that may join the running QP, whose path MTU does not change then, by plane."""
        found = paths.left_over(self.pairs.values(), () if self.nat else self.others)
        planes = self.terms.ev_profile.settings.planes
        numbered = paths.numbered(found, self.local.links.most, self.pairs)
        return {plane: numbered[plane] for plane in numbered if not planes or plane in planes}

    # ---- 5. RTR ---------------------------------------------------------------------------

    async def _seal(self, seal: Seal) -> None:
        """Gives the engine the secrets of the QP. The random bytes are wiped."""
        random, peer_random = self.random, self._peer_random()
        assert random is not None and peer_random is not None
        qpn = self.peer.attributes.qpn
        command = self.queue.set_seal(
            seal, qpn, random=random, peer_random=peer_random, first=self.first
        )
        for each in (random, *self.channel.randoms):
            each.wipe()
        self.channel.randoms.clear()
        await self.local.dispatcher.call(command, "seal the QP")

    async def _receive_ready(self) -> None:
        """INIT to RTR."""
        theirs, plan, queue = self.peer.attributes, self.plan, self.queue
        call = self.local.dispatcher.call
        try:
            await call(queue.set_evs([ev.attr for ev in plan.evs]), "set EVs")
        except OSError as error:
            if error.errno != errno.ENETDOWN:
                raise
            raise PathError("an interface changed during the connect: try again") from error
        try:
            await call(queue.set_peer(plan.sources), "set the peer's addresses")
        except InUseError as error:
            raise ConnectError("another peer already uses a UDP source of this hello") from error
        command = queue.to_rtr(
            dest_qpn=theirs.qpn,
            rq_psn=theirs.first_psn,
            integrity=plan.integrity,
            dynamic_mpr=plan.dynamic_mpr,
            sack_times=theirs.sack_times,
            service_times=theirs.service_time,
        )
        await call(command, "QP to RTR")

    # ---- 6. The proof of the EVs ----------------------------------------------------------

    async def _prove(self, end: QP, allowed: Sequence[int]) -> tuple[int, int]:
        """Proves the allowed EVs from both sides. Returns the path MTU that both agree on, and
        the round trip of the longest plane in ns.
        """
        local, channel, plan, peer = self.local, self.channel, self.plan, self.peer
        if not allowed:
            raise PathError(f"EV profile {end.ev_profile.name} denies every path to {self._host}")
        targets = sorted({str(plan.evs[index].attr.destination) for index in allowed})
        nat = self.ends.in_words(passed=self.nat is not None)
        silence = no_answer(self._host, targets, peer.attributes.udp_port, nat)
        try:
            proof, rtt_ns, asked = await channel.during(self._probe_all(end, allowed))
        except ConnectRefusedError as error:
            if error.kind is not Kind.NO_ANSWER:  # it has found the same a little earlier
                raise
            proof = Proof({}, ())
        if not proof.mtu:
            silence.pairs = await self._tried_pairs(end, plan.path_mtu).infos()
            raise silence
        for index in proof.dead:  # no data there
            await end._controller.set_state(index, EvState.ASSUMED_BAD)
        # Nor probes, to addresses that never answered.
        await end._controller.hold_back(proof.unproven)
        planes = [ev.attr.plane for ev in plan.evs]
        living = set(asked).difference(proof.dead, proof.unproven)
        gone = sorted({*allowed, *asked} - living)
        covered = await self._settle(end, living)
        idle = {plane for plane, each in self.pairs.items() if each.nics <= covered}
        idle -= {planes[index] for index in living}
        silent_ones = [index for index in gone if planes[index] not in idle]
        self.silent = {self._nics[planes[index]] for index in silent_ones}
        arp = sharing_hosts(self.pairs, self.ports, peer.attributes.ports, self._host)
        local.warn(silent_paths(self._host, planes, silent_ones, self._nics, arp))
        silent = {plan.evs[index].attr.destination for index in proof.unproven}
        answered = {plan.evs[index].attr.destination for index in asked} - silent
        proved = [s for s in plan.sources if plan.configured or s.address in answered]
        self.terms.check(peer.host, [source.address for source in proved], channel.remote)
        if self.nat is None:  # else other hosts, behind other NATs, have the same address
            self.proved = sorted({each.address for each in proved}, key=str)
            local.claims.check(channel.remote, proved)
            said = [port.address.ip for port in peer.attributes.ports]
            channel.at_end(local.claims.take(channel.remote, proved, said), of_qp=True)
        theirs = (await self._turn("proved", mtu=proof.mtu)).get("mtu")
        if type(theirs) is not int or not limits.MIN_MTU <= theirs <= limits.MAX_MTU:
            raise ProtocolError(
                f"the peer sent a proved.mtu that is not within {limits.MIN_MTU}..{limits.MAX_MTU}"
            )
        path_mtu = min(proof.mtu, theirs & ~3)
        carried = dict.fromkeys(self._later(), plan.path_mtu) | proof.carried
        local.warn(smaller_packets(self._host, path_mtu, plan.mtus, carried, self._nics))
        return path_mtu, rtt_ns

    async def _probe_all(self, end: QP, allowed: Sequence[int]) -> tuple[Proof, int, Sequence[int]]:
        """Probes the allowed EVs, and soon those of all other pairs if none of them answers.
        Returns what `_probe` does, and the EVs in question.
        """
        heard = asyncio.Event()
        usual = asyncio.create_task(self._probe(end, allowed, heard))
        hearing = asyncio.create_task(heard.wait())
        tasks = [usual]
        try:
            await asyncio.wait(
                (usual, hearing),
                timeout=_USUAL_SECONDS + 2 * self.channel.rtt,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if heard.is_set() or not self.others:
                return *await usual, allowed
            more = await self._add_others(end)
            others = asyncio.create_task(self._probe(end, more, asyncio.Event()))
            tasks.append(others)
            for each in asyncio.as_completed(tasks):
                proof, rtt_ns = await each
                if not proof.mtu:
                    continue
                if usual.done() and usual.result()[0].mtu:
                    return proof, rtt_ns, allowed
                await end._controller.join(set(more).difference(proof.dead, proof.unproven))
                await end._controller.wait(allowed)
                return proof, rtt_ns, more
            return *usual.result(), allowed
        finally:
            await cancelled(hearing, *tasks)

    async def _add_others(self, end: QP) -> tuple[int, ...]:
        """Nothing answers on the usual pairs: adds the EVs of all others."""
        more = paths.numbered(self.others, self.local.links.most, self.pairs)
        evs = paths.pair_evs(
            more, self.sports, self.peer.attributes.udp_port,
            self.local.config.spraying.evs_per_pair, self.local.rng,
            used=[ev.attr.ev for ev in self.plan.evs],
        )  # fmt: skip
        indices = await end._controller.add(evs)
        self.plan.evs.extend(end._controller.evs[index] for index in indices)
        self.pairs |= more
        self.others = []
        self.plan.mtus.update(
            {plane: min(self.plan.path_mtu, each.mtu) for plane, each in more.items()}
        )
        return indices

    async def _settle(self, end: QP, living: set[int]) -> set[tuple[bool, str]]:
        """Where planes with `living` EVs before them reach both interfaces, link-local pairs wait,
        and spare pairs are backups. Returns the interfaces that planes reach. All planes get their
        weights: one without a living EV may return.
        """
        for plane, weight in self._weights().items():
            if weight < 100:
                command = self.queue.set_weight(plane, weight)
                await self.local.dispatcher.call(command, "set the weight of a plane")
        covered: set[tuple[bool, str]] = set()
        planes = [ev.attr.plane for ev in self.plan.evs]
        alive = [plane for plane in self.pairs if any(planes[index] == plane for index in living)]
        used = []
        for plane in alive:
            each = self.pairs[plane]
            if not (each.may_wait and each.nics <= covered):
                weight = 0 if each.spare and each.nics <= covered else each.weight
                covered |= each.nics
                used.append(plane)
                if weight < each.weight:
                    command = self.queue.set_weight(plane, weight)
                    await self.local.dispatcher.call(command, "set the weight of a plane")
        idle = {
            plane
            for plane, each in self.pairs.items()
            if plane not in used and each.may_wait and each.nics <= covered
        }
        await end._controller.wait([i for i, plane in enumerate(planes) if plane in idle])
        return covered

    def _weights(self) -> dict[int, int]:
        """The weights of the planes: the smaller of those that both hosts give their ports."""
        if self.pairs:
            return {plane: each.weight for plane, each in self.pairs.items()}
        there = {port.number: port.weight for port in self.peer.attributes.ports}
        return {port.plane: min(port.weight, there.get(port.plane, 100)) for port in self.ports}

    async def _probe(
        self, end: QP, allowed: Sequence[int], heard: asyncio.Event
    ) -> tuple[Proof, int]:
        """Probes the EVs; returns the proof, by EV indices, and the round trip of the longest
        plane. `heard` is set at the first answer.
        """
        evs = [self.plan.evs[index].attr for index in allowed]
        planes = [ev.plane for ev in evs]
        rtts_ns: dict[int, int] = {}  # shortest round trip of each plane
        self.proofs |= PairProof.of(planes)

        async def probe(place: int, payload: int, timeout: float) -> ProbeResult:
            result = await end._controller.probe(allowed[place], payload, timeout)
            if result.rtt_ns is not None:
                heard.set()
                plane = planes[place]
                rtts_ns[plane] = min(rtts_ns.get(plane, result.rtt_ns), result.rtt_ns)
            return result

        proof = await prove(
            probe,
            [None if self.plan.configured else ev.destination for ev in evs],
            self.plan.path_mtu,
            AMPLIFICATION * self.channel.received_bytes,
            planes=planes,
            rtt=self.channel.rtt,
            ping=self.channel.ping,
        )
        self.proofs |= PairProof.of(planes, proof)
        dead = tuple(allowed[place] for place in proof.dead)
        unproven = tuple(allowed[place] for place in proof.unproven)
        return Proof(proof.carried, dead, unproven), max(rtts_ns.values(), default=0)

    # ---- 7. RTS ---------------------------------------------------------------------------

    def _window(self, path_mtu: int, rtt_ns: int) -> int:
        """The PSNs that this side may have in flight, at most the window that the peer grants."""
        psns = self.local.config.queues.mpr
        if psns == 0:
            nics = {port.nic for port in self.ports}
            if not self.pairs:
                planes = {ev.attr.plane for ev in self.plan.evs}
                nics = {port.nic for port in self.ports if port.plane in planes}
            psns = psns_for(system.links_bps(nics), rtt_ns, path_mtu)
        return min(psns, self.peer.attributes.mpr)

    async def _send_ready(self, path_mtu: int, window: int) -> None:
        """RTR to RTS."""
        config, cc = self.local.config, self.terms.cc_profile.settings
        if 0 < cc.parameters.max_cwnd < path_mtu:
            wrong = f"max_cwnd {cc.parameters.max_cwnd} is below the path MTU, {path_mtu}"
            raise ConfigError(f"CC profile {self.terms.cc_profile.name}: {wrong}")
        command = self.queue.to_rts(
            sq_psn=self.mine.attributes.first_psn,
            path_mtu=path_mtu,
            peer_mpr=window,
            peer_max_wimm=self.peer.attributes.max_wimm,
            timeout=config.retries.ack_timeout_exponent,
            retry_linear=config.retries.linear,
            retry_exp=config.retries.exponential,
            cc=cc.kind,
            cc_profile=asdict(cc.parameters),
            spray=config.spraying.burst_packets,
            plane_shares=cc.plane_shares,
            ev_active_per_plane=self.terms.ev_profile.settings.active_per_plane,
        )
        await self.local.dispatcher.call(command, "QP to RTS")

    # ---- 9. Pairs that join ---------------------------------------------------------------

    def _tried_pairs(self, end: QP, path_mtu: int) -> Pairs:
        """The pairs so far. Others are tried while the QP runs, but none that are configured."""
        local, theirs, planes = self.local, self.peer.attributes, self.pairs
        if self.plan.configured:
            planes = paths.configured_pairs(self.ports, theirs.ports)
        return Pairs(
            self.channel,
            end._open_again,
            PairTerms(
                links=local.links, dispatcher=local.dispatcher, queue=self.queue,
                controller=end._controller, rng=local.rng, first=self.first,
                udp_port=theirs.udp_port, config=local.config, path_mtu=path_mtu,
                local=self.ports, remote=list(theirs.ports), planes=planes, others=self.others,
                proofs=self.proofs, fixed=self.plan.configured or self.loopback,
                claims=local.claims, check=partial(self.terms.check, self.peer.host),
                warn=local.warn, host=self._host, silent=self.silent,
            ),
        )  # fmt: skip

    def _rejoin(self, end: QP) -> Rejoin | None:
        """How to open the connection again; None: the peer does that, or nobody."""
        token = (self.peer if self.first else self.mine).attributes.rejoin
        if not token or self.loopback:
            return None
        if not self.first:
            self.local.rejoins.add(token, end)
            return None
        local, called, port = self.local, self.channel.called, self.channel.ports[1]
        again = partial(dial, local.host, called, port, namespace=local.config.namespace)
        return lambda: rejoined(lambda: again(others=self.proved), local.guard, token, local.rng)
