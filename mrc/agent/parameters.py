# SPDX-License-Identifier: Apache-2.0
"""What a program and its agent agree on: the device that the program sees, the attributes of its
QPs, and how its engine is open.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins

from mrc import limits
from mrc.agent import steering
from mrc.agent.steering import MAX_GIDS, AgentFrame, AgentKind, checked, struct_bytes, text_of
from mrc.config import ContextConfig
from mrc.connect.oob import Inbox
from mrc.connect.parse import parse_address, shown
from mrc.engine import engine
from mrc.engine.dispatch import Dispatcher
from mrc.engine.native import CData
from mrc.engine.paths import LocalPort
from mrc.engine.ports import LocalPorts
from mrc.engine.queue_pair import QueuePair
from mrc.errors import ConfigError, ConnectError, PathError, ProtocolError
from mrc.fabric.hostconfig import HostConfig, IpAddress, pack_address
from mrc.linux import system
from mrc.linux.rtnetlink import Interface
from mrc.messages.messages import MessagePeer
from mrc.typed import take

# ---- The device: GIDs, and a port for each plane ------------------------------------------------

T = TypeVar("T")

DEVICE = "mrc0"
FILE = Path("/dev/infiniband", DEVICE)
_NULL = os.makedev(1, 3)
_MODE = 0o666


def unpack_address(packed: bytes) -> IpAddress:
    """The inverse of `pack_address`."""
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


def gids_of(ports: Sequence[LocalPort]) -> list[IpAddress]:
    """The addresses that stand for this host: one of each IP version, IPv4 first.

    They are those of the first plane that has them. A host without a network has its loopback.
    """
    outside = [port for port in ports if not port.loopback]
    addresses = [port.address.ip for port in outside or ports]
    found = [next((each for each in addresses if each.version == v), None) for v in (4, 6)]
    return [each for each in found if each is not None][:MAX_GIDS]


def peer_of(gid: IpAddress, own: Iterable[IpAddress], host: HostConfig | None) -> str:
    """What to dial for a GID: a configured peer, this host itself, or the address."""
    if gid in own:
        return str(gid) if host is None else host.host
    if host is not None and host.has_srv6:
        for peer in host.peers.values():
            if gid in peer.sources:
                return peer.name
    return str(gid)


def source_of(gid: IpAddress, own: Iterable[IpAddress], peer: str) -> IpAddress | None:
    """The GID from which to dial `peer`: the program there has named this host by it; None: any."""
    if gid in own or peer != str(gid):
        return None
    usable = (each for each in own if each.version == gid.version and not each.is_loopback)
    return next(usable, None)


def gid_for(called: IpAddress, ports: Sequence[LocalPort]) -> IpAddress:
    """The GID by which a peer knows this host, which has called it at an address: that address if a
    port has it. Others, such as those of a network for management, lead to the agent only.
    """
    own = gids_of(ports)
    if called.is_loopback or not own or called in (port.address.ip for port in ports):
        return called
    return next((each for each in own if each.version == called.version), own[0])


def check_host(
    gid: IpAddress,
    own: Iterable[IpAddress],
    host: HostConfig | None,
    name: str,
    addresses: Collection[IpAddress],
    remote: str,
) -> None:
    """Raises ConnectError unless a peer is the host that a GID names: anybody can read the numbers
    of both QPs in the headers.

    The peer has connected from `remote`, and calls itself `name`. It has these addresses: first
    those in its hello, later those that have answered probes.
    """
    named = peer_of(gid, own, host)
    if gid in own:
        same = all(each.is_loopback for each in addresses)
    elif named != str(gid):
        same = name == named  # and its addresses must be those configured for it
    else:
        same = gid in addresses or gid == parse_address(remote)
    if not same:
        raise ConnectError(f"{remote} is not {gid}, the peer that the program has named")


@contextmanager
def device_file(path: Path = FILE) -> Iterator[None]:
    """Makes the file in /dev by which some programs, such as UCX, judge whether the device is
    there, and removes it in the end; raises ConfigError.

    Only its kind matters: a character device. libmrc needs none, so this one is as /dev/null.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        found = path.stat() if path.exists() else None  # a killed agent may have left it
        if found is None or not stat.S_ISCHR(found.st_mode) or found.st_rdev != _NULL:
            os.mknod(path, stat.S_IFCHR | _MODE, _NULL)
            path.chmod(_MODE)
    except PermissionError as error:
        raise ConfigError(f"{path}: only root can make it: start mrc agent as root") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()


# ---- The attributes of QPs ----------------------------------------------------------------------

MOST_QPS = 4096
_MOST_MRS = 16384
_TIMEOUTS = range(14, 25)  # below 16 ms, software on a busy host is late rather than dead
_RETRIES = range(1, 26)
_EMULATED = "rc"  # in the private data of a hello


class Emulated(Struct, frozen=True):
    """One end of a QP with emulated RC (csrc/verbs/rc.h)."""

    address: Annotated[int, Meta(ge=1, le=0x7FFFFFFFFFFFFFFF)]
    rkey: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
    shared: bool
    """its receives are those of an SRQ"""


def emulated_in(private: dict[str, Any]) -> Emulated | None:
    """What the other end says of its emulated RC; None: it has none. Raises ProtocolError."""
    found = private.get(_EMULATED)
    return None if found is None else taken(found, Emulated, "emulated RC")


def taken(message: object, kind: type[T], wrong: str) -> T:
    """What a program or a peer's agent has sent, checked; raises ProtocolError."""
    try:
        return take(message, kind)
    except ValueError as error:
        raise ProtocolError(f"{wrong}: {shown(str(error))}") from None


class QpParameters(Struct, frozen=True):
    """The attributes of a QP, checked; 0: the agent's default."""

    qpn: int
    dest_qpn: int
    gid: IpAddress
    dest_gid: IpAddress
    sq_depth: int
    max_wimm: int
    mpr: int
    path_mtu: int
    ev_profile: int
    cc_profile: int
    timeout: int
    retry_exp: int
    messages: tuple[int, Inbox] | None = None
    """number and inbox of the peer, if the QP carries messages"""
    emulated: Emulated | None = None

    @property
    def dials(self) -> bool:
        """Whether this host connects to the peer's agent; the other one waits, so no two
        connections cross.
        """
        if self.qpn != self.dest_qpn:
            return self.qpn < self.dest_qpn
        gid, dest_gid = self.gid, self.dest_gid
        return (gid.version, int(gid)) < (dest_gid.version, int(dest_gid))

    @property
    def private(self) -> dict[str, Any]:
        """What the hello carries besides, so that the peer's agent finds its program."""
        ends = {"from": self.qpn, "to": self.dest_qpn}
        return ends | ({} if self.emulated is None else {_EMULATED: to_builtins(self.emulated)})

    def admit(self, private: dict[str, Any]) -> bool:
        """True; raises ConnectError for the hello of another QP."""
        if private.get("from") != self.dest_qpn or private.get("to") != self.qpn:
            raise ConnectError(f"QP {self.qpn:#x} belongs to QP {self.dest_qpn:#x}")
        if (emulated_in(private) is None) != (self.emulated is None):
            raise ConnectError(
                f"QP {self.qpn:#x} and QP {self.dest_qpn:#x}: one program has emulated RC and the"
                " other has not: start both with mrc run --rc, or neither"
            )
        return True

    def queue(self, config: ContextConfig) -> QueuePair:
        """The QP with its number."""
        return QueuePair.sized(config.queues, qpn=self.qpn)

    def peer(self, dispatcher: Dispatcher) -> MessagePeer:
        """The peer for messages, which the program has opened."""
        assert self.messages is not None
        number, inbox = self.messages
        return MessagePeer(dispatcher, number, inbox, kept=True)

    def config(self, config: ContextConfig) -> ContextConfig:
        """The engine.configuration for this QP."""
        return replace(
            config,
            queues=replace(
                config.queues,
                sq_depth=self.sq_depth or config.queues.sq_depth,
                max_wimm=self.max_wimm or config.queues.max_wimm,
                mpr=self.mpr or config.queues.mpr,
            ),
            spraying=replace(config.spraying, mtu_limit=self.path_mtu or config.spraying.mtu_limit),
            retries=replace(
                config.retries,
                ack_timeout_exponent=self.timeout or config.retries.ack_timeout_exponent,
                exponential=self.retry_exp or config.retries.exponential,
            ),
        )


def qp_parameters(connect: CData) -> QpParameters:
    """A `struct mrc_agent_connect` of a program; raises ProtocolError.

    Values beyond what the engine can do become the nearest that it can.
    """
    if not (3 <= connect.qpn <= 0xFFFFFF and 3 <= connect.dest_qpn <= 0xFFFFFF):
        raise ProtocolError(f"QP {connect.qpn:#x} to {connect.dest_qpn:#x}: not a QPN")
    if connect.messages and not (connect.address and connect.rkey):
        raise ProtocolError(f"QP {connect.qpn:#x} carries messages and has no inbox")
    inbox = {"address": connect.address, "rkey": connect.rkey}
    return QpParameters(
        qpn=connect.qpn,
        dest_qpn=connect.dest_qpn,
        gid=unpack_address(bytes(connect.sgid)),
        dest_gid=unpack_address(bytes(connect.dgid)),
        sq_depth=min(connect.sq_depth, 65536),
        max_wimm=min(connect.max_wimm, 1024),
        mpr=min(-(-connect.mpr // limits.MPR_UNIT) * limits.MPR_UNIT, limits.MAX_MPR),
        path_mtu=_within(connect.path_mtu & ~3, range(limits.MIN_MTU, limits.MAX_MTU + 1)),
        ev_profile=connect.ev_profile,
        cc_profile=connect.cc_profile,
        timeout=_within(connect.timeout, _TIMEOUTS),
        retry_exp=_within(connect.retry_exp, _RETRIES),
        messages=(connect.peer, Inbox(**inbox)) if connect.messages else None,
        emulated=taken(inbox | {"shared": bool(connect.shared)}, Emulated, "emulated RC")
        if connect.emulated
        else None,
    )


def _within(value: int, allowed: range) -> int:
    """The nearest allowed value; 0 stays 0."""
    return min(max(value, allowed[0]), allowed[-1]) if value else 0


# ---- Engines ------------------------------------------------------------------------------------


class OpenEngine(Struct):
    """How a program has opened its engine."""

    answer: CData
    ports: Sequence[LocalPort | None]
    gids: Sequence[IpAddress]
    qps: Sequence[tuple[QpParameters, bytes]] = ()
    """those that it had under a former agent, each with its resume state if it was ready"""
    ports_body: bytes = b""
    """its ports, as the agent sent them last"""


async def receive(connection: socket.socket) -> AgentFrame:
    """The next frame of a program without an engine; ConnectionResetError, ProtocolError."""
    packet = await asyncio.get_running_loop().sock_recv(connection, steering.MAX_FRAME)
    if not packet:
        raise ConnectionResetError("the program has ended")
    return steering.unpack(packet)


async def open_engine(
    connection: socket.socket,
    config: ContextConfig,
    links: LocalPorts,
    grant: Callable[[], list[int]],
) -> OpenEngine:
    """Lets a program open its engine, with QPNs by `grant`; raises PathError, ProtocolError."""
    for left in reversed(range(links.OPEN_TRIES)):
        ports = links.find()
        there = [port for port in ports if port is not None]
        if not there:
            raise PathError("this host has no interface that is up and has an address")
        gids, numbers = gids_of(there), grant()
        fields = {
            "device": DEVICE.encode(),
            "gids": [pack_address(gid) for gid in gids],
            "n_gids": len(gids),
            "n_ports": len(there),
            "n_numbers": len(numbers),
            "ports": _port_fields(there),
            "numbers": numbers,
            "config": _engine_config(config, ports),
        }
        packet = steering.pack(AgentKind.OPEN, body=struct_bytes("mrc_agent_open", fields))
        await asyncio.get_running_loop().sock_sendall(connection, packet)
        answer, _ = checked(await receive(connection), AgentKind.OPENED, "mrc_agent_opened")
        if answer.error == 0:
            return OpenEngine(answer, ports, gids, ports_body=ports_body(there))
        if -answer.error not in links.GONE or left == 0:
            break
    raise PathError(f"the program cannot open its sockets: {shown(text_of(answer.cause))}")


async def adopt_engine(connection: socket.socket, links: LocalPorts, count: int) -> OpenEngine:
    """Takes over a program with `count` QPs whose agent has gone; raises ProtocolError."""
    answer, _ = checked(await receive(connection), AgentKind.OPENED, "mrc_agent_opened")
    qps = []
    for _ in range(min(count, MOST_QPS)):
        frame = await receive(connection)
        fields, state = checked(frame, AgentKind.CONNECT, "mrc_agent_connect")
        qps.append((qp_parameters(fields), state if fields.ready else b""))
    # A port whose sockets the program has not opened may open later.
    ports = [port if port and answer.sports[port.plane - 1][0] else None for port in links.find()]
    return OpenEngine(answer, ports, gids_of([port for port in ports if port]), qps)


def _engine_config(config: ContextConfig, ports: Sequence[LocalPort | None]) -> dict[str, object]:
    fields = engine.configuration(
        ports,
        polled=True,
        unguarded=True,
        max_qps=MOST_QPS,
        spin_us=config.sockets.spin_us,
        rcvbuf_bytes=config.sockets.rcvbuf_bytes,
        sndbuf_bytes=config.sockets.sndbuf_bytes,
    )
    fields["engine"]["max_mrs"] = _MOST_MRS
    return fields


def _port_fields(ports: Sequence[LocalPort]) -> list[dict[str, object]]:
    mtus = {each.name: each.mtu for each in Interface.all() if each.up}
    return [
        {
            "ifname": port.nic.encode()[:15],
            "bits_per_second": system.links_bps([port.nic]),
            "number": port.plane,
            "mtu": mtus.get(port.nic, port.mtu),
            "up": port.nic in mtus,
            "loopback": port.loopback,
        }
        for port in ports
    ]


def ports_body(ports: Sequence[LocalPort]) -> bytes:
    """The body of PORTS: an array of `struct mrc_agent_port`."""
    return b"".join(struct_bytes("mrc_agent_port", each) for each in _port_fields(ports))
