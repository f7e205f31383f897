# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and queues of a namespace: the only importer of pyroute2.

pyroute2 encodes and decodes the messages. What pyroute2 0.9 lacks (the encap.red mode, the
NEXT-C-SID flavour of End, tbf's burst in bytes) are message classes of ours.
"""

from __future__ import annotations

from mrc.linux.netlink.client import Netlink, Veth, wait_until_up
from mrc.linux.netlink.qdiscs import Counters, Netem
from mrc.linux.netlink.tunsrc import set_tunnel_source

__all__ = [
    "Counters",
    "Netem",
    "Netlink",
    "Veth",
    "set_tunnel_source",
    "wait_until_up",
]
