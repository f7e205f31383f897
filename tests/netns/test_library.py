# SPDX-License-Identifier: Apache-2.0
"""Test beds from Python: hosts in the process of the test, commands, faults, and the fixture."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from endpoints import until
from netns.conftest import fresh_name, has_ended
from slowness import PATIENCE
from slowness import until as wait_until

import mrc
import mrc.blocking.testbed
import mrc.examples
import mrc.testbed
from mrc.linux import netns
from mrc.testbed import state

ONE: dict[str, Any] = {"planes": 1, "t1": 1}
BYTES = 1 << 20


@asynccontextmanager
async def written(bed: mrc.testbed.Bed) -> AsyncIterator[mrc.QP]:
    """A QP from h0 to h1 of the bed, both in this process. Inside, it has written once; at the end
    it writes again.
    """
    inbox, text = bytearray(BYTES), os.urandom(BYTES)
    async with (
        bed.host("h0").context() as here,
        bed.host("h1").context() as there,
        there.register(inbox, writable=True) as region,
        there.listen(private=region.handle.to_dict()),
        here.register(text) as message,
        here.connect("h1") as qp,
    ):
        remote = mrc.RemoteMemory.from_dict(qp.peer.private)
        await qp.write(message, remote)
        assert inbox == text and qp.peer.name == "h1"
        inbox[:] = bytes(BYTES)
        yield qp
        await qp.write(message, remote)
        assert inbox == text


@pytest.mark.default
async def test_host__two_in_one_process_while_a_plane_fails() -> None:
    async with mrc.testbed.up(planes=2, rate="200mbit") as bed:
        async with written(bed), bed.fail("plane:2") as failing:
            assert (failing.fault.target, failing.fault.loss) == ("plane:2", 1.0)
            found = await bed.status()
            assert (found.planes, found.host_rate_bps) == (2, 200_000_000)
            assert found.faults == (failing.fault,)
        assert (await bed.status(seconds=0)).faults == ()
        async with bed.host("h0").context() as context:
            assert {port.nic for port in context.ports} == {"lo", "p1", "p2"}
            assert context.config.namespace.addresses("h1.p2") == ["fd00:a:1::2:0"]
        left = bed.name
    assert state.load(left) is None


async def test_fail__cancelled_leaves_no_fault() -> None:
    async with mrc.testbed.up(**ONE) as bed:
        failing = asyncio.create_task(bed.fail("plane:1"))
        await asyncio.sleep(0)  # the request has gone
        failing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await failing
        assert (await bed.status(seconds=0)).faults == ()
        with pytest.raises(mrc.ArgumentError):
            await bed.fail("plane:7")


async def test_up__two_at_once_with_the_same_addresses() -> None:
    async with mrc.testbed.up(**ONE) as one, mrc.testbed.up(**ONE, fabric="emulated") as other:
        assert one.name != other.name
        async with written(one), written(other):
            await one.fail("plane:1", loss=0.01)
            assert [each.target for each in (await one.status()).faults] == ["plane:1"]
            assert (await other.status()).faults == ()
        healed = await one.heal()
        assert (healed.healed, healed.failing) == (("plane:1",), ())


async def test_context__opens_a_port_that_comes_later() -> None:
    """The datapath, which runs, has the sockets opened in the host."""
    async with mrc.testbed.up(planes=2) as bed:
        host = bed.host("h0")
        await host.run(["ip", "link", "set", "p2", "down"], check=True)
        async with host.context() as context:
            assert "p2" not in {port.nic for port in context.ports}
            await host.run(["ip", "link", "set", "p2", "up"], check=True)

            async def has_port() -> bool:
                return "p2" in {port.nic for port in context.ports}

            await until(has_port)


async def test_run__what_a_command_says() -> None:
    async with mrc.testbed.up(**ONE) as bed:
        host = bed.host("h1")
        script = 'read a; echo "$a $MORE $MRC_CONFIG"; pwd; echo no >&2; exit 3'
        done = await host.run(["sh", "-c", script], input="yes\n", env={"MORE": "1"}, cwd="/")
        config = state.config_path(bed.name, "h1")
        assert (done.returncode, done.stderr) == (3, "no\n")
        assert done.stdout == f"yes 1 {config}\n/\n"
        with pytest.raises(subprocess.CalledProcessError):
            await host.run(["false"], check=True)
        assert "fcbb:1:100::/48" in (await bed.host("t1:1.0").run(["ip", "-6", "route"])).stdout
        with pytest.raises(mrc.ArgumentError, match="no host h7"):
            await bed.host("h7").run(["true"])
        with pytest.raises(mrc.ArgumentError, match=r"no host t1:1\.0"):
            await bed.host("t1:1.0").context()


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_run__kills_a_command_and_its_children(how: str, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    script = f"trap '' TERM; sleep 1000 & echo $$ $! > {numbers}.new; mv {numbers}.new {numbers}"
    async with mrc.testbed.up(**ONE) as bed:
        words = ["sh", "-c", f"{script}; wait"]
        limit = 0.5 if how == "timeout" else None
        running = asyncio.create_task(bed.host("h0").run(words, timeout=limit))
        await until(lambda: _exists(numbers))
        if how == "cancel":
            running.cancel()
        with pytest.raises((TimeoutError, asyncio.CancelledError)):
            await running
        pids = [int(word) for word in numbers.read_text().split()]
        wait_until(lambda: all(map(has_ended, pids)))


async def test_start__ends_with_its_block() -> None:
    async with mrc.testbed.up(**ONE) as bed:
        pipe = subprocess.PIPE
        async with bed.host("h0").start(["cat"], stdin=pipe, stdout=pipe) as process:
            await process.write(b"line\n")
            assert await process.readline(timeout=PATIENCE) == b"line\n"
            with pytest.raises(TimeoutError):
                await process.wait(timeout=0.01)
        assert process.returncode == -signal.SIGKILL
        words = ["sh", "-c", "echo ready; exec sleep 1000"]
        left = await bed.host("h0").start(words, stdout=pipe)
        assert await left.readline(timeout=PATIENCE) == b"ready\n"
        removed = await bed.down()
        assert [each.pid for each in removed.ended] == [left.pid]
        async with left:
            assert await left.wait() == -signal.SIGTERM
        with pytest.raises(mrc.StateError, match="is closed"):
            await bed.status()


async def test_existing__leaves_it_up() -> None:
    name = fresh_name()
    with pytest.raises(mrc.StateError, match=f"test bed {name} is not up"):
        await mrc.testbed.existing(name)
    async with mrc.testbed.up(name=name, planes=1, t1=2):
        async with mrc.testbed.existing(name) as bed:
            assert (bed.shape.planes, [each.name for each in bed.hosts]) == (1, ["h0", "h1"])
        with pytest.raises(mrc.StateError, match="is up already"):
            await mrc.testbed.up(name=name, planes=1, t1=2)
        async with mrc.testbed.existing(name) as bed:
            drained = await bed.drain("t1:1.1")
            assert drained.drained == ("t1:1.1",)
    assert state.load(name) is None


@pytest.mark.default
def test_blocking__two_hosts_in_one_process() -> None:
    inbox, text = bytearray(BYTES), os.urandom(BYTES)
    with mrc.blocking.testbed.up(planes=2, rate="200mbit") as bed:
        with (
            bed.host("h0").context() as here,
            bed.host("h1").context() as there,
            there.register(inbox, writable=True) as region,
            there.listen(private=region.handle.to_dict()),
            here.register(text) as message,
            here.connect("h1") as qp,
            bed.fail("plane:1") as failing,
        ):
            assert bed.status(seconds=0).faults == (failing.fault,)
            qp.write(message, mrc.RemoteMemory.from_dict(qp.peer.private))
            assert inbox == text
        with bed.host("h1").start(["cat"], stdin=-1, stdout=-1) as process:
            process.write(b"line\n")
            assert process.readline(timeout=PATIENCE) == b"line\n"
        assert bed.hosts[1].run(["echo", "said"], timeout=PATIENCE).stdout == "said\n"
    assert state.load(bed.name) is None


def test_up__wrong_arguments() -> None:
    with pytest.raises(mrc.ArgumentError):
        mrc.testbed.up(rate="fast")
    with pytest.raises(mrc.ArgumentError):
        mrc.testbed.up(planes=0)
    with pytest.raises(mrc.ArgumentError):
        mrc.testbed.up(trim=False)
    with pytest.raises(mrc.ConfigError):
        mrc.testbed.up("nosuch")


async def test_up__cancelled_leaves_nothing() -> None:
    name = fresh_name()
    building = asyncio.create_task(_build(name))
    await until(lambda: _exists(state.folder(name)))
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert state.load(name) is None
    assert not [each for each in netns.names() if each.startswith(f"mrc-{name}")]


async def _exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - it does not block


async def _build(name: str) -> mrc.testbed.Bed:
    return await mrc.testbed.up(name=name, planes=4, hosts=4)


CRASHING = """
import asyncio, sys, mrc, mrc.testbed

async def main():
    bed = await mrc.testbed.up(name=sys.argv[1], planes=1, t1=1)
    context = await bed.host("h0").context()
    print("up", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_up__goes_down_with_a_program_that_crashes(signum: signal.Signals) -> None:
    name = fresh_name()
    command = [sys.executable, "-P", "-c", CRASHING, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        assert state.load(name) is not None
        program.send_signal(signum)
        wait_until(lambda: state.load(name) is None)
    wait_until(lambda: not [each for each in netns.names() if each.startswith(f"mrc-{name}")])


def test_up__after_a_crash_of_program_and_server() -> None:
    name = fresh_name()
    command = [sys.executable, "-P", "-c", CRASHING, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        words = {int(each): Path("/proc", each, "cmdline").read_bytes() for each in children}
        (server,) = (pid for pid, line in words.items() if b"mrc.testbed.server" in line)
        os.kill(server, signal.SIGKILL)
        program.kill()
    assert state.load(name) is not None
    asyncio.run(_up_and_down())
    assert state.load(name) is None
    assert not [each for each in netns.names() if each.startswith(f"mrc-{name}")]


async def _up_and_down() -> None:
    async with mrc.testbed.up(**ONE):
        pass


# ---- The fixture ---------------------------------------------------------------------------------


SUITE = """
NAMES = set()


async def test_a_coroutine(mrc_bed):
    bed = mrc_bed(planes=1, t1=1)
    NAMES.add(bed.name)
    await bed.fail("plane:1")
    assert [each.target for each in (await bed.status(seconds=0)).faults] == ["plane:1"]


def test_a_function_finds_it_healed(mrc_bed):
    bed = mrc_bed(planes=1, t1=1)
    NAMES.add(bed.name)
    assert len(NAMES) == 1
    assert bed.status(seconds=0).faults == ()
    assert mrc_bed(planes=2, t1=1).name not in NAMES
    print("beds:", *NAMES)
"""


def _pytest(file: Path) -> str:
    """What pytest prints that runs a file with this fixture, and no other plug-in of this one."""
    options = ["-p", "mrc.testbed.plugin", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-s", "-o", "asyncio_mode=auto", *options, str(file)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=file.parent, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fixture__in_functions_and_coroutines(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    said = _pytest(tmp_path / "test_suite.py")
    assert "2 passed" in said
    name = said.partition("beds: ")[2].split()[0]
    assert state.load(name) is None


def test_fixture__of_the_example(tmp_path: Path) -> None:
    shutil.copy(Path(mrc.examples.__file__).with_name("bed_test.py"), tmp_path)
    assert "3 passed" in _pytest(tmp_path / "bed_test.py")


def test_fixture__costs_nothing_until_it_is_asked_for() -> None:
    script = "import sys, mrc.testbed.plugin; print([n for n in sys.modules if n[:4] == 'mrc.'])"
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "['mrc.lazy', 'mrc.testbed', 'mrc.testbed.plugin']\n"


async def test_calls__a_wrong_argument_is_named_and_the_bed_goes_on() -> None:
    async with mrc.testbed.up(**ONE) as bed:
        fail: Any = bed.fail
        for name, value in (("loss", "2%"), ("mtu", "1500"), ("delay", 0.001), ("rate", 5)):
            with pytest.raises(mrc.ArgumentError, match=f"^{name}: "):
                fail("plane:1", **{name: value})
        with pytest.raises(mrc.ArgumentError, match=r"^target: "):
            fail(2)
        run: Any = bed.host("h0").run
        with pytest.raises(TypeError, match=r"^argv: needs a list"):
            await run("true")
        with pytest.raises(TypeError):  # found only by the server
            await bed._ask("heal", mrc.testbed.Healed, target=2)
        assert (await bed.status(seconds=0)).faults == ()
    up: Any = mrc.testbed.up
    for name, value in (("name", 5), ("rate", 5), ("planes", "2"), ("fabric", "x"), ("trim", 1)):
        with pytest.raises(mrc.ArgumentError, match=f"^{name}: "):
            up(**{name: value})
