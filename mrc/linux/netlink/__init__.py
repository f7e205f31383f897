# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and queues of a namespace: the only importer of pyroute2.

pyroute2 encodes and decodes the messages. Our own message classes add the parts that pyroute2 0.9
lacks: the encap.red mode, the NEXT-C-SID flavour of End, and tbf's burst in bytes.
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
