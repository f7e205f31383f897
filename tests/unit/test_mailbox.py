# SPDX-License-Identifier: Apache-2.0
"""The mailbox over two fake QPs: order, slots and credits, and a peer that breaks the rules."""

from __future__ import annotations

import asyncio
import ctypes
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from transfer_ends import FakeQp, qp_pair, turns, until

from mrc import mailbox
from mrc.engine.memory import RemoteMemory
from mrc.enums import WcStatus
from mrc.errors import CompletionError, MrcError, ProtocolError
from mrc.events import Immediate
from mrc.mailbox import (
    MAX_MESSAGE_BYTES,
    MAX_SENT_BYTES,
    MAX_VISITS,
    SLOT_BYTES,
    SLOTS,
    Mailbox,
    MailboxClosedError,
    Service,
    mailbox_memory,
)

CREDIT = 0x80000000
FRAME = 0xC0000000
MORE = 0x20000000


@asynccontextmanager
async def mailboxes(
    keepalive: float = 3600.0,
) -> AsyncIterator[tuple[Mailbox, Mailbox, FakeQp, FakeQp]]:
    """The side that connected, the side that accepted, and their QPs."""
    left, right = qp_pair()
    async with AsyncExitStack() as stack:
        left_memory = await stack.enter_async_context(mailbox_memory(left.ctx))
        right_memory = await stack.enter_async_context(mailbox_memory(right.ctx))
        connected = Mailbox(left, left_memory, keepalive=keepalive)
        accepted = Mailbox(
            right, right_memory, peer=left_memory.inbox_region.handle, keepalive=keepalive
        )
        for opening in asyncio.as_completed(
            [stack.enter_async_context(connected), stack.enter_async_context(accepted)]
        ):
            await opening
        yield connected, accepted, left, right


async def test_send__arrives_in_order_both_ways() -> None:
    async with mailboxes() as (a, b, _, _):
        half = SLOTS // 2
        for start in range(0, 6 * half, half):
            for n in range(start, start + half):
                await a.send({"n": n})
                await b.send({"n": -n})
            for n in range(start, start + half):
                assert await b.receive() == {"n": n}
                assert await a.receive() == {"n": -n}


@pytest.mark.parametrize(
    "size",
    [1, SLOT_BYTES - 9, SLOT_BYTES - 8, SLOT_BYTES - 7, 3 * SLOT_BYTES, 3 * SLOTS * SLOT_BYTES],
    ids=["short", "slot-1", "slot", "slot+1", "slots", "needs-credit"],
)
async def test_send__message_of_many_frames(size: int) -> None:
    message = {"x": "é" * 3 + "x" * size}
    async with mailboxes() as (a, b, _, _):
        sent = asyncio.create_task(a.send(message))
        assert await b.receive() == message
        await sent
        await a.send({"next": True})
        assert await b.receive() == {"next": True}


async def test_send__message_over_the_limit() -> None:
    async with mailboxes() as (a, _, _, _):
        with pytest.raises(MrcError, match="; the limit is"):
            await a.send({"x": "x" * MAX_SENT_BYTES})


async def test_send__waits_for_credit() -> None:
    """Without credits from the other side, no more than SLOTS frames leave."""
    async with mailboxes() as (a, b, left, right):
        right.held = True  # no credits leave it
        sends = [asyncio.create_task(a.send({"n": n})) for n in range(SLOTS + 3)]
        for n in range(SLOTS):
            assert await b.receive() == {"n": n}
        await turns(200)
        assert len(_frames(left)) == SLOTS
        right.held = False
        right.release()
        await asyncio.gather(*sends)
        assert len(_frames(left)) == SLOTS + 3


@pytest.mark.parametrize("first", [0, 0xFFFFFFFE], ids=["first", "wraps"])
async def test_receive__frees_the_slots_of_what_was_received(first: int) -> None:
    """Without receive, memory is limited to one inbox of messages, however much the peer sends;
    tests/c/test_base.c has the arithmetic.
    """
    async with mailboxes() as (a, b, left, right):
        for box in (a, b):
            for name in ("sent", "done", "credit", "arrived", "freed", "told"):
                setattr(box._slots, name, first)
            box._begin = first
        sends = [asyncio.create_task(a.send({"n": n})) for n in range(3 * SLOTS)]
        await turns(200)
        assert len(_frames(left)) == SLOTS and not _credits(right)
        for n in range(3 * SLOTS):
            assert await b.receive() == {"n": n}
            await turns(200)
            assert len(_frames(left)) <= n + 1 + SLOTS
        await asyncio.gather(*sends)
        assert b._slots.arrived == (first + 3 * SLOTS) & 0xFFFFFFFF


async def test_receive__an_unread_message_holds_up_those_behind_it() -> None:
    """The second message needs more frames than are free, so it waits for the first."""
    async with mailboxes() as (a, b, left, _):
        await a.send({"first": True})
        second = {"x": "x" * 2 * SLOTS * SLOT_BYTES}
        sent = asyncio.create_task(a.send(second))
        await turns(200)
        assert len(_frames(left)) == SLOTS and not sent.done()
        assert await b.receive() == {"first": True}
        assert await b.receive() == second
        await sent


async def test_receive__memory_of_messages_that_nobody_receives() -> None:
    """The bytes are small; decoded, they would take 24 times as much memory."""
    async with mailboxes() as (_, b, _, right):
        tracemalloc.start()
        try:
            for n in range(SLOTS):
                text = b'{"a":[' + b",".join([b"{}"] * 1300) + b"]}"
                _write_inbox(right, text, n)
            await turns(200)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 2 * SLOTS * SLOT_BYTES
        assert (await b.receive())["a"][1299] == {}  # type: ignore[index]


async def test_send__cancelled_in_the_middle_still_goes_out_whole() -> None:
    async with mailboxes() as (a, b, left, _):
        left.held = True
        send = asyncio.create_task(a.send({"x": "x" * 3 * SLOT_BYTES}))
        await turns(200)
        send.cancel()
        await asyncio.gather(send, return_exceptions=True)
        after = asyncio.create_task(a.send({"after": True}))
        left.held = False
        left.release()
        await after
        assert await b.receive() == {"x": "x" * 3 * SLOT_BYTES}
        assert await b.receive() == {"after": True}


async def test_receive__immediates_of_the_user_keep_their_place() -> None:
    async with mailboxes() as (a, b, left, _):
        await left.write(imm=7)
        await a.send({"between": True})
        await left.write(imm=0x7FFFFFFF)
        items = [await b.receive() for _ in range(3)]
    said = [item.imm if isinstance(item, Immediate) else item for item in items]
    assert said == [7, {"between": True}, 0x7FFFFFFF]


async def test_receive__what_came_before_the_end_and_then_the_end() -> None:
    async with mailboxes() as (a, b, _, right):
        await a.send({"last": True})
        right.close()
        await turns(200)
        assert await b.receive() == {"last": True}
        for _ in range(2):
            with pytest.raises(MailboxClosedError, match="h0 closed the connection"):
                await b.receive()


async def test_failed__not_by_an_orderly_close() -> None:
    """The peer closes at once after our last message, before the message's completion is here."""
    async with mailboxes() as (_, b, _, right):
        right.held = True
        send = asyncio.create_task(b.send({"last": True}))
        failed = asyncio.create_task(b.failed())
        await turns(200)
        right.close()
        await turns(200)
        assert not failed.done() and not send.done()
        right.release()
        await send
        failed.cancel()


def _write_inbox(qp: FakeQp, data: bytes, *counts: int, flags: int = 0) -> None:
    """Puts forged frames into the inbox of `qp` and announces them."""
    inbox = next(iter(qp.ctx.regions.values()))
    for count in counts:
        ctypes.memmove(inbox[count % SLOTS * SLOT_BYTES :].address, data, len(data))
        qp.inject(FRAME | flags | count, len(data))


ATTACKS: dict[str, tuple[Callable[[FakeQp], object], str]] = {
    "credit": (lambda qp: qp.inject(CREDIT | 2), "credit for frames never sent"),
    "count": (lambda qp: qp.inject(FRAME | 5, 2), "out of order"),
    "empty": (lambda qp: qp.inject(FRAME | 0, 0), "out of order"),
    "long": (lambda qp: qp.inject(FRAME | 0, SLOT_BYTES + 1), "out of order"),
    "half-json": (lambda qp: _write_inbox(qp, b"{", 0), "not JSON"),
    "no-text": (lambda qp: _write_inbox(qp, b"\xff", 0), "not JSON"),
    "deep-json": (lambda qp: _write_inbox(qp, b"[" * 4096, 0), "not JSON"),
    "no-object": (lambda qp: _write_inbox(qp, b"[1]", 0), "not a JSON object"),
    "flood": (lambda qp: [*map(qp.inject, range(5000))], "limit of 4096 unread"),
    "no-credit": (lambda qp: _write_inbox(qp, b"{}", *range(SLOTS + 1)), "without credit"),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_receive__peer_breaks_the_rules(name: str) -> None:
    attack, complaint = ATTACKS[name]
    async with mailboxes() as (_, b, _, right):
        attack(right)
        with pytest.raises(ProtocolError, match=complaint):
            while True:
                item = await b.receive()
                assert item == {} or isinstance(item, Immediate)


async def test_receive__a_message_without_end() -> None:
    async with mailboxes() as (_, b, _, right):
        receiving = asyncio.create_task(b.receive())
        credits = 0
        for n in range(MAX_MESSAGE_BYTES // SLOT_BYTES + 1):
            _write_inbox(right, b"x" * SLOT_BYTES, n, flags=MORE)
            if (n + 1) % (SLOTS // 2) == 0:
                await until(lambda: len(_credits(right)) > credits)  # noqa: B023 - called at once
                credits = len(_credits(right))
        with pytest.raises(ProtocolError, match="more than 262144 bytes"):
            await receiving


async def test_keepalive__silence_is_broken_by_a_credit() -> None:
    async with mailboxes(keepalive=0.01) as (_, _, left, right):
        await until(lambda: len(_credits(left) + _credits(right)) > 2)


async def test_keepalive__finds_out_that_the_paths_are_lost() -> None:
    async with mailboxes(keepalive=0.01) as (_, b, _, right):
        right.held = True
        waiting = asyncio.create_task(b.receive())
        await until(lambda: _credits(right))
        right.fail(WcStatus.RETRY_EXC_ERR)
        with pytest.raises(CompletionError, match="no path"):
            await waiting
        with pytest.raises(CompletionError, match="no path"):
            await b.failed()


@pytest.mark.parametrize(
    "message",
    [{"type": "welcome"}, {"type": "inbox"}, {"type": "inbox", "inbox": 5}],
    ids=["other", "none", "number"],
)
async def test_open__first_message_is_not_an_inbox(message: dict[str, object]) -> None:
    left, _ = qp_pair()
    async with mailbox_memory(left.ctx) as memory:
        _write_inbox(left, json.dumps(message).encode(), 0)
        with pytest.raises(ProtocolError):
            async with Mailbox(left, memory):
                pass


async def test_open__inbox_of_another_size() -> None:
    _, right = qp_pair()
    async with mailbox_memory(right.ctx) as memory:
        with pytest.raises(ProtocolError, match="inbox has 4096 bytes"):
            async with Mailbox(right, memory, peer=RemoteMemory(0, 1, 4096)):
                pass


def _frames(qp: FakeQp) -> list[int]:
    return [imm for imm in qp.posted if imm & FRAME == FRAME]


def _credits(qp: FakeQp) -> list[int]:
    return [imm for imm in qp.posted if imm & FRAME == CREDIT]


# ---- Viewers: a limited number at a time, for a limited time -------------------------------------


class Visitor:
    """The parts of a QP that a visit uses."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.peer = SimpleNamespace(address=address)
        self.gone = asyncio.Event()
        self.until_closed = self.gone.wait
        self.closed = False

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.closed = True


async def test_let_look__until_the_peer_has_seen_enough() -> None:
    visitor: Any = Visitor()
    visit = asyncio.create_task(Service.let_look(visitor))
    await asyncio.sleep(0)
    assert not visitor.closed
    visitor.gone.set()
    await visit
    assert visitor.closed


async def test_let_look__not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mailbox.VISIT_SECONDS == 10
    monkeypatch.setattr(mailbox, "VISIT_SECONDS", 0.01)
    visitor: Any = Visitor()
    await Service.let_look(visitor)
    assert visitor.closed


async def all_places_taken() -> tuple[list[Any], list[asyncio.Task[None]]]:
    """By visitors from one address; their visits."""
    visitors: list[Any] = [Visitor() for _ in range(MAX_VISITS)]
    visits = [asyncio.create_task(Service.let_look(visitor)) for visitor in visitors]
    await asyncio.sleep(0)
    return visitors, visits


async def test_let_look__no_more_than_so_many() -> None:
    assert MAX_VISITS == 16
    visitors, visits = await all_places_taken()
    late: Any = Visitor()
    later: Any = Visitor()
    await Service.let_look(late)
    assert late.closed and not any(visitor.closed for visitor in visitors)
    visitors[0].gone.set()
    await visits[0]
    another = asyncio.create_task(Service.let_look(later))
    await asyncio.sleep(0)
    assert not later.closed
    for task in (another, *visits):
        task.cancel()
    await asyncio.gather(another, *visits, return_exceptions=True)


async def test_let_look__one_source_does_not_take_all_places() -> None:
    """A newcomer gets the place of a source that has more than its own share."""
    visitors, visits = await all_places_taken()
    other: Any = Visitor("10.0.0.2")
    visits.append(asyncio.create_task(Service.let_look(other)))
    await asyncio.wait(visits, return_when=asyncio.FIRST_COMPLETED)
    assert not other.closed
    assert [visitor.closed for visitor in visitors].count(True) == 1
    for task in visits:
        task.cancel()
    await asyncio.gather(*visits, return_exceptions=True)
