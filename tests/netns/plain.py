# SPDX-License-Identifier: Apache-2.0
"""Plain multi-homed hosts: namespaces joined by veth pairs, and coroutines that run inside them.

A host is a thread of this process inside a namespace, with its own event loop.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

from slowness import PATIENCE, until

import mrc
from mrc import ContextConfig, Listener
from mrc.linux import netns

BUDGET_SECONDS = PATIENCE
T = TypeVar("T")


def ip(command: str) -> None:
    print(f"ip {command}")
    subprocess.run(["ip", *command.split()], check=True)


@contextmanager
def namespaces(*names: str) -> Iterator[None]:
    """Creates namespaces, in which loopback is up; removes those that are left."""
    try:
        for name in names:
            netns.create(name)
            ip(f"-n {name} link set lo up")
        yield
    finally:
        for name in names:
            netns.remove(name)


def join(a: str, x: str, b: str, y: str, *, mtu: int = 1500) -> None:
    """Joins two namespaces by a veth pair."""
    ip(f"link add {x} netns {a} mtu {mtu} type veth peer name {y} netns {b} mtu {mtu}")
    ip(f"-n {a} link set {x} up")
    ip(f"-n {b} link set {y} up")


def address(namespace: str, interface: str, *addresses: str) -> None:
    for each in addresses:
        ip(f"-n {namespace} addr add {each} dev {interface}" + " nodad" * (":" in each))


def until_running(namespace: str, *interfaces: str) -> None:
    """Waits for the carrier: a veth may report none for a while after both ends are up."""

    def is_up(interface: str) -> bool:
        command = ["ip", "-n", namespace, "-br", "link", "show", interface]
        return " UP " in subprocess.run(command, capture_output=True, text=True).stdout

    for interface in interfaces:
        until(partial(is_up, interface), f"{interface} has no carrier")


def run_in(namespace: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Runs a coroutine inside a namespace, on its own thread and event loop."""
    result: Future[T] = Future()

    async def bounded() -> T:
        async with asyncio.timeout(BUDGET_SECONDS):
            return await work()

    def thread() -> None:
        try:
            with netns.inside(namespace):
                result.set_result(asyncio.run(bounded()))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=thread, name=namespace).start()
    return result


@contextmanager
def without_route(namespace: str, destination: str) -> Iterator[None]:
    """Without this route of IPv6 for a time."""
    routes = ["ip", "-n", namespace, "-6", "route"]
    with tempfile.TemporaryFile() as saved:  # ip cannot restore from a pipe
        subprocess.run([*routes, "save", destination], check=True, stdout=saved)
        subprocess.run([*routes, "del", destination], check=True)
        try:
            yield
        finally:
            saved.seek(0)
            subprocess.run([*routes, "restore"], check=True, stdin=saved)


class Peer:
    """A Context in a host that lets others write to its memory, on a thread of its own."""

    def __init__(self, namespace: str, size: int, config: ContextConfig | None = None) -> None:
        self.target = bytearray(size)
        self._listening, self._done = threading.Event(), threading.Event()
        self._served = run_in(namespace, lambda: self._serve(config))
        assert self._listening.wait(BUDGET_SECONDS)

    async def _serve(self, config: ContextConfig | None) -> None:
        async with (
            mrc.open(config) as context,
            context.register(self.target, writable=True) as region,
            context.listen(private={"memory": region.handle.to_dict()}) as listener,
        ):
            accepting = asyncio.create_task(self._accept(listener))
            self._listening.set()
            await asyncio.to_thread(self._done.wait)
        await accepting

    async def _accept(self, listener: Listener) -> None:
        self.qps = [qp async for qp in listener]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._served.result(BUDGET_SECONDS)
