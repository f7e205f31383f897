# SPDX-License-Identifier: Apache-2.0
"""The network between the machines of a test bed: whether it carries what the links send."""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from mrc.errors import StateError
from mrc.linux import netns
from mrc.testbed.build import LinkEnd
from mrc.testbed.cut import OVERHEAD
from mrc.testbed.forwarding import LOWER
from mrc.testbed.machines import Machine, Machines, toward
from mrc.testbed.names import MANAGEMENT
from mrc.testbed.plan import Plan

_ECHO_REQUEST, _ECHO_REPLY = 128, 129
_ECHO = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number
_HEADERS_BYTES = 40 + _ECHO.size
_TRIES, _TRY_SECONDS = 5, 1.0


def check_mtu(plan: Plan, machines: Machines) -> None:
    """Raises StateError if packets of the links do not fit the machines' network."""
    for place, other in enumerate(machines.every):
        if place == machines.here:
            continue
        _, mtu = toward(other)
        overhead = OVERHEAD[other.ip.version]
        if mtu < plan.shape.mtu + overhead:
            raise StateError(
                f"the MTU toward {other.name} is {mtu}, but links of MTU {plan.shape.mtu} over "
                f"VXLAN require {plan.shape.mtu + overhead}: use --mtu {mtu - overhead}, or raise "
                "the MTU of the machines' network"
            )


def check_tunnels(plan: Plan, machines: Machines) -> None:
    """Sends a small and a large packet over VXLAN to each machine with a higher number, and waits
    for their echoes. Raises StateError.
    """
    here = machines.every[machines.here]
    for place, other in list(enumerate(machines.every))[machines.here + 1 :]:
        end = (MANAGEMENT, f"m{place}")
        if not _answers(plan, end, _HEADERS_BYTES):
            raise StateError(
                f"no VXLAN packet passes between {_named(here)} and {_named(other)}: does a "
                f"firewall block UDP port {machines.port}?"
            )
        if not _answers(plan, end, plan.shape.mtu):
            raise StateError(
                f"between {_named(here)} and {_named(other)}, VXLAN packets of MTU "
                f"{plan.shape.mtu} are lost, and small ones pass: use a smaller --mtu, or raise "
                "the MTU of the switches between them"
            )


def _named(machine: Machine) -> str:
    return f"{machine.name} ({machine.address})"


def _answers(plan: Plan, end: LinkEnd, size: int) -> bool:
    """Whether the kernel at the other end of a link echoes a packet of this size."""
    node, interface = end
    with netns.inside(plan.nodes[node].namespace):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        index = socket.if_nametoindex(interface)
    with sock:
        identifier = os.getpid() & 0xFFFF
        for number in range(_TRIES):
            head = _ECHO.pack(_ECHO_REQUEST, 0, 0, identifier, number)
            sock.sendto(head + bytes(size - _HEADERS_BYTES), (str(LOWER), 0, 0, index))
            if _echoed(sock, identifier, size):
                return True
    return False


def _echoed(sock: socket.socket, identifier: int, size: int) -> bool:
    deadline = time.monotonic() + _TRY_SECONDS
    while select.select([sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data = sock.recv(1 << 16)
        kind, _, _, theirs, _ = _ECHO.unpack_from(data)
        if (kind, theirs, len(data)) == (_ECHO_REPLY, identifier, size - 40):
            return True
    return False
