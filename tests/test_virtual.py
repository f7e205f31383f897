# SPDX-License-Identifier: Apache-2.0
"""Some seeds of each kind of scenario; `tools/sweep --over KIND` runs thousands.

Each runs in a process of its own: the simulated kernel takes the place of the compiled engine.
"""

from __future__ import annotations

import os
import subprocess
import sys

import cbuild
import pytest

from mrc import products

SEEDS: list[tuple[str, int, int]] = [
    ("connect", 37, 1),  # the plane of the TCP connection goes down
    ("connect", 7027, 1),  # the dialler is stopped after its guess of the code
    ("connect", 21, 5),
    ("copy", 1, 2),
    ("copy", 8, 1),  # the receiver loses its power: a file that was not synced lacks bytes
    ("end", 4, 2),
    ("end", 32, 1),  # 20 writes at once to a send queue that has room for one or two
    ("end", 315, 1),  # their peer is killed while some wait for a place
    ("group", 2, 1),
    ("perf", 1, 1),
]
SLOW: list[tuple[str, int, int]] = [
    ("agent", 35, 1),
    ("agent", 11300, 1),  # a smaller MTU under a program's QP
    ("connect", 2534, 1),  # the peer is stopped during the proof
    ("copy", 26, 1),  # as 8, with --fsync, in the middle of a transfer
    ("copy", 5010, 1),  # the receiver sleeps during the connect
    ("perf", 59, 1),  # no plane when the test ends
    ("strangers", 1, 15),
]
OF_PRODUCTS = {"agent": "mrc.agent", "group": "mrc.torch.group"}


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] if each in SLOW else [])
        for each in [*SEEDS, *SLOW]
        if products.has(OF_PRODUCTS.get(each[0], "mrc"))
    ],
)
def test_seeds(kind: str, first: int, count: int) -> None:
    done = _python("-m", "virtual.sweep", kind, str(first), str(count))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}: seeds {first} to {first + count - 1}: 0 failed" in done.stdout


_LEAVES = """
import asyncio, gc, logging
from virtual import end, sweep

class Bad:
    def __del__(self):
        raise OSError("in its end")

async def fails():
    raise OSError("in a task")

async def program():
    fails()
    task = asyncio.create_task(fails())
    await asyncio.sleep(1)
    del task
    Bad()
    logging.getLogger("mrc.listener").error("bug in an exchange")

def run(world, audit):
    world.run_until(world.host("a").start(program()), 5)

end.run = run
print(*sweep.run_once("end", 1)[0].wrong, sep="\\n")
"""


@pytest.mark.parametrize(
    "complaint",
    ["'fails' was never awaited", "in a task", "in its end", "mrc.listener: bug in an exchange"],
)
def test_run__hears_what_a_program_leaves_behind(complaint: str) -> None:
    done = _python("-c", _LEAVES)
    assert done.returncode == 0 and complaint in done.stdout, done


_LONG_WAY = """
import mrc
from mrc.config import (Sockets, Timeouts)
from mrc.connect.security import Security
from virtual import end, sweep

met = []

def run(world, audit):
    a, b = world.host("a", 1), world.host("b", 1)
    for link in world.plane(a, b, 1):
        link.paths[0].delay_ns = 100_000_000
    security = Security(code="maple-rocket-cider", identity=world.folder / "key")
    options = {"sockets": Sockets(polled=True), "security": security}

    async def serve():
        config = mrc.ContextConfig(**options, timeouts=Timeouts(hello=0.45, exchange=1.0))
        async with (
            mrc.open(config) as ctx, ctx.listen() as listener, listener.accept() as qp
        ):
            met.append(qp.peer.identity)
            await qp.until_closed()

    async def call():
        async with (
            mrc.open(**options) as ctx, ctx.connect("b", timeout=1.0) as qp
        ):
            met.append(qp.peer.identity)

    server = b.start(serve())
    world.run_until(a.start(call()), 30)
    world.run_until(server, 30)

end.run = run
print(sweep.run_once("end", 1)[0].wrong, met)
"""


def test_connect__round_trips_are_longer_than_the_limits_allow_at_first() -> None:
    """Trust takes more than five round trips of 0.2 s; the listener gives 0.45 s."""
    done = _python("-c", _LONG_WAY)
    assert done.stdout == "[] ['code', 'code']\n", done


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(cbuild.TESTS), str(cbuild.ROOT)])},
    )  # fmt: skip
