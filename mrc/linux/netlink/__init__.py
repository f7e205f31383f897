# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and queues of a namespace: the only importer of pyroute2.

pyroute2 encodes and decodes the messages, except those about routes, for which it lacks the
encap.red mode and the NEXT-C-SID flavour of End. Our own message classes add tbf's burst in bytes.
"""

from __future__ import annotations

from mrc.linux.netlink.client import Netlink, Veth, wait_until_up
from mrc.linux.netlink.qdiscs import Counters, Netem
from mrc.linux.netlink.tunsrc import set_tunnel_source
from mrc.linux.netlink.vxlan import Vxlan

__all__ = [
    "Counters",
    "Netem",
    "Netlink",
    "Veth",
    "Vxlan",
    "set_tunnel_source",
    "wait_until_up",
]
