# SPDX-License-Identifier: Apache-2.0
"""The source address of SRv6 encapsulations, by generic netlink (Linux, uapi/linux/seg6_genl.h)."""

from __future__ import annotations

import errno
from ipaddress import IPv6Address

from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError as Refused
from pyroute2.netlink.generic import GenericNetlinkSocket

from mrc.errors import NetlinkError
from mrc.linux import netns

_FAMILY, _VERSION, _SET_TUNSRC = "SEG6", 1, 3


class _Message(genlmsg):  # type: ignore[misc]  # pyroute2 has no types
    nla_map = (("SEG6_ATTR_UNSPEC", "none"), ("SEG6_ATTR_DST", "ip6addr"))


def set_tunnel_source(namespace: str, address: IPv6Address) -> bool:
    """Set the outer source address of all SRv6 encapsulations in a namespace.

    Without it the kernel selects an address for every packet that it encapsulates, which takes a
    tenth of the send. Returns False if the kernel allows this only for the machine's root, not for
    root of a user namespace. Raises NetlinkError.
    """
    message = _Message()
    message["cmd"], message["version"] = _SET_TUNSRC, _VERSION
    message["attrs"] = [("SEG6_ATTR_DST", str(address))]
    with netns.inside(namespace), GenericNetlinkSocket() as netlink:
        try:
            netlink.bind(_FAMILY, _Message)
            netlink.nlm_request(message, netlink.prid, NLM_F_REQUEST | NLM_F_ACK)
        except Refused as exc:
            if exc.code == errno.EPERM:
                return False
            raise NetlinkError(
                f"cannot set the source address of SRv6 encapsulations in {namespace}: {exc}"
            ) from exc
    return True
