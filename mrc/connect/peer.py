# SPDX-License-Identifier: Apache-2.0
"""Whether the peer of a connection is on this host, and a process of the same user.

Loopback is not a user: every user of a host reaches it, and so does whatever a proxy passes on.
/proc/net tells every process whose the TCP sockets of this host are.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from mrc.fabric.hostconfig import IpAddress, parse_address

if TYPE_CHECKING:
    from mrc.connect.oob import Channel

_PAUSE_SECONDS = 0.001  # doubles
_LOOKS = 12
_UNKNOWN_UID = 65534  # what a user namespace shows for all users that it does not know
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def is_loopback(channel: Channel) -> bool:
    """True when both ends of the exchange are on this host."""
    remote = parse_address(channel.remote)
    return remote.is_loopback or remote == parse_address(channel.local)


async def is_own(channel: Channel) -> bool:
    """Whether the peer is a process of this host and of the user that this one acts for.

    False where the kernel does not tell. A listener gets some time to accept the connection.
    """
    uid = os.geteuid()
    if uid == _UNKNOWN_UID or not is_loopback(channel):
        return False
    here, there = channel.ports
    ours = parse_address(channel.local), here
    theirs = parse_address(channel.remote), there
    for turn in range(_LOOKS):
        owner = owner_of(theirs, ours)
        if owner is None or owner.accepted:
            return owner is not None and owner.uid == uid
        await asyncio.sleep(_PAUSE_SECONDS * 2**turn)
    return False


class Owner(Struct, frozen=True):
    """Who has a socket."""

    uid: int
    accepted: bool
    """False: of a connection that its listener has not accepted yet; then `uid` means nothing"""


SocketAddress = tuple[IpAddress, int]
"""Address and port."""


def owner_of(local: SocketAddress, remote: SocketAddress) -> Owner | None:
    """The owner of the socket with these ends; None if this host has none."""
    for table in _TABLES:
        try:
            rows = table.read_text()
        except OSError:  # without IPv6
            continue
        for ours in _written(*local):
            for theirs in _written(*remote):
                # then: state, queues, timer, retransmits, uid, timeout, inode
                if row := re.search(rf" {ours} {theirs} \S+ \S+ \S+ \S+ +(\d+) +\d+ (\d+) ", rows):
                    return Owner(int(row[1]), row[2] != "0")
    return None


def _written(address: IpAddress, port: int) -> list[str]:
    """How the tables write an end: an IPv4 address also as a socket of IPv6 has it."""
    forms = [address.packed]
    if isinstance(address, IPv4Address):
        forms.append(bytes(10) + b"\xff\xff" + address.packed)
    written = []
    for form in forms:
        words = (form[at : at + 4] for at in range(0, len(form), 4))
        digits = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
        written.append(f"{digits}:{port:04X}")
    return written
