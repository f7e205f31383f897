# SPDX-License-Identifier: Apache-2.0
"""The loop of blocking calls: who runs it, and what happens when somebody else does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from endpoints import BUDGET_SECONDS

from mrc import StateError
from mrc.blocking.loop import CallerLoop


@contextmanager
def loop_with_work() -> Iterator[CallerLoop]:
    """A loop in which a task runs, as that of an open Context."""
    loop = CallerLoop()
    ends: asyncio.Event

    async def begin() -> asyncio.Task[bool]:
        nonlocal ends
        ends = asyncio.Event()
        return asyncio.create_task(ends.wait())

    task = loop.wait(begin())
    try:
        yield loop
    finally:

        async def end() -> None:
            ends.set()
            await task

        loop.wait(end())
        loop.rest()
        assert loop._thread is None


async def thread_of_the_loop() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def until(future: ThreadFuture[None]) -> None:
    await asyncio.wrap_future(future)


def test_wait__runs_the_loop_in_the_thread_that_waits() -> None:
    with loop_with_work() as loop:
        for _ in range(3):
            assert loop.wait(thread_of_the_loop()) == threading.current_thread().name


def test_wait__between_calls_a_thread_runs_the_loop() -> None:
    served = threading.Event()
    with loop_with_work() as loop:

        async def later() -> None:
            asyncio.get_running_loop().call_later(0.05, served.set)

        loop.wait(later())
        assert served.wait(BUDGET_SECONDS)
        assert loop.wait(thread_of_the_loop()) == threading.current_thread().name


def test_wait__several_threads_wait_at_once() -> None:
    first: ThreadFuture[None] = ThreadFuture()
    with loop_with_work() as loop, ThreadPoolExecutor(9) as pool:
        waiting = pool.submit(loop.wait, until(first))
        others = [pool.submit(loop.wait, thread_of_the_loop()) for _ in range(200)]
        names = {each.result(BUDGET_SECONDS) for each in others}
        first.set_result(None)
        waiting.result(BUDGET_SECONDS)
    assert names <= {"mrc", *(f"{pool._thread_name_prefix}_{i}" for i in range(9))}


def test_wait__the_end_of_who_runs_the_loop_leaves_nobody_behind() -> None:
    """Whose calls the loop of another thread carried out."""
    gates: list[ThreadFuture[None]] = [ThreadFuture() for _ in range(20)]
    with loop_with_work() as loop, ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(loop.wait, until(gate)) for gate in gates]
        for gate, each in zip(gates, waiting, strict=True):
            gate.set_result(None)
            each.result(BUDGET_SECONDS)


def test_wait__in_a_callback_would_wait_for_itself() -> None:
    with loop_with_work() as loop:

        async def inside() -> None:
            loop.wait(thread_of_the_loop())

        with pytest.raises(StateError, match="would wait for itself"):
            loop.wait(inside())


async def test_wait__where_another_loop_runs() -> None:
    """A thread runs one loop, so ours does it."""
    with loop_with_work() as loop:
        assert loop.wait(thread_of_the_loop()) == "mrc"
        assert loop.do(lambda: threading.current_thread().name) == "mrc"


def test_do__what_it_queues_runs_at_once() -> None:
    seen: list[str] = []
    with loop_with_work() as loop:
        loop.do(lambda: loop._loop.call_soon(seen.append, "queued"))
        assert seen == ["queued"]


def test_rest__without_tasks_there_is_no_thread() -> None:
    loop = CallerLoop()
    loop.wait(thread_of_the_loop())
    assert loop._thread is None


_INTERRUPTED = """\
import os, signal, threading
from mrc import blocking
from mrc.blocking.loop import CallerLoop

def interrupt():
    if threading.current_thread() is threading.main_thread():  # it waits in `accept`
        os.kill(os.getpid(), signal.SIGINT)
    else:
        loop.call_later(0.001, interrupt)

with blocking.open(interfaces=("127.0.0.1",)) as context:
    listener = context.listen("127.0.0.1", 0)
    loop = CallerLoop.current()._loop
    loop.call_soon_threadsafe(interrupt)
    try:
        listener.accept()
    except KeyboardInterrupt:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with context.connect("127.0.0.1", listener.port) as qp, listener.accept() as peer:
            qp.write(imm=7)
            print(next(peer.immediates()).imm)
"""


def test_wait__control_c_interrupts_it_and_the_rest_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        capture_output=True, text=True, check=False, timeout=BUDGET_SECONDS,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


def test_current__a_child_of_fork_has_its_own() -> None:
    loop = CallerLoop.current()
    loop.wait(thread_of_the_loop())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if CallerLoop.current() is not loop:
                CallerLoop.current().wait(thread_of_the_loop())
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert CallerLoop.current() is loop
