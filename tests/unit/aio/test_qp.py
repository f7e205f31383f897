# SPDX-License-Identifier: Apache-2.0
"""QPs over loopback, with the real engine and real sockets: writes, immediates, state, end."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from endpoints import (
    BUDGET_SECONDS,
    connected_pair,
    loopback_config,
    memory,
    pattern,
    spawn,
    transfer,
    two_planes,
)

import mrc
from mrc import (
    ArgumentError,
    CcKind,
    CompletionError,
    Ended,
    EventReason,
    EvState,
    PathError,
    PeerGoneError,
    ProtocolError,
    QpErrorEvent,
    RemoteMemory,
    StateError,
    WcStatus,
    Write,
)
from mrc.aio import qp
from mrc.config import CcParameters, Queues, Retries, Sockets, Spraying, Timeouts
from mrc.connect import connect as connecting
from mrc.connect import profiles
from mrc.connect.oob import decode_body
from mrc.connect.proof import Proof
from mrc.engine.engine import Notice
from mrc.engine.memory import HeldBuffer, Region
from mrc.enums import Access, EventType, Integrity, QpState
from mrc.errors import PathMtuError
from mrc.events import PlaneEvent, PlaneShareEvent, PortEvent, QpInfo
from mrc.tasks import cancelled

FEW = Retries(ack_timeout_exponent=6, linear=1, exponential=1)

# ---- Writes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
async def test_write__bytes_arrive_in_place(version: int) -> None:
    async with connected_pair(version) as pair:
        mtu = pair.near.path_mtu
        assert mtu == pair.far.path_mtu
        for size in (1, mtu - 1, mtu, mtu + 1, 3_000_013):
            data = pattern(size, seed=size)
            assert await transfer(pair, data) == data


@pytest.mark.parametrize(
    "options",
    [
        {"integrity": Integrity.UDP},
        {"cc": CcKind.NULL},
        {"cc": CcKind.NSCC, "cc_parameters": CcParameters(base_rtt_ns=1_000_000, disable_qa=True)},
        {"spraying": Spraying(burst_packets=1)},
        {"spraying": Spraying(mtu_limit=256)},
        {"queues": Queues(mpr=128, sq_depth=1, max_wimm=1)},
        {"spraying": Spraying(evs_per_pair=1)},
        {"spraying": Spraying(evs_active_per_plane=2)},
        {"sockets": Sockets(spin_us=50, coalesce_us=0)},
    ],
    ids=str,
)
async def test_write__under_other_policies(options: dict[str, Any]) -> None:
    data = pattern(500_000)
    async with connected_pair(**options) as pair:
        assert await transfer(pair, data) == data
        await asyncio.gather(*(pair.near.write(imm=i) for i in range(8)))
        immediates = pair.far.immediates()
        assert [(await anext(immediates)).imm for _ in range(8)] == list(range(8))


async def test_set_mpr__the_peer_keeps_within_it() -> None:
    data = pattern(2_000_000)
    queues = Queues(dynamic_mpr=True, mpr=1024)
    async with connected_pair(queues=queues, spraying=Spraying(mtu_limit=256)) as pair:
        assert await transfer(pair, data) == data
        assert (await pair.near.info()).peer_mpr == 1024
        for mpr in (128, 1024):
            await pair.far.set_mpr(mpr)
            assert await transfer(pair, data) == data
            assert (await pair.near.info()).peer_mpr == mpr


async def test_set_mpr__must_be_agreed() -> None:
    async with connected_pair() as pair:
        with pytest.raises(StateError, match="dynamic MPR"):
            await pair.far.set_mpr(128)


async def test_write__slices_touch_nothing_else() -> None:
    async with connected_pair() as pair:
        data, target = pattern(1000), bytearray(b"." * 1000)
        async with memory(pair, data, target) as (source, there):
            assert await pair.near.write(source[300:400], there.handle[500:]) == 100
            assert await pair.near.write(source[:3], there.handle[997:], imm=1) == 3
            assert (await anext(pair.far.immediates())).bytes == 3
        assert bytes(target) == b"." * 500 + data[300:400] + b"." * 397 + data[:3]


async def test_write__a_range_outside_the_memory() -> None:
    async with connected_pair() as pair, pair.near_context.register(bytes(100)) as source:
        for begin, end in ((0, 101), (101, None), (-1, None), (5, 4)):
            with pytest.raises(ArgumentError, match="region: "):
                source[begin:end]
            with pytest.raises(ArgumentError, match="memory of the peer: "):
                RemoteMemory(0, 0, 100)[begin:end]
        for handle in (RemoteMemory(0, 0, 99), RemoteMemory(0, 0, 100)[1:]):
            with pytest.raises(ArgumentError, match="dst: 100 bytes do not fit into the 99"):
                await pair.near.write(source, handle)


async def test_write__from_memory_that_the_peer_may_write() -> None:
    """As in verbs, the local side may read all registered memory."""
    target = bytearray(8)
    async with (
        connected_pair() as pair,
        pair.near_context.register(bytearray(b"12345678"), writable=True) as source,
        pair.far_context.register(target, writable=True) as there,
    ):
        await pair.near.write(source, there.handle)
    assert target == b"12345678"


async def test_write__beyond_the_send_queue_waits_its_turn() -> None:
    async with connected_pair(queues=Queues(sq_depth=4)) as pair:
        data, target = pattern(64_000), bytearray(64_000)
        async with memory(pair, data, target) as (source, there):
            at = range(0, 64_000, 1000)
            writes = [pair.near.write(source[i : i + 1000], there.handle[i:]) for i in at]
            assert await asyncio.gather(*writes) == [1000] * 64
        assert bytes(target) == data
        assert (await pair.near.info()).outstanding == 0


@pytest.mark.parametrize("polled", [False, True])
async def test_post__without_a_task(polled: bool) -> None:
    async with connected_pair(sockets=Sockets(polled=polled), queues=Queues(sq_depth=2)) as pair:
        data, target = pattern(1000), bytearray(1000)
        async with memory(pair, data, target) as (source, there):
            posted = [pair.near.post(source, there.handle)]
            posted += [pair.near.post(imm=imm) for imm in range(7, 17)]  # beyond the depth
            with pytest.raises(ArgumentError, match="pass both"):
                pair.near.post()
            immediates = pair.far.immediates()
            assert [(await anext(immediates)).imm for _ in range(10)] == list(range(7, 17))
            assert [await done for done in posted] == [1000] + [0] * 10
            assert target == data


async def test_post__while_it_waits_for_a_place_it_is_cancelled() -> None:
    """It is never sent, and its memory is free."""
    async with connected_pair(queues=Queues(sq_depth=1)) as pair:
        async with memory(pair, b"1", bytearray(1)) as (source, there):
            first, second, third = (
                pair.near.post(source, there.handle, imm=imm) for imm in (1, 2, 3)
            )
            second.cancel()
            assert [await first, await third] == [1, 1]
            immediates = pair.far.immediates()
            assert [(await anext(immediates)).imm for _ in range(2)] == [1, 3]
            await source.close()
        assert (await pair.near.info()).outstanding == 0


async def test_write__to_the_memory_of_a_closed_region_or_of_another_context() -> None:
    async with connected_pair() as pair, memory(pair, b"1", bytearray(1)) as (source, there):
        closed = await pair.near_context.register(b"2")
        part = closed[:]
        await closed.close()
        await closed.close()  # nothing happens
        refused = pytest.raises(StateError, match=r"src: .* is closed, or another Context's")
        for wrong in (closed, part, there, there[:]):
            with refused:
                await pair.near.write(wrong, there.handle)
            with refused:
                pair.near.post(wrong, there.handle, imm=1)
            with refused:
                pair.near.post_many([Write(source, there.handle), Write(wrong, there.handle)])
            with refused:
                pair.near.post_scattered(
                    wrong, there.handle, length=1, src_offsets=[0], dst_offsets=[0]
                )
        assert await pair.near.write(source, there.handle) == 1
        assert (await pair.near.info()).acknowledged_bytes == 1


async def test_post__one_that_the_engine_refuses_leaves_earlier_ones_alone() -> None:
    """C refuses at once, while the others are under way; their places stay theirs."""
    async with connected_pair(queues=Queues(sq_depth=3)) as pair:
        data, target = pattern(1 << 22), bytearray(1 << 22)
        dispatcher = pair.near._dispatcher
        unknown = Region(HeldBuffer(4096, 8, None), Access.LOCAL_READ, AsyncMock())
        dispatcher._regions[unknown._key] = unknown
        async with memory(pair, data, target) as (source, there):
            first = pair.near.post(source, there.handle)
            await pair.near.info()
            refused = [pair.near.post(unknown, there.handle) for _ in range(2)]
            after = [pair.near.post(source[:1], there.handle, imm=imm) for imm in range(4)]
            for each in refused:
                with pytest.raises(ArgumentError, match="post: "):
                    await each
            del dispatcher._regions[unknown._key]
            assert await asyncio.gather(first, *after) == [1 << 22, 1, 1, 1, 1]
            immediates = pair.far.immediates()
            assert [(await anext(immediates)).imm for _ in range(4)] == list(range(4))
        assert target == data
        assert (pair.near._sends.taken, unknown._outstanding) == (0, 0)


async def test_post__on_a_qp_that_fails_under_load_all_of_them_end() -> None:
    """The engine refuses what comes between the failure and its notice."""
    async with connected_pair(queues=Queues(sq_depth=16)) as pair:
        async with memory(pair, pattern(1 << 16), bytearray(1 << 16)) as (source, there):
            wrong = RemoteMemory(there.address, there.handle.rkey ^ 1, 1 << 16)
            posted = []
            for number in range(4000):
                try:
                    to = wrong if number == 100 else there.handle
                    posted.append(pair.near.post(source[: 1 + number], to))
                except CompletionError:
                    break
                if number % 3 == 0:
                    await asyncio.sleep(0)
            results = await asyncio.gather(*posted, return_exceptions=True)
        sizes = [result for result in results if not isinstance(result, BaseException)]
        assert sizes == [1 + number for number in range(len(sizes))]
        for result in results[len(sizes) :]:
            assert isinstance(result, CompletionError | StateError)
        assert pair.near._sends.taken == 0


@pytest.mark.parametrize("wrong", ["rkey", "range", "access"])
async def test_write__what_the_peer_does_not_allow(wrong: str) -> None:
    async with connected_pair() as pair:
        target = bytearray(b"." * 4096)
        async with (
            pair.near_context.register(pattern(4096)) as source,
            pair.far_context.register(target, writable=wrong != "access") as there,
        ):
            remote = {
                "rkey": RemoteMemory(there.address, there._key ^ 1, 4096),
                "range": RemoteMemory(there.address + 8, there._key, 4096),
                "access": RemoteMemory(there.address, there._key, 4096),
            }[wrong]
            with pytest.raises(CompletionError) as caught:
                await pair.near.write(source, remote)
            assert caught.value.status is WcStatus.REM_ACCESS_ERR
            assert "REM_ACCESS_ERR" in str(caught.value)
            assert QpErrorEvent(WcStatus.REM_ACCESS_ERR) in [e async for e in pair.near.events()]
            assert (await pair.near.info()).state is QpState.ERROR
            with pytest.raises(CompletionError, match="has failed"):
                await pair.near.write(source, remote)
        if wrong != "range":
            assert bytes(target) == b"." * 4096


async def test_write__cancelled_ones_keep_their_memory_until_the_engine_is_done() -> None:
    async with connected_pair() as pair:
        target = bytearray(1 << 22)
        data = bytearray(pattern(1 << 22))
        async with pair.far_context.register(target, writable=True) as there:
            async with pair.near_context.register(data) as source:
                writes = [spawn(pair.near.write(source, there.handle)) for _ in range(4)]
                await asyncio.sleep(0)
                for write in writes:
                    write.cancel()
                results = await asyncio.gather(*writes, return_exceptions=True)
                assert all(isinstance(result, asyncio.CancelledError) for result in results)
                with pytest.raises(BufferError):
                    data.append(0)
            # deregister waited for the engine, so the buffer is released now
            data.append(0)
            assert (await pair.near.info()).outstanding == 0
            assert await transfer(pair, b"the QP still works") == b"the QP still works"


# ---- Immediates -----------------------------------------------------------------------------


async def test_write__immediates_come_in_the_order_of_posting() -> None:
    async with connected_pair() as pair:
        data, target = pattern(1 << 20), bytearray(1 << 20)
        async with memory(pair, data, target) as (source, there):
            sizes = [0 if i % 3 else 4096 * i for i in range(200)]
            sends = [
                spawn(pair.near.write(source[:size], there.handle, imm=i))
                for i, size in enumerate(sizes)
            ]
            stream = pair.far.immediates()
            got = [await anext(stream) for _ in range(200)]
            assert await asyncio.gather(*sends) == sizes
        assert [immediate.imm for immediate in got] == list(range(200))
        assert [immediate.index for immediate in got] == list(range(200))
        assert [immediate.bytes for immediate in got] == sizes


async def test_write__what_was_written_before_an_immediate_is_in_place() -> None:
    async with connected_pair() as pair:
        data, target = pattern(1 << 20), bytearray(1 << 20)
        async with memory(pair, data, target) as (source, there):
            write = spawn(pair.near.write(source, there.handle))
            imm = spawn(pair.near.write(imm=0xFFFFFFFF))
            immediate = await anext(pair.far.immediates())
            assert (immediate.imm, immediate.bytes) == (0xFFFFFFFF, 0)
            assert bytes(target) == data
            assert [await write, await imm] == [1 << 20, 0]


async def test_write__wrong_arguments_of_an_immediate() -> None:
    async with connected_pair() as pair, pair.near_context.register(b"abc") as source:
        with pytest.raises(ArgumentError, match="imm: 4294967296 does not fit"):
            await pair.near.write(imm=1 << 32)
        with pytest.raises(TypeError, match="imm: needs a whole number"):
            await pair.near.write(imm="1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="dst: needs a RemoteMemory"):
            await pair.near.write(source, imm=1)
        with pytest.raises(ArgumentError, match="src, dst: pass both"):
            await pair.near.write(dst=RemoteMemory(0, 0, 8), imm=1)
        await pair.near.write(imm=1)  # the refused write took no place in the send queue


# ---- State ----------------------------------------------------------------------------------


async def test_query__counts_what_was_sent() -> None:
    async with connected_pair() as pair:
        await transfer(pair, pattern(100_000))
        near, far = await pair.near.info(), await pair.far.info()
        assert near.qpn == pair.near.qpn
        assert near.state is QpState.RTS
        assert near.acknowledged_bytes == 100_000
        assert far.received_bytes == 100_000
        assert near.path_mtu == pair.near.path_mtu
        assert [plane.plane for plane in near.planes] == [1]
        assert near.planes[0].sent_packets == near.sent_packets >= 100_000 // near.path_mtu


async def test_evs__every_path_and_its_probe() -> None:
    async with connected_pair(spraying=Spraying(evs_per_pair=4)) as pair:
        evs = await pair.near.evs()
        assert [ev.index for ev in evs] == [0, 1, 2, 3]
        assert len({ev.ev for ev in evs}) == 4
        assert all(ev.sent_probes >= 1 and ev.state is EvState.GOOD for ev in evs)
        assert [ev.path for ev in evs] == [f"lo>127.0.0.1#{n}" for n in (1, 2, 3, 4)]
        assert all(ev.destination == "127.0.0.1" for ev in evs)


async def test_query__planes_that_were_never_compared_are_equal() -> None:
    async with connected_pair(**two_planes()) as pair:
        planes = (await pair.near.info()).planes
    assert [(plane.slow, plane.share_percent) for plane in planes] == [(False, 100)] * 2


async def test_probe_ev__a_small_and_a_full_one() -> None:
    async with connected_pair() as pair:
        for payload in (0, pair.near.path_mtu):
            result = await pair.near.probe_ev(0, payload=payload, timeout=BUDGET_SECONDS)
            assert (result.error, result.index) == (0, 0)
            assert result.rtt_ns is not None and result.rtt_ns > 0
        with pytest.raises(ArgumentError):
            await pair.near.probe_ev(999)


async def test_counters__and_drops_and_trace() -> None:
    async with connected_pair() as pair:
        await transfer(pair, pattern(1000))
        assert sum((await pair.near_context.counters()).values()) > 0
        assert all(count == 0 for count in (await pair.near_context.drops()).values())
        trace = await pair.near_context.trace()
        assert {entry.qpn for entry in trace} >= {pair.near.qpn}
        times = [entry.now_ns for entry in trace]
        assert times == sorted(times)


# ---- Close ----------------------------------------------------------------------------------


async def test_close__ends_the_peers_streams_and_is_told_apart_from_a_crash() -> None:
    async with connected_pair() as pair:
        await pair.near.write(imm=5)
        await pair.near.close()
        assert [immediate.imm async for immediate in pair.far.immediates()] == [5]
        assert pair.far.ended == Ended(True, None)


async def test_close__a_write_that_just_ended_stays_ended_for_both() -> None:
    """The far end closes at once after the immediate: the near end's write must still complete."""
    async with connected_pair(retries=Retries(exponential=1)) as pair:
        write = spawn(pair.near.write(imm=1))
        await anext(pair.far.immediates())
        await pair.far.close()
        assert await write == 0


async def test_close__while_writing() -> None:
    async with connected_pair(queues=Queues(sq_depth=4)) as pair:
        data, target = pattern(1 << 22), bytearray(1 << 22)
        async with memory(pair, data, target) as (source, there):
            writes = [spawn(pair.near.write(source, there.handle)) for _ in range(16)]
            await asyncio.sleep(0)
            await pair.near.close()
            results = await asyncio.gather(*writes, return_exceptions=True)
        for result in results[4:]:
            assert isinstance(result, StateError)
        for result in results[:4]:
            if isinstance(result, CompletionError):
                assert result.status is WcStatus.WR_FLUSH_ERR
        with pytest.raises(StateError, match="is closed"):
            await pair.near.write(imm=1)


async def test_abort__looks_like_a_crash_to_the_peer() -> None:
    async with connected_pair() as pair:
        await pair.near.write(imm=5)
        await pair.near.abort()
        stream = pair.far.immediates()
        assert (await anext(stream)).imm == 5
        with pytest.raises(PeerGoneError, match="ended without closing"):
            await anext(stream)
        assert pair.far.ended is not None and pair.far.ended.by_peer
        assert isinstance(pair.far.ended.error, PeerGoneError)


@pytest.mark.parametrize("orderly", [False, True])
async def test_write__to_a_peer_that_has_ended(orderly: bool) -> None:
    """Without a look at TCP they would wait for ever."""
    config: dict[str, Any] = {"queues": Queues(sq_depth=2), "timeouts": Timeouts(linger=0.05)}
    async with connected_pair(**config) as pair:
        async with pair.near_context.register(bytes(64)) as source:
            await pair.near.deny("*")
            remote = RemoteMemory(0x1000, 1, 64)
            writes = [pair.near.post(source, remote) for _ in range(4)]  # two of them wait
            await (pair.far.close() if orderly else pair.far.abort())
            why = "closed the connection" if orderly else "ended without closing the connection"
            for write in writes:
                with pytest.raises(PeerGoneError, match=why):
                    await write
            with pytest.raises(PeerGoneError, match=why):
                await pair.near.write(imm=1)
        await pair.near.close()
        assert not [one async for one in pair.near.events() if isinstance(one, QpErrorEvent)]


async def test_retries__a_peer_that_vanished_ends_in_retry_exc_err() -> None:
    async with connected_pair(retries=FEW) as pair:
        assert pair.near._watcher is not None
        await cancelled(pair.near._watcher)  # TCP says nothing
        await pair.far.abort()
        with pytest.raises(CompletionError) as caught:
            await pair.near.write(imm=1)
        assert caught.value.status is WcStatus.RETRY_EXC_ERR


# ---- The end of a QP -----------------------------------------------------------------------------


REASONS = [
    (ProtocolError("host sent a wrong frame"), "host sent a wrong frame"),
    (TimeoutError(), "a time limit has passed"),
    (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
    (MemoryError(), "out of memory"),
    (asyncio.CancelledError(), "it was interrupted, or a time limit has passed"),
    (KeyError("secret"), r"its program failed \(KeyError\)"),
    (BaseExceptionGroup("", [StateError("first")]), "first"),
]


@pytest.mark.parametrize(("error", "reason"), REASONS)
async def test_exit__the_peer_is_told_the_reason(error: BaseException, reason: str) -> None:
    async with connected_pair() as pair:
        await pair.near.__aexit__(type(error), error, None)
        with pytest.raises(PeerGoneError, match=f"ended the connection: {reason}$"):
            await anext(pair.far.immediates())


async def test_exit__of_the_context_tells_the_reason() -> None:
    async with connected_pair() as pair:
        await pair.near_context.__aexit__(MemoryError, MemoryError(), None)
        with pytest.raises(PeerGoneError, match="ended the connection: out of memory"):
            await anext(pair.far.immediates())


async def test_write__after_the_peer_has_closed_and_its_connection_has_ended() -> None:
    async with connected_pair() as pair:
        await pair.far.close()
        watcher = pair.near._watcher
        assert watcher is not None
        await watcher
        with pytest.raises(PeerGoneError, match="closed the connection"):
            await pair.near.write(imm=1)


async def test_write__is_answered_while_this_process_is_stopped() -> None:
    """The answer waits in a socket. The time of the stop is none in which it did not come."""
    async with connected_pair() as pair:
        end = pair.near
        answered = asyncio.Event()
        failed: list[bool] = []
        sends = Mock(
            taken=1,
            until_idle=AsyncMock(side_effect=answered.wait),
            fail=Mock(side_effect=lambda _: failed.append(answered.is_set())),
        )
        with patch.multiple(end, _sends=sends, _dispatcher=Mock(), info=AsyncMock()):
            end.info.return_value.planes = ()  # type: ignore[attr-defined]
            ended = spawn(end._on_ended(PeerGoneError("it has ended")))
            await pair.near_context.counters()  # meanwhile it waits
            time.sleep(0.5)  # noqa: ASYNC251 the stop
            asyncio.get_running_loop().call_later(0.05, answered.set)
            sends.taken = 0
            await ended
        assert failed == [True]


async def test_close__of_a_qp_that_failed_tells_the_reason() -> None:
    async with connected_pair(retries=FEW) as pair:
        await pair.near.deny("*")
        with pytest.raises(CompletionError):
            await pair.near.write(imm=1)
        await pair.near.close()
        with pytest.raises(PathError, match="its QP failed: no path to the peer answers"):
            await anext(pair.far.immediates())


async def test_fail__writes_under_way_get_the_reason() -> None:
    async with connected_pair() as pair:
        await pair.near.deny("*")
        writing = spawn(pair.near.write(imm=1))
        await pair.near.info()
        pair.near._fail(PathError("this path carries nothing"))
        with pytest.raises(PathError, match="this path carries nothing"):
            await writing
        with pytest.raises(PathError, match="this path carries nothing"):
            await pair.near.write(imm=2)


async def test_hangup__a_peer_that_breaks_the_protocol() -> None:
    """This end knows better than that the peer was stopped."""
    async with connected_pair() as pair:
        pair.far._channel._writer.write(b"\0\0\0\2[]")
        with pytest.raises(ProtocolError, match="does not speak mrc's exchange"):
            await anext(pair.near.immediates())


async def test_bye__what_the_peer_sent_before_comes_first() -> None:
    """Also if this end hears of the bye before it looks at what the engine has received."""
    async with connected_pair() as pair:
        dispatcher = pair.near._dispatcher
        dispatcher.loop.remove_reader(dispatcher.engine.fd)
        await pair.far.write(imm=7)
        closing = spawn(pair.far.close())
        try:
            assert [each.imm async for each in pair.near.immediates()] == [7]
        finally:
            dispatcher.loop.add_reader(dispatcher.engine.fd, dispatcher._on_readable)
        await closing


async def test_connect__the_listener_is_told_why_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    monkeypatch.setattr(connecting.Local, "establish", AsyncMock(side_effect=no_memory))
    said = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.set_result(await reader.read())
        writer.close()

    async with (
        asyncio.timeout(BUDGET_SECONDS),
        await asyncio.start_server(listen, "127.0.0.1", 0) as server,
        mrc.open(loopback_config()) as context,
    ):
        with pytest.raises(OSError, match="Cannot allocate memory"):
            await context.connect("127.0.0.1", server.sockets[0].getsockname()[1])
        told = decode_body((await said)[4:])
    assert (told["reason"], told["kind"]) == ("Cannot allocate memory", "")


@pytest.mark.parametrize(
    ("kind", "status", "event"),
    [
        (EventType.PLANE, 0, PlaneEvent(2, True, EventReason.NONE)),
        (EventType.PLANE, 1, PlaneEvent(2, False, EventReason.NONE)),
        (EventType.PLANE_SHARE, 0, PlaneShareEvent(2, True, 30, EventReason.NONE)),
        (EventType.PLANE_SHARE, 1, PlaneShareEvent(2, False, 30, EventReason.NONE)),
        (EventType.PORT, 1, PortEvent(2, True, EventReason.NONE)),
        (EventType.PORT, 0, PortEvent(2, False, EventReason.NONE)),
    ],
)
async def test_on_notice__becomes_an_event(kind: EventType, status: int, event: object) -> None:
    async with connected_pair() as pair, asyncio.timeout(BUDGET_SECONDS):
        notice = Notice(kind, pair.near.qpn, ev_index=0, port=2, status=status, result=30)
        pair.near._on_notice(notice)
        async for each in pair.near.events():
            if each == event:
                break


# ---- When a QP counts as stuck. tests/netns/test_endpoint.py shrinks an MTU under a QP -----------


def info(sent: int, acknowledged: int, outstanding: int = 1) -> QpInfo:
    counts = dict.fromkeys(QpInfo.__struct_fields__, 0)
    fields: dict[str, Any] = counts | {"planes": (), "rtt_ns": None, "path_mtu": 1408}
    fields |= {"state": QpState.RTS, "status": WcStatus.SUCCESS, "outstanding": outstanding}
    fields |= {"first_sent_bytes": sent, "acknowledged_bytes": acknowledged}
    return QpInfo(**fields)


@pytest.mark.parametrize(
    ("before", "now", "size"),
    [
        (info(90_000, 10_000), info(90_000, 10_000), 1408),
        (info(90_000, 10_000), info(90_000, 10_100), 1408),  # small packets pass
        (info(90_000, 10_000), info(90_000, 11_408), 0),
        (info(10_700, 10_000), info(10_700, 10_000), 700),  # the last packet of a write
        (info(10_000, 10_000), info(90_000, 10_000), 0),  # sent a moment ago
        (info(90_000, 10_000), info(90_000, 10_000, outstanding=0), 0),
    ],
)
def test_stuck_bytes(before: QpInfo, now: QpInfo, size: int) -> None:
    assert qp._stuck_bytes(before, now) == size


async def test_watch__fails_the_qp_and_tells_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence is made up here; the last of it would acquit the QP."""
    proofs = iter([Proof({}, (0,)), Proof({1: 1408, 2: 256}, ()), Proof({1: 1024, 2: 512}, ())])

    async def prove(*_: Any, **__: Any) -> Proof:
        return next(proofs)

    monkeypatch.setattr(qp, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(profiles, "prove", prove)
    monkeypatch.setattr(qp, "_stuck_bytes", lambda before, now: 1408)
    async with (
        connected_pair(spraying=Spraying(mtu_limit=1408)) as pair,
        memory(pair, pattern(100_000), bytearray(100_000)) as (source, target),
    ):
        with pytest.raises(PathMtuError, match=r"packets of 1408 bytes .* only up to 1024: "):
            while True:
                await pair.near.write(source, target.handle)
        with pytest.raises(PathMtuError):
            pair.near.post(source, target.handle)
        with pytest.raises(PathError, match="ended the connection: packets of 1408 bytes"):
            await anext(pair.far.immediates())
