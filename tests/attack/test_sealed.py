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
from functools import partial
from pathlib import Path
from struct import pack, unpack
from typing import Any

import cbuild
import mrc_layers
import pytest
from attack import forge, sealed_end
from attack.net import ADDRESSES, PORT, Net
from slowness import until

from mrc.dissect.packet import ICRC_BYTES
from mrc.linux import netns

A, B = ADDRESSES["a"], ADDRESSES["b"]
ALL_TYPES = 3  # ETH_P_ALL
SOL_PACKET, VNET_HDR = 263, 15  # tells the size of the packets of a burst
VNET_BYTES = 10
RCVBUFFORCE = 33  # SO_RCVBUFFORCE, which Python does not name
WRITE_ONLY, SACK = 0xCA, 0xDC
SEAL, TAG = 12, 16  # bytes at the end of a sealed packet


@dataclass(frozen=True)
class Packet:
    src: str
    dst: str
    sport: int
    dport: int
    body: bytes

    @property
    def opcode(self) -> int:
        return self.body[0]

    @property
    def psn(self) -> int:
        return int.from_bytes(self.body[9:12], "big")


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
    qpn: dict[str, int]  # of the QP at each address
    seal: str
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
        told = {A: a.heard(), B: b.heard()}
        if request.param != "plain":
            assert {said["seal"] for said in told.values()} == {request.param}
            assert {said["identity"] for said in told.values()} == {"secret"}
        qpn = {address: said["qpn"] for address, said in told.items()}
        made = Wire(a, b, qpn, request.param, tap, raw)
        made.works(1)
        made.listen()
        yield made


def last(wire: Wire, src: str) -> Packet:
    """The newest data packet of a host."""
    return [each for each in wire.seen if each.src == src and 0xC6 <= each.opcode <= 0xCB][-1]


def forged(wire: Wire, src: str, dst: str) -> dict[str, bytes]:
    """Well-formed plain packets from `src`, each of which would change a plain QP of `dst`."""
    bth = partial(mrc_layers.BTH, dest_qpn=wire.qpn[dst])
    endpoint = partial(mrc_layers.BTH, dest_qpn=forge.ENDPOINT_QPN)
    theirs, following = last(wire, dst).psn, last(wire, src).psn + 1
    packets = {
        "all ports down": endpoint(opcode=forge.PORT_STATUS, psn=77)
        / mrc_layers.ERTH(operation="PORT_STATUS", port_status_mask=1 << 7 | 1, tsr=1),
        "answer": endpoint(opcode=forge.EV_PROBE, psn=1) / mrc_layers.EETH(operation="EV_PROBE"),
        "reset": bth(opcode=forge.ACK, psn=theirs) / mrc_layers.AETH(syndrome="NAK_REM_OP", msn=1),
        "false success": bth(opcode=forge.ACK, psn=theirs) / mrc_layers.AETH(msn=1),
        "sack": bth(opcode=SACK, psn=theirs)
        / mrc_layers.SETH(cum_psn=theirs, sack_offset=1) / mrc_layers.CC_STATE(),
        "silent loss": bth(opcode=WRITE_ONLY, psn=following) / mrc_layers.METH(rqmsn=2, msn=2)
        / mrc_layers.RETH(),
    }  # fmt: skip
    return {name: bytes(packet)[:-ICRC_BYTES] for name, packet in packets.items()}


MALFORMED = ("SHORT", "OPCODE", "VERSION", "PKEY", "FIELD", "LENGTH", "ICRC")


@pytest.mark.parametrize("wire", ["plain", "AEAD", AUTH], indirect=True)
def test_forged__plain_packets(wire: Wire) -> None:
    """Port status, answers of others, reset, false success, silent loss."""
    before, sent = wire.drops(), {}
    for src, dst in ((A, B), (B, A)):
        flow = last(wire, src)
        packets = forged(wire, src, dst)
        for body in packets.values():
            forge.spoof(wire.raw, src, dst, flow.sport, flow.dport, body)
        sent[dst] = len(packets)
    if wire.seal == "plain":  # otherwise the rest would prove nothing
        until(lambda: wire.a.told("state").get("state") != "RTS")
        for drops in wire.more(before).values():
            assert not any(drops[name] for name in MALFORMED), drops
        return
    wire.until_dropped(before, sent)
    for address, drops in wire.more(before).items():
        assert drops["SEAL"] + drops["SOURCE"] + drops["UNKNOWN_ID"] == sent[address], drops
        assert drops["SEAL"] == 4
    wire.works(2)


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


def test_changed__on_the_way(wire: Wire) -> None:
    """One bit of true packets: header, payload, seal, tag."""
    before, sent = wire.drops(), {A: 0, B: 0}
    for packet in wire.seen:
        for at in {*range(12), len(packet.body) // 2, *range(-SEAL - TAG, 0, 3)}:
            body = bytearray(packet.body)
            body[at] ^= 0x10
            wire.send(Packet(packet.src, packet.dst, packet.sport, packet.dport, bytes(body)))
            sent[packet.dst] += 1
        wire.until_dropped(before, sent)  # more might not fit into its sockets
    for address, counted in wire.more(before).items():
        assert counted["SEAL"] > sent[address] // 3, counted
        assert counted["DUPLICATE"] == counted["STALE"] == 0, "a changed packet was authentic"
    wire.works(2)


def test_replayed__packets_of_before_do_not_come_back(wire: Wire) -> None:
    """The memory has other contents by now. What was said about it before must not return."""
    old = list(wire.seen)
    wire.works(2)
    wire.listen()
    states = {address: end.told("state") for address, end in wire.ends().items()}
    for packets in (old, old[::-1], wire.seen):
        for packet in packets:
            wire.send(packet)
    data = [each for each in old if 0xC6 <= each.opcode <= 0xCB]
    sent = {dst: sum(2 for each in data if each.dst == dst) for dst in (A, B)}
    wire.until_dropped({address: state["drops"] for address, state in states.items()}, sent)
    for address, end in wire.ends().items():
        state = end.told("state")
        assert state["target"] == sealed_end.digest(sealed_end.pattern(2))
        assert state["received_bytes"] == states[address]["received_bytes"]
        assert state["drops"]["DUPLICATE"] > states[address]["drops"]["DUPLICATE"]
    wire.works(3)


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
