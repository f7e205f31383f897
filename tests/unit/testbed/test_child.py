# SPDX-License-Identifier: Apache-2.0
"""Programs that speak lines, and programs that end with their parent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_end, assert_end_with
from slowness import PATIENCE

from mrc.testbed.child import BlockingChild, Child
from mrc.testbed.children import tied

DEAF = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
STARTER = """
import asyncio, sys
from mrc.testbed.child import BlockingChild, Child

SCRIPT = "trap '' TERM; sleep 100000 & echo $$ $!; while :; do wait; done"
COMMAND = ["sh", "-c", SCRIPT]

async def run():
    child = await Child.start(COMMAND)
    print((await child.line()).decode(), end="", flush=True)
    await child.line()

if sys.argv[1] == "blocking":
    child = BlockingChild(COMMAND)
    print(child.line().decode(), end="", flush=True)
    child.line()
else:
    asyncio.run(run())
"""


@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
def test_child__ends_with_its_parent(kind: str) -> None:
    """SIGKILL of the parent ends a stuck program and its child."""
    assert_end_with([sys.executable, "-P", "-c", STARTER, kind])


async def test_line__answers_and_the_end() -> None:
    async with asyncio.timeout(PATIENCE):
        child = await Child.start(["sh", "-c", "read a; echo got $a; read b; printf half; exit 3"])
        child.send(b"this")
        assert await child.line() == b"got this\n"
        child.send(b"that")
        assert await child.line() == b""
        assert await child.last_words() == "its process ended with exit code 3"
        await child.end()


async def test_last_words__the_last_line_on_stderr() -> None:
    """However much it writes, and with lines that are too long."""
    script = "head -c 1000000 /dev/zero >&2; echo >&2; yes much | head -c 1000000 >&2; echo no >&2"
    notes: list[str] = []
    async with asyncio.timeout(PATIENCE):
        child = await Child.start(["sh", "-c", script], on_note=notes.append)
        assert await child.line() == b""
        assert await child.last_words() == "no"
        assert notes[-1] == "no" and 1 < len(child.notes) < len(notes)
        await child.end()


async def test_last_words__of_one_that_only_closed_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mrc.testbed.child._END_SECONDS", 0.1)
    async with asyncio.timeout(PATIENCE):
        child = await Child.start(["sh", "-c", "exec >&- 2>&-; exec sleep 100000"])
        assert await child.line() == b""
        assert await child.last_words() == "its process ended with exit code -15"


async def test_output__again_after_a_cancelled_call() -> None:
    script = "printf one; read line; printf two; exit 4"
    async with asyncio.timeout(PATIENCE):
        child = await Child.start(["sh", "-c", script])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child.output(), 0.1)
        child.send(b"")
        assert await child.output() == await child.output() == b"onetwo"
        assert child.exit_code == 4
        await child.end()


async def test_end__of_one_that_ignores_sigterm() -> None:
    async with asyncio.timeout(PATIENCE):
        child = await Child.start(["sh", "-c", DEAF])
        assert await child.line() == b"ready\n"
        await child.end(0.1)
        assert child.exit_code == -9


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_blocking__answers_within_a_limit() -> None:
    before = descriptors()
    child = BlockingChild(
        ["sh", "-c", "read a; echo got $a; echo why >&2; read b"], seconds=PATIENCE
    )
    child.send(b"this")
    assert child.line() == b"got this\n"
    child.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        child.line()
    child.end()
    assert child.last_words() == "why"
    child.close()
    assert descriptors() == before


def test_blocking__ended_with_something_unread() -> None:
    child = BlockingChild(["sh", "-c", "read a; echo one; printf tw; exit 3"])
    child.send(b"this\n" * 1000)
    assert [child.line(), child.line()] == [b"one\n", b""]
    child.send(b"that")
    assert child.last_words() == "its process ended with exit code 3"
    child.close()


def test_blocking__closed_although_it_prints_for_ever() -> None:
    child = BlockingChild(["yes"], ties=False)
    assert child.line() == b"y\n"
    child.end(at_once=True)
    child.close()
    assert child.process.returncode != 0


def test_blocking__killed_if_it_ignores_the_end_of_its_input() -> None:
    child = BlockingChild(["sh", "-c", DEAF])
    assert child.line() == b"ready\n"
    child.close(0.1)
    assert child.process.returncode == -9


def test_blocking__that_cannot_be_started() -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        BlockingChild(["/nothing/here"], ties=False)
    assert descriptors() == before


# ---- Ending with the parent ----------------------------------------------------------------------


STUBBORN = ["sh", "-c", "trap '' TERM; sleep 100000 & echo $$ $!; while :; do wait; done"]
TIED_STARTER = """
import subprocess, sys
from mrc.testbed.children import tied
with subprocess.Popen(tied({}, apart={}), stdin=subprocess.PIPE) as process:
    process.wait()
"""


def started(command: list[str], *, apart: bool = True) -> list[str]:
    """A parent of this command."""
    return [sys.executable, "-c", TIED_STARTER.format(command, apart)]


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
