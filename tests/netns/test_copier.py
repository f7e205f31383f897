# SPDX-License-Identifier: Apache-2.0
"""What a person who copies files between two plain hosts reads.

a  x1 ----------------------- y1  b     each link has addresses 10.0.N.1 and 10.0.N.2 and MTU 9000
   x2 --- r1 [m1 --- m2] r2 - y2        two bridges; the link between them drops larger packets
   x3 ----------------------- y3
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.conftest import fresh_name
from netns.plain import address, ip, join, namespaces, until_running
from netns.processes import Start
from printed import printed

from mrc.connect.proof import NEAR_BYTES

pytestmark = pytest.mark.netns

A, B, BRIDGES = (f"mrc-{fresh_name()}" for _ in range(3))
LEAST_MTU = 1390  # of an IP packet on the way of plane 2
LEAST = LEAST_MTU - 72  # payload of such a packet


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    with namespaces(A, B, BRIDGES):
        join(A, "x1", B, "y1", mtu=9000)
        join(A, "x2", BRIDGES, "r1", mtu=9000)
        join(B, "y2", BRIDGES, "r2", mtu=9000)
        join(A, "x3", B, "y3", mtu=9000)
        ip(f"-n {BRIDGES} link add m1 mtu 9000 type veth peer name m2 mtu 9000")
        for bridge, ports in (("near", ("r1", "m1")), ("far", ("r2", "m2"))):
            ip(f"-n {BRIDGES} link add {bridge} type bridge")
            for each in ports:
                ip(f"-n {BRIDGES} link set {each} master {bridge} up")
            ip(f"-n {BRIDGES} link set {bridge} up")
        for each in ("m1", "m2"):  # a bridge leaves room for a VLAN tag of 4 bytes
            ip(f"-n {BRIDGES} link set {each} mtu {LEAST_MTU - 4}")
        for n in (1, 2, 3):
            address(A, f"x{n}", f"10.0.{n}.1/24")
            address(B, f"y{n}", f"10.0.{n}.2/24")
        until_running(A, "x1", "x2", "x3")
        until_running(B, "y1", "y2", "y3")
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(random.Random(1).randbytes(3 << 20))
    return path


def test_send__a_plane_with_a_smaller_mtu(start: Start, tmp_path: Path, file: Path) -> None:
    receiver = start(B, "recv", "--once", "--output", tmp_path / "inbox").until_listening()
    sender = start(A, "send", "--json", file, "10.0.1.2")
    mtu = printed("send", sender.ends(0))["path_mtu_bytes"]
    receiver.ends(0)
    assert (tmp_path / "inbox/file").read_bytes() == file.read_bytes()
    assert LEAST - NEAR_BYTES - 4 < mtu <= LEAST
    assert sender.complaint() == (
        f"mrc send: plane 2 (x2) to 10.0.1.2 carries only {mtu} bytes in a packet, other planes"
        f" 8928: all planes use {mtu}, which costs 6% of the rate and {8928 / mtu:.1f} times as"
        " many packets; raise its MTU, or leave it out: -B x1 -B x3"
    )
    assert any("plane 2 (y2) to" in line for line in receiver.lines), receiver.lines


@pytest.mark.default
def test_send__an_ordinary_transfer_is_quiet(start: Start, tmp_path: Path, file: Path) -> None:
    """One line for each file and one about the ports: no buffers, no QPs, no EVs."""
    inbox = tmp_path / "inbox"
    receiver = start(B, "recv", "--once", "--output", inbox, "-B", "y1", "--udp-port", "4800")
    receiver.until_listening()
    sender = start(A, "send", "-B", "x1", file, "10.0.1.2")
    assert sender.ends(0).startswith(f"{file}  3 MiB")
    assert sender.said() == []
    receiver.ends(0)
    assert receiver.said() == [
        f"mrc recv: made the folder {inbox}",
        "mrc recv: listening on TCP port 4791, UDP port 4800",
    ]


def test_recv__on_one_address(start: Start, tmp_path: Path, file: Path) -> None:
    start(B, "recv", "--once", "--output", tmp_path / "i", "--bind", "10.0.1.2").until_listening()
    refused = start(A, "send", file, "10.0.3.2")
    refused.ends(3)
    assert "mrc send: 10.0.3.2: no program listens on TCP port 4791" in refused.complaint()
    start(A, "send", "-B", "x3", file, "10.0.1.2").ends(0)
