# SPDX-License-Identifier: Apache-2.0
"""The network between simulated hosts: planes, paths, and what goes wrong on them; TCP over the
same paths: ordered bytes that arrive late, when their path is back, or never; and Unix sockets of
SOCK_SEQPACKET between the programs of one host.

Interface n of each host is on plane n. A plane has several paths; the source port and flow label of
a packet choose one, as ECMP does. All faults are attributes that a scenario changes at any time.

A TCP connection is two `Transport`s, one at each end. What is modelled: the handshake, windows,
retransmission while the path is down, FIN and RST, keepalives that find a dead host, and what a
process leaves behind when it is killed. Sizes of packets are not. On a Unix socket, what was sent
arrives at once, also when its sender has ended since. A writer whose peer does not read blocks.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import itertools
import os
import random
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self, cast

from virtual.loop import PROGRAM, Agenda, VirtualLoop

if TYPE_CHECKING:
    from virtual.host import Host, Program
    from virtual.kernel import Kernel


_V4_BYTES, _V6_BYTES = 28, 48  # IP and UDP headers


@dataclass
class Path:
    """One of the paths of a plane, in one direction."""

    delay_ns: int = 50_000
    jitter_ns: int = 0
    loss: float = 0.0
    mtu: int = 9000  # of its smallest link, from the IP header on
    icmp: bool = True  # the router before that link reports packets that are too large
    up: bool = True
    udp: bool = True  # a filter lets UDP through
    tcp: bool = True


@dataclass
class Link:
    """One plane in one direction between two hosts."""

    agenda: Agenda
    rng: random.Random
    bits_per_second: float = 1e9
    queue_bytes: int = 1 << 18
    paths: list[Path] = field(default_factory=lambda: [Path()])
    departs_ns: int = 0
    carried: int = 0
    """packets delivered"""
    carried_bytes: int = 0
    """of their UDP payload"""

    def serial_ns(self, size: int) -> float:
        return size * 8e9 / self.bits_per_second

    def tcp_serial_ns(self, size: int) -> int:
        """How long a piece of a TCP stream occupies the link."""
        return int(self.serial_ns(size + size // 20))

    def tcp_delay_ns(self, size: int) -> float | None:
        """When a piece of a TCP stream arrives; None: not as long as the path is as it is."""
        path = self.paths[0]
        if not (path.up and path.tcp):
            return None
        delay = path.delay_ns + self.rng.random() * path.jitter_ns
        segments = size // 1400 + 1
        lost = self.rng.random() < 1 - (1 - path.loss) ** segments
        return delay + (200_000_000 if lost else 0)


@dataclass(frozen=True)
class Way:
    """How a host reaches an address."""

    peer: Host
    address: str
    """its own address on the plane"""
    there: Link
    back: Link


class Network:
    """All hosts and links."""

    def __init__(self, agenda: Agenda, kernel: Kernel, rng: random.Random) -> None:
        self.agenda, self.kernel, self.rng = agenda, kernel, rng
        self.hosts: list[Host] = []
        self._links: dict[tuple[str, str], Link] = {}
        self.dropped: dict[str, int] = {}

    def link(self, source: str, target: str) -> Link:
        """The link from one interface to another."""
        key = source, target
        if key not in self._links:
            self._links[key] = Link(self.agenda, random.Random(self.rng.random()))
        return self._links[key]

    def links(self) -> Sequence[Link]:
        """All links, in both directions."""
        return list(self._links.values())

    def addresses_of(self, name: str) -> list[str]:
        """The addresses of a host by its name."""
        return [
            str(address.ip)
            for host in self.hosts
            if host.name == name
            for interface in host.interfaces
            for address in interface.addresses
        ]

    def owner(self, address: str) -> tuple[Host, Any] | None:
        """The host and the interface that have an address."""
        wanted = ip_address(address)
        for host in self.hosts:
            for interface in host.interfaces:
                if any(each.ip == wanted for each in interface.addresses):
                    return host, interface
        return None

    def route(self, host: Host, address: str) -> Way | None:
        """How `host` reaches the address; None: it has no route."""
        found = self.owner(address)
        if found is None:
            return None
        peer, theirs = found
        for ours in host.interfaces:
            if ours.plane == theirs.plane and ours.up:
                own = next(
                    str(each.ip)
                    for each in ours.addresses
                    if each.version == ip_address(address).version
                )
                return Way(
                    peer, own, self.link(ours.name, theirs.name), self.link(theirs.name, ours.name)
                )
        return None

    # ---- Packets --------------------------------------------------------------------------

    def flush(self) -> None:
        """Sends on what sockets have sent."""
        while (packet := self.kernel.take()) is not None:
            self._send(packet)

    def _drop(self, why: str) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def _send(self, packet: Any) -> None:
        found = self.owner(packet.target_address)
        if found is None or not found[1].up:
            self.kernel.departed(packet.fd, packet.bytes)
            self._drop("no such address")
            return
        link = self.link(packet.ifname, found[1].name)
        size = packet.bytes + (_V4_BYTES if packet.family == 4 else _V6_BYTES)
        now = self.agenda.now_ns
        waiting = (link.departs_ns - now) * link.bits_per_second / 8e9
        if waiting > link.queue_bytes:
            self.kernel.departed(packet.fd, packet.bytes)
            self._drop("full queue")
            return
        link.departs_ns = int(max(link.departs_ns, now) + link.serial_ns(size + 38))
        self.agenda.at(link.departs_ns, lambda: self._depart(link, packet, size, found))

    def _depart(self, link: Link, packet: Any, size: int, found: tuple[Host, Any]) -> None:
        self.kernel.departed(packet.fd, packet.bytes)
        flow = zlib.crc32(f"{packet.sport} {packet.flow_label} {packet.dport}".encode())
        path = link.paths[flow % len(link.paths)]
        if not path.up or not path.udp:
            self._drop("path down" if not path.up else "filter")
        elif size > path.mtu:
            self._drop("too large")
            if path.icmp:
                self.agenda.after(
                    path.delay_ns, lambda: self.kernel.report(packet.fd, errno.EMSGSIZE)
                )
        elif link.rng.random() < path.loss:
            self._drop("loss")
        else:
            delay = path.delay_ns + link.rng.random() * path.jitter_ns
            self.agenda.after(delay, lambda: self._arrive(link, packet, found))

    def _arrive(self, link: Link, packet: Any, found: tuple[Host, Any]) -> None:
        host, interface = found
        if not interface.up or not host.powered:
            self._drop("interface down")
        elif self.kernel.deliver(interface.name, packet):
            link.carried += 1
            link.carried_bytes += packet.bytes
        else:
            self._drop("no socket")


# ---- TCP -----------------------------------------------------------------------------------------


WINDOW_BYTES = 1 << 17  # under way and not yet read by the peer
HIGH_WATER_BYTES = 1 << 16  # asyncio's own limit for a transport's buffer
CHUNK_BYTES = 1 << 14
RTO_NS = 200_000_000
MOST_RTO_NS = 120_000_000_000
_FIRST_NUMBER = 100  # of a descriptor
SYN_TRIES = 6  # net.ipv4.tcp_syn_retries
KEEPALIVE_NS = 1_000_000_000  # while TCP_USER_TIMEOUT is set; others are not modelled
GIVE_UP_NS = 924_000_000_000  # net.ipv4.tcp_retries2


@dataclass
class FakeSocket:
    """What programs ask of the socket of a connection, or of a listening one."""

    number: int
    address: tuple[str, int]
    options: dict[tuple[int, int], Any] = field(default_factory=dict)
    on_limit: Callable[[], None] = lambda: None
    """called when the program limits the silence of a connection"""

    def fileno(self) -> int:
        return self.number

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        self.options[level, option] = value
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) and value:
            self.on_limit()

    def getsockopt(self, level: int, option: int) -> Any:
        return self.options.get((level, option), 0)

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        pass


class Tcp:
    """All listening ports and connections of the simulated hosts."""

    def __init__(self, agenda: Agenda, network: Network) -> None:
        self.agenda = agenda
        self.network = network
        self.servers: dict[tuple[str, int], _Server] = {}
        self.open: dict[Transport, None] = {}  # a set would have another order in each run
        self._numbers = itertools.count(_FIRST_NUMBER)
        self._free: list[int] = []
        self._ports = itertools.count(40000)

    def resolve(self, name: str, port: int) -> list[tuple[Any, ...]]:
        """As getaddrinfo."""
        try:
            found = [str(ip_address(name))]
        except ValueError:
            found = self.network.addresses_of(name)
            if not found:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
        families = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [
            (families[ip_address(each).version], socket.SOCK_STREAM, 6, "", (each, port))
            for each in found
        ]

    def listening(self, host: str | None, port: int, _: object) -> FakeSocket:
        """A socket for `serve`; raises OSError with EADDRINUSE."""
        own = _running().host
        port = port or next(self._ports)
        if (own.name, port) in self.servers:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return FakeSocket(self.number(), (host or "::", port))

    def number(self) -> int:
        """A descriptor: the lowest that is free."""
        return heapq.heappop(self._free) if self._free else next(self._numbers)

    def closed(self, transport: Transport) -> None:
        """One end is no more."""
        if transport in self.open:
            del self.open[transport]
            heapq.heappush(self._free, transport.get_extra_info("socket").number)

    def serve(self, loop: VirtualLoop, factory: Callable[[], Any], sock: FakeSocket) -> _Server:
        """Starts to listen."""
        own = _running()
        server = _Server(self, loop, own, sock.address[1], factory, copy_context())
        self.servers[own.host.name, sock.address[1]] = server
        return server

    async def connect(
        self, loop: VirtualLoop, factory: Callable[[], Any], host: str, port: int, source: str = ""
    ) -> tuple[Transport, Any]:
        """Opens a connection, from an address that need not be the host's; raises the OSErrors of
        a real one.
        """
        own, address = _running(), str(ip_address(host))
        way = self.network.route(own.host, address)
        if way is None:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        done: asyncio.Future[_Server | OSError] = loop.create_future()
        tries = 0

        def settle(result: _Server | OSError) -> None:
            if not done.done():
                done.set_result(result)

        def arrive() -> None:
            server = self.servers.get((way.peer.name, port))
            if way.peer.powered:
                refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
                back = way.back.tcp_delay_ns(64)
                if back is not None:
                    self.agenda.after(back, lambda: settle(server or refused))

        def send_syn() -> None:
            nonlocal tries
            if done.done():
                return
            if tries > SYN_TRIES:
                settle(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
                return
            delay = way.there.tcp_delay_ns(64)
            if delay is not None:
                self.agenda.after(delay, arrive)
            self.agenda.after(1_000_000_000 << tries, send_syn)
            tries += 1

        send_syn()
        found = await done
        if isinstance(found, OSError):
            raise found
        local = (source or way.address, next(self._ports))
        client = Transport(self, loop, own, local, (address, port), copy_context())
        server_end = Transport(self, loop, found.program, (address, port), local, found.context)
        client.join(server_end, way.there, way.back)
        protocol = factory()
        client.begin(protocol)
        found.accept(server_end)
        return client, protocol

    def killed(self, program: Program, *, powered: bool) -> None:
        """A program was killed; without power, its kernel says nothing more either."""
        for key in [key for key, each in self.servers.items() if each.program is program]:
            del self.servers[key]
        for transport in [each for each in self.open if each.program is program]:
            transport.vanish(silent=not powered)


def _running() -> Program:
    program: Any = PROGRAM.get()
    assert program is not None, "only a program of a host has sockets"
    return cast("Program", program)


class _Server:
    """What programs need of an asyncio.Server."""

    def __init__(
        self, tcp: Tcp, loop: VirtualLoop, program: Program, port: int, factory: Callable[[], Any],
        context: Context,
    ) -> None:  # fmt: skip
        self._tcp, self._loop, self.program, self._port = tcp, loop, program, port
        self._factory = factory
        self.context = context
        self.sockets: tuple[()] = ()

    def accept(self, transport: Transport) -> None:
        self._loop.call_soon(self._begin, transport, context=self.context)

    def _begin(self, transport: Transport) -> None:
        transport.begin(self._factory())

    def close(self) -> None:
        self._tcp.servers.pop((self.program.host.name, self._port), None)

    def is_serving(self) -> bool:
        return (self.program.host.name, self._port) in self._tcp.servers

    async def wait_closed(self) -> None:
        pass


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, tcp: Tcp, loop: VirtualLoop, program: Program, local: tuple[str, int],
        remote: tuple[str, int], context: Context,
    ) -> None:  # fmt: skip
        self._socket = FakeSocket(tcp.number(), local)
        super().__init__({"sockname": local, "peername": remote, "socket": self._socket})
        self._socket.on_limit = self._probe
        self._tcp, self._loop, self.program, self._context = tcp, loop, program, context
        self._protocol: Any = None
        self._peer: Transport
        self._out: deque[bytes | None] = deque()  # None: FIN
        self._out_bytes = 0
        self._under_way = 0
        self._departed_ns = 0
        self._arrives_ns = 0
        self._unread: deque[bytes | None] = deque()
        self._paused_writing = self._paused_reading = False
        self._closing = self._lost = self._eof_sent = False
        self.dead = False  # neither kernel nor program answer
        self._sent: deque[bytes | None] = deque()  # and not yet under way
        self._retries_ns = 0  # how long the first of them has been tried in vain

    def join(self, peer: Transport, there: Any, back: Any) -> None:
        """Makes the two ends one connection."""
        self._peer, peer._peer = peer, self
        self._way, peer._way = there, back
        self._tcp.open |= {self: None, peer: None}

    def begin(self, protocol: Any) -> None:
        """The program has the connection."""
        self._protocol = protocol
        self._call(protocol.connection_made, self)
        self._give()

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        self._loop.call_soon(function, *args, context=self._context)

    # ---- Of asyncio -----------------------------------------------------------------------

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self._eof_sent or self._closing or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self._pump()
        if self._out_bytes > HIGH_WATER_BYTES and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self._out.append(None)
            self._pump()

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        self._paused_reading = False
        self._give()

    def is_reading(self) -> bool:
        return not self._paused_reading

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._unread and any(self._unread):  # TCP resets a connection closed with unread data
            self._reset()
        self.write_eof()
        if not self._out:
            self._lose(None)

    def abort(self) -> None:
        self._closing = True
        self._reset()
        self._lose(None)

    # ---- The connection -------------------------------------------------------------------

    def vanish(self, *, silent: bool) -> None:
        """The program was killed."""
        if not silent:
            self.close()
        else:
            self.dead = True
            self._out.clear()
            self._sent.clear()
        self._protocol = None
        self._tcp.closed(self)

    def _reset(self) -> None:
        self._out.clear()
        self._sent.clear()
        self._out_bytes = 0
        delay = self._way.tcp_delay_ns(64)
        if delay is not None and not self.dead:
            self._tcp.agenda.after(delay, self._peer._on_reset)

    def _on_reset(self) -> None:
        self._sent.clear()
        if not self._lost and not self.dead:
            self._closing = True
            self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._tcp.closed(self)
        if self._protocol is not None:
            self._call(self._protocol.connection_lost, error)

    def _pump(self) -> None:
        """Sends what the peer's window has room for."""
        while self._out and self._under_way < WINDOW_BYTES and not self.dead:
            piece = self._out.popleft()
            if piece is not None and len(piece) > CHUNK_BYTES:
                self._out.appendleft(piece[CHUNK_BYTES:])
                piece = piece[:CHUNK_BYTES]
            size = len(piece or b"")
            self._under_way += size
            self._out_bytes -= size
            self._sent.append(piece)
        if not self._retries_ns:
            self._transmit(RTO_NS)
        if self._paused_writing and self._out_bytes <= HIGH_WATER_BYTES // 4:
            self._paused_writing = False
            if self._protocol is not None:
                self._call(self._protocol.resume_writing)
        if self._closing and not self._out:
            self._lose(None)

    def _transmit(self, rto_ns: int) -> None:
        """Sends in order: what follows waits behind a piece that is sent again and again."""
        agenda = self._tcp.agenda
        while self._sent and not self.dead:
            piece = self._sent[0]
            size = len(piece or b"")
            delay = self._way.tcp_delay_ns(size + 52)
            if delay is None or not self._peer.program.host.powered:
                self._try_again(rto_ns)
                return
            self._sent.popleft()
            self._retries_ns = 0
            departs = max(self._departed_ns, agenda.now_ns) + self._way.tcp_serial_ns(size)
            self._departed_ns = departs
            self._arrives_ns = max(self._arrives_ns, departs + int(delay))
            agenda.at(self._arrives_ns, partial(self._peer._arrive, piece))

    def _try_again(self, rto_ns: int) -> None:
        most_ns = 1_000_000 * self._option(socket.TCP_USER_TIMEOUT) or GIVE_UP_NS
        if self._retries_ns >= most_ns:
            self._time_out()
            return
        rto_ns = min(rto_ns, most_ns - self._retries_ns)
        self._retries_ns += rto_ns
        again = min(2 * rto_ns, MOST_RTO_NS)
        self._tcp.agenda.after(rto_ns, lambda: self._transmit(again))

    def _option(self, option: int) -> int:
        return int(self._socket.getsockopt(socket.IPPROTO_TCP, option))

    def _time_out(self) -> None:
        self._sent.clear()
        self._closing = True
        self._lose(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def _probe(self, silent_ns: int = 0) -> None:
        """Keepalives, while the program has set TCP_USER_TIMEOUT: each second."""
        most_ns = 1_000_000 * self._option(socket.TCP_USER_TIMEOUT)
        if self._lost or self.dead or not most_ns:
            return
        ways = (self._way, self._peer._way)
        lives = self._peer.program.host.powered and all(way.tcp_delay_ns(52) for way in ways)
        silent_ns = 0 if lives else silent_ns + KEEPALIVE_NS
        if silent_ns > most_ns:
            self._time_out()
        else:
            self._tcp.agenda.after(KEEPALIVE_NS, lambda: self._probe(silent_ns))

    def _arrive(self, piece: bytes | None) -> None:
        if self.dead or not self.program.host.powered:
            return
        if self._lost or (self._closing and piece):
            if piece:
                self._reset()
            self._peer._acknowledged(len(piece or b""))
            return
        self._unread.append(piece)
        self._give()

    def _give(self) -> None:
        """Gives the program what has arrived, as far as it reads."""
        program = self.program
        if self._protocol is None or not program.runs:
            if program.alive and program.stalled and self._protocol is not None:
                program.when_running(self._give)
            return
        while self._unread and not self._paused_reading and not self._lost:
            piece = self._unread.popleft()
            if piece is None:
                self._call(self._on_eof)
                return
            self._call(self._on_data, piece)
            back = self._peer._way.tcp_delay_ns(52) or RTO_NS
            size = len(piece)
            self._tcp.agenda.after(back, partial(self._peer._acknowledged, size))

    def _on_data(self, piece: bytes) -> None:
        if not self._lost and self._protocol is not None:
            self._protocol.data_received(piece)

    def _on_eof(self) -> None:
        if not self._lost and self._protocol is not None and not self._protocol.eof_received():
            self.close()

    def _acknowledged(self, size: int) -> None:
        self._under_way -= size
        if not self.dead:
            self._pump()


# ---- Unix sockets --------------------------------------------------------------------------------


_FIRST_FD = 1 << 22  # beyond those of kernel.c
_MOST_ROOM = 212_992  # net.core.wmem_max and wmem_default
_OVERHEAD = 768  # that the kernel counts for each packet
_SO_SNDBUF = 7
_BACKLOG = 64


class Sockets:
    """All such sockets of the simulated hosts."""

    def __init__(self) -> None:
        self._numbers = itertools.count(_FIRST_FD)
        self._listening: dict[tuple[str, str], Socket] = {}
        self.open: dict[int, Socket] = {}

    def made(self, program: Program) -> Socket:
        """A new socket."""
        found = Socket(self, next(self._numbers), program)
        self.open[found.number] = found
        return found

    def listen(self, name: str) -> Socket:
        """As `mrc.agent.socket.listen`."""
        own = _running()
        if (own.host.name, name) in self._listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        made = self._listening[own.host.name, name] = self.made(own)
        return made

    async def connect(self, name: str) -> Socket:
        """As `attached.connected`; raises the OSErrors of a real one."""
        own = _running()
        listening = self._listening.get((own.host.name, name))
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if len(listening.waiting) >= _BACKLOG:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        ours, theirs = self.made(own), self.made(listening.program)
        ours.peer, theirs.peer = theirs, ours
        listening.waiting.append(theirs)
        return ours

    def closed(self, number: int) -> None:
        """A socket is no more."""
        found = self.open.pop(number, None)
        for key in [key for key, each in self._listening.items() if each is found]:
            del self._listening[key]

    def killed(self, program: Program) -> None:
        """A program was killed: its sockets are closed."""
        for each in [each for each in self.open.values() if each.program is program]:
            each.close()

    # ---- For the event loop ---------------------------------------------------------------

    def is_ready(self, fd: int) -> bool:
        """Whether it is readable."""
        found = self.open.get(fd)
        return found is not None and found.is_ready

    def is_writable(self, fd: int) -> bool:
        """Whether a quarter of its room is in use at most, as Linux has it."""
        found = self.open.get(fd)
        return found is not None and (found.has_lost_peer or 4 * found.under_way <= found.room)


class Socket:
    """One end of a connection, or a listening socket."""

    def __init__(self, sockets: Sockets, number: int, program: Program) -> None:
        self._sockets, self.number, self.program = sockets, number, program
        self.peer: Socket | None = None
        self.waiting: deque[Socket] = deque()
        """connections that were not yet accepted"""
        self._received: deque[bytes] = deque()
        self.under_way = 0
        """bytes sent that the peer has not read"""
        self.room = _MOST_ROOM
        self._error = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def has_lost_peer(self) -> bool:
        """Whether the other end was closed."""
        return self.peer is not None and self.peer._closed

    @property
    def is_ready(self) -> bool:
        """Whether a read does not wait."""
        return bool(self.waiting or self._received or self._error or self.has_lost_peer)

    def fileno(self) -> int:
        return -1 if self._closed else self.number

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if option == _SO_SNDBUF:
            self.room = 2 * min(value, _MOST_ROOM)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """SO_PEERCRED."""
        assert self.peer is not None
        return struct.pack("=iII", self.peer.program.number, os.geteuid(), os.getegid())

    def accept(self) -> tuple[Socket, str]:
        if not self.waiting:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return self.waiting.popleft(), ""

    def send(self, data: bytes | bytearray) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self.peer is None or self.peer._closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if len(data) > self.room:
            raise OSError(errno.EMSGSIZE, "Message too long")
        if self.under_way >= self.room:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.under_way += len(data) + _OVERHEAD
        self.peer._received.append(bytes(data))  # as a kernel: the sender may wipe its own
        return len(data)

    def recv(self, n: int) -> bytes:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._error:
            error, self._error = self._error, 0
            raise OSError(error, os.strerror(error))
        if self._received:
            data = self._received.popleft()
            assert self.peer is not None
            self.peer.under_way -= len(data) + _OVERHEAD
            return data[:n]
        if self.has_lost_peer:
            return b""
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._sockets.closed(self.number)
        if self._received and self.peer is not None:
            self.peer._error = errno.ECONNRESET
        for each in self.waiting:
            each.close()
