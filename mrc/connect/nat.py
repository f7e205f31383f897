# SPDX-License-Identifier: Apache-2.0
"""A NAT in front of the connecting side, and the one way through it. Pure.

A NAT gives the packets of a host another address and port, and lets back only what answers them,
from where they went to. So both sides use one pair of ports, those of their TCP connection, and
send from the socket that receives, which makes one flow. The listening side knows the address of
the NAT from TCP, and the engine learns the port from sealed packets (csrc/core/receive.c).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from mrc import limits
from mrc.connect.parse import parse_address, shown
from mrc.engine.paths import PeerSource, PortPair

if TYPE_CHECKING:
    from mrc.connect.oob import Channel, Hello


class Ends(Struct, frozen=True):
    """The addresses of both ends of the TCP connection, as both sides see them."""

    inner: str
    """of the connecting side"""
    outer: str
    """the same as the listening side sees it"""
    dialed: str
    """of the listening side, as the connecting side sees it"""
    found: str
    """the same as the listening side sees it"""

    @classmethod
    def of(cls, channel: Channel, peer: Hello, dialed: bool) -> Self:
        """By this side and the hello of the peer. `dialed`: this is the connecting side."""
        mine = channel.local, channel.remote
        theirs = (peer.here, peer.there) if peer.here else mine[::-1]  # an earlier mrc
        (inner, there), (found, outer) = (mine, theirs) if dialed else (theirs, mine)
        return cls(inner, outer, there, found)

    @property
    def has_nat(self) -> bool:
        """Whether there is a NAT in front of the connecting side only.

        If both sides have other addresses than the other one sees, there is a proxy; UDP may go
        another way.
        """
        return self.inner != self.outer and self.dialed == self.found

    def in_words(self, *, passed: bool) -> str:
        """What is between the two sides, and what to do about it; or "". `passed`: the packets of
        the QP can pass a NAT.
        """
        if self.has_nat:
            found = f"a NAT shows {shown(self.inner)} as {shown(self.outer)}"
            remedy = (
                ", and only sealed packets pass it, between the addresses of the connection: leave"
                " out --insecure, --seal none and -B on both hosts, or use a VPN"
            )
            return found if passed else found + remedy
        if self.dialed == self.found:
            return ""
        return f"{shown(self.dialed)} is forwarded to {shown(self.found)}, which requires a VPN"

    def pair(self, pairs: Iterable[PortPair], dialed: bool) -> PortPair | None:
        """The pair of the connection, the only one whose packets pass the NAT. None: there is no
        NAT, or one side does not use these ports.
        """
        wanted = (self.inner, self.found) if dialed else (self.found, self.inner)
        for each in pairs if self.has_nat else ():
            if (str(each.local.address.ip), str(each.remote.address.ip)) == wanted:
                return each
        return None

    def sources(
        self, pair: PortPair, udp_port: int, others: list[PeerSource], dialed: bool
    ) -> list[PeerSource]:
        """Those of the peer's packets that pass the NAT, around `others`. `udp_port` is the
        peer's.
        """
        found = [PeerSource(pair.remote.address.ip, udp_port), *others]
        del found[limits.MAX_PEER_SOURCES - 1 :]
        if not dialed:
            found.append(PeerSource(parse_address(self.outer), udp_port, is_nat=True))
        return found
