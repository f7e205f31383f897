# SPDX-License-Identifier: Apache-2.0
"""The host configuration file that $MRC_CONFIG names: this host's ports, its peers, their paths.

`parse` is pure; `load` reads the file. Every error names the file and the key, as in
`/run/mrc/h0.toml: peers.h1.paths[0].plane: must be a number from 1 to 4`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

from mrc.errors import ConfigError
from mrc.fabric.addresses import IpAddress, IpInterface
from mrc.limits import MAX_PORTS

ENVIRONMENT = "MRC_CONFIG"
SCHEMA = 1


class Source(Enum):
    """Where paths come from."""

    SRV6 = "srv6"
    INTERFACES = "interfaces"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of this host: port n is the n-th of the file and lives in plane n."""

    ifname: str
    address: IpInterface
    mtu: int


@dataclass(frozen=True, slots=True)
class HostPath:
    """A path to a peer: the route to `destination` carries the packet along `segments`."""

    plane: int
    name: str
    destination: IpAddress
    segments: tuple[str, ...] = ()
    usids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostPeer:
    """A peer: where its OOB endpoint listens, which addresses it sends from, how to reach it."""

    name: str
    oob: str
    sources: tuple[IpAddress, ...] = ()
    paths: tuple[HostPath, ...] = ()


@dataclass(frozen=True, slots=True)
class HostConfig:
    """All of the file."""

    host: str
    source: Source
    ports: tuple[HostPort, ...]
    peers: Mapping[str, HostPeer]


@dataclass(frozen=True, slots=True)
class _Node:
    """A value of the file and its place, so that every complaint can name it."""

    origin: str
    key: str
    value: Any

    def wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.origin}: {self.key}: {problem}")

    def child(self, name: str) -> _Node:
        key = f"{self.key}.{name}" if self.key else name
        return _Node(self.origin, key, self.table().get(name))

    def table(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("must be a table")
        return self.value

    def list(self) -> tuple[_Node, ...]:
        if self.value is None:
            return ()
        if not isinstance(self.value, list):
            raise self.wrong("must be an array")
        return tuple(
            _Node(self.origin, f"{self.key}[{i}]", item) for i, item in enumerate(self.value)
        )

    def string(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.wrong("must be a string that is not empty")
        return self.value

    def strings(self) -> tuple[str, ...]:
        return tuple(item.string() for item in self.list())

    def number(self, low: int, high: int) -> int:
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.wrong(f"must be a number from {low} to {high}")
        return self.value

    def address(self) -> IpAddress:
        try:
            return ip_address(self.string())
        except ValueError:
            raise self.wrong(f"{self.value!r} is not an IP address") from None

    def interface(self) -> IpInterface:
        try:
            return ip_interface(self.string())
        except ValueError:
            raise self.wrong(f"{self.value!r} is not an IP address") from None


def _port(node: _Node) -> HostPort:
    ifname = node.child("ifname").string()
    if len(ifname.encode()) > 15:
        raise node.child("ifname").wrong(f"{ifname!r} is longer than 15 bytes")
    mtu = node.child("mtu").number(576, 65536)
    return HostPort(ifname, node.child("address").interface(), mtu)


def _path(node: _Node, planes: int) -> HostPath:
    return HostPath(
        plane=node.child("plane").number(1, planes),
        name=node.child("name").string(),
        destination=node.child("dst").address(),
        segments=node.child("segments").strings(),
        usids=node.child("usids").strings(),
    )


def _peer(name: str, node: _Node, ports: tuple[HostPort, ...], source: Source) -> HostPeer:
    paths = tuple(_path(item, len(ports)) for item in node.child("paths").list())
    sources = tuple(item.address() for item in node.child("sources").list())
    if source is Source.SRV6 and not paths:
        raise node.child("paths").wrong("must name a path at least")
    if source is Source.SRV6 and not sources:
        raise node.child("sources").wrong("must name an address at least")
    for i, path in enumerate(paths):
        if path.destination.version != ports[path.plane - 1].address.version:
            wrong = node.child("paths").list()[i].child("dst")
            raise wrong.wrong(f"is not of the IP version of port {path.plane}")
    return HostPeer(name, node.child("oob").string(), sources, paths)


def parse(text: str, origin: str) -> HostConfig:
    """Parses the text of a host configuration; `origin` names it in errors."""
    try:
        root = _Node(origin, "", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not TOML: {error}") from error
    if (schema := root.child("schema")).value != SCHEMA:
        raise schema.wrong(f"is {schema.value}, this mrc reads schema {SCHEMA}")
    try:
        source = Source(root.child("source").string())
    except ValueError:
        raise root.child("source").wrong('must be "srv6" or "interfaces"') from None
    ports = tuple(_port(item) for item in root.child("ports").list())
    if source is Source.SRV6 and not ports:
        raise root.child("ports").wrong("must hold a port at least")
    if len(ports) > MAX_PORTS:
        raise root.child("ports").wrong(f"holds more than {MAX_PORTS} ports")
    peers = root.child("peers")
    names = peers.table() if peers.value is not None else {}
    return HostConfig(
        host=root.child("host").string(),
        source=source,
        ports=ports,
        peers={name: _peer(name, peers.child(name), ports, source) for name in names},
    )


def read(path: str | os.PathLike[str]) -> HostConfig:
    """Reads and parses a host configuration file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    return parse(text, str(path))


def load(environ: Mapping[str, str]) -> HostConfig | None:
    """Returns the configuration that $MRC_CONFIG names, or None when it is not set."""
    path = environ.get(ENVIRONMENT)
    return read(path) if path else None
