# SPDX-License-Identifier: Apache-2.0
"""Contexts over loopback, with the real engine and real sockets: memory, many QPs, refusals;
several engines; event loops that ended before their Context, or run in another thread.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
import walls
from endpoints import (
    BUDGET_SECONDS,
    LOOPBACK,
    connected_pair,
    listening,
    listening_to_itself,
    loopback_config,
    memory,
    pattern,
    spawn,
    transfer,
    two_planes,
    until,
)
from ports import free_port
from slowness import PATIENCE

import mrc
from mrc import (
    QP,
    ArgumentError,
    CompletionError,
    ConfigError,
    ConnectError,
    Context,
    ContextConfig,
    Immediate,
    InUseError,
    Listener,
    Opening,
    PathError,
    PeerGoneError,
    StateError,
)
from mrc.config import Sockets, Timeouts
from mrc.enums import PlaneShares

# ---- Several of each -----------------------------------------------------------------------


async def test_connect__many_qps_at_once() -> None:
    async with listening(loopback_config()) as (context, _, listener):
        there: dict[str, Any] = {"port": listener.port, "timeout": BUDGET_SECONDS}
        near = await asyncio.gather(
            *(context.connect("127.0.0.1", **there, private={"n": n}) for n in range(32))
        )
        far = [await listener.accept() for _ in range(32)]
        assert sorted(qp.peer.private["n"] for qp in far) == list(range(32))
        assert len({qp.qpn for qp in near}) == 32
        by_number = {qp.peer.private["n"]: qp for qp in far}
        await asyncio.gather(*(qp.write(imm=n) for n, qp in enumerate(near)))
        for n in range(32):
            assert (await anext(by_number[n].immediates())).imm == n


async def test_connect__to_itself() -> None:
    async with (
        listening_to_itself(version=6) as (context, listener),
        await context.connect("::1", listener.port) as near,
        await listener.accept() as far,
    ):
        await asyncio.gather(near.write(imm=1), far.write(imm=2))
        assert (await anext(far.immediates())).imm == 1
        assert (await anext(near.immediates())).imm == 2


async def test_connect__several_planes_share_the_load() -> None:
    addresses, data = ("127.0.0.1", "127.0.0.2", "127.0.0.3"), pattern(1 << 22)
    target = bytearray(len(data))
    async with (
        connected_pair(interfaces=addresses, plane_shares=PlaneShares.EQUAL) as pair,
        memory(pair, data, target) as (source, there),
    ):
        after, sent_again = await pair.near.info(), 1
        while sent_again:  # planes that stood still come back one after the other
            before = after
            await pair.near.write(source, there.handle)
            after = await pair.near.info()
            sent_again = after.retransmitted_packets - before.retransmitted_packets
        assert bytes(target) == data
        assert pair.near.planes == pair.far.planes == (1, 2, 3)
        pairs = zip(before.planes, after.planes, strict=True)
        shares = [now.sent_bytes - then.sent_bytes for then, now in pairs]
        assert min(shares) > 0.2 * sum(shares)


async def test_write__both_ways_through_small_sockets() -> None:
    """Neither direction waits for the other to finish: answers leave together with data."""
    size, writes = 256 << 10, 32
    done: list[bool] = []
    async with connected_pair(sockets=Sockets(sndbuf_bytes=1 << 13)) as pair:
        ends = ((pair.near_context, pair.near), (pair.far_context, pair.far))
        sources = [pattern(size, seed) for seed in range(2)]
        targets = [bytearray(size) for _ in range(2)]
        async with (
            ends[0][0].register(sources[0]) as near_source,
            ends[1][0].register(sources[1]) as far_source,
            ends[1][0].register(targets[0], writable=True) as far_target,
            ends[0][0].register(targets[1], writable=True) as near_target,
        ):
            pieces = ((near_source, far_target), (far_source, near_target))

            async def send(side: bool) -> None:
                source, target = pieces[side]
                for _ in range(writes):
                    await ends[side][1].write(source, target.handle)
                    done.append(side)

            await asyncio.gather(send(False), send(True))
    assert targets == sources
    first = not done[-1]  # the side that finished first: the other has done its part by then
    last = len(done) - 1 - done[::-1].index(first)
    assert done[:last].count(not first) >= writes // 4


async def test_udp_port__each_context_of_a_host_has_its_own() -> None:
    async with mrc.open(loopback_config()) as one, mrc.open(loopback_config()) as two:
        assert one.udp_port != two.udp_port
        with pytest.raises(InUseError, match=f"UDP port {one.udp_port} is in use"):
            await mrc.open(loopback_config(udp_port=one.udp_port))


# ---- Memory --------------------------------------------------------------------------------


async def test_register__a_mapped_file_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "target"
    path.write_bytes(bytes(8192))
    data = pattern(8192)
    async with connected_pair() as pair:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            async with memory(pair, data, mapped) as (source, there):
                await pair.near.write(source, there.handle)
    assert path.read_bytes() == data


async def test_register__an_empty_buffer_is_refused() -> None:
    async with mrc.open(loopback_config()) as context:
        with pytest.raises(ArgumentError, match="is empty"):
            context.register(bytearray(), writable=True)


async def test_register__cancelled_while_it_waits() -> None:
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(loopback_config()) as context:
        buffer = bytearray(64)
        registering = spawn(_register(context, buffer))
        await asyncio.sleep(0)
        registering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await registering
        await context.counters()  # commands run in order, so the undo has run too
        buffer.append(0)


async def _register(context: Context, buffer: bytearray) -> None:
    async with context.register(buffer, writable=True):
        raise AssertionError("registered in spite of the cancellation")


async def test_register__keys_are_unpredictable() -> None:
    async with mrc.open(loopback_config()) as context:
        regions = [await context.register(bytearray(8), writable=True) for _ in range(64)]
        keys = {region.handle.rkey for region in regions}
        assert len(keys) == 64
        assert max(keys) > 1 << 24
        for region in regions:
            await region.close()


async def test_register__wrong_arguments() -> None:
    async with mrc.open(loopback_config()) as context:
        with pytest.raises(TypeError, match="writable: needs True or False, not 1"):
            context.register(bytearray(8), writable=1)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="buffer: needs a writable contiguous buffer"):
            context.register(b"abc", writable=True)


async def test_region__closed_twice_and_by_two_at_once() -> None:
    async with mrc.open(loopback_config()) as context:
        buffer = bytearray(8)
        for _ in range(20):
            region = await context.register(buffer)
            await asyncio.gather(region.close(), region.close())
            await region.close()
            buffer.append(0)  # it is not pinned any more


async def test_region__outlives_its_context_as_an_object() -> None:
    async with mrc.open(loopback_config()) as context:
        buffer = bytearray(8)
        region = await context.register(buffer)
    buffer.append(0)
    await region.close()


async def test_region__closed__the_peer_can_write_no_more() -> None:
    async with connected_pair() as pair:
        target = bytearray(b"." * 8)
        async with pair.far_context.register(target, writable=True) as there:
            remote = there.handle
        async with pair.near_context.register(b"overrun!") as source:
            with pytest.raises(CompletionError, match="REM_ACCESS_ERR"):
                await pair.near.write(source, remote)
        assert target == b"." * 8


# ---- Refusals ------------------------------------------------------------------------------


def test_connect__a_peer_that_ends_while_we_connect() -> None:
    """It drops the connection and stops listening."""

    async def connect() -> None:
        dropped = asyncio.Event()

        async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ending.close()
            writer.transport.abort()
            dropped.set()

        ending = await asyncio.start_server(drop, "127.0.0.1", 0)
        port = ending.sockets[0].getsockname()[1]
        async with mrc.open(loopback_config()) as context:
            with pytest.raises(ConnectError, match=f"no program listens on TCP port {port}"):
                await context.connect("127.0.0.1", port)
        assert dropped.is_set()

    uvloop.run(connect())  # its transports refuse to be used once they are closed


@pytest.mark.parametrize("port", [-1, 65536])
async def test_connect_listen__no_port(port: int) -> None:
    async with mrc.open(loopback_config()) as context:
        for call in (context.connect, context.listen):
            with pytest.raises(ArgumentError, match=f"port: {port} is not within"):
                call("127.0.0.1", port)


async def test_connect__private_data_that_is_no_json() -> None:
    async with mrc.open(loopback_config()) as context:
        with pytest.raises(ArgumentError, match="private"):
            await context.connect("127.0.0.1", 1, private={"x": b"bytes"})
        with pytest.raises(ArgumentError, match=r"private: .* at most"):
            await context.connect("127.0.0.1", 1, private={"x": "x" * 70_000})


async def test_connect__no_ip_version_in_common() -> None:
    async with listening(loopback_config(4), loopback_config(6)) as (near, _, listener):
        with pytest.raises(PathError, match="no IP version in common"):
            await near.connect(LOOPBACK[4], listener.port)


async def test_context__an_interface_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    """connect fails at once; listen waits for the interface and logs this once."""
    async with mrc.open(ContextConfig(interfaces=("mrc-none",))) as context:
        with pytest.raises(ConfigError, match=r"^interfaces: no interface mrc-none"):
            await context.connect("127.0.0.1", 1)
        assert not caplog.messages
        for _ in range(2):
            async with await context.listen("127.0.0.1", 0):
                pass
        (message,) = caplog.messages
        assert message.startswith("no usable interface yet: no interface mrc-none")


async def test_connect__cancelled_at_any_moment() -> None:
    """Everything made by then is removed, and both Contexts go on."""
    config = loopback_config(timeouts=Timeouts(exchange=0.2))
    async with listening_to_itself(config) as (context, listener):
        for turns in range(0, 60, 3):
            connecting = spawn(context.connect("127.0.0.1", listener.port))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            try:
                await (await connecting).abort()
            except asyncio.CancelledError:
                pass
        defaults = (context.ev_profiles["default"], context.cc_profiles["default"])

        async def given_back() -> bool:  # by the listener too, once it has read that a peer left
            accepted = [each for each in context.qps if not each.closed]
            return [profile.qps for profile in defaults] == [len(accepted)] * 2

        await until(given_back)
        async with await context.connect("127.0.0.1", listener.port) as near:
            await near.write(imm=1)


async def test_close__a_probe_under_way() -> None:
    async with connected_pair() as pair:
        await pair.far.abort()
        probing = spawn(pair.near.probe_ev(0, timeout=BUDGET_SECONDS))
        await pair.near.info()  # commands run in order, so the probe has begun
        await pair.near.close()
        with pytest.raises(StateError, match="the QP was closed"):
            await probing


def test_context__on_uvloop() -> None:
    async def work() -> None:
        async with connected_pair() as pair:
            data = pattern(100_000)
            assert await transfer(pair, data) == data
            await pair.near.write(imm=1)
            assert (await anext(pair.far.immediates())).imm == 1

    uvloop.run(work())


@pytest.mark.parametrize("run", [pytest.param(asyncio.run, marks=pytest.mark.slow), uvloop.run])
def test_context__polled_by_the_event_loop(run: Callable[[Any], None]) -> None:
    """Without a datapath thread: bulk, more posts than a ring holds, answers, a probe."""

    async def work() -> None:
        async with connected_pair(sockets=Sockets(polled=True)) as pair:
            assert "mrc-datapath" not in thread_names()
            data = pattern(3_000_000)
            assert await transfer(pair, data) == data
            await asyncio.gather(*(pair.near.write(imm=n) for n in range(20_000)))
            received = [await anext(pair.far.immediates()) for _ in range(20_000)]
            assert [immediate.imm for immediate in received] == list(range(20_000))
            await pair.far.write(imm=7)
            assert (await anext(pair.near.immediates())).imm == 7
            await pair.far.abort()
            assert (await pair.near.probe_ev(0, timeout=0.01)).error == errno.ETIMEDOUT

    run(work())


def thread_names() -> list[str]:
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


async def none_more_than(before: int) -> bool:
    """A transport closes its descriptor only in the event loop's next turn."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) <= before


async def test_context__nothing_is_left_behind() -> None:
    """No descriptor outlives its Context."""
    async with connected_pair():
        pass
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with connected_pair() as pair:
            await transfer(pair, b"x")
    async with asyncio.timeout(BUDGET_SECONDS):
        await until(lambda: none_more_than(before))


# ---- Close and the end of the process -----------------------------------------------------


async def test_context_close__ends_everything_in_one_go() -> None:
    async with asyncio.timeout(BUDGET_SECONDS):
        context = await mrc.open(loopback_config())
        buffer = bytearray(4096)
        await context.register(buffer, writable=True)
        listener = await context.listen("127.0.0.1", 0)
        near = await context.connect("127.0.0.1", listener.port)
        reader = spawn(_first(near))
        accepting = spawn(_accept_twice(listener))
        await asyncio.sleep(0)
        await context.close()
        await context.close()
        buffer.append(0)  # released
        with pytest.raises(StopAsyncIteration):
            await reader
        with pytest.raises(StateError, match="listener is closed"):
            await accepting
        with pytest.raises(StateError):
            await near.write(imm=1)
        with pytest.raises(StateError, match="the Context is closed"):
            await context.connect("127.0.0.1", 1)


async def _first(qp: QP) -> Immediate:
    return await anext(qp.immediates())


async def _accept_twice(listener: Listener) -> None:
    await listener.accept()
    await listener.accept()


async def test_context__not_open_yet() -> None:
    context = Context(loopback_config())
    with pytest.raises(StateError, match=r"not open: use mrc\.open"):
        _ = context.udp_port
    await context.close()


async def test_open__takes_the_fields_of_its_configuration() -> None:
    config = loopback_config(name="one", sockets=Sockets(polled=True))
    async with mrc.open(config, name="two") as context:
        assert (context.name, context.config.sockets.polled) == ("two", True)
        assert config.name == "one"
    async with mrc.open(name="three", interfaces=(LOOPBACK[4],)) as context:
        assert context.name == "three"
    async with mrc.open(None, interfaces=(LOOPBACK[4],)) as context:
        assert [port.nic for port in context.ports] == ["lo"]


def test_open__wrong_fields_at_once() -> None:
    wrong: Any = mrc.open
    with pytest.raises(TypeError, match="colour"):
        wrong(colour="red")
    with pytest.raises(ConfigError, match="udp_port: must be a whole number from 0 to 65535"):
        mrc.open(udp_port=65536)
    with pytest.raises(TypeError):
        wrong(config=loopback_config())
    with pytest.raises(TypeError, match="config: needs a ContextConfig"):
        wrong({"name": "h1"})


async def test_calls__of_wrong_types_name_the_argument() -> None:
    async with mrc.open(loopback_config()) as context:
        call: Any = context
        for wrong in ({"private": [1]}, {"ev_profile": "default"}, {"cc_profile": 1}):
            (name,) = wrong
            with pytest.raises(TypeError, match=f"^{name}: needs"):
                call.connect(LOOPBACK[4], **wrong)
            with pytest.raises(TypeError, match=f"^{name}: needs"):
                call.listen(LOOPBACK[4], 0, **wrong)
        for name in ("admit", "failed"):
            with pytest.raises(TypeError, match=f"^{name}: needs a function"):
                call.listen(LOOPBACK[4], 0, **{name: "me"})
        with pytest.raises(TypeError, match=r"^timeout: needs a number of seconds, not '3'"):
            call.connect(LOOPBACK[4], timeout="3")
        with pytest.raises(ArgumentError, match=r"^timeout: -1 s is below 0"):
            call.connect(LOOPBACK[4], timeout=-1)
        with pytest.raises(TypeError, match=r"^qps: needs QPs"):
            call.record("x")
        async with context.register(bytearray(8), writable=True) as region:
            with pytest.raises(ArgumentError, match="a handle has to_dict"):
                call.connect(LOOPBACK[4], private={"memory": region.handle})


async def test_open__and_closed_without_async_with() -> None:
    context = await mrc.open(loopback_config())
    assert await context.counters()
    async with context as same:
        assert same is context
    for _ in range(2):
        await context.close()
    with pytest.raises(StateError, match="the Context is closed"):
        await context.counters()


# ---- The results of connect, listen and register ------------------------------------------------


async def test_opening__is_closed_at_the_end() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config()) as near,
        mrc.open(loopback_config()) as far,
    ):
        async with far.listen(LOOPBACK[4], 0) as listener:
            async with (
                near.connect(LOOPBACK[4], listener.port) as qp,
                near.register(b"abc") as region,
                listener.accept() as peer,
            ):
                assert near.qps == (qp,)
                assert (region.length, peer.closed) == (3, False)
            assert qp.closed and peer.closed
        with pytest.raises(StateError, match="the listener is closed"):
            await listener.accept()


async def test_opening__awaited_it_stays_open() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config()) as near,
        mrc.open(loopback_config()) as far,
    ):
        listener = await far.listen(LOOPBACK[4], 0)
        qp = await asyncio.create_task(near.connect(LOOPBACK[4], listener.port))
        first, second = await asyncio.gather(near.register(b"abc"), near.register(b"defg"))
        assert (first.length, second.length, qp.closed) == (3, 4, False)
        async with qp:  # both spellings work
            await first.close()
        assert qp.closed


async def test_opening__what_fails_is_not_closed() -> None:
    async def fail() -> int:
        raise ArgumentError("no")

    with pytest.raises(ArgumentError, match="no"):
        async with Opening(fail()):
            raise AssertionError("nothing was opened")


async def test_context__that_cannot_open_leaves_nothing() -> None:
    async with mrc.open(loopback_config(metrics=("127.0.0.1", 0))) as first:
        before = {*os.listdir("/proc/self/fd")}
        with pytest.raises(InUseError):
            async with mrc.open(loopback_config(metrics=("127.0.0.1", first.metrics_port))):
                pass
        assert {*os.listdir("/proc/self/fd")} <= before


async def test_opening__an_error_in_the_block_aborts_the_qp() -> None:
    async with listening(loopback_config()) as (near, _, listener):
        with pytest.raises(KeyError):
            async with near.connect(LOOPBACK[4], listener.port):
                raise KeyError
        peer = await listener.accept()
        await peer.until_closed()
        with pytest.raises(PeerGoneError, match=r"its program failed \(KeyError\)"):
            await anext(peer.immediates())
        await peer.close()


async def test_opening__never_used_opens_nothing() -> None:
    async with mrc.open(loopback_config()) as context:
        context.register(b"abc").close()
        context.connect(LOOPBACK[4], 1).close()
        with pytest.raises(ArgumentError):
            context.register("text")


async def test_qps__one_that_the_caller_forgot_is_closed_with_its_context() -> None:
    async with listening_to_itself() as (_, listener):
        async with mrc.open(loopback_config()) as near:
            await near.connect(LOOPBACK[4], listener.port)
            gc.collect()
            (qp,) = near.qps
            before = qp.closed
        assert (before, qp.closed) == (False, True)
        async with await listener.accept() as peer:
            assert [immediate async for immediate in peer.immediates(timeout=BUDGET_SECONDS)] == []


# ---- Several engines -----------------------------------------------------------------------------


KIB = 1 << 10
MS = 1_000_000


def several(engines: int, **options: Any) -> Opening[Context]:
    return mrc.open(loopback_config(sockets=Sockets(engines=engines), **options))


def engine_of(context: Context, qp: QP) -> int:
    """Which engine of the Context has the QP."""
    (found,) = (i for i, each in enumerate(context._all()) if qp._dispatcher is each)
    return found


@asynccontextmanager
async def joined(
    near_opening: Opening[Context], far_opening: Opening[Context], count: int, **options: Any
) -> AsyncIterator[tuple[Context, Context, list[tuple[QP, QP]]]]:
    """Two Contexts with so many connections: both ends of each."""
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        near_opening as near,
        far_opening as far,
        far.listen("127.0.0.1", 0, **options) as listener,
        AsyncExitStack() as stack,
    ):
        ends = []
        for _ in range(count):
            there = near.connect("127.0.0.1", listener.port, **options)
            ours = await stack.enter_async_context(there)
            ends.append((ours, await stack.enter_async_context(listener.accept())))
        yield near, far, ends


async def test_qps__are_spread_over_the_engines_of_both_ends() -> None:
    data, count = pattern(100 * KIB), 7
    target = bytearray(count * len(data))
    contexts = several(3, **two_planes()), several(2, **two_planes())
    async with joined(*contexts, count) as (near, far, ends):
        assert Counter(engine_of(near, qp) for qp, _ in ends) == {0: 3, 1: 2, 2: 2}
        assert Counter(engine_of(far, qp) for _, qp in ends) == {0: 4, 1: 3}
        async with (
            near.register(data) as source,
            far.register(target, writable=True) as there,
            far.record(width_ns=10 * MS) as every,
        ):
            for i, (qp, _) in enumerate(ends):
                await qp.write(source, there.handle[i * len(data) :])
            recording = await every.stop()
        assert bytes(target) == count * data
        assert (await far.counters())["RX_BYTES"] == sum(recording.bytes) == len(target)
        assert recording.planes.keys() == {1, 2}
        trace = await far.trace(64)
        assert len(trace) == 64 and trace == sorted(trace, key=lambda entry: entry.now_ns)
        assert {entry.qpn for entry in await far.trace()} >= {qp.qpn for _, qp in ends}


async def test_qps__many_that_connect_at_once_are_spread_too() -> None:
    config = loopback_config(sockets=Sockets(engines=4))
    async with listening(config) as (near, far, listener):
        waits = [spawn(listener.accept()) for _ in range(8)]
        ours = await asyncio.gather(*(near.connect("127.0.0.1", listener.port) for _ in range(8)))
        theirs = await asyncio.gather(*waits)
        for context, qps in ((near, ours), (far, theirs)):
            assert set(Counter(engine_of(context, qp) for qp in qps).values()) == {2}


@walls.needs("programs")
async def test_qps__with_messages_are_all_of_the_first_engine() -> None:
    async with joined(several(3), several(3), 3, messages=True) as (near, far, ends):
        assert {engine_of(near, a) for a, _ in ends} == {0} == {engine_of(far, b) for _, b in ends}


async def test_record__qps_of_several_engines() -> None:
    data = bytes(10 * KIB)
    async with joined(several(3), several(3), 3) as (near, far, ends):
        target = bytearray(len(data))
        async with (
            near.register(data) as source,
            far.register(target, writable=True) as there,
        ):
            with pytest.raises(ArgumentError, match="another Context"):
                far.record([ends[0][0]])
            async with far.record([ends[0][1], ends[2][1]], width_ns=MS) as recorder:
                with pytest.raises(InUseError):
                    async with far.record([ends[2][1]]):
                        pass
                for qp, _ in ends:
                    await qp.write(source, there.handle)
                recording = await recorder.stop()
            async with far.record([ends[1][1]]) as again:
                assert not any((await again.stop()).bytes)
    assert sum(recording.bytes) == 2 * len(data)


async def test_region__close_waits_for_all_engines_and_then_nobody_writes() -> None:
    target = bytearray(4 * KIB)
    async with joined(several(2), several(2), 2) as (near, far, ends):
        source = await near.register(bytes(4 * KIB))
        there = await far.register(target, writable=True)
        writes = [spawn(qp.write(source, there.handle)) for qp, _ in ends]
        while source._outstanding < 2:  # noqa: ASYNC110 the tasks have to begin
            await asyncio.sleep(0)
        await source.close()
        assert source._outstanding == 0
        await asyncio.gather(*writes)
        remote = there.handle
        await there.close()
        target.append(0)  # it is not pinned any more
        async with near.register(bytes(4 * KIB)) as other:
            for qp, _ in ends:
                with pytest.raises(CompletionError):
                    await qp.write(other, remote)


async def test_udp_ports__follow_each_other() -> None:
    port = free_port(socket.SOCK_DGRAM)
    async with several(3, udp_port=port) as context:
        assert context.udp_port == port
        ports = [each.engine.udp_port for each in context._all()]
        assert ports == [port, port + 1, port + 2]
        with pytest.raises(InUseError, match=f"UDP port {port} is in use"):
            async with several(2, udp_port=port - 1):
                pass


def test_config__what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^engines: must be a whole number from 1 to 64, not 0$"):
        Sockets(engines=0)
    with pytest.raises(ConfigError, match="an event loop that polls runs one engine"):
        Sockets(engines=2, polled=True)
    with pytest.raises(
        ConfigError, match=r"^udp_port: must be up to 65533, as each engine takes one, not 65534$"
    ):
        loopback_config(udp_port=65534, sockets=Sockets(engines=3))


# ---- Loops that ended ----------------------------------------------------------------------------


FOLDER = Path(__file__).parent


@pytest.fixture
def collected() -> Iterator[None]:
    """Collects a test's leftovers while its filter for warnings applies."""
    yield
    gc.collect()


def leaves_open(test: Callable[..., Any]) -> Callable[..., Any]:
    """asyncio warns of its own TCP connections when their loop has ended."""
    quiet = pytest.mark.filterwarnings("ignore::ResourceWarning")
    for mark in (quiet, pytest.mark.usefixtures("collected")):
        test = mark(test)
    return test


def datapath_threads() -> int:
    return sum(name.startswith("mrc-datapath") for name in thread_names())


async def leave_open() -> tuple[Context, Listener, QP]:
    """A Context with everything that it can have, left open."""
    context = await mrc.open(loopback_config())
    listener = await context.listen("127.0.0.1", 0)
    await context.register(bytearray(100))
    qp = await context.connect("127.0.0.1", listener.port)
    await listener.accept()
    return context, listener, qp


async def open_and_close() -> None:
    async with mrc.open(loopback_config()) as context:
        await context.counters()


@leaves_open
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


@leaves_open
def test_calls__after_the_loop_ended() -> None:
    context, _, qp = asyncio.run(leave_open())
    for call in (context.counters, qp.info, lambda: qp.write(imm=1)):
        with pytest.raises(StateError, match="its event loop has ended: open another one"):
            asyncio.run(call())
    asyncio.run(context.close())


@leaves_open
async def test_close__from_another_thread() -> None:
    """It would touch the loop of this thread, so it is refused without effect."""
    refusals: list[str] = []

    def close(context: Context) -> None:
        with pytest.raises(StateError) as caught:
            asyncio.run(context.close())
        refusals.append(str(caught.value))

    async with mrc.open(loopback_config()) as context:
        thread = threading.Thread(target=close, args=(context,))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert refusals == ["the Context belongs to another event loop: close it there"]
        assert await context.counters()


_ENDS = """
import asyncio, atexit, sys
sys.path[:0] = {path!r}
import test_context
context, listener, qp = asyncio.run(test_context.leave_open())
if {closes}:
    atexit.register(lambda: asyncio.run(context.close()))
    atexit.register(lambda: asyncio.run(test_context.open_and_close()))
print("done")
"""


@leaves_open
@pytest.mark.parametrize("closes", [False, True])
def test_exit__with_a_context_left_open(closes: bool) -> None:
    places = (FOLDER, FOLDER.parents[1], FOLDER.parents[2] / "tools")
    script = _ENDS.format(path=[str(place) for place in places], closes=closes)
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
