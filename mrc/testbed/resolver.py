# SPDX-License-Identifier: Apache-2.0
"""Which name servers of the machine the hosts of a test bed reach. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

FILES = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The second one has the servers behind systemd-resolved."""


def usable(texts: Iterable[str]) -> str | None:
    """The first of these resolv.conf with a server that is not the machine itself, without those
    that are; None: there is none.
    """
    for text in texts:
        kept = [line for line in text.splitlines() if not _is_near(line)]
        if any(line.split()[:1] == ["nameserver"] for line in kept):
            return "\n".join(kept) + "\n"
    return None


def _is_near(line: str) -> bool:
    """Whether a line names a server that only the machine reaches."""
    words = line.split()
    if words[:1] != ["nameserver"]:
        return False
    try:
        address = ip_address(words[1])
    except (IndexError, ValueError):
        return True
    return address.is_loopback or address.is_unspecified or address.is_link_local
