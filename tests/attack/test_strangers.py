# SPDX-License-Identifier: Apache-2.0
"""Strangers: in a flood, an honest sender still gets through, and the flood leaves nothing behind.
A host sends little to whom it does not know, and protects its peers from lies in a hello. The tools
of the attacks work: otherwise a failed attack would prove nothing.

A liar is a stranger of a plain host, or a peer of a host with keys: he has the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from attack import flood, forge
from attack.net import ADDRESSES, PORT, Net, crowd, descriptors, memory_bytes, secret_in
from netns.processes import Mrc
from printed import printed
from slowness import PATIENCE, until

from mrc.connect import oob
from mrc.connect.oob import Channel, encode_frame
from mrc.connect.security import Security
from mrc.connect.tls import Guard
from mrc.dissect.packet import UdpFlow
from mrc.errors import ConnectError, PeerGoneError
from mrc.versions import EXCHANGE

MIB = 1 << 20
FLOOD_SECONDS = 5.0  # the attacker prints its counts each second


def inbox(folder: Path) -> Path:
    (folder / "f").write_bytes(b"honest")
    (folder / "in").mkdir()
    return folder / "in"


@pytest.fixture(params=["plain", "secret"])
def trust(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str | Path, ...]:
    """The options of both honest hosts: none, or a shared secret."""
    if request.param == "plain":
        return ("--insecure",)
    return "--secret", secret_in(tmp_path), "--identity", tmp_path / "identity.pem"


def send(net: Net, folder: Path, *trust: str | Path, seconds: int = 60) -> None:
    """The honest sender, which fails if connecting takes longer."""
    words = ("send", *trust, "--timeout", str(seconds), folder / "f", ADDRESSES["b"])
    net.mrc("a", *words).ends(0)
    assert (folder / "in" / "f").read_bytes() == b"honest"


def receiving(net: Net, folder: Path, *trust: str | Path) -> Mrc:
    """A receiver that has served the honest sender once."""
    words = ("recv", *trust, "--output", inbox(folder), "--overwrite")
    receiver = net.mrc("b", *words).until_listening()
    send(net, folder, *trust)
    return receiver


def test_strangers__silent_ones_keep_nobody_out(
    net: Net, tmp_path: Path, trust: tuple[str | Path, ...]
) -> None:
    receiver = receiving(net, tmp_path, *trust)
    files, memory = descriptors(receiver), memory_bytes(receiver)
    with contextlib.ExitStack() as stack:
        for number in range(200):  # eight from each of 25 addresses
            stack.enter_context(net.tcp("b", source=crowd(number // 8)))
        # Places, refused connections that may still read the reason, connections being closed.
        assert descriptors(receiver) <= files + 64 + 16 + 16
        send(net, tmp_path, *trust)
    until(lambda: descriptors(receiver) <= files)
    assert memory_bytes(receiver) < memory + 8 * MIB


def test_strangers__one_address_has_eight_places(net: Net, tmp_path: Path) -> None:
    net.mrc("b", "recv", "--output", inbox(tmp_path)).until_listening()
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(net.tcp("b")) for _ in range(9)]
        refusal = forge.answer(made[8])
        assert refusal is not None
        assert "already connecting from 10.7.4.2: 8 peers" in refusal["reason"]
        send(net, tmp_path)


@pytest.mark.default
def test_strangers__large_hellos_cost_little(
    net: Net, tmp_path: Path, trust: tuple[str | Path, ...]
) -> None:
    """Each would be parsed to megabytes. The host keeps nothing, and others can still connect."""
    receiver = net.mrc("b", "recv", *trust, "--output", inbox(tmp_path)).until_listening()
    memory = memory_bytes(receiver)
    items = b"{}," * ((oob.HELLO_BYTES - 100) // 3)
    body = b'{"type":"hello","version":%d,"private":[' % EXCHANGE + items + b"{}]}"
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        for number in range(48):
            made.append(stack.enter_context(net.tcp("b", source=crowd(number))))
            with contextlib.suppress(ConnectionError):
                made[-1].sendall(len(body).to_bytes(4, "big") + body)
        send(net, tmp_path, *trust)
        assert memory_bytes(receiver) < memory + 48 * MIB


LIMITED = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, (72, 72))
runpy.run_module("mrc", run_name="__main__")
"""


@pytest.mark.slow
def test_strangers__descriptors_run_out_in_words_and_once(net: Net, tmp_path: Path) -> None:
    command = ("-c", LIMITED, "recv", "--output", inbox(tmp_path))
    receiver = net.python("b", *command).until_listening()
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(net.tcp("b", source=crowd(number))) for number in range(30)]
        refusal = forge.answer(made[-1])
        assert refusal is not None and refusal["busy"] is True
        assert "no file descriptors are left" in refusal["reason"]
    send(net, tmp_path)
    told = [line for line in receiver.lines if "file descriptors are in use" in line]
    assert len(told) == 1 and "ulimit -n" in told[0]


def ended(attacker: Mrc) -> list[list[int]]:
    """Ends it; the connections and packets that it had sent, second by second."""
    attacker.process.kill()
    assert attacker.process.stdout is not None
    return [[int(word) for word in line.split()] for line in attacker.process.stdout]


def check_sent(counts: list[list[int]], connections: int, packets: int) -> None:
    """Skips the test if the machine was too slow for so many a second."""
    seconds = len(counts) - 1
    rates = [(last - first) / seconds for first, last in zip(counts[0], counts[-1], strict=True)]
    if rates[0] < 0.9 * connections or rates[1] < 0.9 * packets:
        pytest.skip("only {:.0f} connections/s and {:.0f} packets/s were sent".format(*rates))


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "packets"), [(1000, 0), (0, 100_000), (1000, 100_000)])
def test_flood__an_honest_sender_connects_within_three_seconds(
    net: Net, tmp_path: Path, trust: tuple[str | Path, ...], connections: int, packets: int
) -> None:
    receiver = receiving(net, tmp_path, *trust)
    files, memory = descriptors(receiver), memory_bytes(receiver)
    attacker = net.python("x", flood.__file__, connections, packets)
    end = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < end:
        send(net, tmp_path, *trust, seconds=3)
    counts = ended(attacker)
    until(lambda: descriptors(receiver) <= files)
    assert memory_bytes(receiver) < memory + 32 * MIB
    check_sent(counts, connections, packets)


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "packets"), [(300, 0), (0, 20_000), (300, 20_000)])
def test_flood__a_running_transfer_keeps_its_rate(
    net: Net, trust: tuple[str | Path, ...], connections: int, packets: int
) -> None:
    """The flood uses the same processors, so the transfer has a rate that leaves some. Median of
    three pairs, each measured one after the other.
    """
    net.mrc("b", "perf", "--server", *trust).until_listening()

    def rate() -> float:
        options = ("-t", "3", "-b", "300M", "--json")
        line = net.mrc("a", "perf", ADDRESSES["b"], *trust, *options).ends(0)
        (result,) = printed("perf", line)["results"]
        return float(result["goodput_bits_per_second"])

    def kept() -> float:
        before = rate()
        attacker = net.python("x", flood.__file__, connections, packets)
        assert attacker.process.stdout is not None and attacker.process.stdout.readline()
        during = rate()
        check_sent(ended(attacker), connections, packets)
        return during / before

    assert sorted(kept() for _ in range(3))[1] >= 0.9


# ---- lies in a hello -----------------------------------------------------------------------------

VICTIM = f"{ADDRESSES['v']}/24"


@pytest.fixture(params=["plain", pytest.param("keys", marks=pytest.mark.slow)])
def secret(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The file of the secret that all hosts have; None: they are plain."""
    return None if request.param == "plain" else secret_in(tmp_path)


def options(secret: Path | None) -> list[str]:
    return ["--insecure"] if secret is None else ["--secret", str(secret)]


class Liar(Channel):
    """Counts the bytes of its messages."""

    sent_bytes = 0

    async def send(self, kind: str, /, **fields: Any) -> None:
        self.sent_bytes += len(encode_frame({"type": kind, **fields}))
        await super().send(kind, **fields)


async def _lie(tcp: socket.socket, secret: Path | None, hello: forge.Message) -> tuple[str, int]:
    channel = Liar(*await asyncio.open_connection(sock=tcp), called="b")
    async with asyncio.timeout(PATIENCE):
        if secret is not None:
            await Guard(Security(secret=secret.read_bytes())).connect(channel)  # noqa: ASYNC240
        await channel.send(hello["type"], **{k: hello[k] for k in hello if k != "type"})
        said = ""
        try:
            await channel.expect("hello", 1 << 17)
            await channel.send("rtr")
            while True:
                await channel.receive()
        except (ConnectError, PeerGoneError) as error:
            said = str(error)
    channel.abort()
    return said, channel.sent_bytes


def lie(tcp: socket.socket, secret: Path | None, hello: forge.Message) -> tuple[str, int]:
    """Says a hello, and waits for the end. The error, and the bytes of what was said."""
    return asyncio.run(_lie(tcp, secret, hello))


def heard_by(udp: socket.socket) -> int:
    """UDP bytes that the bystander has received."""
    udp.setblocking(False)
    total = 0
    while True:
        try:
            total += len(udp.recv(65536))
        except BlockingIOError:
            return total


@pytest.mark.parametrize("command", ["recv", pytest.param("perf", marks=pytest.mark.slow)])
def test_hello__a_bystander_gets_three_times_the_bytes_at_most(
    net: Net, tmp_path: Path, command: str, secret: Path | None
) -> None:
    words = ["recv", "--output", tmp_path] if command == "recv" else ["perf", "--server"]
    net.mrc("b", *words, *options(secret)).until_listening()
    with net.udp("v", 53) as udp, net.tcp("b") as tcp:
        _, sent = lie(tcp, secret, forge.hello(VICTIM, udp_port=53, **sealed(secret)))
        heard = heard_by(udp)
    assert 0 < heard <= 3 * sent


def sealed(secret: Path | None) -> forge.Message:
    return {} if secret is None else {"seal": "aead", "seal_random": os.urandom(32).hex()}


def test_hello__the_sources_of_a_live_peer_are_its_own(net: Net, secret: Path | None) -> None:
    net.mrc("b", "perf", "--server", *options(secret)).until_listening()
    net.mrc("a", "perf", ADDRESSES["b"], "-t", "600", "-b", "1M", *options(secret))

    def refusal() -> str:
        ports = net.udp_ports("a")[:64] or [1]
        with net.tcp("b") as stranger:
            claim = forge.hello(f"{ADDRESSES['a']}/24", source_ports=ports, **sealed(secret))
            return lie(stranger, secret, claim)[0]

    until(lambda: f"of {ADDRESSES['a']} belongs to another peer than 10.7.4.2" in refusal())


# ---- the tools of the attacks --------------------------------------------------------------------


def test_spoof__any_source_address_and_a_right_icrc(net: Net) -> None:
    body = forge.bth(forge.EV_PROBE, forge.ENDPOINT_QPN, 1) + bytes(8)
    with net.udp("v", PORT) as heard, net.raw() as raw:
        forge.spoof(raw, ADDRESSES["a"], ADDRESSES["v"], 4000, PORT, body)
        payload, source = heard.recvfrom(2048)
    assert source == (ADDRESSES["a"], 4000)
    assert payload[:-4] == body
    flow = UdpFlow(ip_address(ADDRESSES["a"]), ip_address(ADDRESSES["v"]), 4000, PORT)
    assert payload[-4:] == flow.icrc(body)


def test_tcp__the_crowd_of_the_attacker_reaches_the_exchange(net: Net, tmp_path: Path) -> None:
    net.mrc("b", "recv", "--output", tmp_path).until_listening()
    with net.tcp("b", source=crowd(700)) as tcp:
        tcp.sendall(forge.frame({"type": "rtr"}))
        refusal = forge.answer(tcp)
    assert refusal is not None and refusal["type"] == "refuse"
