# SPDX-License-Identifier: Apache-2.0
"""The Context: a datapath, its memory regions, and QPs to any number of peers."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import json
import logging
import math
import os
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import replace as replaced
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, get_type_hints, overload
from weakref import WeakSet

from msgspec.structs import replace

import mrc
from mrc import products, versions
from mrc.aio.qp import QP
from mrc.aio.recording import Recorder
from mrc.config import CcParameters, ContextConfig
from mrc.connect.connect import Local, Terms
from mrc.connect.listener import Listener
from mrc.connect.oob import Peer
from mrc.connect.parse import host_and_port
from mrc.connect.profiles import CcProfile, EvProfile
from mrc.connect.remote_view import RemoteView
from mrc.engine import engine, native
from mrc.engine.dispatch import Dispatcher
from mrc.engine.memory import Region
from mrc.engine.paths import LocalPort
from mrc.engine.ports import LocalPorts
from mrc.enums import Access, CcKind, CommandOp, PlaneShares
from mrc.errors import (
    ArgumentError,
    MrcError,
    StateError,
    reason_of,
)
from mrc.events import ContextWarning, QpInfo, TraceEntry
from mrc.fabric.hostconfig import HostConfig
from mrc.observe.views import Observatory
from mrc.tasks import Opening, cancelled, checked_timeout, within
from mrc.units import digits

logger = logging.getLogger("mrc.establish")
_log = logging.getLogger("mrc.context")

_MAX_PRIVATE_BYTES = 65536
_MESSAGES = "mrc.messages.messages"
P = ParamSpec("P")


class Observer(Protocol):
    """Opens and closes together with its Context."""

    metrics_port: int
    """The TCP port at which it serves metrics; 0: none."""

    async def open(self, ctx: Context) -> None:
        """Called when the Context is open. An exception closes the Context again."""

    async def close(self) -> None:
        """Called before the Context ends; safe to call twice."""

    def forget(self) -> None:
        """Called when the event loop has ended before the Context."""

    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None] | None:
        """Called for each connected QP. Returns a function to call with the QP's last state."""

    def viewers(self) -> RemoteView:
        """What answers the viewers of a new listener."""


class _Open(Protocol[P]):
    """The type of `open`: its keywords are the fields of ContextConfig."""

    @overload
    def __call__(self, config: ContextConfig | None = None, /) -> Opening[Context]: ...
    @overload
    def __call__(
        self, config: ContextConfig | None, /, *args: P.args, **fields: P.kwargs
    ) -> Opening[Context]: ...
    @overload
    def __call__(self, *args: P.args, **fields: P.kwargs) -> Opening[Context]: ...


def _taking(fields: Callable[P, ContextConfig]) -> Callable[[Callable[..., Any]], _Open[P]]:
    """Gives `open` the signature that it has."""

    def signed(function: Callable[..., Any]) -> _Open[P]:
        (config, _) = inspect.signature(function).parameters.values()
        own = inspect.signature(fields).parameters.values()
        types = get_type_hints(fields)  # without their bounds
        named = [each.replace(annotation=types[each.name]) for each in own]
        signature = inspect.Signature([config, *named], return_annotation="Opening[Context]")
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return signed


@_taking(ContextConfig)
def open(config: ContextConfig | None = None, /, **fields: Any) -> Opening[Context]:
    """Opens a Context: `async with mrc.open(interfaces=("eth1", "eth2")) as context`.

    The fields are those of ContextConfig; they replace those of `config`. Raises ConfigError for a
    wrong one, TypeError for one that does not exist, OSError when a socket cannot be opened.
    """
    if not isinstance(config, ContextConfig | None):
        raise TypeError(f"config: needs a ContextConfig, not {config!r:.60}")
    return Opening(Context(replaced(config or ContextConfig(), **fields))._open())


class Context:
    """One datapath with its sockets, listeners, QPs and memory regions: what `mrc.open` opens.

    Its end closes the listeners, then the QPs, then releases the memory regions. All calls come
    from the event loop in which it was opened.
    """

    def __init__(
        self, config: ContextConfig | None = None, *, observer: Observer | None = None
    ) -> None:
        """`observer` reads this Context; None: the views that the configuration enables."""
        self.config = config or ContextConfig()
        self._engines: _Engines | None = None
        # The dispatcher keeps every open QP alive, so weak references are enough here.
        self._qps: WeakSet[QP] = WeakSet()
        self._listeners: WeakSet[Listener] = WeakSet()
        self._closer: asyncio.Task[None] | None = None
        self._observer = observer or Observatory()

    async def _code_failed(self) -> str:
        """Returns why the one-time code is used up, when that is so and no other peer can connect;
        never without a code.
        """
        guard = self._opened().guard
        if guard is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nobody ends this future")
        await guard.failed.wait()
        return guard.failure

    @property
    def _is_closed(self) -> bool:
        """Whether the one-time code has let its one peer in, and nobody else may connect."""
        guard = self._opened().guard
        return guard is not None and guard.is_closed

    async def _open(self) -> Self:
        local = await self._make_local()
        self._peer_memory = local.admission.memory
        """Limits the memory for sessions of peers, by the address of the peer."""
        self._engines = _Engines(local, lambda: self._qps)
        try:
            self._engines.open()
            await self._observer.open(self)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return self

    async def _make_local(self) -> Local:
        """Opens the first datapath; a subclass overrides it."""
        config = self.config
        host = config.host or HostConfig.load(os.environ)
        links = LocalPorts.of(config, host)
        dispatcher = Dispatcher(links.open(config))
        for line in links.small:
            logger.warning("%s", line)
        return Local.of(config, host, links, dispatcher)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(orderly=error is None, reason=reason_of(error))

    async def close(self) -> None:
        """Closes everything in order, as the end of `async with` does; safe to call twice.

        If the Context's event loop has ended, this only stops the datapath. Raises StateError when
        another event loop calls it.
        """
        await self._close(orderly=True)

    def _all(self) -> _Engines:
        if self._engines is None:
            raise StateError("the Context is not open: use mrc.open")
        self._engines.first.dispatcher.check_open()
        if self._closer is not None:
            raise StateError("the Context is closed")
        return self._engines

    def _opened(self) -> Local:
        return self._all().first

    # ---- State ----------------------------------------------------------------------------

    @property
    def udp_port(self) -> int:
        """The UDP port that peers send to; the first one, if there are several engines."""
        return self._opened().dispatcher.engine.udp_port

    @property
    def pid(self) -> int:
        """The process whose memory the QPs read and write."""
        return os.getpid()

    @property
    def name(self) -> str:
        """The name of this host for its peers."""
        return self._opened().name

    @property
    def ports(self) -> tuple[LocalPort, ...]:
        """The ports in use now, in the order of their planes."""
        return self._opened().links.ports

    @property
    def missing(self) -> tuple[str, ...]:
        """Why ports of the configuration, or wanted `interfaces`, cannot be used now."""
        return self._opened().links.lacking

    @property
    def unused(self) -> tuple[str, ...]:
        """Why other interfaces, or deprecated addresses, of this host are not used now."""
        return self._opened().links.unused

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of the configured peers."""
        host = self._opened().host
        return tuple(host.peers) if host else ()

    @property
    def warnings(self) -> tuple[ContextWarning, ...]:
        """The last 64 warnings of each engine, newest last."""
        return tuple(each for engine in self._all() for each in engine.warnings)

    @property
    def metrics_port(self) -> int:
        """The TCP port at which metrics are served; 0 without `ContextConfig.metrics`."""
        return self._observer.metrics_port

    async def snapshot(self) -> dict[str, Any]:
        """The state of the Context as data for `json`, as in `mrc top`.

        `mrc schema top` describes the keys: a snapshot is an endpoint without the rates.
        """
        return await Observatory.snapshot(self)

    async def counters(self) -> dict[str, int]:
        """Every counter by name."""
        return await self._all().values(CommandOp.COUNTERS, "counter")

    async def drops(self) -> dict[str, int]:
        """How many packets were dropped, by reason."""
        return await self._all().values(CommandOp.DROPS, "drop")

    @property
    def qps(self) -> tuple[QP, ...]:
        """The QPs that are connected and not closed."""
        self._opened()
        return tuple(qp for qp in self._qps if not qp.closed)

    async def trace(self, count: int = 4096) -> list[TraceEntry]:
        """The newest entries of the engines' traces, oldest first."""
        return await self._all().trace(count)

    def record(
        self, qps: Sequence[QP] | None = None, *, width_ns: int = 1_000_000
    ) -> Opening[Recorder]:
        """Records the payload that arrives for these QPs inside `async with context.record(...)`.

        None records all QPs, including QPs connected during the recording, on the planes that have
        ports now. Bins are `width_ns` wide; each time MAX_BINS is exceeded, the width doubles.
        Raises InUseError while another recording runs, StateError when a QP is closed.
        """
        links = self._opened().links
        if qps is not None and not all(isinstance(qp, QP) for qp in qps):
            raise TypeError(f"qps: needs QPs, not {qps!r:.60}")
        planes = range(1, links.highest + 1)
        return Opening(Recorder(list(self._all()), links.most, planes, qps, width_ns)._open())

    # ---- Memory ---------------------------------------------------------------------------

    def register(self, buffer: Any, *, writable: bool = False) -> Opening[Region]:
        """Registers a buffer: `async with context.register(buffer) as region`.

        The buffer is any object with the buffer protocol, or with `__dlpack__` in CPU memory:
        bytes, a memory map, a NumPy array, a torch tensor. It must be contiguous. Registration pins
        it: it cannot be resized or closed until the region is closed. This side can always write
        from it. `writable`: peers may write into it, which requires a writable buffer; whoever has
        the region's `handle` may, over any QP of this Context.

        The end of `async with` waits until no write uses the region. If an error ends it, it waits
        for at most the configured `linger`: then QPs that still use the region fail. Raises
        ArgumentError, also for objects and pointers in the buffer.
        """
        self._opened()
        if not isinstance(writable, bool):
            raise TypeError(f"writable: needs True or False, not {writable!r:.60}")
        access = Access.REMOTE_WRITE if writable else Access.LOCAL_READ
        return Opening(self._register(Region._over(buffer, access, self._close_region)))

    async def _register(self, region: Region) -> Region:
        await self._all().register(region)
        return region

    async def _close_region(self, region: Region, error: BaseException | None) -> None:
        if self._engines is not None:
            if error is not None:
                await self._engines.end_use(region, self.config.timeouts.linger)
            await self._engines.deregister(region)

    # ---- Profiles -------------------------------------------------------------------------

    @property
    def ev_profiles(self) -> Mapping[str, EvProfile]:
        """The EV profiles by name. The profile "default" is ONLINE and uses every path."""
        return self._opened().ev_profiles

    @property
    def cc_profiles(self) -> Mapping[str, CcProfile]:
        """The CC profiles by name. The profile "default" is ONLINE; ContextConfig defines it."""
        return self._opened().cc_profiles

    def ev_profile(
        self,
        name: str,
        *,
        paths: Sequence[str] = ("*",),
        planes: Sequence[int] = (),
        active_per_plane: int = 0,
        denied: Sequence[str] = (),
    ) -> EvProfile:
        """Creates an EV profile, in INIT; its arguments are the fields of EvSelection.

        Raises ConfigError for a wrong argument and InUseError if the name is in use.
        """
        made = EvProfile(
            name, paths=paths, planes=planes, active_per_plane=active_per_plane, denied=denied
        )
        return self._opened().ev_profiles.add(made)

    def cc_profile(
        self,
        name: str,
        *,
        kind: CcKind = CcKind.NSCC,
        parameters: CcParameters | None = None,
        plane_shares: PlaneShares = PlaneShares.MEASURED,
    ) -> CcProfile:
        """Creates a CC profile, in INIT.

        Raises ConfigError for a wrong argument and InUseError if the name is in use.
        """
        made = CcProfile(name, kind, parameters, plane_shares)
        return self._opened().cc_profiles.add(made)

    def destroy_profile(self, profile: EvProfile | CcProfile) -> None:
        """Ends a profile and frees its name. The profile must be in INIT, so no QP uses it."""
        if isinstance(profile, EvProfile):
            self._opened().ev_profiles.destroy(profile)
        else:
            self._opened().cc_profiles.destroy(profile)

    def _terms(
        self,
        private: dict[str, Any] | None,
        ev_profile: EvProfile | None,
        cc_profile: CcProfile | None,
    ) -> Terms:
        private = private or {}
        if not isinstance(private, dict):
            raise TypeError(f"private: needs a dict, not {private!r:.60}")
        for name, profile, kind in (
            ("ev_profile", ev_profile, EvProfile), ("cc_profile", cc_profile, CcProfile),
        ):  # fmt: skip
            if not isinstance(profile, kind | None):
                raise TypeError(f"{name}: needs one of Context.{name}s, not {profile!r:.60}")
        try:
            size = len(json.dumps(private, allow_nan=False))
        except (TypeError, ValueError) as error:
            remedy = "it is sent as JSON (a handle has to_dict)"
            raise ArgumentError(f"private: {error}: {remedy}") from error
        if size > _MAX_PRIVATE_BYTES:
            most = f"at most {_MAX_PRIVATE_BYTES} fit"
            raise ArgumentError(f"private: has {size} bytes of JSON, {most}")
        local = self._opened()
        return Terms(
            private,
            local.ev_profiles.find(ev_profile),
            local.cc_profiles.find(cc_profile),
            QP,
        )

    # ---- Peers ----------------------------------------------------------------------------

    def listen(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        private: dict[str, Any] | None = None,
        admit: Callable[[Peer], bool | Awaitable[bool]] | None = None,
        failed: Callable[[Peer, MrcError], None] | None = None,
        ev_profile: EvProfile | None = None,
        cc_profile: CcProfile | None = None,
        messages: bool = False,
    ) -> Opening[Listener]:
        """Waits for peers on a TCP port: `async with context.listen() as listener`.

        `host` None listens on every address; `port` None on that of "HOST:PORT", else 4791; 0 on a
        free one. The listener sends `private` (JSON) to every peer. It calls `admit`, a function or
        a coroutine function, with each peer, which it lets in if the result is True. To refuse the
        peer with a reason, `admit` raises a ConnectError. When it raises any other error, the
        listener refuses the peer and logs the error. It calls `failed` with a peer that cannot
        connect, and the error.

        All QPs of the listener use the given profiles, or the default profiles for None. The
        listener refuses peers while a profile is not ONLINE. With `messages` the QPs carry messages
        and nothing else (see `messages`). Raises InUseError, ResolveError.
        """
        for name, function in (("admit", admit), ("failed", failed)):
            if function is not None and not callable(function):
                raise TypeError(f"{name}: needs a function, not {function!r:.60}")
        terms = replace(
            self._terms(private, ev_profile, cc_profile),
            admit=admit,
            failed=failed,
            messages=messages,
        )
        return Opening(self._listen(*_address(host, port), terms))

    async def _listen(self, host: str | None, port: int, terms: Terms) -> Listener:
        choose = partial(self._all().choose, messages=terms.messages)
        listener = Listener(self._opened(), terms, self._adopt, self._observer.viewers(), choose)
        await listener._open(host, port)
        self._listeners.add(listener)
        self._opened().links.tell()
        return listener

    def connect(
        self,
        host: str,
        port: int | None = None,
        *,
        private: dict[str, Any] | None = None,
        timeout: float | None = 5.0,
        ev_profile: EvProfile | None = None,
        cc_profile: CcProfile | None = None,
        messages: bool = False,
    ) -> Opening[QP]:
        """Connects a QP to the peer that listens at `host`: `async with context.connect("h1")`.

        `host` is a configured peer, a name or an address; `port` None is that of "HOST:PORT", else
        4791. The peer gets `private` (JSON). The profiles must be ONLINE; None selects the default
        profiles. `timeout` is in seconds (None: no limit); 20 of the peer's round trips are added
        once it answers. While the peer has no free place for
        another QP, this retries until the timeout. Raises ResolveError, ConnectError
        (ConnectTimeoutError after the timeout, BusyError if the peer had no free place), PathError,
        or StateError if a profile is not ONLINE. With `messages` the QP carries messages and
        nothing else, and so must the listener's.
        """
        terms = replace(self._terms(private, ev_profile, cc_profile), messages=messages)
        terms.ev_profile.check_usable()
        terms.cc_profile.check_usable()
        seconds = math.inf if timeout is None else checked_timeout(timeout)
        if seconds < 0:
            raise ArgumentError(f"timeout: {digits(seconds)} s is below 0")
        name, number = _address(host, port)
        if not name:
            raise ArgumentError(f"host: needs a name or an address, not {host!r}")
        return Opening(self._connect(name, number, terms, seconds))

    async def _connect(self, host: str, port: int, terms: Terms, timeout: float) -> QP:
        with self._all().choose(messages=terms.messages) as local:
            local.links.check(tuple(self.config.weights))
            return self._adopt(await local.connect(terms, host, port, timeout=timeout))

    def _adopt(self, qp: QP) -> QP:
        self._qps.add(qp)
        qp._on_end = self._observer.adopt(qp)
        return qp

    def messages(self, space: int = 0) -> Opening[mrc.Messages]:
        """Sends and receives with tags over QPs with `messages=True`: `async with
        context.messages() as messages`. Raises InUseError if this Context has the space open,
        ArgumentError for a wrong number.
        """
        local = self._opened()

        def qp_of(peer: int) -> QP:
            numbers = ((qp, qp._messages and qp._messages.number) for qp in self._qps)
            (found,) = (qp for qp, number in numbers if number == peer and not qp.closed)
            return found

        made = products.need(_MESSAGES, "messages").Messages(local.dispatcher, qp_of, space)
        return Opening(made._open())

    def message_functions(self) -> Any:
        """The same as functions in C, for a library of this process that needs no Python between.

        They are valid until the Context is closed. Its QPs must be closed first.
        """
        functions = products.need(_MESSAGES, "messages").functions
        return functions(self._opened().dispatcher)

    # ---- End ------------------------------------------------------------------------------

    async def _close(self, *, orderly: bool, reason: str = "") -> None:
        engines = self._engines
        if engines is None or (dispatcher := engines.first.dispatcher).forked:
            return  # in a child of fork: the parent closes the Context
        if dispatcher.gone:
            self._observer.forget()
            engines.end()
            return
        if asyncio.get_running_loop() is not dispatcher.loop:
            raise StateError("the Context belongs to another event loop: close it there")
        if self._closer is None:
            work = self._end(engines, orderly=orderly, reason=reason)
            self._closer = asyncio.get_running_loop().create_task(work)
        await asyncio.shield(self._closer)

    async def _end(self, engines: _Engines, *, orderly: bool, reason: str) -> None:
        await engines.stop_following()
        await self._observer.close()
        await asyncio.gather(*(listener.close() for listener in list(self._listeners)))
        qps = list(self._qps)
        await asyncio.gather(*(qp.close() if orderly else qp.abort(reason) for qp in qps))
        await engines.close()


def _address(host: str | None, port: int | None) -> tuple[str | None, int]:
    """Host and TCP port, of which `host` may name both: "h1:4792", "[2001:db8::1]:4792"."""
    if host is not None and not isinstance(host, str):
        raise TypeError(f"host: needs a string, not {host!r:.60}")
    if port is None:
        if not host:
            return host, versions.TCP_PORT
        try:
            return host_and_port(host)
        except ValueError as error:
            raise ArgumentError(f"host: {error}") from None
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"port: needs a whole number, not {port!r:.60}")
    if not 0 <= port <= 65535:
        raise ArgumentError(f"port: {port} is not within 0..65535")
    return host, port


# ---- Engines ------------------------------------------------------------------------------------


class _Engines:
    """All engines of a Context, from its first one on.

    Each has a datapath thread, sockets and QPs of its own. They share the memory regions, the
    profiles and the limits, so a QP may belong to any of them. A peer connects to one host, whose
    QPs receive on several UDP ports.
    """

    def __init__(self, first: Local, qps: Callable[[], Iterable[QP]]) -> None:
        """`qps`: those of the Context."""
        self.first = first
        self._qps = qps
        self._all = [first]
        self._connecting: Counter[Dispatcher] = Counter()
        self._followers: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Opens the other engines of the configuration; each follows the interfaces. The UDP port
        of the n-th is n above a configured one.
        """
        config, host = self.first.config, self.first.host
        for number in range(1, config.sockets.engines):
            port = config.udp_port and config.udp_port + number
            links = LocalPorts.of(config, host)
            dispatcher = Dispatcher(links.open(replaced(config, udp_port=port)))
            self._all.append(replace(self.first, links=links, dispatcher=dispatcher))
        loop = asyncio.get_running_loop()
        self._followers = [loop.create_task(_follow(local)) for local in self._all]

    def __iter__(self) -> Iterator[Dispatcher]:
        """Their dispatchers."""
        return (local.dispatcher for local in self._all)

    @contextmanager
    def choose(self, *, messages: bool) -> Iterator[Local]:
        """The engine of a QP that connects inside: the one with the fewest. Messages of all peers
        are matched by one engine, the first.
        """
        qps = self._connecting.copy()
        qps.update(qp._dispatcher for qp in self._qps() if not qp.closed)
        fewest = min(self._all, key=lambda local: qps[local.dispatcher])
        chosen = self.first if messages else fewest
        self._connecting[chosen.dispatcher] += 1
        try:
            yield chosen
        finally:
            self._connecting[chosen.dispatcher] -= 1

    # ---- Memory ---------------------------------------------------------------------------

    async def register(self, region: Region) -> None:
        """Registers the region with each engine, under the same key."""
        done: list[Dispatcher] = []
        try:
            for dispatcher in self:
                await dispatcher.register(region)
                done.append(dispatcher)
        except BaseException:
            for dispatcher in done:
                dispatcher.deregister(region)
            raise

    async def deregister(self, region: Region) -> None:
        """Waits until no work request uses the region, then ends it. Nothing happens when the
        Context is closed or belongs to the parent of a fork.
        """
        holders = [each for each in self if not each.gone and each.holds(region)]
        if holders:
            await holders[0].until_idle(region)
            ended = [each.deregister(region) for each in holders]
            await asyncio.shield(asyncio.gather(*ended))

    async def end_use(self, region: Region, seconds: float) -> None:
        """Waits these seconds until no work request uses the region. Then QPs that use it fail:
        only the end of its QP ends a work request that the engine has taken.
        """
        holders = [each for each in self if not each.gone and each.holds(region)]
        with suppress(TimeoutError):
            async with within(seconds):
                for each in holders[:1]:
                    await each.until_idle(region)
        if region._outstanding:
            using = {qpn for each in holders for qpn in each.users_of(region)}
            for qp in list(self._qps()):
                if qp.qpn in using:
                    qp._fail(StateError(f"{qp._called}: the memory of a write was deregistered"))

    # ---- Queries --------------------------------------------------------------------------

    async def values(self, op: CommandOp, kind: str) -> dict[str, int]:
        """The sums of counters of all engines, by name."""
        names = native.names_of(kind)
        sums = dict.fromkeys(names, 0)
        for dispatcher in self:
            command, array = engine.values(op, len(names))
            count = await dispatcher.call(command, f"read {kind}s")
            for i, name in enumerate(names[:count]):
                sums[name] += array[i]
        return sums

    async def trace(self, count: int) -> list[TraceEntry]:
        """The newest entries of all traces, oldest first."""
        names = native.names_of("trace")
        traces: list[list[TraceEntry]] = []
        for dispatcher in self:
            command, array = engine.trace(count)
            found = await dispatcher.call(command, "read trace")
            entries = (array[i] for i in range(found))
            traces.append([TraceEntry(e.now_ns, names[e.point], e.qpn, e.a, e.b) for e in entries])
        return list(heapq.merge(*traces, key=lambda entry: entry.now_ns))[-count:]

    # ---- End ------------------------------------------------------------------------------

    async def stop_following(self) -> None:
        """The interfaces may change from now on: the QPs close."""
        await cancelled(*self._followers)

    async def close(self) -> None:
        """Stops the datapaths; their QPs are closed."""
        for dispatcher in self:
            await dispatcher.close()

    def end(self) -> None:
        """The same after the end of the event loop."""
        for dispatcher in self:
            dispatcher.end()


async def _follow(local: Local) -> None:
    try:
        await local.links.follow(local.dispatcher.call, local.dispatcher.engine)
    except (MrcError, OSError) as error:
        _log.warning("this Context stopped following changes of its interfaces: %s", error)
