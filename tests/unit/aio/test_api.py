# SPDX-License-Identifier: Apache-2.0
"""No sequence of calls of the public API ends the process, hangs, or fails in any other way than by
a refusal: calls with odd arguments, on objects of any state, over loopback in a child process.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import walls
from endpoints import connected_pair
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from unit.aio.api_caller import CALLS

from mrc import ArgumentError, EvState, RemoteMemory

CALLER = Path(__file__).with_name("api_caller.py")
NUMBERS = st.integers(0, 2000)


class Caller:
    """The child process, of which a new one starts after each that ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def tell(self, *words: Any) -> None:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [sys.executable, str(CALLER)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
        process = self._process
        assert process.stdin and process.stdout
        print(json.dumps(words), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line or json.loads(line):
            why = self.end(kill=bool(line))
            pytest.fail(f"{words}: {json.loads(line) if line else why}")

    def end(self, *, kill: bool = False) -> str:
        process, self._process = self._process, None
        if process is None:
            return ""
        if kill:
            process.kill()
        _, errors = process.communicate()
        return f"exit code {process.returncode}: {errors}"


CALLER_OF_ALL = Caller()


def rule_of(name: str, count: int) -> Any:
    numbers = st.lists(NUMBERS, min_size=count, max_size=count)

    def call(self: Api, numbers: list[int]) -> None:
        CALLER_OF_ALL.tell(name, *numbers)

    call.__name__ = name  # as failures print it
    return rule(numbers=numbers)(call)


class Api(RuleBasedStateMachine):
    """Calls in any order."""

    @initialize(seed=st.integers(0, 15))
    def begin(self, seed: int) -> None:
        CALLER_OF_ALL.tell("begin", seed)

    def teardown(self) -> None:
        CALLER_OF_ALL.tell("end")

    for _name, _count in CALLS.items():
        vars()[_name] = rule_of(_name, _count)


@walls.needs("programs")
async def test_numbers__that_do_not_fit_are_refused_at_once() -> None:
    """They stopped the commands of all QPs of the Context, or the timers of the event loop."""
    async with connected_pair() as pair:
        near = pair.near
        refused = pytest.raises(ArgumentError)
        for timeout in (math.nan, 1 << 2000):
            with refused:
                await anext(near.immediates(timeout=timeout))
            with refused:
                await near.write(imm=1, timeout=timeout)
            with refused:
                await pair.listener.accept(timeout=timeout)
            with refused:
                pair.near_context.connect("127.0.0.1", 1, timeout=timeout)
        for timeout in (math.nan, math.inf, 1e300, 0):
            with refused:
                await near.probe_ev(0, timeout=timeout)
        with refused:
            await near.set_ev_state("*", EvState.DENIED)  # type: ignore[arg-type]
        for number in (-1, 1 << 32):
            with refused:
                async with pair.near_context.messages(number):
                    pass
        for count in (-1, 1 << 63):
            with refused:
                await pair.near_context.trace(count)
        with refused:
            pair.near_context.record(width_ns=1 << 64)
        data = bytearray(64)
        async with pair.near_context.register(data, writable=True) as region:
            for remote in (RemoteMemory(1 << 64, 1, 64), RemoteMemory(0, 1 << 32, 64)):
                with refused:
                    await near.write(region, remote)
                with refused:
                    near.post_scattered(region, remote, length=1, src_offsets=[0], dst_offsets=[0])
            with refused:  # its end is beyond 64 bits
                await near.write(region, RemoteMemory((1 << 64) - 1, 1, 64))
        await near.write(imm=7)
        assert (await anext(pair.far.immediates())).imm == 7


@pytest.fixture(autouse=True, scope="module")
def ended() -> Any:
    yield
    CALLER_OF_ALL.end()


@walls.needs("programs")
class TestApi(Api.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(max_examples=12, stateful_step_count=25)


@pytest.mark.slow
class TestApiLong(Api.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(
        max_examples=2000, stateful_step_count=60, derandomize=False, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
