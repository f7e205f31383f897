# SPDX-License-Identifier: Apache-2.0
"""The source address of SRv6 encapsulations, by generic netlink (Linux, uapi/linux/seg6_genl.h)."""

from __future__ import annotations

import errno
import struct
from ipaddress import IPv6Address

from mrc.errors import NetlinkError
from mrc.linux import netns
from mrc.linux.rtnetlink import NETLINK_GENERIC, Request, Rtnetlink, attribute, attributes

_CONTROLLER, _GET_FAMILY = 16, 3
_FAMILY_ID, _FAMILY_NAME = 1, 2
_SET_TUNSRC, _DST = 3, 1
_HEADER = struct.Struct("=BBH")  # command, version


def set_tunnel_source(namespace: str, address: IPv6Address) -> bool:
    """Set the outer source address of all SRv6 encapsulations in a namespace.

    Without it the kernel selects an address for every packet that it encapsulates, which takes a
    tenth of the send. Returns False if the kernel allows this only for the machine's root, not for
    root of a user namespace. Raises NetlinkError.
    """
    what = f"set the source address of SRv6 encapsulations in {namespace}"
    with netns.inside(namespace):
        generic = Rtnetlink(NETLINK_GENERIC)
    try:
        asked = _HEADER.pack(_GET_FAMILY, 1, 0) + attribute(_FAMILY_NAME, b"SEG6\0")
        told = attributes(generic.get_bytes(_CONTROLLER, asked, what), _HEADER.size)
        (family,) = struct.unpack("=H", told[_FAMILY_ID])
        message = _HEADER.pack(_SET_TUNSRC, 1, 0) + attribute(_DST, address.packed)
        generic.request([Request(what, family, message)])
    except NetlinkError as exc:
        if exc.code == errno.EPERM:
            return False
        raise
    finally:
        generic.close()
    return True
