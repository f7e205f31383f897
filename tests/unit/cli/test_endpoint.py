# SPDX-License-Identifier: Apache-2.0
"""The options about interfaces, addresses and ports, of commands as processes over loopback."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port
from printed import printed
from slowness import PATIENCE

MRC = [sys.executable, "-m", "mrc"]


def mrc(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*MRC, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


@contextmanager
def receiving(*options: object) -> Iterator[tuple[str, int]]:
    """A running `mrc recv`: what it printed until it listened, and its TCP port."""
    command = [*MRC, "recv", "--port", "0", *map(str, options)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as receiver:
        assert receiver.stderr is not None
        said = ""
        while (found := re.search(r"TCP port (\d+)", said)) is None:
            line = receiver.stderr.readline()
            assert line, said
            said += line
        try:
            yield said, int(found[1])
        finally:
            receiver.terminate()


@pytest.fixture
def free_udp_port() -> int:
    return free_port(socket.SOCK_DGRAM)


def test_send__over_the_interface_and_udp_port_that_were_given(
    tmp_path: Path, free_udp_port: int
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5000)
    inbox = tmp_path / "new" / "inbox"
    options = ("--output", inbox, "--udp-port", free_udp_port, "--bind", "127.0.0.1")
    with receiving(*options) as (said, port):
        assert f"made the folder {inbox}" in said
        assert f"UDP port {free_udp_port}" in said
        host = f"127.0.0.1:{port}"
        sent = printed("send", mrc("send", "--json", "-B", "127.0.0.1", file, host).stdout)
        paths = printed("paths", mrc("paths", "--json", "--interface", "lo", host).stdout)
        mrc("send", "-B", "lo", f"--udp-port={free_udp_port}", file, host, code=1)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("::1", port))
    assert (inbox / "file").read_bytes() == file.read_bytes()
    assert [plane["plane"] for plane in sent["planes"]] == [1]
    assert {ev["destination"] for ev in paths["evs"]} == {"127.0.0.1"}


def test_udp_port__that_is_taken(free_udp_port: int) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::", free_udp_port))
        done = mrc("paths", "-B", "lo", "--udp-port", free_udp_port, "127.0.0.1", code=1)
    assert f"UDP port {free_udp_port} is in use: choose another" in done.stderr


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_udp_port__that_is_none(port: str) -> None:
    assert (
        "is not a port number from 1 to 65535"
        in mrc("paths", "--udp-port", port, "h1", code=2).stderr
    )


@pytest.mark.parametrize("command", [["send", "/dev/null"], ["paths"], ["perf"]])
def test_interface__that_does_not_exist(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    words = [str(tmp_path / "f") if word == "/dev/null" else word for word in command]
    done = mrc(*words, "-B", "nosuch0", "127.0.0.1", code=1)
    assert "no interface nosuch0; this host has lo" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bind__names_an_interface_for_perf() -> None:
    """As in iperf3; `mrc recv --bind` names an address."""
    assert "no interface nosuch0" in mrc("perf", "--bind", "nosuch0", "127.0.0.1", code=1).stderr


def test_bind__to_an_address_of_another_host(tmp_path: Path) -> None:
    done = mrc("recv", "--output", tmp_path, "--bind", "192.0.2.1", "--port", "0", code=1)
    assert "cannot listen on 192.0.2.1: it is not an address of this host" in done.stderr
