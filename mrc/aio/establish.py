# SPDX-License-Identifier: Apache-2.0
"""Creates a QP and brings it to RTS on both sides: attributes, EVs, proof of the paths.

mrc/connect/README.md shows the order of the messages. Both sides run the code below; the
connecting side sends first at every step.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from collections.abc import Sequence
from dataclasses import asdict
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mrc import products
from mrc.aio import sealing
from mrc.aio.engines import Admit, Local, Terms
from mrc.aio.qp import QP
from mrc.connect.oob import (
    HELLO_BYTES,
    Attributes,
    Channel,
    Hello,
    check_readings,
    hello_from_dict,
    reading_names,
)
from mrc.connect.peer import is_loopback
from mrc.connect.profiles import EvProfile
from mrc.connect.proof import (
    Proof,
    links_bps,
    no_answer,
    plane_limits,
    plane_names,
    prove,
    psns_for,
    silent_paths,
    smaller_packets,
)
from mrc.engine.queue_pair import QueuePair, RtrAttributes, RtsAttributes, random_psn
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
    ProtocolError,
    QueueFullError,
    StateError,
    reason_of,
)
from mrc.events import ProbeResult
from mrc.fabric import paths
from mrc.fabric.hostconfig import HostConfig, HostPeer, parse_address
from mrc.fabric.paths import SEAL_OVERHEAD, LocalPort, PathEv, PeerSource, RemotePort, SourcePorts
from mrc.limits import MAX_MTU, MIN_MTU

if TYPE_CHECKING:
    from mrc.messages.messages import MessagePeer

logger = logging.getLogger("mrc.establish")

_AMPLIFICATION = 3  # bytes sent to addresses that have not answered, per byte from the peer
_NUMBER_TRIES = 8  # with 1024 QPs, one random QPN in 16384 is already in use


class _Ends(Struct, frozen=True):
    """This side's ports for a peer, as of the start of the exchange."""

    ports: list[LocalPort]
    sports: SourcePorts

    @property
    def nics(self) -> dict[int, str]:
        """The interface of each plane."""
        return {port.plane: port.nic for port in self.ports}


class _Plan(Struct, frozen=True):
    """The parameters of the QP, computed from the hellos of both sides."""

    evs: list[PathEv]
    sources: list[PeerSource]
    path_mtu: int
    mtus: dict[int, int]  # what the interfaces of each plane allow
    integrity: Integrity
    seal: Seal
    dynamic_mpr: bool
    configured: bool  # the addresses come from our own configuration, not from the peer's hello


class _Proved(Struct, frozen=True):
    """Results of the EV probes."""

    path_mtu: int
    rtt_ns: int  # of the longest plane


async def establish(
    local: Local, channel: Channel, terms: Terms, *, first: bool, expected: str = ""
) -> QP:
    """Returns this end of a QP that is ready on both sides. `first`: this side sends first.

    On failure this destroys the QP, and the caller must inform the peer. `expected` is the required
    host name of the peer; empty: any.
    """
    terms.ev_profile._take()
    try:
        terms.cc_profile._take()
        try:
            return await _establish(local, channel, terms, first=first, expected=expected)
        except BaseException:
            terms.cc_profile.give_back()
            raise
    except BaseException:
        terms.ev_profile.give_back()
        raise


async def _establish(
    local: Local, channel: Channel, terms: Terms, *, first: bool, expected: str
) -> QP:
    peer: Hello | None = None
    if not first:  # a listener checks the hello before it creates any state for the peer
        peer = await _take_hello(local, channel, terms, expected)
    queue = await _create(local, terms)
    end: QP | None = None
    messages: MessagePeer | None = None
    try:
        ends = _ends(local, channel)
        if terms.messages:
            opened = products.need("mrc.messages.messages", "messages").MessagePeer.open
            messages = await opened(local.dispatcher, queue, local.config.queues.max_wimm)
        elif terms.peer is not None:
            messages = terms.peer(local.dispatcher)
        own = sealing.drawn(channel)
        mine = _hello(local, channel, ends, queue, terms, messages, own)
        await channel.send_hello(mine, own.random if own else None)
        if peer is None:
            peer = await _take_hello(local, channel, terms, expected)
        if messages is not None and peer.attributes.inbox is None:
            raise ConnectError(f"{channel.called or peer.called} takes no messages on this QP")
        seal = sealing.agreed_by(channel, mine, peer, own)
        plan = _plan(local, ends, channel, peer, terms.ev_profile, seal)
        end = terms.end(
            local.dispatcher, queue, plan.evs, channel, peer, local.config,
            terms.ev_profile, terms.cc_profile, messages,
        )  # fmt: skip
        if own and seal:
            command = sealing.command(queue, channel, peer, own, seal, first=first)
            await local.dispatcher.call(command, "seal the QP")
            del command  # and with it the secrets
        await _receive_ready(local, queue, plan, peer)
        allowed = await end._controller.start()
        await _turn(channel, "rtr", first=first)
        proved = await _prove(local, channel, terms, end, ends, plan, peer, allowed, first=first)
        window = _window(local, ends, plan, peer, proved)
        await _send_ready(local, queue, mine, peer, proved.path_mtu, window, terms)
        if messages is not None:
            await messages.connect(peer)
        await _turn(channel, "rts", first=first)
        end._start(proved.path_mtu, window)
        return end
    except BaseException:
        if end is not None:
            end._controller.close()
        _forget(local, queue)
        if messages is not None:
            messages.forget()
        raise


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
            created.add_done_callback(functools.partial(_undo, local, queue))
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
    try:
        reply = local.dispatcher.call(queue.destroy(), f"QP {queue.qpn:#x}: destroy")
    except StateError:
        return  # the Context is closed, and the QP with it
    reply.add_done_callback(functools.partial(_forgotten, local, queue))


def _forgotten(local: Local, queue: QueuePair, reply: asyncio.Future[int]) -> None:
    local.dispatcher.detach(queue.qpn)
    if not reply.cancelled():
        reply.exception()  # marks it as retrieved, so that asyncio logs nothing


# ---- Hellos ---------------------------------------------------------------------------------


def _ends(local: Local, channel: Channel) -> _Ends:
    """The ports that can reach this peer."""
    loopback = is_loopback(channel)
    ports = [port for port in local.links.ports if port.loopback is loopback]
    if not ports:
        which, why = ("loopback", "lo is down") if loopback else ("network", local.links.missing)
        raise PathError(f"this Context has no {which} interface for {channel.remote}: {why}")
    return _Ends(ports, local.links.sports)


def _hello(
    local: Local,
    channel: Channel,
    ends: _Ends,
    queue: QueuePair,
    terms: Terms,
    messages: MessagePeer | None,
    own: sealing.Own | None,
) -> Hello:
    seal = sealing.wanted(local.config, channel)
    ports = [
        RemotePort(port.nic, port.address, ends.sports.of[port.plane], port.mtu)
        for port in ends.ports
    ]
    attributes = Attributes(
        qpn=queue.qpn,
        first_psn=random_psn(),
        path_mtu=local.config.spraying.mtu_limit,
        mpr=queue.mpr,
        max_wimm=local.config.queues.max_wimm,
        integrity="udp" if local.config.integrity is Integrity.UDP else "icrc",
        udp_port=local.dispatcher.engine.udp_port,
        ports=tuple(ports),
        dynamic_mpr=local.config.queues.dynamic_mpr,
        sack_times=terms.cc_profile.settings.kind is CcKind.DELAY,
        service_time=True,
        readings=reading_names(local.config.readings),
        seal=sealing.NAMES[seal],
        inbox=None if messages is None else messages.inbox,
        seal_random=own.mark if own else "",
    )
    return Hello(host=local.name, attributes=attributes, private=terms.private)


async def _take_hello(local: Local, channel: Channel, terms: Terms, expected: str) -> Hello:
    """Returns the peer's hello; raises if it is wrong or the peer is not allowed."""
    peer = hello_from_dict(await channel.expect("hello", HELLO_BYTES))
    if expected and peer.host != expected:
        raise ConnectError(f"{channel.remote} is host {peer.called}, not {expected}")
    check_readings(peer.called, peer.attributes.readings, local.config.readings)
    loopback = is_loopback(channel)
    for port in peer.attributes.ports:
        if port.address.ip.is_loopback is not loopback:
            raise ProtocolError(f"the peer sent address {port.address.ip}, which is not its own")
    local.claims.check(channel.remote, _sources(peer))
    if terms.admit is not None:
        await _ask(terms.admit, peer.private)
    terms.check(peer.host, [port.address.ip for port in peer.attributes.ports], channel.remote)
    return peer


async def _ask(admit: Admit, private: dict[str, Any]) -> None:
    """Has the program decide about a peer; raises its MrcError or a ConnectError for a refusal. Any
    other error of the program refuses the peer, too, and is logged.
    """
    try:
        verdict = admit(private)
        if isawaitable(verdict):
            verdict = await verdict
    except MrcError:
        raise
    except Exception as error:
        logger.exception("a peer is refused, because `admit` failed")
        raise ConnectError(reason_of(error)) from error
    if verdict is not None and not verdict:
        raise ConnectError("its program does not admit this host")


def _sources(peer: Hello) -> list[PeerSource]:
    """The source addresses and ports of the peer's packets, according to its hello."""
    ports = peer.attributes.ports
    return paths.peer_sources((port.address.ip, port.source_ports) for port in ports)


async def _turn(channel: Channel, kind: str, *, first: bool, **fields: Any) -> dict[str, Any]:
    """Exchanges messages of one type with the peer; the connecting side sends first."""
    if first:
        await channel.send(kind, **fields)
        return await channel.expect(kind)
    answer = await channel.expect(kind)
    await channel.send(kind, **fields)
    return answer


# ---- Paths ----------------------------------------------------------------------------------


def _plan(
    local: Local, ends: _Ends, channel: Channel, peer: Hello, profile: EvProfile, seal: Seal
) -> _Plan:
    """Chooses the EVs and the largest possible path MTU from both hellos."""
    ports = ends.ports
    host = channel.called or peer.called
    theirs = peer.attributes
    configured = local.srv6 is not None and not is_loopback(channel)
    if local.srv6 and configured:
        named = _configured_peer(local.srv6, peer)
        addresses = {port.address.ip for port in theirs.ports}
        if not addresses <= set(named.sources):
            raise ConnectError(f"host {peer.called} sends from addresses that are not configured")
        evs = paths.srv6_evs(named.paths, ports, ends.sports, theirs.udp_port, local.rng)
        least = min(port.mtu for port in theirs.ports)
        mtus = [(port.plane, min(port.mtu, least)) for port in ports]
        if not evs:
            why = f"no port with a path to host {peer.called} is usable"
            raise PathError(f"{why}: {local.links.missing}")
    else:
        pairs = _pairs(ports, theirs.ports, channel)
        per_pair = local.config.spraying.evs_per_pair
        evs = paths.pair_evs(pairs, ends.sports, theirs.udp_port, per_pair, local.rng)
        mtus = [(ours.plane, min(ours.mtu, other.mtu)) for ours, other in pairs]
    if not evs:
        raise PathError(f"{host} and this host have no IP version in common")
    overhead = SEAL_OVERHEAD if seal else 0
    most = min(local.config.spraying.mtu_limit, theirs.path_mtu)
    limits = plane_limits([(plane, mtu - overhead) for plane, mtu in mtus], most)
    planes = {ev.attr.port for ev in evs}
    if small := sorted(plane for plane in planes if limits[plane] < MIN_MTU):
        what = f"{plane_names(small, ends.nics)} to {host}"
        if len(small) == len(planes):
            raise PathError(f"{what}: the MTU is too small: raise it")
        local.warn(f"{what}: left out, because the MTU is too small")
        evs = [ev for ev in evs if ev.attr.port not in small]
    evs = profile.settings._choose(evs)
    if not evs:
        raise PathError(f"EV profile {profile.name} has no path to {host}")
    used = {ev.attr.port for ev in evs}
    limits = {plane: mtu for plane, mtu in limits.items() if plane in used}
    return _Plan(
        evs,
        _sources(peer),
        min(limits.values()),
        limits,
        integrity=local.integrity_with(theirs.integrity),
        seal=seal,
        dynamic_mpr=local.config.queues.dynamic_mpr and theirs.dynamic_mpr,
        configured=configured,
    )


def _configured_peer(host: HostConfig, peer: Hello) -> HostPeer:
    if peer.host not in host.peers:
        raise ConnectError(f"host {peer.called} is not among the configured peers of {host.host}")
    return host.peers[peer.host]


def _pairs(
    ports: Sequence[LocalPort], theirs: Sequence[RemotePort], channel: Channel
) -> list[paths.Pair]:
    if not is_loopback(channel):
        return paths.pair(ports, theirs)
    version = parse_address(channel.remote).version
    return paths.loopback_pairs(ports, theirs, version) or paths.loopback_pairs(
        ports, theirs, 10 - version
    )


async def _prove(
    local: Local, channel: Channel, terms: Terms, end: QP, ends: _Ends, plan: _Plan,
    peer: Hello, allowed: Sequence[int], *, first: bool,
) -> _Proved:  # fmt: skip
    """Proves the allowed EVs from both sides and agrees on one path MTU for both directions."""
    if not allowed:
        raise PathError(f"EV profile {end.ev_profile.name} denies every path to {end.peer_host}")
    allowance = _AMPLIFICATION * channel.received_bytes
    probing = _probe(end, plan, allowed, allowance, channel)
    targets = sorted({str(plan.evs[index].attr.destination) for index in allowed})
    silence = no_answer(end.peer_host, targets, peer.attributes.udp_port)
    try:
        proof, rtt_ns = await channel.during(probing)
    except ConnectRefusedError as error:
        if error.kind is Kind.NO_ANSWER:  # the peer has found the same a little earlier
            raise silence from error
        raise
    if not proof.mtu:
        raise silence
    await _leave_out(end, proof)
    planes = [ev.attr.port for ev in plan.evs]
    gone = [*proof.dead, *proof.unproven]
    local.warn(silent_paths(end.peer_host, planes, gone, ends.nics))
    silent = {plan.evs[index].attr.destination for index in proof.unproven}
    answered = {plan.evs[index].attr.destination for index in allowed} - silent
    proved = [s for s in plan.sources if plan.configured or s.address in answered]
    terms.check(peer.host, [source.address for source in proved], channel.remote)
    local.claims.check(channel.remote, proved)
    channel.at_end(local.claims.take(channel.remote, proved))
    answer = await _turn(channel, "proved", first=first, mtu=proof.mtu)
    theirs = answer.get("mtu")
    if type(theirs) is not int or not MIN_MTU <= theirs <= MAX_MTU:
        raise ProtocolError(f"the peer sent a proved.mtu that is not within {MIN_MTU}..{MAX_MTU}")
    path_mtu = min(proof.mtu, theirs & ~3)
    local.warn(smaller_packets(end.peer_host, path_mtu, plan.mtus, proof.carried, ends.nics))
    return _Proved(path_mtu, rtt_ns)


async def _probe(
    end: QP, plan: _Plan, allowed: Sequence[int], allowance: int, channel: Channel
) -> tuple[Proof, int]:
    """Probes the EVs; returns the proof, by EV indices, and the round trip of the longest plane."""
    rtts_ns: dict[int, int] = {}  # shortest round trip of each plane

    async def probe(place: int, payload: int, timeout: float) -> ProbeResult:
        result = await end._controller.probe(allowed[place], payload, timeout)
        if result.rtt_ns is not None:
            plane = plan.evs[allowed[place]].attr.port
            rtts_ns[plane] = min(rtts_ns.get(plane, result.rtt_ns), result.rtt_ns)
        return result

    destinations = [
        None if plan.configured else plan.evs[index].attr.destination for index in allowed
    ]
    planes = [plan.evs[index].attr.port for index in allowed]
    proof = await prove(
        probe, destinations, plan.path_mtu, allowance, planes=planes, rtt=channel.rtt,
        ping=channel.ping,
    )  # fmt: skip
    dead = tuple(allowed[place] for place in proof.dead)
    unproven = tuple(allowed[place] for place in proof.unproven)
    return Proof(proof.carried, dead, unproven), max(rtts_ns.values(), default=0)


async def _leave_out(end: QP, proof: Proof) -> None:
    """Stops data on EVs that do not answer, and probes to addresses that have never answered."""
    for index in proof.dead:
        await end._controller.set_state(index, EvState.ASSUMED_BAD)
    await end._controller.hold_back(proof.unproven)


def _window(local: Local, ends: _Ends, plan: _Plan, peer: Hello, proved: _Proved) -> int:
    """The PSNs that this side may have in flight, at most the window that the peer grants."""
    psns = local.config.queues.mpr
    if psns == 0:
        planes = {ev.attr.port for ev in plan.evs}
        nics = (port.nic for port in ends.ports if port.plane in planes)
        psns = psns_for(links_bps(nics), proved.rtt_ns, proved.path_mtu)
    return min(psns, peer.attributes.mpr)


# ---- Transitions ----------------------------------------------------------------------------


async def _receive_ready(local: Local, queue: QueuePair, plan: _Plan, peer: Hello) -> None:
    """INIT to RTR."""
    attributes = RtrAttributes(
        peer.attributes.qpn, peer.attributes.first_psn, plan.integrity, plan.dynamic_mpr,
        peer.attributes.sack_times, peer.attributes.service_time,
    )  # fmt: skip
    call = local.dispatcher.call
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
    await call(queue.to_rtr(attributes), "QP to RTR")


async def _send_ready(
    local: Local,
    queue: QueuePair,
    mine: Hello,
    peer: Hello,
    path_mtu: int,
    window: int,
    terms: Terms,
) -> None:
    """RTR to RTS."""
    config = local.config
    cc = terms.cc_profile.settings
    if 0 < cc.parameters.max_cwnd < path_mtu:
        wrong = f"max_cwnd {cc.parameters.max_cwnd} is below the path MTU, {path_mtu}"
        raise ConfigError(f"CC profile {terms.cc_profile.name}: {wrong}")
    attributes = RtsAttributes(
        sq_psn=mine.attributes.first_psn,
        path_mtu=path_mtu,
        peer_mpr=window,
        peer_max_wimm=peer.attributes.max_wimm,
        timeout=config.retries.ack_timeout_exponent,
        retry_linear=config.retries.linear,
        retry_exp=config.retries.exponential,
        cc=cc.kind,
        cc_profile=asdict(cc.parameters),
        spray=config.spraying.burst_packets,
        plane_shares=cc.plane_shares,
        ev_active_per_plane=terms.ev_profile.settings.active_per_plane,
    )
    await local.dispatcher.call(queue.to_rts(attributes), "QP to RTS")
