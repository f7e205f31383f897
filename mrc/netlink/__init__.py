# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and queues of a namespace, over rtnetlink."""

from __future__ import annotations

from mrc.netlink.client import Netlink, interfaces, wait_until_up
from mrc.netlink.links import Interface, Veth
from mrc.netlink.qdiscs import Counters, Netem
from mrc.netlink.tunsrc import set_tunnel_source

__all__ = [
    "Counters",
    "Interface",
    "Netem",
    "Netlink",
    "Veth",
    "interfaces",
    "set_tunnel_source",
    "wait_until_up",
]
