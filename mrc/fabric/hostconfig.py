# SPDX-License-Identifier: Apache-2.0
"""The host configuration file at $MRC_CONFIG: this host's ports, its peers, and paths to them; and
IP addresses of either version, as text and as the 16 bytes that the C code takes.

`HostConfig.parse` is pure, `read` and `load` read a file. Unknown keys are ignored. Errors name
file and key, as in `h0.toml: ports[0].mtu: must be a whole number from 576 to 65536, not 100`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from msgspec import Meta, Struct, field

from mrc import limits
from mrc.enums import Named
from mrc.errors import BadFileError, WrongValueError
from mrc.typed import Checked, Name, Text, checked, take

# ---- Addresses -----------------------------------------------------------------------------------


MAX_TEXT = 64

if TYPE_CHECKING:
    IpAddress = IPv4Address | IPv6Address
    IpInterface = IPv4Interface | IPv6Interface
else:
    # One class each: msgspec rejects a union of two custom types.

    def _read(parse: Callable[[str], object], text: object) -> object:
        """Parses text; raises ValueError."""
        try:
            # ipaddress accepts any character in a scope.
            if not isinstance(text, str) or len(text) > MAX_TEXT or not text.isprintable():
                raise ValueError
            return parse(text)
        except ValueError:
            raise ValueError(f"{text!r:.80} is not an IP address") from None

    class IpAddress(ABC):  # noqa: B024
        """An address of either version."""

        read = staticmethod(partial(_read, ip_address))
        __subclasshook__ = {IPv4Address, IPv6Address}.__contains__

    class IpInterface(ABC):  # noqa: B024
        """An address of either version, with its network."""

        read = staticmethod(partial(_read, ip_interface))
        __subclasshook__ = {IPv4Interface, IPv6Interface}.__contains__

    IpAddress.__name__ = "IPv4Address or IPv6Address"  # in errors
    IpInterface.__name__ = "IPv4Interface or IPv6Interface"


def pack_address(address: IpAddress) -> bytes:
    """Returns the 16 bytes of an address, IPv4 in mapped form."""
    if isinstance(address, IPv4Address):
        return b"\x00" * 10 + b"\xff\xff" + address.packed
    return address.packed


# ---- The file ------------------------------------------------------------------------------------


SCHEMA = 1


class HostPort(Checked, Struct, frozen=True):
    """A port of this host. Without `plane`, the n-th port in the file belongs to plane n."""

    ifname: Text
    """Name of the interface."""
    address: IpInterface
    """Its address with the prefix length."""
    mtu: Annotated[int, Meta(ge=576, le=65536)]
    """Its MTU in bytes."""
    plane: Annotated[int, Meta(ge=0, le=limits.MAX_PORTS)] = 0
    """Its plane; 0: its place in the file."""
    weight: Annotated[int, Meta(ge=0, le=100)] = 100
    """What it carries, in per cent of the port that carries most; 0: a backup, which carries data
    only while no other port can.
    """

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if len(self.ifname.encode(errors="replace")) > 15:
            raise WrongValueError(f"ifname: {self.ifname!r:.60} is longer than 15 bytes")


class HostPath(Checked, Struct, frozen=True):
    """A path to a peer. The kernel's route to `destination` sends packets along `segments`."""

    # The first uSID of the switches of each tier, in a fabric of mrc testbed.
    T1_USID = 0x0100
    T0_USID = 0x0200
    T2_USID = 0x2000
    T1_OF_PODS_USID = 0x3000

    plane: Annotated[int, Meta(ge=1, le=limits.MAX_PORTS)]
    """The plane, from 1."""
    name: Text
    """Name of the path."""
    destination: IpAddress = field(name="dst")
    """Destination address of its packets (`dst` in the file)."""
    segments: tuple[Text, ...] = ()
    """SRv6 segments on the way."""
    usids: tuple[Text, ...] = ()
    """The uSIDs in the segments."""

    @classmethod
    def switch_of(cls, plane: int, usid: int) -> str:
        """The name of the switch that has this uSID."""
        firsts = (
            ("t1", cls.T1_OF_PODS_USID), ("t2", cls.T2_USID), ("t0", cls.T0_USID),
            ("t1", cls.T1_USID),
        )  # fmt: skip
        tier, first = next((each for each in firsts if usid >= each[1]), ("usid", 0))
        return f"{tier}:{plane}.{usid - first}"


class HostPeer(Checked, Struct, frozen=True):
    """A peer: the address of its OOB endpoint, its source addresses, and the paths to it."""

    name: Name
    """Name of the peer: the key of its table."""
    oob: Text
    """Host name or address where it listens."""
    sources: tuple[IpAddress, ...] = ()
    """Source addresses of its packets."""
    paths: tuple[HostPath, ...] = ()
    """The paths to it."""


class HostConfig(Checked, Struct, frozen=True):
    """The whole file."""

    ENVIRONMENT: ClassVar = "MRC_CONFIG"
    """The variable that names the file."""

    class Source(Named, Enum):
        """The source of paths."""

        SRV6 = "srv6"
        INTERFACES = "interfaces"

    host: Annotated[Name, Meta(min_length=1)]
    """Name of this host."""
    source: HostConfig.Source
    """Source of the paths: this file (srv6) or the interfaces."""
    ports: Annotated[tuple[HostPort, ...], Meta(max_length=limits.MAX_PORTS)] = ()
    """The ports, in the order of their planes."""
    peers: dict[str, HostPeer] = {}
    """The peers by name."""
    security: Literal["", "none"] = ""
    """`none`: the commands of mrc neither encrypt nor ask who the peer is, as in a test bed."""

    @property
    def has_srv6(self) -> bool:
        """Whether the paths are those of this file."""
        return self.source is self.Source.SRV6

    @property
    def planes(self) -> dict[int, HostPort]:
        """The ports by plane."""
        return {port.plane or place: port for place, port in enumerate(self.ports, start=1)}

    @property
    def most_segments(self) -> int:
        """The SRv6 segments of the longest path, at least 1."""
        paths = (path for peer in self.peers.values() for path in peer.paths)
        return max((len(path.segments) for path in paths), default=0) or 1

    @classmethod
    def parse(cls, text: str, origin: str) -> Self:
        """Parses the text of a host configuration; `origin` names it in errors."""
        from mrc.fabric.document import parsed  # slow import

        document = parsed(text, origin)
        try:
            if (schema := document.get("schema")) != SCHEMA:
                raise ValueError(f"schema: is {schema}, this mrc requires schema {SCHEMA}")
            tables = take(document.get("peers", {}), dict[str, Any], place="peers")
            peers = {}
            for name, table in tables.items():
                place = f"peers.{repr(name)[1:-1]:.60}"
                values = take(table, dict[str, Any], place=place) | {"name": name}
                peers[name] = take(values, HostPeer, place=place)
            return take({**document, "peers": peers}, cls)
        except ValueError as error:
            raise BadFileError(f"{origin}: {error}") from error

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> Self | None:
        """Reads the file at $MRC_CONFIG; None if it is not set. Raises BadFileError."""
        path = environ.get(cls.ENVIRONMENT)
        return cls.read(path) if path else None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Reads a file. Raises BadFileError."""
        from mrc.fabric import document  # slow import

        file = Path(checked("path", path, str | Path))
        name = repr(str(path))[1:-1]  # printable
        return cls.parse(document.text_of(file, name, document.MOST_BYTES), name)

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if wrong := next(self._contradictions(), ""):
            raise WrongValueError(wrong)

    def _contradictions(self) -> Iterator[str]:
        if not self.host.isprintable():
            yield "host: is not printable"
        if self.has_srv6 and not self.ports:
            yield "ports: source srv6 requires at least one port"
        if len(self.planes) < len(self.ports):
            yield "ports: two ports have the same plane"
        for name, peer in self.peers.items():
            if name != peer.name or not name.isprintable():
                yield f"peers: {name!r:.60} is not the printable name of its peer"
            if self.has_srv6 and not peer.paths:
                yield f"peers.{name}.paths: source srv6 requires at least one path"
            if self.has_srv6 and not peer.sources:
                yield f"peers.{name}.sources: source srv6 requires at least one address"
            for i, path in enumerate(peer.paths):
                place = f"peers.{name}.paths[{i}]"
                if path.plane not in self.planes:
                    planes = ", ".join(map(str, self.planes))
                    yield f"{place}.plane: must be the plane of a port: {planes}"
                elif path.destination.version != self.planes[path.plane].address.version:
                    yield f"{place}.dst: must have the IP version of port {path.plane}"
