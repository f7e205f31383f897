# SPDX-License-Identifier: Apache-2.0
"""Commands that listen on loopback, each as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MRC = [sys.executable, "-m", "mrc"]


def heard(process: subprocess.Popen[Any]) -> tuple[str, str]:
    """What a command says until it listens, and where that is."""
    assert process.stderr is not None
    said = ""
    while (port := re.search(r"TCP port (\d+)", said)) is None:
        line = process.stderr.readline()
        assert line, f"it has ended: {said}"
        said += line if isinstance(line, str) else line.decode()
    return said, f"127.0.0.1:{port[1]}"


@contextmanager
def listening(
    *words: object, before: Sequence[str] = (), **options: Any
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """`mrc WORDS --port 0` without a terminal, what it said until it listened, and where; `before`:
    words before the command. It is ended.
    """
    command = [*before, *MRC, *map(str, words), "--port", "0"]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1, "text": True}
    with subprocess.Popen(command, **pipes, **options) as process:
        try:
            yield process, *heard(process)
        finally:
            process.terminate()


@contextmanager
def receiving(
    *options: str | Path, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`mrc recv --once`, and where it listens; `before`: words before the command."""
    command = [*before, *MRC, "recv", "--once", "--port", "0", *map(str, options)]
    with subprocess.Popen(command, stdout=-1, stderr=-1) as receiver:
        yield receiver, heard(receiver)[1]
