# SPDX-License-Identifier: Apache-2.0
"""Lies in a hello: a host sends little to whom it does not know, and protects its peers.

The liar is a stranger of a plain host, or a peer of a host with keys: he has the secret.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from attack import forge
from attack.net import ADDRESSES, Net
from slowness import PATIENCE, until

from mrc.connect.oob import Channel, encode_frame
from mrc.connect.tls import Guard
from mrc.errors import ConnectError, PeerGoneError
from mrc.trust.security import Security

VICTIM = f"{ADDRESSES['v']}/24"


@pytest.fixture(params=["plain", pytest.param("keys", marks=pytest.mark.slow)])
def secret(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The file of the secret that all hosts have; None: they are plain."""
    if request.param == "plain":
        return None
    file = tmp_path / "secret"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    return file


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
    net.mrc("a", "perf", ADDRESSES["b"], "-t", "30", "-b", "1M", *options(secret))

    def refusal() -> str:
        ports = net.udp_ports("a")[:64] or [1]
        with net.tcp("b") as stranger:
            claim = forge.hello(f"{ADDRESSES['a']}/24", source_ports=ports, **sealed(secret))
            return lie(stranger, secret, claim)[0]

    until(lambda: f"of {ADDRESSES['a']} belongs to another peer than 10.7.4.2" in refusal())
