# SPDX-License-Identifier: Apache-2.0
"""Messages between three hosts beside a model of a few rules: every message once, whole, to a
receive that takes it; the messages of a peer in their order; nothing to a receive that ended. And
READs, which wait for nothing but the network, as long as the peer reads its frames."""

from __future__ import annotations

import errno
import itertools
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import walls
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from models.library import msg_ffi, msg_library

QUICK = settings(max_examples=60, stateful_step_count=40)
LONG = settings(max_examples=400, stateful_step_count=100)
HOSTS = st.integers(0, 2)
OTHERS = st.integers(1, 2)  # counted from the host itself
EAGER = 256
ROOM = 1000
FREE, AGREED = 0, 1  # spaces: any sizes; the size follows from the tag
ALL_BITS = (1 << 64) - 1
TAGS = st.integers(0, 3)
SPACES = st.sampled_from([FREE, AGREED])


@dataclass(slots=True, eq=False)
class Send:
    """A message; every byte of it is its number."""

    number: int
    source: int
    target: int
    space: int
    tag: int
    size: int
    memory: Any
    result: int | None = None
    taken_by: Receive | None = None


@dataclass(slots=True, eq=False)
class Receive:
    """A receive; `room` bytes, and behind them bytes that must stay as they are."""

    number: int
    host: int
    source: int | None
    space: int
    tag: int
    ignore: int
    room: int
    memory: Any
    result: int | None = None
    took: Send | None = field(default=None, repr=False)

    def fits(self, send: Send) -> bool:
        return (
            (send.target, send.space) == (self.host, self.space)
            and self.source in (None, send.source)
            and (send.tag ^ self.tag) & ~self.ignore == 0
        )


@dataclass(slots=True, eq=False)
class Read:
    """A READ of what a peer shows, at `tag`."""

    number: int
    host: int
    source: int
    tag: int
    size: int
    memory: Any
    space: int = FREE
    result: int | None = None


Operation = Send | Receive | Read
T = TypeVar("T", bound=Operation)


class MessagesMachine(RuleBasedStateMachine):
    """Operations are numbered in the order of their posts."""

    @initialize(heap=st.sampled_from([0, 16384]), depth=st.sampled_from([16, 64]))
    def start(self, heap: int, depth: int) -> None:
        self.c = msg_library()
        self.c.shim_msg_start(3, EAGER, heap, depth)
        self.numbers = itertools.count()
        self.operations: dict[int, Operation] = {}
        self.failed: set[frozenset[int]] = set()

    def all_of(self, kind: type[T]) -> list[T]:
        return [each for each in self.operations.values() if isinstance(each, kind)]

    def is_lost(self, send: Send) -> bool:
        return frozenset((send.source, send.target)) in self.failed

    # ---- what the callers do ----

    def post(self, each: Operation, peer: int | None, exact: bool = False) -> None:
        operation = msg_ffi().new("struct shim_operation *")
        operation.cookie = each.number
        operation.address = int(msg_ffi().cast("uintptr_t", each.memory))
        operation.tag, operation.space = each.tag, each.space
        operation.peer = -1 if peer is None else peer
        operation.exact, operation.receives = exact, isinstance(each, Receive)
        operation.reads = isinstance(each, Read)
        if isinstance(each, Receive):
            operation.bytes, operation.ignore = each.room, each.ignore
        else:
            operation.bytes = each.size
        host = each.source if isinstance(each, Send) else each.host
        self.operations[each.number] = each
        assert self.c.shim_msg_post(host, operation) == 1
        self.take_ended()

    @rule(
        host=HOSTS,
        other=OTHERS,
        space=SPACES,
        tag=TAGS,
        kind=st.integers(0, 3),
        n=st.integers(1, 3),
    )
    def send(self, host: int, other: int, space: int, tag: int, kind: int, n: int) -> None:
        for _ in range(n):
            number = next(self.numbers)
            size = [0, 1 + number % 200, 300 + number % 200, ROOM - number % 200][kind]
            if space == AGREED:
                size = agreed(tag)
            memory = msg_ffi().new("uint8_t[]", [number % 255 + 1] * size or [0])
            target = (host + other) % 3
            self.post(Send(number, host, target, space, tag, size, memory), target)

    @rule(
        host=HOSTS,
        other=st.integers(0, 2),
        space=SPACES,
        tag=TAGS,
        ignore=st.sampled_from([0, 0, 0, 1, ALL_BITS]),
        room=st.sampled_from([ROOM, ROOM, ROOM, 0, 100, 400]),
        exact=st.booleans(),
    )
    def receive(
        self, host: int, other: int, space: int, tag: int, ignore: int, room: int, exact: bool
    ) -> None:
        """`other` 0: from any peer."""
        exact = exact and space == AGREED
        if space == AGREED:
            room = agreed(tag) if exact else ROOM
        source = (host + other) % 3 if other else None
        memory = msg_ffi().new("uint8_t[]", ROOM + 1)
        ignore = 0 if exact else ignore
        number = next(self.numbers)
        self.post(Receive(number, host, source, space, tag, ignore, room, memory), source, exact)

    @rule(host=HOSTS, other=OTHERS, size=st.sampled_from([0, 1, 300, 2000]), n=st.integers(1, 80))
    def read(self, host: int, other: int, size: int, n: int) -> None:
        for _ in range(n):
            number, source = next(self.numbers), (host + other) % 3
            memory = msg_ffi().new("uint8_t[]", size + 1)
            self.post(Read(number, host, source, number % 500, size, memory), source)

    @rule(back=st.integers(0, 20))
    def cancel(self, back: int) -> None:
        waiting = [
            each
            for each in self.operations.values()
            if each.result is None and not isinstance(each, Read)
        ]
        if waiting:
            self.cancel_one(waiting[-1 - back % len(waiting)])

    def cancel_one(self, each: Send | Receive) -> None:
        host = each.host if isinstance(each, Receive) else each.source
        assert self.c.shim_msg_cancel(host, each.space, each.number) == 0
        self.take_ended()

    # ---- what the network does ----

    @rule(host=HOSTS, other=OTHERS, n=st.integers(1, 3), turn=st.booleans())
    def deliver(self, host: int, other: int, n: int, turn: bool) -> None:
        self.c.shim_msg_turn(host)
        for _ in range(n):
            self.c.shim_msg_deliver(host, (host + other) % 3)
        if turn:
            self.c.shim_msg_turn((host + other) % 3)
        self.take_ended()

    @rule(host=HOSTS, other=OTHERS, n=st.integers(1, 5))
    def complete(self, host: int, other: int, n: int) -> None:
        for _ in range(n):
            self.c.shim_msg_complete(host, (host + other) % 3)
        self.c.shim_msg_turn(host)
        self.take_ended()

    @rule(host=HOSTS, posts=st.integers(1, 3))
    def refuse(self, host: int, posts: int) -> None:
        self.c.shim_msg_refuse(host, posts)

    @rule(host=HOSTS, other=OTHERS, now=st.integers(0, 15))
    def fail(self, host: int, other: int, now: int) -> None:
        if now == 0:
            self.failed.add(frozenset((host, (host + other) % 3)))
            self.c.shim_msg_fail(host, (host + other) % 3)
            self.take_ended()

    @rule()
    def run_all(self) -> None:
        """At rest, no message waits for a receive that waits for it."""
        for _ in range(10):  # refused posts are posted again in the next turn
            self.c.shim_msg_run()
        self.take_ended()
        for read in self.all_of(Read):
            if read.result is None:
                assert self.c.shim_msg_is_stalled(read.source)
        for receive in self.all_of(Receive):
            if receive.result is not None or self.c.shim_msg_is_stalled(receive.host):
                continue
            assert not [
                send
                for send in self.all_of(Send)
                if receive.fits(send)
                and send.taken_by is None
                and send.result in (None, 0)
                and not self.is_lost(send)
                and not self.c.shim_msg_is_stalled(send.source)
            ]

    # ---- the judge ----

    def take_ended(self) -> None:
        ended = msg_ffi().new("struct shim_ended[]", 8192)
        for host in range(3):
            for i in range(self.c.shim_msg_ended(host, ended, 8192)):
                each = self.operations[ended[i].cookie]
                assert each.result is None  # it ends once
                each.result = ended[i].result
                if isinstance(each, Receive):
                    self.check_received(each, ended[i])
                elif isinstance(each, Read):
                    self.check_read(each)
                elif each.result == 0:
                    assert ended[i].bytes == each.size

    def check_read(self, read: Read) -> None:
        content = bytes(msg_ffi().buffer(read.memory))
        if read.result == 0:
            assert list(content) == [*(n % 251 for n in range(read.tag, read.tag + read.size)), 0]
        else:
            assert frozenset((read.host, read.source)) in self.failed

    def check_received(self, receive: Receive, ended: Any) -> None:
        assert ended.result in (0, -errno.EMSGSIZE, -errno.ECANCELED, -errno.ECONNRESET) or (
            ended.result == -errno.ETIMEDOUT
        )
        if ended.result not in (0, -errno.EMSGSIZE):
            assert ended.bytes == 0
            return
        content = bytes(msg_ffi().buffer(receive.memory))
        whole = ended.result == 0
        sends = [
            send
            for send in self.all_of(Send)
            if receive.fits(send)
            and send.taken_by is None
            and (send.result in (None, 0, -errno.EMSGSIZE) or self.is_lost(send))
            and (send.source, send.tag, send.size) == (ended.peer, ended.tag, ended.bytes)
            and (not whole or content[: send.size] == bytes([send.number % 255 + 1]) * send.size)
        ]
        assert sends
        send = sends[0]
        assert whole == (send.size <= receive.room)
        if whole:
            assert not any(content[send.size :])
        send.taken_by, receive.took = receive, send

    def check_order(self) -> None:
        """No message overtakes an older one, and no receive an older one."""
        for receive in self.all_of(Receive):
            took = receive.took
            if took is None:
                continue
            for send in self.all_of(Send):
                if send.number >= took.number or not receive.fits(send):
                    continue
                if send.source != took.source or self.is_lost(send):
                    continue
                if send.taken_by is None:
                    assert send.result == -errno.ECANCELED
                else:
                    assert send.taken_by.number < receive.number
            for older in self.all_of(Receive):
                if older.number < receive.number and older.fits(took) and older.took is not None:
                    assert older.took.source != took.source or older.took.number < took.number

    def teardown(self) -> None:
        """Receives everything that is left; then nothing is left."""
        if not hasattr(self, "operations"):
            return
        self.run_all()
        for host, space in itertools.product(range(3), (FREE, AGREED)):
            for send in self.all_of(Send):
                if (send.target, send.space) == (host, space):
                    self.receive(host, 0, space, 0, ALL_BITS, ROOM, False)
        self.run_all()
        for each in list(self.operations.values()):
            if each.result is None and isinstance(each, Receive):
                self.cancel_one(each)
        self.run_all()
        for each in self.operations.values():
            assert each.result is not None
        for send in self.all_of(Send):
            if not self.is_lost(send) and send.result != -errno.ECANCELED:
                assert send.taken_by is not None
        self.check_order()
        for host in range(3):
            left = self.c.shim_msg_left(host)
            assert (left.operations, left.regions) == (0, 0)
            assert left.heap_bytes == 0 or self.failed
        self.c.shim_msg_stop()


def agreed(tag: int) -> int:
    """The size of every message of a tag in the space AGREED."""
    return [50, 300, ROOM, 301][tag]


@walls.needs("programs")
class TestMessages(MessagesMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = QUICK


@pytest.mark.slow
@walls.needs("programs")
class TestMessagesLong(MessagesMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = LONG
