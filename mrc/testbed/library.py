# SPDX-License-Identifier: Apache-2.0
"""Test beds from Python: one that this program builds, or one that exists; its hosts, in which a
Context of this program can be, and commands; its faults.

A process of its own works on each test bed (mrc/testbed/server.py), for root and for other users
alike. Its answers take milliseconds to seconds; meanwhile the event loop runs. The objects belong
to no event loop: any may use them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from subprocess import CompletedProcess
from threading import RLock
from typing import Any, Self, TypeVar

from msgspec import convert

import mrc
from mrc.config import ContextConfig
from mrc.errors import ArgumentError, StateError
from mrc.fabric.hostconfig import HostConfig
from mrc.linux.namespace import NetworkNamespace
from mrc.tasks import Opening, begun, within
from mrc.testbed import state
from mrc.testbed.bed import Testbed
from mrc.testbed.child import BlockingChild
from mrc.testbed.faults import Mode, TargetFault, rate_fields
from mrc.testbed.plan import BedPlan
from mrc.testbed.results import Drained, Healed, Injection, Removed, Status
from mrc.testbed.server import answered
from mrc.testbed.shape import (
    DEFAULT_NAME,
    Fabric,
    Outside,
    Shape,
    as_argument_error,
    chosen_shape,
    parse_rate,
)
from mrc.typed import checked
from mrc.units import parse_short_size, parse_time

T = TypeVar("T")
Argument = str | os.PathLike[str]

_END_SECONDS = 60.0  # to take down a large test bed
_HELPER_SECONDS = 1.0


def up(
    topology: str | Path | None = None,
    *,
    name: str | None = None,
    hosts: int | None = None,
    planes: int | None = None,
    t0: int | None = None,
    t1: int | None = None,
    pods: int | None = None,
    t2: int | None = None,
    mtu: int | None = None,
    rate: str | None = None,
    delay: str | None = None,
    jitter: str | None = None,
    buffer: str | None = None,
    fabric: str = Fabric.KERNEL,
    ecn_low: str | None = None,
    ecn_high: str | None = None,
    trim: bool | None = None,
    outside: Outside | None = None,
) -> Opening[Bed]:
    """Builds a test bed: `async with mrc.testbed.up(planes=2, rate="200mbit") as bed`.

    `topology`: a topology file, or the name of a built-in one. All other arguments are the options
    of `mrc testbed up`, with the same defaults and in the same units; they override the topology.
    `name` None takes a free name, so that several test beds can be up. The end of `async with`
    takes it down; after `bed = await up()` call `bed.close()`. It also goes down when this program
    ends or crashes; should its server be killed at the same time, with the next `up` of any
    program. Only `mrc testbed up` builds one that stays. Raises ArgumentError, ConfigError
    for an invalid file, StateError if one of this name is up or this system allows none, and
    NetlinkError.
    """
    _check(int, hosts=hosts, planes=planes, t0=t0, t1=t1, pods=pods, t2=t2, mtu=mtu)
    _check(str, name=name, rate=rate, delay=delay, jitter=jitter, buffer=buffer)
    _check(str, ecn_low=ecn_low, ecn_high=ecn_high)
    _check(bool, trim=trim)
    if fabric not in tuple(Fabric):
        raise ArgumentError(f"fabric: {fabric} is not one of {', '.join(Fabric)}")
    with as_argument_error():
        options = {
            "hosts": hosts,
            "planes": planes,
            "t0": t0,
            "t1": t1,
            "pods": pods,
            "t2": t2,
            "mtu": mtu,
            "trim": trim,
            "outside": outside,
            "jitter_ns": None if jitter is None else parse_time(jitter),
            "delay": None if delay is None else parse_time(delay),
            "buffer_bytes": None if buffer is None else parse_short_size(buffer),
            "ecn_low_bytes": None if ecn_low is None else parse_short_size(ecn_low),
            "ecn_high_bytes": None if ecn_high is None else parse_short_size(ecn_high),
        }
        options = {key: value for key, value in options.items() if value is not None}
        if rate is not None:
            options["rate"] = parse_rate(rate)
    file = None if topology is None else str(topology)
    return Opening(Bed._up(name, chosen_shape(file, Fabric(fabric), options)))


def existing(name: str = DEFAULT_NAME) -> Opening[Bed]:
    """A test bed that is up, such as by `mrc testbed up`: `async with existing() as bed`.

    The end of `async with` leaves it up. Raises StateError if it is not up, or is over several
    machines.
    """
    return Opening(Bed._existing(name))


class Bed:
    """A test bed that is up; `up` and `existing` return it.

    Every method raises StateError after `close`, and if the test bed is no longer up.
    """

    def __init__(self) -> None:
        self._name = ""
        self._shape: Shape
        self._lock = RLock()  # one request at a time
        self._namespaces: dict[str, tuple[NetworkNamespace, subprocess.Popen[bytes]]] = {}
        command = [sys.executable, "-P", "-m", "mrc.testbed.server"]
        self._server: BlockingChild | None = BlockingChild(command, ties=False)

    @classmethod
    async def _up(cls, name: str | None, shape: Shape) -> Bed:
        encoded = state.encode(state.BedState(shape))
        return await cls()._begin("up", name=name, shape=encoded)

    @classmethod
    async def _existing(cls, name: str) -> Bed:
        return await cls()._begin("existing", name=name)

    async def _begin(self, do: str, **request: Any) -> Bed:
        try:
            found = await self._ask(do, dict[str, Any], **request)
        except BaseException:
            if self._server is not None:
                self._server.process.terminate()  # it removes what it has begun
            await asyncio.shield(_in_thread(self._end))
            raise
        self._name = found["name"]
        self._shape = state.decode(found["state"]).shape
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def name(self) -> str:
        """Name of the test bed, as in `mrc testbed status --name NAME`."""
        return self._name

    @property
    def shape(self) -> Shape:
        """Its parameters."""
        return self._shape

    async def close(self) -> None:
        """Takes the test bed down if this object built it. Contexts in its hosts must be closed
        before. Safe to call twice.
        """
        await asyncio.shield(_in_thread(self._end))

    async def down(self) -> Removed:
        """Takes the test bed down, whoever built it, and ends the programs in it."""
        await _in_thread(self._end_namespaces)
        removed = await self._ask("down", Removed)
        await self.close()
        return removed

    # ---- Hosts ------------------------------------------------------------------------------

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Its hosts: h0, h1, ..."""
        return tuple(Host(self, f"h{number}") for number in self.shape.host_numbers())

    def host(self, name: str) -> Host:
        """The host of this name, or the switch: t0:P.N, t1:P.S, t2:P.M or mgmt. Only commands run
        in a switch. The first use raises ArgumentError if there is none.
        """
        return Host(self, name)

    # ---- Faults -----------------------------------------------------------------------------

    def fail(
        self,
        target: str,
        mode: str = Mode.SILENT,
        *,
        loss: float | None = None,
        rate: str | None = None,
        mtu: int | None = None,
        corrupt: float | None = None,
        duplicate: float | None = None,
        reorder: float | None = None,
        delay: str | None = None,
        jitter: str | None = None,
    ) -> Opening[BedFault]:
        """Injects a fault: `async with bed.fail("plane:2")` until its end, `await bed.fail(...)`
        until `heal`. It replaces an earlier fault of the same target.

        The arguments are those of `mrc testbed fail`: targets as "plane:2", "t1:3.0", "link:h0.2",
        "h0>t0:1.0"; `mode` silent or down. `loss`, `corrupt`, `duplicate` and `reorder` are shares
        of the packets, from 0 to 1; without any of these options all packets are lost. `rate` is
        "50mbit", or "10%" of each link's own; `mtu` in bytes; `delay` and `jitter` are as "1ms".
        Raises ArgumentError for a wrong target or a fault that this fabric cannot inject.
        """
        _check(str, target=target, rate=rate, delay=delay, jitter=jitter)
        if mode not in tuple(Mode):
            raise ArgumentError(f"mode: {mode} is not one of {', '.join(Mode)}")
        _check(float, loss=loss, corrupt=corrupt, duplicate=duplicate, reorder=reorder)
        _check(int, mtu=mtu)
        with as_argument_error():
            fault = {
                "loss": loss,
                "mtu": mtu,
                "corrupt": corrupt,
                "duplicate": duplicate,
                "reorder": reorder,
                "delay_ns": None if delay is None else parse_time(delay),
                "jitter_ns": None if jitter is None else parse_time(jitter),
                **({} if rate is None else rate_fields(rate)),
            }
        fault = {key: value for key, value in fault.items() if value is not None}
        return Opening(self._fail(target, mode, fault))

    async def _fail(self, target: str, mode: str, fault: dict[str, Any]) -> BedFault:
        try:
            found = await self._ask("fail", Injection, target=target, mode=mode, **fault)
        except asyncio.CancelledError:  # the server may have injected it
            await asyncio.shield(self.heal(target))
            raise
        return BedFault(self, found.fault)

    async def heal(self, target: str = "all") -> Healed:
        """Ends the fault of a target, or all faults. Raises ArgumentError for a wrong target."""
        return await self._ask("heal", Healed, target=target)

    async def drain(self, target: str) -> Drained:
        """Moves the hosts' traffic off a plane, a switch or a link, without loss. Raises
        ArgumentError if two hosts would lose their last path.
        """
        return await self._ask("drain", Drained, target=target)

    async def undrain(self, target: str = "all") -> Drained:
        """Lets traffic return to what was drained. Raises ArgumentError for a wrong target."""
        return await self._ask("undrain", Drained, target=target)

    async def status(self, *, seconds: float = 0.2) -> Status:
        """What `mrc testbed status --json` prints: its parts, its faults and the counters of each
        link. Measures rates over these seconds.
        """
        return await self._ask("status", Status, seconds=seconds)

    @property
    def closed(self) -> bool:
        """Whether this object has no test bed any more."""
        return self._server is None

    @cached_property
    def _plan(self) -> BedPlan:
        return Testbed.of(self.name, self.shape).plan

    # ---- Its processes ----------------------------------------------------------------------

    async def _ask(self, do: str, kind: type[T], **request: Any) -> T:
        """The answer of the server to a request."""
        return convert(await _in_thread(self._answer, do, **request), kind)

    def _answer(self, do: str, **request: Any) -> Any:
        with self._lock:
            if self._server is None:
                raise StateError(f"test bed {self.name} is closed")
            self._server.send(json.dumps({"do": do, **request}).encode())
            if not (line := self._server.line()):
                raise StateError(f"test bed {self.name}: {self._server.last_words()}")
            return answered(json.loads(line))

    def _command(
        self, host: str, words: Sequence[Argument], user: str | None, folder: Argument | None
    ) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of a command in a host."""
        found = self._answer(
            "command",
            host=host,
            words=[os.fspath(word) for word in words],
            user=user,
            folder=os.fspath(folder or os.getcwd()),
        )
        environment = dict(os.environ)
        environment.pop(HostConfig.ENVIRONMENT, None)
        return found["argv"], environment | found["environment"]

    def _namespace(self, host: str) -> NetworkNamespace:
        with self._lock:
            if host not in self._namespaces:
                argv, environment = self._command(host, NetworkNamespace.program(), None, None)
                own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with its:
                    helper = subprocess.Popen(
                        argv, env=environment, stdin=its.fileno(), process_group=0
                    )
                self._namespaces[host] = (NetworkNamespace(own), helper)
            return self._namespaces[host][0]

    def _end_namespaces(self) -> None:
        with self._lock:
            for namespace, _ in self._namespaces.values():
                if namespace.channel is not None:
                    namespace.channel.close()
            for _, helper in self._namespaces.values():
                try:
                    helper.wait(_HELPER_SECONDS)
                except subprocess.TimeoutExpired:  # a Context is still open there
                    helper.kill()
                    helper.wait()
            self._namespaces.clear()

    def _end(self) -> None:
        with self._lock:
            self._end_namespaces()
            server, self._server = self._server, None
            if server is not None:
                server.close(_END_SECONDS)


class BedFault:
    """A fault of a test bed: what `Bed.fail` injected. The end of `async with` heals its target."""

    def __init__(self, bed: Bed, fault: TargetFault) -> None:
        self._bed = bed
        self._fault = fault

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.heal()

    @property
    def fault(self) -> TargetFault:
        """What fails, and how."""
        return self._fault

    async def heal(self) -> Healed:
        """Ends it, as `Bed.heal`."""
        return await self._bed.heal(self._fault.target)


class Host:
    """A host of a test bed, or a switch, in which only commands run."""

    def __init__(self, bed: Bed, name: str) -> None:
        self._name = name
        self._bed = bed

    @property
    def name(self) -> str:
        """h0, h1, ..."""
        return self._name

    def context(
        self, config: ContextConfig | None = None, /, **fields: Any
    ) -> Opening[mrc.Context]:
        """A Context of this program in this host: `async with host.context() as context`.

        `config`, or the fields of one: as of a Context. It has the host's configuration, so
        `context.connect("h1")` leads to host h1 over all planes. Several hosts can have a Context
        in one program. Raises what Context raises.
        """
        return Opening(self._context(config or ContextConfig(), fields))

    async def _context(self, config: ContextConfig, fields: dict[str, Any]) -> mrc.Context:
        if self.name not in self._bed._plan.configs:
            raise ArgumentError(f"no host {self.name} in test bed {self._bed.name}")
        host = HostConfig.parse(self._bed._plan.configs[self.name], self.name)
        namespace = await self.namespace()
        own: dict[str, Any] = {"host": host, "namespace": namespace}
        config = replace(config, **own | fields)
        return await mrc.open(config)

    async def namespace(self) -> NetworkNamespace:
        """Its network namespace: `namespace.socket(...)` is an ordinary socket in it."""
        return await _in_thread(self._bed._namespace, self.name)

    async def run(
        self,
        argv: Sequence[Argument],
        *,
        input: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: Argument | None = None,
        user: str | None = None,
    ) -> CompletedProcess[str]:
        """Runs a command in this host, and returns its exit code, stdout and stderr as text, as
        `subprocess.run` does.

        `env` adds to the environment. `user` requires root. Without `input`, stdin is empty. Raises
        TimeoutError after `timeout` seconds, and subprocess.CalledProcessError with `check` if it
        fails. If this raises or is cancelled, the command and its children in its process group are
        killed.
        """
        async with self.start(
            argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd, user=user
        ) as process:
            try:
                async with within(timeout):
                    said = await process.communicate((input or "").encode())
            except TimeoutError:
                words = " ".join(str(word) for word in argv)
                raise TimeoutError(f"{self.name}: {words}: runs for {timeout} s") from None
        out, err = ((each or b"").decode(errors="replace") for each in said)
        assert process.returncode is not None
        done = CompletedProcess([*argv], process.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def start(
        self,
        argv: Sequence[Argument],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: Argument | None = None,
        user: str | None = None,
    ) -> Opening[HostCommand]:
        """Starts a command in this host, as `asyncio.create_subprocess_exec` does, in a session
        of its own. `stdin`, `stdout` and `stderr` are as there, such as `subprocess.PIPE`. The end
        of `async with` kills its process group; after `await`, the end of the test bed does.
        """
        if isinstance(argv, str | bytes):
            raise TypeError(f"argv: needs a list of words, not the one text {argv!r:.60}")
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return Opening(self._start(argv, streams, env, cwd, user))

    async def _start(
        self,
        argv: Sequence[Argument],
        streams: Mapping[str, Any],
        env: Mapping[str, str] | None,
        cwd: Argument | None,
        user: str | None,
    ) -> HostCommand:
        words, environment = await _in_thread(self._bed._command, self.name, argv, user, cwd)
        process = await asyncio.create_subprocess_exec(
            *words, **streams, env=environment | {**(env or {})}, cwd=cwd, start_new_session=True
        )
        return HostCommand(process)


class HostCommand:
    """A command that `Host.start` began. The end of `async with` kills it, with its children in its
    process group, if it still runs.
    """

    def __init__(self, process: Process) -> None:
        self._process = process

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
        await self._process.wait()
        self._process._transport.close()  # type: ignore[attr-defined]  # others may hold its pipes

    @property
    def pid(self) -> int:
        """Its process id, on the machine."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or -N after signal N; None: it runs."""
        return self._process.returncode

    async def wait(self, *, timeout: float | None = None) -> int:
        """Its exit code, when it has ended. Raises TimeoutError after so many seconds."""
        async with within(timeout):
            return await self._process.wait()

    async def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]:
        """Sends it this and the end of its input; returns all that it writes to stdout and stderr,
        None without a pipe.
        """
        return await self._process.communicate(input)

    async def write(self, data: bytes) -> None:
        """Writes to its stdin. Raises StateError if that is no pipe."""
        if self._process.stdin is None:
            raise StateError("stdin is no pipe: start it with stdin=subprocess.PIPE")
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def readline(self, *, timeout: float | None = None) -> bytes:
        """The next line of its stdout; empty at its end. Raises TimeoutError after so many seconds,
        StateError if stdout is no pipe.
        """
        if self._process.stdout is None:
            raise StateError("stdout is no pipe: start it with stdout=subprocess.PIPE")
        async with within(timeout):
            return await self._process.stdout.readline()

    def send_signal(self, signum: int) -> None:
        """To its process group; nothing happens if it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)


async def _in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await asyncio.wrap_future(begun(function, *args, **kwargs))


def _check(kind: type, **arguments: object) -> None:
    """Raises WrongValueError for an argument that is neither None nor of this type."""
    for name, value in arguments.items():
        if value is not None:
            checked(name, value, kind)
