# SPDX-License-Identifier: Apache-2.0
"""MPTCP over all planes: a host announces its address in each plane to whom it talks.

The peer then joins the connection over each plane. The kernel has room for 8 addresses.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection
from ipaddress import IPv6Address
from pathlib import Path

from mrc.errors import StateError
from mrc.linux import netns, programs

WRAPPER = "mptcpize"
"""program that makes another program use MPTCP instead of TCP"""

_ENABLED = Path("/proc/sys/net/mptcp/enabled")
_MAX_ADDRESSES = 8


def is_supported() -> bool:
    """Whether this kernel has MPTCP."""
    return _ENABLED.exists()


def prepare(namespace: str, addresses: Collection[IPv6Address]) -> None:
    """Announce these addresses of a host, if it does not announce them yet.

    Raises StateError where the kernel has no MPTCP.
    """
    with netns.inside(namespace):
        if not is_supported():
            raise StateError("this kernel has no MPTCP: it requires CONFIG_MPTCP")
        _ENABLED.write_text("1")
    known = json.loads(_ip(namespace, "-j", "mptcp", "endpoint", "show") or "[]")
    announced = {IPv6Address(each["address"]) for each in known if ":" in each["address"]}
    wanted = list(addresses)[:_MAX_ADDRESSES]
    most = str(len(wanted))
    _ip(namespace, "mptcp", "limits", "set", "subflows", most, "add_addr_accepted", most)
    for address in wanted:
        if address not in announced:
            _ip(namespace, "mptcp", "endpoint", "add", str(address), "signal")


def _ip(namespace: str, *words: str) -> str:
    (program,) = programs.require("ip")
    done = subprocess.run(
        [program, "-n", namespace, *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise StateError(f"cannot set up MPTCP in {namespace}: ip {' '.join(words)}: {reason}")
    return done.stdout
