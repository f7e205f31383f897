# SPDX-License-Identifier: Apache-2.0
"""Strangers: in a flood, an honest sender still gets through, and the flood leaves nothing behind.
A host sends little to whom it does not know, and protects its peers from lies in a hello.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import pytest
from attack import flood, forge
from attack.net import ADDRESSES, Net, crowd, descriptors, memory_bytes, secret_in
from netns.processes import Mrc
from printed import printed
from slowness import until

from mrc.connect import oob
from mrc.connect.oob import encode_frame
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
    files, memory = descriptors(receiver), memory_bytes(receiver.process.pid)
    with contextlib.ExitStack() as stack:
        for number in range(200):  # eight from each of 25 addresses
            stack.enter_context(net.tcp("b", source=crowd(number // 8)))
        # Places, refused connections that may still read the reason, connections being closed.
        assert descriptors(receiver) <= files + 64 + 16 + 16
        send(net, tmp_path, *trust)
    until(lambda: descriptors(receiver) <= files)
    assert memory_bytes(receiver.process.pid) < memory + 8 * MIB


@pytest.mark.default
def test_strangers__large_hellos_cost_little(
    net: Net, tmp_path: Path, trust: tuple[str | Path, ...]
) -> None:
    """Each would be parsed to megabytes. The host keeps nothing, and others can still connect."""
    receiver = net.mrc("b", "recv", *trust, "--output", inbox(tmp_path)).until_listening()
    memory = memory_bytes(receiver.process.pid)
    items = b"{}," * ((oob.HELLO_BYTES - 100) // 3)
    body = b'{"type":"hello","version":%d,"private":[' % EXCHANGE + items + b"{}]}"
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        for number in range(48):
            made.append(stack.enter_context(net.tcp("b", source=crowd(number))))
            with contextlib.suppress(ConnectionError):
                made[-1].sendall(len(body).to_bytes(4, "big") + body)
        send(net, tmp_path, *trust)
        assert memory_bytes(receiver.process.pid) < memory + 48 * MIB


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
    files, memory = descriptors(receiver), memory_bytes(receiver.process.pid)
    attacker = net.python("x", flood.__file__, connections, packets)
    end = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < end:
        send(net, tmp_path, *trust, seconds=3)
    counts = ended(attacker)
    until(lambda: descriptors(receiver) <= files)
    assert memory_bytes(receiver.process.pid) < memory + 32 * MIB
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


def lie(tcp: socket.socket, hello: forge.Message) -> tuple[str, int]:
    """Says a hello, and waits for the end. The refusal, and the bytes of what was said."""
    said = encode_frame(hello) + encode_frame({"type": "rtr"})
    tcp.sendall(said)
    refusals = [each["reason"] for each in forge.answers(tcp) if each["type"] == "refuse"]
    return "".join(refusals), len(said)


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
    net: Net, tmp_path: Path, command: str
) -> None:
    words = ["recv", "--output", tmp_path] if command == "recv" else ["perf", "--server"]
    net.mrc("b", *words).until_listening()
    with net.udp("v", 53) as udp, net.tcp("b") as tcp:
        _, sent = lie(tcp, forge.hello(f"{ADDRESSES['v']}/24", udp_port=53))
        heard = heard_by(udp)
    assert 0 < heard <= 3 * sent


def test_hello__the_sources_of_a_live_peer_are_its_own(net: Net) -> None:
    net.mrc("b", "perf", "--server").until_listening()
    net.mrc("a", "perf", ADDRESSES["b"], "-t", "600", "-b", "1M")

    def refusal() -> str:
        ports = net.udp_ports("a")[:64] or [1]
        with net.tcp("b") as stranger:
            return lie(stranger, forge.hello(f"{ADDRESSES['a']}/24", source_ports=ports))[0]

    until(lambda: f"of {ADDRESSES['a']} belongs to another peer than 10.7.4.2" in refusal())
