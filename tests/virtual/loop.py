# SPDX-License-Identifier: Apache-2.0
"""An event loop in virtual time, for the tasks of several hosts.

Time passes only when no task can run: then the clock jumps to the next timer or to the next entry
of the agenda, which holds what the simulated world does. A task belongs to the program in whose
context it was started, and so do all callbacks that it causes; a program that is stalled or dead
runs none of them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

PROGRAM: ContextVar[RunsHandles | None] = ContextVar("program", default=None)
"""The program that runs; None: the test itself."""

_NS = 1_000_000_000

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StuckError(Exception):
    """Tasks wait, and nothing will happen any more."""


class RunsHandles(Protocol):
    """A program, as its event loop sees it."""

    alive: bool

    @property
    def runs(self) -> bool:
        """Whether it can read descriptors now."""

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether the handle may run now; a program that says no keeps it or drops it."""


def forgotten(task: Any) -> None:
    """The task will never end, which asyncio need not report when the task is collected."""
    task._log_destroy_pending = False


class _ProgramHandle(asyncio.Handle):
    _context: Context  # this and others below are private to asyncio

    def _run(self) -> None:
        program = self._context.get(PROGRAM)
        if program is None or program.admits(self):
            super()._run()


class _ProgramTimer(asyncio.TimerHandle):
    _context: Context
    _scheduled: bool

    def _run(self) -> None:
        program = self._context.get(PROGRAM)
        if program is None or program.admits(self):
            super()._run()


class Agenda:
    """What happens in the world outside of the programs, and the clock."""

    def __init__(self) -> None:
        self.now_ns = _NS
        self.on_time: Callable[[int], None] = lambda now_ns: None
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Calls `act` at this time; entries of one time in the order in which they came."""
        heapq.heappush(self._entries, (max(when_ns, self.now_ns), next(self._order), act))

    def after(self, ns: float, act: Callable[[], None]) -> None:
        """As `at`, in so many nanoseconds."""
        self.at(self.now_ns + int(ns), act)

    def clear(self) -> None:
        """Forgets what is due."""
        self._entries.clear()

    @property
    def next_ns(self) -> int | None:
        """When the next entry is due."""
        return self._entries[0][0] if self._entries else None

    def advance(self, to_ns: int) -> None:
        """Moves the clock and does what is due."""
        if to_ns > self.now_ns:
            self.now_ns = to_ns
            self.on_time(to_ns)
        while self._entries and self._entries[0][0] <= self.now_ns:
            heapq.heappop(self._entries)[2]()


class Pollable(Protocol):
    """Descriptors of the simulated kernel."""

    def is_ready(self, fd: int) -> bool:
        """Whether it is readable."""

    def is_writable(self, fd: int) -> bool:
        """Whether it has room."""

    def deadline_ns(self, fd: int) -> int | None:
        """When a timer makes it readable."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs the tasks of all hosts; `tcp` makes the connections between them."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _check_closed: Callable[[], None]

    def __init__(self, agenda: Agenda, kernel: Pollable, tcp: Any) -> None:
        super().__init__()
        self.agenda = agenda
        self._kernel = kernel
        self._tcp = tcp
        self._selector = self
        self._clock_resolution = 1e-9
        self._dead: list[asyncio.Task[Any]] = []
        self._readers: dict[int, _ProgramHandle] = {}
        self._writers: dict[int, _ProgramHandle] = {}
        self.failures: list[dict[str, Any]] = []
        """what the loop was told of exceptions that nobody awaited"""
        self.contexts: WeakKeyDictionary[asyncio.Task[Any], Context] = WeakKeyDictionary()
        """of each task: the program that it is part of"""
        self.set_task_factory(self._task)
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def close(self) -> None:
        for each in (self._dead, self._readers, self._writers):
            each.clear()
        super().close()

    def time(self) -> float:
        return self.agenda.now_ns / _NS

    def _task(
        self, loop: Any, coro: Any, context: Context | None = None, **more: Any
    ) -> asyncio.Task[Any]:
        """Python 3.14 also gives the name."""
        context = copy_context() if context is None else context
        task = asyncio.Task(coro, loop=loop, context=context, **more)
        self.contexts[task] = context
        return task

    # ---- Handles of programs --------------------------------------------------------------

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _ProgramHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        self._check_closed()
        timer = _ProgramTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def again(self, handle: asyncio.Handle) -> None:
        """Runs a handle that its program had kept."""
        self._ready.append(handle)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def forget(self, program: RunsHandles) -> None:
        """The program was killed: its descriptors are closed, its tasks go on never."""
        for task in asyncio.all_tasks(self):
            if self.contexts[task].get(PROGRAM) is program:
                forgotten(task)
                self._dead.append(task)  # otherwise garbage collection would end it: a step
        for waiting in (self._readers, self._writers):
            for fd, handle in list(waiting.items()):
                if handle._context.get(PROGRAM) is program:
                    del waiting[fd]

    # ---- The selector ---------------------------------------------------------------------

    def select(self, timeout: float | None) -> list[asyncio.Handle]:
        """Lets time pass until a descriptor is ready, or for at most `timeout` seconds."""
        until = None if timeout is None else self.agenda.now_ns + -int(-timeout * _NS // 1)
        while not (ready := self._ready_handles()):
            dues = [until, self.agenda.next_ns]
            dues += [self._kernel.deadline_ns(fd) for fd, _ in _running(self._readers)]
            due = min((each for each in dues if each is not None), default=None)
            if due is None:
                raise StuckError("every task waits, and nothing will happen any more")
            self.agenda.advance(due)
            if self._ready or (until is not None and self.agenda.now_ns >= until):
                return self._ready_handles()
        return ready

    def _ready_handles(self) -> list[asyncio.Handle]:
        kernel = self._kernel
        return [
            *(each for fd, each in _running(self._readers) if kernel.is_ready(fd)),
            *(each for fd, each in _running(self._writers) if kernel.is_writable(fd)),
        ]

    def _process_events(self, event_list: list[asyncio.Handle]) -> None:
        for handle in event_list:
            self._ready.append(handle)

    def add_reader(self, fd: Any, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self._readers[_number(fd)] = _ProgramHandle(callback, args, self, None)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(_number(fd), None) is not None

    def add_writer(self, fd: Any, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self._writers[_number(fd)] = _ProgramHandle(callback, args, self, None)

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(_number(fd), None) is not None

    # ---- Sockets of `virtual.network` ---------------------------------------------------

    async def sock_accept(self, sock: Any) -> Any:
        return await self._until_possible(sock, self.add_reader, self.remove_reader, sock.accept)

    async def sock_recv(self, sock: Any, n: int) -> Any:
        receive = partial(sock.recv, n)
        return await self._until_possible(sock, self.add_reader, self.remove_reader, receive)

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        send = partial(sock.send, data)
        await self._until_possible(sock, self.add_writer, self.remove_writer, send)

    async def _until_possible(self, sock: Any, add: Any, remove: Any, call: Any) -> Any:
        while True:
            try:
                return call()
            except BlockingIOError:
                possible = asyncio.Event()
                add(sock, possible.set)
                try:
                    await possible.wait()
                finally:
                    remove(sock)

    # ---- The rest of a loop ---------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **kwargs: Any) -> Any:
        return self._tcp.resolve(host, port)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *,
        local_addr: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        source = local_addr[0] if local_addr else ""
        return await self._tcp.connect(self, protocol_factory, host, port, source)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, sock: Any = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        return self._tcp.serve(self, protocol_factory, sock)

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Runs it at once: the programs' own threads are replaced in world.py."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except BaseException as error:
            done.set_exception(error)
        return done

    async def shutdown_default_executor(self, timeout: Any = None) -> None:
        pass

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        pass

    def remove_signal_handler(self, sig: int) -> bool:
        return False

    def _write_to_self(self) -> None:
        pass


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _running(waiting: dict[int, _ProgramHandle]) -> list[tuple[int, _ProgramHandle]]:
    """Those whose program can run now."""
    return [
        (fd, handle)
        for fd, handle in waiting.items()
        if (program := handle._context.get(PROGRAM)) is None or program.runs
    ]
