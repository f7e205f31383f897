# SPDX-License-Identifier: Apache-2.0
"""Another user of this host who has taken the socket of the agent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
_LISTEN = """\
import os, socket, sys
os.setuid(int(sys.argv[2]))
opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
opened.bind("\\0" + sys.argv[1][1:])
opened.listen(64)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def squatting(name: str, user: int = USER) -> Iterator[int]:
    """The process of a user who listens at an abstract name, and never answers."""
    command = [sys.executable, "-I", "-c", _LISTEN, name, str(user)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.stdin.close()
