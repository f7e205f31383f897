# SPDX-License-Identifier: Apache-2.0
"""TCP and UDP ports for programs that must be told one."""

from __future__ import annotations

import os
import random
import re
import socket
from contextlib import suppress
from pathlib import Path

# Below those that the kernel gives out, and each worker of a run has its own: nobody's connection
# or listener takes one by chance between the look and its use.
_EACH = 12_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_FIRST = 20_000 + _EACH * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = range(_FIRST, _FIRST + _EACH)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port that no socket of this host has, at any address."""
    while True:
        port = random.choice(_PORTS)
        with suppress(OSError), socket.socket(socket.AF_INET6, kind) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::", port))
            return port


def is_taken(port: int) -> bool:
    """Whether a program listens at a TCP port."""
    listening = re.compile(rf"^ *\d+: [0-9A-F]+:{port:04X} [0-9A-F]+:0000 0A ", re.MULTILINE)
    return any(listening.search(Path(f"/proc/net/{name}").read_text()) for name in ("tcp", "tcp6"))
