# SPDX-License-Identifier: Apache-2.0
"""Calls the public API as it is told, one JSON line a call, and answers with a line for each.

`["begin", seed]` makes a small world: two Contexts, a listener and a QP for writes, and both for
messages. `[name, number, ...]` makes a call of `CALLS`. Numbers choose objects, of which closed
ones stay, and arguments. A call that takes longer than a moment goes on beside the next calls.
`["end"]` cancels the calls under way and closes everything. The answer is "" or what went wrong: an
exception that is no refusal, or an error that was only logged.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import mrc
from mrc import CcKind, Context, EvState, Listener, MrcError, RemoteMemory, Write
from mrc.config import Queues, Sockets, Timeouts

MOMENT_SECONDS = 0.01
END_SECONDS, HANG_SECONDS = 150.0, 200.0  # only a hang exceeds them
MOST_CONTEXTS = 4
REFUSALS = (MrcError, TimeoutError, asyncio.CancelledError, StopAsyncIteration, TypeError)
ODD = (0, 1, 2, 3, 4, 7, 8, 31, 64, 127, 128, 255, 256, 1 << 12, 1 << 14, (1 << 14) + 1, 1 << 16,
       (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
       1 << 64, -1, -4, -(1 << 31), -(1 << 63), -(1 << 70))  # fmt: skip
TIMES = (5, 0.001, 1e-9, 0, -1, 1e300, float("inf"), float("nan"))
SIZES = (1, 3, 100, 5000, 1 << 16, 300_000)
PATTERNS = ("*", "", "[", "x", "*1*", "\0")
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"queues": Queues(sq_depth=4, mpr=128, max_wimm=1, max_unread=1)},
    {"interfaces": ("127.0.0.1", "127.0.0.2"), "queues": Queues(dynamic_mpr=True)},
    {"sockets": Sockets(polled=True)},
)

Call = Callable[..., Any]


class Caught(logging.Handler):
    """What the library and asyncio only log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], REFUSALS):
            return  # the future of a write that nobody awaits
        self.lines.append(logging.Formatter().format(record))


class World:
    """The objects of one example."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []
        self.listeners: list[Any] = []
        self.qps: list[Any] = []
        self.regions: list[Any] = []
        self.spaces: list[Any] = []
        self.profiles: list[Any] = [None]
        self.streams: list[Any] = []
        self.recorders: list[Any] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.wrong: list[str] = []

    async def begin(self, seed: int) -> None:
        await self.context(seed)
        await self.context(seed // len(CONFIGS))
        for messages in (0, 1):
            await self.listen(1, messages)
            with suppress(MrcError):  # a queue may be too small for messages
                await self.connect(0, messages, messages)
        for number in (0, 1):
            await self.register(number, 3, 1)
            await self.space(number, 0)

    async def end(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for each in (*self.streams, *self.spaces, *reversed(self.contexts)):
            try:
                await (each.close() if isinstance(each, Context) else leave(each))
            except REFUSALS:
                pass

    def start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(self._checked(work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _checked(self, work: Awaitable[Any]) -> None:
        try:
            await work
        except REFUSALS:
            pass
        except BaseException:
            self.wrong.append(traceback.format_exc())

    # ---- Calls ----------------------------------------------------------------------------

    async def context(self, config: int) -> None:
        if len(self.contexts) < MOST_CONTEXTS:
            base = {"interfaces": ("127.0.0.1",), "timeouts": Timeouts(linger=0.01)}
            options = {**base, **CONFIGS[config % len(CONFIGS)]}
            self.contexts.append(await mrc.open(**options))

    async def listen(self, context: int, messages: int) -> None:
        made = await one(self.contexts, context).listen(
            "127.0.0.1", 0, messages=bool(messages % 2),
            ev_profile=self.profile(messages, "Ev"), cc_profile=self.profile(messages, "Cc"),
        )  # fmt: skip
        self.listeners.append(made)
        self.start(self._accept(made))

    async def accept(self, listener: int, timeout: int) -> None:
        self.qps.append(await one(self.listeners, listener).accept(timeout=one(TIMES, timeout)))

    async def _accept(self, listener: Listener) -> None:
        async for qp in listener:
            self.qps.append(qp)

    async def connect(self, context: int, listener: int, messages: int) -> None:
        port = one(self.listeners, listener).port
        self.qps.append(
            await one(self.contexts, context).connect(
                "127.0.0.1", port, messages=bool(messages % 2), timeout=one(TIMES, messages // 2),
                ev_profile=self.profile(messages, "Ev"), cc_profile=self.profile(messages, "Cc"),
            )
        )  # fmt: skip

    def profile(self, number: int, kind: str) -> Any:
        found = one(self.profiles, number // 2)
        return found if type(found).__name__.startswith(kind) else None

    async def register(self, context: int, size: int, writable: int) -> None:
        memory = bytearray(one(SIZES, size))
        buffer = bytes(memory) if writable % 7 == 6 else memory
        made = one(self.contexts, context).register(buffer, writable=bool(writable % 2))
        self.regions.append(await made)

    async def close_region(self, region: int) -> None:
        await one(self.regions, region).close()

    def source(self, region: int, shape: int) -> Any:
        """A region or a slice of one, perhaps of another Context."""
        found = one(self.regions, region)
        begin, end = (
            one((None, 0, 1, odd(shape // 4)), shape),
            one((None, 8, odd(shape // 3)), shape),
        )
        return found if shape % 2 else found[begin:end]

    def memory(self, region: int, change: int) -> RemoteMemory:
        remote: RemoteMemory = one(self.regions, region).handle
        match change % 8:
            case 1:
                return RemoteMemory(remote.address, remote.rkey ^ 1, remote.length)
            case 2:
                return RemoteMemory(remote.address, remote.rkey, 1 << 64)
            case 3:
                return RemoteMemory(odd(change // 8), odd(change // 16), odd(change // 32))
            case 4:
                return RemoteMemory(remote.address + remote.length - 1, remote.rkey, 1 << 20)
            case 5:
                return remote[odd(change // 8) :]
        return remote

    def write_of(self, region: int, remote: int, change: int, imm: int, shape: int) -> Write:
        return Write(
            None if shape % 9 == 8 else self.source(region, shape // 11),
            None if shape % 9 >= 7 else self.memory(remote, change),
            None if imm % 3 == 0 else odd(imm // 3),
            shape % 11 == 0,
        )

    async def write(self, qp: int, *numbers: int) -> None:
        src, dst, imm, redundant = self.write_of(*numbers)
        await one(self.qps, qp).write(
            src, dst, imm=imm, redundant=redundant, timeout=one((None, *TIMES), qp // 5)
        )

    async def post(self, qp: int, *numbers: int) -> None:
        src, dst, imm, redundant = self.write_of(*numbers)
        await one(self.qps, qp).post(src, dst, imm=imm, redundant=redundant)

    async def post_many(self, qp: int, count: int, *numbers: int) -> None:
        await one(self.qps, qp).post_many([self.write_of(*numbers)] * (count % 600))

    async def post_scattered(
        self, qp: int, region: int, remote: int, change: int, src: int, dst: int, length: int
    ) -> None:
        await one(self.qps, qp).post_scattered(
            self.source(region, change), self.memory(remote, change), length=odd(length),
            src_offsets=[odd(src), 0][: 1 + src % 2], dst_offsets=[odd(dst), 0][: dst % 3],
        )  # fmt: skip

    async def space(self, context: int, number: int) -> None:
        self.spaces.append(await one(self.contexts, context).messages(odd(number)))

    async def send(self, space: int, qp: int, size: int, tag: int) -> None:
        buffer = bytes(one((0, *SIZES), size))
        await one(self.spaces, space).send(one(self.qps, qp), buffer, tag=odd(tag))

    async def recv(self, space: int, qp: int, size: int, tag: int, ignore: int, how: int) -> None:
        source = None if how % 3 == 0 else one(self.qps, qp)
        buffer = bytearray(one((0, *SIZES), size))
        await one(self.spaces, space).recv(
            buffer, source, tag=odd(tag), ignore=odd(ignore), exact=bool(how % 2)
        )

    async def make_profile(self, context: int, kind: int, argument: int) -> None:
        of, name = one(self.contexts, context), f"p{kind % 5}"
        if kind % 2:
            self.profiles.append(
                of.ev_profile(
                    name, paths=(one(PATTERNS, argument),), planes=(odd(argument),) * (kind % 3),
                    active_per_plane=odd(argument // 2),
                )
            )  # fmt: skip
        else:
            self.profiles.append(of.cc_profile(name, kind=one(list(CcKind), argument)))

    async def move_profile(self, context: int, profile: int, to: int, argument: int) -> None:
        found = one(self.profiles, profile)
        if found is None:
            return
        match to % 7:
            case 0 | 1:
                found.to_online()
            case 2:
                found.to_offline()
            case 3:
                found.to_init()
            case 4:
                one(self.contexts, context).destroy_profile(found)
            case 5 if hasattr(found, "deny"):
                await found.deny(one(PATTERNS, argument))
            case 6 if hasattr(found, "allow"):
                await found.allow(one(PATTERNS, argument))

    async def evs(self, qp: int, what: int, ev: int, state: int) -> None:
        on, named = one(self.qps, qp), (odd(ev), one(PATTERNS, ev))[what % 2]
        match what // 2 % 5:
            case 0:
                await on.deny(named)
            case 1:
                await on.allow(named)
            case 2:
                await on.set_ev_state(named, one(list(EvState), state))
            case 3:
                await on.probe_ev(odd(ev), payload=odd(state), timeout=one(TIMES, what // 10))
            case 4:
                await on.probe_evs(
                    None if ev % 3 else [named], payload=odd(state), timeout=0.05,
                    concurrency=odd(what // 10),
                )  # fmt: skip

    async def set_mpr(self, qp: int, mpr: int) -> None:
        await one(self.qps, qp).set_mpr(odd(mpr))

    async def look(self, context: int, qp: int, what: int) -> None:
        of, on = one(self.contexts, context), one(self.qps, qp)
        await one(
            (on.info, on.evs, of.snapshot, of.counters, of.drops, lambda: of.trace(odd(what // 7)),
             self._properties(of, on)), what,
        )()  # fmt: skip

    def _properties(self, of: Any, on: Any) -> Call:
        async def read() -> None:
            repr((of.udp_port, of.name, of.ports, of.missing, of.peers, of.warnings, of.qps))
            repr((on, on.qpn, on.peer, on.seal, on.path_mtu, on.mpr, on.planes, on.ended))
            _ = on.message_peer

        return read

    async def stream(self, qp: int, events: int) -> None:
        on = one(self.qps, qp)
        timeout = one(TIMES, events // 2)
        self.streams.append(
            on.events(timeout=timeout) if events % 2 else on.immediates(timeout=timeout)
        )

    async def read(self, stream: int) -> None:
        if self.streams:
            await anext(one(self.streams, stream))

    async def record(self, context: int, qp: int, what: int) -> None:
        if what % 3 and self.recorders:
            await one(self.recorders, what // 3).stop()
            return
        qps = None if what % 2 else [one(self.qps, qp)]
        made = one(self.contexts, context).record(qps, width_ns=odd(what // 6))
        self.recorders.append(await made)

    async def cancel(self, which: int) -> None:
        others = [task for task in self.tasks if task is not asyncio.current_task()]
        if others:
            one(others, which).cancel()

    async def close(self, what: int, which: int) -> None:
        match what % 12:
            case 0 | 1 | 2:
                await one(self.qps, which).close()
            case 3 | 4 | 5:
                await one(self.qps, which).abort("mine")
            case 6 | 7:
                await leave(one(self.spaces, which))
            case 8 | 9:
                await one(self.listeners, which).close()
            case 10 if self.recorders:
                await leave(one(self.recorders, which))
            case 11:
                await one(self.contexts, which).close()


CALLS = {
    "context": 1, "listen": 2, "accept": 2, "connect": 3, "register": 3, "close_region": 1,
    "write": 6, "post": 6,
    "post_many": 7, "post_scattered": 7, "space": 2, "send": 4, "recv": 6, "make_profile": 3,
    "move_profile": 4, "evs": 4, "set_mpr": 2, "look": 3, "stream": 2, "read": 1, "record": 3,
    "cancel": 1, "close": 2,
}  # fmt: skip
"""How many numbers each call takes."""


def one(things: Sequence[Any], number: int) -> Any:
    return things[number % len(things)]


def odd(number: int) -> int:
    return one(ODD, number)  # type: ignore[no-any-return]


async def leave(each: Any) -> None:
    if hasattr(each, "__aexit__"):
        await each.__aexit__(None, None, None)


async def main() -> None:
    caught, world = Caught(), World()
    logging.getLogger().handlers = [caught]
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *numbers = json.loads(line)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        try:
            if name == "begin":
                world = World()
                await world.begin(*numbers)
            elif name == "end":
                async with asyncio.timeout(END_SECONDS):
                    await world.end()
            else:
                await asyncio.wait(
                    [world.start(getattr(world, name)(*numbers))], timeout=MOMENT_SECONDS
                )
        except BaseException:
            world.wrong.append(traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        wrong = "\n".join((*world.wrong, *caught.lines))
        world.wrong.clear()
        caught.lines.clear()
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
