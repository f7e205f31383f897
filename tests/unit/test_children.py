# SPDX-License-Identifier: Apache-2.0
"""No child process outlives the process that started it, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from processes import assert_end, assert_end_with

from mrc.children import tied

STUBBORN = ["sh", "-c", "trap '' TERM; sleep 100000 & echo $$ $!; while :; do wait; done"]
STARTER = """
import subprocess, sys
from mrc.children import tied
with subprocess.Popen(tied({}, apart={}), stdin=subprocess.PIPE) as process:
    process.wait()
"""


def started(command: list[str], *, apart: bool = True) -> list[str]:
    """A parent of this command."""
    return [sys.executable, "-c", STARTER.format(command, apart)]


def test_tied__a_killed_parent() -> None:
    """SIGKILL of the parent ends a command that ignores SIGTERM, and the command's child."""
    assert_end_with(started(STUBBORN))


def test_tied__a_killed_parent_of_a_command_in_its_session() -> None:
    """Also of one that ignores SIGTERM, after a chain of programs that become the next."""
    command = ["env", "sh", "-c", "trap '' TERM; echo $$; exec sleep 100000"]
    words = started(command, apart=False)
    with subprocess.Popen(words, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        ends = [os.pidfd_open(pid)]
        assert os.getsid(pid) == os.getsid(0) and os.getpgid(pid) == os.getpgrp()
        starter.kill()
        assert_end(ends)


def test_tied__what_a_command_leaves_running() -> None:
    left = ["sh", "-c", "trap '' TERM; sleep 100000 >&- & echo $!; read line"]
    pipe = subprocess.PIPE
    with subprocess.Popen(tied(left), stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        ends = [os.pidfd_open(int(process.stdout.readline()))]
        process.stdin.close()
        assert_end(ends)
        # Nothing but the command held its output open.
        assert process.stdout.read() == b""


@pytest.mark.parametrize("apart", [True, False])
def test_tied__is_the_command(apart: bool) -> None:
    """Its output, its exit code and its signals are those of the command without `tied`."""
    command = ["sh", "-c", "grep SigIgn /proc/self/status; ps -o ppid= $$; exit 7"]
    done = [
        subprocess.run(each, capture_output=True, text=True, check=False)
        for each in (command, tied(command, apart=apart))
    ]
    assert done[0].stdout == done[1].stdout
    assert done[0].returncode == done[1].returncode == 7


def test_tied__cannot_be_run() -> None:
    done = subprocess.run(tied(["/nothing/here"]), capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr.startswith("/nothing/here: ")
    assert len(done.stderr.splitlines()) == 1
