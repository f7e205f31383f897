# SPDX-License-Identifier: Apache-2.0
"""`mrc recv` on loopback, as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MRC = [sys.executable, "-m", "mrc"]


@contextmanager
def receiving(
    *options: str | Path, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`mrc recv --once` on loopback, and where it listens; `before`: words before the command."""
    command = [*before, *MRC, "recv", "--once", "--port", "0", *map(str, options)]
    with subprocess.Popen(command, stdout=-1, stderr=-1) as receiver:
        assert receiver.stderr is not None
        line = ""
        while (port := re.search(r"TCP port (\d+)", line)) is None:
            line = receiver.stderr.readline().decode()
            assert line, "mrc recv has ended"
        yield receiver, f"127.0.0.1:{port[1]}"
