# SPDX-License-Identifier: Apache-2.0
"""A device without an adapter: a program that listens with mrc's own exchange of attributes.

Any such program keeps a QP for some seconds. `mrc perf --server` also gives it memory, which the
judge's own engine asks for in a session beside the QP that is judged.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from ipaddress import ip_address, ip_interface
from typing import Any, TypeVar

from mrc.aio.context import Context
from mrc.config import ContextConfig
from mrc.conform.adapter import (
    AdapterAnswer,
    AdapterError,
    Ask,
    Attach,
    Detach,
    QpAttributes,
    QpPort,
    WriteRequest,
)
from mrc.conform.path import Peer
from mrc.connect.connect import dial
from mrc.connect.oob import (
    HELLO_BYTES,
    PING,
    PONG,
    Attributes,
    Channel,
    Hello,
    accepted,
    hello_from_dict,
    reading_names,
)
from mrc.engine.memory import RemoteMemory
from mrc.enums import Reading
from mrc.errors import BusyError, MrcError, ProtocolError
from mrc.fabric.paths import RemotePort
from mrc.limits import MAX_MTU, MIN_MTU
from mrc.mailbox import SessionError, connect_session
from mrc.perf.load import PerfPlan
from mrc.perf.messages import QP_SERVICE, SERVICE, hear, say

T = TypeVar("T")
_PATIENCE_SECONDS = 30.0  # until a QP is connected
_PAUSE_SECONDS = 0.05  # until a busy device is asked again
_NO_REQUESTER = "the program decides what it writes: only an adapter can ask a device to write"
_UNSEEN = "a device without an adapter cannot be asked"


class OobDevice:
    """Connects as mrc's programs do. Raises MrcError until the first QP is connected, and
    AdapterError from then on.
    """

    def __init__(self, host: str, port: int, own: Reading) -> None:
        self._host, self._port, self._readings = host, port, own
        self._loop = asyncio.new_event_loop()
        self._held = AsyncExitStack()  # what ends with the QP of a case
        self._peer: Peer | None = None
        self._context: Context | None = None
        self._has_memory = True
        self._connected = False
        try:
            self._first: Channel | None = self._run(dial(None, host, port))
        except BaseException:
            self._loop.close()
            raise
        self.local_address = self._first.local
        """Of this host, towards the device."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def play_with(self, peer: Peer) -> None:
        """The judge's sockets, at which the device proves its paths."""
        self._peer = peer

    def ask(self, what: Ask) -> AdapterAnswer:
        if isinstance(what, Detach):
            return AdapterAnswer()
        if isinstance(what, WriteRequest) or (isinstance(what, Attach) and what.nscc):
            return AdapterAnswer(cannot=_NO_REQUESTER)
        if not isinstance(what, Attach):
            return AdapterAnswer(cannot=_UNSEEN)
        try:
            end = self._run(self._attach(what))
        except (MrcError, OSError, TimeoutError) as error:
            if not self._connected and isinstance(error, MrcError):
                raise
            raise AdapterError(f"{self._host}: {error or 'no QP in time'}") from error
        self._connected = True
        return AdapterAnswer(end=end)

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await self._held.aclose()
        if self._first is not None:
            self._first.abort()
        if self._context is not None:
            await self._context.__aexit__(None, None, None)

    # ---- A QP -----------------------------------------------------------------------------

    async def _attach(self, what: Attach) -> QpAttributes:
        await self._held.aclose()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            private, memory = await self._memory(what.memory_bytes)
            while True:
                channel, self._first = self._first, None
                channel = channel or await dial(None, self._host, self._port)
                try:
                    return await self._connect(channel, what.peer, private, memory)
                except BusyError:
                    channel.abort()
                    await asyncio.sleep(_PAUSE_SECONDS)
                except BaseException:
                    channel.abort()
                    raise

    async def _memory(self, size: int) -> tuple[dict[str, Any], RemoteMemory]:
        """What the judged QP says of itself, and the memory that it may write to."""
        nothing: dict[str, Any] = {}
        if not self._has_memory:
            return nothing, RemoteMemory(0, 0, 0)
        if self._context is None:
            self._context = await Context(ContextConfig(readings=self._readings)).__aenter__()
        opening = connect_session(
            self._context, self._host, self._port, SERVICE, timeout=_PATIENCE_SECONDS
        )
        try:
            session = await self._held.enter_async_context(opening)
        except SessionError:  # it serves something else
            self._has_memory = False
            return nothing, RemoteMemory(0, 0, 0)
        plan = PerfPlan(size=size, depth=1, seconds=0, total_bytes=size)
        await say(session, "plan", plan=plan.to_dict(), memory=RemoteMemory(0, 0, 0).to_dict())
        ready = await hear(session, "ready")
        private = {"service": QP_SERVICE, "token": ready.get("token")}
        return private, RemoteMemory.from_dict(ready.get("memory"))

    async def _connect(
        self, channel: Channel, own: QpAttributes, private: dict[str, Any], memory: RemoteMemory
    ) -> QpAttributes:
        """The connecting side of mrc/connect/oob.py."""
        assert self._peer is not None
        await channel.send_hello(_hello(own, private, self._readings))
        device = hello_from_dict(await channel.expect("hello", HELLO_BYTES)).attributes
        ports = _facing([port.address for port in own.ports], device.ports)
        self._peer.aim([port.address for port in ports], device.udp_port)
        with self._answering(self._peer):
            await _turn(channel, "rtr")
            told = (await _turn(channel, "proved", mtu=own.path_mtu)).get("mtu")
            await _turn(channel, "rts")
        if type(told) is not int or not MIN_MTU <= told <= MAX_MTU:
            raise ProtocolError(f"the peer sent a proved.mtu outside of {MIN_MTU}..{MAX_MTU}")
        self._held.push_async_callback(_end, channel)
        return QpAttributes(
            qpn=device.qpn, first_psn=device.first_psn, path_mtu=min(told, own.path_mtu),
            mpr=device.mpr, max_wimm=device.max_wimm, udp_port=device.udp_port, ports=ports,
            va=memory.address, rkey=memory.rkey, memory_bytes=memory.length,
            dynamic_mpr=device.dynamic_mpr,
        )  # fmt: skip

    @contextmanager
    def _answering(self, peer: Peer) -> Iterator[None]:
        """Meanwhile the device probes the judge's addresses."""

        def answer() -> None:
            seen = peer.receive(0)
            if seen is not None:
                peer.answer(seen, self._readings)

        for each in peer.receivers:
            self._loop.add_reader(each, answer)
        try:
            yield
        finally:
            for each in peer.receivers:
                self._loop.remove_reader(each)


def _hello(own: QpAttributes, private: dict[str, Any], followed: Reading) -> Hello:
    # Prefixes of length 0: the device pairs its ports with the judge's by its own networks.
    ports = tuple(
        RemotePort(f"judge{n}", ip_interface(f"{port.address}/0"), port.source_ports, own.path_mtu)
        for n, port in enumerate(own.ports, 1)
    )
    attributes = Attributes(
        qpn=own.qpn, first_psn=own.first_psn, path_mtu=own.path_mtu, mpr=own.mpr,
        max_wimm=own.max_wimm, integrity="icrc", udp_port=own.udp_port,
        dynamic_mpr=own.dynamic_mpr, readings=reading_names(followed), ports=ports,
    )  # fmt: skip
    return Hello(host=socket.gethostname(), private=private, attributes=attributes)


def _facing(addresses: list[str], ports: tuple[RemotePort, ...]) -> tuple[QpPort, ...]:
    """The device's port for each address of the judge: one of its network, or else the next."""
    left, found = list(ports), []
    for text in addresses:
        address = ip_address(text)
        fit = [port for port in left if port.address.version == address.version]
        near = [port for port in fit if address in port.address.network]
        for port in (near or fit)[:1]:
            left.remove(port)
            found.append(QpPort(str(port.address.ip), port.source_ports))
    if not found:
        raise ProtocolError(f"the peer has no address of the IP version of {addresses[0]}")
    return tuple(found)


async def _turn(channel: Channel, kind: str, **fields: Any) -> dict[str, Any]:
    """Both sides send this message; the device may ask meanwhile whether this side lives."""
    await channel.send(kind, **fields)
    while (message := accepted(await channel.receive()))["type"] == PING:
        await channel.send(PONG)
    if message["type"] != kind:
        raise ProtocolError(f"the peer sent {message['type']!r} instead of {kind!r}")
    return message


async def _end(channel: Channel) -> None:
    """Says goodbye; a device that has failed may have gone already."""
    try:
        await channel.send("bye")
    except (MrcError, OSError):
        channel.abort()
    else:
        await channel.close()
