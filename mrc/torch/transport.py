# SPDX-License-Identifier: Apache-2.0
"""The transport of this process: one Context, one QP to each peer, and the groups over them.

An event loop in a thread of its own connects, watches and closes. Messages pass it by: Gloo's
threads post them to the engine.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import ipaddress
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from msgspec import Struct, field

import mrc
from mrc.connect.parse import shown
from mrc.errors import ConfigError, ConnectError, MrcError, StateError
from mrc.fabric.hostconfig import HostConfig
from mrc.messages.messages import MessageFunctions
from mrc.tasks import cancelled
from mrc.torch.build import TorchError, built
from mrc.torch.group import NOTE_BYTES, Group, Member, MemberAddress, MemberEnd
from mrc.units import digits

logger = logging.getLogger("mrc.torch")

# ---- This host ----------------------------------------------------------------------------------

INTERFACES = "GLOO_SOCKET_IFNAME"  # Gloo's own variable: names with commas between them
SECRET = "MRC_SECRET"  # file of the secret that all ranks have; unset: nothing is encrypted


def config_of(environ: Mapping[str, str]) -> mrc.ContextConfig:
    """The interfaces of the host configuration ($MRC_CONFIG), those that $GLOO_SOCKET_IFNAME
    names, or all. If $MASTER_ADDR is a loopback address, all ranks are processes of this host. With
    $MRC_SECRET the exchange is encrypted and packets are sealed. Raises ConfigError.
    """
    interfaces = tuple(name for name in environ.get(INTERFACES, "").split(",") if name)
    if not interfaces and HostConfig.ENVIRONMENT not in environ:
        source = _source(environ.get("MASTER_ADDR", "")).partition("%")[0]
        if source and ipaddress.ip_address(source).is_loopback:
            interfaces = ("127.0.0.1",)
    rank = environ.get("RANK", "")
    program = f"torch rank {rank}" if rank.isdecimal() else "torch"
    secret = environ.get(SECRET, "")
    return mrc.ContextConfig(
        interfaces=interfaces,
        program=program,
        local_view=True,
        security=mrc.Security(secret=mrc.load_secret(Path(secret))) if secret else None,
    )


def check_interfaces(config: mrc.ContextConfig, missing: Sequence[str]) -> None:
    """Raises ConfigError if no wanted interface can be used: the ranks would wait for each other in
    vain.
    """
    if config.interfaces and len(missing) >= len(config.interfaces):
        raise ConfigError(f"{INTERFACES}: {'; '.join(missing)}")


def name_of(environ: Mapping[str, str]) -> str:
    """The configured name of this host, or the address that $MASTER_ADDR is reached from."""
    host = HostConfig.load(environ)
    if host is not None:
        return host.host
    return _source(environ.get("MASTER_ADDR", "")) or socket.gethostname()


def _source(host: str) -> str:
    """The address of this host that packets to `host` come from; empty: there is none."""
    if not host:
        return ""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)  # sends no packet
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return ""


T = TypeVar("T")

VERSION = 1  # of what the processes of a job exchange
CLOSE_SECONDS = 5.0
_SPACE = struct.Struct("<I")  # begins a note to another rank; the reason follows


class _Space(Struct):
    """A process group of torch."""

    user: int
    """The C++ context of the group."""
    connecting: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # by rank
    peers: dict[int, int] = field(default_factory=dict)  # by rank: those that are connected


class GlooTransport:
    """The functions that gloo_device.cc calls, on Gloo's threads. Their errors become a text."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self._opening = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._spaces: dict[int, _Space] = {}
        self._members: dict[int, Member] = {}  # by number of the peer
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
        self._context = await mrc.open(config)
        try:
            check_interfaces(config, self._context.missing)
            self._shim.attach(self._context.message_functions())
            self._group = Group(
                self._context,
                "torch",
                name_of(os.environ),
                version=VERSION,
                remedy=f"set {SECRET} to the same file on all hosts, or on none",
                on_note=self._on_note,
            )
            await self._group.__aenter__()
        except BaseException:
            await self._context.close()
            raise

    def _at_exit(self) -> None:
        """Closes all QPs in order, so that no peer takes this end for a failure."""
        if os.getpid() != self._process or self._loop is None or self._thread is None:
            self._shim.stop()
            return

        async def close_group() -> None:
            await self._group.__aexit__(None, None, None)
            await cancelled(*self._tasks)

        self._wait_for(close_group())
        self._shim.stop()
        self._wait_for(self._context.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)

    def _wait_for(self, closing: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(closing, self._loop).result(CLOSE_SECONDS)
        except (TimeoutError, MrcError, OSError) as error:
            logger.debug("closed late: %s", error)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._started()).result()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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

    def connect(self, space: int, rank: int, address: bytes) -> None:
        peer = MemberAddress.unpack(address)

        async def run() -> None:
            group = self._spaces[space]
            group.connecting[rank] = self._start(self._join(group, rank, peer))

        self._wait(run())

    async def _join(self, group: _Space, rank: int, peer: MemberAddress) -> None:
        """Connects to a peer unless it is connected."""
        member = await self._group.member(peer)
        number = group.peers[rank] = member.qp.message_peer
        if self._members.get(number) is not member:
            self._members[number] = member
            self._start(self._follow(number, member))

    def ready(self, space: int, timeout: float) -> dict[int, int]:
        try:
            return self._wait(self._ready(self._spaces[space], timeout))
        except MrcError as error:
            self.failed(space, str(error))
            raise

    async def _ready(self, group: _Space, timeout: float) -> dict[int, int]:
        connecting = group.connecting
        _, late = await asyncio.wait(connecting.values(), timeout=timeout)
        await cancelled(*late)
        for rank, task in sorted(connecting.items()):
            if task in late:
                raise ConnectError(f"rank {rank} did not connect within {digits(timeout)} s")
            if (error := task.exception()) is not None:
                raise ConnectError(f"cannot connect to rank {rank}: {error}") from error
        connecting.clear()
        return group.peers

    def failed(self, space: int, text: str) -> None:
        self._started().call_soon_threadsafe(self._tell, space, text)

    def close(self, space: int) -> None:
        loop = self._started()
        if threading.current_thread() is self._thread:
            # Python's collector may destroy a group on this thread, which cannot wait for itself.
            self._close_space(space)
            return

        async def run() -> None:
            self._close_space(space)

        asyncio.run_coroutine_threadsafe(run(), loop).result()

    def _close_space(self, space: int) -> None:
        group = self._spaces.pop(space)
        for task in group.connecting.values():
            task.cancel()

    # ---- Groups that fail -----------------------------------------------------------------

    def _tell(self, space: int, text: str) -> None:
        """Tells the other ranks of a group that it is over, so that they need not time out too."""
        group = self._spaces.get(space)
        note = _SPACE.pack(space) + text.encode()[: NOTE_BYTES - _SPACE.size]
        for number in group.peers.values() if group is not None else ():
            if number in self._members:
                self._group.tell(self._members[number], note)

    def _on_note(self, member: Member, note: bytes) -> None:
        if len(note) < _SPACE.size:
            return
        group = self._spaces.get(*_SPACE.unpack_from(note))
        number = member.qp.message_peer
        if group is not None and number in group.peers.values():
            error = MrcError(shown(note[_SPACE.size :].decode(errors="replace")))
            self._shim.lost(group.user, number, _text(group, {number: error}), everything=True)

    # ---- Peers that end -------------------------------------------------------------------

    async def _follow(self, number: int, member: Member) -> None:
        """Waits for the end of a peer and tells its groups.

        A peer that closed its QP in order has finished: only operations with it fail. A peer that
        died leaves groups that cannot finish: all their operations fail now and name it, rather
        than later with the names of the ranks that gave up before.
        """
        ended: MemberEnd = await member.ended
        errors = {**await self._lost_peers(number), number: ended.error}
        for group in self._spaces.values():
            if number in group.peers.values():
                text = _text(group, errors)
                self._shim.lost(group.user, number, text, everything=ended.died)
        if self._members.get(number) is member:
            del self._members[number]

    async def _lost_peers(self, ended: int) -> dict[int, MrcError]:
        """The other peers that answer nothing. One that ended may have found them lost before."""
        errors = {}
        for number, member in list(self._members.items()):
            if number != ended and not member.ended.done() and (error := await member.lost()):
                errors[number] = error
        return errors


def _text(group: _Space, errors: dict[int, MrcError]) -> str:
    """What has happened to peers of a group: the cause first."""
    ranks = {number: rank for rank, number in group.peers.items()}
    found = {ranks[number]: error for number, error in errors.items() if number in ranks}
    return "; ".join(f"rank {rank}: {error}" for rank, error in found.items())


# ---- Registration with torch --------------------------------------------------------------------

_registered: list[GlooTransport] = []  # at most one: torch's registry keeps it until the end


def register() -> None:
    """Compiles the transport if necessary and registers it; a second call does nothing.

    Opens no socket: that happens when the first process group is made. Raises TorchError.
    """
    if _registered:
        return
    torch: Any = sys.modules.get("torch") or import_module("torch")
    version, folder = str(torch.__version__), Path(torch.__file__).parent
    shim = Shim(ctypes.CDLL(str(built(version, folder))))
    transport = GlooTransport(shim)
    if shim.register(transport) != 0:
        raise TorchError(f"torch {version}: its Gloo does not take the mrc transport")
    _registered.append(transport)


def process_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """What `init_process_group("mrc")` makes: a group of Gloo over mrc."""
    register()
    gloo = import_module("torch.distributed").ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface="mrc")]
    options._timeout = timeout
    options._threads = 2 * len(options._devices)
    return gloo(store, rank, size, options)


# ---- The border between gloo_device.cc and Python: its structs, the functions of each side ------

_int, _u32, _ptr = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
_TYPES = {
    "address": ctypes.CFUNCTYPE(_int, _ptr, _u32, _ptr, _u32),
    "open": ctypes.CFUNCTYPE(_int, _u32, _ptr, _ptr, _u32),
    "connect": ctypes.CFUNCTYPE(_int, _u32, _int, _ptr, _u32, _ptr, _u32),
    "ready": ctypes.CFUNCTYPE(_int, _u32, _u32, ctypes.POINTER(_u32), _ptr, _u32),
    "failed": ctypes.CFUNCTYPE(None, _u32, ctypes.c_char_p),
    "close": ctypes.CFUNCTYPE(None, _u32),
}


class _EngineTable(ctypes.Structure):
    """Addresses of the engine's functions, in the order of struct mrc_gloo_engine."""

    _fields_ = tuple((name, _ptr) for name in ("ctx", "space", "close_space", "post", "cancel"))


class _CallTable(ctypes.Structure):
    _fields_ = tuple(_TYPES.items())


class Shim:
    """The functions of the compiled gloo_device.cc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._lost = library.mrc_gloo_lost
        self._lost.argtypes, self._lost.restype = (_ptr, _u32, ctypes.c_char_p, _int), None

    def register(self, calls: GlooTransport) -> int:
        """Registers the transport; `calls` must live until the process ends."""
        functions = _functions_of(calls)
        self._table = _CallTable(**{name: kind(functions[name]) for name, kind in _TYPES.items()})
        result: int = self._library.mrc_gloo_register(
            ctypes.byref(self._table), _u32(ctypes.sizeof(self._table))
        )
        return result

    def attach(self, functions: MessageFunctions) -> None:
        """The engine is open: operations go to these functions from now on."""
        engine = _EngineTable(*functions.addresses)
        result = self._library.mrc_gloo_attach(
            ctypes.byref(engine),
            _u32(ctypes.sizeof(engine)),
            _u32(functions.post_bytes),
            _u32(functions.done_bytes),
        )
        if result != 0:
            raise StateError("the compiled transport belongs to another mrc")

    def lost(self, user: int, peer: int, text: str, *, everything: bool) -> None:
        """Tells a group why operations with a peer fail, or all of its operations."""
        self._lost(user, peer, text.encode(), everything)

    def stop(self) -> None:
        """From now on the library calls neither Python nor the engine."""
        self._library.mrc_gloo_stop()


def _functions_of(calls: GlooTransport) -> dict[str, Callable[..., Any]]:
    """The C functions of the table; each calls the method of its name."""

    def address(out: int, room: int, text: int, size: int) -> int:
        def run() -> int:
            data = calls.address()
            assert len(data) <= room
            ctypes.memmove(out, data, len(data))
            return 0

        return _result_of(run, text, size)

    def open_(space: int, user: int, text: int, size: int) -> int:
        return _result_of(lambda: calls.open(space, user), text, size)

    def connect(space: int, rank: int, data: int, length: int, text: int, size: int) -> int:
        packed = ctypes.string_at(data, length)
        return _result_of(lambda: calls.connect(space, rank, packed), text, size)

    def ready(space: int, timeout_ms: int, peers: Any, text: int, size: int) -> int:
        def run() -> None:
            for rank, peer in calls.ready(space, timeout_ms / 1000).items():
                peers[rank] = peer

        return _result_of(run, text, size)

    def failed(space: int, text: bytes) -> None:
        calls.failed(space, text.decode(errors="replace"))

    return {
        "address": address,
        "open": open_,
        "connect": connect,
        "ready": ready,
        "failed": failed,
        "close": calls.close,
    }


def _result_of(run: Callable[[], int | None], text: int, size: int) -> int:
    """The result of `run`, or -1 and its error as text."""
    try:
        return run() or 0
    except (MrcError, OSError) as error:
        said = f"mrc: {error}"
    except BaseException as error:
        said = f"mrc: {type(error).__name__}: {error}"
    data = said.encode()[: size - 1] + b"\0"
    ctypes.memmove(text, data, len(data))
    return -1
