# SPDX-License-Identifier: Apache-2.0
"""Starts, queries and ends the emulator process of an emulated fabric."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrc.errors import StateError
from mrc.linux import netns
from mrc.testbed.hops import SOCKET

_END_SECONDS = 5.0
_MODULE = "mrc.testbed.emulator"


def start(folder: Path, namespace: str, config: dict[str, Any]) -> None:
    """Start the emulator of a test bed and wait until it listens.

    Raises StateError.
    """
    (folder / "fabric.json").write_text(json.dumps(config))
    with netns.inside(namespace):
        done = subprocess.run(
            [sys.executable, "-P", "-m", _MODULE, str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()
        cause = reason[-1] if reason else f"exit code {done.returncode}"
        raise StateError(f"the emulated fabric did not start: {cause}")


def ask(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request, and waits for the answer for as long as the emulator runs.

    Raises StateError for an error, or if the emulator ends.
    """
    try:
        with _connect(folder) as connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    except OSError as exc:
        raise StateError(f"the emulated fabric in {folder} does not answer: {exc}") from exc
    if not line.endswith(b"\n"):
        raise StateError(
            f"the emulated fabric in {folder} ended before it answered: rebuild the test bed with "
            "mrc testbed up"
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise StateError(f"the emulated fabric in {folder}: {answer['error']}")
    return answer


def is_running(folder: Path) -> bool:
    try:
        with _connect(folder, waits=False):
            return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:
        return True  # root runs it, or many requests wait for it


def stop(folder: Path) -> None:
    """End the emulator of a test bed, if it runs. Kills it if it does not end in 5 s."""
    try:
        with _connect(folder, waits=False) as connection:
            pidfd = _pidfd(connection)
            try:
                connection.sendall(b'{"do": "stop"}\n')
                if not select.select([pidfd], [], [], _END_SECONDS)[0]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    select.select([pidfd], [], [])
            finally:
                os.close(pidfd)
    except OSError:
        return  # it has ended, or ends without its folder


def _pidfd(connection: socket.socket) -> int:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return os.pidfd_open(struct.unpack("3i", credentials)[0])


@contextlib.contextmanager
def _connect(folder: Path, *, waits: bool = True) -> Iterator[socket.socket]:
    """Connects by the folder's descriptor, because the path of a Unix socket must be short."""
    where = os.open(folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(waits)
            connection.connect(f"/proc/self/fd/{where}/{SOCKET}")
            yield connection
    finally:
        os.close(where)
