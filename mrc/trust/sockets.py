# SPDX-License-Identifier: Apache-2.0
"""Whose the TCP sockets of this host are, as /proc/net tells every process."""

from __future__ import annotations

import re
import sys
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from msgspec import Struct

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class Owner(Struct, frozen=True):
    """Who has a socket."""

    uid: int
    accepted: bool
    """False: of a connection that its listener has not accepted yet; then `uid` means nothing"""


End = tuple[IPv4Address | IPv6Address, int]
"""Address and port."""


def owner_of(local: End, remote: End) -> Owner | None:
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


def _written(address: IPv4Address | IPv6Address, port: int) -> list[str]:
    """How the tables write an end: an IPv4 address also as a socket of IPv6 has it."""
    forms = [address.packed]
    if isinstance(address, IPv4Address):
        forms.append(bytes(10) + b"\xff\xff" + address.packed)
    return [f"{_words(form)}:{port:04X}" for form in forms]


def _words(packed: bytes) -> str:
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
