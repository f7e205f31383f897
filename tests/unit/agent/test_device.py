# SPDX-License-Identifier: Apache-2.0
"""The device that programs see, and its file in /dev."""

from __future__ import annotations

import os
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from mrc.agent.device import check_host, device_file, gid_for, peer_of, source_of
from mrc.errors import ConfigError, ConnectError
from mrc.fabric.hostconfig import HostConfig, HostPeer, IpAddress, PathSource
from mrc.fabric.paths import LocalPort

OWN = [ip_address("10.0.0.1"), ip_address("fd00::1")]
CONFIGURED = HostConfig(
    "h0", PathSource.SRV6, peers={"h1": HostPeer("h1", "100.64.0.2", (ip_address("fd01::1"),))}
)


@pytest.mark.parametrize(
    ("gid", "config", "peer"),
    [
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", CONFIGURED, "h0"),
        ("fd01::1", CONFIGURED, "h1"),
        ("fd01::1", None, "fd01::1"),
        ("fd01::2", CONFIGURED, "fd01::2"),
    ],
)
def test_peer_of(gid: str, config: HostConfig | None, peer: str) -> None:
    """Hosts in the configuration are dialled by name, this host too."""
    assert peer_of(ip_address(gid), OWN, config) == peer


@pytest.mark.parametrize(
    ("gid", "config", "name", "addresses", "remote", "same"),
    [
        ("10.0.1.2", None, "", ["10.0.1.2", "10.0.2.2"], "10.0.2.2", True),
        ("10.0.1.2", None, "", ["10.0.3.2"], "10.0.1.2", True),
        ("10.0.1.2", None, "", ["10.0.3.2"], "10.0.3.2", False),
        ("10.0.1.2", None, "", ["fd07::2"], "::ffff:10.0.1.2", True),
        ("10.0.0.1", None, "", ["127.0.0.1", "::1"], "10.0.0.1", True),
        ("fd00::1", None, "", ["127.0.0.1", "::1"], "127.0.0.1", True),
        ("10.0.0.1", None, "", ["10.0.0.1"], "10.0.0.9", False),
        ("fd01::1", CONFIGURED, "h1", ["fd01::2"], "fd0f::2", True),
        ("fd01::1", CONFIGURED, "h2", ["fd01::1"], "fd0f::3", False),
    ],
)
def test_check_host(
    gid: str, config: HostConfig | None, name: str, addresses: list[str], remote: str, *, same: bool
) -> None:
    found = [ip_address(each) for each in addresses]
    try:
        check_host(ip_address(gid), OWN, config, name, found, remote)
    except ConnectError as error:
        assert not same and f"{remote} is not {gid}" in str(error)
    else:
        assert same


@pytest.mark.parametrize(
    ("gid", "own", "peer", "source"),
    [
        ("10.0.1.2", OWN, "10.0.1.2", "10.0.0.1"),
        ("fd01::1", OWN, "fd01::1", "fd00::1"),
        ("fd01::1", OWN, "h1", None),
        ("10.0.0.1", OWN, "10.0.0.1", None),
        ("10.0.1.2", [ip_address("127.0.0.1")], "10.0.1.2", None),
        ("10.0.1.2", [ip_address("fd00::1")], "10.0.1.2", None),
    ],
)
def test_source_of(gid: str, own: list[IpAddress], peer: str, source: str | None) -> None:
    found = source_of(ip_address(gid), own, peer)
    assert found == (None if source is None else ip_address(source))


@pytest.mark.parametrize(
    ("called", "addresses", "gid"),
    [
        ("10.0.2.1", ["10.0.1.1", "10.0.2.1"], "10.0.2.1"),
        ("100.64.0.1", ["10.0.1.1", "fd00::1"], "10.0.1.1"),
        ("fd0c::1", ["10.0.1.1", "fd00::1"], "fd00::1"),
        ("100.64.0.1", ["fd00::1"], "fd00::1"),
        ("127.0.0.1", ["10.0.1.1"], "127.0.0.1"),
        ("10.0.1.1", [], "10.0.1.1"),
    ],
)
def test_gid_for(called: str, addresses: list[str], gid: str) -> None:
    ports = [
        LocalPort(plane, f"p{plane}", ip_interface(address), 1500)
        for plane, address in enumerate(addresses, 1)
    ]
    assert gid_for(ip_address(called), ports) == ip_address(gid)


# ---- The file of mrc agent --node ---------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


@needs_root
def test_node__is_there_while_the_agent_runs(tmp_path: Path) -> None:
    path = tmp_path / "infiniband" / "mrc0"
    with device_file(path):
        assert path.is_char_device() and path.stat().st_mode & 0o777 == 0o666
    assert not path.parent.exists()


@needs_root
def test_node__of_a_killed_agent_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "infiniband" / "mrc0"
    path.parent.mkdir()
    (path.parent / "other").touch()
    os.mknod(path, 0o020666, os.makedev(1, 3))
    with device_file(path):
        assert path.is_char_device()
    assert not path.exists() and path.parent.exists()  # another's file is there


@needs_root
def test_node__something_else_is_there(tmp_path: Path) -> None:
    path = tmp_path / "infiniband" / "mrc0"
    path.parent.mkdir()
    path.write_text("a NIC's")
    with pytest.raises(ConfigError, match="File exists"), device_file(path):
        pass
    assert path.read_text() == "a NIC's"


def test_node__not_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mknod(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", mknod)
    with (
        pytest.raises(ConfigError, match="only root can make it"),
        device_file(tmp_path / "d" / "mrc0"),
    ):
        pass
