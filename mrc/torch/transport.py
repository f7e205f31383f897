# SPDX-License-Identifier: Apache-2.0
"""The transport of this process: one Context, one session for each peer, and the groups over them.

An event loop in a thread of its own does the work. Gloo's threads call the methods of Transport;
these hand over to the loop, and wait for it only to connect, to cancel and to close.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop

from mrc.errors import ConnectError, MrcError, StateError
from mrc.group import Address, Group
from mrc.messaging.mailbox import MailboxClosedError
from mrc.messaging.session import Service
from mrc.observe.context import Context
from mrc.tasks import cancelled
from mrc.torch.calls import ANY, Operation, Shim
from mrc.torch.hosts import config_of, name_of
from mrc.torch.link import SMALL_BYTES, Key, Link

logger = logging.getLogger("mrc.torch")
T = TypeVar("T")

SERVICE = Service("torch", "torch transport", 1)
CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class _Space:
    """A process group of torch."""

    user: int
    """The C++ context of the group."""
    connecting: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # by rank
    peers: dict[int, int] = field(default_factory=dict)  # number of the peer: its rank
    running: dict[int, Operation] = field(default_factory=dict)  # by cookie
    small: dict[int, deque[Operation]] = field(default_factory=lambda: defaultdict(deque))
    large: dict[int, deque[Operation]] = field(default_factory=lambda: defaultdict(deque))
    # receives from any peer, by tag


class Transport:
    """Implements `mrc.torch.calls.Calls`."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self._opening = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._spaces: dict[int, _Space] = {}
        self._numbers: dict[bytes, int] = {}  # of peers, by token
        self._addresses: list[Address] = []  # by number
        self._links: dict[int, Link] = {}  # by number
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- The thread -----------------------------------------------------------------------

    def _started(self) -> asyncio.AbstractEventLoop:
        """The event loop; the first call opens the Context."""
        with self._opening:
            if self._loop is None:
                if os.getpid() != self._process:
                    raise StateError("a forked process cannot use its parent's groups")
                loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="mrc", daemon=True)
                self._thread.start()
                try:
                    asyncio.run_coroutine_threadsafe(self._open(), loop).result()
                except BaseException:
                    loop.call_soon_threadsafe(loop.stop)
                    raise
                self._loop = loop
                atexit.register(self._at_exit)
            return self._loop

    async def _open(self) -> None:
        config = config_of(os.environ)
        self._context = Context(config)
        await self._context.__aenter__()
        try:
            self._group = Group(self._context, SERVICE, name_of(os.environ))
            await self._group.__aenter__()
        except BaseException:
            await self._context.close()
            raise

    def _at_exit(self) -> None:
        """Closes all sessions in order, so that no peer takes this end for a failure."""
        self._shim.stop()
        if os.getpid() != self._process or self._loop is None or self._thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            closing.result(CLOSE_SECONDS)
        except (TimeoutError, MrcError, OSError) as error:
            logger.debug("closed late: %s", error)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)

    async def _close(self) -> None:
        await self._group.__aexit__(None, None, None)
        await cancelled(*self._tasks)
        await self._context.close()

    def _wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        loop = self._started()
        if threading.current_thread() is self._thread:
            # Python's collector may destroy a group on this thread, which cannot wait for itself.
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            raise StateError("called on mrc's own thread")
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout)

    # ---- Calls ----------------------------------------------------------------------------

    def address(self) -> bytes:
        self._started()
        return self._group.address.pack()

    def open(self, space: int, user: int) -> None:
        async def run() -> None:
            if space in self._spaces:
                raise StateError("two groups have the same number: create the group again")
            self._spaces[space] = _Space(user)

        self._wait(run())

    def connect(self, space: int, rank: int, address: bytes) -> int:
        peer = Address.unpack(address)

        async def run() -> int:
            number = self._numbers.setdefault(peer.token, len(self._addresses))
            if number == len(self._addresses):
                self._addresses.append(peer)
            group = self._spaces[space]
            group.peers[number] = rank
            group.connecting[rank] = asyncio.create_task(self._linked(number, peer))
            return number

        return self._wait(run())

    async def _linked(self, number: int, peer: Address) -> None:
        """Connects to a peer unless it is connected."""
        session = await self._group.session(peer)
        link = self._links.get(number)
        if link is not None and link.session is session:
            if link.error is not None:
                raise link.error
            return
        link = self._links[number] = Link(
            number, self._context, session, self._done, self._from_any
        )
        task = asyncio.create_task(self._follow(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ready(self, space: int, timeout: float) -> None:
        self._wait(self._ready(space, timeout))

    async def _ready(self, space: int, timeout: float) -> None:
        connecting = self._spaces[space].connecting
        _, late = await asyncio.wait(connecting.values(), timeout=timeout)
        await cancelled(*late)
        for rank, task in sorted(connecting.items()):
            if task in late:
                raise ConnectError(f"rank {rank} did not connect within {timeout:g} s")
            if (error := task.exception()) is not None:
                raise ConnectError(f"cannot connect to rank {rank}: {error}") from error
        connecting.clear()

    def post(self, operation: Operation) -> None:
        self._started().call_soon_threadsafe(self._post, operation)

    def _post(self, operation: Operation) -> None:
        group = self._spaces.get(operation.space)
        if group is None:
            return
        group.running[operation.cookie] = operation
        if operation.peer == ANY:
            self._receive_any(group, operation)
            return
        link = self._links[operation.peer]
        (link.send if operation.sends else link.receive)(operation)

    def _receive_any(self, group: _Space, operation: Operation) -> None:
        large = operation.bytes > SMALL_BYTES
        for number in group.peers:
            link = self._links[number]
            if link.take_large(operation) if large else link.take_small(operation):
                operation.peer = number
                return
        if self._all_lost(group):
            self._done(operation, min(group.peers), -errno.ECONNRESET)
        else:
            (group.large if large else group.small)[operation.tag].append(operation)

    def _from_any(self, number: int, key: Key, large: bool) -> Operation | None:
        group = self._spaces.get(key[0])
        if group is None or number not in group.peers:
            return None
        waiting = group.large if large else group.small
        queue = waiting.get(key[1])
        if not queue:
            return None
        operation = queue.popleft()
        if not queue:
            del waiting[key[1]]
        operation.peer = number
        return operation

    def _done(self, operation: Operation, number: int, result: int) -> None:
        group = self._spaces.get(operation.space)
        if group is not None and group.running.pop(operation.cookie, None) is not None:
            self._shim.done(group.user, operation, number, result)

    def cancel(self, space: int, cookie: int) -> None:
        try:
            self._wait(self._cancel(space, cookie))
        except StateError:
            pass

    async def _cancel(self, space: int, cookie: int) -> None:
        group = self._spaces.get(space)
        operation = group.running.get(cookie) if group is not None else None
        if group is None or operation is None:
            return
        if operation.peer == ANY:
            for waiting in (group.small, group.large):
                if operation in waiting.get(operation.tag, ()):
                    waiting[operation.tag].remove(operation)
            self._done(operation, ANY, -errno.ECANCELED)
        else:
            await self._links[operation.peer].cancel(operation)

    def close(self, space: int) -> None:
        try:
            self._wait(self._close_space(space))
        except StateError:
            pass

    async def _close_space(self, space: int) -> None:
        group = self._spaces.get(space)
        if group is None:
            return
        await cancelled(*group.connecting.values())
        for cookie in list(group.running):
            await self._cancel(space, cookie)
        del self._spaces[space]
        for number in group.peers:
            if number in self._links:
                self._links[number].forget(space)

    # ---- Peers that end -------------------------------------------------------------------

    async def _follow(self, link: Link) -> None:
        """Handles a session to its end, and then fails what waits for this peer.

        A peer that closed its session in order has finished: only operations with it fail. A peer
        that died leaves a group that cannot finish: all operations fail now and name it, rather
        than later with the names of the ranks that gave up before.
        """
        error = await link.run()
        died = not isinstance(error, MailboxClosedError)
        for group in list(self._spaces.values()):
            if link.number in group.peers:
                self._shim.lost(group.user, link.number, str(error), everything=died)
        link.fail(error)
        for group in self._spaces.values():
            if link.number in group.peers and self._all_lost(group):
                for operation in [op for op in group.running.values() if op.peer == ANY]:
                    self._done(operation, link.number, -errno.ECONNRESET)
                group.small.clear()
                group.large.clear()

    def _all_lost(self, group: _Space) -> bool:
        return all(self._links[number].error is not None for number in group.peers)
