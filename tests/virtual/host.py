# SPDX-License-Identifier: Apache-2.0
"""A simulated host: its interfaces, and programs that run, stall or are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from virtual.disk import Disk
from virtual.loop import PROGRAM, Agenda, VirtualLoop

if TYPE_CHECKING:
    from virtual.kernel import Kernel
    from virtual.network import Sockets, Tcp


@dataclass(frozen=True)
class Interface:
    """As `mrc.linux.rtnetlink.Interface`, on a plane."""

    name: str
    index: int
    plane: int
    mtu: int
    up: bool
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    deprecated: frozenset[Any] = frozenset()


class Host:
    """Number `number`, from 1; its address on plane n is 10.n.0.`number`, or fd00:n::`number`."""

    def __init__(
        self, name: str, number: int, planes: int, folder: Path, agenda: Agenda, kernel: Kernel,
        *, mtu: int = 1500, version: int = 4,
    ) -> None:  # fmt: skip
        self.name, self.folder = name, folder
        self._agenda, self._kernel = agenda, kernel
        self.loop: VirtualLoop
        self.tcp: Tcp
        self.sockets: Sockets
        self.interrupt: Callable[[], None]
        """Ctrl-C for the command that runs"""
        self.powered = True
        self.stall_of: Callable[[], int] = lambda: 0
        """nanoseconds for which a program does nothing after its next step"""
        self.programs: list[Program] = []
        """that have not been killed"""
        self.disk = Disk(folder)
        self.outages = 0
        self.lost: set[Path] = set()
        """files that have lost bytes in its outages"""
        self.printed: list[str] = []
        """what its programs have printed, on either stream"""
        self._changed: dict[asyncio.Event, None] = {}
        self.interfaces = [
            Interface(
                f"{name}-p{plane}", 10 * number + plane, plane, mtu, True,
                (ip_interface(
                    f"10.{plane}.0.{number}/24" if version == 4 else f"fd00:{plane}::{number}/64"
                ),),
            )
            for plane in range(1, planes + 1)
        ]  # fmt: skip
        for each in self.interfaces:
            kernel.interface(each.name, each.mtu, up=True)

    # ---- Programs -------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether a program was started and not killed since."""
        return bool(self.programs)

    def program(self) -> Program:
        """A new program; the host has power again."""
        self.powered = True
        made = Program(self, self._agenda, self._kernel)
        self.programs.append(made)
        return made

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a program that does only this; it goes on until it ends or is killed."""
        return self.program().start(work)

    def stall(self, ns: int) -> None:
        """All programs stall."""
        for program in self.programs:
            program.stall(ns)

    def kill(self, *, powered: bool = True) -> None:
        """Ends all programs at once; without power, nobody else learns it from this host."""
        self.powered = powered
        for program in list(self.programs):
            program.kill()

    def lose_power(self, rng: Random) -> None:
        """Ends all programs; what they have not synced is lost, as `rng` says."""
        self.kill(powered=False)
        self.outages += 1
        self.lost |= self.disk.unsynced.lose(rng)

    # ---- Interfaces -----------------------------------------------------------------------

    def set_interface(self, plane: int, **changes: Any) -> None:
        """Changes `up` or `mtu` of an interface, which the program notices."""
        at = plane - 1
        self.interfaces[at] = replace(self.interfaces[at], **changes)
        each = self.interfaces[at]
        self._kernel.interface(each.name, each.mtu, up=each.up)
        for event in self._changed:
            self.loop.call_soon(event.set)

    async def interface_changes(self) -> Any:
        """As `mrc.engine.ports.link_snapshots`."""
        event = asyncio.Event()
        self._changed[event] = None
        try:
            while True:
                event.clear()
                yield list(self.interfaces)
                await event.wait()
        finally:
            self._changed.pop(event, None)


class Program:
    """A program of a host."""

    def __init__(self, host: Host, agenda: Agenda, kernel: Kernel) -> None:
        self.host = host
        self.number = next(kernel.owners)
        self.alive = True
        self._agenda, self._kernel = agenda, kernel
        self._stalls_until_ns = 0
        self._kept: list[asyncio.Handle] = []
        self._waiting: list[Callable[[], None]] = []

    # ---- For the event loop ---------------------------------------------------------------

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether a handle of this program runs now; see `virtual.loop.RunsHandles`."""
        if not self.alive:
            return False
        if self.stalled:
            self._kept.append(handle)
            return False
        self._kernel.run_as(self.number)
        if ns := self.host.stall_of():
            self.stall(ns)
        return True

    @property
    def runs(self) -> bool:
        """Whether it can read descriptors now."""
        return self.alive and not self.stalled

    # ---- Its life -------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task of it."""
        context = copy_context()
        context.run(PROGRAM.set, self)
        return self.host.loop.create_task(work, context=context)

    @property
    def stalled(self) -> bool:
        """Whether it does nothing now."""
        return self._agenda.now_ns < self._stalls_until_ns

    def stall(self, ns: int) -> None:
        """Does nothing for so long, as when stopped by SIGSTOP or asleep."""
        self._stalls_until_ns = max(self._stalls_until_ns, self._agenda.now_ns + ns)
        self._agenda.after(ns, self._go_on)

    def _go_on(self) -> None:
        if self.stalled:
            return
        kept, self._kept = self._kept, []
        for handle in kept:
            self.host.loop.again(handle)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def when_running(self, call: Callable[[], None]) -> None:
        """Calls it when the program no longer stalls."""
        self._waiting.append(call)

    def kill(self) -> None:
        """Ends it at once; its kernel tells that to others, if the host has power."""
        host = self.host
        self.alive = False
        host.programs.remove(self)
        self._kept.clear()
        host.loop.forget(self)
        host.disk.end(self)
        host.tcp.killed(self, powered=host.powered)
        host.sockets.killed(self)
        self._kernel.end(self.number)
