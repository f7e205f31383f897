# SPDX-License-Identifier: Apache-2.0
"""Child processes end when the process that started them has ended, also if that was by SIGKILL.

As a program, this file becomes the command of `tied`. A module of its own only there: it imports
nothing of mrc.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Sequence

_GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL, for a program whose parent has ended


def tied(command: Sequence[str], *, apart: bool = True) -> list[str]:
    """Arguments that run a command in a session of its own, until it ends or this process has
    ended. What the command leaves running in its process group then ends, too.

    If not `apart`, it stays in the session of this process, whose terminal it may use. Then only
    the command itself ends, and only with this process.
    """
    how = "apart" if apart else "here"
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), how, *command]


def end_with(parent: int) -> None:
    """Ends this process as soon as `parent`, which started it, has ended."""
    ended = _pidfd_of(parent)

    def end() -> None:
        select.select([ended], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()


def _pidfd_of(parent: int) -> int:
    """A descriptor that can be read when the parent has ended. Ends this process if it has."""
    try:
        found = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:  # the number may have gone to another process
        os._exit(1)
    return found


def _become(parent: int, how: str, command: list[str]) -> None:
    parent_fd, own_fd = _pidfd_of(parent), os.pidfd_open(os.getpid())
    if how == "apart" and os.getpgrp() != os.getpid():
        os.setsid()
    if (child := os.fork()) == 0:
        # A child of nobody: the command must not find it among its own.
        if os.fork() == 0:
            if how == "apart":
                _end_group(parent_fd, own_fd)
            else:
                _end_command(parent_fd, own_fd)
        os._exit(0)
    os.waitpid(child, 0)
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {(error.strerror or str(error)).lower()}\n")
        os._exit(127)


def _end_group(parent_fd: int, command_fd: int) -> None:
    os.closerange(0, 3)  # whoever reads the command's output waits for its end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    select.select([parent_fd, command_fd], [], [])
    group = os.getpgrp()
    os.killpg(group, signal.SIGTERM)
    select.select([command_fd], [], [], _GRACE_SECONDS)
    os.killpg(group, signal.SIGKILL)  # this process, too


def _end_command(parent_fd: int, command_fd: int) -> None:
    os.closerange(0, 3)
    os.setsid()  # ^C is for the command
    select.select([parent_fd, command_fd], [], [])
    try:
        signal.pidfd_send_signal(command_fd, signal.SIGTERM)
        select.select([command_fd], [], [], _GRACE_SECONDS)
        signal.pidfd_send_signal(command_fd, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended
    os._exit(0)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
