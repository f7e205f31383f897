# SPDX-License-Identifier: Apache-2.0
"""Strangers at the TCP port of the exchange: a host sends them little and protects its peers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from attack import forge
from attack.net import ADDRESSES, Net, until

VICTIM = f"{ADDRESSES['v']}/24"


def heard_by(udp: socket.socket, tcp: socket.socket) -> int:
    """UDP bytes that the bystander received until the host ended the exchange."""
    assert (forge.answer(tcp) or {}).get("type") == "hello"
    while forge.answer(tcp) is not None:
        pass
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
    sent = forge.frame(forge.hello(VICTIM, udp_port=53)) + forge.frame({"type": "rtr"})
    with net.udp("v", 53) as udp, net.tcp("b") as tcp:
        tcp.sendall(sent)
        heard = heard_by(udp, tcp)
    assert 0 < heard <= 3 * len(sent)


def test_hello__the_sources_of_a_live_peer_are_its_own(net: Net) -> None:
    net.mrc("b", "perf", "--server").until_listening()
    net.mrc("a", "perf", ADDRESSES["b"], "-t", "30", "-b", "1M")

    def refusal() -> str:
        ports = net.udp_ports("a")[:64] or [1]
        with net.tcp("b") as stranger:
            claim = forge.hello(f"{ADDRESSES['a']}/24", source_ports=ports)
            stranger.sendall(forge.frame(claim))
            return str((forge.answer(stranger) or {}).get("reason"))

    until(lambda: f"of {ADDRESSES['a']} belongs to another peer than 10.7.4.2" in refusal())
