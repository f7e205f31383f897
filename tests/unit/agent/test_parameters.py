# SPDX-License-Identifier: Apache-2.0
"""What a program and its agent agree on: attributes of QPs, the device; frames between them."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from attached import connect_body

from mrc import limits
from mrc.agent.parameters import (
    QpParameters,
    check_host,
    device_file,
    emulated_in,
    gid_for,
    peer_of,
    qp_parameters,
    source_of,
    unpack_address,
)
from mrc.agent.steering import ProgramEngine, read_struct
from mrc.connect.oob import Inbox
from mrc.engine import native
from mrc.engine.paths import LocalPort
from mrc.engine.queue_pair import QueuePair
from mrc.enums import Seal
from mrc.errors import ConfigError, ConnectError, ProtocolError
from mrc.fabric.hostconfig import (
    HostConfig,
    HostPath,
    HostPeer,
    HostPort,
    IpAddress,
    pack_address,
)
from mrc.limits import MAX_MTU, MIN_MTU, MPR_UNIT
from mrc.linux.secret import Secret

GID = pack_address(ip_address("10.0.0.1"))


def parameters(qpn: int = 3, dest_qpn: int = 0xFFFFFF, **fields: int) -> QpParameters:
    body = connect_body(qpn, dest_qpn, GID, GID, **fields)
    return qp_parameters(read_struct("mrc_agent_connect", body)[0])


@pytest.mark.parametrize("number", [0, 2, 0x1000000, 0xFFFFFFFF])
def test_qp_parameters__no_qpn(number: int) -> None:
    for qpns in ((number, 3), (3, number)):
        with pytest.raises(ProtocolError, match="not a QPN"):
            parameters(*qpns)


@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [
        ("sq_depth", 65536, 65536),
        ("sq_depth", 65537, 65536),
        ("max_wimm", 1025, 1024),
        ("mpr", 1, MPR_UNIT),
        ("mpr", MPR_UNIT, MPR_UNIT),
        ("mpr", limits.MAX_MPR + 1, limits.MAX_MPR),
        ("path_mtu", 0, 0),
        ("path_mtu", 1, 0),
        ("path_mtu", MIN_MTU - 4, MIN_MTU),
        ("path_mtu", 1027, 1024),
        ("path_mtu", 65532, MAX_MTU),
        ("timeout", 0, 0),
        ("timeout", 1, 14),
        ("timeout", 31, 24),
        ("retry_exp", 0, 0),
        ("retry_exp", 1, 1),
        ("retry_exp", 200, 25),
    ],
)
def test_qp_parameters__what_the_engine_can_do(name: str, asked: int, found: int) -> None:
    fields: Any = {name: asked}
    assert getattr(parameters(**fields), name) == found


@pytest.mark.parametrize("inbox", [{}, {"address": 4096}, {"rkey": 9}])
def test_qp_parameters__messages_without_an_inbox(inbox: dict[str, int]) -> None:
    with pytest.raises(ProtocolError, match="has no inbox"):
        parameters(messages=1, **inbox)


def test_qp_parameters__messages() -> None:
    inbox = {"peer": 5, "address": 4096, "rkey": 9}
    assert parameters(messages=1, **inbox).messages == (5, Inbox(4096, 9))
    assert parameters(**inbox).messages is None


# ---- Emulated RC ------------------------------------------------------------------------------

RC = {"emulated": 1, "address": 4096, "rkey": 9}


def test_private__has_the_inbox_of_emulated_rc() -> None:
    found = parameters(**RC, shared=1)
    assert found.private["rc"] == {"address": 4096, "rkey": 9, "shared": True}
    assert emulated_in(found.private) == found.emulated
    assert "rc" not in parameters().private


@pytest.mark.parametrize("field", ["address", "rkey"])
def test_qp_parameters__emulated_rc_without_an_inbox(field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        parameters(**RC | {field: 0})


def test_admit__emulated_rc_at_both_ends_or_none() -> None:
    ends = {"from": 0xFFFFFF, "to": 3}
    inbox = {"rc": {"address": 1, "rkey": 1, "shared": False}}
    assert parameters().admit(ends)
    assert parameters(**RC).admit(ends | inbox)
    for mine, theirs in ((parameters(), ends | inbox), (parameters(**RC), ends)):
        with pytest.raises(ConnectError, match="start both with mrc run --rc, or neither"):
            mine.admit(theirs)


@pytest.mark.parametrize("inbox", [1, {}, {"address": 0, "rkey": 1, "shared": False}, [[]]])
def test_admit__refuses_a_wrong_inbox(inbox: object) -> None:
    with pytest.raises(ProtocolError, match="emulated RC: "):
        parameters(**RC).admit({"from": 0xFFFFFF, "to": 3, "rc": inbox})


# ---- The device ---------------------------------------------------------------------------------

OWN = [ip_address("10.0.0.1"), ip_address("fd00::1")]
PATH = HostPath(1, "t1:1.0", ip_address("fd01::1:0"))
CONFIGURED = HostConfig(
    "h0",
    HostConfig.Source.SRV6,
    (HostPort("p1", ip_interface("fd00::1/64"), 1500),),
    {"h1": HostPeer("h1", "100.64.0.2", (ip_address("fd01::1"),), (PATH,))},
)


@pytest.mark.parametrize("name", ["::1", "fd00:a:1::1:0", "192.0.2.7", "0.0.0.0"])
def test_unpack_address__round_trip(name: str) -> None:
    packed = pack_address(ip_address(name))
    assert len(packed) == 16
    assert unpack_address(packed) == ip_address(name)


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
    monkeypatch.setattr(os, "mknod", Mock(side_effect=PermissionError))
    with (
        pytest.raises(ConfigError, match="only root can make it"),
        device_file(tmp_path / "d" / "mrc0"),
    ):
        pass


# ---- The engine of another process --------------------------------------------------------------


class Recorder:
    """A socket that takes packets; `kept` are the objects, `sent` what was in them."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return -1

    def send(self, packet: Any) -> int:
        self.kept.append(packet)
        self.sent.append(bytes(packet))
        return len(packet)


def test_submit__wipes_the_secrets_that_have_left() -> None:
    recorder = Recorder()
    opened = native.new_struct("mrc_agent_opened")
    connection: socket.socket = recorder  # type: ignore[assignment]
    engine = ProgramEngine(connection, opened, lambda frame: None, lambda reason: None)
    one, other = Secret.random(32), Secret.random(32)
    queue = QueuePair(sq_depth=16, mpr=128, max_wimm=8)
    command = queue.set_seal(Seal.AEAD, 5, random=one, peer_random=other, first=True)
    secrets = [bytes(command.keep.send), bytes(command.keep.receive)]  # type: ignore[attr-defined]
    assert engine.submit([command]) == 1
    assert all(secret in recorder.sent[0] for secret in secrets)
    assert recorder.kept[0] == bytes(len(recorder.sent[0]))
