# SPDX-License-Identifier: Apache-2.0
"""Processes started by a program with an open Context: none of them disturbs the Context, and calls
in a child that inherited it fail with advice.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import multiprocessing
import os
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from endpoints import (
    BUDGET_SECONDS,
    Pair,
    connected_pair,
    loopback_config,
    pattern,
    transfer,
)

import mrc
from mrc import StateError
from mrc.config import Sockets

HERE = Path(__file__).parent

# Python 3.12 warns of every fork of a process with threads, which these tests do on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


async def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a child made by os.fork, which then exits without exit handlers."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) == 0


async def check_unharmed(pair: Pair) -> None:
    """Both ends still write, answer and connect."""
    data = pattern(200_000)
    assert await transfer(pair, data) == data
    await asyncio.gather(pair.far.write(imm=7), pair.near.write(imm=8))
    assert (await anext(pair.near.immediates())).imm == 7
    assert (await anext(pair.far.immediates())).imm == 8
    async with await pair.near_context.connect("127.0.0.1", pair.listener.port):
        await (await pair.listener.accept()).close()


def run_step(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine to its first wait: the child has no event loop."""
    try:
        work.send(None)
    finally:
        work.close()


@pytest.mark.parametrize("polled", [False, True])
async def test_fork__calls_in_the_child_say_what_to_do(polled: bool) -> None:
    async with connected_pair(sockets=Sockets(polled=polled)) as pair:

        def calls() -> None:
            for call in (
                pair.near_context.counters,
                pair.near_context.snapshot,
                pair.near_context.listen,
                lambda: pair.near_context.connect("127.0.0.1"),
                lambda: pair.near.write(imm=1),
                pair.near.info,
                pair.near.evs,
                pair.listener.accept,
            ):
                with pytest.raises(StateError, match=r"does not survive fork: open another one"):
                    run_step(call())
            with pytest.raises(StateError, match="does not survive fork"):
                pair.near.post(imm=3)
            with pytest.raises(StateError, match="does not survive fork"):
                pair.near.post_many([])
            with pytest.raises(StateError, match="does not survive fork"):
                pair.near_context.register(bytearray(8))
            run_step_to_end(pair.near.close())
            run_step_to_end(pair.listener.close())
            run_step_to_end(pair.near_context.close())
            run_step_to_end(pair.far_context.close())

        await in_child(calls)
        await check_unharmed(pair)


def run_step_to_end(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine that must not wait."""
    with pytest.raises(StopIteration):
        work.send(None)


async def own_context(port: int) -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config()) as context,
        await context.connect("127.0.0.1", port) as qp,
    ):
        await qp.write(imm=99)


def run_own_context(port: int) -> None:
    asyncio.run(own_context(port))


@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
async def test_multiprocessing__a_child_opens_a_context_of_its_own(method: str) -> None:
    async with connected_pair() as pair:
        start: Any = multiprocessing.get_context(method)
        process = start.Process(target=run_own_context, args=(pair.listener.port,))
        process.start()
        async with await pair.listener.accept() as qp:
            assert (await anext(qp.immediates())).imm == 99
        await asyncio.to_thread(process.join)
        assert process.exitcode == 0
        await check_unharmed(pair)


_samples: mmap.mmap | None = None


def load(index: int) -> bytes:
    assert _samples is not None
    return _samples[index * 1000 : index * 1000 + 1000]


async def test_executor__workers_read_registered_memory_while_it_is_written() -> None:
    """As with a DataLoader: forked workers go on during the transfers of their parent."""
    global _samples
    with mmap.mmap(-1, 64_000) as _samples:
        _samples[:] = data = pattern(64_000)
        async with (
            connected_pair() as pair,
            pair.near_context.register(_samples),
        ):
            workers = ProcessPoolExecutor(2, multiprocessing.get_context("fork"))
            with workers:
                loop = asyncio.get_running_loop()
                loads = [loop.run_in_executor(workers, load, n) for n in range(64)]
                assert await transfer(pair, data) == data
                assert b"".join(await asyncio.gather(*loads)) == data
            await check_unharmed(pair)


async def test_subprocess__is_a_child_too() -> None:
    async with connected_pair() as pair:
        process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "")
        assert await process.wait() == 0
        ended = await asyncio.to_thread(
            subprocess.run, ["true"], check=False, preexec_fn=lambda: None
        )
        assert ended.returncode == 0
        await check_unharmed(pair)


def forbid_io_uring() -> None:
    """By seccomp. With it, libuv shares the memory of a ring with its child, which aborts them both
    now and then. Its UV_USE_IO_URING=0 leaves this ring.
    """
    load, is_equal, answer = 0x20, 0x15, 0x06  # BPF: the number of the call, a jump, the verdict
    steps = [(load, 0, 0, 0), (is_equal, 0, 1, 425)]  # io_uring_setup
    steps += [(answer, 0, 0, 0x50000 | errno.ENOSYS), (answer, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option in ((38, 1, 0, 0, 0), (22, 2, program)):  # no new privileges, the filter
        assert prctl(*option) == 0, ctypes.get_errno()


# The child unwinds `async with` and asyncio.run, and runs the exit handlers.
_EXITS = """
import asyncio, gc, os, sys
sys.path[:0] = {path!r}
import test_fork, endpoints
test_fork.forbid_io_uring()

async def main():
    async with endpoints.connected_pair() as pair:
        for how in (sys.exit, leave_by_error):
            child = os.fork()
            if child == 0:
                how()
            status = (await asyncio.to_thread(os.waitpid, child, 0))[1]
            print("child", os.waitstatus_to_exitcode(status), flush=True)
            await test_fork.check_unharmed(pair)

def leave_by_error():
    raise KeyError("in the child")

async def bounded():
    async with asyncio.timeout(endpoints.BUDGET_SECONDS):
        await main()

run = asyncio.run
if {uv}:
    import uvloop
    run = uvloop.run
run(bounded())
print("parent done")
"""


@pytest.mark.more
@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="asyncio of Python 3.14 never ends in a child that unwinds"
)
@pytest.mark.parametrize("uv", [False, True])
async def test_fork__a_child_that_unwinds_and_exits_leaves_its_parent_alone(uv: bool) -> None:
    script = _EXITS.format(path=[str(HERE), str(HERE.parents[1])], uv=uv)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(BUDGET_SECONDS):
        out, err = await process.communicate()
    said = (process.returncode, out.decode().split("\n"))
    assert said == (0, ["child 0", "child 1", "parent done", ""]), err.decode()
