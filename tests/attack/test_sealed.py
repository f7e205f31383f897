# SPDX-License-Identifier: Apache-2.0
"""The attacks on packets again, on QPs with keys. The attacker sees all packets on the router and
knows every number in them. Nothing that he sends changes a QP; the drops count it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack, unpack
from typing import Any

import cbuild
import pytest
from attack import forge, sealed_end
from attack.net import ADDRESSES, PORT, Net
from slowness import until

from mrc.linux import netns

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
    """A sealed_end.py in a host."""

    def __init__(self, net: Net, host: str, role: str, seal: str, folder: Path) -> None:
        paths = os.pathsep.join(map(str, (cbuild.ROOT, cbuild.ROOT / "tests")))
        with netns.inside(net.namespace(host)):
            self.process = subprocess.Popen(
                [sys.executable, sealed_end.__file__, role, seal, folder],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip

    def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        return found

    def told(self, line: str) -> dict[str, Any]:
        """What the program answers to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.heard()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Wire:
    """A sealed QP from a to b, and the attacker on the router between them."""

    a: End
    b: End
    tap: socket.socket
    raw: socket.socket
    seen: list[Packet] = field(default_factory=list)

    def ends(self) -> dict[str, End]:
        return {A: self.a, B: self.b}

    def listen(self) -> list[Packet]:
        """The packets that have passed since the last call."""
        found: list[Packet] = []
        while True:
            try:
                frame = self.tap.recv(1 << 16)
            except BlockingIOError:
                self.seen += found
                return found
            burst_of, frame = int.from_bytes(frame[4:6], "little"), frame[VNET_BYTES:]
            ip = frame[14:]
            if frame[12:14] != b"\x08\x00" or ip[9] != socket.IPPROTO_UDP:
                continue
            sport, dport, length = unpack(">HHH", ip[20:26])
            if dport == PORT:
                src, dst = (socket.inet_ntoa(ip[at : at + 4]) for at in (12, 16))
                body = ip[28 : 20 + length]
                step = burst_of or len(body)
                found += [
                    Packet(src, dst, sport, dport, body[at : at + step])
                    for at in range(0, len(body), step)
                ]

    def send(self, packet: Packet) -> None:
        data = forge.packet(packet.src, packet.dst, packet.sport, packet.dport, packet.body)
        self.raw.sendto(data, (packet.dst, 0))

    def drops(self) -> dict[str, dict[str, int]]:
        return {address: end.told("state")["drops"] for address, end in self.ends().items()}

    def more(self, before: dict[str, dict[str, int]]) -> dict[str, Counter[str]]:
        """The drops since `before`, of each host."""
        after = self.drops()
        return {address: Counter(after[address]) - Counter(before[address]) for address in after}

    def until_dropped(self, before: dict[str, dict[str, int]], sent: dict[str, int]) -> None:
        """Waits until each host has dropped as many packets more as were sent to it."""
        until(lambda: all(
            drops.total() >= sent.get(address, 0) for address, drops in self.more(before).items()
        ))  # fmt: skip

    def works(self, seed: int) -> None:
        """Both directions carry data, and no plane or QP has been lost."""
        for end, other in ((self.a, self.b), (self.b, self.a)):
            assert end.told(f"write {seed}") == {"status": "SUCCESS"}
            state = other.told("state")
            assert state["target"] == sealed_end.digest(sealed_end.pattern(seed))
            assert (state["state"], state["planes"]) == ("RTS", 1)
            assert end.told("probe") == {"answered": True}


AUTH = pytest.param("AUTH", marks=pytest.mark.slow)


@pytest.fixture(params=["AEAD", AUTH])
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
        b = End(net, "b", "listens", request.param, tmp_path)
        stack.callback(b.end)
        assert b.heard() == {"listening": True}
        a = End(net, "a", "connects", request.param, tmp_path)
        stack.callback(a.end)
        told = a.heard(), b.heard()
        assert {said["seal"] for said in told} == {request.param}
        assert {said["identity"] for said in told} == {"secret"}
        made = Wire(a, b, tap, raw)
        made.works(1)
        made.listen()
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
    wire.until_dropped(before, sent)
    for address, counted in wire.more(before).items():
        assert counted["SEAL"] > 0 and counted["REPLAY"] > 0
        assert counted["SEAL"] + counted["REPLAY"] == sent[address], {
            k: v for k, v in counted.items() if v
        }
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
                tcp.sendall(forge.frame(claim))
                said = forge.answer(tcp)
                assert said is not None and said["type"] == "refuse"
                assert "encrypted" in said["reason"]
                assert forge.answer(tcp) is None
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            udp.recv(1)
    wire.works(3)
