# SPDX-License-Identifier: Apache-2.0
"""The host configuration file and other TOML: valid contents, and one line for each mistake;
addresses in the form that C uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from mrc.connect.parse import parse_address
from mrc.errors import BadFileError, ConfigError
from mrc.fabric import document
from mrc.fabric.hostconfig import (
    HostConfig,
    pack_address,
)

GOOD = """
schema = 1
host = "h0"
source = "srv6"
[[ports]]
ifname = "p1"
address = "fd00:a:0::1"
mtu = 9000
[[ports]]
ifname = "p2"
address = "fd00:a:0::1"
mtu = 9000
weight = 0
[peers.h1]
oob = "fd00:c::2"
sources = ["fd00:a:1::1"]
[[peers.h1.paths]]
plane = 2
name = "t1:2.0"
dst = "fd00:a:1::2:0"
segments = ["fcbb:2:100:201:e000::"]
usids = ["0100", "0201", "e000"]
"""


def test_parse__all_of_the_file() -> None:
    config = HostConfig.parse(GOOD, "h0.toml")
    assert config.host == "h0"
    assert config.source is HostConfig.Source.SRV6
    assert [port.ifname for port in config.ports] == ["p1", "p2"]
    assert [port.weight for port in config.ports] == [100, 0]
    assert config.ports[0].address == ip_interface("fd00:a:0::1/128")
    peer = config.peers["h1"]
    assert (peer.name, peer.oob) == ("h1", "fd00:c::2")
    assert peer.sources == (ip_address("fd00:a:1::1"),)
    (path,) = peer.paths
    assert (path.plane, path.name, str(path.destination)) == (2, "t1:2.0", "fd00:a:1::2:0")
    assert path.segments == ("fcbb:2:100:201:e000::",)
    assert path.usids == ("0100", "0201", "e000")


def test_parse__interfaces_need_neither_ports_nor_peers() -> None:
    config = HostConfig.parse('schema = 1\nhost = "a"\nsource = "interfaces"\n', "a.toml")
    assert config.ports == ()
    assert config.peers == {}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("schema = 1", "schema = 2", "schema: is 2, this mrc requires schema 1"),
        ("schema = 1\n", "", "schema: is None"),
        ("schema = 1", "schema = ", "not TOML"),
        ('host = "h0"\n', "", "host: is missing"),
        ('host = "h0"', 'host = ""', "host: must be a string of 1 to 255 characters, not ''$"),
        ('source = "srv6"', 'source = "bgp"', 'source: must be "srv6" or "interfaces"'),
        ('ifname = "p1"', "ifname = 1", r"ports\[0\].ifname: must be a string"),
        (
            'ifname = "p1"',
            'ifname = "a-name-too-long-for-linux"',
            r"ports\[0\].ifname: 'a-name.*' is longer than 15 bytes$",
        ),
        ("mtu = 9000", "mtu = 100", r"ports\[0\].mtu: must be a whole number from 576 to 65536"),
        ("mtu = 9000", "mtu = true", r"ports\[0\].mtu: must be a whole number"),
        ('"fd00:a:0::1"', '"fd00:zz::1"', r"ports\[0\].address: 'fd00:zz::1' is not an IP address"),
        ('oob = "fd00:c::2"\n', "", "peers.h1.oob: is missing"),
        ('["fd00:a:1::1"]', '["x"]', r"peers.h1.sources\[0\]: 'x' is not an IP address"),
        ('["fd00:a:1::1"]', "[]", "peers.h1.sources: source srv6 requires"),
        (
            "plane = 2",
            "plane = 3",
            r"peers.h1.paths\[0\].plane: must be the plane of a port: 1, 2",
        ),
        ("plane = 2\n", "", r"peers.h1.paths\[0\].plane: is missing"),
        ("mtu = 9000", "mtu = 9000\nplane = 2", "ports: two ports have the same plane"),
        ('"fd00:a:1::2:0"', '"192.0.2.1"', r"paths\[0\].dst: must have the IP version of port 2"),
        ("segments = [", "segments = [1, ", r"paths\[0\].segments\[0\]: must be a string"),
        ('usids = ["0100", "0201", "e000"]', 'usids = "0100"', "usids: must be an array"),
        ("[peers.h1]", "[other]\n[peers.h1]\nextra = 1", None),
    ],
)
def test_parse__each_mistake_is_named(old: str, new: str, complaint: str | None) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if complaint is None:
        assert HostConfig.parse(text, "h0.toml").host == "h0"
        return
    with pytest.raises(ConfigError, match=complaint) as caught:
        HostConfig.parse(text, "h0.toml")
    assert str(caught.value).startswith("h0.toml: ")


def test_parse__srv6_without_ports_or_paths() -> None:
    with pytest.raises(ConfigError, match="ports: source srv6 requires"):
        HostConfig.parse('schema = 1\nhost = "a"\nsource = "srv6"\n', "a.toml")
    text = GOOD[: GOOD.index("[[peers.h1.paths]]")]
    with pytest.raises(ConfigError, match=r"peers\.h1\.paths: source srv6 requires"):
        HostConfig.parse(text, "a.toml")


def test_parse__peers_must_be_a_table() -> None:
    with pytest.raises(ConfigError, match="peers: must be a table"):
        HostConfig.parse('schema = 1\nhost = "a"\nsource = "interfaces"\npeers = 3\n', "a.toml")


def test_load__the_environment_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "h0.toml"
    path.write_text(GOOD)
    assert HostConfig.load({}) is None
    assert HostConfig.load({"MRC_CONFIG": ""}) is None
    config = HostConfig.load({"MRC_CONFIG": str(path)})
    assert config is not None
    assert config.host == "h0"


# ---- Any TOML file -------------------------------------------------------------------------------


LOADERS: dict[str, Callable[[Path], object]] = {
    "document": lambda path: document.load(path, str(path)),
    "hostconfig": lambda path: HostConfig.load({HostConfig.ENVIRONMENT: str(path)}),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a = " + "9" * 5000, "not TOML: a number has too many digits"),
        ("a = 0." + "9" * 5000 + "e" + "9" * 5000, None),
        ("a = " + "[" * 3000 + "]" * 3000, "not TOML: is nested too deeply"),
        ("a = " + "{a=" * 3000 + "}" * 3000, "not TOML: is nested too deeply"),
        ("a = 9999-99-99", "not TOML: "),
        ("a = 2026-02-30", "not TOML: "),
        ("a = 2026-01-01T25:00:00", "not TOML: "),
        ("a = ", "not TOML: "),
        ("a = 1\na = 2", "not TOML: "),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_parsed__a_wrong_text_is_one_line(
    loader: str, text: str, complaint: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    try:
        LOADERS[loader](path)
    except BadFileError as error:
        assert str(error).startswith(f"{path}: {complaint or ''}")
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 300
    else:
        assert complaint is None


@pytest.mark.parametrize("loader", LOADERS)
def test_text_of__refuses(loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = LOADERS[loader]
    monkeypatch.setattr(document, "MOST_BYTES", 1 << 20)
    path = tmp_path / "x.toml"
    path.write_bytes(b"#" * (1 << 20))
    if loader == "document":
        assert load(path) == {}
    path.write_bytes(b"#" * ((1 << 20) + 1))
    for there in (path, Path("/dev/zero")):
        with pytest.raises(BadFileError, match=f"^{there}: has more than 1 MiB, which is the"):
            load(there)
    path.write_bytes(b"\xff")
    with pytest.raises(BadFileError, match=f"^{re.escape(str(path))}: is no text in UTF-8: "):
        load(path)
    with pytest.raises(BadFileError, match=f"^{re.escape(str(tmp_path))}: "):
        load(tmp_path)
    with pytest.raises(BadFileError, match="No such file"):
        load(tmp_path / "none.toml")


# ---- Addresses -----------------------------------------------------------------------------------


def test_pack_address__ipv4_is_mapped() -> None:
    assert pack_address(ip_address("192.0.2.7")) == bytes(10) + b"\xff\xff\xc0\x00\x02\x07"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fe80::1%eth0", "fe80::1"), ("::ffff:127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")],
)
def test_parse_address__scope_and_mapping(name: str, expected: str) -> None:
    assert parse_address(name) == ip_address(expected)
