# SPDX-License-Identifier: Apache-2.0
"""Hosts on this machine, and on another one. A shell script stands for the process in a host, and
for `mrc testbed part --traffic` on the other machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from pidfds import assert_end_with
from slowness import PATIENCE

from mrc.errors import ConnectError, StateError
from mrc.lab.machines import BedMachine
from mrc.testbed.bed import Testbed
from mrc.workload.hosts import LocalHost, Relay
from mrc.workload.task import GREETING, HostNews, Ready

THERE_NS = 5 * 10**18
RELAY = f"""#!/bin/sh
echo Welcome
echo '{GREETING.decode().strip()}'
while read host words; do
    case "$host $words" in
        clock*) echo clock {THERE_NS} ;;
        *task*) echo $host '{{"type": "Ready"}}' ;;
        *step*) echo $host '{{"type": "Said", "step": 3}}' ;;
        *fail*) echo $host '{{"type": "Ended", "why": "no path"}}' ;;
        *die*) printf h7; echo 'power is out' >&2; exit 1 ;;
    esac
done
"""


@asynccontextmanager
async def relay(folder: Path, script: str = RELAY) -> AsyncIterator[Relay]:
    program = folder / "mrc"
    program.write_text(script)
    program.chmod(0o755)
    machine = BedMachine("host-b", reach="sh -c", mrc=str(program))
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        yield await Relay.start(Testbed("lab"), machine, stack)


async def test_hear__each_host_its_own_lines(tmp_path: Path) -> None:
    async with relay(tmp_path) as b:
        first, second = b.host("h2"), b.host("h3")
        first.send(b"task")
        second.send(b"task")
        second.tell("step", 3)
        assert await first.hear() == Ready()
        assert [await second.hear(), await second.hear()] == [Ready(), HostNews(step=3)]
        first.send(b"fail")
        with pytest.raises(StateError, match=r"^h2: no path$"):
            await first.hear()


async def test_at__in_the_time_of_the_other_machine(tmp_path: Path) -> None:
    async with relay(tmp_path) as b:
        now_ns = time.monotonic_ns()
        assert abs(b.host("h2").at(now_ns) - THERE_NS) < PATIENCE * 1e9


async def test_hear__of_a_machine_that_dies(tmp_path: Path) -> None:
    """All its hosts say so, also one that is first told something afterwards."""
    async with relay(tmp_path) as b:
        hosts = [b.host("h2"), b.host("h3")]
        hosts[0].send(b"die")
        for each in (*hosts, hosts[0]):
            with pytest.raises(ConnectError, match="host-b does not answer: power is out"):
                await each.hear()
        with pytest.raises(ConnectError, match="h4: host-b does not answer"):
            await b.host("h4").hear()


async def test_start__without_a_greeting(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="host-b does not answer: no mrc here"):
        async with relay(tmp_path, "#!/bin/sh\necho no mrc here >&2\n"):
            pass


STUCK = "trap '' TERM; sleep 100000 & echo $$ $!; while :; do wait; done"
STARTER = f"""
import asyncio
from contextlib import AsyncExitStack
from mrc.workload.hosts import LocalHost

class Bed:
    def host_command(self, name, command):
        return ["sh", "-c", {STUCK!r}], {{}}

async def run():
    async with AsyncExitStack() as stack:
        host = await LocalHost.start(Bed(), "h0", stack)
        print((await host.line()).decode(), end="", flush=True)
        await host.line()

asyncio.run(run())
"""


def test_near__ends_with_its_parent_although_it_is_stuck() -> None:
    """SIGKILL of the command ends a process that ignores SIGTERM and the end of its input, and the
    child of that process.
    """
    assert_end_with([sys.executable, "-P", "-c", STARTER])


async def test_near__that_prints_much_on_stderr() -> None:
    """Its last line says why it ended; a process must not wait until somebody reads them."""

    class Bed(Testbed):
        def host_command(
            self, host: str, command: Sequence[str], *, user: str | None = None
        ) -> tuple[list[str], dict[str, str]]:
            script = 'yes chatter | head -c 1000000 >&2; echo \'{"type": "Ready"}\'; '
            return ["sh", "-c", f"{script} echo no path >&2; exit 1"], dict(os.environ)

    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        host = await LocalHost.start(Bed("lab"), "h0", stack)
        assert await host.hear() == Ready()
        with pytest.raises(StateError, match=r"^h0: no path$"):
            await host.hear()
