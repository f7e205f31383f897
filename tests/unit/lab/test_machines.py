# SPDX-License-Identifier: Apache-2.0
"""The machines of `mrc testbed up --on`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mrc.errors import ArgumentError, BadFileError, ResolveError
from mrc.lab import machines
from mrc.lab.machines import BedMachine, Machines
from mrc.testbed import bed


def test_read__names_for_ssh() -> None:
    found = machines.read("host-a,root@host-b")
    assert found.names == ["host-a", "root@host-b"]
    assert found.every[1].command(["part", "--name", "lab"]) == [
        "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
        "root@host-b", "exec mrc testbed part --name lab",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["host-a", "a,a", "a,", ""])
def test_read__refuses_fewer_than_two(text: str) -> None:
    with pytest.raises(ArgumentError, match="at least two machines"):
        machines.read(text)


def test_read__a_file(tmp_path: Path) -> None:
    path = tmp_path / "on.toml"
    path.write_text(
        'port = 50000\nmrc = "/opt/mrc"\nreach = "lxc exec {name} -- sh -c"\n'
        '[[machines]]\nname = "a"\naddress = "198.51.100.1"\n'
        '[[machines]]\nname = "b"\nreach = "ssh b-admin"\nmrc = "mrc"\n'
    )
    assert machines.read(str(path)) == Machines(
        (
            BedMachine("a", "198.51.100.1", "lxc exec {name} -- sh -c", "/opt/mrc"),
            BedMachine("b", "", "ssh b-admin", "mrc"),
        ),
        50000,
    )
    words = machines.read(str(path)).every[0].command(["exec", "h0", "--", "echo", "a  b"])
    assert words == [
        "lxc",
        "exec",
        "a",
        "--",
        "sh",
        "-c",
        "exec /opt/mrc testbed exec h0 -- echo 'a  b'",
    ]


@pytest.mark.parametrize(
    "text, cause",
    [
        ("ports = 1", "ports: is unknown"),
        ("[[machines]]\n", r"machines\[0\].name: is missing"),
        ('[[machines]]\nname = "a"\naddress = "b"\n', "'b' does not appear to be"),
        ('reach = ""\n[[machines]]\nname = "a"\n', "reach: is empty"),
        ("port = 70000", "port: must be a whole number from 1 to 65535"),
    ],
)
def test_read__a_wrong_file(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "on.toml"
    path.write_text(text)
    with pytest.raises(BadFileError, match=cause):
        machines.read(str(path))


def of(*addresses: str) -> Machines:
    return Machines(tuple(BedMachine(f"m{i}", each) for i, each in enumerate(addresses)))


def test_located__finds_this_machine() -> None:
    found = machines.located(of("198.51.100.1", "127.0.0.2"))
    assert found.here == 1
    # What reaches it is the address that it sends from.
    own, mtu = machines.toward(found.every[0])
    assert found.every[1].address == own
    assert mtu >= 1280


def test_located__refuses() -> None:
    with pytest.raises(ArgumentError, match="of m0, m1, none is this machine"):
        machines.located(of("198.51.100.1", "198.51.100.2"))
    with pytest.raises(ArgumentError, match="m0 and m1 are all this machine"):
        machines.located(of("127.0.0.1", "127.0.0.2"))
    with pytest.raises(ResolveError, match=r"no address of m0: .*; give it in a file"):
        machines.located(of("", "127.0.0.1"))


def test_located__refuses_two_ip_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_is_here", lambda machine: machine.name == "m0")
    with pytest.raises(ArgumentError, match=r"m0 has 198.51.100.1, but m1 2001:db8::1"):
        machines.located(of("198.51.100.1", "2001:db8::1"))


def test_command__leaves_a_host_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command inside a host cannot reach other machines over the network of the host."""
    monkeypatch.setenv(bed.FOLDER_VARIABLE, "/run/mrc/lab")
    assert BedMachine("b").command(["part"])[:2] == [
        "nsenter",
        f"--net={bed.outside_namespaces()}/net",
    ]


def test_command__a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(bed.FOLDER_VARIABLE, raising=False)
    assert BedMachine("b").command(["shell", "h0"], terminal=True)[:2] == ["ssh", "-t"]
    assert BedMachine("b", reach="x").command(["shell"], terminal=True)[0] == "x"


def test_look_up__takes_the_host_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, *_: object, **__: object) -> list[object]:
        assert host == "host-b"
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    found = machines.located(Machines((BedMachine("m", "198.51.100.1"), BedMachine("root@host-b"))))
    assert found.here == 1
