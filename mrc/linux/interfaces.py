# SPDX-License-Identifier: Apache-2.0
"""The interfaces of a namespace, read without pyroute2, which loads more slowly than all of mrc.

linux/if_link.h and linux/if_addr.h define the layouts.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from msgspec import Struct

from mrc.linux.rtnetlink import Rtnetlink, attributes

_RTM_GETLINK, _RTM_GETADDR = 18, 22
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, bits of the prefix, flags, scope, index

_IFLA_IFNAME, _IFLA_MTU, _IFLA_OPERSTATE, _IFLA_CARRIER = 3, 4, 16, 33
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8

_IFF_UP = 0x1
_OPERSTATE_UNKNOWN, _OPERSTATE_UP = 0, 6
_IFA_F_OPTIMISTIC, _IFA_F_DADFAILED, _IFA_F_TENTATIVE = 0x4, 0x8, 0x40


class Interface(Struct, frozen=True):
    """A network interface: its state at the time of the read."""

    name: str
    index: int
    mtu: int
    up: bool
    """able to carry packets: administratively up, and with carrier if it reports one"""
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    """its addresses to which a socket can bind"""
    enabled: bool = True
    """administratively up"""


def interfaces(namespace: str | None = None) -> list[Interface]:
    """The interfaces of this namespace, or of a named one, by index. Requires no privilege.

    Raises NetlinkError.
    """
    rtnetlink = Rtnetlink.inside(namespace)
    try:
        return read_interfaces(rtnetlink)
    finally:
        rtnetlink.close()


def read_interfaces(rtnetlink: Rtnetlink) -> list[Interface]:
    """The interfaces of the socket's namespace, by index."""
    links = rtnetlink.dump_bytes(_RTM_GETLINK, bytes(_LINK.size))
    addresses: dict[int, list[IPv4Interface | IPv6Interface]] = {}
    for data in rtnetlink.dump_bytes(_RTM_GETADDR, bytes(_ADDRESS.size)):
        if (found := _address(data)) is not None:
            addresses.setdefault(found[0], []).append(found[1])
    return sorted((_interface(data, addresses) for data in links), key=lambda each: each.index)


def is_up(rtnetlink: Rtnetlink, index: int, name: str) -> bool:
    """Whether an interface can carry packets. This request makes the kernel update the state."""
    body = _LINK.pack(0, 0, index, 0, 0)
    data = rtnetlink.get_bytes(_RTM_GETLINK, body, f"read the state of {name}")
    return _is_up(_LINK.unpack_from(data)[3], attributes(data, _LINK.size))


def _interface(data: bytes, addresses: dict[int, list[IPv4Interface | IPv6Interface]]) -> Interface:
    _, _, index, flags, _ = _LINK.unpack_from(data)
    found = attributes(data, _LINK.size)
    return Interface(
        name=found[_IFLA_IFNAME].rstrip(b"\0").decode(),
        index=index,
        mtu=struct.unpack("=I", found[_IFLA_MTU])[0],
        up=_is_up(flags, found),
        addresses=tuple(addresses.get(index, ())),
        enabled=bool(flags & _IFF_UP),
    )


def _is_up(flags: int, found: dict[int, bytes]) -> bool:
    # Loopback and tunnels report no carrier, so their state is unknown. After a loss of carrier,
    # older kernels (6.1) update the state up to a second late.
    carrier = found.get(_IFLA_CARRIER, b"\1")[0] != 0
    state = found.get(_IFLA_OPERSTATE, b"\0")[0]
    return bool(flags & _IFF_UP) and carrier and state in {_OPERSTATE_UP, _OPERSTATE_UNKNOWN}


def _address(data: bytes) -> tuple[int, IPv4Interface | IPv6Interface] | None:
    """Index of the interface and the address; None before duplicate address detection is done."""
    _, bits, flags, _, index = _ADDRESS.unpack_from(data)
    found = attributes(data, _ADDRESS.size)
    # On a point-to-point link IFA_ADDRESS is the peer's address and IFA_LOCAL is ours.
    packed = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if _IFA_FLAGS in found:
        (flags,) = struct.unpack("=I", found[_IFA_FLAGS])
    failing = flags & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED) and not flags & _IFA_F_OPTIMISTIC
    if packed is None or failing:
        return None
    return index, ip_interface((ip_address(packed), bits))
