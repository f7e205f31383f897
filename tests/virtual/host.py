# SPDX-License-Identifier: Apache-2.0
"""A simulated host: its interfaces, and a program that runs, stalls or is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virtual.disk import Disk
from virtual.loop import HOST, Agenda, VirtualLoop

if TYPE_CHECKING:
    from virtual.kernel import Kernel
    from virtual.tcp import Tcp

_PROGRAM: ContextVar[int] = ContextVar("program", default=0)  # counts a host's programs


@dataclass(frozen=True)
class Interface:
    """As `mrc.linux.interfaces.Interface`, on a plane."""

    name: str
    index: int
    plane: int
    mtu: int
    up: bool
    addresses: tuple[IPv4Interface | IPv6Interface, ...]


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
        self.alive = True
        """its program runs; a host gets another one by `start`"""
        self.powered = True
        self.stalled = False
        self.stall_of: Callable[[], int] = lambda: 0
        """nanoseconds for which the host does nothing after the next step of its program"""
        self.steps = 0
        self.disk = Disk()
        self.printed: list[str] = []
        """what its programs have printed, on either stream"""
        self._kept: list[asyncio.Handle] = []
        self._waiting: list[Callable[[], None]] = []
        self._changed: set[asyncio.Event] = set()
        self._program = 0
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

    # ---- For the event loop ---------------------------------------------------------------

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether a handle of this host runs now; see `virtual.loop.RunsHandles`."""
        if not self.is_running(handle._context):
            return False
        if self.stalled:
            self._kept.append(handle)
            return False
        self.steps += 1
        if ns := self.stall_of():
            self.stall(ns)
        return True

    def is_running(self, context: Context) -> bool:
        """Whether a context is one of the program that runs now."""
        return self.alive and context.get(_PROGRAM) == self._program

    @property
    def runs(self) -> bool:
        """Whether its program can read descriptors now."""
        return self.alive and not self.stalled

    def stall(self, ns: int) -> None:
        """Does nothing for so long, as when stopped by SIGSTOP or asleep."""
        self.stalled = True
        self._agenda.after(ns, self._go_on)

    def _go_on(self) -> None:
        self.stalled = False
        kept, self._kept = self._kept, []
        for handle in kept:
            self.loop.again(handle)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def when_running(self, call: Callable[[], None]) -> None:
        """Calls it when the host no longer stalls."""
        self._waiting.append(call)

    # ---- Programs -------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a program; it goes on until it ends or is killed."""
        if not self.alive:
            self.alive = self.powered = True
            self.stalled = False
        context = copy_context()
        context.run(HOST.set, self)
        context.run(_PROGRAM.set, self._program)
        return self.loop.create_task(work, context=context)

    def kill(self, *, powered: bool = True) -> None:
        """Ends the program at once; without power, nobody else learns it from this host."""
        self.alive, self.powered = False, powered
        self._program += 1
        self._kept.clear()
        self.loop.forget(self)
        self.disk.end()
        self.tcp.killed(self, powered=powered)
        for each in self.interfaces:
            self._kernel.end(each.name)

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
        """As `mrc.datapath.monitor.link_snapshots`."""
        event = asyncio.Event()
        self._changed.add(event)
        try:
            while True:
                event.clear()
                yield list(self.interfaces)
                await event.wait()
        finally:
            self._changed.discard(event)
