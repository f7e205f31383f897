# SPDX-License-Identifier: Apache-2.0
"""The host configuration file: valid contents, and the message for each mistake."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from mrc.errors import ConfigError
from mrc.fabric.hostconfig import PathSource, load, parse, read

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
    config = parse(GOOD, "h0.toml")
    assert config.host == "h0"
    assert config.source is PathSource.SRV6
    assert [port.ifname for port in config.ports] == ["p1", "p2"]
    assert config.ports[0].address == ip_interface("fd00:a:0::1/128")
    peer = config.peers["h1"]
    assert (peer.name, peer.oob) == ("h1", "fd00:c::2")
    assert peer.sources == (ip_address("fd00:a:1::1"),)
    (path,) = peer.paths
    assert (path.plane, path.name, str(path.destination)) == (2, "t1:2.0", "fd00:a:1::2:0")
    assert path.segments == ("fcbb:2:100:201:e000::",)
    assert path.usids == ("0100", "0201", "e000")


def test_parse__interfaces_need_neither_ports_nor_peers() -> None:
    config = parse('schema = 1\nhost = "a"\nsource = "interfaces"\n', "a.toml")
    assert config.ports == ()
    assert config.peers == {}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("schema = 1", "schema = 2", "schema: is 2, this mrc requires schema 1"),
        ("schema = 1\n", "", "schema: is None"),
        ("schema = 1", "schema = ", "not TOML"),
        ('host = "h0"\n', "", "host: is missing"),
        ('host = "h0"', 'host = ""', "host: must be a string that is not empty"),
        ('source = "srv6"', 'source = "bgp"', 'source: must be "srv6" or "interfaces"'),
        ('ifname = "p1"', "ifname = 1", r"ports\[0\].ifname: must be a string"),
        ('ifname = "p1"', 'ifname = "a-name-too-long-for-linux"', "longer than 15 bytes"),
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
        assert parse(text, "h0.toml").host == "h0"
        return
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse(text, "h0.toml")
    assert str(caught.value).startswith("h0.toml: ")


def test_parse__srv6_without_ports_or_paths() -> None:
    with pytest.raises(ConfigError, match="ports: source srv6 requires"):
        parse('schema = 1\nhost = "a"\nsource = "srv6"\n', "a.toml")
    text = GOOD[: GOOD.index("[[peers.h1.paths]]")]
    with pytest.raises(ConfigError, match=r"peers\.h1\.paths: source srv6 requires"):
        parse(text, "a.toml")


def test_parse__peers_must_be_a_table() -> None:
    with pytest.raises(ConfigError, match="peers: must be a table"):
        parse('schema = 1\nhost = "a"\nsource = "interfaces"\npeers = 3\n', "a.toml")


def test_read__a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no text in UTF-8"):
        read(tmp_path / "binary.toml")


def test_load__the_environment_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "h0.toml"
    path.write_text(GOOD)
    assert load({}) is None
    assert load({"MRC_CONFIG": ""}) is None
    config = load({"MRC_CONFIG": str(path)})
    assert config is not None
    assert config.host == "h0"
