# SPDX-License-Identifier: Apache-2.0
"""Messages between this process and one other, matched by space and tag.

A small message travels inside a record of the mailbox. A large one is written from memory to
memory: the receiver registers the range and says where (RANGE); the sender writes with an
immediate. The k-th large send of a tag goes to its k-th large receive. A sender whose receiver has
not said where announces the send (OFFER), so that a receive from any peer finds it.

    {"d": [space, tag, base64]}                    the message
    {"r": [space, tag, address, rkey, bytes, i]}   RANGE: write here, with immediate i
    {"o": [space, tag]}                            OFFER: a large send waits

Bit 30 of the immediate says that no offer was sent. All runs on one event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ctypes
import errno
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, NamedTuple, TypeVar

from msgspec import Meta

from mrc.aio.context import Context
from mrc.binding.verbs import MR, RemoteMemory
from mrc.enums import Access
from mrc.errors import CompletionError, MrcError, ProtocolError
from mrc.messaging.session import Session
from mrc.torch.calls import Operation
from mrc.typed import take

SMALL_BYTES = 2048  # at most; both sides of a transfer know its length
MAX_ARRIVED_BYTES = 16 << 20  # messages without a receive; then the peer has to wait
MAX_WAITING = 65536  # ranges and offers of the peer that nothing has matched

_NOT_OFFERED = 1 << 30
_INDEX = _NOT_OFFERED - 1

T = TypeVar("T")
Key = tuple[int, int]  # space, tag
_U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
_U64 = Annotated[int, Meta(ge=0)]


class _Range(NamedTuple):
    """Where the peer wants the bytes of a large message."""

    space: _U32
    tag: _U64
    address: _U64
    rkey: _U32
    bytes: _U64
    imm: _U32


class _Filling(NamedTuple):
    """A large receive that the peer writes into."""

    operation: Operation
    mr: MR


class Link:
    """The messages of one session. `done` completes an operation: operation, peer, result."""

    def __init__(
        self,
        number: int,
        ctx: Context,
        session: Session,
        done: Callable[[Operation, int, int], None],
        from_any: Callable[[int, Key, bool], Operation | None],
    ) -> None:
        self.number = number
        self.session = session
        self.error: MrcError | None = None
        self._ctx = ctx
        self._done = done
        self._from_any = from_any  # takes a receive from any peer: number, key, large
        self._sends: dict[Key, deque[Operation]] = defaultdict(deque)
        self._ranges: dict[Key, deque[_Range]] = defaultdict(deque)
        self._receives: dict[Key, deque[Operation]] = defaultdict(deque)
        self._arrived: dict[Key, deque[bytes]] = defaultdict(deque)
        self._arrived_bytes = 0
        self._waiting = 0
        self._offered: Counter[Key] = Counter()
        self._filling: dict[int, _Filling] = {}
        self._next = 0
        self._room = asyncio.Event()
        self._busy: dict[int, asyncio.Task[object]] = {}  # by id of the operation
        self._tasks: set[asyncio.Task[object]] = set()

    # ---- What this process posts ----------------------------------------------------------

    def send(self, operation: Operation) -> None:
        key = (operation.space, operation.tag)
        if self.error is not None:
            self._done(operation, self.number, -errno.ECONNRESET)
        elif operation.bytes <= SMALL_BYTES:
            data = ctypes.string_at(operation.address, operation.bytes)
            text = base64.b64encode(data).decode()
            self._run(operation, self._say_last(operation, {"d": [*key, text]}))
        elif (place := _pop(self._ranges, key)) is not None:
            self._waiting -= 1
            self._run(operation, self._write(operation, place, _NOT_OFFERED))
        else:
            self._sends[key].append(operation)
            self._run(None, self._say({"o": list(key)}))

    def receive(self, operation: Operation) -> None:
        key = (operation.space, operation.tag)
        if self.error is not None:
            self._done(operation, self.number, -errno.ECONNRESET)
        elif operation.bytes > SMALL_BYTES:
            self._ask(operation, key)
        elif not self.take_small(operation):
            self._receives[key].append(operation)

    def take_small(self, operation: Operation) -> bool:
        """Completes a small receive with a message that is here; False: there is none."""
        data = _pop(self._arrived, (operation.space, operation.tag))
        if data is None:
            return False
        self._arrived_bytes -= len(data)
        self._room.set()
        self._place(operation, data)
        return True

    def take_large(self, operation: Operation) -> bool:
        """Asks for a large message that the peer has offered; False: there is none."""
        key = (operation.space, operation.tag)
        if self.error is not None or self._offered[key] <= 0:
            return False
        self._ask(operation, key)
        return True

    async def cancel(self, operation: Operation) -> None:
        """Ends an operation; afterwards nothing uses its memory. It may also complete before."""
        key = (operation.space, operation.tag)
        for waiting in (self._sends, self._receives):
            if operation in waiting.get(key, ()):
                waiting[key].remove(operation)
                if not waiting[key]:
                    del waiting[key]
                self._done(operation, self.number, -errno.ECANCELED)
                return
        if operation.sends and (task := self._busy.get(id(operation))) is not None:
            await asyncio.wait((task,))  # the peer takes the bytes, or the QP fails
            return
        if (task := self._busy.get(id(operation))) is not None:
            await asyncio.wait((task,))
        found = next((i for i, f in self._filling.items() if f.operation is operation), None)
        if found is not None:
            filling = self._filling.pop(found)
            await self._ctx.deregister(filling.mr)
            self._done(operation, self.number, -errno.ECANCELED)

    def forget(self, space: int) -> None:
        """Drops what has arrived for a space that is closed."""
        for key in [key for key in self._arrived if key[0] == space]:
            self._arrived_bytes -= sum(map(len, self._arrived.pop(key)))
        for key in [key for key in self._ranges if key[0] == space]:
            self._waiting -= len(self._ranges.pop(key))
        for key in [key for key in self._offered if key[0] == space]:
            del self._offered[key]
        self._room.set()

    # ---- What the peer sends --------------------------------------------------------------

    async def run(self) -> MrcError:
        """Handles what the peer sends until the session fails or ends; returns the error."""
        try:
            while True:
                while self._arrived_bytes > MAX_ARRIVED_BYTES:
                    self._room.clear()
                    await self._room.wait()
                item = await self.session.receive()
                if isinstance(item, int):
                    self._on_data(item)
                else:
                    self._on_record(item)
        except MrcError as error:
            return error

    def _on_record(self, item: dict[str, Any]) -> None:
        try:
            match item:
                case {"d": [int() as space, int() as tag, str() as text]}:
                    self._on_message((space, tag), base64.b64decode(text, validate=True))
                case {"r": [*fields]}:
                    self._on_range(take(fields, _Range))
                case {"o": [int() as space, int() as tag]}:
                    self._on_offer((space, tag))
                case _:
                    raise ValueError("an unknown record")
        except (ValueError, binascii.Error) as error:
            host = self.session.qp.peer_host
            raise ProtocolError(f"{host} sent a wrong message: {error}") from None

    def _on_message(self, key: Key, data: bytes) -> None:
        operation = _pop(self._receives, key) or self._from_any(self.number, key, False)
        if operation is not None:
            self._place(operation, data)
        else:
            self._arrived[key].append(data)
            self._arrived_bytes += len(data) + 64

    def _place(self, operation: Operation, data: bytes) -> None:
        if len(data) != operation.bytes:
            self._done(operation, self.number, -errno.EMSGSIZE)
            return
        ctypes.memmove(operation.address, data, len(data))
        self._done(operation, self.number, 0)

    def _on_range(self, place: _Range) -> None:
        key = (place.space, place.tag)
        operation = _pop(self._sends, key)
        if operation is not None:
            self._run(operation, self._write(operation, place, 0))
        else:
            self._wait()
            self._ranges[key].append(place)

    def _on_offer(self, key: Key) -> None:
        self._offer(key, 1)
        if self._offered[key] > 0:
            operation = self._from_any(self.number, key, True)
            if operation is not None:
                self._ask(operation, key)

    def _wait(self) -> None:
        self._waiting += 1
        if self._waiting > MAX_WAITING or len(self._offered) > MAX_WAITING:
            raise ValueError(f"more than {MAX_WAITING} messages that nobody expects")

    def _offer(self, key: Key, count: int) -> None:
        """Offers minus ranges: above 0 the peer has a large send that nothing has asked for."""
        self._offered[key] += count
        if self._offered[key] == 0:
            del self._offered[key]
        if len(self._offered) > 2 * MAX_WAITING:
            raise ValueError(f"more than {MAX_WAITING} messages that nobody expects")

    def _on_data(self, imm: int) -> None:
        filling = self._filling.pop(imm & _INDEX, None)
        if filling is None:
            return  # it was cancelled
        operation = filling.operation
        if imm & _NOT_OFFERED:
            self._offer((operation.space, operation.tag), 1)
        self._run(operation, self._filled(filling))

    # ---- Large messages -------------------------------------------------------------------

    def _ask(self, operation: Operation, key: Key) -> None:
        self._offer(key, -1)
        self._run(operation, self._say_where(operation))

    async def _say_where(self, operation: Operation) -> None:
        mr = await self._ctx.register(_memory(operation), access=Access.REMOTE_WRITE)
        index, self._next = self._next, self._next + 1 & _INDEX
        self._filling[index] = _Filling(operation, mr)
        if self.error is not None:
            self._end_filling(index)
            return
        space, tag = operation.space, operation.tag
        await self._say({"r": [space, tag, mr.address, mr.rkey, mr.length, index]})

    async def _filled(self, filling: _Filling) -> None:
        await self._ctx.deregister(filling.mr)  # before the owner may free the memory
        self._done(filling.operation, self.number, 0)

    def _end_filling(self, index: int) -> None:
        filling = self._filling.pop(index)
        self._run(filling.operation, self._lost_filling(filling))

    async def _lost_filling(self, filling: _Filling) -> None:
        await self._ctx.deregister(filling.mr)
        self._done(filling.operation, self.number, -errno.ECONNRESET)

    async def _write(self, operation: Operation, place: _Range, flag: int) -> None:
        if place.bytes != operation.bytes or place.imm > _INDEX:
            self._done(operation, self.number, -errno.EMSGSIZE)
            return
        remote = RemoteMemory(place.address, place.rkey, place.bytes)
        try:
            async with self._ctx.register(_memory(operation)) as mr:
                await self.session.qp.write_imm(mr, remote, imm=place.imm | flag)
        except MrcError:
            self._done(operation, self.number, -errno.ECONNRESET)
        else:
            self._done(operation, self.number, 0)

    # ---- Records and tasks ----------------------------------------------------------------

    async def _say_last(self, operation: Operation, record: dict[str, Any]) -> None:
        result = 0 if await self._say(record) else -errno.ECONNRESET
        self._done(operation, self.number, result)

    async def _say(self, record: dict[str, Any]) -> bool:
        try:
            await self.session.mailbox.send(record)
        except CompletionError:
            return False  # `run` returns the cause
        return True

    def _run(self, operation: Operation | None, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if operation is not None:
            self._busy[id(operation)] = task
        task.add_done_callback(lambda ended: self._ended(operation, ended))

    def _ended(self, operation: Operation | None, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if operation is not None and self._busy.get(id(operation)) is task:
            del self._busy[id(operation)]

    def fail(self, error: MrcError) -> None:
        """Completes all operations of this peer with an error."""
        self.error = error
        for waiting in (self._sends, self._receives):
            for operations in list(waiting.values()):
                for operation in operations:
                    self._done(operation, self.number, -errno.ECONNRESET)
            waiting.clear()
        for index in list(self._filling):
            self._end_filling(index)


def _memory(operation: Operation) -> memoryview:
    array = (ctypes.c_char * operation.bytes).from_address(operation.address)
    return memoryview(array).cast("B")


def _pop(queues: dict[Key, deque[T]], key: Key) -> T | None:
    queue = queues.get(key)
    if not queue:
        return None
    item = queue.popleft()
    if not queue:
        del queues[key]
    return item
