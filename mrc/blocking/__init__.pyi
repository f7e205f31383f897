# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs from the declarations of mrc. Do not edit.
# ruff: noqa
from __future__ import annotations
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Future
from mrc import ArgumentError as ArgumentError
from mrc import Authority as Authority
from mrc import BusyError as BusyError
from mrc import CcKind as CcKind
from mrc import CompletionError as CompletionError
from mrc import ConfigError as ConfigError
from mrc import ConnectError as ConnectError
from mrc import ConnectRefusedError as ConnectRefusedError
from mrc import ConnectTimeoutError as ConnectTimeoutError
from mrc import ContextConfig as ContextConfig
from mrc import Ended as Ended
from mrc import EvEvent as EvEvent
from mrc import EvInfo as EvInfo
from mrc import EvState as EvState
from mrc import EventReason as EventReason
from mrc import EventsLost as EventsLost
from mrc import HostConfig as HostConfig
from mrc import Identity as Identity
from mrc import Immediate as Immediate
from mrc import InUseError as InUseError
from mrc import Message as Message
from mrc import MrcError as MrcError
from mrc import NetworkNamespace as NetworkNamespace
from mrc import Opening as Opening
from mrc import Part as Part
from mrc import PathError as PathError
from mrc import Peer as Peer
from mrc import PeerGoneError as PeerGoneError
from mrc import PlaneEvent as PlaneEvent
from mrc import PlaneInfo as PlaneInfo
from mrc import PlaneShareEvent as PlaneShareEvent
from mrc import PortEvent as PortEvent
from mrc import ProbeResult as ProbeResult
from mrc import ProtocolError as ProtocolError
from mrc import QpErrorEvent as QpErrorEvent
from mrc import QpEvent as QpEvent
from mrc import QpInfo as QpInfo
from mrc import QueueFullError as QueueFullError
from mrc import RemoteMemory as RemoteMemory
from mrc import ResolveError as ResolveError
from mrc import Seal as Seal
from mrc import Security as Security
from mrc import StateError as StateError
from mrc import WcStatus as WcStatus
from mrc import Write as Write
from mrc import load_secret as load_secret
from mrc.aio.recording import Recording
from mrc.blocking.mirror import Blocking
from mrc.config import CcParameters
from mrc.config import Limits
from mrc.config import Queues
from mrc.config import Retries
from mrc.config import Sockets
from mrc.config import Spraying
from mrc.config import Timeouts
from mrc.config import TrafficClasses
from mrc.connect.profiles import CcProfile as CcProfile
from mrc.connect.profiles import ProfileState
from mrc.engine.paths import LocalPort
from mrc.enums import Integrity
from mrc.enums import PlaneShares
from mrc.enums import Reading
from mrc.events import ContextWarning
from mrc.events import PairInfo
from mrc.events import TraceEntry
from typing import Any

def open(
    config: ContextConfig | None = None,
    /,
    *,
    host: HostConfig | None = None,
    namespace: NetworkNamespace = NetworkNamespace(channel=None),
    interfaces: tuple[str, ...] = (),
    name: str = "",
    udp_port: int = 0,
    cc: CcKind = ...,
    cc_parameters: CcParameters = ...,
    plane_shares: PlaneShares = ...,
    integrity: Integrity = ...,
    seal: Seal | None = None,
    security: Security | None = None,
    readings: Reading = ...,
    program: str = "",
    local_view: bool = False,
    remote_view: bool = False,
    metrics: tuple[str, int] | None = None,
    retries: Retries = ...,
    queues: Queues = ...,
    spraying: Spraying = ...,
    traffic_classes: TrafficClasses = ...,
    sockets: Sockets = ...,
    limits: Limits = ...,
    timeouts: Timeouts = ...,
) -> Context: ...

class Recorder(Blocking):
    def close(self) -> None: ...
    def stop(self) -> Recording: ...

class Context(Blocking):
    def close(self) -> None: ...
    @property
    def udp_port(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def ports(self) -> tuple[LocalPort, ...]: ...
    @property
    def missing(self) -> tuple[str, ...]: ...
    @property
    def unused(self) -> tuple[str, ...]: ...
    @property
    def peers(self) -> tuple[str, ...]: ...
    @property
    def warnings(self) -> tuple[ContextWarning, ...]: ...
    @property
    def metrics_port(self) -> int: ...
    def snapshot(self) -> dict[str, Any]: ...
    def counters(self) -> dict[str, int]: ...
    def drops(self) -> dict[str, int]: ...
    @property
    def qps(self) -> tuple[QP, ...]: ...
    def trace(self, count: int = 4096) -> list[TraceEntry]: ...
    def record(self, qps: Sequence[QP] | None = None, *, width_ns: int = 1000000) -> Recorder: ...
    def register(self, buffer: Any, *, writable: bool = False) -> Region: ...
    @property
    def ev_profiles(self) -> Mapping[str, EvProfile]: ...
    @property
    def cc_profiles(self) -> Mapping[str, CcProfile]: ...
    def ev_profile(
        self,
        name: str,
        *,
        paths: Sequence[str] = ("*",),
        planes: Sequence[int] = (),
        active_per_plane: int = 0,
        denied: Sequence[str] = (),
    ) -> EvProfile: ...
    def cc_profile(
        self,
        name: str,
        *,
        kind: CcKind = ...,
        parameters: CcParameters | None = None,
        plane_shares: PlaneShares = ...,
    ) -> CcProfile: ...
    def destroy_profile(self, profile: EvProfile | CcProfile) -> None: ...
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
    ) -> Listener: ...
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
    ) -> QP: ...
    def messages(self, space: int = 0) -> Messages: ...
    def message_functions(self) -> Any: ...

class EvProfile:
    @property
    def state(self) -> ProfileState: ...
    @property
    def settings(self) -> Any: ...
    @property
    def qps(self) -> int: ...
    def to_offline(self) -> None: ...
    def to_online(self) -> None: ...
    def to_init(self) -> None: ...
    def modify(self, **changes: Any) -> None: ...
    def check_usable(self) -> None: ...
    def give_back(self) -> None: ...
    @property
    def denied(self) -> tuple[str, ...]: ...
    def denies(self, path: str) -> bool: ...
    def deny(self, *paths: str) -> None: ...
    def allow(self, *paths: str) -> None: ...

class Listener(Blocking):
    def __iter__(self) -> Iterator[QP]: ...
    @property
    def port(self) -> int: ...
    def accept(self, *, timeout: float | None = None) -> QP: ...
    def close(self) -> None: ...

class QP(Blocking):
    @property
    def qpn(self) -> int: ...
    @property
    def peer(self) -> Peer: ...
    @property
    def message_peer(self) -> int: ...
    @property
    def seal(self) -> Seal: ...
    @property
    def path_mtu(self) -> int: ...
    @property
    def mpr(self) -> int: ...
    @property
    def planes(self) -> tuple[int, ...]: ...
    @property
    def ev_profile(self) -> EvProfile: ...
    @property
    def cc_profile(self) -> CcProfile: ...
    @property
    def ended(self) -> Ended | None: ...
    def until_closed(self) -> Ended: ...
    @property
    def closed(self) -> bool: ...
    def write(
        self,
        src: Region | Part | None = None,
        dst: RemoteMemory | None = None,
        *,
        imm: int | None = None,
        redundant: bool = False,
        timeout: float | None = None,
    ) -> int: ...
    def post(
        self,
        src: Region | Part | None = None,
        dst: RemoteMemory | None = None,
        *,
        imm: int | None = None,
        redundant: bool = False,
    ) -> Future[int]: ...
    def post_many(self, writes: Iterable[Write]) -> Future[int]: ...
    def post_scattered(
        self,
        src: Region | Part,
        dst: RemoteMemory,
        *,
        length: int,
        src_offsets: Sequence[int],
        dst_offsets: Sequence[int],
    ) -> Future[int]: ...
    def immediates(self, *, timeout: float | None = None) -> Iterator[Immediate]: ...
    def events(self, *, timeout: float | None = None) -> Iterator[QpEvent]: ...
    def info(self) -> QpInfo: ...
    def evs(self) -> tuple[EvInfo, ...]: ...
    def pairs(self) -> tuple[PairInfo, ...]: ...
    def probe_ev(self, ev: int, *, payload: int = 0, timeout: float = 0.25) -> ProbeResult: ...
    def probe_evs(
        self,
        evs: Iterable[int | str] | None = None,
        *,
        payload: int = 0,
        timeout: float = 0.25,
        concurrency: int = 32,
    ) -> tuple[ProbeResult, ...]: ...
    def deny(self, *evs: int | str) -> tuple[int, ...]: ...
    def allow(self, *evs: int | str) -> tuple[int, ...]: ...
    def set_ev_state(self, ev: int, state: EvState) -> None: ...
    def set_mpr(self, mpr: int) -> None: ...
    def close(self) -> None: ...
    def abort(self, reason: str = "") -> None: ...

class Messages(Blocking):
    def close(self) -> None: ...
    def send(self, qp: QP, buffer: Any, *, tag: int = 0) -> None: ...
    def recv(
        self,
        buffer: Any,
        qp: QP | None = None,
        *,
        tag: int = 0,
        ignore: int = 0,
        exact: bool = False,
    ) -> Message: ...

class Region(Blocking):
    def close(self) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def handle(self) -> RemoteMemory: ...
    def __getitem__(self, at: slice) -> Part: ...

__all__: list[str]
