# SPDX-License-Identifier: Apache-2.0
"""Contexts whose event loop ended before them, or runs in another thread."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoints import READ, loopback_config
from slowness import PATIENCE

from mrc import QP, Context, Listener, StateError

HERE = Path(__file__).parent

# asyncio warns of its own TCP connections when their loop has ended.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collects a test's leftovers while this file's filter for warnings applies."""
    yield
    gc.collect()


def datapath_threads() -> int:
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("mrc-datapath") for name in names)


async def leave_open() -> tuple[Context, Listener, QP]:
    """A Context with everything that it can have, left open."""
    context = await Context(loopback_config()).__aenter__()
    listener = await context.listen("127.0.0.1", 0)
    await context.register(bytearray(100), access=READ)
    qp = await context.connect("127.0.0.1", listener.port)
    await listener.accept()
    return context, listener, qp


async def open_and_close() -> None:
    async with Context(loopback_config()) as context:
        await context.counters()


def test_close__after_the_loop_ended() -> None:
    before = datapath_threads()
    context, listener, qp = asyncio.run(leave_open())
    assert datapath_threads() == before + 1

    async def close() -> None:
        await qp.close()
        await listener.close()
        await context.close()
        await context.close()

    asyncio.run(close())
    assert datapath_threads() == before
    with pytest.raises(StateError, match="closed"):
        asyncio.run(context.counters())


def test_calls__after_the_loop_ended() -> None:
    context, _, qp = asyncio.run(leave_open())
    for call in (context.counters, qp.query, lambda: qp.write_imm(imm=1)):
        with pytest.raises(StateError, match="its event loop has ended: open another one"):
            asyncio.run(call())
    asyncio.run(context.close())


async def test_close__from_another_thread() -> None:
    """It would touch the loop of this thread, so it is refused without effect."""
    refusals: list[str] = []

    def close(context: Context) -> None:
        with pytest.raises(StateError) as caught:
            asyncio.run(context.close())
        refusals.append(str(caught.value))

    async with Context(loopback_config()) as context:
        thread = threading.Thread(target=close, args=(context,))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert refusals == ["the Context belongs to another event loop: close it there"]
        assert await context.counters()


_ENDS = """
import asyncio, atexit, sys
sys.path[:0] = {path!r}
import test_gone_loop
context, listener, qp = asyncio.run(test_gone_loop.leave_open())
if {closes}:
    atexit.register(lambda: asyncio.run(context.close()))
    atexit.register(lambda: asyncio.run(test_gone_loop.open_and_close()))
print("done")
"""


@pytest.mark.parametrize("closes", [False, True])
def test_exit__with_a_context_left_open(closes: bool) -> None:
    script = _ENDS.format(path=[str(HERE), str(HERE.parents[1])], closes=closes)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
