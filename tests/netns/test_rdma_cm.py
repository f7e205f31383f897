# SPDX-License-Identifier: Apache-2.0
"""rdma_cm of `mrc run --rc` between two hosts with four planes of 500 Mbit/s: unmodified programs,
over plain and sealed QPs, and while a plane dies.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from netns.processes import Hosts, Mrc, until_it_sends
from slowness import until
from verbs.building import CM_LIBRARY

from mrc.agent import socket as agent_socket
from mrc.linux import netns
from mrc.testbed.bed import Testbed

from .conftest import bed_of

pytestmark = [
    pytest.mark.usefixtures("healed"),
    pytest.mark.skipif(
        not CM_LIBRARY.exists(), reason="libmrc-cm is not built: apt-get install librdmacm-dev"
    ),
    pytest.mark.skipif(
        not shutil.which("rping"), reason="needs rping: apt-get install rdmacm-utils"
    ),
]
ALL_PACKETS = 0x0003
SO_ATTACH_FILTER, MOST_BYTES = 26, 4096
SMALL = [(0x80, 0, 0, 0), (0x25, 1, 0, MOST_BYTES), (0x06, 0, 0, 1 << 16), (0x06, 0, 0, 0)]
"""BPF that drops larger packets: each probe of the MTU takes 16 KiB of a buffer of 416 KiB"""
SEALS = ["plain", pytest.param("sealed", marks=pytest.mark.slow)]
LIVELY = 1 << 20
"""bytes that a program has sent when it runs"""


bed = bed_of(planes=4, t1=2, rate="500mbit")


@pytest.fixture(params=SEALS)
def seal(request: pytest.FixtureRequest, hosts: Hosts, tmp_path: Path) -> str:
    """How the QPs of both agents are sealed."""
    secret = tmp_path / "secret"
    subprocess.run([sys.executable, "-m", "mrc", "key", "--secret", secret], check=True)
    options = ["--secret", secret] if request.param == "sealed" else ["--insecure"]
    for host in ("h0", "h1"):
        hosts.start(host, "agent", *options).until_says("socket @")
    return str(request.param)


def is_listening(bed: Testbed, port: int) -> bool:
    """Whether a program listens in h0 at a port of rdma_cm."""
    with netns.inside(bed.plan.nodes["h0"].namespace):
        found = agent_socket.profiles(agent_socket.name_of(os.environ))
    return port in {row.port for row in found.rdma_cm}


def start(hosts: Hosts, port: int, server: Sequence[str], client: Sequence[str]) -> tuple[Mrc, Mrc]:
    """The server in h0 and its client in h1."""
    served = hosts.start("h0", "run", "--rc", "--", *server)
    until(lambda: served.process.poll() is not None or is_listening(hosts.bed, port), served.lines)
    return served, hosts.start("h1", "run", "--rc", "--", *client)


def outputs(ends: tuple[Mrc, Mrc]) -> list[str]:
    """What both print; both succeed."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda end: end.ends(0), ends))


@pytest.fixture
def wire(bed: Testbed) -> Iterator[socket.socket]:
    """All packets of h1 that are small, from now on."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in SMALL))
    program = struct.pack("HL", len(SMALL), ctypes.addressof(code))
    with netns.inside(bed.plan.nodes["h1"].namespace):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PACKETS))
    with made:
        made.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        made.setblocking(False)
        yield made


def packets(wire: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield wire.recv(1 << 16)


@pytest.mark.parametrize("seal", ["plain", "sealed"], indirect=True)
def test_rping__its_words_are_readable_in_plain_packets_only(
    hosts: Hosts, seal: str, wire: socket.socket
) -> None:
    ends = start(
        hosts, 7174, ["rping", "-s", "-v", "-C", "9"],
        ["rping", "-c", "-a", "h0", "-v", "-V", "-C", "9"],
    )  # fmt: skip
    served, out = outputs(ends)
    assert out.count("ping data: rdma-ping-") == served.count("server ping data") == 9
    seen = list(packets(wire))
    assert len(seen) > 36, "READ, WRITE and two SENDs each time"
    assert any(b"rdma-ping-" in each for each in seen) == (seal == "plain")


@pytest.mark.usefixtures("seal")
def test_connect__by_an_address_that_no_port_has(hosts: Hosts, bed: Testbed) -> None:
    """That of the management network. Either side may dial, so there are many connections."""
    address = str(bed.shape.addresses.oob_ipv4(0).ip)
    client = ["ucmatose", "-s", address, "-c", "20"]
    for out in outputs(start(hosts, 7471, ["ucmatose", "-c", "20"], client)):
        assert out.endswith("test complete\nreturn status 0\n")


@pytest.mark.default
def test_rping__goes_on_when_a_plane_dies(hosts: Hosts, seal: str, bed: Testbed) -> None:
    """It compares what comes back, and would end with an error (-V)."""
    endless = ["-S", "60000"]
    served, asked = ["rping", "-s", *endless], ["rping", "-c", "-a", "h0", "-V", *endless]
    server, client = start(hosts, 7174, served, asked)
    until_it_sends(client, LIVELY)
    bed.fail("plane:2")
    until_it_sends(client, 32 * LIVELY)  # more than was in flight
    client.process.kill()
    server.ends(0)


def test_peer_killed__the_other_one_is_told(hosts: Hosts, seal: str) -> None:
    endless = ["-S", "60000"]
    server, client = start(
        hosts, 7174, ["rping", "-s", *endless], ["rping", "-c", "-a", "h0", *endless]
    )
    until_it_sends(client, LIVELY)
    client.process.kill()
    server.ends(0)
    assert any("DISCONNECT EVENT" in line for line in server.lines), server.lines
