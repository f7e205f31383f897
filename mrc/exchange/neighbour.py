# SPDX-License-Identifier: Apache-2.0
"""Whether the peer of a connection is on this host, and a process of the same user.

Loopback is not a user: every user of a host reaches it, and so does whatever a proxy passes on.
"""

from __future__ import annotations

import asyncio
import os

from mrc.exchange.oob import Channel
from mrc.fabric.hostconfig import parse_address
from mrc.trust.sockets import owner_of

_PAUSE_SECONDS = 0.001  # doubles
_LOOKS = 12
_UNKNOWN_UID = 65534  # what a user namespace shows for all users that it does not know


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
