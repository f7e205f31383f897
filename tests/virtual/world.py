# SPDX-License-Identifier: Apache-2.0
"""One run: a seed, hosts, a network, and the programs of `mrc` on them, in virtual time.

The code that runs is the shipped one, from the command's coroutine down to the system calls of
csrc/io. Replaced are only the borders to the machine: the clock, sockets, interfaces, threads that
wait for disks, and sources of random numbers.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import contextlib
import gc
import logging
import os
import random
import re
import resource
import secrets
import shlex
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

import mrc.aio.context
import mrc.cli.runner
import mrc.connect.listener
import mrc.engine.ports
import mrc.linux.secret
import mrc.observe.views
import mrc.perf.cli
import mrc.perf.report
import mrc.transfer.cli.recv
import mrc.transfer.cli.send
import mrc.transfer.cli.transfers
import mrc.transfer.client
import mrc.transfer.files
import mrc.transfer.server
import mrc.transfer.threads
from mrc import products
from mrc.cli.main import build_parser
from mrc.cli.output import Interrupted, UsageError, exit_code
from mrc.engine.engine import Engine
from mrc.errors import MrcError
from mrc.linux.rtnetlink import Interface
from virtual import disk, kernel
from virtual.host import Host, Program
from virtual.loop import PROGRAM, Agenda, StuckError, T, Ts, VirtualLoop, forgotten
from virtual.network import Link, Network, Path, Sockets, Tcp

# The commands are imported here, because a module that is imported in a run keeps what it replaces.

_Random = random.Random
_NS = 1_000_000_000
_MS = 1_000_000
_EPOCH = 1_700_000_000  # as in kernel.c
_JOB_NS = 200_000  # the longest ordinary wait for a disk


class World:
    """`with World(seed, folder) as world:`; everything random comes from `world.rng`."""

    def __init__(self, seed: int, folder: FilePath) -> None:
        self.seed, self.folder = seed, folder
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.kernel = kernel.Kernel(self.agenda.now_ns, seed)
        self.agenda.on_time = self.kernel.set_now
        self.network = Network(self.agenda, self.kernel, random.Random(self.rng.random()))
        self.tcp = Tcp(self.agenda, self.network)
        self.sockets = Sockets()
        self.loop = VirtualLoop(self.agenda, _Sent(self), self.tcp)
        self._entropy = random.Random(self.rng.random())
        self._disk = random.Random(self.rng.random())
        self._patches = contextlib.ExitStack()
        self.complaints: list[str] = []
        """of Python about what programs have left behind, and their reports of bugs"""

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.agenda.now_ns / _NS - 1

    def host(self, name: str, planes: int = 2, **options: Any) -> Host:
        """Adds a host; see `Host`."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        made = Host(
            name, len(self.network.hosts) + 1, planes, folder, self.agenda, self.kernel, **options
        )
        made.loop, made.tcp, made.sockets = self.loop, self.tcp, self.sockets
        self.network.hosts.append(made)
        return made

    def plane(self, a: Host, b: Host, plane: int) -> tuple[Link, Link]:
        """Both directions of a plane between two hosts."""
        ours, theirs = a.interfaces[plane - 1].name, b.interfaces[plane - 1].name
        return self.network.link(ours, theirs), self.network.link(theirs, ours)

    def paths(self, a: Host, b: Host) -> list[Path]:
        """All paths between two hosts, in both directions."""
        planes = range(1, len(a.interfaces) + 1)
        return [path for plane in planes for link in self.plane(a, b, plane) for path in link.paths]

    def join(
        self, a: Host, b: Host, *, bits_per_second: float, delay_ms: float, loss: float
    ) -> None:
        """Gives each plane between two hosts four equal paths."""
        for plane in range(1, len(a.interfaces) + 1):
            for link in self.plane(a, b, plane):
                link.bits_per_second = bits_per_second
                link.paths = [Path(delay_ns=int(delay_ms * _MS), loss=loss) for _ in range(4)]

    def cut(self, paths: list[Path], seconds: float, *, what: str = "up") -> None:
        """Paths carry nothing for a while, or no TCP."""

        def change(to: bool) -> None:
            for path in paths:
                setattr(path, what, to)

        change(False)
        self.agenda.after(seconds * 1e9, lambda: change(True))

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Does something to the world at this time."""
        self.agenda.at(int((1 + seconds) * _NS), act)

    def replace(self, target: Any, name: str, value: Any) -> None:
        """Replaces an attribute until the world ends."""
        self._patches.enter_context(mock.patch.object(target, name, value))

    # ---- Running --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for target, name, value in (
            (Interface, "all", lambda _: list(_host().interfaces)),
            (mrc.engine.ports, "Engine", _polled),
            (mrc.engine.ports, "link_snapshots", lambda *_: _host().interface_changes()),
            (mrc.connect.listener, "_listening_socket", self.tcp.listening),
            (mrc.observe.views, "LocalView", _NoView),
            (socket, "gethostname", lambda: _host().name),
            (time, "monotonic", self.loop.time),
            (time, "monotonic_ns", lambda: self.agenda.now_ns),
            (time, "time", lambda: self.loop.time() + _EPOCH),
            (time, "time_ns", lambda: self.agenda.now_ns + _EPOCH * _NS),
            (time, "thread_time", lambda: 0.0),
            (resource, "getrusage", lambda who: SimpleNamespace(ru_utime=0.0, ru_stime=0.0)),
            (os, "urandom", self._entropy.randbytes),
            (mrc.transfer.files, "ThreadPoolExecutor", _NoThread),
            (mrc.linux.secret, "fill", self._fill),
            (secrets, "token_bytes", lambda count=32: self._entropy.randbytes(count)),
            (secrets, "token_hex", lambda count=32: self._entropy.randbytes(count).hex()),
            (secrets, "randbits", self._entropy.getrandbits),
            (secrets, "randbelow", self._entropy.randrange),
            (secrets, "choice", self._entropy.choice),
            (random, "Random", self._seeded),
        ):
            self.replace(target, name, value)
        for module in _users_of_threads():
            if hasattr(module, "WorkerThread"):
                self.replace(module, "WorkerThread", partial(_Line, self._disk_ns))
            if hasattr(module, "in_thread"):
                self.replace(module, "in_thread", self._in_thread)
        disk.replace_calls(self)
        for stream in ("stdout", "stderr"):
            self.replace(sys, stream, _Printed(getattr(sys, stream)))
        self._patches.enter_context(complaints(self.complaints))
        asyncio.events.set_event_loop(self.loop)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Programs that were killed have never ended: what their objects do now is nobody's."""
        gc.collect()  # while somebody hears what objects of the other programs complain about
        self.complaints += map(str, self.loop.failures)
        left = asyncio.all_tasks(self.loop)
        while left:
            forgotten(left.pop())
        for host in self.network.hosts:
            host.disk.unsynced.all_synced()
        with complaints([], logs=False), mock.patch.object(_Printed, "muted", True):
            self.loop.close()
            self.network.hosts.clear()
            self.tcp.open.clear()
            self.agenda.clear()
            gc.collect()
        asyncio.events.set_event_loop(None)
        self._patches.close()

    def run(self, seconds: float) -> None:
        """Lets virtual time pass; ends earlier when nothing is left to do."""
        with contextlib.suppress(StuckError):
            self.loop.run_until_complete(asyncio.sleep(seconds))

    def run_until(self, task: asyncio.Task[Any], seconds: float) -> bool:
        """Runs until a program has ended; False when it has not after so many seconds."""

        async def wait() -> None:
            await asyncio.wait({task}, timeout=seconds)

        with contextlib.suppress(StuckError):
            self.loop.run_until_complete(wait())
        return task.done()

    def _fill(self, view: memoryview) -> None:
        view[:] = self._entropy.randbytes(len(view))

    def _seeded(self, seed: Any = None) -> random.Random:
        return _Random(self._entropy.random() if seed is None else seed)

    # ---- Threads and disks ----------------------------------------------------------------

    def _disk_ns(self) -> int:
        return self._disk.randrange(_JOB_NS)

    async def _in_thread(
        self, function: Callable[..., Any], *args: Any, stop: Callable[[], None] | None = None
    ) -> Any:
        await asyncio.sleep(self._disk_ns() / _NS)
        return function(*args)


def _host() -> Host:
    program = PROGRAM.get()
    assert isinstance(program, Program), "only a program of a host asks this"
    return program.host


@contextlib.contextmanager
def complaints(heard: list[str], *, logs: bool = True) -> Iterator[None]:
    """Adds what Python says of objects that nobody ended, and errors in logs, which are bugs.

    `logs`: other handlers of logs get them, too.
    """
    handlers = [*(logging.root.handlers if logs else ()), _Errors(heard)]

    def unraisable(what: Any) -> None:
        text = what.err_msg or "exception ignored in"
        heard.append(f"{text} {what.object!r}: {what.exc_value!r}")

    def warned(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        heard.append(f"{category.__name__}: {message}")

    with (
        warnings.catch_warnings(),
        mock.patch.object(warnings, "showwarning", warned),
        mock.patch.object(sys, "unraisablehook", unraisable),
        mock.patch.object(logging.root, "handlers", handlers),
    ):
        warnings.simplefilter("always")
        yield


class _Errors(logging.Handler):
    """Keeps the lines of a log that report an error."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(f"log of {record.name}: {self.format(record)}")


def _polled(ports: Any, *, polled: bool, **sizes: int) -> Engine:
    """A thread of its own would run in real time."""
    return Engine(ports, polled=True, **sizes)


class _NoView:
    """Nobody runs `mrc top --local`."""

    def __init__(self, show: Any) -> None:
        pass

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def forget(self) -> None:
        pass


class _Printed:
    """Standard output or error: what programs of hosts print is theirs."""

    muted = False
    """while programs that were killed are removed"""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        program = PROGRAM.get()
        if isinstance(program, Program):
            program.host.printed.append(text)
            return len(text)
        return len(text) if self.muted else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return False


def _users_of_threads() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.startswith("mrc.transfer.") or name in ("mrc.perf.load",):
            yield module


class _Sent:
    """The kernel for the loop: what programs have sent is on its way before time passes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def is_ready(self, fd: int) -> bool:
        self._world.network.flush()
        return self._world.kernel.is_ready(fd) or self._world.sockets.is_ready(fd)

    def is_writable(self, fd: int) -> bool:
        return self._world.sockets.is_writable(fd)

    def deadline_ns(self, fd: int) -> int | None:
        return self._world.kernel.deadline_ns(fd)


class _Line(mrc.transfer.threads.WorkerThread):
    """Jobs in order, each after a wait for the disk."""

    def __init__(self, disk_ns: Callable[[], int], stop: Callable[[], None] = lambda: None) -> None:
        super().__init__(stop)
        self._disk_ns = disk_ns
        self._queued: list[tuple[Future[Any], Callable[[], Any]]] = []

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop()
        for future, _job in self._queued[1:]:
            future.cancel()
        del self._queued[1:]
        if self._queued:
            await asyncio.wait([asyncio.wrap_future(self._queued[0][0])])

    def put(self, job: Callable[[*Ts], T], *args: *Ts) -> Future[T]:
        future: Future[T] = Future()
        self._queued.append((future, partial(self._do, partial(job, *args))))
        if len(self._queued) == 1:
            self._later()
        return future

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(self._disk_ns() / _NS, self._run)

    def _run(self) -> None:
        future, job = self._queued[0]
        try:
            result = job()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        del self._queued[0]
        if self._queued:
            self._later()


class _NoThread:
    """As ThreadPoolExecutor, but does each job at once."""

    def __init__(self, max_workers: int) -> None:
        assert max_workers == 1

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(job(*args))
        return future

    def shutdown(self, *, cancel_futures: bool) -> None:
        assert cancel_futures


# ---- The commands of `mrc`, as typed -------------------------------------------------------------


@dataclass
class Command:
    """A command that runs, or has run, on a host."""

    host: Host
    line: str
    task: asyncio.Task[int] = field(init=False)
    error: BaseException | None = None
    """why it failed: a user gets one line about it"""
    crashed: str = ""
    """the traceback that a user must never see"""
    signals: list[int] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs, and after a kill."""
        ended = self.task.done() and not self.task.cancelled()
        return self.task.result() if ended else None

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.signals.append(signal.SIGINT)
        self.task.cancel()

    async def run(self) -> int:
        """As `mrc.cli.main.main`."""
        words = shlex.split(self.line)
        try:
            args = build_parser(words[:1]).parse_args(words)
            args.command_line = words
            return int(await args.run(args))
        except asyncio.CancelledError:
            if not self.signals:
                raise
            self.error = Interrupted(self.signals[0])
        except (UsageError, MrcError, OSError) as error:
            self.error = error
        except Exception as error:
            self.error, self.crashed = error, traceback.format_exc()
        return exit_code(self.error)

    def __str__(self) -> str:
        why = f": {type(self.error).__name__}: {self.error}" if self.error else ""
        return f"{self.host.name}: mrc {self.line}: {self.code}{why}"


def start_command(host: Host, line: str) -> Command:
    """Starts `mrc LINE`."""
    made = Command(host, line)
    made.task = host.start(made.run())
    return made


def use_commands(world: World, *names: str) -> None:
    """The commands give their coroutine to `start_command`: they run no loop of their own."""
    for name in names:
        module = import_module(products.COMMANDS[name])
        module = module if hasattr(module, "run_async") else mrc.cli.runner
        world.replace(module, "run_async", _same)


def _same(work: Any) -> Any:
    return work


# ---- What a run must not show, whatever its seed draws -------------------------------------------


_FOLDER = re.compile(r"/\S*/mrc-virtual-[^/]*/")


class Audit:
    """Collects what is wrong with one run; it goes on, so that all of it is seen."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.story: list[str] = []
        self.repeats = True
        """a second run has the same packets at the same times; not so with TLS, which draws its own
        random numbers, so that its messages differ by some bytes"""

    def describe(self, scenario: Any) -> None:
        """The scenario, for people."""
        self.result(str(scenario))

    def result(self, line: str) -> None:
        """What came out, for people and for the comparison of two runs."""
        self.story.append(_FOLDER.sub("", line))

    def check(self, condition: object, otherwise: str) -> None:
        """Records a fault unless the condition holds."""
        if not condition:
            self.wrong.append(otherwise)

    def nothing_left(self, world: World) -> None:
        """After the programs have ended: no task, no socket. `World.complaints` has the rest."""
        left = [task for task in asyncio.all_tasks(world.loop) if _runs(world, task)]
        self.check(not left, f"tasks are left: {left}")
        self.check(world.kernel.open_sockets == 0, "sockets of csrc/io are left open")
        open_ends = [each for each in world.tcp.open if each.program.alive]
        self.check(not open_ends, f"{len(open_ends)} TCP connections are left open")


def _runs(world: World, task: asyncio.Task[Any]) -> bool:
    """Whether it is not done, and not one of a program that was killed."""
    program = world.loop.contexts[task].get(PROGRAM)
    return not task.done() and (program is None or program.alive)
