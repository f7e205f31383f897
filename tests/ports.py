# SPDX-License-Identifier: Apache-2.0
"""TCP and UDP ports for programs that must be told one."""

from __future__ import annotations

import random
import re
import socket
from contextlib import suppress
from pathlib import Path

# Below those that the kernel gives out: nobody's connection takes one by chance between the look
# and its use. An abstract name keeps off other workers, also of other runs. Some tests use the
# ports beside theirs.
_PORTS = range(20_000, 32_000, 4)
_names: list[socket.socket] = []


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port that no socket of this host has, at any address, for this process alone."""
    while True:
        port, name = random.choice(_PORTS), socket.socket(socket.AF_UNIX)
        with suppress(OSError), socket.socket(socket.AF_INET6, kind) as probe:
            name.bind(f"\0mrc-test-port-{port}")
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::", port))
            _names.append(name)
            return port
        name.close()


def is_taken(port: int) -> bool:
    """Whether a program listens at a TCP port."""
    listening = re.compile(rf"^ *\d+: [0-9A-F]+:{port:04X} [0-9A-F]+:0000 0A ", re.MULTILINE)
    return any(listening.search(Path(f"/proc/net/{name}").read_text()) for name in ("tcp", "tcp6"))
