# SPDX-License-Identifier: Apache-2.0
"""IP addresses of either version, and the 16 bytes in which they travel to C. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address

IpAddress = IPv4Address | IPv6Address
IpInterface = IPv4Interface | IPv6Interface


def pack_address(address: IpAddress) -> bytes:
    """Returns the 16 bytes of an address, IPv4 in mapped form."""
    if isinstance(address, IPv4Address):
        return b"\x00" * 10 + b"\xff\xff" + address.packed
    return address.packed


def unpack_address(packed: bytes) -> IpAddress:
    """The inverse of `pack_address`."""
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


def parse_address(name: str) -> IpAddress:
    """Parses a numeric address; a scope is dropped and a mapped IPv4 address unmapped."""
    return unpack_address(pack_address(ip_address(name.partition("%")[0])))
