# SPDX-License-Identifier: Apache-2.0
"""Whom a connection is from, as far as the limits for strangers are concerned.

A source is an IPv4 address or an IPv6 /64: what one host has for itself. Its network is the IPv4
/16 or the IPv6 /48: what one attacker may have as a whole.
"""

from __future__ import annotations

from collections import OrderedDict

from mrc.fabric.hostconfig import IpAddress, parse_address

_SOURCE_BITS = {4: 32, 6: 64}
_NETWORK_BITS = {4: 16, 6: 48}
_MOST_KNOWN = 4096


def source_of(address: str) -> str:
    """The source of an address: the IPv4 address itself, or the IPv6 /64."""
    return str(_first(parse_address(address), _SOURCE_BITS))


def network_of(address: str) -> str:
    """The network of an address, such as 10.9.0.0/16 or 2001:db8:1::/48."""
    found = parse_address(address)
    return f"{_first(found, _NETWORK_BITS)}/{_NETWORK_BITS[found.version]}"


def _first(address: IpAddress, bits: dict[int, int]) -> IpAddress:
    """The first address with the same bits."""
    rest = address.max_prefixlen - bits[address.version]
    return type(address)(int(address) >> rest << rest)


class KnownSources:
    """The sources that proved themselves last, up to _MOST_KNOWN of them."""

    def __init__(self) -> None:
        self._sources: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, source: str) -> bool:
        return source in self._sources

    def add(self, source: str) -> None:
        """It has proved itself, now or again."""
        self._sources[source] = None
        self._sources.move_to_end(source)
        if len(self._sources) > _MOST_KNOWN:
            self._sources.popitem(last=False)
