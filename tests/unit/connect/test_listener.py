# SPDX-License-Identifier: Apache-2.0
"""The listening side against strangers: garbage, wrong versions, slow and silent peers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
import socket
import struct
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from endpoints import BUDGET_SECONDS, connected_pair, listening_to_itself, loopback_config

import mrc
from mrc import ConnectError, Context, InUseError, Listener, ResolveError
from mrc.aio import qp as qp_module
from mrc.aio.qp import QP
from mrc.config import Limits, Timeouts
from mrc.connect import listener as listener_module
from mrc.connect import oob
from mrc.connect.oob import FRAME_BYTES, HELLO_BYTES, SNAPSHOT_BYTES, Channel, encode_frame


def listens(**options: Any) -> AbstractAsyncContextManager[tuple[Context, Listener]]:
    return listening_to_itself(loopback_config(**options))


async def test_refusals__a_few_of_each_period_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also just after the host has started, when its clock is near 0."""
    async with listens() as (_, listener):
        for now, count in ((0.0, 7), (9.0, 1), (11.0, 6), (22.0, 1)):
            monkeypatch.setattr(listener_module, "_now", lambda now=now: now)
            for number in range(count):
                listener._log(f"refused {now:g} {number}")
    assert [record.message for record in caplog.records if "refused" in record.message] == [
        *(f"refused 0 {number}" for number in range(5)),
        "refused 3 more connections",
        *(f"refused 11 {number}" for number in range(5)),
        "refused 1 more connections",
        "refused 22 0",
    ]


async def answer_to(listener: Listener, *pieces: bytes, end: bool = False) -> dict[str, Any] | None:
    """Sends bytes as a stranger and returns the last answer, or None."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        for piece in pieces:
            writer.write(piece)
        if end:
            writer.write_eof()
        received = await reader.read()
    except ConnectionError:
        return None
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass
    messages = []
    while received:
        (length,) = struct.unpack(">I", received[:4])
        messages.append(json.loads(received[4 : 4 + length]))
        received = received[4 + length :]
    return messages[-1] if messages else None


def hello(**changes: Any) -> bytes:
    attributes = {
        "qpn": 77,
        "first_psn": 1,
        "path_mtu": 1024,
        "mpr": 1024,
        "max_wimm": 128,
        "integrity": "icrc",
        "udp_port": 4791,
        "ports": [
            {"nic": "lo", "address": "127.0.0.1/8", "source_ports": [9], "mtu": 1024},
        ],
    }
    message = {
        "type": "hello",
        "version": oob.VERSION,
        "host": "stranger",
        "private": {},
        "attributes": attributes,
    }
    return encode_frame({**message, **changes})


def hello_from(address: str) -> bytes:
    message = json.loads(hello()[4:])
    message["attributes"]["ports"][0]["address"] = address
    return encode_frame(message)


@pytest.mark.parametrize(
    ("first_sent_bytes", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak"),
        (struct.pack(">I", SNAPSHOT_BYTES + 1) + b"x", "does not speak"),
        (struct.pack(">I", HELLO_BYTES + 1) + b"x", "131073 bytes, the limit is 131072"),
        (struct.pack(">I", 4) + b"null", "not a JSON object"),
        (encode_frame({"types": "x"}), "no message type"),
        (struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff", "not JSON"),
        (encode_frame({"type": "rtr"}), "'rtr' instead of 'hello'"),
        (encode_frame({"type": "a\x1b[2Jb"}), r"'a\x1b[2Jb' instead of 'hello'"),
        (hello(version=1), f"speaks version 1 of the exchange, this host version {oob.VERSION}"),
        (hello(attributes={}), "wrong hello: attributes.qpn: is missing"),
        (
            hello(host=None),
            "wrong hello: host: must be a string of 0 to 255 characters, not nothing",
        ),
        (hello_from("10.0.0.1/24"), "sent address 10.0.0.1, which is not its own"),
        (hello() + encode_frame({"type": "proved"}), "'proved' instead of 'rtr'"),
        (hello() + encode_frame({"type": "rtr", "x": "x" * FRAME_BYTES}), "the limit is 4096"),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_admit__a_stranger_is_told_why(first_sent_bytes: bytes, reason: str) -> None:
    async with listens() as (context, listener):
        assert reason in (await refusal_to(listener, first_sent_bytes))["reason"]
        async with (
            await context.connect("127.0.0.1", listener.port) as near,
            await listener.accept() as far,
        ):
            await near.write(imm=1)
            assert (await anext(far.immediates())).imm == 1


async def refusal_to(listener: Listener, *pieces: bytes) -> dict[str, Any]:
    answer = await answer_to(listener, *pieces)
    assert answer is not None and answer["type"] == "refuse"
    return answer


async def test_admit__any_garbage_ends_in_bounded_time() -> None:
    junk = random.Random(11)
    async with listens(timeouts=Timeouts(exchange=0.2)) as (context, listener):
        await asyncio.gather(
            *(answer_to(listener, junk.randbytes(junk.randrange(200))) for _ in range(32))
        )
        async with await context.connect("127.0.0.1", listener.port), await listener.accept():
            pass


async def test_admit__a_peer_that_ends_in_the_middle() -> None:
    async with listens() as (_, listener):
        for size in (0, 2, 4, 10, len(hello()) - 1):
            assert await answer_to(listener, hello()[:size], end=True) is None


@pytest.mark.parametrize("timeouts", [Timeouts(exchange=0.1), Timeouts(hello=0.1)])
async def test_admit__a_slow_peer_gets_no_more_than_its_time(timeouts: Timeouts) -> None:
    async with listens(timeouts=timeouts) as (_, listener):
        told = await refusal_to(listener, hello()[:10])
        assert told["reason"] == "the exchange did not finish within 0.1 s"


async def test_admit__no_path_leads_back_to_the_peer() -> None:
    async with listens(timeouts=Timeouts(exchange=0.1)) as (_, listener):
        await refusal_to(listener, hello(), encode_frame({"type": "rtr"}))


async def test_admit__more_qps_than_a_source_may_have() -> None:
    async with listens(limits=Limits(max_qps_per_source=2)) as (context, listener):
        qps = [await context.connect("127.0.0.1", listener.port) for _ in range(2)]
        with pytest.raises(ConnectError, match=r"127.0.0.1 has 2 QPs here, .*max_qps_per_source"):
            await context.connect("127.0.0.1", listener.port)
        await qps[0].close()
        await (await listener.accept()).close()
        async with await context.connect("127.0.0.1", listener.port):
            pass


async def test_admit__qps_that_nobody_accepts_count_too() -> None:
    async with listens(limits=Limits(max_pending=2)) as (context, listener):
        for _ in range(2):
            await context.connect("127.0.0.1", listener.port)
        told = await refusal_to(listener, hello())
        assert told["busy"] and "too many peers" in told["reason"]
        waiting = asyncio.create_task(context.connect("127.0.0.1", listener.port))
        await listener.accept()
        await waiting


async def test_connect__a_place_is_waited_for() -> None:
    async with listens(limits=Limits(max_pending_per_source=1)) as (context, listener):
        await asyncio.gather(*(context.connect("127.0.0.1", listener.port) for _ in range(4)))


async def test_admit__a_large_hello_waits_for_its_turn() -> None:
    """Private data of many small values takes long to parse, and any stranger can send it."""
    private: dict[str, Any] = {"n": [{}] * 20_000}
    async with listens() as (context, listener):
        slow = [asyncio.create_task(answer_to(listener, hello(private=private))) for _ in range(4)]
        async with await context.connect("127.0.0.1", listener.port), await listener.accept():
            assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_admit__nothing_is_made_for_a_stranger_without_a_right_hello() -> None:
    async with listens() as (context, listener):
        for first_sent_bytes in (hello(attributes={}), hello()[:100], b"", hello(version=9)):
            await answer_to(listener, first_sent_bytes, end=True)
        made = [entry for entry in await context.trace() if entry.qpn]
        assert made == []


async def test_answer__a_fault_of_ours_ends_one_exchange_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Listener._answer

    async def broken(self: Listener, channel: Channel) -> QP | None:
        if channel.peeked["private"]:
            raise ZeroDivisionError("ours")
        return await whole(self, channel)

    monkeypatch.setattr(Listener, "_answer", broken)
    async with listens() as (context, listener):
        told = await refusal_to(listener, hello(private={"a": 1}))
        assert told["reason"] == "mrc has failed there: its log says how"
        (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "bug in an exchange: ZeroDivisionError: ours (" in line.message
        assert line.exc_info is None
        async with await context.connect("127.0.0.1", listener.port), await listener.accept():
            pass


async def test_admit__refused_strangers_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listens() as (_, listener):
        for _ in range(20):
            await answer_to(listener, encode_frame({"type": "rtr"}))
    assert len([record for record in caplog.records if "refused" in record.message]) == 5


async def test_listen__many_may_come_while_the_event_loop_is_busy() -> None:
    async with listens() as (_, listener):
        with contextlib.ExitStack() as stack:
            for _ in range(200):  # no await in between, so nothing accepts
                address = ("127.0.0.1", listener.port)
                stack.enter_context(socket.create_connection(address, timeout=1))


async def test_listen__a_port_that_is_taken() -> None:
    async with listens() as (context, listener):
        with pytest.raises(InUseError, match=f"TCP port {listener.port} is in use"):
            await context.listen("127.0.0.1", listener.port)


async def test_listen__an_address_that_cannot_be() -> None:
    async with mrc.open(loopback_config()) as context:
        with pytest.raises(ResolveError, match=r"no-such-host\.invalid"):
            await context.listen("no-such-host.invalid", 0)


async def test_listen__on_every_address_of_both_versions() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config()) as context,
        await context.listen(None, 0) as listener,
    ):
        for host in ("127.0.0.1", "::1", "localhost"):
            async with await context.connect(host, listener.port), await listener.accept():
                pass


async def test_listen__private_data_goes_to_whoever_connects() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config(name="far")) as context,
        context.listen("127.0.0.1", 0, private={"service": "files"}) as listener,
        context.connect("127.0.0.1", listener.port, private={"n": 1}) as near,
        listener.accept() as far,
    ):
        common = {"name": "far", "address": "127.0.0.1", "identity": ""}
        assert near.peer == mrc.Peer(host="127.0.0.1", private={"service": "files"}, **common)
        assert far.peer == mrc.Peer(host="far", private={"n": 1}, **common)


async def test_failed__is_told_of_a_peer_that_cannot_connect() -> None:
    told: list[tuple[mrc.Peer, mrc.MrcError]] = []
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config(6, name="far")) as far,
        far.listen("127.0.0.1", 0, failed=lambda *each: told.append(each)) as listener,
        mrc.open(loopback_config(4, name="near")) as near,
    ):
        with pytest.raises(mrc.PathError, match="no IP version in common"):
            await near.connect("127.0.0.1", listener.port, private={"n": 1})
        while not told:  # noqa: ASYNC110 - the listener has no event for it
            await asyncio.sleep(0)
    ((peer, error),) = told
    assert peer == mrc.Peer(
        host="near", name="near", address="127.0.0.1", identity="", private={"n": 1}
    )
    assert isinstance(error, mrc.PathError)


async def test_accept__its_qp_is_closed_at_the_end() -> None:
    async with listens() as (context, listener):
        async with context.connect("127.0.0.1", listener.port) as near:
            async with listener.accept() as far:
                before = far.closed
            assert (before, far.closed) == (False, True)
            assert await near.until_closed() == mrc.Ended(True, None)
        listener.accept().close()  # never used, it waits for nobody
        with pytest.raises(TimeoutError):
            await listener.accept(timeout=0.01)


async def test_listener__iterates_until_it_is_closed() -> None:
    async with listens() as (context, listener):
        seen = []
        for _ in range(3):
            await context.connect("127.0.0.1", listener.port)
        async for qp in listener:
            seen.append(qp)
            if len(seen) == 3:
                await listener.close()
        assert len({qp.qpn for qp in seen}) == 3


async def test_close__an_exchange_under_way_is_told() -> None:
    async with listens() as (_, listener):
        answer = asyncio.create_task(answer_to(listener, hello()))
        while not listener._exchanges:  # noqa: ASYNC110 - the listener has no event for it
            await asyncio.sleep(0)
        await listener.close()
        told = await answer
    assert told is not None and told["reason"] == "it stops listening"


async def test_close__while_the_event_loop_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange is cancelled twice; asyncio would report a cancelled task as an error."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    refusing = asyncio.Event()

    async def refuse(channel: oob.Channel, reason: object) -> None:
        refusing.set()
        await asyncio.Event().wait()

    async with listens() as (_, listener):
        answer = asyncio.create_task(answer_to(listener, hello()))
        while not listener._exchanges:  # noqa: ASYNC110 - the listener has no event for it
            await asyncio.sleep(0)
        (exchange,) = listener._exchanges
        monkeypatch.setattr(oob.Channel, "refuse", refuse)
        closing = asyncio.create_task(listener.close())
        await refusing.wait()
        exchange.cancel()
        await closing
        assert await answer is None
    assert reports == [] and not exchange.cancelled()


async def test_watch__a_talkative_peer_is_heard_four_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(qp_module, "_MESSAGE_PAUSE_SECONDS", 0.05)
    async with connected_pair() as pair:
        start = asyncio.get_running_loop().time()
        for _ in range(qp_module._FREE_MESSAGES + 3):
            await pair.far._channel.send("chatter")
        await pair.far.close()
        await pair.near.until_closed()
        assert asyncio.get_running_loop().time() - start >= 0.15


async def test_close__every_place_is_given_back() -> None:
    """In any state of the exchange: silent, connecting, being refused, connected, viewed."""
    config = loopback_config(
        remote_view=True, limits=Limits(max_pending=32, max_pending_per_source=32)
    )
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(config) as context:
        listener = await context.listen("127.0.0.1", 0)
        writers = []
        for said in (b"", hello(), encode_frame({"type": "top", "version": 1}), b"junk" * 9):
            for _ in range(3):
                opened = await asyncio.open_connection("127.0.0.1", listener.port)
                opened[1].write(said)
                writers.append(opened[1])
        near = await context.connect("127.0.0.1", listener.port)
        await listener.close()
        await near.close()
        places = context._opened().admission
        assert (places.pending, places._connecting, places._connected) == (0, {}, {})
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(
    ("refused", "family"), [(errno.EMFILE, None), (errno.EAFNOSUPPORT, socket.AF_INET)]
)
async def test_listen__on_every_address_without_a_socket_of_ipv6(
    refused: int, family: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files are an error. A host without IPv6 listens on IPv4."""
    plain = socket.socket

    def make(kind: int = socket.AF_INET, *rest: Any, **more: Any) -> socket.socket:
        if kind == socket.AF_INET6:
            raise OSError(refused, os.strerror(refused))
        return plain(kind, *rest, **more)

    monkeypatch.setattr(socket, "socket", make)
    if family is None:
        with pytest.raises(OSError, match=os.strerror(refused)):
            listener_module._listening_socket(None, 0)
    else:
        with listener_module._listening_socket(None, 0) as opened:
            assert opened.family == family
