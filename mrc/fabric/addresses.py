# SPDX-License-Identifier: Apache-2.0
"""IP addresses of either version, as text and as the 16 bytes that the C code takes. Pure."""

from __future__ import annotations

from abc import ABC
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from typing import TYPE_CHECKING, Any

MAX_TEXT = 64

if TYPE_CHECKING:
    IpAddress = IPv4Address | IPv6Address
    IpInterface = IPv4Interface | IPv6Interface
else:
    # One class each: msgspec rejects a union of two custom types.

    class IpAddress(ABC):  # noqa: B024
        """An address of either version."""

    class IpInterface(ABC):  # noqa: B024
        """An address of either version, with its network."""

    for version in (IPv4Address, IPv6Address):
        IpAddress.register(version)
    for version in (IPv4Interface, IPv6Interface):
        IpInterface.register(version)


def read_address(kind: type, text: Any) -> IpAddress | IpInterface:
    """Parses an IpAddress or an IpInterface; raises ValueError."""
    try:
        # ipaddress accepts any character in a scope.
        if not isinstance(text, str) or len(text) > MAX_TEXT or not text.isprintable():
            raise ValueError
        return ip_interface(text) if kind == IpInterface else ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r:.80} is not an IP address") from None


def pack_address(address: IpAddress) -> bytes:
    """Returns the 16 bytes of an address, IPv4 in mapped form."""
    if isinstance(address, IPv4Address):
        return b"\x00" * 10 + b"\xff\xff" + address.packed
    return address.packed


def unpack_address(packed: bytes) -> IpAddress:
    """The inverse of `pack_address`."""
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


@lru_cache(maxsize=1024)  # each connection needs those of its ends several times
def parse_address(name: str) -> IpAddress:
    """Parses a numeric address. Removes a scope and turns a mapped IPv4 address into IPv4."""
    return unpack_address(pack_address(ip_address(name.partition("%")[0])))
