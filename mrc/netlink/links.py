# SPDX-License-Identifier: Apache-2.0
"""Interfaces, their addresses and their neighbours, as messages and back (uapi/linux: if_link.h,
if_addr.h, neighbour.h, veth.h).
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface, ip_interface

from mrc.nlsocket import number, pack, read_number, read_text, text, unpack

_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, which of these to change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_SENT = struct.Struct("=8Q")  # packets, bytes, errors, drops; of each first what was received

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_OPERSTATE, _IFLA_LINKINFO = 1, 3, 4, 16, 18
_IFLA_STATS64, _IFLA_NET_NS_FD, _IFLA_GSO_MAX_SEGS = 23, 28, 40
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_VETH_INFO_PEER = 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_NDA_DST, _NDA_LLADDR = 1, 2

_IFF_UP = 0x1
_OPER_UNKNOWN, _OPER_UP = 0, 6
_IFA_F_NODAD = 0x2
_NUD_PERMANENT = 0x80

ALL_LINKS = bytes(_LINK.size)
ALL_ADDRESSES = bytes(_ADDRESS.size)


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface as the kernel has it now."""

    name: str
    index: int
    mtu: int
    up: bool
    """able to carry packets: set up, and with a carrier where it knows of one"""
    addresses: tuple[IPv4Interface | IPv6Interface, ...] = ()


@dataclass(frozen=True, slots=True)
class Veth:
    """A pair of joined interfaces: ours here, the peer's in another namespace."""

    name: str
    peer_name: str
    peer_namespace: str
    mtu: int
    mac: str
    peer_mac: str
    gso_max_segs: int | None = None
    """packets that it takes from the stack in one piece; None: as many as come"""


def by_index(index: int) -> bytes:
    return _LINK.pack(0, 0, index, 0, 0)


def set_link(index: int, *, up: bool) -> bytes:
    return _LINK.pack(0, 0, index, _IFF_UP if up else 0, _IFF_UP)


def decode(body: bytes) -> Interface:
    """Without its addresses."""
    _, _, index, flags, _ = _LINK.unpack_from(body)
    found = unpack(body[_LINK.size :])
    # Loopback and tunnels know of no carrier, so their state is unknown.
    state = read_number(found.get(_IFLA_OPERSTATE, b""))
    return Interface(
        name=read_text(found[_IFLA_IFNAME]),
        index=index,
        mtu=read_number(found[_IFLA_MTU]),
        up=bool(flags & _IFF_UP) and state in (_OPER_UNKNOWN, _OPER_UP),
    )


def decode_sent(body: bytes) -> tuple[int, int, int]:
    """Packets and bytes that an interface has sent, and packets that it dropped instead."""
    stats = unpack(body[_LINK.size :])[_IFLA_STATS64]
    _, packets, _, sent, _, _, _, dropped = _SENT.unpack_from(stats)
    return packets, sent, dropped


def veth(wanted: Veth, peer_namespace: int) -> bytes:
    """`peer_namespace`: a file descriptor."""
    peer = pack(
        (_IFLA_IFNAME, text(wanted.peer_name)),
        (_IFLA_MTU, number(wanted.mtu)),
        (_IFLA_ADDRESS, _mac(wanted.peer_mac)),
        (_IFLA_NET_NS_FD, number(peer_namespace)),
    )
    kind = (_IFLA_INFO_KIND, text("veth"))
    data = (_IFLA_INFO_DATA, pack((_VETH_INFO_PEER, bytes(_LINK.size) + peer)))
    attributes = [
        (_IFLA_IFNAME, text(wanted.name)),
        (_IFLA_MTU, number(wanted.mtu)),
        (_IFLA_ADDRESS, _mac(wanted.mac)),
        (_IFLA_LINKINFO, pack(kind, data)),
    ]
    if wanted.gso_max_segs is not None:
        attributes.append((_IFLA_GSO_MAX_SEGS, number(wanted.gso_max_segs)))
    return bytes(_LINK.size) + pack(*attributes)


def address(index: int, own: IPv6Interface) -> bytes:
    """Usable at once, without duplicate detection."""
    return _ADDRESS.pack(socket.AF_INET6, own.network.prefixlen, 0, 0, index) + pack(
        (_IFA_ADDRESS, own.ip.packed),
        (_IFA_LOCAL, own.ip.packed),
        (_IFA_FLAGS, number(_IFA_F_NODAD)),
    )


def decode_address(body: bytes) -> tuple[int, IPv4Interface | IPv6Interface] | None:
    """The index of an interface, and an address of it; None for what is not of IP."""
    _, prefix, _, _, index = _ADDRESS.unpack_from(body)
    found = unpack(body[_ADDRESS.size :])
    # IFA_ADDRESS is the far end's on a point-to-point link; IFA_LOCAL, where given, ours.
    own = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS, b"")
    return (index, ip_interface((own, prefix))) if len(own) in (4, 16) else None


def neighbour(index: int, address: IPv6Address, mac: str) -> bytes:
    """Known for good."""
    head = _NEIGHBOUR.pack(socket.AF_INET6, index, _NUD_PERMANENT, 0, 0)
    return head + pack((_NDA_DST, address.packed), (_NDA_LLADDR, _mac(mac)))


def _mac(address: str) -> bytes:
    return bytes.fromhex(address.replace(":", ""))
