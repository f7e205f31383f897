# SPDX-License-Identifier: Apache-2.0
"""The source address of SRv6 encapsulations, by generic netlink (Linux, uapi/linux/seg6_genl.h)."""

from __future__ import annotations

import errno
import struct
from contextlib import closing
from ipaddress import IPv6Address

from mrc import netns
from mrc.errors import NetlinkError
from mrc.nlsocket import NetlinkSocket, Request, pack, read_number, text, unpack

_NETLINK_GENERIC = 16
_HEAD = struct.Struct("=BBxx")  # command, version
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_FAMILY, _VERSION, _SET_TUNSRC, _SEG6_ATTR_DST = "SEG6", 1, 3, 1


def set_tunnel_source(namespace: str, address: IPv6Address) -> bool:
    """Give all encapsulations of a namespace this outer source address.

    Without one the kernel looks for a suitable address of the interface with every packet that it
    encapsulates, which costs a tenth of the send. False when the kernel lets only the machine's
    root do it, and not that of a user namespace. Raises NetlinkError.
    """
    what = f"set the source of SRv6 encapsulations in {namespace}"
    with netns.inside(namespace):
        generic = NetlinkSocket(_NETLINK_GENERIC)
    with closing(generic):
        ask = _HEAD.pack(_GET_FAMILY, 1) + pack((_FAMILY_NAME, text(_FAMILY)))
        answer = generic.get(_CONTROL, ask, what)
        family = read_number(unpack(answer[_HEAD.size :])[_FAMILY_ID])
        source = _HEAD.pack(_SET_TUNSRC, _VERSION) + pack((_SEG6_ATTR_DST, address.packed))
        try:
            generic.request([Request(what, family, source)])
        except NetlinkError as exc:
            if exc.code == errno.EPERM:
                return False
            raise
    return True
