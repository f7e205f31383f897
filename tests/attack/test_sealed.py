# SPDX-License-Identifier: Apache-2.0
"""The attacks on packets again, on QPs with keys. The attacker sees all packets on the router and
knows every number in them. Nothing that he sends changes a QP; the drops count it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import pack, unpack
from typing import Any, TypeVar

import pytest
from attack import forge
from attack.net import ADDRESSES, PORT, Net
from slowness import PATIENCE, until

import mrc
from mrc import QP, ContextConfig, Listener, RemoteMemory
from mrc.config import Spraying
from mrc.connect.oob import encode_frame
from mrc.connect.security import Security
from mrc.enums import QpState, Seal
from mrc.linux import netns

T = TypeVar("T")
BYTES = 40_000  # some packets
A, B = ADDRESSES["a"], ADDRESSES["b"]
ALL_TYPES = 3  # ETH_P_ALL
SOL_PACKET, VNET_HDR = 263, 15  # tells the size of the packets of a burst
VNET_BYTES = 10
RCVBUFFORCE = 33  # SO_RCVBUFFORCE, which Python does not name
TAG = 16  # bytes at the end of a sealed packet


@dataclass(frozen=True)
class Packet:
    src: str
    dst: str
    sport: int
    dport: int
    body: bytes


class End:
    """One end of a sealed QP: a Context in a host, on a thread of its own."""

    qp: QP

    def __init__(self, net: Net, host: str, seal: Seal, folder: Path) -> None:
        security = Security(identity=folder / f"{host}.pem", secret=bytes(range(32)))
        self._config = ContextConfig(
            interfaces=("eth0",), spraying=Spraying(burst_packets=1), security=security, seal=seal
        )
        self._target = bytearray(BYTES)
        self._stack = contextlib.AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(net.namespace(host),))
        self._thread.start()

    def _run(self, namespace: str) -> None:
        with netns.inside(namespace):
            self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _open(self) -> dict[str, Any]:
        """Its memory for the peer."""
        self._ctx = await self._stack.enter_async_context(mrc.open(self._config))
        memory = self._ctx.register(self._target, writable=True)
        return (await self._stack.enter_async_context(memory)).handle.to_dict()

    async def listen(self) -> Listener:
        private = await self._open()
        return await self._ctx.listen(private=private)

    async def connect(self) -> None:
        private = await self._open()
        self.qp = await self._ctx.connect(B, private=private)

    async def accept(self, listener: Listener) -> None:
        self.qp = await listener.accept()

    async def write(self, data: bytes) -> None:
        async with self._ctx.register(data) as region:
            remote = RemoteMemory.from_dict(self.qp.peer.private)
            assert await self.qp.write(region, remote, timeout=PATIENCE) == len(data)

    async def check(self, data: bytes) -> None:
        """It has these bytes of the peer, its plane, and paths that answer."""
        assert self._target == data
        assert ((await self.qp.info()).state, len(self.qp.planes)) == (QpState.RTS, 1)
        while (found := await self.qp.probe_ev(0)).error == errno.ETIMEDOUT:
            pass  # the peer may stand still
        assert found.error == 0

    def drops(self) -> Counter[str]:
        return Counter(self.call(self._ctx.drops()))

    def end(self) -> None:
        self.call(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


def heard(tap: socket.socket) -> Iterator[Packet]:
    """The packets of mrc that have passed so far."""
    while True:
        try:
            frame = tap.recv(1 << 16)
        except BlockingIOError:
            return
        burst_of, frame = int.from_bytes(frame[4:6], "little"), frame[VNET_BYTES:]
        ip = frame[14:]
        if frame[12:14] != b"\x08\x00" or ip[9] != socket.IPPROTO_UDP:
            continue
        sport, dport, length = unpack(">HHH", ip[20:26])
        if dport == PORT:
            src, dst = (socket.inet_ntoa(ip[at : at + 4]) for at in (12, 16))
            body = ip[28 : 20 + length]
            step = burst_of or len(body)
            for at in range(0, len(body), step):
                yield Packet(src, dst, sport, dport, body[at : at + step])


@dataclass
class Wire:
    """A sealed QP from a to b, and the attacker on the router between them."""

    ends: dict[str, End]
    """by address"""
    raw: socket.socket
    seen: list[Packet]

    def send(self, packet: Packet) -> None:
        data = forge.packet(packet.src, packet.dst, packet.sport, packet.dport, packet.body)
        self.raw.sendto(data, (packet.dst, 0))

    def drops(self) -> dict[str, Counter[str]]:
        return {address: end.drops() for address, end in self.ends.items()}

    def works(self, seed: int) -> None:
        """Both directions carry data, and no plane or QP has been lost."""
        data = random.Random(seed).randbytes(BYTES)
        for end, other in ((self.ends[A], self.ends[B]), (self.ends[B], self.ends[A])):
            end.call(end.write(data))
            other.call(other.check(data))


@pytest.fixture(params=[Seal.AEAD, pytest.param(Seal.AUTH, marks=pytest.mark.slow)])
def wire(net: Net, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Wire]:
    with netns.inside(net.namespace("r")):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_TYPES))
        tap.bind(("to-a", ALL_TYPES))
        with contextlib.suppress(PermissionError):  # of root in a user namespace: a small one does
            tap.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, 16 << 20)
        tap.setsockopt(SOL_PACKET, VNET_HDR, 1)
        tap.setblocking(False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(tap)
        raw = stack.enter_context(net.raw("r"))
        b = End(net, "b", request.param, tmp_path)
        stack.callback(b.end)
        a = End(net, "a", request.param, tmp_path)
        stack.callback(a.end)
        listener = b.call(b.listen())
        a.call(a.connect())
        b.call(b.accept(listener))
        assert {(end.qp.seal, end.qp.peer.identity) for end in (a, b)} == {
            (request.param, "secret")
        }
        made = Wire({A: a, B: b}, raw, [])
        made.works(1)
        made.seen += heard(tap)
        yield made


@pytest.mark.default
def test_forged__with_a_seal_but_without_the_key(wire: Wire) -> None:
    """Headers of true packets with the next counters: only the tag is a guess."""
    before, sent, rng = wire.drops(), {A: 0, B: 0}, random.Random(1)
    for packet in [each for each in wire.seen if len(each.body) >= 40]:
        counter = int.from_bytes(packet.body[-TAG - 8 : -TAG], "big")
        for ahead in (1, 1000, 1 << 20, 1 << 40):
            number = pack(">Q", counter + ahead)
            guess = packet.body[: -TAG - 8] + number + rng.randbytes(TAG)
            wire.send(Packet(packet.src, packet.dst, packet.sport, packet.dport, guess))
            sent[packet.dst] += 1
    assert min(sent.values()) > 20
    until(lambda: all((wire.drops()[at] - before[at]).total() >= sent[at] for at in sent))
    for address, now in wire.drops().items():
        counted = now - before[address]
        assert counted["SEAL"] > 0 and counted["REPLAY"] > 0
        assert counted["SEAL"] + counted["REPLAY"] == sent[address], counted
    wire.works(2)


def test_hello__strangers_are_told_nothing(net: Net, wire: Wire) -> None:
    """A stranger who claims the sources of a peer, or names a bystander, learns no number."""
    wire.works(2)
    ports = net.udp_ports("a")[:8]
    with net.udp("v", 53) as udp:
        for claim in (
            forge.hello(f"{A}/24", source_ports=ports),
            forge.hello(f"{ADDRESSES['v']}/24", udp_port=53),
            {"type": "top", "version": 1},
        ):
            with net.tcp("b") as tcp:
                tcp.sendall(encode_frame(claim))
                said = forge.answer(tcp)
                assert said is not None and said["type"] == "refuse"
                assert "encrypted" in said["reason"]
                assert forge.answer(tcp) is None
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            udp.recv(1)
    wire.works(3)
