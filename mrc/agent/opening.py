# SPDX-License-Identifier: Apache-2.0
"""How a program opens its engine, as its agent says; how it tells the next agent of its QPs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from mrc.agent import device, steering
from mrc.agent.parameters import Wanted, wanted_of
from mrc.agent.steering import AgentFrame, checked, struct_bytes, text_of
from mrc.config import ContextConfig
from mrc.engine.engine import configuration
from mrc.engine.native import CData
from mrc.engine.ports import GONE, OPEN_TRIES, LocalPorts
from mrc.enums import AgentKind
from mrc.errors import PathError
from mrc.exchange import mpr
from mrc.exchange.foreign import shown
from mrc.fabric.hostconfig import IpAddress, pack_address
from mrc.fabric.paths import LocalPort
from mrc.linux.interfaces import interfaces

MOST_QPS = 4096
_MOST_MRS = 16384


class Opened(Struct):
    """What a program with an open engine has told."""

    answer: CData
    ports: Sequence[LocalPort | None]
    gids: Sequence[IpAddress]
    qps: Sequence[tuple[Wanted, bytes]] = ()
    """those that it had under a former agent, each with its note if it was ready"""
    ports_body: bytes = b""
    """what it has been told of its ports"""


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
) -> Opened:
    """Lets a program open its engine, with QPNs by `grant`; raises PathError, ProtocolError."""
    for left in reversed(range(OPEN_TRIES)):
        ports = links.find()
        there = [port for port in ports if port is not None]
        if not there:
            raise PathError("this host has no interface that is up and has an address")
        gids, numbers = device.gids_of(there), grant()
        fields = {
            "device": device.DEVICE.encode(),
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
            return Opened(answer, ports, gids, ports_body=ports_body(there))
        if -answer.error not in GONE or left == 0:
            break
    raise PathError(f"the program cannot open its sockets: {shown(text_of(answer.cause))}")


async def adopt_engine(connection: socket.socket, links: LocalPorts, count: int) -> Opened:
    """Takes over a program with `count` QPs whose agent has gone; raises ProtocolError."""
    answer, _ = checked(await receive(connection), AgentKind.OPENED, "mrc_agent_opened")
    qps = []
    for _ in range(min(count, MOST_QPS)):
        frame = await receive(connection)
        fields, note = checked(frame, AgentKind.CONNECT, "mrc_agent_connect")
        qps.append((wanted_of(fields), note if fields.ready else b""))
    # A port whose sockets the program has not opened may open later.
    ports = [port if port and answer.sports[port.plane - 1][0] else None for port in links.find()]
    return Opened(answer, ports, device.gids_of([port for port in ports if port]), qps)


def _engine_config(config: ContextConfig, ports: Sequence[LocalPort | None]) -> dict[str, object]:
    fields = configuration(
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
    mtus = {each.name: each.mtu for each in interfaces() if each.up}
    return [
        {
            "ifname": port.nic.encode()[:15],
            "bits_per_second": mpr.links_bps([port.nic]),
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
