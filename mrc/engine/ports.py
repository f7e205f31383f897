# SPDX-License-Identifier: Apache-2.0
"""The ports of a Context, which follow changes of the interfaces.

The number of a port is its plane. A closed port keeps its number, address and source ports while
QPs use them, so that their EVs work again when the interface is back. The kernel announces changes
of links and addresses, so that mrc notices at once when a link of this host goes down. The engine
itself detects failures further away in a plane.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Sequence,
)
from dataclasses import asdict

from msgspec import Struct
from msgspec.structs import replace

from mrc import limits
from mrc.config import ContextConfig
from mrc.engine import engine, native
from mrc.engine.engine import AnyEngine, Engine
from mrc.engine.native import Command
from mrc.engine.paths import (
    LocalPort,
    PortSelection,
    link_local_port,
    untied_port,
)
from mrc.errors import ConfigError, InUseError, MrcError, NetlinkError, StateError
from mrc.fabric.hostconfig import HostConfig, IpAddress
from mrc.linux.namespace import OWN, NetworkNamespace
from mrc.linux.rtnetlink import Interface
from mrc.tasks import within

logger = logging.getLogger("mrc.links")

Find = Callable[[Sequence[Interface], frozenset[IpAddress]], PortSelection]
Call = Callable[[Command, str], Awaitable[int]]
"""Executes a command in the datapath: `mrc.engine.dispatch.Dispatcher.call`."""

_ROOM = 4
# Every QP needs memory for each possible port, so a Context with few ports allows fewer.
_FEW_PORTS, _MOST_OF_FEW = 12, 16
_MOST_SAID = 16  # log lines of a Context that waits for its interfaces


# RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of linux/rtnetlink.h
_GROUPS = 0x1 | 0x10 | 0x100
_DATAGRAM_BYTES = 1 << 16

# After each update, a pause of this many times its CPU time: a flapping link costs at most a tenth
# of a core.
_PAUSE_FACTOR = 9
_PAUSE_SECONDS = (0.01, 0.5)
_RETRY_SECONDS = 2.0


class _Slot(Struct):
    """One port number and its port; `sports` is empty while the port is closed."""

    port: LocalPort
    sports: tuple[int, ...] = ()
    up: bool = True


def _first_number(found: PortSelection, port: LocalPort) -> int:
    """The lowest number for a port without a reserved one. Ports without an interface leave room
    for interfaces that appear later, because port n connects to the peer's port n.
    """
    room = _ROOM if not port.ifname and not found.reserved else 0
    return found.reserved + room + 1


def _is_untied(port: LocalPort) -> bool:
    """Whether it is one of `LocalPorts.open_for`."""
    return not port.ifname and not port.loopback


def number(found: PortSelection) -> dict[int, LocalPort]:
    """Gives each port a number; ports beyond limits.MAX_PORTS are left out."""
    numbered: list[LocalPort] = []
    for port in found.ports:
        taken = {each.plane for each in numbered}
        free = (n for n in itertools.count(_first_number(found, port)) if n not in taken)
        numbered.append(replace(port, plane=port.plane or next(free)))
    most = max((port.plane for port in numbered), default=found.reserved)
    if found.reserved and most > limits.MAX_PORTS:
        raise ConfigError(
            f"interfaces: {most} ports are needed, at most {limits.MAX_PORTS} are possible"
        )
    return {port.plane: port for port in numbered if port.plane <= limits.MAX_PORTS}


class LocalPorts:
    """The current ports of a Context."""

    OPEN_TRIES = 5
    """an interface may disappear between its listing and the opening of its sockets"""
    GONE = (errno.ENODEV, errno.EADDRNOTAVAIL)
    """the errors that it causes then"""

    def __init__(self, find: Find, namespace: NetworkNamespace = OWN) -> None:
        self._find = find
        self._namespace = namespace
        self._slots: dict[int, _Slot] = {}
        self._most = limits.MAX_PORTS
        self._found = PortSelection(())
        self._telling = False
        self._said: set[str] = set()
        self._refused: set[LocalPort] = set()
        self._changing = asyncio.Lock()
        self.on_change: list[Callable[[], None]] = []
        """called after every look at changed interfaces, and when a peer has named an address"""

    @classmethod
    def of(cls, config: ContextConfig, host: HostConfig | None) -> LocalPorts:
        """Those that a Context selects from the interfaces, by its configuration."""
        wanted = tuple(config.weights)
        weights = {name: each for name, each in config.weights.items() if each is not None}
        if host is not None and host.has_srv6:
            return cls(
                lambda interfaces, kept: PortSelection.of_srv6(host, interfaces, wanted, weights),
                config.namespace,
            )
        for port in host.ports if host is not None else ():
            for name in (port.ifname, str(port.address.ip)):
                weights.setdefault(name, port.weight)
        if not wanted and host is not None:
            wanted = tuple(str(port.address.ip) for port in host.ports)
        evs = config.spraying.evs_per_pair
        return cls(
            lambda interfaces, kept: PortSelection.of_interfaces(
                interfaces, wanted, evs, kept, weights
            ),
            config.namespace,
        )

    # ---- State ----------------------------------------------------------------------------

    @property
    def ports(self) -> tuple[LocalPort, ...]:
        """The ports that have sockets, in the order of their planes."""
        return tuple(slot.port for _, slot in sorted(self._slots.items()) if slot.sports)

    def for_peer(self, named: IpAddress, used: Collection[int] = ()) -> tuple[LocalPort, ...]:
        """The ports for a peer that has named this address: of each interface those that are not
        deprecated, if there are such, and that of the address. Numbers that are `used` stay.
        """
        preferred = {port.nic for port in self.ports if not port.deprecated}
        return tuple(
            port
            for port in self.ports
            if not port.deprecated
            or port.nic not in preferred
            or port.address.ip == named
            or port.plane in used
        )

    @property
    def sports(self) -> dict[int, tuple[int, ...]]:
        """The source ports of each port, by plane."""
        return {plane: slot.sports for plane, slot in self._slots.items()}

    @property
    def highest(self) -> int:
        """The highest number of a port."""
        return max(self._slots, default=1)

    @property
    def most(self) -> int:
        """How many ports, and planes of a QP, there may be."""
        return self._most

    @property
    def lacking(self) -> tuple[str, ...]:
        """Why configured ports are not usable."""
        return self._found.missing

    @property
    def small(self) -> tuple[str, ...]:
        """A line for each port that nobody configured and that is too small for a packet."""
        return self._found.small

    @property
    def unused(self) -> tuple[str, ...]:
        """A line for each interface or address that nobody configured and that gives no port."""
        return (*self._found.small, *self._found.unused)

    @property
    def missing(self) -> str:
        """One line: why ports are missing."""
        why = "; ".join((*self.lacking, *self.small))
        return why or "no interface is up and has an address"

    @property
    def impatient(self) -> bool:
        """True when a port could not open: it is tried again even without a change."""
        return bool(self._refused)

    def check(self, wanted: Sequence[str]) -> None:
        """Raises ConfigError when no port is open, or none of the `wanted` interfaces exists."""
        if not self.ports or (wanted and len(self._found.missing) == len(wanted)):
            raise ConfigError(f"interfaces: {self.missing}" if wanted else self.missing)

    def tell(self) -> None:
        """For a listener: logs missing interfaces now, and later when the usable ones change."""
        self._telling = True
        self._say()

    def _say(self) -> None:
        if not self._telling:
            return
        usable = ", ".join(
            f"{port.nic} ({port.address.ip})"
            for port in self.ports
            if not port.loopback and self._slots[port.plane].up
        )
        lacks = bool(self._found.missing) if self._found.reserved else not usable
        if not lacks and not self._said:
            self._telling = False
            return
        line = f"in use now: {usable}" if usable else f"no usable interface yet: {self.missing}"
        if lacks and usable:
            line += f"; not yet: {self.missing}"
        if usable not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(usable)
            logger.warning("%s", line)
        self._telling = lacks

    # ---- Opening --------------------------------------------------------------------------

    def find(self) -> list[LocalPort | None]:
        """The ports that the current interfaces give, by number; None: it may open later."""
        self._found = self._find(Interface.all(self._namespace), frozenset())
        ports = number(self._found)
        few = max(2 * self._found.reserved, *ports, 0) <= _FEW_PORTS
        self._most = _MOST_OF_FEW if few else limits.MAX_PORTS
        return [ports.get(n + 1) for n in range(self._most)]

    def take(self, ports: Sequence[LocalPort | None], opened: AnyEngine) -> None:
        """These ports are the ones of the opened engine."""
        for port in ports:
            if port is not None:
                sports = (opened.source_port(port.plane, i) for i in range(port.tx_sockets))
                self._slots[port.plane] = _Slot(port, tuple(sports))

    def open(self, config: ContextConfig) -> Engine:
        """Opens an engine with the ports of the current interfaces; others may be added later."""
        for left in reversed(range(self.OPEN_TRIES)):
            ports = self.find()
            try:
                opened = _open_engine(config, ports)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and config.udp_port:
                    raise InUseError(
                        f"UDP port {config.udp_port} is in use: choose another"
                    ) from error
                if error.errno not in self.GONE or left == 0:
                    raise
            else:
                break
        self.take(ports, opened)
        return opened

    # ---- Following ------------------------------------------------------------------------

    async def follow(self, call: Call, opened: AnyEngine) -> None:
        """Updates the ports after every change of the interfaces; never returns."""
        async for found in link_snapshots(lambda: self.impatient, self._namespace):
            await self.apply(found, call, opened)

    async def apply(self, interfaces: Sequence[Interface], call: Call, opened: AnyEngine) -> None:
        """Closes ports that are gone, opens new ports, and reports link states to the engine."""
        async with self._changing:
            await self._apply(interfaces, call, opened)
        self._say()
        self._tell_change()

    def _tell_change(self) -> None:
        for tell in tuple(self.on_change):
            tell()

    async def _apply(self, interfaces: Sequence[Interface], call: Call, opened: AnyEngine) -> None:
        kept = frozenset(port.address.ip for port in self.ports if not _is_untied(port))
        own = {address.ip for each in interfaces if each.up for address in each.addresses}
        self._found = self._find(interfaces, kept)
        down = {(each.name, each.index) for each in interfaces if not each.up}
        new: dict[tuple[str, int, IpAddress], LocalPort] = {}
        for port in self._found.ports:  # one that was left for a better may be configured, too
            new.setdefault((port.ifname, port.index, port.address.ip), port)
        for plane, slot in self._slots.items():
            if not slot.sports:
                continue
            same = new.pop((slot.port.ifname, slot.port.index, slot.port.address.ip), None)
            if same is not None:
                slot.port = replace(same, plane=plane, tx_sockets=slot.port.tx_sockets)
                await self._set_up(plane, slot, call, up=True)
            elif _is_untied(slot.port) and slot.port.address.ip in own:
                same = next(
                    (port for key, port in new.items() if key[2] == slot.port.address.ip), None
                )
                slot.port = replace(slot.port, deprecated=same is None or same.deprecated)
                new = {key: port for key, port in new.items() if port is not same}
            elif (slot.port.ifname, slot.port.index) in down:
                await self._set_up(plane, slot, call, up=False)
            else:
                logger.info("plane %d: %s (%s) is gone", plane, slot.port.nic, slot.port.address.ip)
                slot.sports = ()
                await call(engine.port_close(plane), f"close port {plane}")
        self._refused &= set(new.values())
        for port in new.values():
            await self._open(port, call, opened)

    async def open_for(
        self, own: IpAddress, peer: IpAddress, config: ContextConfig, call: Call, opened: AnyEngine
    ) -> None:
        """Opens a port for the address of this host over which it exchanges messages with a peer,
        if it has none: one of lo, or a further one of an interface.

        The port is tied to no interface, because routes lead there. It stays open, and new QPs use
        it only with peers that name its address. Nothing happens if the configuration does not
        allow the interface of the address, or if there are many such ports already.
        """
        async with self._changing:
            if any(port.address.ip == own for port in self.ports) or own.is_link_local:
                return
            if sum(map(_is_untied, self.ports)) >= _ROOM:
                return
            try:
                interfaces = Interface.all(self._namespace)
                index = Interface.towards(peer, own, self._namespace)
            except NetlinkError as error:
                logger.debug("%s: %s", own, error)
                return
            addresses = [
                address
                for each in interfaces
                for address in each.addresses
                if address.ip == own and (not config.weights or each.name in config.weights)
            ]
            links = [each for each in interfaces if each.index == index]
            for address, link in zip(addresses[:1], links, strict=False):
                port = untied_port(link, address, config.spraying.evs_per_pair)
                if port.mtu >= limits.MIN_MTU:
                    await self._open_more(port, call, opened)
                    self._tell_change()

    async def open_link_local(
        self, nics: Collection[str], config: ContextConfig, call: Call, opened: AnyEngine
    ) -> None:
        """Opens the link-local ports of these interfaces, if the configuration allows them."""
        async with self._changing:
            for each in Interface.all(self._namespace):
                allowed = not config.weights or each.name in config.weights
                port = link_local_port(each, config.spraying.evs_per_pair)
                known = port is None or any(p.address.ip == port.address.ip for p in self.ports)
                if port is not None and not known and allowed and each.up and each.name in nics:
                    await self._open_more(port, call, opened)
        self._tell_change()

    async def _open_more(self, port: LocalPort, call: Call, opened: AnyEngine) -> None:
        """Opens a further port of an interface, with the weight of the others."""
        weight = min((each.weight for each in self.ports if each.nic == port.nic), default=100)
        port = replace(port, weight=weight)
        await self._open(port, call, opened)
        self._refused.discard(port)

    async def _set_up(self, plane: int, slot: _Slot, call: Call, *, up: bool) -> None:
        if slot.up == up:
            return
        slot.up = up
        logger.info("plane %d: link is %s", plane, "up" if up else "down")
        await call(engine.port_up(plane, up=up), f"port {plane}")

    async def _open(self, port: LocalPort, call: Call, opened: AnyEngine) -> None:
        """Opens a port under the first candidate number that no QP uses with another address."""
        cause = f"all {self._most} ports of this Context are in use"
        for plane in self._candidates(port):
            command, opening = engine.port_open(plane, port)
            try:
                await call(command, f"open port {plane}")
            except StateError:  # QPs use this number with another address
                continue
            except (MrcError, OSError):
                cause = native.text(opening.cause) or ""
                break
            sports = tuple(opening.sports[0 : port.tx_sockets])
            self._slots[plane] = _Slot(replace(port, plane=plane), sports)
            opened.udp_port = int(opening.udp_port)
            self._refused.discard(port)
            logger.info("plane %d: %s (%s) is in use", plane, port.nic, port.address.ip)
            return
        if port not in self._refused:
            logger.warning("%s (%s) cannot be used: %s", port.nic, port.address.ip, cause)
        self._refused.add(port)

    def _candidates(self, port: LocalPort) -> Iterator[int]:
        """Numbers for a port, best first: its former number, its reserved number, a former number
        of its interface, an unused number, any closed port's number.
        """
        reserved, version = self._found.reserved, port.address.version
        closed = {plane: slot.port for plane, slot in self._slots.items() if not slot.sports}
        places = [
            plane
            for plane, old in closed.items()
            if (old.ifname, old.address.ip) == (port.ifname, port.address.ip)
        ]
        if port.plane in closed or port.plane not in self._slots:
            places += [port.plane] * (port.plane > 0)
        free = [plane for plane in closed if plane > reserved]
        places += [
            plane
            for plane in free
            if (closed[plane].ifname, closed[plane].address.version) == (port.ifname, version)
        ]
        fresh = range(_first_number(self._found, port), self._most + 1)
        places += [n for n in fresh if n not in self._slots]
        yield from dict.fromkeys([*places, *free])


def _open_engine(config: ContextConfig, ports: Sequence[LocalPort | None]) -> Engine:
    return Engine(
        ports,
        polled=config.sockets.polled,
        max_qps=config.limits.max_qps,
        readings=int(config.readings),
        dscps=asdict(config.traffic_classes),
        udp_port=config.udp_port,
        spin_us=config.sockets.spin_us,
        coalesce_us=config.sockets.coalesce_us,
        rcvbuf_bytes=config.sockets.rcvbuf_bytes,
        sndbuf_bytes=config.sockets.sndbuf_bytes,
        namespace_fd=config.namespace.fd,
    )


# ---- Changes of interfaces ------------------------------------------------------------------


async def link_snapshots(
    impatient: Callable[[], bool] = lambda: False,
    namespace: NetworkNamespace = OWN,
) -> AsyncIterator[Sequence[Interface]]:
    """Yields the interfaces now, and again after every change of a link or an address.

    This needs no privilege. A kernel message only triggers a new listing, so several messages can
    share one listing, and a lost message does no harm. While `impatient()` is true, this also
    yields every 2 s.
    """
    loop = asyncio.get_running_loop()
    with namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as events:
        events.setblocking(False)
        events.bind((0, _GROUPS))
        while True:
            started = time.thread_time()
            try:
                yield Interface.all(namespace)
            except NetlinkError as error:
                logger.debug("interfaces: %s", error)  # they changed while they were listed
            shortest, longest = _PAUSE_SECONDS
            pause = _PAUSE_FACTOR * (time.thread_time() - started)
            await asyncio.sleep(min(max(pause, shortest), longest))
            try:
                async with within(_RETRY_SECONDS if impatient() else None):
                    await _until_readable(loop, events)
            except TimeoutError:
                pass


async def _until_readable(loop: asyncio.AbstractEventLoop, events: socket.socket) -> None:
    """Waits for a message, then discards all queued messages."""
    arrived = asyncio.Event()
    loop.add_reader(events, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(events)
    try:
        while events.recv(_DATAGRAM_BYTES):
            pass
    except BlockingIOError:
        pass
    except OSError as error:
        logger.debug("link events were lost: %s", error)  # ENOBUFS: too many messages
